//! Plots as SVG: line chart, bar chart, heat map. The one file that touches the plotting crate.
//!
//! The crate is used as a canvas only; layout is ours. No font is ever measured: text widths are
//! estimated from the number of characters (labels are ASCII), so the same data gives the same
//! bytes on every machine, with or without fonts. Everything is drawn at twice the size and shown
//! at half of it, because the canvas has whole pixels only.
//!
//! Degenerate data is no error: values that are not finite (or not positive on a logarithmic axis)
//! are left out, empty ranges are widened, and a chart without any point says so.
//!
//! Colours are those of Okabe and Ito and the viridis scale: both can be told apart with the
//! common forms of colour blindness. Series differ in marker or dashes as well.

mod axis;
mod bar;
mod heat;
mod line;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use thiserror::Error;

pub use axis::{Axis, Scale, number};
pub use bar::{BarChart, bar_chart};
pub use heat::{HeatMap, heat_map};
pub use line::{LineChart, Mark, Series, line_chart};

/// Why a plot could not be drawn.
#[derive(Debug, Error)]
#[error("cannot draw the plot '{title}': {reason}")]
pub struct PlotError {
    title: String,
    reason: String,
}

type Rgb = (u8, u8, u8);

/// Colours of the palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Colour {
    Black,
    Blue,
    Vermillion,
    Green,
    Purple,
    Orange,
    Sky,
    Olive,
    Grey,
}

impl Colour {
    /// Colours for series, in order.
    pub const SERIES: [Colour; 8] = [
        Colour::Blue,
        Colour::Vermillion,
        Colour::Green,
        Colour::Purple,
        Colour::Orange,
        Colour::Sky,
        Colour::Olive,
        Colour::Grey,
    ];

    fn rgb(self) -> Rgb {
        match self {
            Colour::Black => (0, 0, 0),
            Colour::Blue => (0, 114, 178),
            Colour::Vermillion => (213, 94, 0),
            Colour::Green => (0, 158, 115),
            Colour::Purple => (204, 121, 167),
            Colour::Orange => (230, 159, 0),
            Colour::Sky => (86, 180, 233),
            Colour::Olive => (138, 125, 0),
            Colour::Grey => (120, 120, 120),
        }
    }
}

/// Shape at the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Ring,
}

/// Markers for series, in order.
pub const MARKERS: [Marker; 6] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Ring,
];

const WIDTH: i32 = 860;
const HEIGHT: i32 = 480;
/// Drawn size over shown size.
const FINE: i32 = 2;
const TITLE_SIZE: i32 = 17;
const TEXT_SIZE: i32 = 12;
/// Estimated width of a character over its size: wide enough for common sans-serif fonts.
const CHARACTER_WIDTH: f64 = 0.58;
const INK: Rgb = (40, 40, 40);
const FAINT: Rgb = (110, 110, 110);
const GRID: Rgb = (228, 228, 228);
const PAPER: Rgb = (255, 255, 255);

fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * CHARACTER_WIDTH).ceil() as i32
}

/// A place in drawn pixels.
type Fine = (i32, i32);

/// Which end of a text is at the given place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks; it is centred on its line vertically.
#[derive(Clone, Copy)]
struct Look {
    size: i32,
    colour: Rgb,
    bold: bool,
    upright: bool,
    anchor: Anchor,
}

const LABEL: Look =
    Look { size: TEXT_SIZE, colour: INK, bold: false, upright: false, anchor: Anchor::Middle };

/// Drawing in shown pixels on a canvas of twice the size. The first failure is kept.
struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    failure: Option<String>,
}

fn colour(rgb: Rgb) -> RGBColor {
    RGBColor(rgb.0, rgb.1, rgb.2)
}

impl Canvas<'_> {
    fn keep<E: std::fmt::Display>(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error.to_string());
        }
    }

    /// A line through places in drawn pixels; `width` in shown ones.
    fn path(&mut self, points: Vec<Fine>, rgb: Rgb, width: u32) {
        let style = colour(rgb).stroke_width(width * FINE as u32);
        let result = self.area.draw(&PathElement::new(points, style));
        self.keep(result);
    }

    /// A straight line in shown pixels.
    fn line(&mut self, from: (i32, i32), to: (i32, i32), rgb: Rgb, width: u32) {
        let fine = |(x, y): (i32, i32)| (x * FINE, y * FINE);
        self.path(vec![fine(from), fine(to)], rgb, width);
    }

    /// A path in dashes of 6 and gaps of 4 shown pixels.
    fn dashes(&mut self, points: &[Fine], rgb: Rgb, width: u32) {
        let (on, period) = (6 * FINE, 10 * FINE);
        let mut travelled = 0;
        let mut dash: Vec<Fine> = Vec::new();
        for pair in spaced(points, 3 * FINE).windows(2) {
            let (dx, dy) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            let steps = dx.abs().max(dy.abs());
            for step in 0..steps {
                let point = (pair[0].0 + dx * step / steps, pair[0].1 + dy * step / steps);
                if (travelled + step) % period < on {
                    dash.push(point);
                } else if dash.len() > 1 {
                    self.path(std::mem::take(&mut dash), rgb, width);
                }
            }
            travelled += steps;
        }
        if dash.len() > 1 {
            self.path(dash, rgb, width);
        }
    }

    /// A filled rectangle between places in drawn pixels.
    fn filled(&mut self, from: Fine, to: Fine, rgb: Rgb) {
        let result = self.area.draw(&Rectangle::new([from, to], colour(rgb).filled()));
        self.keep(result);
    }

    /// A rectangle that lets what is under it shine through faintly, in shown pixels.
    fn veil(&mut self, from: (i32, i32), to: (i32, i32)) {
        let corners = [(from.0 * FINE, from.1 * FINE), (to.0 * FINE, to.1 * FINE)];
        let result = self.area.draw(&Rectangle::new(corners, WHITE.mix(0.85).filled()));
        self.keep(result);
    }

    fn marker(&mut self, at: Fine, marker: Marker, rgb: Rgb) {
        let size = 4 * FINE;
        let (x, y) = at;
        let paint = colour(rgb);
        let result = match marker {
            Marker::Circle => self.area.draw(&Circle::new(at, size, paint.filled())),
            Marker::Ring => self.area.draw(&Circle::new(at, size, paint.stroke_width(4))),
            Marker::Square => {
                let corners = [(x - size + 1, y - size + 1), (x + size - 1, y + size - 1)];
                self.area.draw(&Rectangle::new(corners, paint.filled()))
            }
            Marker::Triangle => {
                let up = vec![(x, y - size - 1), (x + size, y + size), (x - size, y + size)];
                self.area.draw(&Polygon::new(up, paint.filled()))
            }
            Marker::Diamond => {
                let tip = size + 2;
                let tips = vec![(x, y - tip), (x + tip, y), (x, y + tip), (x - tip, y)];
                self.area.draw(&Polygon::new(tips, paint.filled()))
            }
            Marker::Cross => self.area.draw(&Cross::new(at, size - 1, paint.stroke_width(4))),
        };
        self.keep(result);
    }

    /// A text at a place in shown pixels.
    fn text(&mut self, text: &str, at: (i32, i32), look: Look) {
        let weight = if look.bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = FontDesc::new(FontFamily::SansSerif, f64::from(look.size * FINE), weight);
        let font = if look.upright { font.transform(FontTransform::Rotate270) } else { font };
        let horizontal = match look.anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        let paint = colour(look.colour);
        let style = TextStyle::from(font).color(&paint);
        let style = style.pos(Pos::new(horizontal, VPos::Center));
        let at = (at.0 * FINE, at.1 * FINE);
        let result = self.area.draw(&Text::new(ascii(text), at, style));
        self.keep(result);
    }

    /// Title and subtitle at the top left.
    fn headline(&mut self, title: &str, subtitle: &str) {
        let start = Look { anchor: Anchor::Start, ..LABEL };
        self.text(title, (16, 20), Look { size: TITLE_SIZE, bold: true, ..start });
        self.text(subtitle, (16, 42), Look { colour: FAINT, ..start });
    }
}

/// The points that are at least `least` apart, with both ends: a staircase has no even dashes.
fn spaced(points: &[Fine], least: i32) -> Vec<Fine> {
    let mut kept: Vec<Fine> = Vec::new();
    for (index, &point) in points.iter().enumerate() {
        let far = kept.last().is_none_or(|last: &Fine| {
            (point.0 - last.0).abs().max((point.1 - last.1).abs()) >= least
        });
        if far || index + 1 == points.len() {
            kept.push(point);
        }
    }
    kept
}

/// Labels are ASCII: widths are estimated, and fonts may lack anything else.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// Runs `draw` on a white canvas and returns the SVG.
fn draw_svg(
    title: &str,
    height: i32,
    draw: impl FnOnce(&mut Canvas<'_>),
) -> Result<String, PlotError> {
    let (width, fine_height) = (WIDTH * FINE, height * FINE);
    let mut svg = String::new();
    let failure = {
        let backend = SVGBackend::with_string(&mut svg, (width as u32, fine_height as u32));
        let mut canvas = Canvas { area: backend.into_drawing_area(), failure: None };
        canvas.filled((0, 0), (width, fine_height), PAPER);
        draw(&mut canvas);
        let result = canvas.area.present();
        canvas.keep(result);
        canvas.failure
    };
    if let Some(reason) = failure {
        return Err(PlotError { title: title.to_string(), reason });
    }
    // Shown at half the drawn size.
    let drawn = format!("<svg width=\"{width}\" height=\"{fine_height}\"");
    let shown = format!("<svg role=\"img\" width=\"{WIDTH}\" height=\"{height}\"");
    Ok(svg.replacen(&drawn, &shown, 1))
}
