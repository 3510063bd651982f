//! The noise floor: how far rounding alone moves the values of a model.
//!
//! It is measured: the f64 reference runs the same ids twice, plainly and with every stored
//! activation rounded to the precision in question ([`k3_reference::rounding`]). A chained
//! tolerance, one for values computed from values that were rounded before them, is [`FACTOR`]
//! times the largest distance between the two.

use k3_core::choice::Choice as _;
use std::collections::BTreeMap;
use std::path::Path;

use thiserror::Error;

use super::fixtures::Fixtures;
use super::runner::{SetState, in_parallel, shipped_sets};
use super::subject::argmax;
use k3_checkpoint::Malformed;
use k3_core::Precision;
use k3_core::config::MLA_NORM_EPS;
use k3_core::stages::{Stage, StageDump, StageKey, StageTensor, StageValues};
use k3_reference::rounding::{RoundedStages, rounded_formulas};
use k3_reference::{Model, ReferenceError};

/// Chained tolerance over noise floor.
pub const FACTOR: f64 = 8.0;

/// The floor of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageFloor {
    /// Largest distance between the rounded and the plain value.
    pub max_abs: f64,
    /// Largest plain value.
    pub largest: f64,
}

impl StageFloor {
    /// The floor relative to the tensor's largest value; 0 for a tensor of zeros.
    #[must_use]
    pub fn relative(self) -> f64 {
        if self.largest > 0.0 { self.max_abs / self.largest } else { 0.0 }
    }
}

/// The floors of every stage of a model on some ids.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseFloor {
    /// What activations were rounded to.
    pub precision: Precision,
    /// Tokens.
    pub tokens: usize,
    /// Real-valued stages.
    pub stages: BTreeMap<StageKey, StageFloor>,
    /// The first decision (a chosen expert, an argmax) that rounding alone changes, in words. Where
    /// there is one, the floor is that of another computation and no tolerance follows from it.
    pub flipped: Option<String>,
}

impl NoiseFloor {
    /// Runs the reference on `ids` twice.
    ///
    /// # Errors
    ///
    /// What the reference says of the checkpoint or the ids.
    pub fn measure(
        folder: &Path,
        mla_norm_eps: f64,
        ids: &[u32],
        precision: Precision,
    ) -> Result<Self, ReferenceError> {
        let mut plain = StageDump::default();
        let model = Model::open(folder, mla_norm_eps)?;
        model.sequence().feed(ids, &mut plain)?;
        drop(model);
        Self::measure_from(&plain, folder, mla_norm_eps, ids, precision)
    }

    /// [`NoiseFloor::measure`] from the stages of a plain run, all of them.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn measure_from(
        plain: &StageDump,
        folder: &Path,
        mla_norm_eps: f64,
        ids: &[u32],
        precision: Precision,
    ) -> Result<Self, ReferenceError> {
        let mut rounded = StageDump::default();
        let formulas = rounded_formulas(precision);
        let model = Model::open_with(folder, mla_norm_eps, &formulas)?;
        let hook = RoundedStages(precision);
        model.sequence_with(&hook).feed(ids, &mut rounded)?;
        Ok(Self::between(plain, &rounded, precision, ids.len()))
    }

    fn between(
        plain: &StageDump,
        rounded: &StageDump,
        precision: Precision,
        tokens: usize,
    ) -> Self {
        let mut stages = BTreeMap::new();
        let mut flipped = None;
        for (key, right) in &plain.tensors {
            let Some(noisy) = rounded.tensors.get(key) else {
                continue;
            };
            match (&right.values, &noisy.values) {
                (StageValues::Real(right), StageValues::Real(noisy)) => {
                    stages.insert(*key, floor_of(right, noisy));
                }
                (StageValues::Ids(right), StageValues::Ids(noisy)) => {
                    let differs = right.iter().zip(noisy).position(|(a, b)| a != b);
                    if let (None, Some(at)) = (&flipped, differs) {
                        flipped = Some(format!("{key}, value {at}"));
                    }
                }
                _ => {}
            }
        }
        let logits = StageKey::model(Stage::Logits);
        if let (Some(right), Some(noisy)) =
            (plain.tensors.get(&logits), rounded.tensors.get(&logits))
        {
            flipped = flipped.or_else(|| other_argmax(right, noisy));
        }
        Self { precision, tokens, stages, flipped }
    }

    /// The entry of a dump's header that carries the floors: key and JSON text. `None` where a
    /// decision flips, since no tolerance follows then.
    #[must_use]
    pub fn header_entry(&self) -> Option<(String, String)> {
        if self.flipped.is_some() {
            return None;
        }
        let floors: BTreeMap<String, f64> =
            self.stages.iter().map(|(key, floor)| (key.to_string(), floor.max_abs)).collect();
        let text = serde_json::to_string(&floors).ok()?;
        Some((header_key(self.precision), text))
    }

    /// The largest relative floor of a stage over all layers; `None` for ids.
    #[must_use]
    pub fn relative(&self, stage: Stage) -> Option<f64> {
        let floors = self.stages.iter().filter(|(key, _)| key.stage == stage);
        floors.map(|(_, floor)| floor.relative()).reduce(f64::max)
    }

    /// The largest relative floor of any stage.
    #[must_use]
    pub fn largest_relative(&self) -> f64 {
        let floors = self.stages.values();
        floors.map(|floor| floor.relative()).fold(0.0, f64::max)
    }
}

fn header_key(precision: Precision) -> String {
    format!("noise_floor.{}", precision.name())
}

/// The floors that a dump's header carries for a precision, by tensor; `None` without such an
/// entry, or with one that is not a table of finite numbers from 0 up.
#[must_use]
pub fn carried_floors(
    header: &BTreeMap<String, String>,
    precision: Precision,
) -> Option<BTreeMap<String, f64>> {
    let text = header.get(&header_key(precision))?;
    let floors: BTreeMap<String, f64> = serde_json::from_str(text).ok()?;
    let sound = floors.values().all(|floor| floor.is_finite() && *floor >= 0.0);
    sound.then_some(floors)
}

/// Why the floors of the sets that ship cannot be had.
#[derive(Debug, Error)]
pub enum FloorError {
    /// The fixtures cannot be unpacked.
    #[error(transparent)]
    Fixtures(#[from] Malformed),
    /// A set of them cannot be used, or rounding changes a decision on every set.
    #[error("{0}")]
    Sets(String),
    /// The reference fails on one.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// The floors of the shipped sets, assumed for a model that is not available.
#[derive(Debug, Clone, PartialEq)]
pub struct ShippedFloors {
    /// What activations were rounded to.
    pub precision: Precision,
    /// Name and floor of every set on which rounding changes no decision.
    pub sets: Vec<(String, NoiseFloor)>,
}

impl ShippedFloors {
    /// Measures them on the sets' full ids.
    ///
    /// # Errors
    ///
    /// [`FloorError`].
    pub fn measure(precision: Precision) -> Result<Self, FloorError> {
        let fixtures = Fixtures::embedded()?;
        let shipped = shipped_sets(&fixtures);
        let floors = in_parallel(shipped.len(), shipped.len(), |index| match &shipped[index] {
            SetState::Ready(set) => {
                let ids = &set.full.ids;
                let floor = NoiseFloor::measure(&set.model_dir, MLA_NORM_EPS, ids, precision)?;
                Ok((set.name.clone(), floor))
            }
            SetState::NotRun { name, reason } => {
                Err(FloorError::Sets(format!("set {name}: {reason}")))
            }
        });
        let mut sets = floors.into_iter().collect::<Result<Vec<_>, FloorError>>()?;
        sets.retain(|(_, floor)| floor.flipped.is_none());
        if sets.is_empty() {
            let what = "alone changes a decision on every set that ships";
            return Err(FloorError::Sets(format!("rounding to {} {what}", precision.name())));
        }
        Ok(Self { precision, sets })
    }

    /// The largest relative floor of a stage over all layers and sets; `None` for ids.
    #[must_use]
    pub fn relative(&self, stage: Stage) -> Option<f64> {
        let floors = self.sets.iter().filter_map(|(_, floor)| floor.relative(stage));
        floors.reduce(f64::max)
    }

    /// The largest relative floor of any stage.
    #[must_use]
    pub fn largest_relative(&self) -> f64 {
        let floors = self.sets.iter().map(|(_, floor)| floor.largest_relative());
        floors.fold(0.0, f64::max)
    }
}

fn floor_of(right: &[f64], noisy: &[f64]) -> StageFloor {
    let distances = right.iter().zip(noisy).map(|(a, b)| (a - b).abs());
    StageFloor {
        max_abs: distances.fold(0.0, f64::max),
        largest: right.iter().map(|value| value.abs()).fold(0.0, f64::max),
    }
}

fn other_argmax(right: &StageTensor, noisy: &StageTensor) -> Option<String> {
    let (StageValues::Real(a), StageValues::Real(b)) = (&right.values, &noisy.values) else {
        return None;
    };
    let vocabulary = right.shape.last().copied().unwrap_or(1).max(1);
    let rows = a.chunks(vocabulary).zip(b.chunks(vocabulary));
    let at = rows.map(|(a, b)| argmax(a) == argmax(b)).position(|same| !same)?;
    Some(format!("the argmax at position {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle measures the same noise in its own code, on nearly the same rounding points, and
    /// recorded it with the twin's answers. Two measurements of one floor agree within a factor of
    /// two; a hook that rounds nothing, or rounds to another precision, does not.
    #[test]
    fn the_floor_is_what_the_oracle_measured() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mild/expected.json");
        let text = std::fs::read_to_string(path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for precision in [Precision::F32, Precision::Bf16] {
            let noise = &json["noise"][precision.name()]["max_abs_vs_f64"];
            let by_oracle = noise.as_f64().unwrap();
            let floors = ShippedFloors::measure(precision).unwrap();
            let (_, floor) = floors.sets.iter().find(|(name, _)| name == "mild").unwrap();
            let ours = floor.stages[&StageKey::model(Stage::Logits)].max_abs;
            let ratio = ours / by_oracle;
            assert!((0.5..2.0).contains(&ratio), "{precision:?}: {ours} {by_oracle}");
        }
    }
}
