//! What the engine measures on a synthetic checkpoint: sizes of the running sum, spread of routing.
//!
//! The layers are read one at a time and the experts as they are chosen, so that a model of any
//! size needs the memory of one layer. Everything printed comes out of this pass; nothing is
//! derived from the rules.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

use super::values::stream;
use k3_checkpoint::{Checkpoint, CheckpointError, LayerKind, ModelShape};
use k3_core::config::RawConfig;
use k3_core::stages::{Stage, StageKey, StageSink};
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    Engine, EngineError, EngineOptions, EngineSequence, ExpertSource, LayerSource, OnDemand, Shape,
    Weights,
};

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The folder cannot be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The engine refuses, or comes to values that are not finite.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probe {
    /// Tokens fed, drawn from the seed.
    pub tokens: usize,
    /// Layer by layer.
    pub layers: Vec<LayerStatistics>,
    /// RMS of the logits of all tokens.
    pub logits_rms: f64,
    /// Largest magnitude among them.
    pub logits_max: f64,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerStatistics {
    /// Zero-based.
    pub layer: usize,
    /// `KDA` or `MLA`.
    pub attention: &'static str,
    /// RMS of the running sum after the layer.
    pub rms: f64,
    /// Its largest magnitude.
    pub max: f64,
    /// Routing, where there is any.
    pub router: Option<RouterStatistics>,
}

/// How the choices of one layer's router spread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouterStatistics {
    /// Entropy of the experts' shares of all choices, in bits.
    pub entropy_bits: f64,
    /// What it would be if the choices were spread as evenly as can be.
    pub most_bits: f64,
    /// Experts chosen at least once.
    pub used: usize,
    /// Experts there are.
    pub experts: usize,
}

/// Feeds `tokens` ids to the engine and measures.
///
/// # Errors
/// The checkpoint cannot be opened or bound, or a value is not finite.
pub fn probe(
    folder: &Path,
    config: &RawConfig,
    model: &ModelShape,
    (seed, tokens, threads): (u64, usize, usize),
) -> Result<Probe, ProbeError> {
    let source = Arc::new(Checkpoint::open(folder)?);
    let shape = Shape::derive(config)?;
    let weights = Weights::load(&shape, &*source)?;
    let read = || OnDemand { shape: shape.clone(), source: Arc::clone(&source) };
    let sources: (Box<dyn LayerSource>, Box<dyn ExpertSource>) =
        (Box::new(read()), Box::new(read()));
    let options = EngineOptions { threads, chunk_tokens: tokens };
    let engine = Engine::new(Kernels::fastest(), shape.clone(), weights, sources, options)?;
    let mut draws = stream(seed, "probe ids");
    let ids: Vec<u32> = (0..tokens).map(|_| draws.below(config.vocab_size as u64) as u32).collect();
    let mut sink = Sink::default();
    let logits = EngineSequence::new(Arc::new(engine)).feed_with(&ids, &mut sink)?;
    let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
    Ok(Probe {
        tokens,
        layers: statistics(&sink, model),
        logits_rms: rms(&logits),
        logits_max: largest(&logits),
    })
}

fn statistics(sink: &Sink, model: &ModelShape) -> Vec<LayerStatistics> {
    let layers = model.layers.iter().enumerate();
    let measured = layers.filter_map(|(layer, shape)| {
        let &(rms, max) = sink.sums.get(&layer)?;
        Some(LayerStatistics {
            layer,
            attention: match shape.kind {
                LayerKind::Kda => "KDA",
                LayerKind::Mla => "MLA",
            },
            rms,
            max,
            router: sink.choices.get(&layer).map(|ids| spread(ids, model.moe.experts)),
        })
    });
    measured.collect()
}

fn spread(ids: &[i32], experts: usize) -> RouterStatistics {
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    for &id in ids {
        *counts.entry(id).or_default() += 1;
    }
    let total = ids.len() as f64;
    let bits = |count: usize| {
        let share = count as f64 / total;
        if count == 0 { 0.0 } else { -share * share.log2() }
    };
    // As even as can be: some experts once more than the others.
    let (each, once_more) = (ids.len() / experts, ids.len() % experts);
    let most_bits = bits(each + 1) * once_more as f64 + bits(each) * (experts - once_more) as f64;
    RouterStatistics {
        entropy_bits: counts.values().map(|&count| bits(count)).sum(),
        most_bits,
        used: counts.len(),
        experts,
    }
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max: f64, v| max.max(v.abs()))
}

/// Keeps RMS and maximum of the running sums, and the router's choices.
#[derive(Debug, Default)]
struct Sink {
    sums: BTreeMap<usize, (f64, f64)>,
    choices: BTreeMap<usize, Vec<i32>>,
}

impl StageSink for Sink {
    fn wants(&self, key: StageKey) -> bool {
        matches!(key.stage, Stage::Out | Stage::RouterIds)
    }

    fn put(&mut self, key: StageKey, _shape: &[usize], values: &[f64]) {
        if let Some(layer) = key.layer {
            self.sums.insert(layer, (rms(values), largest(values)));
        }
    }

    fn put_ids(&mut self, key: StageKey, _shape: &[usize], ids: &[i32]) {
        if let Some(layer) = key.layer {
            self.choices.insert(layer, ids.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entropy of shares, not of counts; its most is reached by an even spread and no other.
    #[test]
    fn entropy_is_that_of_the_shares() {
        let even = spread(&[0, 1, 2, 3, 0, 1], 4);
        assert!((even.entropy_bits - even.most_bits).abs() < 1e-12, "{even:?}");
        let all_alike = spread(&[2, 2, 2, 2], 4);
        assert_eq!((all_alike.entropy_bits, all_alike.used), (0.0, 1));
        assert_eq!(all_alike.most_bits, 2.0);
        assert_eq!(spread(&[0, 1], 8).entropy_bits, 1.0);
    }
}
