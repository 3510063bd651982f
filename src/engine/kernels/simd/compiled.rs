//! The scalar definitions compiled again for wider registers.
//!
//! These kernels are plain loops over independent columns, channels or elements. Compiled with
//! AVX2 or AVX-512 allowed they do more elements at a time and nothing else: the compiler keeps
//! every operation and its order, and fuses none. Only sums of exact products say themselves that
//! they are fused here (`add_product`). So there is one source and one result.

use crate::kernels::kda::{self, StepInputs};
use crate::kernels::path::{KernelPath, Kind};
use crate::kernels::rows::{self, Row};
use crate::kernels::sums::{self, Vectors};
use crate::kernels::table::Kernels;
use crate::kernels::{convolution, functions};

/// The entries of the table that are compiled again: for each instruction set a module with them
/// and the table that they make.
macro_rules! compiled {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $definition:path;)*) => {
        compiled!(
            avx2 "avx2,fma" 32
            $(fn $name($($argument: $type),*) $(-> $result)? = $definition;)*
        );
        compiled!(
            avx512 "avx512f" 64
            $(fn $name($($argument: $type),*) $(-> $result)? = $definition;)*
        );
    };
    ($set:ident $features:literal $columns:literal
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $definition:path;)*
    ) => {
        #[cfg(target_arch = "x86_64")]
        mod $set {
            use super::*;

            /// Columns whose sums are eight registers.
            const COLUMNS: usize = $columns;

            $(
                fn $name($($argument: $type),*) $(-> $result)? {
                    #[target_feature(enable = $features)]
                    fn wide($($argument: $type),*) $(-> $result)? {
                        $definition($($argument),*)
                    }
                    // SAFETY: only the table of a path has this function, and a path of this kind
                    // is only made after the processor was asked.
                    unsafe { wide($($argument),*) }
                }
            )*

            pub(super) const TABLE: Kernels = Kernels { $($name,)* ..Kernels::SCALAR };
        }
    };
}

compiled! {
    fn exp(values: &mut [f32]) = functions::exp_all;
    fn sigmoid(values: &mut [f32]) = functions::sigmoid_all;
    fn tanh(values: &mut [f32]) = functions::tanh_all;
    fn row_sum(row: Row<'_>, x: &[f32]) -> f64 = rows::row_sum;
    fn kda_step(state: &mut [f32], inputs: &StepInputs<'_>, out: &mut [f32])
        = kda::step_by::<true, COLUMNS>;
    fn weighted_sum(weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) = sums::weighted_sum;
    fn normalised_sum(weights: &[f32], vectors: Vectors<'_>, divisor: f64, out: &mut [f32])
        = sums::weighted_sum_over;
    fn expert_sum(ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32])
        = sums::expert_sum;
    fn convolve(window: &[&[f32]], taps: &[f32], out: &mut [f32]) = convolution::convolve;
}

/// The table of a path but for the path itself.
pub(in crate::kernels) fn table(path: KernelPath) -> Kernels {
    match path.kind() {
        Kind::Scalar => Kernels::SCALAR,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => avx512::TABLE,
    }
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
                let sum = (Kernels::on(path).row_sum)(Row::F32(&a), &b).to_bits();
                assert_eq!(sum, rows::row_sum_f32(&a, &b).to_bits());
                let bf16: Vec<u16> = a.iter().map(|a| (a.to_bits() >> 16) as u16).collect();
                let sum = (Kernels::on(path).row_sum)(Row::Bf16(&bf16), &b).to_bits();
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
        (Kernels::on(path).normalised_sum)(&weights, vectors, 3.0, &mut ours);
        sums::weighted_sum_over(&weights, vectors, 3.0, &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
        let ids = [4, 1, 9, 0, 2];
        (Kernels::on(path).expert_sum)(&ids, &weights, vectors, &mut ours);
        sums::expert_sum(&ids, &weights, vectors, &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
        let window: Vec<&[f32]> = data.chunks_exact(n).take(4).collect();
        (Kernels::on(path).convolve)(&window, &wide(4 * n, 7), &mut ours);
        convolution::convolve(&window, &wide(4 * n, 7), &mut scalar);
        assert_eq!(bits(&ours), bits(&scalar));
    }

    fn check_step(path: KernelPath, n: usize) {
        let (q, k, v, alpha) = (wide(9, 1), wide(9, 2), wide(n, 3), vec![0.9; 9]);
        let inputs = StepInputs { q: &q, k: &k, v: &v, alpha: &alpha, beta: 0.3 };
        for special in [0.5, -0.0, f32::INFINITY, f32::NAN] {
            let mut ours = wide(9 * n, 4);
            ours[4 * n + n / 2] = special;
            let mut scalar = ours.clone();
            let (mut out, mut scalar_out) = (vec![0.0; n], vec![0.0; n]);
            (Kernels::on(path).kda_step)(&mut ours, &inputs, &mut out);
            kda::step(&mut scalar, &inputs, &mut scalar_out);
            assert_eq!((bits(&ours), bits(&out)), (bits(&scalar), bits(&scalar_out)));
        }
    }

    /// exp, σ and tanh over every exponent, NaN and infinities included.
    #[test]
    fn every_path_has_the_same_functions() {
        let inputs: Vec<f32> = (0..1 << 16).map(|i| f32::from_bits(i * 65_521)).collect();
        type Entry = fn(Kernels) -> fn(&mut [f32]);
        for entry in [(|k| k.exp) as Entry, |k| k.sigmoid, |k| k.tanh] {
            let mut expected = inputs.clone();
            entry(Kernels::SCALAR)(&mut expected);
            for path in KernelPath::available() {
                let mut values = inputs.clone();
                entry(Kernels::on(path))(&mut values);
                assert!(bits(&values) == bits(&expected), "{}", path.name());
            }
        }
    }
}
