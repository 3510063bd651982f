//! RMSNorm and l2norm (A5; N1, K3): the sum of squares by the row rule, the root in f64.

use super::contract::L2_NORM_EPS;
use super::rows::row_sum_f32;
use super::situ;
use super::table::Kernels;

/// 1/√(Σx²/n + ε) in f64 (N1: ε inside the root).
#[must_use]
pub fn inverse_rms(x: &[f32], epsilon: f64) -> f64 {
    1.0 / (row_sum_f32(x, x) / x.len() as f64 + epsilon).sqrt()
}

/// out = f32((x·r)·w): the weight comes after the root, one rounding at the end.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
    let inverse = inverse_rms(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = ((f64::from(*x) * inverse) * f64::from(*weight)) as f32;
    }
}

/// RMSNorm with weight 1, as the residual mix needs it: out = f32(x·r).
pub fn rms_norm_unit(x: &[f32], epsilon: f64, out: &mut [f32]) {
    let inverse = inverse_rms(x, epsilon);
    for (out, x) in out.iter_mut().zip(x) {
        *out = (f64::from(*x) * inverse) as f32;
    }
}

/// KDA's l2norm in place (K3): x = f32(x / √(Σx² + 1e-6)), ε on the SUM of squares; then one f32
/// product with `factor` (K4: D^−½ for q; 1 for k, which changes no bit).
pub fn l2_norm(x: &mut [f32], factor: f32) {
    let inverse = 1.0 / (row_sum_f32(x, x) + L2_NORM_EPS).sqrt();
    for x in x {
        *x = (f64::from(*x) * inverse) as f32 * factor;
    }
}

/// K12: RMSNorm of one head's output in place, then · σ(gate); `gate` is overwritten.
pub fn gated_norm(
    kernels: &Kernels,
    o: &mut [f32],
    (weight, epsilon): (&[f32], f64),
    gate: &mut [f32],
) {
    let raw = o.to_vec();
    (kernels.rms_norm)(&raw, weight, epsilon, o);
    situ::gate(kernels, o, gate);
}

/// width^−½ rounded to f32: the factor on q (K4) and on MLA's scores (M4).
#[must_use]
pub fn inverse_root(width: usize) -> f32 {
    (1.0 / (width as f64).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ε on the mean, outside the root, or left out moves this value visibly.
    #[test]
    fn l2_norm_puts_its_epsilon_on_the_sum() {
        let mut x = [1e-4_f32; 128];
        l2_norm(&mut x, 1.0);
        for x in x {
            assert!((x - 0.066_226_6).abs() < 5e-8, "{x}");
        }
        let mut zeros = [0.0_f32; 128];
        l2_norm(&mut zeros, 1.0);
        assert_eq!(zeros, [0.0; 128]);
    }

    /// x = 3, 4: mean of squares 12.5. With ε = 12.5 the root is 5 exactly.
    #[test]
    fn rms_norm_has_its_epsilon_inside_the_root() {
        let mut out = [0.0; 2];
        rms_norm(&[3.0, 4.0], &[10.0, -5.0], 12.5, &mut out);
        assert_eq!(out, [6.0, -4.0]);
        rms_norm_unit(&[3.0, 4.0], 12.5, &mut out);
        assert_eq!(out, [0.6, 0.8]);
    }

    /// The row's f64 sum holds squares that overflow or vanish in f32.
    #[test]
    fn squares_beyond_f32_are_held() {
        let mut out = [0.0; 2];
        rms_norm(&[3e30, 4e30], &[1.0, 1.0], 0.0, &mut out);
        assert!((out[0] - 0.848_528_1).abs() < 1e-7);
        rms_norm(&[3e-40, 4e-40], &[1.0, 1.0], 0.0, &mut out);
        assert!((out[0] - 0.848_528_1).abs() < 1e-5);
    }
}
