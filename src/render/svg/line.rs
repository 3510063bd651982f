//! The line chart: legend above the plot, grid, series, named values.

use super::axis::{Axis, Ruler, number};
use super::{
    Anchor, Canvas, Colour, FAINT, FINE, Fine, GRID, HEIGHT, INK, LABEL, Look, Marker, PlotError,
    Rgb, TEXT_SIZE, WIDTH, draw_svg, text_width,
};

/// One line or cloud of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, in order of x.
    pub points: Vec<(f64, f64)>,
    /// Colour.
    pub colour: Colour,
    /// Width of the line; 0 draws none.
    pub width: u32,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Shape at the points, if any.
    pub marker: Option<Marker>,
}

/// A value that deserves a name.
#[derive(Debug, Clone)]
pub enum Mark {
    /// A vertical line.
    AtX(f64, String),
    /// A horizontal line.
    AtY(f64, String),
    /// A ring around a point.
    Point(f64, f64, String),
}

/// A chart of series over two axes.
#[derive(Debug, Clone)]
pub struct LineChart {
    /// Title.
    pub title: String,
    /// A line under the title: what exactly is shown.
    pub subtitle: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
    /// Named values.
    pub marks: Vec<Mark>,
}

const LEFT: i32 = 72;
const RIGHT: i32 = WIDTH - 24;
const BOTTOM: i32 = HEIGHT - 56;
const LEGEND_TOP: i32 = 66;
const LEGEND_ROW: i32 = 20;

/// Draws a line chart.
pub fn line_chart(chart: &LineChart) -> Result<String, PlotError> {
    draw_svg(&chart.title, HEIGHT, |canvas| {
        canvas.headline(&chart.title, &chart.subtitle);
        let top = legend(canvas, &chart.series) + 20;
        let points = || chart.series.iter().flat_map(|series| series.points.iter());
        let both = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
        let x = Ruler::new(&chart.x, points().filter(both).map(|p| p.0), LEFT, RIGHT);
        let y = Ruler::new(&chart.y, points().filter(both).map(|p| p.1), BOTTOM, top);
        grid(canvas, chart, &x, &y);
        for mark in &chart.marks {
            mark_line(canvas, mark, &x, &y);
        }
        let mut drawn = 0;
        for series in &chart.series {
            drawn += draw_series(canvas, series, &x, &y);
        }
        if drawn == 0 {
            canvas.text("no data", ((LEFT + RIGHT) / 2, (top + BOTTOM) / 2), LABEL);
        }
        mark_labels(canvas, chart, &x, &y);
    })
}

/// Draws the legend in as many rows as it needs; returns its lower end.
fn legend(canvas: &mut Canvas<'_>, series: &[Series]) -> i32 {
    let (mut left, mut middle) = (16, LEGEND_TOP);
    for series in series {
        let width = 34 + text_width(&series.name, TEXT_SIZE) + 18;
        if left + width > WIDTH && left > 16 {
            left = 16;
            middle += LEGEND_ROW;
        }
        let rgb = series.colour.rgb();
        let ends = [(left * FINE, middle * FINE), ((left + 28) * FINE, middle * FINE)];
        if series.width > 0 && series.dashed {
            canvas.dashes(&ends, rgb, series.width);
        } else if series.width > 0 {
            canvas.path(ends.to_vec(), rgb, series.width);
        }
        if let Some(marker) = series.marker {
            canvas.marker(((left + 14) * FINE, middle * FINE), marker, rgb);
        }
        let look = Look { anchor: Anchor::Start, ..LABEL };
        canvas.text(&series.name, (left + 34, middle), look);
        left += width;
    }
    if series.is_empty() { LEGEND_TOP - LEGEND_ROW } else { middle }
}

fn grid(canvas: &mut Canvas<'_>, chart: &LineChart, x: &Ruler, y: &Ruler) {
    let top = y.end;
    for tick in x.ticks(8) {
        if let Some(at) = x.place(tick) {
            canvas.path(vec![(at, top * FINE), (at, BOTTOM * FINE)], GRID, 1);
            canvas.text(&number(tick), (at / FINE, BOTTOM + 14), LABEL);
        }
    }
    for tick in y.ticks(6) {
        if let Some(at) = y.place(tick) {
            canvas.path(vec![(LEFT * FINE, at), (RIGHT * FINE, at)], GRID, 1);
            let look = Look { anchor: Anchor::End, ..LABEL };
            canvas.text(&number(tick), (LEFT - 8, at / FINE), look);
        }
    }
    canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK, 1);
    canvas.line((LEFT, top), (LEFT, BOTTOM), INK, 1);
    canvas.text(&chart.x.label, ((LEFT + RIGHT) / 2, HEIGHT - 18), LABEL);
    let upright = Look { upright: true, ..LABEL };
    canvas.text(&chart.y.label, (18, (top + BOTTOM) / 2), upright);
}

/// Draws one series; returns how many of its points are inside the plot.
fn draw_series(canvas: &mut Canvas<'_>, series: &Series, x: &Ruler, y: &Ruler) -> usize {
    let rgb = series.colour.rgb();
    let place = |point: &(f64, f64)| Some((x.place(point.0)?, y.place(point.1)?));
    let places: Vec<Fine> = series.points.iter().filter_map(place).collect();
    if series.width > 0 && places.len() > 1 {
        let path = thinned(&places);
        if series.dashed {
            canvas.dashes(&path, rgb, series.width);
        } else {
            canvas.path(path, rgb, series.width);
        }
    }
    if let Some(marker) = series.marker {
        for &at in &places {
            canvas.marker(at, marker, rgb);
        }
    } else if places.len() == 1 {
        canvas.marker(places[0], Marker::Circle, rgb);
    }
    places.len()
}

/// The same line with fewer points: at most first, lowest, highest and last of each column.
fn thinned(places: &[Fine]) -> Vec<Fine> {
    let mut path: Vec<Fine> = Vec::new();
    let mut rest = places;
    while let Some(&first) = rest.first() {
        let length = rest.iter().take_while(|place| place.0 == first.0).count();
        let (column, after) = rest.split_at(length);
        let lowest = column.iter().map(|place| place.1).min();
        let highest = column.iter().map(|place| place.1).max();
        let last = column[length - 1].1;
        for y in [Some(first.1), lowest, highest, Some(last)].into_iter().flatten() {
            if path.last() != Some(&(first.0, y)) {
                path.push((first.0, y));
            }
        }
        rest = after;
    }
    path
}

fn mark_line(canvas: &mut Canvas<'_>, mark: &Mark, x: &Ruler, y: &Ruler) {
    const DARK: Rgb = (150, 150, 150);
    let ends = match mark {
        Mark::AtX(value, _) => x.place(*value).map(|at| [(at, y.end * FINE), (at, BOTTOM * FINE)]),
        Mark::AtY(value, _) => y.place(*value).map(|at| [(LEFT * FINE, at), (RIGHT * FINE, at)]),
        Mark::Point(..) => None,
    };
    if let Some(ends) = ends {
        canvas.dashes(&ends, DARK, 1);
    }
}

/// A label's place: left end, middle line, width, in shown pixels.
#[derive(Clone, Copy)]
struct Place {
    left: i32,
    middle: i32,
    width: i32,
}

impl Place {
    fn covers(&self, (x, y): (i32, i32)) -> bool {
        (self.left - 4..=self.left + self.width + 4).contains(&x) && (self.middle - y).abs() <= 9
    }

    fn meets(&self, other: &Place) -> bool {
        self.left < other.left + other.width + 6
            && other.left < self.left + self.width + 6
            && (self.middle - other.middle).abs() < 17
    }
}

/// Labels of the named values: each where it covers the least.
fn mark_labels(canvas: &mut Canvas<'_>, chart: &LineChart, x: &Ruler, y: &Ruler) {
    let ink = ink(chart, x, y);
    let mut taken: Vec<Place> = Vec::new();
    for mark in &chart.marks {
        let (Mark::AtX(_, label) | Mark::AtY(_, label) | Mark::Point(_, _, label)) = mark;
        if let Mark::Point(a, b, _) = mark
            && let Some(at) = x.place(*a).zip(y.place(*b))
        {
            canvas.marker(at, Marker::Ring, INK);
        }
        let width = text_width(label, TEXT_SIZE);
        let fits = |place: &Place| {
            place.left > LEFT
                && place.left + width < RIGHT
                && place.middle >= y.end + 8
                && place.middle <= BOTTOM - 8
        };
        let cost = |place: &Place| {
            let labels = taken.iter().filter(|other| place.meets(other)).count();
            1000 * labels + ink.iter().filter(|at| place.covers(**at)).count()
        };
        let places = candidates(mark, width, x, y).into_iter().filter(fits);
        let Some(place) = places.min_by_key(cost) else {
            continue;
        };
        taken.push(place);
        canvas.veil((place.left - 2, place.middle - 8), (place.left + width, place.middle + 8));
        let look = Look { anchor: Anchor::Start, colour: FAINT, ..LABEL };
        canvas.text(label, (place.left, place.middle), look);
    }
}

/// Where the label of a mark could go, the best first.
fn candidates(mark: &Mark, width: i32, x: &Ruler, y: &Ruler) -> Vec<Place> {
    let place = |left: i32, middle: i32| Place { left, middle, width };
    match mark {
        Mark::AtX(value, _) => {
            let Some(at) = x.place(*value).map(|at| at / FINE) else {
                return Vec::new();
            };
            let rows = (0..6).map(|row| y.end + 12 + 18 * row);
            rows.flat_map(|row| [place(at + 6, row), place(at - 6 - width, row)]).collect()
        }
        Mark::AtY(value, _) => {
            let Some(at) = y.place(*value).map(|at| at / FINE) else {
                return Vec::new();
            };
            let ends = [RIGHT - width - 8, LEFT + 8, (LEFT + RIGHT - width) / 2];
            ends.into_iter().flat_map(|left| [place(left, at - 10), place(left, at + 11)]).collect()
        }
        Mark::Point(a, b, _) => {
            let Some((a, b)) = x.place(*a).zip(y.place(*b)) else {
                return Vec::new();
            };
            let (a, b) = (a / FINE, b / FINE);
            let rows = [b - 14, b + 15, b - 32, b + 33];
            rows.into_iter()
                .flat_map(|row| [place(a + 7, row), place(a - 7 - width, row)])
                .collect()
        }
    }
}

/// Points along all series, about six pixels apart.
fn ink(chart: &LineChart, x: &Ruler, y: &Ruler) -> Vec<(i32, i32)> {
    let mut ink = Vec::new();
    for series in &chart.series {
        let place = |point: &(f64, f64)| Some((x.place(point.0)?, y.place(point.1)?));
        let places: Vec<Fine> = series.points.iter().filter_map(place).collect();
        let path = thinned(&places);
        ink.extend(path.iter().map(|at| (at.0 / FINE, at.1 / FINE)));
        for pair in path.windows(2).filter(|_| series.width > 0) {
            let (dx, dy) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            let steps = dx.abs().max(dy.abs()) / (6 * FINE);
            ink.extend((1..steps).map(|step| {
                let along = |from: i32, by: i32| (from + by * step / steps) / FINE;
                (along(pair[0].0, dx), along(pair[0].1, dy))
            }));
        }
    }
    ink
}
