//! What a sequence carries from one call to the next (K13, M8): nothing is global.
//!
//! KDA layers have a slot with the recurrent state and the convolution inputs; MLA layers have a
//! growing cache of rows \[latent | rope\]. Residual banks are per token and are not carried.
//! Cloning a state takes it out; putting a clone back continues from there, in the same bits.

use super::{EngineError, LayerKind, Shape};

/// State of one KDA layer.
#[derive(Debug, Clone, PartialEq)]
pub struct KdaState {
    /// S per head \[H, key width, value width\], rows = key index.
    pub recurrent: Vec<f32>,
    /// The last kernel−1 inputs of the q, k and v convolutions, oldest first
    /// \[3, kernel−1, P\].
    pub convolution: Vec<f32>,
}

impl KdaState {
    /// Before the first position: zeros.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        let projection = shape.kda.width;
        Self {
            recurrent: vec![0.0; projection * shape.kda.head_dim],
            convolution: vec![0.0; 3 * (shape.kda.taps - 1) * projection],
        }
    }
}

/// Cache of one MLA layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LatentCache {
    /// One row per position \[positions, kv_lora + rope\].
    pub rows: Vec<f32>,
}

/// The state of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// By KDA slot.
    pub kda: Vec<KdaState>,
    /// By MLA slot.
    pub mla: Vec<LatentCache>,
    /// Positions fed so far.
    pub position: usize,
    /// Set during a call; still set afterwards only if that call failed.
    pub interrupted: bool,
}

impl State {
    /// A state at position 0: zero recurrences, zero convolution inputs, empty caches.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        // Each slot asks for zeros of its own: memory is taken where a layer writes.
        let slot = |_| KdaState::new(shape);
        Self {
            kda: (0..shape.count(LayerKind::Kda)).map(slot).collect(),
            mla: vec![LatentCache::default(); shape.count(LayerKind::Mla)],
            position: 0,
            interrupted: false,
        }
    }

    /// Back to position 0; memory is kept.
    pub fn clear(&mut self) {
        for slot in &mut self.kda {
            slot.recurrent.fill(0.0);
            slot.convolution.fill(0.0);
        }
        self.mla.iter_mut().for_each(|cache| cache.rows.clear());
        (self.position, self.interrupted) = (0, false);
    }

    /// Makes room for `positions` positions in all, exactly: a cache that grows by doubling would
    /// hold up to twice what the plan says, and both copies while it moves.
    pub fn reserve(&mut self, shape: &Shape, positions: usize) {
        let wanted = positions * shape.mla.cache_width;
        for cache in &mut self.mla {
            let more = wanted.saturating_sub(cache.rows.len());
            cache.rows.reserve_exact(more);
        }
    }

    /// Refuses a state that another model made, or that a failed call left half-way.
    ///
    /// # Errors
    /// [`EngineError::ForeignState`] naming the part, [`EngineError::InterruptedState`].
    pub fn check(&self, shape: &Shape) -> Result<(), EngineError> {
        if self.interrupted {
            return Err(EngineError::InterruptedState { position: self.position });
        }
        let foreign = |what: &str, got: usize, expected: usize| {
            let text = format!("{what}: {got}, expected {expected}");
            if got == expected { Ok(()) } else { Err(EngineError::ForeignState(text)) }
        };
        let projection = shape.kda.width;
        foreign("KDA slots", self.kda.len(), shape.count(LayerKind::Kda))?;
        foreign("MLA slots", self.mla.len(), shape.count(LayerKind::Mla))?;
        for slot in &self.kda {
            let history = 3 * (shape.kda.taps - 1) * projection;
            foreign("recurrent values", slot.recurrent.len(), projection * shape.kda.head_dim)?;
            foreign("convolution inputs", slot.convolution.len(), history)?;
        }
        for cache in &self.mla {
            foreign("cached values", cache.rows.len(), self.position * shape.mla.cache_width)?;
        }
        Ok(())
    }
}
