//! The scalar definitions compiled again for wider registers.
//!
//! These kernels are plain loops over independent columns, channels or elements. Compiled with
//! AVX2 or AVX-512 allowed they do more elements at a time and nothing else: the compiler keeps
//! every operation and its order, and fuses none. So there is one source and one result.

use crate::kernels::kda;
use crate::kernels::kda::StepInputs;
use crate::kernels::path::{KernelPath, Kind};
use crate::kernels::sums;
use crate::kernels::sums::Vectors;
use crate::kernels::{convolution, functions, rows};

/// Each function once per instruction set, and a front that picks by path.
macro_rules! compiled {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $definition:path;
    )*) => {
        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $(
                #[target_feature(enable = "avx2")]
                pub(super) fn $name($($argument: $type),*) $(-> $result)? {
                    $definition($($argument),*)
                }
            )*
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $(
                #[target_feature(enable = "avx512f")]
                pub(super) fn $name($($argument: $type),*) $(-> $result)? {
                    $definition($($argument),*)
                }
            )*
        }

        $(
            $(#[$doc])*
            #[inline]
            pub fn $name(path: KernelPath, $($argument: $type),*) $(-> $result)? {
                match path.kind() {
                    Kind::Scalar => $definition($($argument),*),
                    // SAFETY: a path of this kind is only made after the processor was asked.
                    #[cfg(target_arch = "x86_64")]
                    Kind::Avx2 => unsafe { avx2::$name($($argument),*) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Kind::Avx512 => unsafe { avx512::$name($($argument),*) },
                }
            }
        )*
    };
}

compiled! {
    /// [`functions::exp_all`] on a path.
    fn exp_all(values: &mut [f32]) = functions::exp_all;
    /// [`functions::sigmoid_all`] on a path.
    fn sigmoid_all(values: &mut [f32]) = functions::sigmoid_all;
    /// [`functions::tanh_all`] on a path.
    fn tanh_all(values: &mut [f32]) = functions::tanh_all;
    /// [`rows::row_sum_f32`] on a path.
    fn row_sum_f32(row: &[f32], x: &[f32]) -> f64 = rows::row_sum_f32;
    /// [`rows::row_sum_bf16`] on a path.
    fn row_sum_bf16(row: &[u16], x: &[f32]) -> f64 = rows::row_sum_bf16;
    /// [`kda::step`] on a path.
    fn kda_step(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32]) = kda::step;
    /// [`sums::weighted_sum_over`] on a path.
    fn weighted_sum_over(weights: &[f32], vectors: Vectors<'_>, divisor: f64, out: &mut [f32])
        = sums::weighted_sum_over;
    /// [`sums::expert_sum`] on a path.
    fn expert_sum(ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32])
        = sums::expert_sum;
    /// [`convolution::convolve`] on a path.
    fn convolve(window: &[&[f32]], taps: &[f32], out: &mut [f32]) = convolution::convolve;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((state & 0x807F_FFFF) | (97 + (state >> 23) % 60) << 23)
        };
        (0..n).map(|_| next()).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
        values.iter().map(bits).collect()
    }

    /// Every kernel on every path: an order changed by the compiler would show here.
    #[test]
    fn every_path_has_the_scalar_bits() {
        for path in KernelPath::available() {
            for n in [1, 7, 16, 37, 64, 130, 576] {
                let (a, b) = (wide(n, 3), wide(n, 4));
                let sum = row_sum_f32(path, &a, &b).to_bits();
                assert_eq!(sum, rows::row_sum_f32(&a, &b).to_bits());
                let bf16: Vec<u16> = a.iter().map(|a| (a.to_bits() >> 16) as u16).collect();
                let sum = row_sum_bf16(path, &bf16, &b).to_bits();
                assert_eq!(sum, rows::row_sum_bf16(&bf16, &b).to_bits());
                check_sums(path, n);
                check_step(path, n);
            }
        }
    }

    fn check_sums(path: KernelPath, n: usize) {
        let (data, weights) = (wide(5 * n, 5), wide(5, 6));
        let vectors = Vectors::Strided { data: &data, stride: n };
        let (mut ours, mut scalar) = (vec![0.0; n], vec![0.0; n]);
        weighted_sum_over(path, &weights, vectors, 3.0, &mut ours);
        sums::weighted_sum_over(&weights, vectors, 3.0, &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
        let ids = [4, 1, 9, 0, 2];
        expert_sum(path, &ids, &weights, vectors, &mut ours);
        sums::expert_sum(&ids, &weights, vectors, &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
        let window: Vec<&[f32]> = data.chunks_exact(n).take(4).collect();
        convolve(path, &window, &wide(4 * n, 7), &mut ours);
        convolution::convolve(&window, &wide(4 * n, 7), &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
    }

    fn check_step(path: KernelPath, n: usize) {
        let (q, k, v, alpha) = (wide(9, 1), wide(9, 2), wide(n, 3), vec![0.9; 9]);
        let inputs = StepInputs { q: &q, k: &k, v: &v, alpha: &alpha, beta: 0.3 };
        let (mut ours, mut scalar) = (wide(9 * n, 4), wide(9 * n, 4));
        let (mut out, mut scalar_out) = (vec![0.0; n], vec![0.0; n]);
        kda_step(path, &mut ours, &inputs, &mut out);
        kda::step(&mut scalar, &inputs, &mut scalar_out);
        assert_eq!((bits(&ours), bits(&out)), (bits(&scalar), bits(&scalar_out)));
    }

    /// exp, σ and tanh over every exponent, NaN and infinities included.
    #[test]
    fn every_path_has_the_same_functions() {
        let inputs: Vec<f32> = (0..1 << 16).map(|i| f32::from_bits(i * 65_521)).collect();
        type Function = fn(KernelPath, &mut [f32]);
        for function in [exp_all as Function, sigmoid_all, tanh_all] {
            let mut expected = inputs.clone();
            function(KernelPath::SCALAR, &mut expected);
            for path in KernelPath::available() {
                let mut values = inputs.clone();
                function(path, &mut values);
                assert!(bits(&values) == bits(&expected), "{}", path.name());
            }
        }
    }
}
