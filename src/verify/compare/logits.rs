//! Compares logits: measures of two rows of a vocabulary that go beyond the comparison record.
//!
//! Per row: the id each side would choose, how close the two best of the expected side are, how
//! many of the k best are shared, the rank correlation, the KL divergence and the correlation. A
//! row in which all values are equal chooses nothing and never passes, and neither does a row that
//! says something else altogether, whatever the tolerance allows.

use std::collections::BTreeSet;

use serde::Serialize;

use k3_core::compare::{Comparison, Tolerance, compare};

/// The k of the top-k overlap, cut to the vocabulary.
pub const OVERLAP: usize = 10;

/// A row whose KL divergence, in nats, is larger says something else. Logits that are nowhere
/// further apart than δ diverge by at most 2·δ, so some are half a logit apart or more.
const ABSURD_DIVERGENCE: f64 = 1.0;

/// One row of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowAgreement {
    /// Row number, from 0.
    pub row: usize,
    /// Id of the largest logit of the subject, the lowest among equals.
    pub argmax_got: usize,
    /// The same of the expected side.
    pub argmax_expected: usize,
    /// The subject's largest logit.
    pub top_got: f64,
    /// The expected largest logit.
    pub top_expected: f64,
    /// How much lower the expected side rates the subject's choice; 0 when both choose alike.
    pub gap: f64,
    /// The choices differ, by no more than twice the tolerance: two conforming evaluations may.
    pub near_tie: bool,
    /// Ids among the k best of both sides.
    pub overlap: usize,
    /// k.
    pub overlap_of: usize,
    /// Spearman's rank correlation, equal values sharing their mean rank.
    pub rank_correlation: f64,
    /// Pearson's correlation.
    pub correlation: f64,
    /// KL divergence of the subject's softmax from the expected one, in nats.
    pub kl_divergence: f64,
}

impl RowAgreement {
    /// Whether the two rows say different things altogether: a divergence of whole nats, or
    /// another choice with fewer than half of the k best in common.
    #[must_use]
    pub fn is_absurd(&self) -> bool {
        self.kl_divergence > ABSURD_DIVERGENCE
            || (self.argmax_got != self.argmax_expected && 2 * self.overlap < self.overlap_of)
    }
}

/// Two sets of logits \[rows, vocabulary\].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogitComparison {
    /// Whether the record passes and no row fails.
    pub passed: bool,
    /// The record over all values.
    pub record: Comparison,
    /// Largest difference relative to the largest expected absolute value.
    pub relative_to_largest: f64,
    /// Rows; empty when there is a problem.
    pub rows: Vec<RowAgreement>,
}

impl LogitComparison {
    /// Rows whose argmax is the same.
    #[must_use]
    pub fn same_argmax(&self) -> usize {
        let same = |row: &&RowAgreement| row.argmax_got == row.argmax_expected;
        self.rows.iter().filter(same).count()
    }

    /// The first row that says something else altogether.
    #[must_use]
    pub fn first_absurd(&self) -> Option<&RowAgreement> {
        self.rows.iter().find(|row| row.is_absurd())
    }

    /// Ids as they were before some were left out: `kept` are those of the rows compared.
    fn renumber(&mut self, kept: &[usize]) {
        for row in &mut self.rows {
            row.argmax_got = kept[row.argmax_got];
            row.argmax_expected = kept[row.argmax_expected];
        }
        let record = &mut self.record;
        for extreme in [&mut record.max_abs, &mut record.max_rel, &mut record.first_mismatch] {
            if let Some([_, id]) = extreme.as_mut().map(|extreme| extreme.index.as_mut_slice()) {
                *id = kept[*id];
            }
        }
    }

    /// The first row in which the argmax differs by more than a near tie.
    #[must_use]
    pub fn first_other_choice(&self) -> Option<&RowAgreement> {
        let other = |row: &&RowAgreement| row.argmax_got != row.argmax_expected && !row.near_tie;
        self.rows.iter().find(other)
    }
}

/// Logits without the masked ids, row-major in rows of the ids that are left; and those ids.
#[must_use]
pub fn unmasked(
    values: &[f64],
    vocabulary: usize,
    mask: &BTreeSet<usize>,
) -> (Vec<f64>, Vec<usize>) {
    let kept: Vec<usize> = (0..vocabulary).filter(|id| !mask.contains(id)).collect();
    let rows = values.chunks(vocabulary.max(1));
    (rows.flat_map(|row| kept.iter().map(|&id| row[id])).collect(), kept)
}

/// Compares logits, row-major in rows of the `kept` ids of a vocabulary.
#[must_use]
pub fn compare_logits(
    got: &[f64],
    expected: &[f64],
    kept: &[usize],
    tolerance: &Tolerance,
) -> LogitComparison {
    let width = kept.len();
    let rows = expected.len() / width.max(1);
    let mut record = compare(got, expected, &[rows, width], tolerance);
    if record.problem.is_none() {
        record.problem =
            flat_row(got, width, "got").or_else(|| flat_row(expected, width, "expected"));
    }
    if record.problem.is_some() {
        record.passed = false;
        return LogitComparison {
            passed: false,
            record,
            relative_to_largest: f64::NAN,
            rows: Vec::new(),
        };
    }
    // Two evaluations within the tolerance may choose differently where the expected logits are
    // no further apart than both errors together.
    let allowed = |at: usize| match tolerance {
        Tolerance::Absolute(tolerance) => *tolerance,
        Tolerance::PerElement(bounds) => bounds[at],
        Tolerance::Mixed { .. } | Tolerance::Bits => 0.0,
    };
    let pairs = got.chunks(width).zip(expected.chunks(width));
    let rows: Vec<RowAgreement> = pairs
        .enumerate()
        .map(|(row, (got, expected))| {
            agreement(row, got, expected, &|id| allowed(row * width + id))
        })
        .collect();
    let largest = expected.iter().map(|value| value.abs()).fold(0.0, f64::max);
    let worst = record.max_abs.as_ref().map_or(0.0, |worst| worst.difference);
    let mut comparison =
        LogitComparison { passed: false, record, relative_to_largest: worst / largest, rows };
    comparison.passed = comparison.record.passed
        && comparison.first_other_choice().is_none()
        && comparison.first_absurd().is_none();
    comparison.renumber(kept);
    comparison
}

/// Says which row holds one value only, if there is one.
fn flat_row(values: &[f64], vocabulary: usize, side: &str) -> Option<String> {
    let flat = |row: &[f64]| row.len() > 1 && row.iter().all(|value| *value == row[0]);
    let (row, value) = values
        .chunks(vocabulary)
        .enumerate()
        .find_map(|(index, row)| flat(row).then_some((index, row[0])))?;
    Some(format!("{side}: all {vocabulary} logits of row {row} are {value}"))
}

fn agreement(
    row: usize,
    got: &[f64],
    expected: &[f64],
    allowed: &dyn Fn(usize) -> f64,
) -> RowAgreement {
    let (best_got, best_expected) = (largest_first(got), largest_first(expected));
    let overlap_of = OVERLAP.min(expected.len());
    let chosen = &best_got[..overlap_of];
    let shared = best_expected[..overlap_of].iter().filter(|id| chosen.contains(id));
    let (argmax_got, argmax_expected) = (best_got[0], best_expected[0]);
    let gap = expected[argmax_expected] - expected[argmax_got];
    RowAgreement {
        row,
        argmax_got,
        argmax_expected,
        top_got: got[argmax_got],
        top_expected: expected[argmax_expected],
        gap,
        near_tie: argmax_got != argmax_expected
            && gap <= allowed(argmax_got) + allowed(argmax_expected),
        overlap: shared.count(),
        overlap_of,
        rank_correlation: correlation(&ranks(got, &best_got), &ranks(expected, &best_expected)),
        correlation: correlation(got, expected),
        kl_divergence: kl_divergence(got, expected),
    }
}

/// Ids by falling value, the lower id first among equals.
fn largest_first(values: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..values.len()).collect();
    ids.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    ids
}

/// The rank of each id, equal values sharing the mean of theirs.
fn ranks(values: &[f64], order: &[usize]) -> Vec<f64> {
    let mut ranks = vec![0.0; values.len()];
    let mut rank = 0;
    for equals in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let mean = rank as f64 + (equals.len() - 1) as f64 / 2.0;
        equals.iter().for_each(|&id| ranks[id] = mean);
        rank += equals.len();
    }
    ranks
}

/// Pearson's correlation, 0 when one side does not vary.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let count = a.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    let product = (aa * bb).sqrt();
    if product > 0.0 { ab / product } else { 0.0 }
}

/// Σ p·(ln p − ln q), p the expected softmax, q the subject's. Never below 0 but for rounding,
/// which is cut off.
fn kl_divergence(got: &[f64], expected: &[f64]) -> f64 {
    let (log_q, log_p) = (log_softmax(got), log_softmax(expected));
    let terms = log_p.iter().zip(&log_q).map(|(p, q)| p.exp() * (p - q));
    terms.sum::<f64>().max(0.0)
}

fn log_softmax(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values.iter().map(|value| (value - largest).exp()).sum();
    let log_sum = largest + sum.ln();
    values.iter().map(|value| value - log_sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(got: &[f64], expected: &[f64], tolerance: f64) -> LogitComparison {
        let kept: Vec<usize> = (0..expected.len()).collect();
        compare_logits(got, expected, &kept, &Tolerance::Absolute(tolerance))
    }

    /// Numbers worked out by hand: two values exchanged out of four.
    #[test]
    fn a_row_with_two_values_exchanged() {
        let comparison = within(&[4.0, 3.0, 1.0, 2.0], &[4.0, 3.0, 2.0, 1.0], 1.0);
        let row = &comparison.rows[0];
        assert!(comparison.passed);
        assert_eq!((row.argmax_got, row.argmax_expected, row.overlap), (0, 0, 4));
        // 1 − 6·Σd²/(n(n²−1)) = 1 − 6·2/60
        assert!((row.rank_correlation - 0.8).abs() < 1e-15);
        assert!((row.correlation - 0.8).abs() < 1e-15);
        // (e² − e)/(e⁴ + e³ + e² + e), the difference of the two log values being ±1
        let e = 1f64.exp();
        let by_hand = (e.powi(2) - e) / (e.powi(4) + e.powi(3) + e.powi(2) + e);
        assert!((row.kl_divergence - by_hand).abs() < 1e-15);
        assert_eq!(comparison.relative_to_largest, 0.25);
    }

    /// Within the tolerance the choice may differ, and is then reported as a near tie.
    #[test]
    fn another_choice_passes_only_as_a_near_tie() {
        let expected = [1.0, 1.15, 0.0];
        let near = within(&[1.1, 1.05, 0.0], &expected, 0.1 + 1e-12);
        assert!(near.passed && near.rows[0].near_tie);
        assert_eq!(near.same_argmax(), 0);
        let far = within(&[1.2, 1.15, 0.0], &expected, 0.01);
        assert!(!far.passed && far.first_other_choice().is_some());
    }

    /// Equal zeros on both sides have no difference at all and mean nothing.
    #[test]
    fn a_row_of_one_value_never_passes() {
        let zeros = [0.0; 4];
        for (got, expected) in [(zeros, zeros), ([1.0, 2.0, 3.0, 4.0], zeros)] {
            let comparison = within(&got, &expected, 100.0);
            assert!(!comparison.passed, "{got:?} {expected:?}");
            assert!(comparison.record.problem.unwrap().contains("all 4 logits"));
        }
    }

    /// What the tolerance allows is no excuse for a row that says something else.
    #[test]
    fn unrelated_rows_never_pass() {
        let expected: Vec<f64> = (0..40).map(|i| f64::from(i * 7 % 40) / 4.0).collect();
        let got: Vec<f64> = (0..40).map(|i| f64::from(i * 11 % 40) / 4.0).collect();
        let comparison = within(&got, &expected, 1e30);
        assert!(comparison.record.passed && !comparison.passed);
        assert!(comparison.first_absurd().is_some());
    }

    /// Masked ids are left out of every number, and the others keep their ids.
    #[test]
    fn masked_ids_decide_nothing() {
        let mask = BTreeSet::from([1]);
        let (got, kept) = unmasked(&[1.0, -1e9, 2.0, 4.0, -1e9, 0.5], 3, &mask);
        let (expected, _) = unmasked(&[1.0, -1e9, 2.5, 4.0, -1e9, 0.5], 3, &mask);
        assert_eq!((got.as_slice(), kept.as_slice()), (&[1.0, 2.0, 4.0, 0.5][..], &[0, 2][..]));
        let comparison = compare_logits(&got, &expected, &kept, &Tolerance::Absolute(0.1));
        assert!(!comparison.passed);
        assert_eq!(comparison.record.max_abs.unwrap().index, [0, 2]);
        assert_eq!(comparison.rows[0].argmax_got, 2);
    }

    /// Equal values share a rank; without that, two rows with the same ties in another order of
    /// ids would seem to disagree.
    #[test]
    fn equal_values_share_their_rank() {
        let values = [2.0, 2.0, 1.0, 3.0];
        assert_eq!(ranks(&values, &largest_first(&values)), [1.5, 1.5, 3.0, 0.0]);
    }
}
