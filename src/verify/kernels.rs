//! Kernel gates: single operations against fixtures, one gate per kernel.
//!
//! A fixture case has inputs and two kinds of answers: `out.*`, the mathematical value in f64, and
//! `bits.*`, what the arithmetic contract yields exactly. An f32 subject is held to the bits where
//! there are any and to a derived bound otherwise; an f64 subject is held to the value.

use std::collections::BTreeMap;
use std::path::Path;

use super::kernel_bounds::f32_bound;
use super::outcome::{NamedComparison, Outcome, Verdict};
use super::registry::{BITS, Gate, of_kernels};
use super::subject::{KernelCase, Precision, SubjectSource};
use crate::tensor_file::{TensorFileError, TensorValues, read_tensors};
use k3_core::compare::{Tolerance, compare, ratio_text};
use k3_core::config::RawConfig;
use k3_core::stages::StageValues;

/// How far an f64 evaluation may be from an f64 answer, relative to the largest value of the
/// tensor: what another `exp` or another order of summation can move it by, with the fixtures'
/// own regeneration check as the source.
pub const F64_KERNEL_TOLERANCE: f64 = 1e-12;

/// Values inside a kernel that the contract never forms by themselves: the weights of a mix are
/// divided by their sum only after the weighted sum.
const INNER_VALUES: [(&str, &str); 1] = [("residual-mix", "weights")];

/// The tensors of one side of a case, by name.
pub type Tensors = BTreeMap<String, TensorValues>;

/// One case of a kernel fixture.
#[derive(Debug, Clone, Default)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// What goes in.
    pub inputs: Tensors,
    /// Mathematical values.
    pub values: Tensors,
    /// The contract's exact results.
    pub bits: Tensors,
}

/// All kernel fixtures.
#[derive(Debug)]
pub struct KernelFixtures {
    /// Cases by kernel.
    pub cases: BTreeMap<&'static str, Vec<Case>>,
    /// A config from which subjects take what a case does not say.
    pub config: RawConfig,
}

impl KernelFixtures {
    /// Reads one file per kernel gate below `folder`.
    ///
    /// # Errors
    ///
    /// [`TensorFileError`] when a file is missing or damaged.
    pub fn open(folder: &Path, config: RawConfig) -> Result<Self, TensorFileError> {
        let mut cases = BTreeMap::new();
        for Gate { id, .. } in of_kernels() {
            let path = folder.join(format!("{id}.safetensors"));
            cases.insert(*id, split_cases(read_tensors(&path)?));
        }
        Ok(Self { cases, config })
    }

    /// Judges one subject by one gate.
    #[must_use]
    pub fn judge(&self, gate: &Gate, source: &dyn SubjectSource) -> Outcome {
        let mut comparisons = Vec::new();
        for case in self.cases.get(gate.id).into_iter().flatten() {
            let asked = KernelCase { kernel: gate.id, inputs: &case.inputs, config: &self.config };
            let outputs = match source.operation(asked) {
                None => {
                    let summary = format!("{} has no such operation", source.name());
                    return Outcome::new(Verdict::NotApplicable, summary);
                }
                Some(Ok(outputs)) => outputs,
                Some(Err(error)) => return Outcome::failed(format!("{}: {error}", case.name)),
            };
            comparisons.extend(judge_case(gate, case, &outputs, source));
        }
        if comparisons.is_empty() && !source.has_contract_bits() {
            let summary = format!("{} does not promise the bits of the contract", source.name());
            return Outcome::new(Verdict::NotApplicable, summary);
        }
        summarise(comparisons)
    }
}

/// `CASE/in.NAME`, `CASE/out.NAME`, `CASE/bits.NAME` → cases, in the order of their names.
fn split_cases(tensors: BTreeMap<String, TensorValues>) -> Vec<Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for (full, tensor) in tensors {
        let Some((name, rest)) = full.split_once('/') else {
            continue;
        };
        let case = cases.entry(name.to_owned()).or_default();
        name.clone_into(&mut case.name);
        match rest.split_once('.') {
            Some(("in", name)) => case.inputs.insert(name.to_owned(), tensor),
            Some(("out", name)) => case.values.insert(name.to_owned(), tensor),
            Some(("bits", name)) => case.bits.insert(name.to_owned(), tensor),
            _ => None,
        };
    }
    cases.into_values().collect()
}

fn judge_case(
    gate: &Gate,
    case: &Case,
    outputs: &BTreeMap<String, Vec<f64>>,
    source: &dyn SubjectSource,
) -> Vec<NamedComparison> {
    let (precision, has_bits) = (source.precision(), source.has_contract_bits());
    let (kernel, is_bound) = (gate.id, gate.tolerance != BITS);
    let mut comparisons = Vec::new();
    for (name, got) in outputs {
        let (expected, tolerance) = match (precision, case.bits.get(name), case.values.get(name)) {
            (Precision::F32, Some(bits), _) if has_bits => (bits, Tolerance::Bits),
            (Precision::F64, _, Some(values)) => (values, f64_tolerance(values)),
            // F64 bits are exact values; F32 bits are the contract's, which only the engine owes.
            (_, Some(bits), None) if !bits.is_f32 && !has_bits => (bits, Tolerance::Bits),
            (Precision::F32, _, Some(values)) if has_bits || is_bound => {
                (values, f32_bound(kernel, name, case, values))
            }
            _ => continue,
        };
        let right = real(expected);
        let tail = right.len().min(got.len());
        // Long cases store the last rows only.
        let record = compare(&got[got.len() - tail..], &right, &expected.shape, &tolerance);
        comparisons.push(NamedComparison { name: format!("{}: {name}", case.name), record });
    }
    let asked_of_f64 = |name: &String| {
        case.values.contains_key(name) || case.bits.get(name).is_some_and(|bits| !bits.is_f32)
    };
    for name in case.bits.keys().chain(case.values.keys()) {
        let asked = match precision {
            Precision::F64 => asked_of_f64(name),
            _ if !has_bits => false,
            _ => !INNER_VALUES.contains(&(kernel, name.as_str())),
        };
        if asked && !outputs.contains_key(name) {
            let record = compare(&[], &[], &[0], &Tolerance::Bits);
            let name = format!("{}: {name}", case.name);
            comparisons.push(NamedComparison { name, record });
        }
    }
    comparisons
}

fn f64_tolerance(values: &TensorValues) -> Tolerance {
    match &values.values {
        StageValues::Ids(_) => Tolerance::Bits,
        StageValues::Real(values) => {
            let largest = values.iter().map(|value| value.abs()).fold(0.0, f64::max);
            Tolerance::Absolute(F64_KERNEL_TOLERANCE * largest)
        }
    }
}

/// The values of a tensor as numbers; ids become whole numbers.
#[must_use]
pub fn real(tensor: &TensorValues) -> Vec<f64> {
    match &tensor.values {
        StageValues::Real(values) => values.clone(),
        StageValues::Ids(ids) => ids.iter().map(|id| f64::from(*id)).collect(),
    }
}

fn summarise(comparisons: Vec<NamedComparison>) -> Outcome {
    let failed: Vec<&NamedComparison> = comparisons.iter().filter(|c| !c.record.passed).collect();
    let summary = match failed.first() {
        None => {
            let ratios = comparisons.iter().filter_map(|c| c.record.ratio);
            let count: usize = comparisons.iter().map(|c| c.record.count).sum();
            match ratios.reduce(f64::max) {
                Some(worst) => {
                    format!("{count} values, worst {} of its tolerance", ratio_text(worst))
                }
                None => format!("{count} values, bit-exact"),
            }
        }
        Some(first) => {
            let how = match (&first.record.problem, &first.record.first_mismatch) {
                (Some(problem), _) => problem.clone(),
                (None, Some(m)) => {
                    format!("at {:?}: expected {:e}, got {:e}", m.index, m.expected, m.got)
                }
                (None, None) => String::new(),
            };
            format!("{} of {} differ, first {} {how}", failed.len(), comparisons.len(), first.name)
        }
    };
    let passed = failed.is_empty() && !comparisons.is_empty();
    let mut outcome = Outcome::judged(passed, summary);
    outcome.comparisons = comparisons;
    outcome
}
