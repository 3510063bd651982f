//! The row product (A2, A3): a weight row or a cached row with a vector of activations.
//!
//! These are the scalar definitions, one loop per weight type, all with the same sixteen lanes.
//! They return the f64 sum BEFORE its rounding, because with ordinary data another lane count or
//! fold changes no f32 bit: only the unrounded sum tells right from wrong.

use super::contract::{LANES, fold_lanes};
use super::{bf16, mxfp4};

/// One row of weights, or of the latent cache, in the type it is stored in.
#[derive(Debug, Clone, Copy)]
pub enum Row<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// BF16 bits.
    Bf16(&'a [u16]),
    /// Packed codes \[n/2\] and scale bytes \[n/32\].
    Mxfp4 {
        /// Two codes a byte, low nibble first.
        packed: &'a [u8],
        /// One byte per 32 columns.
        scales: &'a [u8],
    },
}

impl Row<'_> {
    /// Number of columns n.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::F32(row) => row.len(),
            Self::Bf16(row) => row.len(),
            Self::Mxfp4 { packed, .. } => packed.len() * 2,
        }
    }

    /// The exact value (A1) of one column.
    #[inline]
    #[must_use]
    pub fn value(&self, column: usize) -> f64 {
        match self {
            Self::F32(row) => f64::from(row[column]),
            Self::Bf16(row) => f64::from(bf16::widen(row[column])),
            Self::Mxfp4 { packed, scales } => {
                mxfp4::CODE_VALUES[usize::from(mxfp4::code(packed, column))]
                    * mxfp4::scale_value(scales[column / mxfp4::GROUP_COLUMNS])
            }
        }
    }
}

/// The exact values (A1) of a row.
pub fn widen(row: Row<'_>, out: &mut [f64]) {
    for (column, out) in out.iter_mut().enumerate() {
        *out = row.value(column);
    }
}

/// Σ wᵢ·xᵢ by the row rule, before rounding. `x` has as many elements as the row has columns.
#[inline(always)]
#[must_use]
pub fn row_sum(row: Row<'_>, x: &[f32]) -> f64 {
    assert_eq!(row.columns(), x.len(), "row product of unequal lengths");
    match row {
        Row::F32(row) => row_sum_f32(row, x),
        Row::Bf16(row) => row_sum_bf16(row, x),
        Row::Mxfp4 { packed, scales } => row_sum_mxfp4(packed, scales, x),
    }
}

/// The row rule for f32 rows (norms, scores, F32 weights).
#[inline(always)]
#[must_use]
pub fn row_sum_f32(row: &[f32], x: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (row_blocks, row_tail) = row.as_chunks::<LANES>();
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in row_blocks.iter().zip(x_blocks) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(w[lane]) * f64::from(x[lane]);
        }
    }
    for ((lane, w), x) in lanes.iter_mut().zip(row_tail).zip(x_tail) {
        *lane += f64::from(*w) * f64::from(*x);
    }
    fold_lanes(lanes)
}

/// The row rule for BF16 rows.
#[inline(always)]
#[must_use]
pub fn row_sum_bf16(row: &[u16], x: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (row_blocks, row_tail) = row.as_chunks::<LANES>();
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in row_blocks.iter().zip(x_blocks) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(bf16::widen(w[lane])) * f64::from(x[lane]);
        }
    }
    for ((lane, w), x) in lanes.iter_mut().zip(row_tail).zip(x_tail) {
        *lane += f64::from(bf16::widen(*w)) * f64::from(*x);
    }
    fold_lanes(lanes)
}

/// The row rule for MXFP4 rows: each weight is formed exactly in f64, then multiplied.
#[must_use]
pub fn row_sum_mxfp4(packed: &[u8], scales: &[u8], x: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let groups = packed.chunks(mxfp4::GROUP_COLUMNS / 2);
    for ((packed, scale), x) in groups.zip(scales).zip(x.chunks(mxfp4::GROUP_COLUMNS)) {
        let scale = mxfp4::scale_value(*scale);
        for half in 0..2 {
            for lane in 0..LANES {
                let code = mxfp4::code(packed, half * LANES + lane);
                let weight = mxfp4::CODE_VALUES[usize::from(code)] * scale;
                lanes[lane] += weight * f64::from(x[half * LANES + lane]);
            }
        }
    }
    fold_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule written a second time, element by element, for any row type.
    fn plain_sum(row: Row<'_>, x: &[f32]) -> f64 {
        let mut lanes = [0.0; 16];
        for i in 0..x.len() {
            lanes[i % 16] += row.value(i) * f64::from(x[i]);
        }
        let eight: Vec<f64> = (0..8).map(|j| lanes[j] + lanes[j + 8]).collect();
        let four: Vec<f64> = (0..4).map(|j| eight[j] + eight[j + 4]).collect();
        let two = [four[0] + four[2], four[1] + four[3]];
        two[0] + two[1]
    }

    fn pattern(n: usize, seed: u64) -> Vec<u64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 24
        };
        (0..n).map(|_| next()).collect()
    }

    /// Wide exponents, so that the sum before rounding depends on lanes and fold.
    fn wide(n: usize, seed: u64) -> Vec<f32> {
        let value = |r: u64| {
            let exponent = 100 + (r % 50) as u32;
            f32::from_bits(
                (((r >> 8) as u32 & 1) << 31) | exponent << 23 | (r >> 12) as u32 & 0x7F_FFFF,
            )
        };
        pattern(n, seed).into_iter().map(value).collect()
    }

    /// Lane order, fold and tail, for every length up to three blocks.
    #[test]
    fn every_length_follows_the_rule_before_rounding() {
        for n in 0..50 {
            let x = wide(n, 7);
            let w = wide(n, 11);
            let bits: Vec<u16> = w.iter().map(|&value| bf16::round(value)).collect();
            let expected = plain_sum(Row::F32(&w), &x);
            assert_eq!(row_sum(Row::F32(&w), &x).to_bits(), expected.to_bits(), "f32 {n}");
            let expected = plain_sum(Row::Bf16(&bits), &x);
            assert_eq!(row_sum(Row::Bf16(&bits), &x).to_bits(), expected.to_bits(), "bf16 {n}");
        }
    }

    /// B01: a scale byte used as a number, or a small-matrix branch that skipped the decode:
    /// one, two, three groups, fused against decoded, in bits.
    #[test]
    fn b01_fused_mxfp4_equals_decode_then_multiply() {
        for groups in 1..=3 {
            for seed in 0..17 {
                let n = groups * 32;
                let packed: Vec<u8> = pattern(n / 2, seed + 3).iter().map(|&r| r as u8).collect();
                let scales: Vec<u8> =
                    pattern(groups, seed + 5).iter().map(|&r| 90 + (r % 60) as u8).collect();
                let row = Row::Mxfp4 { packed: &packed, scales: &scales };
                let x = wide(n, seed);
                let mut decoded = vec![0.0; n];
                mxfp4::decode_row(&packed, &scales, &mut decoded);
                let narrow: Vec<f32> = decoded.iter().map(|&value| value as f32).collect();
                assert_eq!(row_sum(row, &x).to_bits(), plain_sum(row, &x).to_bits());
                assert_eq!(row_sum(row, &x).to_bits(), row_sum_f32(&narrow, &x).to_bits());
            }
        }
    }

    /// Four values in four lanes whose sum depends on the fold: lanes 0 and 8 cancel first.
    #[test]
    fn lanes_cancel_in_the_order_of_the_fold() {
        let mut w = vec![0.0_f32; 16];
        (w[0], w[8], w[1], w[9]) = (1e30, -1e30, 1.0, 2.0);
        let x = vec![1.0_f32; 16];
        assert_eq!(row_sum_f32(&w, &x), 3.0);
        // In lanes 0 and 1 the large values meet only at the end: the small ones are lost.
        (w[0], w[8], w[1], w[9]) = (1e30, 1.0, -1e30, 2.0);
        assert_eq!(row_sum_f32(&w, &x), 0.0);
    }

    /// Scale 254 with code 6 is beyond f32; scale 0 is below its normal range.
    #[test]
    fn extreme_scales_neither_overflow_nor_vanish() {
        let packed = [0x77_u8; 16];
        let x = [f32::from_bits(1); 32];
        let row = Row::Mxfp4 { packed: &packed, scales: &[254] };
        assert_eq!(row_sum(row, &x), 192.0 * 2.0_f64.powi(127 - 149));
        let row = Row::Mxfp4 { packed: &packed, scales: &[0] };
        assert_eq!(row_sum(row, &x), 192.0 * 2.0_f64.powi(-127 - 149));
    }
}
