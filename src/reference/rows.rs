//! Rows of activations, stored matrices, and the one loop that applies a matrix.
//!
//! A matrix stays in the encoding of the checkpoint (a BF16 trunk layer of the released model is
//! 1 to 3 GB; widened to f64 it would be four times that) and is widened row by row, exactly, when
//! it is applied. Deliberately not here: `ndarray::dot` and anything else whose order of additions
//! depends on the CPU.

use rayon::prelude::*;

use super::moe::Mxfp4Rows;

/// Activations: a number of rows (tokens) of one width, row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// Values per row.
    pub width: usize,
    /// `count() * width` values.
    pub values: Vec<f64>,
}

impl Rows {
    /// No rows yet.
    #[must_use]
    pub fn empty(width: usize) -> Self {
        Self { width, values: Vec::new() }
    }

    /// `count` rows of zeros.
    #[must_use]
    pub fn zeros(count: usize, width: usize) -> Self {
        Self { width, values: vec![0.0; count * width] }
    }

    /// Number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Row `index`.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.width..][..self.width]
    }

    /// Row `index`, to be written.
    pub fn row_mut(&mut self, index: usize) -> &mut [f64] {
        &mut self.values[index * self.width..][..self.width]
    }

    /// The rows in order.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, f64> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// Appends a row.
    pub fn push(&mut self, row: &[f64]) {
        debug_assert_eq!(row.len(), self.width);
        self.values.extend_from_slice(row);
    }

    /// Each row mapped to a row of width `width`.
    #[must_use]
    pub fn map(&self, width: usize, row: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        let mut out = Self::empty(width);
        for source in self.iter() {
            out.push(&row(source));
        }
        out
    }
}

/// The sum of two equally shaped sets of rows, element by element.
#[must_use]
pub fn add(a: &Rows, b: &Rows) -> Rows {
    debug_assert_eq!((a.width, a.values.len()), (b.width, b.values.len()));
    Rows { width: a.width, values: a.values.iter().zip(&b.values).map(|(a, b)| a + b).collect() }
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
            for i in 0..8 {
                sums[i] += weights[i] * input[place][i];
            }
        }
    }
    for (sums, (_, input)) in sums.iter_mut().zip(inputs) {
        for ((sum, weight), x) in sums.iter_mut().zip(rest).zip(input) {
            *sum += weight * x;
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// The values of a matrix as the checkpoint encodes them.
#[derive(Debug, Clone, PartialEq)]
enum Encoded {
    /// BF16 bit patterns.
    Bf16(Vec<u16>),
    /// Packed codes with their scales, of a routed expert.
    Mxfp4(Box<Mxfp4Rows>),
    /// Already decoded values.
    F64(Vec<f64>),
}

/// A weight matrix \[rows, columns\], applied as W·x.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    encoded: Encoded,
}

/// From this many weights on, output rows are shared out over threads. Each output value is still
/// one `dot`, so the bits do not depend on it.
const PARALLEL_WEIGHTS: usize = 1 << 18;

impl Matrix {
    /// A matrix of BF16 bit patterns, row-major.
    #[must_use]
    pub fn from_bf16(rows: usize, columns: usize, bits: Vec<u16>) -> Self {
        debug_assert_eq!(bits.len(), rows * columns);
        Self { rows, columns, encoded: Encoded::Bf16(bits) }
    }

    /// A matrix of packed MXFP4 codes.
    #[must_use]
    pub fn from_mxfp4(rows: usize, columns: usize, codes: Mxfp4Rows) -> Self {
        Self { rows, columns, encoded: Encoded::Mxfp4(Box::new(codes)) }
    }

    /// A matrix of decoded values, row-major.
    #[must_use]
    pub fn from_f64(rows: usize, columns: usize, values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), rows * columns);
        Self { rows, columns, encoded: Encoded::F64(values) }
    }

    /// Output width.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row `index` \[columns\], widened exactly; `buffer` holds it where it is not kept as f64.
    pub fn row<'a>(&'a self, index: usize, buffer: &'a mut Vec<f64>) -> &'a [f64] {
        let range = index * self.columns..(index + 1) * self.columns;
        match &self.encoded {
            Encoded::Bf16(bits) => {
                buffer.clear();
                buffer.extend(bits[range].iter().map(|bits| bf16_to_f64(*bits)));
                buffer
            }
            Encoded::Mxfp4(codes) => {
                buffer.clear();
                buffer.resize(self.columns, 0.0);
                codes.decode(index, buffer);
                buffer
            }
            Encoded::F64(values) => &values[range],
        }
    }

    /// W·x for every row x of `input` \[T, columns\]; gives \[T, rows\].
    #[must_use]
    pub fn apply(&self, input: &Rows) -> Rows {
        self.apply_rows(input, |row| row)
    }

    /// Like [`Matrix::apply`], with output i taken from weight row `source(i)`.
    #[must_use]
    pub fn apply_rows(&self, input: &Rows, source: impl Fn(usize) -> usize + Sync) -> Rows {
        debug_assert_eq!(input.width, self.columns);
        let tokens = input.count();
        // One output row of W at a time over all tokens, kept as [rows, T] and turned at the end.
        let mut turned = vec![0.0; self.rows * tokens];
        let inputs: Vec<&[f64]> = input.iter().collect();
        let fill = |buffer: &mut Vec<f64>, (output, values): (usize, &mut [f64])| {
            dots(self.row(source(output), buffer), &inputs, values);
        };
        if self.rows * self.columns >= PARALLEL_WEIGHTS {
            let shares = turned.par_chunks_mut(tokens.max(1)).enumerate();
            shares.with_min_len(16).for_each_init(Vec::new, fill);
        } else {
            let mut buffer = Vec::new();
            let outputs = turned.chunks_mut(tokens.max(1)).enumerate();
            outputs.for_each(|output| fill(&mut buffer, output));
        }
        let mut out = Rows::zeros(tokens, self.rows);
        for (output, values) in turned.chunks(tokens.max(1)).enumerate() {
            for (token, value) in values.iter().enumerate() {
                out.values[token * self.rows + output] = *value;
            }
        }
        out
    }
}

/// A BF16 is the upper half of an f32; both steps are exact.
#[must_use]
pub fn bf16_to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
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
        let input =
            Rows { width: columns, values: (0..3 * columns).map(|i| value(i + 5)).collect() };
        let large = Matrix::from_f64(rows, columns, weights.clone());
        assert!(rows * columns >= PARALLEL_WEIGHTS);
        let out = large.apply(&input);
        for (token, x) in input.iter().enumerate() {
            for (row, weights) in weights.chunks_exact(columns).enumerate() {
                assert_eq!(out.row(token)[row].to_bits(), dot(weights, x).to_bits());
            }
        }
    }
}
