//! The study as one page: the text's tables and words, with the plots in between.

use super::plots::Plot;
use super::report::{Report, View};
use super::{tables, text};
use k3_render::html::Page;

/// The page. `plots` are those of [`plots`](super::plots::plots) for the same report.
pub fn page(report: &Report, plots: &[Plot]) -> String {
    let mut page = Page::new("Expert cache study");
    let whole = text::text(report);
    let head = whole.split("\n\n").next().unwrap_or_default();
    // Lines of the text that were broken are put together again.
    for paragraph in head.replace("\n  ", " ").lines() {
        page.paragraph(paragraph);
    }
    let figure = |page: &mut Page, name: &str| {
        if let Some(plot) = plots.iter().find(|plot| plot.0 == name) {
            page.figure(&plot.1);
        }
    };
    for (index, view) in report.views.iter().enumerate() {
        view_section(&mut page, view, report, plots);
        if index == 0 {
            figure(&mut page, "orders");
        }
    }
    if let Some(forecast) = &report.forecast {
        page.section("Forecast");
        page.paragraph(&text::machine_words(&report.settings.machine));
        let (header, rows) = tables::forecast_table(forecast);
        page.table(&header, &rows);
        page.paragraph(text::FORECAST_LEGEND);
        page.paragraph(&forecast.split_advice);
        figure(&mut page, "split");
        let advice = forecast.recommendations.iter().map(|advice| {
            format!(
                "{:.0} GB: {}, {} slots, {:.2} GB of trunk held; {}",
                advice.memory_bytes as f64 / 1e9,
                advice.policy,
                advice.slot_count,
                advice.trunk_held_gb,
                advice.reason
            )
        });
        page.list(&advice.collect::<Vec<_>>());
    }
    if let Some(measured) = &report.measured {
        page.section("Forecast against measured");
        page.list(&text::measured_words(measured));
        let (header, rows) = tables::measured_table(measured);
        page.table(&header, &rows);
        figure(&mut page, "measured-hit-rate");
        figure(&mut page, "measured-seconds");
        page.list(&measured.differences);
    }
    prefetch_section(&mut page, report);
    for run in &report.recorded_runs {
        page.section("Recorded run");
        let verdict =
            run.difference.as_deref().unwrap_or("the replay decides the same, every time");
        page.paragraph(&format!("{} decisions: {verdict}", run.decision_count));
    }
    if !report.notes.is_empty() {
        page.section("Notes");
        page.list(&report.notes);
    }
    page.finish()
}

fn prefetch_section(page: &mut Page, report: &Report) {
    if report.prefetch.is_empty() && report.prefetch_refused.is_empty() {
        return;
    }
    page.section(text::PREFETCH_HEADING);
    page.list(&text::prefetch_words(report));
    let (header, rows) = tables::prefetch_table(&report.prefetch);
    page.table(&header, &rows);
    let refused = report.prefetch_refused.iter();
    let refused: Vec<String> = refused.map(|why| format!("refused: {why}")).collect();
    page.list(&refused);
}

fn view_section(page: &mut Page, view: &View, report: &Report, plots: &[Plot]) {
    page.section(&format!("Order: {}", view.order));
    if let Some(caveat) = &view.caveat {
        page.paragraph(&format!("Not what an engine sees: {caveat}."));
    }
    let (header, rows) = tables::capacity_table(&view.rows, &report.settings.machine);
    page.table(&header, &rows);
    for what in ["hit-rate", "bytes-per-token", "reuse-distance", "reuse", "reuse-by-layer"] {
        let name = format!("{what}-{}", view.order);
        if let Some(plot) = plots.iter().find(|plot| plot.0 == name) {
            page.figure(&plot.1);
        }
    }
    if !view.pinned.is_empty() {
        page.paragraph(
            "Pinned hottest and LRU: pins learned on the first part, judged on the rest (%).",
        );
        let (header, rows) = tables::pinned_table(view);
        page.table(&header, &rows);
    }
    let hottest = view.hottest.iter().map(|hot| {
        format!("layer {} expert {}: {} requests", hot.layer, hot.expert, hot.request_count)
    });
    page.paragraph("Hottest experts:");
    page.list(&hottest.collect::<Vec<_>>());
}
