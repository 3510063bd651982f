//! The input of a layer: the running sum before it and the banks, one row per token.
//!
//! Synthetic input has magnitudes that cover those of real layers: |h| grows from 0.1 to above 100
//! with depth, every bank keeps the size of the layer that pushed it, and tokens differ from one
//! another by powers of two. All numbers are f32, so that both sides read the same.

use k3_core::random::SplitMix64;
use k3_reference::{Residual, Rows};

/// RMS of the synthetic running sum before the first layer.
const FIRST_RMS: f64 = 0.05;

/// By what the RMS has grown before the last layer.
const GROWTH: f64 = 2000.0;

/// Synthetic input of layer `layer` of `layers`, `rows` tokens of width `width`. `block` is
/// `attn_res_block_size`. The bank that layer k·block pushed is the same in every later layer.
#[must_use]
pub fn synthetic(
    seed: u64,
    layer: usize,
    layers: usize,
    block: usize,
    [rows, width]: [usize; 2],
) -> Residual {
    // What is banked at layer k·block is the running sum before it.
    let pushed = (0..layer).step_by(block);
    let banks = pushed.map(|at| sum_before(seed, at, layers, [rows, width]));
    Residual { banks: banks.collect(), sum: sum_before(seed, layer, layers, [rows, width]) }
}

fn sum_before(seed: u64, layer: usize, layers: usize, [rows, width]: [usize; 2]) -> Rows {
    let depth = layer as f64 / (layers.max(2) - 1) as f64;
    let rms = FIRST_RMS * GROWTH.powf(depth);
    let mut draws = SplitMix64::new(seed ^ (layer as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    Rows::from_shape_fn((rows, width), |(token, _)| {
        let scale = rms * 2f64.powi((token % 4) as i32 - 2);
        f64::from((scale * bell(&mut draws)) as f32)
    })
}

/// Four uniform numbers added up: near enough to a normal one of variance 1, and the same bits on
/// every machine.
fn bell(draws: &mut SplitMix64) -> f64 {
    let mut uniform = || (draws.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
    (uniform() + uniform() + uniform() + uniform()) * 3f64.sqrt()
}

/// The same stream with every number rounded to f32, as an f32 engine is handed it.
#[must_use]
pub fn in_f32(residual: &Residual) -> Residual {
    let round = |rows: &Rows| rows.mapv(|v| f64::from(v as f32));
    Residual { sum: round(&residual.sum), banks: residual.banks.iter().map(round).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All layers alike would never show an ε or a rounding that matters at one end only.
    #[test]
    fn sizes_sweep_from_a_tenth_to_above_a_hundred() {
        let largest = |layer| {
            let residual = synthetic(1, layer, 93, 12, [8, 64]);
            assert_eq!(residual.banks.len(), layer.div_ceil(12));
            let values = residual.sum;
            assert!(values.iter().all(|v| f64::from(*v as f32) == *v));
            values.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
        };
        assert!(largest(0) > 0.1 && largest(0) < 1.0, "{}", largest(0));
        assert!(largest(92) > 100.0, "{}", largest(92));
        let (early, late) = (synthetic(1, 13, 93, 12, [8, 64]), synthetic(1, 90, 93, 12, [8, 64]));
        assert_eq!(early.banks[..], late.banks[..2]);
        assert_ne!(synthetic(2, 13, 93, 12, [8, 64]), early);
    }
}
