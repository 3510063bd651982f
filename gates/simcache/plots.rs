//! Plots: the same bytes everywhere, no panic and no hang on degenerate data, labels inside the
//! picture.

use std::time::{Duration, Instant};

use k3_render::svg::{
    Axis, BarChart, Colour, HeatMap, LineChart, Mark, Series, bar_chart, heat_map, line_chart,
    number,
};
use k3_simcache::study::run;

use super::reports::kept_report;
use crate::support::traces::{flat, plan, small_zipf};
use crate::support::{scratch, snapshot};

fn chart(points: &[(f64, f64)], x: Axis, y: Axis) -> LineChart {
    let series = |width, dashed| Series {
        name: "a <name> & 'quotes'".to_string(),
        points: points.to_vec(),
        colour: Colour::Blue,
        width,
        dashed,
        marker: None,
    };
    LineChart {
        title: "title <with> markup \u{fffd}".to_string(),
        subtitle: String::new(),
        x,
        y,
        series: vec![series(2, false), series(1, true), series(0, false)],
        marks: vec![
            Mark::AtX(f64::NAN, "nowhere".to_string()),
            Mark::AtY(f64::INFINITY, "nowhere".to_string()),
            Mark::Point(1e300, -1.0, "far".to_string()),
        ],
    }
}

/// The text of an SVG, one label a line: what a snapshot of a picture can promise.
fn labels(svg: &str) -> String {
    let mut labels = String::new();
    for text in svg.split("<text").skip(1) {
        let inner = text.split_once('>').unwrap().1.split("</text>").next().unwrap();
        labels += inner.trim();
        labels.push('\n');
    }
    labels
}

#[test]
fn i01_i03_a_plot_is_the_same_bytes_without_fonts_home_or_locale() {
    let (folder, trace) = scratch("trace.bin");
    let pairs: Vec<(i32, i32)> = (0..400).map(|i| (1 + i / 20 % 5, i * 7 % 30)).collect();
    std::fs::write(&trace, crate::support::traces::pairs(&pairs)).unwrap();
    const SIZES: [&str; 6] = ["--model-layers", "6", "--experts", "30", "--top-k", "20"];
    let draw = |name: &str, environment: &[(&str, &str)]| {
        let out = folder.path().join(name);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_k3-verify"));
        command.env_clear().envs(environment.iter().copied());
        let run = command
            .arg("simcache")
            .arg(&trace)
            .args(SIZES)
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        let mut files: Vec<_> =
            std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|ending| ending == "svg"));
        files.sort();
        assert!(files.len() >= 3);
        files.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>()
    };
    let bare = draw("bare", &[]);
    let elsewhere = [
        ("HOME", "/nonexistent"),
        ("FONTCONFIG_FILE", "/nonexistent/fonts.conf"),
        ("LC_ALL", "de_DE.UTF-8"),
        ("TZ", "Pacific/Auckland"),
    ];
    assert!(draw("elsewhere", &elsewhere) == bare, "the picture depends on the surroundings");
}

#[test]
fn i02_degenerate_studies_end_soon() {
    let begin = Instant::now();
    let traces = [
        vec![7],             // one request
        vec![7; 50],         // all hits but the first
        (0..50).collect(),   // no hit
        vec![1, 2, 1, 2, 1], // ties
    ];
    for requests in traces {
        for slots in [vec![1], vec![9, 3, 1], vec![1_000_000], vec![]] {
            let mut plan = plan();
            plan.slot_counts = slots;
            let report = run(vec![flat(&requests)], &plan).unwrap();
            let drawn = report.document().figures().unwrap();
            assert!(drawn.iter().all(|plot| plot.1.starts_with("<svg") && !plot.1.contains("NaN")));
            let rows = &report.views[0].rows;
            assert!(rows.windows(2).all(|pair| pair[0].slot_count < pair[1].slot_count));
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn i02_degenerate_charts_end_soon() {
    let begin = Instant::now();
    let point_sets: [&[(f64, f64)]; 8] = [
        &[],
        &[(1.0, 1.0)],
        &[(3.0, 2.0), (3.0, 2.0)],
        &[(f64::NAN, 1.0), (1.0, f64::NAN)],
        &[(0.0, 0.0), (-5.0, -5.0)],
        &[(1.0, f64::INFINITY), (2.0, f64::NEG_INFINITY)],
        &[(1e-300, 1e300), (1e300, 1e-300)],
        &[(-1.7e308, -1.7e308), (1.7e308, 1.7e308)],
    ];
    let axes = [
        Axis::linear("x"),
        Axis::logarithmic("x"),
        Axis::linear("x").within(5.0, 5.0),
        Axis::linear("x").within(10.0, -10.0),
        Axis::logarithmic("x").within(0.0, 1.0),
        Axis::linear("x").within(f64::NAN, 1.0),
    ];
    for points in point_sets {
        for x in &axes {
            for y in &axes {
                let svg = line_chart(&chart(points, x.clone(), y.clone())).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            }
        }
    }
    for values in [vec![], vec![0.0], vec![f64::NAN, -1.0], vec![f64::INFINITY; 3]] {
        bar_chart(&BarChart {
            title: "bars".to_string(),
            subtitle: String::new(),
            x_label: "x".to_string(),
            y_label: "y".to_string(),
            bars: values.iter().map(|&value| ("bar".to_string(), value)).collect(),
            accent_from: 1,
        })
        .unwrap();
        heat_map(&HeatMap {
            title: "heat".to_string(),
            subtitle: String::new(),
            x_label: "x".to_string(),
            y_label: "y".to_string(),
            value_label: "v".to_string(),
            columns: values.iter().map(|_| "c".to_string()).collect(),
            rows: vec!["r".to_string()],
            values: vec![values.iter().map(|&value| Some(value)).collect()],
            range: (1.0, 1.0),
        })
        .unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_empty_chart_says_so_and_markup_in_labels_is_escaped() {
    let svg = line_chart(&chart(&[], Axis::linear("x"), Axis::linear("y"))).unwrap();
    let labels = labels(&svg);
    assert!(labels.contains("no data"));
    assert!(labels.contains("a &lt;name&gt; &amp; &apos;quotes&apos;"), "{labels}");
    assert!(labels.contains("markup ?"), "labels are ASCII: {labels}");
}

#[test]
fn numbers_are_short_and_grouped() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (1472.0, "1,472"),
        (1_234_567.25, "1,234,567.25"),
        (-12.5, "-12.5"),
        (0.1 + 0.2, "0.3"),
    ] {
        assert_eq!(number(value), text);
    }
}

#[test]
fn the_labels_of_a_study_are_as_kept() {
    let drawn = kept_report().document().figures().unwrap();
    let all: Vec<String> =
        drawn.iter().map(|(name, svg)| format!("{name}\n\n{}", labels(svg))).collect();
    snapshot("simcache", "study-plot-labels", &all.join("\n"));
}

#[test]
fn no_label_is_clipped() {
    let mut reports = vec![kept_report()];
    reports.push(run(vec![small_zipf(1), small_zipf(2)], &plan()).unwrap());
    for (name, svg) in reports.iter().flat_map(|report| report.document().figures().unwrap()) {
        let (width, height) = size(&svg);
        for text in svg.split("<text").skip(1) {
            let (head, rest) = text.split_once('>').unwrap();
            let label = rest.split("</text>").next().unwrap().trim();
            let number = |key: &str| attribute(head, key).parse::<f64>().unwrap();
            let length = label.chars().count() as f64 * number("font-size") / 1.24 * 0.62;
            let (mut x, y) = (number("x"), number("y"));
            if head.contains("rotate") {
                assert!(y - length / 2.0 >= 0.0 && y + length / 2.0 <= height, "{name}: {label}");
                continue;
            }
            x -= match attribute(head, "text-anchor") {
                "middle" => length / 2.0,
                "end" => length,
                _ => 0.0,
            };
            let inside = x >= 0.0 && x + length <= width && y >= 0.0 && y <= height;
            assert!(inside, "{name}: '{label}' at {x} to {} of {width}", x + length);
        }
    }
}

fn attribute<'a>(head: &'a str, key: &str) -> &'a str {
    let start = head.find(&format!("{key}=\"")).unwrap() + key.len() + 2;
    head[start..].split('"').next().unwrap()
}

/// Size of the drawing in its own units.
fn size(svg: &str) -> (f64, f64) {
    let view: Vec<f64> =
        attribute(svg, "viewBox").split(' ').map(|part| part.parse().unwrap()).collect();
    (view[2], view[3])
}
