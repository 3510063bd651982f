//! Rows of activations, stored matrices, and the one loop that applies a matrix.
//!
//! Both are `ndarray`'s arrays in row-major order. A matrix stays in the encoding of the checkpoint
//! (a BF16 trunk layer of the released model is 1 to 3 GB; widened to f64 it would be four times
//! that) and is widened row by row, exactly, when it is applied. Deliberately not here: the
//! library's `dot` and anything else whose order of additions depends on the CPU.

use half::bf16;
use ndarray::Array2;
use rayon::prelude::*;

use super::moe::Mxfp4Rows;

/// Activations \[T, width\], one row per token, row-major.
pub type Rows = Array2<f64>;

/// The values of a row-major array.
///
/// # Panics
/// When the array is a turned or strided one; this crate makes none.
#[must_use]
pub fn values<T>(rows: &Array2<T>) -> &[T] {
    rows.as_slice().expect("arrays of rows are row-major")
}

/// The same, to be written.
///
/// # Panics
/// As [`values`].
pub fn values_mut<T>(rows: &mut Array2<T>) -> &mut [T] {
    rows.as_slice_mut().expect("arrays of rows are row-major")
}

/// The rows in order, each as a slice.
pub fn slices<T>(rows: &Array2<T>) -> std::slice::ChunksExact<'_, T> {
    values(rows).chunks_exact(rows.ncols().max(1))
}

/// Row `index` as a slice.
#[must_use]
pub fn row<T>(rows: &Array2<T>, index: usize) -> &[T] {
    &values(rows)[index * rows.ncols()..][..rows.ncols()]
}

/// Rows of `width` values out of all their values.
///
/// # Panics
/// When the values do not fill whole rows.
#[must_use]
pub fn from_values<T>(width: usize, values: Vec<T>) -> Array2<T> {
    let count = values.len().checked_div(width).unwrap_or(0);
    Array2::from_shape_vec((count, width), values).expect("whole rows")
}

/// Rows of `width` values, one after the other.
///
/// # Panics
/// When a row has another width.
#[must_use]
pub fn stack<T>(width: usize, rows: impl IntoIterator<Item = Vec<T>>) -> Array2<T> {
    from_values(width, rows.into_iter().flatten().collect())
}

/// Each row mapped to a row of `width` values.
#[must_use]
pub fn map_rows<T>(rows: &Array2<T>, width: usize, map: impl Fn(&[T]) -> Vec<T>) -> Array2<T> {
    stack(width, slices(rows).map(map))
}

/// Σ aᵢ·bᵢ in f64. Order: eight running sums, element i into sum i mod 8, in rising i; then the
/// eight are added in rising order. The order depends on nothing but the length.
#[must_use]
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut out = [0.0];
    dots(a, &[b], &mut out);
    out[0]
}

/// [`dot`] of one row of weights with each of `inputs`; the weights are looked at once for four of
/// them, which changes no bit: every sum has its own eight.
pub fn dots(weights: &[f64], inputs: &[&[f64]], out: &mut [f64]) {
    debug_assert_eq!(inputs.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: this processor has AVX-512.
        unsafe { dots_avx512(weights, inputs, out) };
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        unsafe { dots_avx2(weights, inputs, out) };
        return;
    }
    dots_in_eights(weights, inputs, out);
}

/// The same sums in wider registers: the same additions and multiplications, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dots_avx2(weights: &[f64], inputs: &[&[f64]], out: &mut [f64]) {
    dots_in_eights(weights, inputs, out);
}

/// And in the widest: eight sums are one register.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn dots_avx512(weights: &[f64], inputs: &[&[f64]], out: &mut [f64]) {
    dots_in_eights(weights, inputs, out);
}

#[inline(always)]
fn dots_in_eights(weights: &[f64], inputs: &[&[f64]], out: &mut [f64]) {
    let (fours, rest) = inputs.as_chunks::<4>();
    let (out_fours, out_rest) = out.as_chunks_mut::<4>();
    for (inputs, out) in fours.iter().zip(out_fours) {
        *out = sums_in_eights(weights, *inputs);
    }
    let (twos, rest) = rest.as_chunks::<2>();
    let (out_twos, out_rest) = out_rest.as_chunks_mut::<2>();
    for (inputs, out) in twos.iter().zip(out_twos) {
        *out = sums_in_eights(weights, *inputs);
    }
    for (input, out) in rest.iter().zip(out_rest) {
        [*out] = sums_in_eights(weights, [input]);
    }
}

#[inline(always)]
fn sums_in_eights<const N: usize>(weights: &[f64], inputs: [&[f64]; N]) -> [f64; N] {
    debug_assert!(inputs.iter().all(|input| input.len() == weights.len()));
    // Arrays of eight rather than slices: the compiler then keeps the sums in registers.
    let mut sums = [[0.0f64; 8]; N];
    let (eights, rest) = weights.as_chunks::<8>();
    let inputs = inputs.map(|input| input.as_chunks::<8>());
    let input_eights = inputs.map(|(input, _)| &input[..eights.len()]);
    for (place, weights) in eights.iter().enumerate() {
        for (sums, input) in sums.iter_mut().zip(input_eights) {
            *sums = std::array::from_fn(|i| sums[i] + weights[i] * input[place][i]);
        }
    }
    for (sums, (_, input)) in sums.iter_mut().zip(inputs) {
        for ((sum, weight), x) in sums.iter_mut().zip(rest).zip(input) {
            *sum += weight * x;
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// A weight matrix \[rows, columns\] as the checkpoint encodes it, applied as W·x.
#[derive(Debug, Clone, PartialEq)]
pub enum Matrix {
    /// Of the trunk.
    Bf16(Array2<bf16>),
    /// Packed codes with their scales, of a routed expert.
    Mxfp4(Box<Mxfp4Rows>),
    /// Already decoded.
    F64(Array2<f64>),
}

/// From this many weights on, output rows are shared out over threads. Each output value is still
/// one `dot`, so the bits do not depend on it.
const PARALLEL_WEIGHTS: usize = 1 << 18;

impl Matrix {
    /// Output width and input width.
    #[must_use]
    pub fn dim(&self) -> (usize, usize) {
        match self {
            Self::Bf16(codes) => codes.dim(),
            Self::Mxfp4(codes) => codes.dim(),
            Self::F64(values) => values.dim(),
        }
    }

    /// Output width.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.dim().0
    }

    /// Input width.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.dim().1
    }

    /// Row `index` \[columns\], widened exactly; `buffer` holds it where it is not kept as f64.
    pub fn row<'a>(&'a self, index: usize, buffer: &'a mut Vec<f64>) -> &'a [f64] {
        buffer.clear();
        match self {
            Self::Bf16(codes) => buffer.extend(row(codes, index).iter().map(|code| widen(*code))),
            Self::Mxfp4(codes) => {
                buffer.resize(codes.dim().1, 0.0);
                codes.decode(index, buffer);
            }
            Self::F64(values) => return row(values, index),
        }
        buffer
    }

    /// W·x for every row x of `input` \[T, columns\]; gives \[T, rows\].
    #[must_use]
    pub fn apply(&self, input: &Rows) -> Rows {
        let ((rows, columns), tokens) = (self.dim(), input.nrows());
        debug_assert_eq!(input.ncols(), columns);
        // One output row of W at a time over all tokens.
        let mut turned = Rows::zeros((rows, tokens));
        let inputs: Vec<&[f64]> = slices(input).collect();
        let fill = |buffer: &mut Vec<f64>, (output, values): (usize, &mut [f64])| {
            dots(self.row(output, buffer), &inputs, values);
        };
        if rows * columns >= PARALLEL_WEIGHTS {
            let shares = values_mut(&mut turned).par_chunks_mut(tokens.max(1)).enumerate();
            shares.with_min_len(16).for_each_init(Vec::new, fill);
        } else {
            let mut buffer = Vec::new();
            let outputs = values_mut(&mut turned).chunks_mut(tokens.max(1)).enumerate();
            outputs.for_each(|output| fill(&mut buffer, output));
        }
        turned.t().as_standard_layout().into_owned()
    }
}

/// A BF16 is the upper half of an f32; both steps are exact. (`half` branches on NaN, which keeps
/// the loop over a row from using vectors.)
#[must_use]
pub fn widen(code: bf16) -> f64 {
    f64::from(f32::from_bits(u32::from(code.to_bits()) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length that is no multiple of eight must not lose its rest, nor move an element.
    #[test]
    fn dot_takes_every_element_once() {
        for length in 0..40 {
            let a: Vec<f64> = (0..length).map(f64::from).collect();
            let b: Vec<f64> = a.iter().map(|x| x + 1.0).collect();
            let right: i32 = (0..length).map(|i| i * (i + 1)).sum();
            assert_eq!(dot(&a, &b), f64::from(right));
        }
    }

    type Dots = fn(&[f64], &[&[f64]], &mut [f64]);

    /// The sums in all registers that this processor has.
    fn every_width() -> Vec<Dots> {
        let mut all: Vec<Dots> = vec![dots, dots_in_eights];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: this processor has AVX2.
            all.push(|weights, inputs, out| unsafe { dots_avx2(weights, inputs, out) });
        }
        all
    }

    /// Neither wider registers nor four inputs at once change a bit, at any length: the eight sums
    /// of the definition, element by element.
    #[test]
    fn dots_have_the_bits_of_the_plain_sums() {
        let value = |i: usize| ((i * 7919) % 1013) as f64 / 977.0 - 0.5;
        let weights: Vec<f64> = (0..300).map(value).collect();
        let plain = |x: &[f64]| {
            let mut sums = [0.0; 8];
            for (i, (w, x)) in weights.iter().zip(x).enumerate() {
                sums[i % 8] += w * x;
            }
            sums.iter().sum::<f64>().to_bits()
        };
        for length in 0..weights.len() {
            let inputs: Vec<Vec<f64>> = (0..length % 11)
                .map(|k| (0..length).map(|i| value(i * 31 + 7 * k + 5)).collect())
                .collect();
            let slices: Vec<&[f64]> = inputs.iter().map(Vec::as_slice).collect();
            for widths in every_width() {
                let mut out = vec![f64::NAN; inputs.len()];
                widths(&weights[..length], &slices, &mut out);
                for (out, input) in out.iter().zip(&inputs) {
                    assert_eq!(out.to_bits(), plain(input));
                    assert_eq!(dot(&weights[..length], input).to_bits(), plain(input));
                }
            }
        }
    }

    /// The threaded path is the same sums: its bits are those of the plain one, row by row.
    #[test]
    fn threads_change_no_bit() {
        let (rows, columns) = (600, 500);
        let value = |i: usize| ((i * 7919) % 1013) as f64 / 977.0 - 0.5;
        let weights: Vec<f64> = (0..rows * columns).map(value).collect();
        let input = from_values(columns, (0..3 * columns).map(|i| value(i + 5)).collect());
        let large = Matrix::F64(from_values(columns, weights.clone()));
        assert!(rows * columns >= PARALLEL_WEIGHTS);
        let out = large.apply(&input);
        for (token, x) in slices(&input).enumerate() {
            for (row, weights) in weights.chunks_exact(columns).enumerate() {
                assert_eq!(out[[token, row]].to_bits(), dot(weights, x).to_bits());
            }
        }
    }
}
