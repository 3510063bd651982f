//! The report of `layers` for people. Its rows can be shown during the run.

use super::layers::{Element, LayerRow, LayersReport, row_name};
use crate::outcome::Verdict;
use k3_core::compare::ratio_text;
use k3_core::exit::Exit;
use k3_core::stages::Stage;
use k3_render::svg::HeatMap;
use k3_render::{Document, Row, Table, left};

/// Ends of the colour scale.
const COLDEST: f64 = -6.0;
const HOTTEST: f64 = 2.0;

impl LayersReport {
    /// How a command that made it ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::of_code(self.exit_code)
    }

    /// The report for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = self.head();
        document.figure("layers", self.heat_map());
        let mut table = Self::table();
        self.rows.iter().for_each(|row| table.push(Self::row(row)));
        document.table(table);
        document.gap();
        document.append(self.tail());
        document
    }

    /// What comes before the rows.
    #[must_use]
    pub fn head(&self) -> Document {
        let q = &self.question;
        let mut document = Document::new(format!(
            "layers {} of 0..{} (both ends included): {} of {} layers{}",
            q.range,
            q.model_layers.saturating_sub(1),
            q.layers.len(),
            q.model_layers,
            match self.part {
                Some(part) => format!("; part {}/{}: {:?}", part.index, part.of, self.selected),
                None => String::new(),
            }
        ));
        let input = match (q.seed, q.ids.is_empty()) {
            (Some(seed), _) => format!("{} (seed {seed})", q.input),
            (None, false) => format!("{} of ids {:?}", q.input, q.ids),
            (None, true) => q.input.clone(),
        };
        document.line(format!(
            "subject {} in {}; input {input}, calls of {:?} tokens; mla_norm_eps {:e}{}{}",
            q.subject,
            q.arithmetic,
            q.calls,
            q.mla_norm_eps,
            q.stages.as_ref().map_or(String::new(), |glob| format!("; stages {glob}")),
            if q.reference_copy { "; the reference reads a separate copy" } else { "" }
        ));
        if let Some(recorded) = &q.ratchet {
            document.line(format!("ratchet: {recorded}"));
        }
        if let Some(kernels) = &self.kernels {
            let (word, count) = (kernels.verdict.word(), kernels.stages.len());
            document.line(format!("kernels on the shipped fixtures: {word} ({count} of them)"));
            for stage in kernels.stages.iter().filter(|s| s.verdict != Verdict::Pass) {
                let why = stage.problem.as_deref().unwrap_or_default();
                document.line(format!("    {} {}: {why}", stage.verdict.word(), stage.stage));
            }
        }
        document
    }

    /// The table without rows.
    #[must_use]
    pub fn table() -> Table {
        let columns = [("layer", 7), ("kind", 9), ("verdict", 8), ("worst local", 23)];
        let columns = columns.into_iter().chain([("chained (8 x floor)", 24)]);
        let columns = columns.chain([("|h| max", 0), ("", 0)]);
        Table::new(columns.map(|(head, width)| left(head, width)))
    }

    /// Its row of a layer.
    #[must_use]
    pub fn row(row: &LayerRow) -> Row {
        let kind = [row.attention.as_deref(), row.mlp.as_deref()];
        let worst = row.worst().map_or(String::new(), |stage| match stage.ratio {
            Some(ratio) => format!("{} {}", ratio_text(ratio), stage.stage),
            None => format!("exact {}", stage.stage),
        });
        let chained = row.chained().map_or(String::new(), |(ratio, within, stage)| {
            format!("{} {stage}{}", ratio_text(ratio), if within { "" } else { " beyond" })
        });
        let cells = vec![
            row_name(row),
            kind.into_iter().flatten().collect::<Vec<_>>().join(" "),
            row.verdict.word().to_owned(),
            worst,
            chained,
            row.h_max.map_or(String::new(), |h| format!("{h:.4}")),
            if row.ties() > 0 { format!("ties {}", row.ties()) } else { String::new() },
        ];
        let mut below: Vec<String> = row.problem.iter().cloned().collect();
        if let Some(stage) = row.first_divergence() {
            let element = stage.first.as_ref().or(stage.worst.as_ref());
            let element = element.map_or(String::new(), described);
            let problem = stage.problem.as_ref().map_or(String::new(), |what| format!("; {what}"));
            below.push(format!(
                "diverges at {}{element}; {} of {} values beyond{problem}",
                row.name(stage),
                stage.mismatches,
                stage.count
            ));
        }
        below.extend(row.stages.iter().filter(|s| s.verdict == Verdict::NotRun).map(|stage| {
            let why = stage.problem.as_deref().unwrap_or_default();
            format!("NOT RUN {}: {why}", row.name(stage))
        }));
        Row { cells, below }
    }

    /// What comes after the rows.
    #[must_use]
    pub fn tail(&self) -> Document {
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let mut rows = format!(
            "{} rows: {} within their local tolerances, {} beyond, {} NOT RUN",
            self.rows.len(),
            count(Verdict::Pass),
            count(Verdict::Fail),
            count(Verdict::NotRun),
        );
        if count(Verdict::NotSelected) > 0 {
            rows += &format!(", {} NOT SELECTED", count(Verdict::NotSelected));
        }
        if !self.outstanding.is_empty() {
            rows += &format!(", interrupted before {}", self.outstanding.join(", "));
        }
        let mut document = Document::new("");
        document.line(rows);
        if let Some(worst) = &self.worst {
            let ratio = worst.ratio;
            let ratio =
                ratio.map_or("exact".to_owned(), |r| format!("{} of its tolerance", ratio_text(r)));
            document.line(format!("worst stage {}: {ratio}", worst.at));
        }
        self.repetition(&mut document);
        document.line(match &self.first_divergence {
            Some(spot) => {
                let place = spot.element.as_ref().map_or(String::new(), described);
                format!("first divergence {}{place}", spot.at)
            }
            None => "no divergence".to_owned(),
        });
        document.gap();
        document.line(self.exit().verdict());
        document
    }

    /// The result of repeating layers another way, if any were.
    fn repetition(&self, document: &mut Document) {
        let repeated = || self.rows.iter().filter_map(|row| row.repeated);
        let values: usize = repeated().map(|repeated| repeated.values).sum();
        let differing: usize = repeated().map(|repeated| repeated.differing).sum();
        if values == 0 {
            return;
        }
        let way = match self.provenance.again.as_str() {
            "" => String::new(),
            way => format!(" ({way})"),
        };
        let bits = match differing {
            0 => "all bits equal".to_owned(),
            _ => format!("{differing} with different bits"),
        };
        document.line(format!("{values} values recomputed another way{way}: {bits}"));
    }

    /// Local ratios by layer and stage, as colours of their logarithm.
    fn heat_map(&self) -> HeatMap {
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
                // Within its tolerance, and beyond in another way: bits, ratchet, end to end.
                (Verdict::Fail, ratio) if ratio.is_none_or(|ratio| ratio <= 1.0) => Some(HOTTEST),
                (_, ratio) => Some(ratio?.log10().clamp(COLDEST, HOTTEST)),
            }
        };
        HeatMap {
            title: "Local ratios by layer and stage".to_owned(),
            subtitle:
                "difference over bound; 0 on the scale is the tolerance; grey: exact or absent"
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
        }
    }
}

/// Place and values of an element.
fn described(element: &Element) -> String {
    let value = |v: Option<f64>| v.map_or("not finite".to_owned(), |v| format!("{v:e}"));
    let (got, expected) = (value(element.got), value(element.expected));
    format!(" {:?}: got {got}, expected {expected}", element.index)
}
