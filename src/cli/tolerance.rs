//! The tolerance of a comparison of two files: `--budget`, `--precision`, or equal bits.
//!
//! If neither file is exact, how far they may differ is an assumption, and the report prints it.
//! Without an option their bits must be equal, which assumes nothing. If the expected file is
//! stored in F64, it counts as exact, and the tolerance follows from the precision in which the
//! subject's file is stored.

use k3_core::choice::Choice as _;
use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use super::choice::choice;
use super::output::{CommandError, bad_input};
use k3_core::Precision;
use k3_core::compare::Tolerance;
use k3_core::config::MLA_NORM_EPS;
use k3_core::exit::Exit;
use k3_core::stages::{Stage, StageKey};
use k3_gates::evidence::DEFAULT_F64_TOLERANCE;
use k3_gates::noise_floor::{FACTOR, NoiseFloor, ShippedFloors, carried_floors};

/// Options that set the tolerance.
#[derive(Debug, Clone, Args)]
pub struct ToleranceArgs {
    /// Tolerance: the largest absolute difference that conforms
    #[arg(long, value_name = "X", value_parser = parse_budget, conflicts_with = "precision")]
    pub budget: Option<f64>,
    /// Precision of the subject's activations: the tolerance is 8 times its noise floor
    #[arg(long, value_name = "P", value_parser = choice::<Precision>())]
    pub precision: Option<Precision>,
    /// Measure the noise floor on this checkpoint, with the ids that the files name, instead of
    /// assuming that of the shipped sets
    #[arg(long, value_name = "DIR", conflicts_with = "budget")]
    pub model: Option<PathBuf>,
}

/// A finite number, 0 or more.
fn parse_budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number, 0 or more".to_owned()),
    }
}

/// Where the tolerance comes from.
#[derive(Debug)]
pub enum ToleranceChoice {
    /// No option was given.
    Bits,
    /// `--budget`.
    Absolute(f64),
    /// Both sides are f64: the tolerance of an f64 evaluation, relative to what a row reaches.
    Double,
    /// [`FACTOR`] times the floor measured on the model itself.
    Measured {
        /// The floor.
        floor: Box<NoiseFloor>,
        /// Where the precision comes from.
        because: &'static str,
    },
    /// [`FACTOR`] times the floor that the exact dump carries in its header.
    Carried {
        /// The precision.
        precision: Precision,
        /// Floors by tensor.
        floors: BTreeMap<String, f64>,
        /// Where the precision comes from.
        because: &'static str,
    },
    /// [`FACTOR`] times the floor of the sets that ship, relative to what each row reaches.
    Assumed {
        /// The floors.
        floors: ShippedFloors,
        /// Where the precision comes from.
        because: &'static str,
    },
}

impl ToleranceArgs {
    /// Chooses. `exact`: whether the expected side is stored in f64; `header`: that file's
    /// metadata; `stored`: the precision of the subject's file; `ids`: the ids both were computed
    /// from.
    pub fn decide(
        &self,
        exact: bool,
        header: &BTreeMap<String, String>,
        stored: Precision,
        ids: Option<&[u32]>,
    ) -> Result<ToleranceChoice, CommandError> {
        if let Some(tolerance) = self.budget {
            return Ok(ToleranceChoice::Absolute(tolerance));
        }
        let (precision, because) = match (self.precision, exact) {
            (Some(precision), _) => (precision, "given"),
            (None, true) if stored == Precision::F64 => return Ok(ToleranceChoice::Double),
            (None, true) => (stored, "as the subject's file is stored"),
            (None, false) if self.model.is_some() => {
                let error = super::output::usage("--model without --precision has no effect here");
                return Err(error.hint("give --precision, or leave out --model: bits are compared"));
            }
            (None, false) => return Ok(ToleranceChoice::Bits),
        };
        if let Some(folder) = &self.model {
            let floor = Box::new(measure(folder, ids, precision)?);
            return Ok(ToleranceChoice::Measured { floor, because });
        }
        if let Some(floors) = carried_floors(header, precision).filter(|_| exact) {
            return Ok(ToleranceChoice::Carried { precision, floors, because });
        }
        let floors = ShippedFloors::measure(precision)?;
        Ok(ToleranceChoice::Assumed { floors, because })
    }
}

fn measure(
    folder: &std::path::Path,
    ids: Option<&[u32]>,
    precision: Precision,
) -> Result<NoiseFloor, CommandError> {
    let Some(ids) = ids else {
        let error = anyhow::anyhow!("no file says which ids it was made from");
        let hint = "without --model the noise floor of the shipped sets is assumed";
        return Err(bad_input(error).hint(hint));
    };
    let floor = NoiseFloor::measure(folder, MLA_NORM_EPS, ids, precision)?;
    match &floor.flipped {
        None => Ok(floor),
        Some(decision) => {
            let name = precision.name();
            let error = anyhow::anyhow!("rounding to {name} alone changes {decision}");
            let hint = format!("these ids on this model cannot judge {name}; --budget can");
            Err(CommandError::new(error, Exit::Incomplete).hint(hint))
        }
    }
}

/// How many times the median size of a row its ordinary values reach. Of values with a normal
/// distribution the median size is 0.67 standard deviations, and none of 10⁷ is beyond 6.6: ten
/// times it.
const REACH: f64 = 16.0;

/// How far the ordinary values of a row reach: to the largest, but no further than [`REACH`] times
/// the median size (zeros left out). So extreme values, such as those of suppressed ids, do not
/// move it while they are fewer than half.
fn reach(row: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = row.iter().map(|value| value.abs()).filter(|v| *v > 0.0).collect();
    if sizes.is_empty() {
        return 0.0;
    }
    let middle = (sizes.len() - 1) / 2;
    let (_, median, _) = sizes.select_nth_unstable_by(middle, f64::total_cmp);
    let ordinary = REACH * *median;
    sizes.into_iter().fold(0.0, f64::max).min(ordinary)
}

/// `relative` of what the row's ordinary values reach, or of the element itself where that is more:
/// an extreme element widens its own tolerance and nobody else's.
fn relative_tolerance(relative: f64, expected: &[f64], width: usize) -> Tolerance {
    let rows: Vec<(&[f64], f64)> =
        expected.chunks(width.max(1)).map(|row| (row, reach(row))).collect();
    match rows.as_slice() {
        [(row, reach)] if row.iter().all(|value| value.abs() <= *reach) => {
            Tolerance::Absolute(relative * reach)
        }
        _ => {
            let bounds = rows.iter().flat_map(|(row, reach)| {
                row.iter().map(move |value| relative * value.abs().max(*reach))
            });
            Tolerance::PerElement(bounds.collect())
        }
    }
}

impl ToleranceChoice {
    /// The tolerance of a tensor of real values by its name; `width` is the length of its rows.
    #[must_use]
    pub fn tolerance(&self, name: &str, expected: &[f64], width: usize) -> Tolerance {
        let key = StageKey::parse(name);
        match self {
            Self::Bits => Tolerance::Bits,
            Self::Absolute(tolerance) => Tolerance::Absolute(*tolerance),
            Self::Double => relative_tolerance(DEFAULT_F64_TOLERANCE, expected, width),
            Self::Measured { floor, .. } => match key.and_then(|key| floor.stages.get(&key)) {
                Some(own) => Tolerance::Absolute(FACTOR * own.max_abs),
                None => relative_tolerance(FACTOR * floor.largest_relative(), expected, width),
            },
            // A tensor without a carried floor has tolerance 0.
            Self::Carried { floors, .. } => {
                Tolerance::Absolute(FACTOR * floors.get(name).copied().unwrap_or(0.0))
            }
            Self::Assumed { floors, .. } => {
                let own = key.and_then(|key| floors.relative(key.stage));
                let relative = own.unwrap_or_else(|| floors.largest_relative());
                relative_tolerance(FACTOR * relative, expected, width)
            }
        }
    }

    /// The basis in a line of a report.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Bits => {
                "equal bits, since neither --precision nor --budget gives a tolerance".to_owned()
            }
            Self::Absolute(tolerance) => format!("{tolerance:e} absolute, ASSUMED (--budget)"),
            Self::Double => {
                format!("{DEFAULT_F64_TOLERANCE:e} of what each row reaches: both sides are f64")
            }
            Self::Measured { floor, because } => format!(
                "{FACTOR} x the noise floor of {} ({because}), measured on this model with these \
                 {} ids ({:.3e} of the largest logit)",
                floor.precision.name(),
                floor.tokens,
                floor.relative(Stage::Logits).unwrap_or(0.0)
            ),
            Self::Carried { precision, floors, because } => format!(
                "{FACTOR} x the noise floor of {} ({because}), measured when the exact side was \
                 made ({:.3e} on the logits)",
                precision.name(),
                floors.get("logits").copied().unwrap_or(0.0)
            ),
            Self::Assumed { floors, because } => {
                let names: Vec<&str> = floors.sets.iter().map(|(name, _)| name.as_str()).collect();
                format!(
                    "{FACTOR} x the noise floor of {} ({because}), ASSUMED to be that of the \
                     shipped {} relative to what each row reaches ({:.3e} for logits)",
                    floors.precision.name(),
                    names.join(" and "),
                    floors.relative(Stage::Logits).unwrap_or(0.0)
                )
            }
        }
    }

    /// Whether the tolerance is an assumption rather than derived.
    #[must_use]
    pub fn assumed(&self) -> bool {
        matches!(self, Self::Absolute(_) | Self::Assumed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two in five ids filled with one large value, as padding is: the others are held to what they
    /// reach themselves.
    #[test]
    fn extreme_values_widen_their_own_tolerance_only() {
        for fill in [-50.0, -9999.0, -1e9, f64::from(f32::MIN)] {
            let row: Vec<f64> = (0..100)
                .map(|i| if i % 5 < 2 { fill } else { 1.0 + f64::from(i) / 100.0 })
                .collect();
            let Tolerance::PerElement(bounds) = relative_tolerance(1e-3, &row, 100) else {
                panic!("one bound for all, with {fill}");
            };
            assert_eq!(bounds[0], 1e-3 * -fill);
            assert!(bounds[2] <= 1e-3 * 16.0 * 2.0, "{fill}: {}", bounds[2]);
        }
    }

    /// Values without extremes have one bound, and another unit changes nothing.
    #[test]
    fn the_bound_follows_the_unit() {
        let row: Vec<f64> = (1..=100).map(|i| f64::from(i) - 50.5).collect();
        assert_eq!(relative_tolerance(0.5, &row, 100), Tolerance::Absolute(0.5 * 49.5));
        let large: Vec<f64> = row.iter().map(|value| value * 1048576.0).collect();
        let bound = Tolerance::Absolute(0.5 * 49.5 * 1048576.0);
        assert_eq!(relative_tolerance(0.5, &large, 100), bound);
    }
}
