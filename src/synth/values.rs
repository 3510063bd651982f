//! The bytes of a tensor, from any place on.
//!
//! Draw i of a tensor is number i of the SplitMix64 stream whose state is the FNV-1a hash of
//! `seed/name`. Integers all the way to one multiplication and one addition in f32 with the numbers
//! of the tensor's rule, each rounded once, then one rounding to BF16: the same bytes everywhere.
//! The two tensors of an MXFP4 matrix come out of one stream, named without `_packed` and `_scale`,
//! and a second one for the width of each block.

use super::quantise::{AllZeroBlock, quantise_block};
use super::rules::Rule;
use k3_checkpoint::Dtype;
use k3_core::config::MXFP4_GROUP_COLUMNS;
use k3_core::random::SplitMix64;

/// Standard deviation of `bell`: four even 16-bit numbers, sqrt(4·(2^32 − 1)/12).
const BELL_DEVIATION: f32 = 37_837.227;
/// Mean of the sum of four even 16-bit numbers.
const BELL_MEAN: i32 = 131_070;
/// Widths of MXFP4 blocks are uniform between a half and two, so that scale bytes differ.
const NARROWEST_BLOCK: f32 = 0.5;
const WIDEST_BLOCK: f32 = 2.0;
/// sqrt((2³ − 0.5³)/(3·(2 − 0.5))): the RMS of such widths.
const BLOCK_WIDTH_RMS: f32 = 1.322_876;

/// The stream of a name.
#[must_use]
pub fn stream(seed: u64, name: &str) -> SplitMix64 {
    let text = format!("{seed}/{name}");
    let state = text.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    SplitMix64::new(state)
}

/// So many values are made in one go, in loops plain enough for the compiler's vectors; also the
/// width of a block.
const LANES: usize = MXFP4_GROUP_COLUMNS;

/// Values of mean 0 and deviation [`BELL_DEVIATION`], exact in f32.
#[inline]
fn bells(draws: &mut SplitMix64, out: &mut [f32; LANES]) {
    // Two of the four parts in each half of the word.
    const EVERY_OTHER: u64 = 0x0000_FFFF_0000_FFFF;
    let mut sums = [0_i32; LANES];
    for sum in &mut sums {
        let draw = draws.next_u64();
        let pairs = (draw & EVERY_OTHER) + (draw >> 16 & EVERY_OTHER);
        *sum = (pairs + (pairs >> 32)) as u32 as i32;
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = (sum - BELL_MEAN) as f32;
    }
}

/// Evenly in 0..1, a multiple of 2^-24.
fn even(draw: u64) -> f32 {
    const BITS: u32 = 24;
    (draw >> (u64::BITS - BITS)) as f32 / (1_u32 << BITS) as f32
}

/// Fills `out` with the little-endian elements of a BF16 or F32 tensor from element `first` on.
/// A [`Rule::Quantised`] has no elements of these kinds; its bytes are left alone.
pub fn fill(rule: Rule, dtype: Dtype, from: SplitMix64, first: u64, out: &mut [u8]) {
    let mut draws = from.skip(first);
    match rule {
        Rule::Bell { centre, deviation } => {
            let factor = deviation / BELL_DEVIATION;
            store(dtype, out, |_, values| {
                bells(&mut draws, values);
                for value in values {
                    *value = centre + factor * *value;
                }
            });
        }
        Rule::Even { low, high } => store(dtype, out, |_, values| {
            for value in values {
                *value = low + (high - low) * even(draws.next_u64());
            }
        }),
        Rule::PerHead { heads, low, high } => store(dtype, out, |start, values| {
            for (index, value) in values.iter_mut().enumerate() {
                let drawn = low + (high - low) * even(draws.next_u64());
                let is_padding = first as usize + start + index >= heads;
                *value = if is_padding { 0.0 } else { drawn };
            }
        }),
        Rule::Quantised { .. } => {}
    }
}

/// Stores what `make` makes for the elements from an index on; of the last ones, what fits.
#[inline]
fn store(dtype: Dtype, out: &mut [u8], mut make: impl FnMut(usize, &mut [f32; LANES])) {
    let mut values = [0.0; LANES];
    if dtype == Dtype::Bf16 {
        for (block, places) in out.chunks_mut(2 * LANES).enumerate() {
            make(block * LANES, &mut values);
            for (place, value) in places.as_chunks_mut::<2>().0.iter_mut().zip(&values) {
                *place = nearest_bf16(*value).to_le_bytes();
            }
        }
    } else {
        for (block, places) in out.chunks_mut(4 * LANES).enumerate() {
            make(block * LANES, &mut values);
            for (place, value) in places.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
                *place = value.to_le_bytes();
            }
        }
    }
}

/// The bits of the nearest BF16, ties to even. Weights are finite, so no NaN has to be kept one.
fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

/// An MXFP4 matrix to be drawn.
#[derive(Debug, Clone, Copy)]
pub struct Quantised<'a> {
    /// What the streams start from.
    pub seed: u64,
    /// Name of the matrix, without `_packed` or `_scale`.
    pub name: &'a str,
    /// Columns; whole blocks.
    pub columns: usize,
    /// Standard deviation of the values.
    pub deviation: f32,
}

impl Quantised<'_> {
    /// Fills codes \[rows, columns/2\] and scales \[rows, columns/32\] from row `first_row` on.
    ///
    /// # Errors
    /// Row and group of a block that has no scale.
    pub fn fill(
        &self,
        first_row: usize,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), (usize, AllZeroBlock)> {
        let groups = self.columns / MXFP4_GROUP_COLUMNS;
        let (first, first_block) = (first_row * self.columns, first_row * groups);
        let mut draws = stream(self.seed, self.name).skip(first as u64);
        let widths = format!("{}/block widths", self.name);
        let mut widths = stream(self.seed, &widths).skip(first_block as u64);
        let unit = self.deviation / BELL_DEVIATION / BLOCK_WIDTH_RMS;
        let mut values = [0.0; LANES];
        let places = codes.as_chunks_mut::<{ MXFP4_GROUP_COLUMNS / 2 }>().0;
        for (index, (codes, scale)) in places.iter_mut().zip(scales).enumerate() {
            let width = (WIDEST_BLOCK - NARROWEST_BLOCK) * even(widths.next_u64());
            let factor = unit * (NARROWEST_BLOCK + width);
            bells(&mut draws, &mut values);
            for value in &mut values {
                *value *= factor;
            }
            let Some(block) = quantise_block(&values) else {
                let group = index % groups;
                return Err((first_row + index / groups, AllZeroBlock { group }));
            };
            (*codes, *scale) = block;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use k3_checkpoint::mxfp4::{ExpertMatrix, MatrixPlace, decode_matrix};

    const RULE: Rule = Rule::Bell { centre: 1.0, deviation: 0.25 };

    /// A chunk must not depend on where the one before it ended.
    #[test]
    fn a_tensor_can_be_entered_anywhere() {
        let from = || stream(7, "a.weight");
        for (dtype, bytes) in [(Dtype::Bf16, 2), (Dtype::F32, 4)] {
            let per_head = Rule::PerHead { heads: 5, low: -1.0, high: 1.0 };
            for rule in [RULE, per_head] {
                let mut whole = vec![0; 100 * bytes];
                fill(rule, dtype, from(), 0, &mut whole);
                for cut in [0, 1, 3, 64, 99] {
                    let mut tail = vec![0; (100 - cut) * bytes];
                    fill(rule, dtype, from(), cut as u64, &mut tail);
                    assert_eq!(tail, whole[cut * bytes..], "{rule:?} from {cut}");
                }
            }
        }
        let matrix = Quantised { seed: 7, name: "a.weight", columns: 64, deviation: 1.0 };
        let (mut codes, mut scales) = (vec![0; 8 * 32], vec![0; 8 * 2]);
        matrix.fill(0, &mut codes, &mut scales).expect("no zeros");
        let (mut tail, mut tail_scales) = (vec![0; 3 * 32], vec![0; 3 * 2]);
        matrix.fill(5, &mut tail, &mut tail_scales).expect("no zeros");
        assert_eq!((&tail[..], &tail_scales[..]), (&codes[160..], &scales[10..]));
    }

    /// A rounding of our own against the one of the crate.
    #[test]
    fn bf16_is_rounded_to_nearest_even() {
        let mut draws = SplitMix64::new(3);
        let ties = [
            1.0_f32,
            f32::from_bits(0x3F80_8000),
            f32::from_bits(0x3F81_8000),
            -0.0,
            0.0,
            3.3e38,
            1e-40,
        ];
        let random = (0..10_000).map(|_| f32::from_bits(draws.next_u64() as u32));
        for value in ties.into_iter().chain(random.filter(|value| value.is_finite())) {
            let expected = half::bf16::from_f32(value).to_bits();
            assert_eq!(nearest_bf16(value), expected, "{value:e}");
        }
    }

    /// Mean and deviation as the rule says; another name or seed, other numbers.
    #[test]
    fn values_are_distributed_as_the_rule_says() {
        let values = |seed, name| -> Vec<f64> {
            let mut bytes = vec![0; 4 * 100_000];
            fill(RULE, Dtype::F32, stream(seed, name), 0, &mut bytes);
            let words = bytes.as_chunks::<4>().0;
            words.iter().map(|w| f64::from(f32::from_le_bytes(*w))).collect()
        };
        let all = values(1, "a");
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let square = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64;
        // The standard errors are 0.25/√100000 = 0.0008 and 0.0006; four of them.
        assert!((mean - 1.0).abs() < 0.0032, "{mean}");
        assert!((square.sqrt() - 0.25).abs() < 0.0024, "{square}");
        for other in [values(2, "a"), values(1, "b")] {
            let equal = all.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(equal < 100, "{equal} of {} equal", all.len());
        }
    }

    /// B03: a packer that makes everything zero, or four times too small, still looks like bytes.
    #[test]
    fn b03_a_quantised_matrix_comes_back_with_its_deviation() {
        let (rows, columns) = (512, 256);
        let matrix = Quantised { seed: 1, name: "w", columns, deviation: 0.02 };
        let (mut codes, mut scales) = (vec![0; rows * columns / 2], vec![0; rows * columns / 32]);
        matrix.fill(0, &mut codes, &mut scales).expect("no zeros");
        let place = MatrixPlace { layer: 0, expert: 0, matrix: ExpertMatrix::Gate };
        let mut values = vec![0.0; rows * columns];
        decode_matrix(place, (rows, columns), &codes, &scales, &mut values).expect("decodes");
        let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        // Rounding to codes moves the deviation by a few per cent, never by a factor.
        assert!((square.sqrt() / 0.02 - 1.0).abs() < 0.05, "{}", square.sqrt());
        let zeros = values.iter().filter(|value| **value == 0.0).count();
        assert!(zeros * 10 < values.len(), "{zeros} zeros of {}", values.len());
        let mut bytes: BTreeMap<u8, usize> = BTreeMap::new();
        for scale in scales {
            *bytes.entry(scale).or_default() += 1;
        }
        let common = bytes.values().filter(|count| **count > 100).count();
        assert!(common >= 3, "{bytes:?}");
    }
}
