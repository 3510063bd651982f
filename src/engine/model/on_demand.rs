//! Layers and experts read anew every time they are asked for: any model in the memory of one
//! layer and the experts of one token. For measurements and proofs, not for speed.

use std::sync::Arc;

use super::{EngineError, Expert, ExpertSource, LayerSource, LayerWeights, Shape, WeightSource};

/// Reads what is asked for, every time anew.
#[derive(Debug)]
pub struct OnDemand<S> {
    /// Widths and layers.
    pub shape: Shape,
    /// Where the bytes come from.
    pub source: Arc<S>,
}

impl<S: WeightSource + Send + Sync + std::fmt::Debug> LayerSource for OnDemand<S> {
    fn layer(&self, layer: usize) -> Result<Arc<LayerWeights>, EngineError> {
        LayerWeights::load(&self.shape, &*self.source, layer).map(Arc::new)
    }
}

impl<S: WeightSource + Send + Sync + std::fmt::Debug> ExpertSource for OnDemand<S> {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        let load = |&id: &usize| Expert::load(&self.shape, &*self.source, layer, id).map(Arc::new);
        ids.iter().map(load).collect()
    }

    fn batch_limit(&self) -> usize {
        // All of a chunk's choices at once would be a whole layer of experts.
        self.shape.moe.top_k
    }
}
