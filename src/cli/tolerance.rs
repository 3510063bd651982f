//! What a comparison of two files is held against: `--budget`, `--precision`, or equal bits.
//!
//! Two files of one engine's precision have no exact side, so how far they may be apart is an
//! assumption, and the report prints it. Without an option they are held to equal bits, the one
//! basis that assumes nothing. A file stored in F64 on the expected side is an exact side: the
//! precision is then the one in which the subject's file is stored.

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

/// The options.
#[derive(Debug, Clone, Args)]
pub struct ToleranceArgs {
    /// Largest absolute difference that conforms
    #[arg(long, value_name = "X", value_parser = parse_budget, conflicts_with = "precision")]
    pub budget: Option<f64>,
    /// Precision of the subject's activations: the tolerance is 8 times the noise floor of it
    #[arg(long, value_name = "P", value_parser = choice::<Precision>())]
    pub precision: Option<Precision>,
    /// Measure the noise floor on this checkpoint, with the ids that the files name, rather than
    /// assume that of the sets that ship
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

/// A finite number from 0 up.
fn parse_budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number, 0 or more".to_owned()),
    }
}

/// What was decided.
#[derive(Debug)]
pub enum ToleranceChoice {
    /// Nothing was said.
    Bits,
    /// `--budget`.
    Absolute(f64),
    /// Both sides are f64: the tolerance of an f64 evaluation, relative to the largest value.
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
    /// [`FACTOR`] times the floor of the sets that ship, relative to each tensor's largest value.
    Assumed {
        /// The floors.
        floors: ShippedFloors,
        /// Where the precision comes from.
        because: &'static str,
    },
}

impl ToleranceArgs {
    /// Decides. `exact` says whether the expected side is stored in f64, `header` is what that
    /// side's file says of itself, `stored` is how the subject's values are stored, `ids` what the
    /// files were made from.
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
        let hint = "without --model the noise floor of the sets that ship is assumed";
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

impl ToleranceChoice {
    /// The tolerance of a tensor of real values by its name.
    #[must_use]
    pub fn tolerance(&self, name: &str, expected: &[f64]) -> Tolerance {
        let largest = || expected.iter().map(|value| value.abs()).fold(0.0, f64::max);
        let key = StageKey::parse(name);
        match self {
            Self::Bits => Tolerance::Bits,
            Self::Absolute(tolerance) => Tolerance::Absolute(*tolerance),
            Self::Double => Tolerance::Absolute(DEFAULT_F64_TOLERANCE * largest()),
            Self::Measured { floor, .. } => {
                let own = key.and_then(|key| floor.stages.get(&key));
                let foreign = || floor.largest_relative() * largest();
                Tolerance::Absolute(FACTOR * own.map_or_else(foreign, |own| own.max_abs))
            }
            // A tensor that the exact side has no floor for is not its own: nothing is allowed.
            Self::Carried { floors, .. } => {
                Tolerance::Absolute(FACTOR * floors.get(name).copied().unwrap_or(0.0))
            }
            Self::Assumed { floors, .. } => {
                let own = key.and_then(|key| floors.relative(key.stage));
                let relative = own.unwrap_or_else(|| floors.largest_relative());
                Tolerance::Absolute(FACTOR * relative * largest())
            }
        }
    }

    /// The basis in a line of a report.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Bits => "equal bits, since neither --precision nor --budget says how far apart \
                           two files may be"
                .to_owned(),
            Self::Absolute(tolerance) => format!("{tolerance:e} absolute, ASSUMED (--budget)"),
            Self::Double => format!(
                "{DEFAULT_F64_TOLERANCE:e} of each tensor's largest value: both sides are f64"
            ),
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
                     shipped {} relative to each tensor's largest value ({:.3e} for logits)",
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
