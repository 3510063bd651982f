//! The bar chart: named bars from zero.

use super::axis::{Axis, Ruler, number};
use super::{
    Anchor, Colour, FINE, GRID, HEIGHT, INK, LABEL, Look, PlotError, TEXT_SIZE, WIDTH, draw_svg,
    text_width,
};

/// A chart of bars.
#[derive(Debug, Clone)]
pub struct BarChart {
    /// Title.
    pub title: String,
    /// A line under the title.
    pub subtitle: String,
    /// What the bars are.
    pub x_label: String,
    /// What their height is, with the unit; the axis starts at 0.
    pub y_label: String,
    /// Name and value of each bar; values that are negative or not finite count as 0.
    pub bars: Vec<(String, f64)>,
    /// Bars from this index on are drawn in another colour (none if past the end).
    pub accent_from: usize,
}

const LEFT: i32 = 78;
const RIGHT: i32 = WIDTH - 24;
const TOP: i32 = 72;
const BOTTOM: i32 = HEIGHT - 62;

/// Draws a bar chart.
pub fn bar_chart(chart: &BarChart) -> Result<String, PlotError> {
    draw_svg(&chart.title, HEIGHT, |canvas| {
        canvas.headline(&chart.title, &chart.subtitle);
        let height = |value: f64| {
            if value.is_finite() { value.max(0.0) } else { 0.0 }
        };
        let highest = chart.bars.iter().map(|bar| height(bar.1)).fold(0.0, f64::max);
        let top = if highest > 0.0 { highest * 1.06 } else { 1.0 };
        let axis = Axis::linear(&chart.y_label).within(0.0, top);
        let y = Ruler::new(&axis, std::iter::empty(), BOTTOM, TOP);
        for tick in y.ticks(6) {
            if let Some(at) = y.place(tick) {
                canvas.path(vec![(LEFT * FINE, at), (RIGHT * FINE, at)], GRID, 1);
                let look = Look { anchor: Anchor::End, ..LABEL };
                canvas.text(&number(tick), (LEFT - 8, at / FINE), look);
            }
        }
        if chart.bars.is_empty() {
            canvas.text("no data", ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), LABEL);
        }
        let step = f64::from((RIGHT - LEFT) * FINE) / chart.bars.len().max(1) as f64;
        let edge = |bar: f64| LEFT * FINE + (bar * step).round() as i32;
        let mut named_to = i32::MIN;
        for (index, (name, value)) in chart.bars.iter().enumerate() {
            let accent = index >= chart.accent_from;
            let colour = if accent { Colour::Orange } else { Colour::Blue };
            let (from, to) = (edge(index as f64 + 0.12), edge(index as f64 + 0.88));
            let middle = (from + to) / 2 / FINE;
            if let Some(at) = y.place(height(*value)) {
                canvas.filled((from, at), (to, BOTTOM * FINE), colour.rgb());
                let text = number(*value);
                if f64::from(text_width(&text, TEXT_SIZE) * FINE) < step * 1.1 {
                    canvas.text(&text, (middle, at / FINE - 9), LABEL);
                }
            }
            // Names that would run into the one before are left out.
            let half = text_width(name, TEXT_SIZE) / 2;
            if middle - half > named_to + 6 {
                canvas.text(name, (middle, BOTTOM + 14), LABEL);
                named_to = middle + half;
            }
        }
        canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK, 1);
        canvas.text(&chart.x_label, ((LEFT + RIGHT) / 2, HEIGHT - 20), LABEL);
        let upright = Look { upright: true, ..LABEL };
        canvas.text(&chart.y_label, (18, (TOP + BOTTOM) / 2), upright);
    })
}
