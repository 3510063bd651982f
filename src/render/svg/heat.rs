//! The heat map: a matrix as colours, with a colour scale.

use super::axis::number;
use super::{
    Anchor, Canvas, FINE, GRID, LABEL, Look, PlotError, Rgb, TEXT_SIZE, WIDTH, draw_svg, text_width,
};

/// A matrix as colours.
#[derive(Debug, Clone)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// A line under the title.
    pub subtitle: String,
    /// What the columns are.
    pub x_label: String,
    /// What the rows are.
    pub y_label: String,
    /// What the colours are, with the unit.
    pub value_label: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, top to bottom.
    pub rows: Vec<String>,
    /// `[row][column]`; None and what is not finite stay grey.
    pub values: Vec<Vec<Option<f64>>>,
    /// Ends of the colour scale.
    pub range: (f64, f64),
}

/// Least room for the names of the rows; longer names take more.
const LEFT: i32 = 72;
const TOP: i32 = 66;
const RIGHT: i32 = WIDTH - 120;
const MAP_HEIGHT: i32 = 520;
const BOTTOM: i32 = TOP + MAP_HEIGHT;

/// Viridis at ten even steps.
const VIRIDIS: [Rgb; 10] = [
    (68, 1, 84),
    (72, 40, 120),
    (62, 73, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (110, 206, 88),
    (181, 222, 43),
    (253, 231, 37),
];

/// Colour at a place from 0 to 1.
fn viridis(along: f64) -> Rgb {
    let scaled = along.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let low = (scaled as usize).min(VIRIDIS.len() - 2);
    let part = scaled - low as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + part * (f64::from(b) - f64::from(a))).round() as u8;
    let (a, b) = (VIRIDIS[low], VIRIDIS[low + 1]);
    (mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// Draws a heat map.
pub fn heat_map(map: &HeatMap) -> Result<String, PlotError> {
    let frame = Frame::of(map);
    let left_end = frame.left;
    draw_svg(&map.title, BOTTOM + 56 + frame.names_below, |canvas| {
        canvas.headline(&map.title, &map.subtitle);
        canvas.filled((left_end * FINE, TOP * FINE), (RIGHT * FINE, BOTTOM * FINE), GRID);
        let (rows, columns) = (map.rows.len(), map.columns.len());
        if rows == 0 || columns == 0 {
            canvas.text("no data", ((left_end + RIGHT) / 2, (TOP + BOTTOM) / 2), LABEL);
        }
        let edge = |index: usize, count: usize, from: i32, to: i32| {
            let span = i64::from((to - from) * FINE);
            from * FINE + (span * index as i64 / count.max(1) as i64) as i32
        };
        let width = if map.range.1 > map.range.0 { map.range.1 - map.range.0 } else { 1.0 };
        for (row, values) in map.values.iter().enumerate().take(rows) {
            let (top, bottom) = (edge(row, rows, TOP, BOTTOM), edge(row + 1, rows, TOP, BOTTOM));
            for (column, value) in values.iter().enumerate().take(columns) {
                let Some(value) = value.filter(|value| value.is_finite()) else {
                    continue;
                };
                let left = edge(column, columns, left_end, RIGHT);
                let right = edge(column + 1, columns, left_end, RIGHT);
                let colour = viridis((value - map.range.0) / width);
                // One drawn pixel over the next cell, which is drawn later: no seams.
                canvas.filled((left, top), (right + 1, bottom + 1), colour);
            }
        }
        names(canvas, map, &frame);
        scale(canvas, map);
    })
}

/// Where the map begins, and how its columns are named.
struct Frame {
    /// Left end of the map.
    left: i32,
    /// Room under the map for vertical names; 0 if they are horizontal.
    names_below: i32,
    /// Every how many columns one is named.
    every: usize,
}

/// Room that a line of text needs.
const LINE: i32 = 16;

/// Every how many of `count` names there is room for one.
fn every(count: usize, room: i32, need: i32) -> usize {
    (count as i32 * need + room - 1).div_euclid(room).max(1) as usize
}

fn widest(names: &[String]) -> i32 {
    let widths = names.iter().map(|name| text_width(name, TEXT_SIZE));
    widths.max().unwrap_or(0)
}

impl Frame {
    /// Column names are vertical where they would not all fit horizontally.
    fn of(map: &HeatMap) -> Frame {
        let left = LEFT.max(widest(&map.rows) + 42);
        let (count, width) = (map.columns.len(), widest(&map.columns));
        let lying = every(count, RIGHT - left, width + 10);
        if lying > 1 && every(count, RIGHT - left, LINE) == 1 {
            return Frame { left, names_below: width, every: 1 };
        }
        Frame { left, names_below: 0, every: lying }
    }
}

/// Names of rows and columns, as many as there is room for, and the axis labels.
fn names(canvas: &mut Canvas<'_>, map: &HeatMap, frame: &Frame) {
    let middle = |index: usize, count: usize, from: i32, to: i32| {
        from + ((2 * index as i32 + 1) * (to - from)) / (2 * count.max(1) as i32)
    };
    let tallest = every(map.rows.len(), MAP_HEIGHT, LINE);
    for (index, name) in map.rows.iter().enumerate().step_by(tallest) {
        let look = Look { anchor: Anchor::End, ..LABEL };
        let at = middle(index, map.rows.len(), TOP, BOTTOM);
        canvas.text(name, (frame.left - 8, at), look);
    }
    let upright = Look { upright: true, ..LABEL };
    for (index, name) in map.columns.iter().enumerate().step_by(frame.every) {
        let at = middle(index, map.columns.len(), frame.left, RIGHT);
        if frame.names_below > 0 {
            let look = Look { anchor: Anchor::End, ..upright };
            canvas.text(name, (at, BOTTOM + 8), look);
        } else {
            canvas.text(name, (at, BOTTOM + 14), LABEL);
        }
    }
    let below = BOTTOM + 38 + frame.names_below;
    canvas.text(&map.x_label, ((frame.left + RIGHT) / 2, below), LABEL);
    canvas.text(&map.y_label, (18, (TOP + BOTTOM) / 2), upright);
}

/// The colour scale at the right.
fn scale(canvas: &mut Canvas<'_>, map: &HeatMap) {
    const STEPS: i32 = 64;
    let (left, right) = (RIGHT + 24, RIGHT + 40);
    let (top, bottom) = (TOP + 60, BOTTOM - 60);
    for step in 0..STEPS {
        let upper = bottom * FINE - (bottom - top) * FINE * (step + 1) / STEPS;
        let lower = bottom * FINE - (bottom - top) * FINE * step / STEPS;
        let colour = viridis(f64::from(step) / f64::from(STEPS - 1));
        canvas.filled((left * FINE, upper - 1), (right * FINE, lower), colour);
    }
    for part in 0..=4 {
        let value = map.range.0 + (map.range.1 - map.range.0) * f64::from(part) / 4.0;
        let middle = bottom - (bottom - top) * part / 4;
        let look = Look { anchor: Anchor::Start, ..LABEL };
        canvas.text(&number(value), (right + 6, middle), look);
    }
    let upright = Look { upright: true, ..LABEL };
    canvas.text(&map.value_label, (WIDTH - 18, (TOP + BOTTOM) / 2), upright);
}
