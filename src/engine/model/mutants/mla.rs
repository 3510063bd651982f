//! Family (b): gated MLA (M1…M8).

use std::ops::Range;

use crate::kernels::norm;
use crate::model::{HeadAttention, Operations, Shape, State};

/// Rotates pairs (i, i + half) by position · 10000^(−i/half), as rotary embeddings do.
fn rotate(part: &mut [f32], position: usize) {
    let half = part.len() / 2;
    for i in 0..half {
        let angle = position as f64 * 10_000_f64.powf(-(i as f64) / half as f64);
        let (sin, cos) = angle.sin_cos();
        let (a, b) = (f64::from(part[i]), f64::from(part[i + half]));
        part[i] = (a * cos - b * sin) as f32;
        part[i + half] = (a * sin + b * cos) as f32;
    }
}

/// The right attention with other scores' inputs.
fn attend_with(
    operations: &dyn Operations,
    head: &HeadAttention<'_>,
    query: &[f32],
    rows: &[f32],
    out: &mut [f32],
) {
    crate::model::mla::attend_absorbed(operations, &HeadAttention { query, rows, ..*head }, out);
}

engine_mutants! { Composition
    "m1-query-not-normed" ["M1"] "no norm between q_a and q_b" {
        fn mla_query_norm(&self, x: &[f32], _: &[f32], _: f64, out: &mut [f32]) {
            out.copy_from_slice(x);
        }
    }
    "m1-rope-part-first" ["M1"] "q is split as rope, then nope" {
        fn query_parts(&self, nope: usize, rope: usize) -> (Range<usize>, Range<usize>) {
            (rope..rope + nope, 0..rope)
        }
    }
    "m2-latent-not-normed" ["M2"] "the latent is cached without its norm" {
        fn cache_row(&self, compressed: &[f32], _: &[f32], _: f64, out: &mut [f32]) {
            out.copy_from_slice(compressed);
        }
    }
    "m2-norm-over-all-columns" ["M2"] "the latent's mean of squares includes the rope part" {
        fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let mut weights = weight.to_vec();
            weights.resize(compressed.len(), 1.0);
            norm::rms_norm(compressed, &weights, epsilon, out);
            out[weight.len()..].copy_from_slice(&compressed[weight.len()..]);
        }
    }
    "m3-rope-part-normed" ["M3"] "the rope part is normed too" {
        fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let latent = weight.len();
            norm::rms_norm(&compressed[..latent], weight, epsilon, &mut out[..latent]);
            norm::rms_norm_unit(&compressed[latent..], epsilon, &mut out[latent..]);
        }
    }
    "m3-rope-part-not-cached" ["M3"] "the rope part is cached as zero" {
        fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            let latent = weight.len();
            norm::rms_norm(&compressed[..latent], weight, epsilon, &mut out[..latent]);
            out[latent..].fill(0.0);
        }
    }
    "m3-rope-part-not-scored" ["M3"] "the scores leave out the rope part of q" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            let mut query = head.query.to_vec();
            query[head.shape.nope..].fill(0.0);
            attend_with(self, head, &query, head.rows, out);
        }
    }
    "m3-rotated" ["M3"] "rotary positions are applied to the rope parts" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            let (mut query, mut rows) = (head.query.to_vec(), head.rows.to_vec());
            rotate(&mut query[head.shape.nope..], head.position);
            let width = head.shape.cache_width();
            for (position, row) in rows.chunks_exact_mut(width).enumerate() {
                rotate(&mut row[head.shape.kv_lora..], position);
            }
            attend_with(self, head, &query, &rows, out);
        }
    }
    "m4-scale-of-the-nope-part" ["M4"] "scores are scaled by the nope width alone" {
        fn attention_scale(&self, nope: usize, _rope: usize) -> f32 {
            norm::inverse_root(nope)
        }
    }
    "m4-not-scaled" ["M4"] "scores are not scaled" {
        fn attention_scale(&self, _nope: usize, _rope: usize) -> f32 {
            1.0
        }
    }
    "m5-not-causal" ["M5"] "a token sees the later tokens of its chunk" {
        fn visible(&self, _position: usize, cached: usize) -> Range<usize> {
            0..cached
        }
    }
    "m5-not-itself" ["M5"] "a token does not see itself" {
        fn visible(&self, position: usize, _cached: usize) -> Range<usize> {
            0..position.max(1)
        }
    }
    "m5-window-of-eight" ["M5"] "only the last eight positions are seen" {
        fn visible(&self, position: usize, _cached: usize) -> Range<usize> {
            (position + 1).saturating_sub(8)..position + 1
        }
    }
    "m6-values-before-keys" ["M6"] "kv_b is read per head as values, then keys" {
        fn kv_b_rows(&self, shape: &Shape, head: usize) -> (Range<usize>, Range<usize>) {
            let first = head * (shape.nope + shape.v_width);
            let middle = first + shape.v_width;
            (middle..middle + shape.nope, first..middle)
        }
    }
    "m6-all-keys-then-all-values" ["M6"] "kv_b is read as the keys of all heads, then the values" {
        fn kv_b_rows(&self, shape: &Shape, head: usize) -> (Range<usize>, Range<usize>) {
            let keys = head * shape.nope;
            let values = shape.mla_heads * shape.nope + head * shape.v_width;
            (keys..keys + shape.nope, values..values + shape.v_width)
        }
    }
    "m7-silu-gate" ["M7"] "the output gate is SiLU" {
        fn mla_gate(&self, values: &mut [f32], gate: &mut [f32]) {
            self.silu_all(gate);
            values.iter_mut().zip(gate).for_each(|(value, gate)| *value *= *gate);
        }
    }
    "m7-no-gate" ["M7"] "the output is not gated" {
        fn mla_gate(&self, _values: &mut [f32], _gate: &mut [f32]) {}
    }
    "m7-norm-before-gate" ["M7"] "the output is normed before its gate, as KDA's is" {
        fn mla_gate(&self, values: &mut [f32], gate: &mut [f32]) {
            let raw = values.to_vec();
            norm::rms_norm_unit(&raw, 1e-5, values);
            self.output_gate(values, gate);
        }
    }
    "m8-cache-not-carried" ["M8"] "earlier calls' positions are forgotten" {
        fn before_chunk(&self, state: &mut State) {
            state.mla.iter_mut().for_each(|cache| cache.rows.fill(0.0));
        }
    }
}
