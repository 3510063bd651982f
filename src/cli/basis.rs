//! What a comparison of two files is held against: `--budget`, `--precision`, or equal bits.
//!
//! Two files of one engine's precision have no exact side, so how far they may be apart is an
//! assumption, and the report prints it. Without an option they are held to equal bits, the one
//! basis that assumes nothing. A file stored in F64 on the expected side is an exact side: the
//! precision is then the one in which the subject's file is stored.

use std::path::PathBuf;

use clap::Args;

use super::output::CommandError;
use crate::compare::{Budget, Precision};
use crate::config::{MLA_NORM_EPS, RawConfig};
use crate::exit::Exit;
use crate::gates::evidence::DEFAULT_F64_TOLERANCE;
use crate::gates::noise_floor::{FACTOR, NoiseFloor};
use crate::stages::{Stage, StageKey};

/// The options.
#[derive(Debug, Clone, Args)]
pub struct BasisArgs {
    /// Largest absolute difference that conforms
    #[arg(long, value_name = "X", value_parser = parse_budget, conflicts_with = "precision")]
    pub budget: Option<f64>,
    /// Precision of the subject's activations: the budget is 8 times the noise floor of it
    #[arg(long, value_name = "P", value_enum)]
    pub precision: Option<Precision>,
    /// Measure the noise floor on this checkpoint, with the ids that the files name, rather than
    /// assume that of the mild twin that ships
    #[arg(long, value_name = "DIR", requires = "precision")]
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
pub enum Basis {
    /// Nothing was said.
    Bits,
    /// `--budget`.
    Absolute(f64),
    /// Both sides are f64: the tolerance of an f64 evaluation, relative to the largest value.
    Double,
    /// [`FACTOR`] times a floor.
    Floor {
        /// The floor.
        floor: Box<NoiseFloor>,
        /// Measured on another model, so relative and an assumption.
        assumed: bool,
        /// Where the precision comes from.
        because: &'static str,
    },
}

impl BasisArgs {
    /// Decides. `exact` says whether the expected side is stored in f64, `stored` how the
    /// subject's is, `ids` what the files were made from.
    ///
    /// # Errors
    ///
    /// A checkpoint that cannot be read; ids that cannot judge the precision.
    pub fn decide(
        &self,
        exact: bool,
        stored: Precision,
        ids: Option<&[u32]>,
    ) -> Result<Basis, CommandError> {
        if let Some(budget) = self.budget {
            return Ok(Basis::Absolute(budget));
        }
        let (precision, because) = match (self.precision, exact) {
            (Some(precision), _) => (precision, "given"),
            (None, true) if stored == Precision::F64 => return Ok(Basis::Double),
            (None, true) => (stored, "as the subject's file is stored"),
            (None, false) => return Ok(Basis::Bits),
        };
        let floor = match &self.model {
            Some(folder) => measure(folder, ids, precision)?,
            None => NoiseFloor::of_the_mild_twin(precision)
                .map_err(|reason| CommandError::new(anyhow::anyhow!(reason), Exit::BadInput))?,
        };
        if let Some(decision) = &floor.flipped {
            let name = precision.name();
            let error = anyhow::anyhow!("rounding to {name} alone changes {decision}");
            let hint = format!("these ids on this model cannot judge {name}; --budget can");
            return Err(CommandError::new(error, Exit::Incomplete).hint(hint));
        }
        Ok(Basis::Floor {
            floor: Box::new(floor),
            assumed: self.model.is_none(),
            because,
        })
    }
}

fn measure(
    folder: &std::path::Path,
    ids: Option<&[u32]>,
    precision: Precision,
) -> Result<NoiseFloor, CommandError> {
    let Some(ids) = ids else {
        let error = anyhow::anyhow!("no file says which ids it was made from");
        let hint = "without --model the floor of the mild twin that ships is assumed";
        return Err(CommandError::new(error, Exit::BadInput).hint(hint));
    };
    let config = RawConfig::read(&folder.join("config.json"))
        .map_err(|error| CommandError::new(error, Exit::BadInput))?;
    NoiseFloor::measure(folder, &config, MLA_NORM_EPS, ids, precision)
        .map_err(|error| CommandError::new(error, Exit::BadInput))
}

impl Basis {
    /// The budget of a tensor of real values by its name.
    #[must_use]
    pub fn budget(&self, name: &str, expected: &[f64]) -> Budget {
        let largest = || expected.iter().map(|value| value.abs()).fold(0.0, f64::max);
        match self {
            Self::Bits => Budget::Bits,
            Self::Absolute(budget) => Budget::Absolute(*budget),
            Self::Double => Budget::Absolute(DEFAULT_F64_TOLERANCE * largest()),
            Self::Floor { floor, assumed, .. } => {
                let key = StageKey::parse(name);
                let measured = key
                    .and_then(|key| floor.stages.get(&key))
                    .filter(|_| !assumed);
                let absolute = measured.map_or_else(
                    || {
                        let relative = key.and_then(|key| floor.relative(key.stage));
                        relative.unwrap_or_else(|| floor.largest_relative()) * largest()
                    },
                    |measured| measured.max_abs,
                );
                Budget::Absolute(FACTOR * absolute)
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
            Self::Absolute(budget) => format!("{budget:e} absolute, ASSUMED (--budget)"),
            Self::Double => format!(
                "{DEFAULT_F64_TOLERANCE:e} of each tensor's largest value: both sides are f64"
            ),
            Self::Floor {
                floor,
                assumed,
                because,
            } => {
                let name = floor.precision.name();
                let logits = floor.relative(Stage::Logits).unwrap_or(0.0);
                if *assumed {
                    format!(
                        "{FACTOR} x the noise floor of {name} ({because}), ASSUMED to be that of \
                         the mild twin relative to each tensor's largest value ({logits:.3e} for \
                         logits, {} ids)",
                        floor.tokens
                    )
                } else {
                    format!(
                        "{FACTOR} x the noise floor of {name} ({because}), measured on this model \
                         with these {} ids ({logits:.3e} of the largest logit)",
                        floor.tokens
                    )
                }
            }
        }
    }

    /// Whether the budget is an assumption rather than derived from an exact side.
    #[must_use]
    pub fn assumed(&self) -> bool {
        match self {
            Self::Bits | Self::Double => false,
            Self::Absolute(_) => true,
            Self::Floor { assumed, .. } => *assumed,
        }
    }
}
