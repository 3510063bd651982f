//! A report as a sequence of blocks, from which its text and its page are made.

use crate::svg::{
    BarChart, HeatMap, LineChart, PlotError, bar_chart, heat_map as draw_heat_map, line_chart,
};
use crate::table::Table;

/// A part of a report.
#[derive(Debug, Clone)]
pub enum Block {
    /// Begins a section.
    Heading(String),
    /// One line, never broken; an empty one sets apart what follows.
    Line(String),
    /// Prose, which the text breaks at spaces to stay within 100 columns.
    Note(String),
    /// A table.
    Table(Table),
    /// A plot: a file `NAME.svg`, and part of the page. The text leaves it out.
    Figure {
        /// File name without its ending.
        name: String,
        /// What is drawn.
        chart: Chart,
    },
}

/// A plot that has not been drawn yet.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Chart {
    Line(LineChart),
    Bar(BarChart),
    Heat(HeatMap),
}

impl Chart {
    /// The plot as SVG.
    ///
    /// # Errors
    /// [`PlotError`] when the canvas fails.
    pub fn draw(&self) -> Result<String, PlotError> {
        match self {
            Self::Line(chart) => line_chart(chart),
            Self::Bar(chart) => bar_chart(chart),
            Self::Heat(map) => draw_heat_map(map),
        }
    }
}

impl From<LineChart> for Chart {
    fn from(chart: LineChart) -> Self {
        Self::Line(chart)
    }
}

impl From<BarChart> for Chart {
    fn from(chart: BarChart) -> Self {
        Self::Bar(chart)
    }
}

impl From<HeatMap> for Chart {
    fn from(map: HeatMap) -> Self {
        Self::Heat(map)
    }
}

/// A report for people.
#[derive(Debug, Clone)]
pub struct Document {
    title: String,
    blocks: Vec<Block>,
    appendix: Vec<Block>,
}

impl Document {
    /// A document without blocks. The title is the first line of the text unless it is empty.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), blocks: Vec::new(), appendix: Vec::new() }
    }

    /// A document without a title, of the lines of a text.
    #[must_use]
    pub fn of_lines(text: &str) -> Self {
        let mut document = Self::new("");
        text.lines().for_each(|line| document.line(line));
        document
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// The blocks of the text, in order.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// All blocks of the page.
    pub(crate) fn page_blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().chain(&self.appendix)
    }

    /// Begins a section.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Heading(text.into()));
    }

    /// Adds a line that is never broken.
    pub fn line(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Line(text.into()));
    }

    /// Adds an empty line, to set apart what follows.
    pub fn gap(&mut self) {
        self.line("");
    }

    /// Adds prose.
    pub fn note(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Note(text.into()));
    }

    /// Adds a table; one without rows is left out.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Adds a plot.
    pub fn figure(&mut self, name: impl Into<String>, chart: impl Into<Chart>) {
        self.blocks.push(Block::Figure { name: name.into(), chart: chart.into() });
    }

    /// Adds all blocks of another document; its title is dropped.
    pub fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
    }

    /// Adds the blocks of another document to the end of the page; the text leaves them out.
    pub fn appendix(&mut self, other: Self) {
        self.appendix.extend(other.blocks);
    }

    /// The plots, drawn: names without ending, and SVG.
    ///
    /// # Errors
    /// [`PlotError`] when the canvas fails.
    pub fn figures(&self) -> Result<Vec<(String, String)>, PlotError> {
        let figures = self.page_blocks().filter_map(|block| match block {
            Block::Figure { name, chart } => Some((name, chart)),
            _ => None,
        });
        figures.map(|(name, chart)| Ok((name.clone(), chart.draw()?))).collect()
    }
}
