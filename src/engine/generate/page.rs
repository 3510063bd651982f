//! The report of a run as a page with plots, made from the report alone.

use super::report::{RunReport, StepRow, join};
use crate::memory::plan::in_units;
use k3_render::html::Page;
use k3_render::svg::{
    Axis, BarChart, Colour, LineChart, Marker, PlotError, Series, bar_chart, line_chart,
};

/// Steps listed on the page at each end of a long run; the JSON has all of them.
const LISTED_AT_EACH_END: usize = 200;
/// From this many steps on points are drawn without markers.
const MANY_STEPS: usize = 100;

/// Components of a smaller share of the plan are one bar.
const LEAST_SHARE: f64 = 0.02;

/// One plot: file name without ending, and the SVG.
pub type Plot = (String, String);

/// The plots of a run: memory, seconds of each step, margins of each choice.
///
/// # Errors
/// [`PlotError`] when the canvas fails.
pub fn plots(report: &RunReport) -> Result<Vec<Plot>, PlotError> {
    let mut plots = vec![("memory".to_owned(), bar_chart(&memory(report))?)];
    if report.steps.is_empty() {
        return Ok(plots);
    }
    plots.push(("step-seconds".to_owned(), line_chart(&seconds(report))?));
    if report.steps.iter().any(|row| row.step.margin.is_some()) {
        plots.push(("margins".to_owned(), line_chart(&margins(report))?));
    }
    Ok(plots)
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

/// The page. `plots` are those of [`plots`] for the same report.
#[must_use]
pub fn page(report: &RunReport, plots: &[Plot]) -> String {
    let mut page = Page::new("A run of generate");
    let figure = |page: &mut Page, name: &str| {
        if let Some(plot) = plots.iter().find(|plot| plot.0 == name) {
            page.figure(&plot.1);
        }
    };
    page.paragraph(&report.verdict());
    page.paragraph(&format!("prompt ids: {}", shortened(&report.prompt_ids)));
    page.paragraph(&format!("generated ids: {}", shortened(&report.generated_ids)));
    if let Some(generated) = &report.generated_text {
        page.paragraph(&format!("generated text: {generated:?}"));
    }
    page.section("Settings");
    page.table(&words(&["setting", "value"]), &settings(report));
    page.section("Memory");
    page.table(&words(&["component", "size", "what"]), &memory_rows(report));
    figure(&mut page, "memory");
    page.section("What it cost");
    let summary = report.summary();
    let lines = summary.lines().map(|line| {
        let (what, rest) = line.split_once(':').unwrap_or((line, ""));
        vec![what.to_owned(), rest.trim().to_owned()]
    });
    page.table(&words(&["part", "what it cost"]), &lines.collect::<Vec<_>>());
    page.section("Steps");
    figure(&mut page, "step-seconds");
    figure(&mut page, "margins");
    steps(&mut page, report);
    page.finish()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Ids with spaces after the commas, so that lines break; the middle of a long list is left out.
fn shortened(ids: &[u32]) -> String {
    let spaced = |ids: &[u32]| join(ids).replace(',', ", ");
    if ids.is_empty() {
        return "none".to_owned();
    }
    if ids.len() <= 2 * LISTED_AT_EACH_END {
        return spaced(ids);
    }
    let (head, tail) = (&ids[..LISTED_AT_EACH_END], &ids[ids.len() - LISTED_AT_EACH_END..]);
    format!("{}, ... {} in all ..., {}", spaced(head), ids.len(), spaced(tail))
}

fn settings(report: &RunReport) -> Vec<Vec<String>> {
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
    let rows = rows.into_iter();
    rows.map(|(what, value)| vec![what.to_owned(), value]).collect()
}

fn memory_rows(report: &RunReport) -> Vec<Vec<String>> {
    let plan = &report.plan;
    let row = |name: &str, bytes: u64, what: &str| {
        vec![name.to_owned(), in_units(bytes), what.to_owned()]
    };
    let mut rows: Vec<_> =
        plan.components.iter().map(|line| row(line.name, line.bytes, &line.what)).collect();
    rows.push(row("planned", plan.total_bytes, "the sum"));
    if let Some(limit) = plan.limit_bytes {
        rows.push(row("limit", limit, "of the machine, its control group or --memory"));
    }
    if let Some(peak) = &report.peak {
        let apart = peak.planned_bytes.abs_diff(peak.peak_resident_bytes);
        let verdict = format!(
            "{} from the plan, {} the {} allowed",
            in_units(apart),
            if peak.within { "within" } else { "MORE than" },
            in_units(peak.tolerated_bytes)
        );
        rows.push(row("peak", peak.peak_resident_bytes, &verdict));
    }
    rows
}

fn steps(page: &mut Page, report: &RunReport) {
    let header = words(&[
        "step",
        "phase",
        "fed",
        "id",
        "margin",
        "seconds",
        "requests",
        "hits",
        "hit %",
        "evictions",
        "experts read",
        "trunk read",
        "waiting %",
    ]);
    let count = report.steps.len();
    let listed = |index: usize| {
        count <= 2 * LISTED_AT_EACH_END
            || index < LISTED_AT_EACH_END
            || index >= count - LISTED_AT_EACH_END
    };
    let rows = report.steps.iter().enumerate();
    let rows = rows.filter(|(index, _)| listed(*index));
    let rows: Vec<_> = rows.map(|(index, row)| step(index, row)).collect();
    if rows.len() < count {
        page.paragraph(&format!(
            "The first and last {LISTED_AT_EACH_END} of {count} steps; report.json has all."
        ));
    }
    page.table(&header, &rows);
}

fn step(index: usize, row: &StepRow) -> Vec<String> {
    let step = &row.step;
    let percent = |part: f64, whole: f64| {
        if whole > 0.0 { format!("{:.1}", 100.0 * part / whole) } else { "-".to_owned() }
    };
    vec![
        index.to_string(),
        format!("{:?}", step.phase).to_lowercase(),
        step.positions.to_string(),
        step.id.map_or("-".to_owned(), |id| id.to_string()),
        step.margin.map_or("-".to_owned(), |margin| format!("{margin:.4}")),
        format!("{:.4}", step.seconds),
        row.requests.to_string(),
        row.hits.to_string(),
        percent(row.hits as f64, row.requests as f64),
        row.evictions.to_string(),
        in_units(row.expert_bytes),
        in_units(row.trunk_bytes),
        percent(row.wait_seconds, step.seconds),
    ]
}
