//! Mutants of gated MLA (clauses M1 to M8).

use super::super::arithmetic::{sigmoid, silu};
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::released;
use super::super::rows::dot;
use super::{ReferenceMutant, mutant};

/// Rotates neighbouring pairs, pair i by position · 10000^(−2i/width).
fn rotate(part: &[f64], position: usize) -> Vec<f64> {
    let mut out = part.to_vec();
    for (i, pair) in out.chunks_exact_mut(2).enumerate() {
        let exponent = -2.0 * i as f64 / part.len() as f64;
        let (sin, cos) = (position as f64 * 10000f64.powf(exponent)).sin_cos();
        let (a, b) = (pair[0], pair[1]);
        pair.copy_from_slice(&[a * cos - b * sin, a * sin + b * cos]);
    }
    out
}

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "mla-query-rope-first",
        &["M1"],
        "a query head is read as [rope, nope]",
        Formulas {
            split_query: |q, head, w| {
                let width = w.nope + w.rope;
                let (rope, nope) = q[head * width..][..width].split_at(w.rope);
                (nope, rope)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-query-parts-apart",
        &["M1"],
        "the queries are read as the nope parts of all heads, then the rope parts",
        Formulas {
            split_query: |q, head, w| {
                let (nope, rope) = q.split_at(w.heads * w.nope);
                (&nope[head * w.nope..][..w.nope], &rope[head * w.rope..][..w.rope])
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-latent-norm-over-rope",
        &["M2"],
        "the mean square of the latent norm is taken over the rope part too",
        Formulas {
            latent: |formulas, compressed, weight, eps| {
                let normed = (formulas.normalise)(NormSite::MlaKv, compressed, eps);
                normed.iter().zip(weight).map(|(x, w)| x * w).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-rope-before-latent",
        &["M2", "M3"],
        "kv_a's output is read as [rope, latent]",
        Formulas {
            latent: |formulas, compressed, weight, eps| {
                let latent = &compressed[compressed.len() - weight.len()..];
                (formulas.rms_norm)(formulas, NormSite::MlaKv, latent, weight, eps)
            },
            shared_key: |compressed, kv_lora, _| compressed[..compressed.len() - kv_lora].to_vec(),
            ..RELEASED
        },
    ),
    mutant(
        "mla-rope-dropped",
        &["M3"],
        "the rope part is not scored, since it is never rotated",
        Formulas { attention_dot: |q, k, _| dot(q.0, k.0), ..RELEASED },
    ),
    mutant(
        "mla-rope-normed",
        &["M3"],
        "the shared key part is normed",
        Formulas {
            shared_key: |compressed, kv_lora, _| {
                released::normalise(NormSite::MlaKv, &compressed[kv_lora..], 1e-6)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-rope-rotated",
        &["M3"],
        "the rope parts of queries and keys are rotated by position",
        Formulas {
            shared_key: |compressed, kv_lora, position| rotate(&compressed[kv_lora..], position),
            attention_dot: |q, k, position| dot(q.0, k.0) + dot(&rotate(q.1, position), k.1),
            ..RELEASED
        },
    ),
    mutant(
        "mla-rope-not-cached",
        &["M3", "M8"],
        "only the latent of earlier calls is kept, their rope part is lost",
        Formulas {
            extend_cache: |cache, entries| {
                cache.k_rope.fill(0.0);
                cache.append(entries);
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-scale-nope-only",
        &["M4"],
        "the scores are scaled by the nope width alone",
        Formulas { attention_scale: |widths| (widths.nope as f64).sqrt().recip(), ..RELEASED },
    ),
    mutant(
        "mla-scale-value-width",
        &["M4"],
        "the scores are scaled by the value width",
        Formulas { attention_scale: |widths| (widths.value as f64).sqrt().recip(), ..RELEASED },
    ),
    mutant(
        "mla-unscaled",
        &["M4"],
        "the scores are not scaled",
        Formulas { attention_scale: |_| 1.0, ..RELEASED },
    ),
    mutant(
        "mla-not-causal",
        &["M5"],
        "a query sees the later positions of its call",
        Formulas { sees: |_, _| true, ..RELEASED },
    ),
    mutant(
        "mla-self-not-seen",
        &["M5"],
        "a query after the first does not see its own position",
        Formulas {
            sees: |query_position, key_position| key_position < query_position.max(1),
            ..RELEASED
        },
    ),
    mutant(
        "mla-first-position-not-seen",
        &["M5"],
        "position 0 is not seen by later queries",
        Formulas {
            sees: |query_position, key_position| {
                key_position <= query_position && (key_position > 0 || query_position == 0)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-no-softmax",
        &["M5"],
        "the raw scores weigh the values",
        Formulas { attention_weights: |scores| scores.to_vec(), ..RELEASED },
    ),
    mutant(
        "mla-softmax-plus-one",
        &["M5"],
        "the softmax has a sink of score zero",
        Formulas {
            attention_weights: |scores| {
                let mut with_sink = scores.to_vec();
                with_sink.push(0.0);
                let mut weights = released::attention_weights(&with_sink);
                weights.pop();
                weights
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-value-before-key",
        &["M6"],
        "kv_b is read per head as [v, k_nope]",
        Formulas {
            split_key_value: |kv, head, w| {
                let width = w.nope + w.value;
                let (value, key) = kv[head * width..][..width].split_at(w.value);
                (key, value)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-keys-then-values",
        &["M6"],
        "kv_b is read as the keys of all heads, then the values",
        Formulas {
            split_key_value: |kv, head, w| {
                let (keys, values) = kv.split_at(w.heads * w.nope);
                (&keys[head * w.nope..][..w.nope], &values[head * w.value..][..w.value])
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-gate-skipped",
        &["M7"],
        "the output gate is left out",
        Formulas { mla_output: |o, _| o.to_vec(), ..RELEASED },
    ),
    mutant(
        "mla-gate-silu",
        &["M7"],
        "the output gate is SiLU",
        Formulas {
            mla_output: |o, gate| o.iter().zip(gate).map(|(o, g)| o * silu(*g)).collect(),
            ..RELEASED
        },
    ),
    mutant(
        "mla-gate-with-norm",
        &["M7"],
        "the attention output is normed before the gate, as in KDA",
        Formulas {
            mla_output: |o, gate| {
                let normed = released::normalise(NormSite::KdaOutput, o, 1e-5);
                normed.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-cache-overwritten",
        &["M8"],
        "every call writes its entries from the start of the cache",
        Formulas {
            extend_cache: |cache, entries| {
                cache.truncate(0);
                cache.append(entries);
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-cache-position-off-by-one",
        &["M8"],
        "every call writes its first entry over the last one of the call before",
        Formulas {
            extend_cache: |cache, entries| {
                cache.truncate(cache.positions().saturating_sub(1));
                cache.append(entries);
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-cache-of-64",
        &["M8"],
        "the cache has room for 64 positions and silently stops growing there",
        Formulas {
            extend_cache: |cache, entries| {
                cache.append(entries);
                cache.truncate(64);
            },
            ..RELEASED
        },
    ),
    mutant(
        "mla-cache-entry-twice",
        &["M8"],
        "the first entry of a later call is appended twice",
        Formulas {
            extend_cache: |cache, entries| {
                if cache.positions() > 0 {
                    let mut first = entries.clone();
                    first.truncate(1);
                    cache.append(&first);
                }
                cache.append(entries);
            },
            ..RELEASED
        },
    ),
];
