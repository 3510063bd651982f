//! The report of `layers` drawn: heat map and page.

use super::layers::{LayerRow, LayersReport, row_name};
use crate::outcome::Verdict;
use k3_core::stages::Stage;
use k3_render::html::Page;
use k3_render::svg::{HeatMap, PlotError, heat_map};

/// Ends of the colour scale.
const COLDEST: f64 = -6.0;
const HOTTEST: f64 = 2.0;

impl LayersReport {
    /// Local ratios by layer and stage, as colours of their logarithm.
    ///
    /// # Errors
    /// The plot cannot be drawn.
    pub fn heat_map(&self) -> Result<String, PlotError> {
        let present = |stage: &Stage| {
            let name = stage.name();
            self.rows.iter().any(|row| row.stages.iter().any(|s| s.stage == name))
        };
        let columns: Vec<&str> =
            Stage::ALL.iter().filter(|s| present(s)).map(|s| s.name()).collect();
        let value = |row: &LayerRow, column: &&str| {
            let stage = row.stages.iter().find(|stage| stage.stage == **column)?;
            match (stage.verdict, stage.ratio) {
                (Verdict::NotRun, _) => None,
                // Within its budget, and beyond in another way: bits, ratchet, end to end.
                (Verdict::Fail, ratio) if ratio.is_none_or(|ratio| ratio <= 1.0) => Some(HOTTEST),
                (_, ratio) => Some(ratio?.log10().clamp(COLDEST, HOTTEST)),
            }
        };
        heat_map(&HeatMap {
            title: "Local ratios by layer and stage".to_owned(),
            subtitle: "difference over bound; 0 on the scale is the budget; grey: exact or absent"
                .to_owned(),
            x_label: "stage".to_owned(),
            y_label: "layer".to_owned(),
            value_label: "log10 of the ratio".to_owned(),
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            rows: self.rows.iter().map(row_name).collect(),
            values: self
                .rows
                .iter()
                .map(|row| columns.iter().map(|column| value(row, column)).collect())
                .collect(),
            range: (COLDEST, HOTTEST),
        })
    }

    /// A page that stands alone.
    #[must_use]
    pub fn page(&self, heat: &str) -> String {
        let mut page = Page::new("Layers against the f64 reference");
        let head = self.head();
        let column_names = head.lines().count().saturating_sub(1);
        for line in head.lines().take(column_names) {
            page.paragraph(line);
        }
        for line in self.tail().lines().filter(|line| !line.is_empty()) {
            page.paragraph(line);
        }
        page.section("Heat map");
        page.figure(heat);
        page.section("Layers");
        let header = ["layer", "kind", "verdict", "worst stage", "local", "chained", "|h| max"];
        let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
        let number = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.2e}"));
        let cells = |row: &LayerRow| {
            let kind = [row.attention.clone(), row.mlp.clone()];
            let worst = row.worst();
            vec![
                row_name(row),
                kind.into_iter().flatten().collect::<Vec<_>>().join(" "),
                row.verdict.word().to_owned(),
                worst.map_or("-".to_owned(), |stage| stage.stage.clone()),
                number(worst.and_then(|stage| stage.ratio)),
                number(row.chained().map(|(ratio, _, _)| ratio)),
                row.h_max.map_or("-".to_owned(), |h| format!("{h:.4}")),
            ]
        };
        page.table(&header, &self.rows.iter().map(cells).collect::<Vec<_>>());
        page.finish()
    }
}
