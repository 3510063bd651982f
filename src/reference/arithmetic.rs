//! Small functions that several formulas share and no clause names.
//!
//! Sums in a fixed order; NaN and infinity flow through.

use ndarray::{Array1, ArrayView1, ArrayView2, ArrayViewMut2};

/// The logistic function.
#[must_use]
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x·σ(x).
#[must_use]
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// exp(s − max) / Σ exp(s − max), summed in rising order. All −inf gives NaN.
#[must_use]
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// a ⊙ b.
#[must_use]
pub fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// x / divisor.
#[must_use]
pub fn divided(x: &[f64], divisor: f64) -> Vec<f64> {
    x.iter().map(|x| x / divisor).collect()
}

/// S_i· *= exp(g_i).
pub fn decay_rows(state: &mut ArrayViewMut2<'_, f64>, log_decay: &[f64]) {
    for (mut row, g) in state.rows_mut().into_iter().zip(log_decay) {
        row *= g.exp();
    }
}

/// Sᵀx: Σ_i S_i·x_i, rising i.
#[must_use]
pub fn read(state: ArrayView2<'_, f64>, x: &[f64]) -> Vec<f64> {
    let mut out = Array1::zeros(state.ncols());
    for (row, x) in state.rows().into_iter().zip(x) {
        out.scaled_add(*x, &row);
    }
    out.to_vec()
}

/// S += k ⊗ δ.
pub fn write(state: &mut ArrayViewMut2<'_, f64>, k: &[f64], delta: &[f64]) {
    let delta = ArrayView1::from(delta);
    for (mut row, k) in state.rows_mut().into_iter().zip(k) {
        row.scaled_add(*k, &delta);
    }
}

/// Σ w·x over equally long vectors, in the order given.
#[must_use]
pub fn weighted_sum<V: AsRef<[f64]>>(vectors: &[V], weights: &[f64], width: usize) -> Vec<f64> {
    let mut out = vec![0.0; width];
    for (vector, weight) in vectors.iter().zip(weights) {
        for (out, x) in out.iter_mut().zip(vector.as_ref()) {
            *out += weight * x;
        }
    }
    out
}

/// Indices of the k largest values, largest first; of equals the lower index. Distinct always.
#[must_use]
pub fn largest(values: &[f64], k: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(k);
    for _ in 0..k.min(values.len()) {
        let left = (0..values.len()).filter(|i| !chosen.contains(i));
        let best = left.reduce(|best, i| if values[i] > values[best] { i } else { best });
        chosen.extend(best);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    /// Overflow in the exponentials; −inf everywhere is documented to give NaN.
    #[test]
    fn softmax_of_extremes() {
        assert_eq!(softmax(&[1e30, -1e30]), [1.0, 0.0]);
        assert_eq!(softmax(&[-7.0]), [1.0]);
        let low = f64::NEG_INFINITY;
        assert_eq!(softmax(&[low, 0.0]), [0.0, 1.0]);
        assert!(softmax(&[low, low]).iter().all(|p| p.is_nan()));
    }

    /// A channel's bias must move its own row of the state and no other.
    #[test]
    fn decay_acts_on_rows() {
        let mut state = Array2::ones((3, 3));
        decay_rows(&mut state.view_mut(), &[0.0, 2f64.ln(), 0.0]);
        assert_eq!(state, array![[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]);
        let mut state = Array2::zeros((2, 2));
        write(&mut state.view_mut(), &[1.0, 2.0], &[3.0, 5.0]);
        assert_eq!(state, array![[3.0, 5.0], [6.0, 10.0]]);
        assert_eq!(read(state.view(), &[1.0, 10.0]), [63.0, 105.0]);
    }
}
