//! Sites of gated MLA (M1…M8).

use crate::kernels::norm;
use crate::model::mla::attend_absorbed;
use crate::model::{Contract, HeadAttention, State};

sites! {
    "m1-query" "M1" "the normed low-rank query" {
        fn mla_query_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm(x, weight, epsilon, out);
            self.0.all(out);
        }
    }
    "m2-latent" "M2" "the normed latent in the cache" {
        fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            Contract::default().cache_row(compressed, weight, epsilon, out);
            self.0.all(&mut out[..weight.len()]);
        }
    }
    "m3-rope-part" "M3" "the rope part in the cache" {
        fn cache_row(&self, compressed: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            Contract::default().cache_row(compressed, weight, epsilon, out);
            self.0.all(&mut out[weight.len()..]);
        }
    }
    "m4-scale" "M4" "the scale of the scores" {
        fn attention_scale(&self, nope: usize, rope: usize) -> f32 {
            self.0.single(norm::inverse_root(nope + rope))
        }
    }
    "m5-leak" "M5" "blend: attention that sees one later token of the chunk" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            attend_absorbed(self, head, out);
            let position = head.position + 1;
            if head.rows.len() / head.shape.cache_width() > position {
                let mut leaked = vec![0.0; out.len()];
                attend_absorbed(self, &HeadAttention { position, ..*head }, &mut leaked);
                for (out, leaked) in out.iter_mut().zip(leaked) {
                    *out = self.0.blend(*out, leaked);
                }
            }
        }
    }
    "m6-keys" "M6" "kv_b's keys" {
        fn absorbed_query(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            Contract { path: self.path() }.absorbed_query(head, out);
            self.0.all(&mut out[..head.shape.kv_lora]);
        }
    }
    "m6-values" "M6" "kv_b's values" {
        fn attend(&self, head: &HeadAttention<'_>, out: &mut [f32]) {
            attend_absorbed(self, head, out);
            self.0.all(out);
        }
    }
    "m7-gate" "M7" "the argument of MLA's output gate" {
        fn mla_gate(&self, values: &mut [f32], gate: &mut [f32]) {
            self.0.all(gate);
            self.output_gate(values, gate);
        }
    }
    "m8-cache" "M8" "the cache carried into a call" {
        fn before_chunk(&self, state: &mut State) {
            state.mla.iter_mut().for_each(|cache| self.0.all(&mut cache.rows));
        }
    }
}
