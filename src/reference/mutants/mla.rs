//! Mutants of gated MLA (clauses M1 to M8).

use super::super::formulas::{Formulas, NormSite, Released, sigmoid, silu};
use super::super::mla::{MlaCache, MlaWidths};
use super::super::rows::dot;
use super::ReferenceMutant;

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

mutants! {
    RopeFirst "mla-query-rope-first" [M1]
    "a query head is read as [rope, nope]" {
        fn split_query<'a>(
            &self,
            q: &'a [f64],
            head: usize,
            w: MlaWidths,
        ) -> (&'a [f64], &'a [f64]) {
            let width = w.nope + w.rope;
            let (rope, nope) = q[head * width..][..width].split_at(w.rope);
            (nope, rope)
        }
    }

    QueryPartsApart "mla-query-parts-apart" [M1]
    "the queries are read as the nope parts of all heads, then the rope parts" {
        fn split_query<'a>(
            &self,
            q: &'a [f64],
            head: usize,
            w: MlaWidths,
        ) -> (&'a [f64], &'a [f64]) {
            let (nope, rope) = q.split_at(w.heads * w.nope);
            (&nope[head * w.nope..][..w.nope], &rope[head * w.rope..][..w.rope])
        }
    }

    NormOverRopeToo "mla-latent-norm-over-rope" [M2]
    "the mean square of the latent norm is taken over the rope part too" {
        fn latent(&self, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
            let normed = self.normalise(NormSite::MlaKv, compressed, eps);
            normed.iter().zip(weight).map(|(x, w)| x * w).collect()
        }
    }

    RopeBeforeLatent "mla-rope-before-latent" [M2 M3]
    "kv_a's output is read as [rope, latent]" {
        fn latent(&self, compressed: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
            let latent = &compressed[compressed.len() - weight.len()..];
            self.rms_norm(NormSite::MlaKv, latent, weight, eps)
        }
        fn shared_key(&self, compressed: &[f64], kv_lora: usize) -> Vec<f64> {
            compressed[..compressed.len() - kv_lora].to_vec()
        }
    }

    RopeDropped "mla-rope-dropped" [M3]
    "the rope part is not scored, since it is never rotated" {
        fn attention_dot(&self, q: (&[f64], &[f64]), k: (&[f64], &[f64])) -> f64 {
            dot(q.0, k.0)
        }
    }

    RopeNormed "mla-rope-normed" [M3]
    "the shared key part is normed" {
        fn shared_key(&self, compressed: &[f64], kv_lora: usize) -> Vec<f64> {
            self.normalise(NormSite::MlaKv, &compressed[kv_lora..], 1e-6)
        }
    }

    RopeRotated "mla-rope-rotated" [M3]
    "the rope parts of queries and keys are rotated by position" {
        fn positioned(&self, part: &[f64], position: usize) -> Vec<f64> {
            rotate(part, position)
        }
    }

    RopeNotCached "mla-rope-not-cached" [M3 M8]
    "only the latent of earlier calls is kept, their rope part is lost" {
        fn extend_cache(&self, cache: &mut MlaCache, entries: &MlaCache) {
            cache.k_rope.values.fill(0.0);
            cache.append(entries);
        }
    }

    ScaleByNope "mla-scale-nope-only" [M4]
    "the scores are scaled by the nope width alone" {
        fn attention_scale(&self, widths: MlaWidths) -> f64 {
            (widths.nope as f64).sqrt().recip()
        }
    }

    ScaleByValue "mla-scale-value-width" [M4]
    "the scores are scaled by the value width" {
        fn attention_scale(&self, widths: MlaWidths) -> f64 {
            (widths.value as f64).sqrt().recip()
        }
    }

    NoScale "mla-unscaled" [M4]
    "the scores are not scaled" {
        fn attention_scale(&self, _widths: MlaWidths) -> f64 {
            1.0
        }
    }

    NoCausalMask "mla-not-causal" [M5]
    "a query sees the later positions of its call" {
        fn sees(&self, _query_position: usize, _key_position: usize) -> bool {
            true
        }
    }

    SelfNotSeen "mla-self-not-seen" [M5]
    "a query after the first does not see its own position" {
        fn sees(&self, query_position: usize, key_position: usize) -> bool {
            key_position < query_position.max(1)
        }
    }

    FirstNotSeen "mla-first-position-not-seen" [M5]
    "position 0 is not seen by later queries" {
        fn sees(&self, query_position: usize, key_position: usize) -> bool {
            key_position <= query_position && (key_position > 0 || query_position == 0)
        }
    }

    NoSoftmax "mla-no-softmax" [M5]
    "the raw scores weigh the values" {
        fn attention_weights(&self, scores: &[f64]) -> Vec<f64> {
            scores.to_vec()
        }
    }

    SoftmaxWithSink "mla-softmax-plus-one" [M5]
    "the softmax has a sink of score zero" {
        fn attention_weights(&self, scores: &[f64]) -> Vec<f64> {
            let mut with_sink = scores.to_vec();
            with_sink.push(0.0);
            let mut weights = Released.attention_weights(&with_sink);
            weights.pop();
            weights
        }
    }

    ValueFirst "mla-value-before-key" [M6]
    "kv_b is read per head as [v, k_nope]" {
        fn split_key_value<'a>(
            &self,
            kv: &'a [f64],
            head: usize,
            w: MlaWidths,
        ) -> (&'a [f64], &'a [f64]) {
            let width = w.nope + w.value;
            let (value, key) = kv[head * width..][..width].split_at(w.value);
            (key, value)
        }
    }

    KeysThenValues "mla-keys-then-values" [M6]
    "kv_b is read as the keys of all heads, then the values" {
        fn split_key_value<'a>(
            &self,
            kv: &'a [f64],
            head: usize,
            w: MlaWidths,
        ) -> (&'a [f64], &'a [f64]) {
            let (keys, values) = kv.split_at(w.heads * w.nope);
            (&keys[head * w.nope..][..w.nope], &values[head * w.value..][..w.value])
        }
    }

    NoMlaGate "mla-gate-skipped" [M7]
    "the output gate is left out" {
        fn mla_output(&self, o: &[f64], _gate: &[f64]) -> Vec<f64> {
            o.to_vec()
        }
    }

    SiluMlaGate "mla-gate-silu" [M7]
    "the output gate is SiLU" {
        fn mla_output(&self, o: &[f64], gate: &[f64]) -> Vec<f64> {
            o.iter().zip(gate).map(|(o, g)| o * silu(*g)).collect()
        }
    }

    NormBeforeMlaGate "mla-gate-with-norm" [M7]
    "the attention output is normed before the gate, as in KDA" {
        fn mla_output(&self, o: &[f64], gate: &[f64]) -> Vec<f64> {
            let normed = self.normalise(NormSite::KdaOutput, o, 1e-5);
            normed.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
        }
    }

    CacheRestarted "mla-cache-overwritten" [M8]
    "every call writes its entries from the start of the cache" {
        fn extend_cache(&self, cache: &mut MlaCache, entries: &MlaCache) {
            cache.truncate(0);
            cache.append(entries);
        }
    }

    CacheOffByOne "mla-cache-position-off-by-one" [M8]
    "every call writes its first entry over the last one of the call before" {
        fn extend_cache(&self, cache: &mut MlaCache, entries: &MlaCache) {
            cache.truncate(cache.positions().saturating_sub(1));
            cache.append(entries);
        }
    }

    CacheEntryTwice "mla-cache-entry-twice" [M8]
    "the first entry of a later call is appended twice" {
        fn extend_cache(&self, cache: &mut MlaCache, entries: &MlaCache) {
            if cache.positions() > 0 {
                let mut first = entries.clone();
                first.truncate(1);
                cache.append(&first);
            }
            cache.append(entries);
        }
    }
}
