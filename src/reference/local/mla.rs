//! Gated MLA with bounds (M1 to M8), for both forms of the attention.
//!
//! Expanded: keys and values of every head are kv_b's rows with the latent, each rounded; scores,
//! softmax and the weighted sum run over them. Absorbed (A7): the query is taken through kv_b's
//! key rows and rounded, scores and the weighted sum run over the latents, and the rounded
//! weighted latent goes through kv_b's value rows. In exact arithmetic the two are one value; they
//! round at different places. A subject may use either, so the bound is the larger of the two, the
//! distance between the two evaluations here included.

use super::arithmetic::Rounding;
use super::bounded::{Bounded, Terms};
use super::rows::{BoundedRows, SoftmaxWeights, zip};
use crate::mla::{MlaWeights, MlaWidths};
use crate::released::attention_scale;
use crate::rows::{map_rows, row};

/// The query \[T, heads·(nope+rope)\]: q_a, its norm, q_b.
#[must_use]
pub fn query(rounding: &Rounding, weights: &MlaWeights, x: &BoundedRows, eps: f64) -> BoundedRows {
    let low = rounding.apply(&weights.q_a, x);
    let norm = |row: &[Bounded]| rounding.rms_norm(row, &weights.q_a_norm, eps);
    rounding.apply(&weights.q_b, &map_rows(&low, low.ncols(), norm))
}

/// M7: o · σ(gate·x), then o_proj.
#[must_use]
pub fn output(
    rounding: &Rounding,
    weights: &MlaWeights,
    o: &BoundedRows,
    x: &BoundedRows,
) -> BoundedRows {
    let gate = rounding.apply(&weights.gate, x);
    let gated = zip(o, &gate, |o, g| rounding.step.mul(o, rounding.sigmoid(g)));
    rounding.apply(&weights.output, &gated)
}

/// What attention reads, all of it the subject's own.
#[derive(Debug)]
pub struct AttentionInputs {
    /// Queries of the call \[T, heads·(nope+rope)\].
    pub q: BoundedRows,
    /// Latents of every position, the cached ones first \[positions, kv_lora\].
    pub latent: BoundedRows,
    /// Shared key parts of every position \[positions, rope\].
    pub k_rope: BoundedRows,
    /// Positions before the call.
    pub cached: usize,
}

/// The attention of every head before the gate \[T, heads·v\].
#[must_use]
pub fn attention(
    rounding: &Rounding,
    weights: &MlaWeights,
    w: MlaWidths,
    inputs: &AttentionInputs,
) -> BoundedRows {
    let tokens = inputs.q.nrows();
    let key_value = rounding.apply(&weights.kv_b, &inputs.latent);
    let mut out = BoundedRows::default((tokens, w.heads * w.value));
    for head in 0..w.heads {
        let place = Head { rounding, widths: w, inputs, head };
        let rows = place.value_and_key_rows(weights);
        for token in 0..tokens {
            let expanded = place.expanded(&key_value, token);
            let absorbed = place.absorbed(&rows, token);
            for (column, (e, a)) in expanded.iter().zip(&absorbed).enumerate() {
                let apart = (e.value - a.value).abs();
                out[[token, head * w.value + column]] =
                    Bounded { value: e.value, error: e.error.max(a.error + apart) };
            }
        }
    }
    out
}

/// One query head.
struct Head<'a> {
    rounding: &'a Rounding,
    widths: MlaWidths,
    inputs: &'a AttentionInputs,
    head: usize,
}

/// kv_b's rows of one head, widened: keys \[nope\]\[kv_lora\], then values \[v\]\[kv_lora\].
struct HeadRows {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

impl Head<'_> {
    fn value_and_key_rows(&self, weights: &MlaWeights) -> HeadRows {
        let w = self.widths;
        let first = self.head * (w.nope + w.value);
        let widened = |index| {
            let mut buffer = Vec::new();
            weights.kv_b.row(index, &mut buffer).to_vec()
        };
        HeadRows {
            keys: (first..first + w.nope).map(widened).collect(),
            values: (first + w.nope..first + w.nope + w.value).map(widened).collect(),
        }
    }

    /// The query's \[nope\] and \[rope\] parts.
    fn query(&self, token: usize) -> (&[Bounded], &[Bounded]) {
        let w = self.widths;
        let width = w.nope + w.rope;
        row(&self.inputs.q, token)[self.head * width..][..width].split_at(w.nope)
    }

    /// The positions a token sees (M5): all up to its own.
    fn seen(&self, token: usize) -> std::ops::RangeInclusive<usize> {
        0..=self.inputs.cached + token
    }

    /// A score: one sum over both parts, rounded, times the scale (M4). A narrow subject may scale
    /// the query first, store that, sum the two parts apart, store them, and add.
    fn score<'b>(&self, pairs: impl Iterator<Item = (&'b Bounded, &'b Bounded)>) -> Bounded {
        let mut terms = Terms::default();
        let stored = |x| self.rounding.narrow_store(x);
        // Of q: the constant and the product.
        pairs.for_each(|(q, k)| terms.push(stored(stored(*q)), *k));
        let parts = stored(Bounded::exact(terms.magnitude)).error;
        terms.propagated += parts;
        let step = self.rounding.step;
        let scale = step.constant(attention_scale(self.widths));
        step.mul(step.round(self.rounding.wide.sum(terms)), scale)
    }

    /// The expanded form, with `key_value` = kv_b(latent) of every position.
    fn expanded(&self, key_value: &BoundedRows, token: usize) -> Vec<Bounded> {
        let w = self.widths;
        let (q_nope, q_rope) = self.query(token);
        let of_head = |position: usize| {
            let width = w.nope + w.value;
            row(key_value, position)[self.head * width..][..width].split_at(w.nope)
        };
        let (mut scores, mut values) = (Vec::new(), Vec::new());
        for position in self.seen(token) {
            let (key, value) = of_head(position);
            let k_rope = row(&self.inputs.k_rope, position);
            scores.push(self.score(q_nope.iter().zip(key).chain(q_rope.iter().zip(k_rope))));
            values.push(value);
        }
        let weights = SoftmaxWeights::new(self.rounding, &scores);
        let column = |column| weights.mean(self.rounding, &values, column);
        (0..w.value).map(column).collect()
    }

    /// The absorbed form.
    fn absorbed(&self, rows: &HeadRows, token: usize) -> Vec<Bounded> {
        let rounding = self.rounding;
        let (q_nope, q_rope) = self.query(token);
        let kv_lora = self.inputs.latent.ncols();
        let mut sums = vec![Terms::default(); kv_lora];
        for (q, key) in q_nope.iter().zip(&rows.keys) {
            for (terms, k) in sums.iter_mut().zip(key) {
                terms.push(*q, Bounded::exact(*k));
            }
        }
        let absorb = |terms| rounding.step.round(rounding.wide.sum(terms));
        let absorbed: Vec<Bounded> = sums.into_iter().map(absorb).collect();

        let (mut scores, mut latents) = (Vec::new(), Vec::new());
        for position in self.seen(token) {
            let latent = row(&self.inputs.latent, position);
            let k_rope = row(&self.inputs.k_rope, position);
            scores.push(self.score(absorbed.iter().zip(latent).chain(q_rope.iter().zip(k_rope))));
            latents.push(latent);
        }
        let weights = SoftmaxWeights::new(rounding, &scores);
        let column = |column| weights.mean(rounding, &latents, column);
        let weighted: Vec<Bounded> = (0..kv_lora).map(column).collect();
        let value = |row: &Vec<f64>| rounding.row_product(row, &weighted);
        rows.values.iter().map(value).collect()
    }
}
