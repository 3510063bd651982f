//! The report of a run for people: text, tables and plots, made from the report alone.

use super::report::{RunReport, StepRow, join};
use crate::memory::plan::in_units;
use k3_render::svg::{Axis, BarChart, Colour, LineChart, Marker, Series};
use k3_render::{Document, Table, left, right};

/// From this many steps on points are drawn without markers.
const MANY_STEPS: usize = 100;

/// Components of a smaller share of the plan are one bar.
const LEAST_SHARE: f64 = 0.02;

impl RunReport {
    /// The run for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new(self.verdict());
        document.line(format!("prompt ids: {}", join(&self.prompt_ids)));
        document.line(format!("generated ids: {}", join(&self.generated_ids)));
        if let Some(generated) = &self.generated_text {
            // Quoted: no line end or control character of it passes for one of the report's.
            document.line(format!("generated text: {generated:?}"));
        }
        document.heading("Settings");
        document.table(Table::new([left("setting", 0), left("value", 0)]).with(settings(self)));
        document.heading("Memory plan");
        document.table(memory_table(self));
        document.figure("memory", memory(self));
        document.heading("What it cost");
        document.table(self.summary());
        if !self.steps.is_empty() {
            document.heading("Steps");
            document.figure("step-seconds", seconds(self));
            if self.steps.iter().any(|row| row.step.margin.is_some()) {
                document.figure("margins", margins(self));
            }
            document.table(steps(self));
        }
        document
    }
}

fn memory(report: &RunReport) -> BarChart {
    let plan = &report.plan;
    let (name, unit) = if plan.total_bytes >= 1_000_000_000 { ("GB", 1e9) } else { ("MB", 1e6) };
    let scaled = |bytes: u64| bytes as f64 / unit;
    // A bar for each would be a row of lines on the ground with no room for their names.
    let (large, small): (Vec<_>, Vec<_>) = plan
        .components
        .iter()
        .partition(|line| line.bytes as f64 >= LEAST_SHARE * plan.total_bytes as f64);
    let mut bars: Vec<(String, f64)> =
        large.iter().map(|line| (line.name.to_owned(), scaled(line.bytes))).collect();
    let others = small.iter().map(|line| line.bytes).sum();
    bars.push(("others".to_owned(), scaled(others)));
    let accent_from = bars.len();
    bars.push(("planned".to_owned(), scaled(plan.total_bytes)));
    if let Some(peak) = &report.peak {
        bars.push(("peak".to_owned(), scaled(peak.peak_resident_bytes)));
    }
    BarChart {
        title: "Memory: the plan by component, its sum, and the measured peak".to_owned(),
        subtitle: "others: components of less than 2 %; peak: most resident bytes of the process"
            .to_owned(),
        x_label: "component".to_owned(),
        y_label: format!("size, {name}"),
        bars,
        accent_from,
    }
}

fn series(report: &RunReport, name: &str, colour: Colour, of: fn(&StepRow) -> f64) -> Series {
    let rows = report.steps.iter().enumerate();
    Series {
        name: name.to_owned(),
        points: rows.map(|(index, row)| (index as f64, of(row))).collect(),
        colour,
        width: 2,
        dashed: false,
        marker: (report.steps.len() < MANY_STEPS).then_some(Marker::Circle),
    }
}

fn seconds(report: &RunReport) -> LineChart {
    let most = report.steps.iter().map(|row| row.step.seconds);
    let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    LineChart {
        title: "Seconds of each step".to_owned(),
        subtitle: "step 0 feeds the prompt; waiting: nothing was computed until a read came"
            .to_owned(),
        x: Axis::linear("step"),
        y: Axis::linear("seconds").within(0.0, most * 1.05),
        series: vec![
            series(report, "whole step", Colour::Blue, |row| row.step.seconds),
            series(report, "waiting for the disk", Colour::Vermillion, |row| row.wait_seconds),
        ],
        marks: Vec::new(),
    }
}

fn margins(report: &RunReport) -> LineChart {
    let margin = |row: &StepRow| row.step.margin.map_or(f64::NAN, f64::from);
    let margins = report.steps.iter().map(margin);
    let most = margins.filter(|margin| margin.is_finite());
    let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    LineChart {
        title: "Margin of each choice".to_owned(),
        subtitle: "largest logit less the second largest; near 0 another id was as likely"
            .to_owned(),
        x: Axis::linear("step"),
        y: Axis::linear("margin, logits").within(0.0, most * 1.05),
        series: vec![series(report, "margin", Colour::Green, |row| {
            row.step.margin.map_or(f64::NAN, f64::from)
        })],
        marks: Vec::new(),
    }
}

fn settings(report: &RunReport) -> impl Iterator<Item = Vec<String>> {
    let settings = &report.settings;
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        ("checkpoint", report.provenance.inputs.join(", ")),
        (
            "identity",
            report
                .checkpoint_identity
                .clone()
                .unwrap_or_else(|| "none: shards are missing".to_owned()),
        ),
        ("layers", format!("{} of {}", settings.layers, settings.layers_of_model)),
        ("epsilon of MLA's norms", format!("{:e}", settings.mla_norm_eps)),
        ("policy of the expert cache", settings.policy.to_owned()),
        ("tokens of a chunk", settings.prefill_chunk.to_string()),
        ("every step from nothing", yes(settings.full_recompute)),
        ("packed trunk", yes(settings.packed_trunk)),
        ("vocabulary streamed", yes(settings.streamed_vocabulary)),
        (
            "vocabulary of the text",
            settings.vocabulary_of_text.unwrap_or("none: ids only").to_owned(),
        ),
        ("past the page cache", yes(settings.direct_reads)),
        ("kernels", settings.kernel_path.to_owned()),
        ("threads", report.provenance.threads.to_string()),
        ("machine", report.provenance.platform.clone()),
        ("program", report.provenance.version.to_owned()),
    ];
    if settings.layers < settings.layers_of_model {
        rows.insert(0, ("NOTE", "the ids are not the model's: layers were left out".to_owned()));
    }
    rows.into_iter().map(|(what, value)| vec![what.to_owned(), value])
}

/// The plan, and the peak against it.
fn memory_table(report: &RunReport) -> Table {
    let mut table = report.plan.table();
    if let Some(peak) = &report.peak {
        let verdict = format!(
            "{} from the plan, {} the {} allowed",
            in_units(peak.planned_bytes.abs_diff(peak.peak_resident_bytes)),
            if peak.within { "within" } else { "MORE than" },
            in_units(peak.tolerated_bytes)
        );
        table.row(["peak".to_owned(), in_units(peak.peak_resident_bytes), verdict]);
    }
    table
}

fn steps(report: &RunReport) -> Table {
    let head = "\
        step|phase|fed|id|margin|seconds|tok/s|requests|hits|hit %|evictions|\
        experts read|trunk read|waiting %"
        .split('|');
    let columns = head.map(|name| if name == "phase" { left(name, 0) } else { right(name, 0) });
    let rows = report.steps.iter().enumerate();
    Table::new(columns).with(rows.map(|(index, row)| step(index, row)))
}

fn step(index: usize, row: &StepRow) -> Vec<String> {
    let step = &row.step;
    let percent = |part: f64, whole: f64| {
        if whole > 0.0 { format!("{:.2}", 100.0 * part / whole) } else { "-".to_owned() }
    };
    vec![
        index.to_string(),
        format!("{:?}", step.phase).to_lowercase(),
        step.positions.to_string(),
        step.id.map_or("-".to_owned(), |id| id.to_string()),
        step.margin.map_or("-".to_owned(), |margin| format!("{margin:.4}")),
        format!("{:.4}", step.seconds),
        format!("{:.4}", row.tokens_per_second()),
        row.requests.to_string(),
        row.hits.to_string(),
        percent(row.hits as f64, row.requests as f64),
        row.evictions.to_string(),
        in_units(row.expert_bytes),
        in_units(row.trunk_bytes),
        percent(row.wait_seconds, step.seconds),
    ]
}
