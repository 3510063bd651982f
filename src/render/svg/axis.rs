//! Axes: ends, ticks, and the place of a value on the canvas.

use super::FINE;

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By ratio; values must be positive.
    Logarithmic,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What is on it, with the unit.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
    /// Ends, where they should not follow the data.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An even axis that follows the data.
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.to_string(), scale: Scale::Linear, range: None }
    }

    /// A logarithmic axis that follows the data.
    pub fn logarithmic(label: &str) -> Axis {
        Axis { label: label.to_string(), scale: Scale::Logarithmic, range: None }
    }

    /// The same axis with fixed ends.
    pub fn within(self, from: f64, to: f64) -> Axis {
        Axis { range: Some((from, to)), ..self }
    }
}

/// One axis with its ends fixed and its place on the canvas.
#[derive(Clone, Copy)]
pub(super) struct Ruler {
    pub(super) scale: Scale,
    pub(super) from: f64,
    pub(super) to: f64,
    /// Shown pixels of the two ends.
    pub(super) start: i32,
    pub(super) end: i32,
}

impl Ruler {
    /// Ends by the axis's range or the values, widened where they would be empty.
    pub(super) fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        start: i32,
        end: i32,
    ) -> Ruler {
        let usable =
            |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        let fits = axis.range.filter(|(from, to)| usable(from) && usable(to));
        let (mut from, mut to) = fits.unwrap_or_else(|| {
            values.filter(usable).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        });
        if from > to {
            (from, to) = if fits.is_some() { (to, from) } else { (1.0, 10.0) };
        }
        let logarithmic = axis.scale == Scale::Logarithmic;
        if from == to && logarithmic {
            (from, to) = (from / 2.0, to * 2.0);
        } else if from == to {
            let half = from.abs().max(1.0) / 2.0;
            (from, to) = (from - half, to + half);
        } else if fits.is_none() {
            // Room for markers at the ends.
            let room = if logarithmic { (to / from).powf(0.02) } else { (to - from) * 0.02 };
            (from, to) =
                if logarithmic { (from / room, to * room) } else { (from - room, to + room) };
        }
        // Widening must not leave the numbers that there are.
        if logarithmic {
            from = from.max(f64::MIN_POSITIVE);
        }
        (from, to) = (from.max(f64::MIN / 4.0), to.min(f64::MAX / 4.0));
        Ruler { scale: axis.scale, from, to, start, end }
    }

    /// Place of a value in drawn pixels; None outside the ends or not on the scale.
    pub(super) fn place(&self, value: f64) -> Option<i32> {
        if !value.is_finite() || (self.scale == Scale::Logarithmic && value <= 0.0) {
            return None;
        }
        let along = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => (value.ln() - self.from.ln()) / (self.to.ln() - self.from.ln()),
        };
        let inside = (-1e-9..=1.0 + 1e-9).contains(&along);
        let (start, end) = (f64::from(self.start * FINE), f64::from(self.end * FINE));
        inside.then(|| (start + along * (end - start)).round() as i32)
    }

    /// Values that get a label, about `count` of them.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        match self.scale {
            Scale::Linear => linear_ticks(self.from, self.to, count),
            Scale::Logarithmic => {
                let ticks = logarithmic_ticks(self.from, self.to, &[1.0, 2.0, 5.0]);
                match ticks.len() {
                    0..=2 => linear_ticks(self.from, self.to, count),
                    3..=12 => ticks,
                    _ => logarithmic_ticks(self.from, self.to, &[1.0]),
                }
            }
        }
    }
}

fn linear_ticks(from: f64, to: f64, count: usize) -> Vec<f64> {
    let rough = (to - from) / count.max(1) as f64;
    let magnitude = 10_f64.powf(rough.log10().floor());
    // A little finer than asked for is better than twice as coarse.
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * magnitude);
    let step = steps.into_iter().find(|step| *step >= rough * 0.75).unwrap_or(rough);
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (first..=last.min(first.saturating_add(50))).map(|tick| tick as f64 * step).collect()
}

fn logarithmic_ticks(from: f64, to: f64, digits: &[f64]) -> Vec<f64> {
    let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    // Twelve decades get a tick each; more than that, fewer.
    let every = ((last - first) / 12).max(1) as usize;
    let decades = (first..=last).step_by(every);
    let all = decades.flat_map(|decade| digits.iter().map(move |d| d * 10_f64.powi(decade)));
    all.filter(|value| *value >= from * (1.0 - 1e-9) && *value <= to * (1.0 + 1e-9)).collect()
}

/// A number with thousands separators and no needless decimals.
pub fn number(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e15).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    let rounded = (value * 1000.0).round() / 1000.0;
    let text = format!("{}", rounded.abs());
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) => (whole, format!(".{decimals}")),
        None => (text.as_str(), String::new()),
    };
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if rounded < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}{decimals}")
}
