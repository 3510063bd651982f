//! Hands intermediate values to a sink, widened exactly to f64; unwanted ones cost nothing.

use k3_core::stages::{Stage, StageKey, StageSink};

/// The sink together with the current layer.
pub(super) struct StageOutput<'a> {
    pub sink: &'a mut dyn StageSink,
    /// Zero-based layer, `None` outside the layers.
    pub layer: Option<usize>,
}

impl StageOutput<'_> {
    fn key(&self, stage: Stage) -> StageKey {
        StageKey { layer: self.layer, stage }
    }

    /// Whether the sink asks for this stage here.
    pub fn wants(&self, stage: Stage) -> bool {
        self.sink.wants(self.key(stage))
    }

    /// Puts f32 values.
    pub fn put(&mut self, stage: Stage, shape: &[usize], values: &[f32]) {
        if self.wants(stage) {
            let wide: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
            self.sink.put(self.key(stage), shape, &wide);
        }
    }

    /// Puts columns `columns` of rows of `width` f32 values.
    pub fn put_columns(
        &mut self,
        stage: Stage,
        values: &[f32],
        width: usize,
        columns: std::ops::Range<usize>,
    ) {
        if self.wants(stage) {
            let rows = values.chunks_exact(width);
            let part: Vec<f32> = rows.flat_map(|row| &row[columns.clone()]).copied().collect();
            self.put(stage, &[values.len() / width, columns.len()], &part);
        }
    }

    /// Puts expert ids.
    pub fn put_ids(&mut self, stage: Stage, shape: &[usize], ids: &[i32]) {
        if self.wants(stage) {
            self.sink.put_ids(self.key(stage), shape, ids);
        }
    }
}
