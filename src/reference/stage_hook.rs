//! Passes each stage value to the hook, then to the sink.
//!
//! The hook sees every stage value before any later step reads it, and what it leaves is what they
//! read. The reference leaves all as computed. A hook that rounds measures the noise floor of a
//! storage precision; one that notes the value and puts a subject's own in its place has every
//! stage computed from the subject's inputs. Both are defined elsewhere.

use std::fmt::Debug;

use super::rows::{Rows, values_mut};
use k3_core::stages::{Stage, StageKey, StageSink};

/// Sees, and may change, stage values before they are read.
pub trait StageHook: Debug + Sync {
    /// Called with real values, in execution order. `kda.state` comes here after every token, one
    /// head \[D, D\] at a time, and whole \[H, D, D\] at the end of a call.
    fn stored(&self, key: StageKey, values: &mut [f64]);
    /// Called with the chosen experts of each token, ascending. What it leaves must be ids of
    /// experts, distinct within a token, as many for every token.
    fn stored_ids(&self, key: StageKey, chosen: &mut [Vec<usize>]);
}

/// Leaves every value as it was computed.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsComputed;

impl StageHook for AsComputed {
    fn stored(&self, _key: StageKey, _values: &mut [f64]) {}
    fn stored_ids(&self, _key: StageKey, _chosen: &mut [Vec<usize>]) {}
}

/// The stages of one layer, or of the model.
pub struct Stages<'a> {
    layer: Option<usize>,
    hook: &'a dyn StageHook,
    sink: &'a mut dyn StageSink,
}

impl Debug for Stages<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Stages");
        debug.field("layer", &self.layer).field("hook", &self.hook);
        debug.finish_non_exhaustive()
    }
}

impl<'a> Stages<'a> {
    /// Stages of layer `layer`, or of the whole model.
    pub fn new(layer: Option<usize>, hook: &'a dyn StageHook, sink: &'a mut dyn StageSink) -> Self {
        Self { layer, hook, sink }
    }

    fn key(&self, stage: Stage) -> StageKey {
        StageKey { layer: self.layer, stage }
    }

    /// Shows values to the hook without putting them out.
    pub fn show(&self, stage: Stage, values: &mut [f64]) {
        self.hook.stored(self.key(stage), values);
    }

    /// Shows values to the hook, then puts them out where they are wanted.
    pub fn put(&mut self, stage: Stage, shape: &[usize], values: &mut [f64]) {
        let key = self.key(stage);
        self.hook.stored(key, values);
        if self.sink.wants(key) {
            self.sink.put(key, shape, values);
        }
    }

    /// [`Stages::put`] for rows, \[T, width\].
    pub fn put_rows(&mut self, stage: Stage, rows: &mut Rows) {
        let shape = [rows.nrows(), rows.ncols()];
        self.put(stage, &shape, values_mut(rows));
    }

    /// Shows the chosen experts \[T\]\[k\] to the hook, then puts them out where they are wanted.
    pub fn put_ids(&mut self, stage: Stage, chosen: &mut [Vec<usize>]) {
        let key = self.key(stage);
        self.hook.stored_ids(key, chosen);
        if self.sink.wants(key) {
            let shape = [chosen.len(), chosen.first().map_or(0, Vec::len)];
            // Expert counts fit i32 by far.
            let ids: Vec<i32> = chosen.iter().flatten().map(|id| *id as i32).collect();
            self.sink.put_ids(key, &shape, &ids);
        }
    }
}
