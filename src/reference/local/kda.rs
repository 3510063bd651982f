//! KDA with bounds: projections and decay (K1 to K8, K12), and the recurrence (K9 to K11) with an
//! error for every element of the state.

use ndarray::{Array2, Axis, concatenate};
use rayon::prelude::*;

use super::arithmetic::{EVALUATION, Rounding};
use super::bounded::{Bounded, Terms, gamma};
use super::rows::{BoundedRows, exact, zip};
use crate::formulas::Part;
use crate::kda::KdaWeights;
use crate::rows::{Rows, map_rows, row, slices, stack, values, values_mut};

/// The inputs of one convolution: the carried ones (exact) and those of this call
/// \[kernel−1+T, P\].
#[must_use]
pub fn convolution_inputs(
    rounding: &Rounding,
    weights: &KdaWeights,
    part: usize,
    history: &Rows,
    x: &BoundedRows,
) -> BoundedRows {
    let projected = rounding.apply(&weights.projections[part], x);
    concatenate![Axis(0), exact(history.ncols(), values(history)), projected]
}

/// One of q, k, v from its convolution inputs \[kernel−1+T, P\]: taps, SiLU, norm, scale; \[T, P\].
#[must_use]
pub fn part(
    rounding: &Rounding,
    part: Part,
    series: &BoundedRows,
    taps: &Array2<f64>,
    head_dim: usize,
) -> BoundedRows {
    let rows: Vec<&[Bounded]> = slices(series).collect();
    let of_window = |window: &[&[Bounded]]| -> Vec<Bounded> {
        let channel = |p: usize| {
            let mut terms = Terms::default();
            for (tap, inputs) in row(taps, p).iter().zip(window) {
                // F32 in the file; a narrow subject may have cast it.
                let tap = rounding.narrow_store(Bounded::exact(*tap));
                terms.push(tap, inputs[p]);
            }
            rounding.silu(rounding.step.round(rounding.wide.sum(terms)))
        };
        let channels: Vec<Bounded> = (0..series.ncols()).map(channel).collect();
        channels.chunks_exact(head_dim).flat_map(|head| finish_head(rounding, part, head)).collect()
    };
    stack(series.ncols(), rows.windows(taps.ncols()).map(of_window))
}

/// K3, K4: l2norm of q and k, D^−½ on q.
fn finish_head(rounding: &Rounding, part: Part, head: &[Bounded]) -> Vec<Bounded> {
    let scale = (head.len() as f64).sqrt().recip();
    let scale = rounding.step.constant(scale);
    match part {
        Part::Value => head.to_vec(),
        Part::Key => rounding.l2_norm(head),
        Part::Query => {
            let normed = rounding.l2_norm(head);
            normed.iter().map(|t| rounding.step.mul(*t, scale)).collect()
        }
    }
}

/// The log decay \[T, P\] from z \[T, P\]: t = z + dt_bias, u = exp(A_log)·t, bound · σ(u).
#[must_use]
pub fn log_decay(
    rounding: &Rounding,
    weights: &KdaWeights,
    z: &BoundedRows,
    lower_bound: f64,
) -> BoundedRows {
    let head_dim = weights.o_norm.len();
    let rounding = rounding.single();
    let step = rounding.step;
    let lower_bound = step.constant(lower_bound);
    map_rows(z, z.ncols(), |row| {
        let channel = |(p, z): (usize, &Bounded)| {
            let rate = rounding.exp(Bounded::exact(weights.a_log[p / head_dim]));
            let shifted = step.add(*z, Bounded::exact(weights.dt_bias[p]));
            let logistic = rounding.sigmoid(step.mul(rate, shifted));
            step.mul(lower_bound, logistic)
        };
        row.iter().enumerate().map(channel).collect()
    })
}

/// K12: per head RMSNorm(o; o_norm), then · σ(gate·x), then o_proj.
#[must_use]
pub fn output(
    rounding: &Rounding,
    weights: &KdaWeights,
    o: &BoundedRows,
    x: &BoundedRows,
    eps: f64,
) -> BoundedRows {
    let normed = map_rows(o, o.ncols(), |row| {
        let heads = row.chunks_exact(weights.o_norm.len());
        let norm = |head| rounding.rms_norm(head, &weights.o_norm, eps);
        // The weight is F32 in the file; a narrow subject may have cast it.
        heads.flat_map(norm).map(|x| rounding.narrow_store(x)).collect()
    });
    let gate = rounding.apply(&weights.gate, x);
    let gated = zip(&normed, &gate, |o, g| rounding.step.mul(o, rounding.sigmoid(g)));
    rounding.apply(&weights.output, &gated)
}

/// What the recurrence reads, all of it the subject's own: q, k, v, g \[T, P\] and beta \[T, H\].
#[derive(Debug)]
pub struct RecurrenceInputs<'a> {
    /// Queries, normed and scaled.
    pub q: &'a [f64],
    /// Keys, normed.
    pub k: &'a [f64],
    /// Values, as the convolution and SiLU leave them.
    pub v: &'a [f64],
    /// Log decays by key index.
    pub log_decay: &'a [f64],
    /// Write strengths β.
    pub beta: &'a [f64],
    /// H, heads.
    pub heads: usize,
    /// D, channels of a head.
    pub head_dim: usize,
}

/// S of one head \[D, D\] (rows = key index) with its errors: `errors` bounds each element,
/// `norms` the Euclidean norm of each column of errors.
struct HeadState {
    values: Vec<f64>,
    errors: Vec<f64>,
    norms: Vec<f64>,
}

/// One token of one head.
struct Step<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    log_decay: &'a [f64],
    beta: f64,
}

/// The recurrence from `memory` \[H, D, D\] (exact): o \[T, P\] and the state after it \[H, D, D\].
/// In f32 at least; a narrow subject stores o.
#[must_use]
pub fn recurrence(
    rounding: &Rounding,
    inputs: &RecurrenceInputs<'_>,
    memory: &[f64],
) -> (BoundedRows, Vec<Bounded>) {
    let (heads, head_dim) = (inputs.heads, inputs.head_dim);
    let tokens = inputs.beta.len() / heads;
    let width = heads * head_dim;
    let stored = |x: &Bounded| rounding.narrow_store(*x);
    let rounding = &rounding.single();
    // Heads have nothing to do with one another; each is one thread's from its first token on.
    let run = |(head, memory): (usize, &[f64])| {
        let mut s = HeadState {
            values: memory.to_vec(),
            errors: vec![0.0; memory.len()],
            norms: vec![0.0; head_dim],
        };
        let step = |token: usize| {
            let at = token * width + head * head_dim;
            let channels = at..at + head_dim;
            let step = Step {
                q: &inputs.q[channels.clone()],
                k: &inputs.k[channels.clone()],
                v: &inputs.v[channels.clone()],
                log_decay: &inputs.log_decay[channels],
                beta: inputs.beta[token * heads + head],
            };
            s.step(rounding, &step)
        };
        let rows: Vec<Vec<Bounded>> = (0..tokens).map(step).collect();
        (rows, s)
    };
    let all = memory.par_chunks_exact(head_dim * head_dim).enumerate();
    let done: Vec<(Vec<Vec<Bounded>>, HeadState)> = all.map(run).collect();
    let mut o = BoundedRows::default((tokens, width));
    let mut state = Vec::with_capacity(memory.len());
    for (head, (rows, s)) in done.iter().enumerate() {
        for (token, row) in rows.iter().enumerate() {
            let at = token * width + head * head_dim;
            let row: Vec<Bounded> = row.iter().map(stored).collect();
            values_mut(&mut o)[at..at + head_dim].copy_from_slice(&row);
        }
        let pairs = s.values.iter().zip(&s.errors);
        state.extend(pairs.map(|(value, error)| Bounded { value: *value, error: *error }));
    }
    (o, state)
}

impl HeadState {
    /// K9 to K11 on the state and its errors; derived in [`super`] under
    /// "The recurrence".
    fn step(&mut self, rounding: &Rounding, s: &Step<'_>) -> Vec<Bounded> {
        let width = s.k.len();
        let step = rounding.step;
        let decay = |g: &f64| rounding.exp(Bounded::exact(*g));
        let alpha: Vec<Bounded> = s.log_decay.iter().map(decay).collect();
        let decayed_key = |(a, k): (&Bounded, &f64)| step.mul(*a, Bounded::exact(*k));
        let key: Vec<Bounded> = alpha.iter().zip(s.k).map(decayed_key).collect();

        let contraction = contraction(&alpha, s.k, s.beta);
        let key_norm = norm(key.iter().map(|a| a.value));
        let own_key_norm = norm(s.k.iter().copied());
        for column in 0..width {
            let (write, own) = self.write(rounding, s, &key, key_norm, column);
            let mut local_squares = 0.0;
            for (row, (alpha, k)) in alpha.iter().zip(s.k).enumerate() {
                let at = row * width + column;
                let local = self.element(rounding, at, *alpha, *k, write);
                local_squares += local * local;
                // The errors of the decayed old value and of the written one.
                let carried = alpha.value * self.errors[at];
                self.errors[at] = carried + local + k.abs() * write.error;
            }
            let carried = contraction * self.norms[column];
            self.norms[column] = carried + local_squares.sqrt() + own_key_norm * own;
            self.settle(column, width);
        }
        self.read(rounding, s.q)
    }

    /// β(v − u) of one column, with its whole error, and the part of that error which is not
    /// carried over from the state.
    fn write(
        &self,
        rounding: &Rounding,
        s: &Step<'_>,
        key: &[Bounded],
        key_norm: f64,
        column: usize,
    ) -> (Bounded, f64) {
        let width = key.len();
        let (mut terms, mut carried) = (Terms::default(), 0.0);
        for (row, key) in key.iter().enumerate() {
            let at = row * width + column;
            let (value, error) = (self.values[at], self.errors[at]);
            terms.count += 1;
            terms.value += value * key.value;
            terms.magnitude += (value.abs() + error) * key.magnitude();
            terms.propagated += (value.abs() + error) * key.error;
            carried += error * key.value.abs();
        }
        let carried = carried.min(key_norm * self.norms[column]);
        let step = rounding.step;
        let beta = Bounded::exact(s.beta);
        // Once with what the state carries, once without.
        let whole = |carried| {
            let u = step.round(rounding.wide.sum(terms).widened(carried));
            step.mul(beta, step.sub(Bounded::exact(s.v[column]), u))
        };
        let write = whole(carried);
        let own = write.error - s.beta.abs() * carried;
        (write, own.max(0.0))
    }

    /// Updates one element of S and gives its local error: that of the decay, and the roundings of
    /// two products, one addition and the store.
    fn element(
        &mut self,
        rounding: &Rounding,
        at: usize,
        alpha: Bounded,
        k: f64,
        write: Bounded,
    ) -> f64 {
        let old = Bounded { value: self.values[at], error: self.errors[at] };
        let kept = alpha.value * old.value;
        let written = k * write.value;
        self.values[at] = kept + written;
        // The magnitudes the subject's numbers can have.
        let kept = alpha.magnitude() * old.magnitude();
        let written = k.abs() * write.magnitude();
        let largest = kept + written;
        let products = gamma(2, rounding.wide.roundoff) + gamma(2, EVALUATION);
        let inner = products * largest + 2.0 * rounding.wide.tiny;
        let sum = self.values[at].abs() + alpha.value * old.error + k.abs() * write.error;
        let decay = alpha.error * old.magnitude();
        let store = rounding.step.roundoff * (sum + decay + inner) + rounding.step.tiny;
        decay + inner + store
    }

    /// Lets each of the two bounds of a column take what the other knows: an element's error is at
    /// most its column's norm, and that norm at most the root of its elements' squares.
    fn settle(&mut self, column: usize, width: usize) {
        let limit = self.norms[column];
        let mut squares = 0.0;
        for error in self.errors.iter_mut().skip(column).step_by(width) {
            *error = error.min(limit);
            squares += *error * *error;
        }
        self.norms[column] = limit.min(squares.sqrt());
    }

    /// o = Sᵀq, rounded once per column.
    fn read(&self, rounding: &Rounding, q: &[f64]) -> Vec<Bounded> {
        let width = q.len();
        let q_norm = norm(q.iter().copied());
        let column = |column: usize| {
            let mut terms = Terms::default();
            for (row, q) in q.iter().enumerate() {
                let at = row * width + column;
                terms.count += 1;
                terms.value += self.values[at] * q;
                terms.magnitude += (self.values[at].abs() + self.errors[at]) * q.abs();
                terms.propagated += self.errors[at] * q.abs();
            }
            terms.propagated = terms.propagated.min(q_norm * self.norms[column]);
            rounding.step.round(rounding.wide.sum(terms))
        };
        (0..width).map(column).collect()
    }
}

/// At least ‖(I − βkkᵀ)·diag(α)‖: the first factor is symmetric with eigenvalues 1 and
/// 1 − β‖k‖², the second at most max α.
fn contraction(alpha: &[Bounded], k: &[f64], beta: f64) -> f64 {
    let key_squares: f64 = k.iter().map(|k| k * k).sum();
    let along_key = (1.0 - beta * key_squares).abs();
    let largest = alpha.iter().map(|a| a.value).fold(0.0, f64::max);
    largest * along_key.max(1.0)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::Arithmetic;
    use super::*;

    /// Bounds by element alone double with every token here (keys alike, hardly any decay): after
    /// 300 tokens they would be beyond any value.
    #[test]
    fn bounds_stay_of_use_over_a_long_memory() {
        let (head_dim, tokens) = (16, 300);
        let wave = |i: usize, f: f64| (i as f64 * f).sin();
        let channels = |f: f64, size: f64| -> Vec<f64> {
            let all = 0..tokens * head_dim;
            all.map(|i| f64::from((wave(i, f) * size) as f32)).collect()
        };
        // Each key is nearly the one before.
        let key = |i: usize| wave(i % head_dim + 1, 0.9) + 0.02 * wave(i, 0.37);
        let k: Vec<f64> =
            (0..tokens * head_dim).map(|i| f64::from((key(i) / 3.0) as f32)).collect();
        let inputs = RecurrenceInputs {
            q: &channels(0.31, 0.1),
            k: &k,
            v: &channels(1.7, 1.0),
            log_decay: &vec![-f64::from(f32::EPSILON); k.len()],
            beta: &vec![0.875; tokens],
            heads: 1,
            head_dim,
        };
        let rounding = Rounding::new(Arithmetic::F64Sums);
        let memory = vec![0.0; head_dim * head_dim];
        let (o, state) = recurrence(&rounding, &inputs, &memory);
        for items in [values(&o), &state] {
            let largest = items.iter().fold(0.0, |m: f64, x| m.max(x.value.abs()));
            let loosest = items.iter().fold(0.0, |m: f64, x| m.max(x.error));
            assert!(loosest < 1e-3 * largest, "{loosest:e} on {largest:e}");
        }
    }
}
