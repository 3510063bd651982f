//! A subject: what a gate judges, opened on a checkpoint and run as sequences with carried state.
//!
//! The f64 reference, the engine, a mutated one of either and a foreign executable all come in
//! through these traits, so that a gate is written once.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

use thiserror::Error;

use crate::kernels::Tensors;
use crate::registry::Needs;
pub use k3_core::Precision;
use k3_core::config::RawConfig;
use k3_core::stages::StageSink;

/// Why a subject could not be opened or run, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubjectError {
    /// It refused the checkpoint.
    #[error("{0}")]
    Refused(String),
    /// It failed while computing.
    #[error("{0}")]
    Failed(String),
    /// It could not be run, or gave no answer: nothing is known of its numbers.
    #[error("{0}")]
    NotRun(String),
}

/// Logits of the fed rows: row-major `[rows, vocabulary]`; an f32 subject's values widen exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Rows (fed tokens).
    pub rows: usize,
    /// Columns (vocabulary).
    pub vocabulary: usize,
    /// `rows · vocabulary` values.
    pub values: Vec<f64>,
}

impl Logits {
    /// One row.
    ///
    /// # Panics
    ///
    /// When `row` is not below [`Self::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.vocabulary..(row + 1) * self.vocabulary]
    }

    /// The id of the largest logit of a row, the lowest id among equals; `None` when a value of
    /// the row is not finite, so that no NaN ever turns into a token.
    #[must_use]
    pub fn argmax(&self, row: usize) -> Option<u32> {
        argmax(self.row(row))
    }
}

/// Index of the largest value, the lowest among equals; `None` unless all values are finite.
#[must_use]
pub fn argmax(values: &[f64]) -> Option<u32> {
    if values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut best = None;
    for (index, &value) in values.iter().enumerate() {
        if best.is_none_or(|(_, top)| value > top) {
            best = Some((index, value));
        }
    }
    best.and_then(|(index, _)| u32::try_from(index).ok())
}

/// What a subject is opened on.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// Folder of the checkpoint.
    pub dir: &'a Path,
    /// Its config.
    pub config: &'a RawConfig,
    /// ε of MLA's two low-rank norms.
    pub mla_norm_eps: f64,
}

/// What a kernel fixture asks of one operation.
#[derive(Debug, Clone, Copy)]
pub struct KernelCase<'a> {
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Inputs by name.
    pub inputs: &'a Tensors,
    /// Where sizes and constants come from that the inputs do not say.
    pub config: &'a RawConfig,
}

/// Outputs of an operation by name.
pub type Outputs = BTreeMap<String, Vec<f64>>;

/// What came of a kernel case; `None` where the subject has no such operation of its own.
pub type Answer = Option<Result<Outputs, SubjectError>>;

/// Something that can be opened on a checkpoint.
pub trait SubjectSource: Sync {
    /// Name in reports, for example `reference`.
    fn name(&self) -> &str;
    /// Precision of its activations, from which its tolerances follow.
    fn precision(&self) -> Precision;
    /// Opens a checkpoint.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Refused`] when the checkpoint does not bind.
    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError>;
    /// What it offers apart from logits; gates that need more are NOT APPLICABLE to it.
    fn offers(&self) -> &[Needs] {
        &[]
    }
    /// Runs one operation on the inputs of a kernel fixture; `None` where it has none of that name.
    fn operation(&self, _case: KernelCase<'_>) -> Answer {
        None
    }
    /// Other ways to run it (threads, chunks, kernel paths); none where there is no choice.
    fn variants(&self) -> Vec<Variant> {
        Vec::new()
    }
    /// Whether its f32 results are owed to be the arithmetic contract's in bits, as the engine's
    /// are.
    fn has_contract_bits(&self) -> bool {
        self.precision() == Precision::F32
    }
    /// The same with every combination of the factors, which takes minutes.
    fn exhaustive_variants(&self) -> Vec<Variant> {
        self.variants()
    }
}

/// The same subject run another way that must change no bit.
pub struct Variant {
    /// What is different.
    pub name: String,
    /// How many of the set's ids it is fed at most; fewer where a way is costly and more tokens
    /// could not show more.
    pub tokens: usize,
    /// The subject.
    pub source: Box<dyn SubjectSource>,
}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variant({})", self.name)
    }
}

/// A subject on an opened checkpoint.
pub trait Subject: Sync + Send {
    /// A sequence at position 0 with empty state.
    fn sequence(&self) -> Box<dyn Sequence + '_>;
    /// Full names of the tensors that it has loaded, or found by its own names and reads when they
    /// are needed; `None` where it does not say.
    fn loaded(&self) -> Option<BTreeSet<String>> {
        None
    }
    /// Decodes greedily on its own, with whatever state it carries; `None` where that is left to
    /// the caller.
    fn generate(&self, _prompt: &[u32], _count: usize) -> Option<Result<Generation, SubjectError>> {
        None
    }
}

/// What a subject that decodes on its own chose, and the logits it chose by.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The ids, one after the other.
    pub ids: Vec<u32>,
    /// Logits from the last given id on: one row per chosen id, or fewer where it does not say.
    pub logits: Logits,
}

/// A sequence of tokens with the state carried between calls.
pub trait Sequence {
    /// Feeds `ids` at the next positions and returns their logits, one row per id.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Failed`] when the computation fails or yields logits that are not finite.
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError>;
    /// A copy of the carried state, where it can be taken out.
    fn state(&self) -> Option<Box<dyn Any>> {
        None
    }
    /// Puts a state back that [`Self::state`] gave.
    fn set_state(&mut self, _state: Box<dyn Any>) {}
}

/// An opened engine of which nothing but logits can be had, and a sequence of it: `logits` gives
/// those of any ids from an empty state. No state is carried, every feed computes everything that
/// was fed so far.
#[derive(Debug)]
pub struct Recomputed<F> {
    vocabulary: usize,
    logits: F,
    fed: Vec<u32>,
}

impl<F, T> Recomputed<F>
where
    F: Fn(&[u32]) -> Result<Vec<T>, SubjectError>,
{
    /// With one row of `vocabulary` logits per id.
    pub fn new(vocabulary: usize, logits: F) -> Self {
        Self { vocabulary, logits, fed: Vec::new() }
    }
}

impl<F, T> Subject for Recomputed<F>
where
    F: Fn(&[u32]) -> Result<Vec<T>, SubjectError> + Send + Sync,
    T: Into<f64>,
{
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(Recomputed::new(self.vocabulary, &self.logits))
    }
}

impl<F, T> Sequence for Recomputed<F>
where
    F: Fn(&[u32]) -> Result<Vec<T>, SubjectError>,
    T: Into<f64>,
{
    fn feed(&mut self, ids: &[u32], _sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        self.fed.extend_from_slice(ids);
        let all = (self.logits)(&self.fed)?;
        let (rows, vocabulary) = (self.fed.len(), self.vocabulary);
        if all.len() != rows * vocabulary {
            let got = all.len();
            let problem = format!("expected {rows} x {vocabulary} logits, got {got} values");
            return Err(SubjectError::Failed(problem));
        }
        let skip = (rows - ids.len()) * vocabulary;
        let values = all.into_iter().skip(skip).map(Into::into).collect();
        Ok(Logits { rows: ids.len(), vocabulary, values })
    }
}

#[cfg(test)]
mod tests {
    use super::{Recomputed, Subject as _, argmax};
    use k3_core::stages::NoStages;

    /// A NaN compares false with everything: a plain loop would return id 0 or skip it.
    #[test]
    fn argmax_takes_the_lowest_of_equals_and_refuses_what_is_not_finite() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(argmax(&[-1.0]), Some(0));
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[1.0, f64::NAN]), None);
        assert_eq!(argmax(&[1.0, f64::INFINITY]), None);
    }

    /// A row left out must not shift the others.
    #[test]
    fn a_wrong_number_of_logits_is_an_error() {
        let subject = Recomputed::new(2, |ids: &[u32]| Ok(vec![0.0_f32; ids.len() * 2 - 1]));
        let error = subject.sequence().feed(&[1, 2], &mut NoStages).unwrap_err();
        assert_eq!(error.to_string(), "expected 2 x 2 logits, got 3 values");
    }
}
