//! Comparing two dumps of named tensors, in execution order, so that the first tensor that diverges
//! locates the mistake and later ones are consequences.
//!
//! Names of the stage scheme are in execution order; other names follow in natural order (`block.2`
//! before `block.10`). Expert ids are compared exactly, numbers within a tolerance. Tensors that
//! only one side has are listed as not compared.

use std::collections::BTreeSet;

use serde::Serialize;

use super::logit_file::{GENERATED_IDS, PROMPT_IDS, ids_in};
use crate::tensor_file::{TensorFile, TensorValues};
use k3_core::compare::{Comparison, Tolerance, compare};
use k3_core::stages::{StageKey, StageValues};

/// Whether a tensor holds the ids a dump was made from, not values to compare.
fn holds_ids(name: &str) -> bool {
    PROMPT_IDS.contains(&name) || GENERATED_IDS.contains(&name) || name == "full_ids"
}

/// One tensor that both sides have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorComparison {
    /// Its name.
    pub name: String,
    /// Its shape on the expected side.
    pub shape: Vec<usize>,
    /// The record.
    #[serde(flatten)]
    pub record: Comparison,
}

/// Two dumps, tensor by tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DumpComparison {
    /// What both sides have, in execution order.
    pub tensors: Vec<TensorComparison>,
    /// Names that only the expected side has.
    pub only_expected: Vec<String>,
    /// Names that only the subject has.
    pub only_got: Vec<String>,
}

impl DumpComparison {
    /// The first tensor that is not within its tolerance.
    #[must_use]
    pub fn first_divergence(&self) -> Option<(usize, &TensorComparison)> {
        let mut tensors = self.tensors.iter().enumerate();
        tensors.find(|(_, tensor)| !tensor.record.passed)
    }

    /// Tensors that are not within their tolerances.
    #[must_use]
    pub fn differing(&self) -> usize {
        let differs = |tensor: &&TensorComparison| !tensor.record.passed;
        self.tensors.iter().filter(differs).count()
    }

    /// The tensor nearest to its tolerance, or farthest beyond, among the first `count`.
    #[must_use]
    pub fn worst_of(&self, count: usize) -> Option<(f64, &TensorComparison)> {
        let ratios =
            self.tensors[..count].iter().filter_map(|tensor| Some((tensor.record.ratio?, tensor)));
        ratios.max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// Compares what `wanted` selects; `tolerance` says how far the real values of a tensor may be off.
#[must_use]
pub fn compare_dumps(
    got: &TensorFile,
    expected: &TensorFile,
    wanted: &dyn Fn(&str) -> bool,
    tolerance: &dyn Fn(&str, &[f64]) -> Tolerance,
) -> DumpComparison {
    let names = |file: &TensorFile| -> BTreeSet<Order> {
        let values = file.tensors.keys().filter(|name| !holds_ids(name) && wanted(name));
        values.map(|name| Order::of(name)).collect()
    };
    let (mine, theirs) = (names(got), names(expected));
    let listed = |names: BTreeSet<&Order>| names.iter().map(|order| order.name.clone()).collect();
    let tensors = theirs.intersection(&mine).map(|order| {
        let name = order.name.as_str();
        one_tensor(name, &got.tensors[name], &expected.tensors[name], tolerance)
    });
    DumpComparison {
        tensors: tensors.collect(),
        only_expected: listed(theirs.difference(&mine).collect()),
        only_got: listed(mine.difference(&theirs).collect()),
    }
}

fn one_tensor(
    name: &str,
    got: &TensorValues,
    expected: &TensorValues,
    tolerance: &dyn Fn(&str, &[f64]) -> Tolerance,
) -> TensorComparison {
    let shape = expected.shape.clone();
    let refused = |problem: String| {
        let mut record = compare(&[], &[], &[0], &Tolerance::Bits);
        record.problem = Some(problem);
        record
    };
    let record = if got.shape == expected.shape {
        match (&got.values, &expected.values) {
            (StageValues::Real(got), StageValues::Real(right)) => {
                compare(got, right, &shape, &tolerance(name, right))
            }
            (StageValues::Ids(got), StageValues::Ids(right)) => {
                let real = |ids: &[i32]| -> Vec<f64> { ids.iter().map(|&id| id.into()).collect() };
                compare(&real(got), &real(right), &shape, &Tolerance::Bits)
            }
            (StageValues::Real(_), StageValues::Ids(_)) => {
                refused("expected integers, got floats".to_owned())
            }
            (StageValues::Ids(_), StageValues::Real(_)) => {
                refused("expected floats, got integers".to_owned())
            }
        }
    } else {
        refused(format!("expected shape {shape:?}, got {:?}", got.shape))
    };
    TensorComparison { name: name.to_owned(), shape, record }
}

/// The ids a dump says it was made from.
#[must_use]
pub fn ids_of(file: &TensorFile) -> Option<Vec<u32>> {
    ids_in(file, &PROMPT_IDS)
}

/// A name with its place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order {
    key: Option<StageKey>,
    /// Digits as numbers, so that they sort by value.
    parts: Vec<(String, u64)>,
    name: String,
}

impl Order {
    fn of(name: &str) -> Self {
        let mut parts = Vec::new();
        for run in name.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit()) {
            let text = String::from_utf8_lossy(run).into_owned();
            match text.parse() {
                Ok(number) => parts.push((String::new(), number)),
                Err(_) => parts.push((text, 0)),
            }
        }
        Self { key: StageKey::parse(name), parts, name: name.to_owned() }
    }

    /// Stages first, in their own order.
    fn rank(&self) -> (bool, Option<StageKey>, &[(String, u64)], &str) {
        (self.key.is_none(), self.key, &self.parts, &self.name)
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k3_core::Precision;

    fn file(tensors: &[(&str, &[f64])]) -> TensorFile {
        let tensor = |values: &[f64]| TensorValues {
            shape: vec![values.len()],
            values: StageValues::Real(values.to_vec()),
            is_f32: false,
            stored: Some(Precision::F64),
            dtype: safetensors::Dtype::F64,
        };
        TensorFile {
            tensors: tensors.iter().map(|(n, v)| ((*n).to_owned(), tensor(v))).collect(),
            metadata: std::collections::BTreeMap::new(),
            left: std::collections::BTreeMap::new(),
        }
    }

    fn within(got: &TensorFile, expected: &TensorFile, tolerance: f64) -> DumpComparison {
        compare_dumps(got, expected, &|_| true, &|_, _| Tolerance::Absolute(tolerance))
    }

    /// Alphabetically `layers.10` and `logits` come before `layers.2`.
    #[test]
    fn the_first_divergence_is_first_in_execution_order() {
        let right = file(&[
            ("layers.10.out", &[1.0]),
            ("layers.2.out", &[1.0, 2.0]),
            ("layers.2.attn_mix", &[1.0]),
            ("logits", &[1.0]),
            ("block.10", &[1.0]),
            ("block.9", &[1.0]),
        ]);
        let wrong = file(&[
            ("layers.10.out", &[9.0]),
            ("layers.2.out", &[1.0, 9.0]),
            ("layers.2.attn_mix", &[1.0]),
            ("logits", &[9.0]),
            ("block.10", &[9.0]),
            ("block.9", &[9.0]),
        ]);
        let comparison = within(&wrong, &right, 0.5);
        let names: Vec<&str> = comparison.tensors.iter().map(|t| t.name.as_str()).collect();
        let order =
            ["layers.2.attn_mix", "layers.2.out", "layers.10.out", "logits", "block.9", "block.10"];
        assert_eq!(names, order);
        let (place, first) = comparison.first_divergence().unwrap();
        assert_eq!((place, first.name.as_str()), (1, "layers.2.out"));
        assert_eq!(first.record.first_mismatch.as_ref().unwrap().index, [1]);
        assert_eq!(comparison.differing(), 5);
    }

    /// A tensor that one side lacks must not vanish from the question.
    #[test]
    fn what_only_one_side_has_is_listed() {
        let a = file(&[("embed", &[1.0]), ("mine", &[1.0])]);
        let b = file(&[("embed", &[1.0]), ("layers.0.out", &[1.0])]);
        let comparison = within(&a, &b, 0.0);
        assert_eq!(comparison.only_expected, ["layers.0.out"]);
        assert_eq!(comparison.only_got, ["mine"]);
        assert!(comparison.first_divergence().is_none());
    }

    /// [2] against [1] must not be compared on the shorter length.
    #[test]
    fn another_shape_is_a_divergence() {
        let comparison = within(&file(&[("embed", &[1.0])]), &file(&[("embed", &[1.0, 2.0])]), 9.0);
        let (_, first) = comparison.first_divergence().unwrap();
        assert!(first.record.problem.as_ref().unwrap().contains("shape [2], got [1]"));
    }
}
