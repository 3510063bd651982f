//! The comparison record: how far two arrays agree and where they diverge.
//!
//! Every numeric check of the tool yields this record, so that a reader sees the same facts
//! everywhere: how many values, the worst one with its index and both values, how the differences
//! are spread, and the tolerance that would have been required to pass. Unequal lengths, values
//! that are not finite and empty comparisons never pass, whatever the tolerance.

use std::cmp::Ordering;

use serde::Serialize;

/// The tolerance of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Tolerance {
    /// Equal bits (as f64; +0 and −0 differ).
    Bits,
    /// |got − expected| at most this.
    Absolute(f64),
    /// |got − expected| at most `absolute + relative · |expected|`.
    Mixed {
        /// Absolute part.
        absolute: f64,
        /// Part relative to the expected value.
        relative: f64,
    },
    /// |got − expected| at most the bound of the element; one bound per element.
    PerElement(Vec<f64>),
}

impl Tolerance {
    fn allowance(&self, index: usize, expected: f64) -> f64 {
        match self {
            Self::Bits => 0.0,
            Self::Absolute(absolute) => *absolute,
            Self::Mixed { absolute, relative } => absolute + relative * expected.abs(),
            Self::PerElement(bounds) => bounds[index],
        }
    }

    /// How the tolerance is written in a report.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Bits => "equal bits".to_owned(),
            Self::Absolute(absolute) => format!("{absolute:.2e} abs"),
            Self::Mixed { absolute, relative } => {
                format!("{absolute:.2e} abs + {relative:.2e} rel")
            }
            Self::PerElement(bounds) => {
                let largest = bounds.iter().copied().fold(0.0, f64::max);
                format!("a bound per element, largest {largest:.2e}")
            }
        }
    }
}

/// One notable element, with its index and both values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Extreme {
    /// The difference (absolute, or relative to the expected value).
    pub difference: f64,
    /// Index per dimension (token, head, channel, …).
    pub index: Vec<usize>,
    /// The subject's value.
    pub got: f64,
    /// The value it should have.
    pub expected: f64,
}

/// How many values of one side are not numbers or not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct NonFinite {
    /// NaN.
    pub nan: usize,
    /// +∞ and −∞.
    pub infinite: usize,
}

impl NonFinite {
    fn count(values: &[f64]) -> Self {
        let nan = values.iter().filter(|v| v.is_nan()).count();
        let infinite = values.iter().filter(|v| v.is_infinite()).count();
        Self { nan, infinite }
    }

    fn any(self) -> bool {
        self.nan + self.infinite > 0
    }
}

/// The record of one comparison. Differences are `got − expected`, absolute unless said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Whether every element is within its tolerance and no other problem was found.
    pub passed: bool,
    /// What forbids a pass whatever the differences are: lengths, emptiness, values not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Elements compared.
    pub count: usize,
    /// Elements beyond their tolerance.
    pub mismatches: usize,
    /// The largest absolute difference.
    pub max_abs: Option<Extreme>,
    /// The largest relative difference, over elements whose expected value is not zero.
    pub max_rel: Option<Extreme>,
    /// Mean absolute difference.
    pub mean_abs: f64,
    /// Median absolute difference.
    pub p50_abs: f64,
    /// 99.9th percentile of the absolute differences (nearest rank).
    pub p99_9_abs: f64,
    /// Cosine of the angle between the two arrays, absent when one is all zero.
    pub cosine: Option<f64>,
    /// Largest distance in units in the last place of f32.
    pub max_ulp_f32: u64,
    /// The tolerance in words.
    #[serde(rename = "budget")]
    pub tolerance: String,
    /// The tolerance that would have been required: ratio × the worst element's allowance.
    pub required: f64,
    /// Largest difference over allowance; at most 1 passes. Absent for a bits tolerance.
    pub ratio: Option<f64>,
    /// Index of the first element beyond its tolerance.
    pub first_mismatch: Option<Extreme>,
    /// Values of the subject that are not finite.
    pub not_finite_got: NonFinite,
    /// Expected values that are not finite.
    pub not_finite_expected: NonFinite,
}

/// Compares `got` with `expected`, both row-major in `shape`.
#[must_use]
pub fn compare(
    got: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: &Tolerance,
) -> Comparison {
    let mut record = Comparison {
        passed: false,
        problem: None,
        count: got.len().min(expected.len()),
        mismatches: 0,
        max_abs: None,
        max_rel: None,
        mean_abs: 0.0,
        p50_abs: 0.0,
        p99_9_abs: 0.0,
        cosine: None,
        max_ulp_f32: 0,
        tolerance: tolerance.describe(),
        required: 0.0,
        ratio: None,
        first_mismatch: None,
        not_finite_got: NonFinite::count(got),
        not_finite_expected: NonFinite::count(expected),
    };
    record.problem = obstacle(got, expected, shape, tolerance, &record);
    if record.problem.is_some() {
        return record;
    }
    scan_elements(&mut record, got, expected, shape, tolerance);
    spread(&mut record, got, expected);
    record.cosine = cosine(got, expected);
    record.passed = record.mismatches == 0;
    record
}

/// What keeps the two arrays from being compared at all.
fn obstacle(
    got: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: &Tolerance,
    record: &Comparison,
) -> Option<String> {
    let volume: usize = shape.iter().product();
    if got.len() != expected.len() {
        return Some(format!("lengths differ: got {}, expected {}", got.len(), expected.len()));
    }
    if got.is_empty() {
        return Some("nothing to compare: both sides are empty".to_owned());
    }
    if volume != got.len() {
        return Some(format!("shape {shape:?} does not hold {} values", got.len()));
    }
    if let Tolerance::PerElement(bounds) = tolerance {
        if bounds.len() != got.len() {
            return Some(format!("{} bounds for {} values", bounds.len(), got.len()));
        }
        if let Some(bad) = bounds.iter().find(|b| b.is_nan() || **b < 0.0) {
            return Some(format!("a bound is {bad}"));
        }
    }
    let (left, right) = (record.not_finite_got, record.not_finite_expected);
    (left.any() || right.any()).then(|| {
        format!(
            "values that are not finite: got {} NaN and {} inf, expected {} NaN and {} inf",
            left.nan, left.infinite, right.nan, right.infinite
        )
    })
}

fn scan_elements(
    record: &mut Comparison,
    got: &[f64],
    expected: &[f64],
    shape: &[usize],
    tolerance: &Tolerance,
) {
    let (mut worst_ratio, mut worst_abs, mut worst_rel) = (0.0_f64, -1.0_f64, -1.0_f64);
    let (mut at_abs, mut at_rel, mut first) = (0, None, None);
    for (index, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let difference = (g - e).abs();
        let allowance = tolerance.allowance(index, e);
        let beyond = match tolerance {
            Tolerance::Bits => g.to_bits() != e.to_bits(),
            _ => difference > allowance,
        };
        if beyond {
            record.mismatches += 1;
            first.get_or_insert(index);
        }
        if difference > worst_abs {
            (worst_abs, at_abs) = (difference, index);
        }
        if e != 0.0 && difference / e.abs() > worst_rel {
            (worst_rel, at_rel) = (difference / e.abs(), Some(index));
        }
        let ratio = if difference == 0.0 { 0.0 } else { difference / allowance };
        // The quotient of two neighbours may round to 1.
        let ratio = if beyond { ratio.max(1.0_f64.next_up()) } else { ratio };
        // Beyond a tolerance of nothing every ratio is infinite: the largest difference decides.
        if ratio > worst_ratio || (ratio == worst_ratio && difference > record.required) {
            worst_ratio = ratio;
            record.required = difference;
        }
        record.max_ulp_f32 = record.max_ulp_f32.max(ulp_distance_f32(g, e));
    }
    let extreme = |index: usize, difference: f64| Extreme {
        difference,
        index: unravel(index, shape),
        got: got[index],
        expected: expected[index],
    };
    record.max_abs = Some(extreme(at_abs, worst_abs));
    record.max_rel = at_rel.map(|index| extreme(index, worst_rel));
    record.first_mismatch = first.map(|index| extreme(index, (got[index] - expected[index]).abs()));
    record.ratio = (*tolerance != Tolerance::Bits).then_some(worst_ratio);
}

fn spread(record: &mut Comparison, got: &[f64], expected: &[f64]) {
    let mut differences: Vec<f64> = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).collect();
    record.mean_abs = differences.iter().sum::<f64>() / differences.len() as f64;
    differences.sort_by(f64::total_cmp);
    let nearest_rank = |share: f64| {
        let rank = (share * differences.len() as f64).ceil() as usize;
        differences[rank.clamp(1, differences.len()) - 1]
    };
    record.p50_abs = nearest_rank(0.5);
    record.p99_9_abs = nearest_rank(0.999);
}

fn cosine(got: &[f64], expected: &[f64]) -> Option<f64> {
    let dot: f64 = got.iter().zip(expected).map(|(g, e)| g * e).sum();
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let product = norm(got) * norm(expected);
    (product > 0.0).then_some(dot / product)
}

/// Index per dimension of a row-major position.
fn unravel(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        *place = position % extent;
        position /= extent;
    }
    index
}

/// Distance in units in the last place of f32 after rounding both values; 0 for equal values, and
/// +0 equals −0.
fn ulp_distance_f32(got: f64, expected: f64) -> u64 {
    let ordered = |value: f64| {
        let bits = i64::from((value as f32).to_bits() as i32);
        if bits < 0 { i64::from(i32::MIN) - bits } else { bits }
    };
    ordered(got).abs_diff(ordered(expected))
}

/// A ratio to a tolerance in three digits, rounded to the nearest that lies on its side of 1: what
/// passes must not read as what fails, nor the other way round.
#[must_use]
pub fn ratio_text(ratio: f64) -> String {
    let text = format!("{ratio:.2e}");
    match (text.as_str(), ratio.partial_cmp(&1.0)) {
        ("1.00e0", Some(Ordering::Less)) => "9.99e-1".to_owned(),
        ("1.00e0", Some(Ordering::Greater)) => "1.01e0".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    /// Just under 1, at 1, just above, and what has nothing to do with 1.
    #[test]
    fn a_ratio_is_printed_on_its_side_of_the_tolerance() {
        for (ratio, text) in [
            (0.994, "9.94e-1"),
            (0.999_9, "9.99e-1"),
            (1.0 - f64::EPSILON, "9.99e-1"),
            (1.0, "1.00e0"),
            (1.0 + f64::EPSILON, "1.01e0"),
            (1.004, "1.01e0"),
            (1.006, "1.01e0"),
            (0.0, "0.00e0"),
            (0.000_999_96, "1.00e-3"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(ratio_text(ratio), text);
        }
    }

    use super::*;

    fn absolute(got: &[f64], expected: &[f64], tolerance: f64) -> Comparison {
        compare(got, expected, &[got.len()], &Tolerance::Absolute(tolerance))
    }

    /// The worst element must be found with its place in the tensor, not in the flat array.
    #[test]
    fn the_worst_element_is_named_by_dimension() {
        let expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut got = expected;
        got[4] += 0.5;
        got[1] -= 0.25;
        let record = compare(&got, &expected, &[2, 3], &Tolerance::Absolute(0.1));
        let worst = record.max_abs.clone().unwrap();
        assert_eq!((worst.index, worst.got, worst.expected), (vec![1, 1], 5.5, 5.0));
        assert_eq!(record.max_rel.clone().unwrap().index, vec![0, 1]);
        assert_eq!(record.first_mismatch.clone().unwrap().index, vec![0, 1]);
        assert_eq!((record.mismatches, record.passed), (2, false));
        assert_eq!(record.required, 0.5);
        assert!((record.ratio.unwrap() - 5.0).abs() < 1e-12);
    }

    /// An empty or lopsided comparison that passed would be a gate that cannot fail.
    #[test]
    fn nothing_unequal_or_not_finite_ever_passes() {
        for (got, expected) in [
            (vec![], vec![]),
            (vec![1.0], vec![1.0, 2.0]),
            (vec![f64::NAN], vec![f64::NAN]),
            (vec![f64::INFINITY], vec![f64::INFINITY]),
            (vec![1.0], vec![f64::NAN]),
        ] {
            let record = absolute(&got, &expected, f64::MAX);
            assert!(!record.passed && record.problem.is_some(), "{got:?} {expected:?}");
        }
        let bounds = Tolerance::PerElement(vec![f64::NAN]);
        assert!(!compare(&[1.0], &[1.0], &[1], &bounds).passed);
    }

    /// A zero tolerance on a zero difference is 0/0 unless it is written down as a pass.
    #[test]
    fn equal_values_pass_a_zero_tolerance() {
        let record = absolute(&[1.0, -2.0], &[1.0, -2.0], 0.0);
        assert!(record.passed);
        assert_eq!(record.ratio, Some(0.0));
    }

    /// Bits are stricter than values: the two zeros differ.
    #[test]
    fn bits_tell_the_zeros_apart() {
        assert!(!compare(&[0.0], &[-0.0], &[1], &Tolerance::Bits).passed);
        assert!(compare(&[0.5], &[0.5], &[1], &Tolerance::Bits).passed);
    }

    /// 1 and the next f32 are one unit apart; the two sides of zero meet at zero.
    #[test]
    fn ulps_count_representable_f32_steps() {
        let next = f64::from(f32::from_bits(1.0_f32.to_bits() + 1));
        assert_eq!(absolute(&[next], &[1.0], 1.0).max_ulp_f32, 1);
        let tiny = f64::from(f32::from_bits(1));
        assert_eq!(absolute(&[tiny], &[-tiny], 1.0).max_ulp_f32, 2);
        assert_eq!(absolute(&[0.0], &[-0.0], 1.0).max_ulp_f32, 0);
    }

    /// Percentiles by nearest rank on a known list.
    #[test]
    fn the_spread_of_a_known_list() {
        let expected = vec![0.0; 1000];
        let got: Vec<f64> = (1..=1000).map(f64::from).collect();
        let record = absolute(&got, &expected, 1e9);
        assert_eq!((record.p50_abs, record.p99_9_abs), (500.0, 999.0));
        assert_eq!(record.mean_abs, 500.5);
        assert_eq!(record.cosine, None);
    }
}
