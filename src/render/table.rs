//! A table: columns, and rows of cells with lines of their own below.

/// On which side the cells of a column are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    /// Numbers and dashes right, a column with anything else left.
    ByContent,
    Left,
    Right,
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    pub(crate) head: String,
    /// The least number of characters.
    width: usize,
    align: Align,
}

impl From<&str> for Column {
    fn from(head: &str) -> Self {
        head.to_owned().into()
    }
}

impl From<String> for Column {
    fn from(head: String) -> Self {
        Self { head, width: 0, align: Align::ByContent }
    }
}

/// A column of words, at least so many characters wide.
#[must_use]
pub fn left(head: &str, width: usize) -> Column {
    Column { head: head.to_owned(), width, align: Align::Left }
}

/// A column of numbers, at least so many characters wide.
#[must_use]
pub fn right(head: &str, width: usize) -> Column {
    Column { head: head.to_owned(), width, align: Align::Right }
}

/// Cells, and lines below them.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// One per column.
    pub cells: Vec<String>,
    /// Lines below the row.
    pub below: Vec<String>,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// A table without rows.
    pub fn new<C: Into<Column>>(columns: impl IntoIterator<Item = C>) -> Self {
        Self { columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// The same with these rows.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows.into_iter().map(|cells| Row { cells, below: Vec::new() }));
        self
    }

    /// Adds a row of cells.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells = cells.into_iter().map(Into::into).collect();
        self.rows.push(Row { cells, below: Vec::new() });
    }

    /// Adds a row with what is below it.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The line with the names of the columns.
    #[must_use]
    pub fn head(&self) -> String {
        self.line(self.columns.iter().map(|column| column.head.as_str()), &self.widths())
    }

    /// The lines of one row, in columns of their least widths: for rows that are shown as they
    /// are made.
    #[must_use]
    pub fn lines_of(&self, row: &Row) -> String {
        let widths: Vec<usize> = self.columns.iter().map(Column::least).collect();
        self.row_text(row, &widths)
    }

    /// The table as text.
    #[must_use]
    pub fn text(&self) -> String {
        let widths = self.widths();
        let rows = self.rows.iter().map(|row| self.row_text(row, &widths));
        let rows: String = rows.collect();
        if self.columns.iter().all(|column| column.head.is_empty()) {
            return rows;
        }
        format!("{}\n{rows}", self.head())
    }

    fn row_text(&self, row: &Row, widths: &[usize]) -> String {
        let mut text = self.line(row.cells.iter().map(String::as_str), widths);
        for line in &row.below {
            text.push_str("\n    ");
            text.push_str(line);
        }
        text.push('\n');
        text
    }

    /// Cells in columns two spaces apart.
    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, (cell, &width)) in cells.zip(widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let cell = match self.is_left(column) {
                true => format!("{gap}{cell:<width$}"),
                false => format!("{gap}{cell:>width$}"),
            };
            line.push_str(&cell);
        }
        line.truncate(line.trim_end().len());
        line
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(index, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(index));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(column.least())
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Whether a column's cells are aligned on the left.
    pub(crate) fn is_left(&self, column: usize) -> bool {
        let is_word =
            |cell: &String| cell.starts_with(|c: char| !c.is_ascii_digit() && c != '-' && c != '+');
        match self.columns.get(column).map(|column| column.align) {
            Some(Align::Left) => true,
            Some(Align::Right) | None => false,
            Some(Align::ByContent) => {
                self.rows.iter().filter_map(|row| row.cells.get(column)).any(is_word)
            }
        }
    }
}

impl Column {
    fn least(&self) -> usize {
        self.head.chars().count().max(self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_words_left_and_the_last_column_is_ragged() {
        let mut table = Table::new(["name", "size", "what"]);
        table.row(["a", "10", "an item"]);
        table.push(Row {
            cells: vec!["longer".into(), "-".into(), "-".into()],
            below: vec!["and why".into()],
        });
        let expected = "name    size  what\n\
                        a         10  an item\n\
                        longer     -  -\n    and why\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_row_shown_as_it_is_made_has_the_least_widths() {
        let table = Table::new([right("step", 6), left("id", 5), left("", 0)]);
        let row = Row { cells: vec!["1".into(), "7".into(), "x".into()], below: Vec::new() };
        assert_eq!(table.head(), "  step  id");
        assert_eq!(table.lines_of(&row), "     1  7      x\n");
    }
}
