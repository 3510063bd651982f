//! Sites of the embedding, the head, the norms and the attention residuals (L, N1, R).

use crate::kernels::norm;
use crate::kernels::rows::Row;
use crate::model::{Contract, Operations};

/// A mix of sources some of which have been perturbed.
fn mix_of(
    operations: &dyn Operations,
    sources: &[Vec<f32>],
    (folded, epsilon): (&[f32], f64),
    keys: &mut [f32],
    out: &mut [f32],
) {
    let sources: Vec<&[f32]> = sources.iter().map(Vec::as_slice).collect();
    Contract { path: operations.path() }.residual_mix(&sources, folded, epsilon, keys, out);
}

sites! {
    "l3-embedding" "L3" "the embedding row" {
        fn embed(&self, row: Row<'_>, out: &mut [f32]) {
            Contract::default().embed(row, out);
            self.0.all(out);
        }
    }
    "n1-norm" "N1" "the result of every RMSNorm" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm(x, weight, epsilon, out);
            self.0.all(out);
        }
        fn rms_norm_unit(&self, x: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm_unit(x, epsilon, out);
            self.0.all(out);
        }
    }
    "n1-epsilon" "N1" "epsilon of every RMSNorm" {
        fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm(x, weight, self.0.of(epsilon), out);
        }
        fn rms_norm_unit(&self, x: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm_unit(x, self.0.of(epsilon), out);
        }
    }
    "r1-running-sum" "R1" "the running sum among a mix's sources" {
        fn residual_mix(
            &self, sources: &[&[f32]], folded: &[f32], epsilon: f64, keys: &mut [f32],
            out: &mut [f32],
        ) {
            let mut all: Vec<Vec<f32>> = sources.iter().map(|source| source.to_vec()).collect();
            all.iter_mut().rev().take(1).for_each(|running| self.0.all(running));
            mix_of(self, &all, (folded, epsilon), keys, out);
        }
    }
    "r2-keys" "R2" "the normed keys of every mix" {
        fn rms_norm_unit(&self, x: &[f32], epsilon: f64, out: &mut [f32]) {
            norm::rms_norm_unit(x, epsilon, out);
            self.0.all(out);
        }
    }
    "r2-values" "R2" "the values of every mix" {
        fn residual_mix(
            &self, sources: &[&[f32]], folded: &[f32], epsilon: f64, keys: &mut [f32],
            out: &mut [f32],
        ) {
            Contract { path: self.path() }.residual_mix(sources, folded, epsilon, keys, out);
            self.0.all(out);
        }
    }
    "r3-folded-vector" "R3" "the folded vector of every mixer" {
        fn fold(&self, norm: &[f32], projection: &[f32]) -> Vec<f32> {
            self.0.copy(&Contract::default().fold(norm, projection))
        }
    }
    "r5-banks" "R5" "the banks among a mix's sources" {
        fn residual_mix(
            &self, sources: &[&[f32]], folded: &[f32], epsilon: f64, keys: &mut [f32],
            out: &mut [f32],
        ) {
            let mut all: Vec<Vec<f32>> = sources.iter().map(|source| source.to_vec()).collect();
            all.iter_mut().rev().skip(1).for_each(|bank| self.0.all(bank));
            mix_of(self, &all, (folded, epsilon), keys, out);
        }
    }
    "r6-addend" "R6" "what a layer's attention and MLP add to the running sum" {
        fn add(&self, running: &mut [f32], addend: &[f32]) {
            Contract::default().add(running, &self.0.copy(addend));
        }
    }
}
