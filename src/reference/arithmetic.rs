//! Small functions that several formulas share and no clause names.
//!
//! Plain loops in a fixed order; NaN and infinity flow through.

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

/// S_i· *= exp(g_i).
pub fn decay_rows(state: &mut [f64], log_decay: &[f64]) {
    for (row, g) in state.chunks_exact_mut(log_decay.len()).zip(log_decay) {
        let alpha = g.exp();
        row.iter_mut().for_each(|s| *s *= alpha);
    }
}

/// Sᵀx: Σ_i S_i·x_i, rising i.
#[must_use]
pub fn read(state: &[f64], x: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for (row, x) in state.chunks_exact(x.len()).zip(x) {
        for (out, s) in out.iter_mut().zip(row) {
            *out += s * x;
        }
    }
    out
}

/// S += k ⊗ δ.
pub fn write(state: &mut [f64], k: &[f64], delta: &[f64]) {
    for (row, k) in state.chunks_exact_mut(delta.len()).zip(k) {
        for (s, delta) in row.iter_mut().zip(delta) {
            *s += k * delta;
        }
    }
}

/// Σ w·x over equally long vectors, in the order given.
#[must_use]
pub fn weighted_sum(vectors: &[Vec<f64>], weights: &[f64], width: usize) -> Vec<f64> {
    let mut out = vec![0.0; width];
    for (vector, weight) in vectors.iter().zip(weights) {
        for (out, x) in out.iter_mut().zip(vector) {
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
        let mut state = [1.0; 9];
        decay_rows(&mut state, &[0.0, 2f64.ln(), 0.0]);
        assert_eq!(state, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
        let mut state = [0.0; 4];
        write(&mut state, &[1.0, 2.0], &[3.0, 5.0]);
        assert_eq!(state, [3.0, 5.0, 6.0, 10.0]);
        assert_eq!(read(&state, &[1.0, 10.0]), [63.0, 105.0]);
    }
}
