//! Mutants of the layer map, the embedding and the head (clauses L1 to L3).

use super::super::error::ReferenceError;
use super::super::formulas::{AttentionKind, Formulas};
use super::super::rows::Rows;
use super::ReferenceMutant;
use crate::config::RawConfig;
use crate::stages::{Stage, StageKey};

mutants! {
    ZeroBasedLayers "layer-map-zero-based" [L1]
    "the one-based layer lists are read as zero-based" {
        fn layer_kind(
            &self,
            index: usize,
            config: &RawConfig,
        ) -> Result<AttentionKind, ReferenceError> {
            let mla = config.full_attn_layers.contains(&index);
            Ok(if mla { AttentionKind::Mla } else { AttentionKind::Kda })
        }
    }

    EveryFourthLayer "layer-map-every-fourth" [L1]
    "MLA is taken to stand at every fourth layer, so the last one is missed" {
        fn layer_kind(
            &self,
            index: usize,
            _config: &RawConfig,
        ) -> Result<AttentionKind, ReferenceError> {
            let mla = (index + 1).is_multiple_of(4);
            Ok(if mla { AttentionKind::Mla } else { AttentionKind::Kda })
        }
    }

    NoDenseLayer "dense-rule-off" [L2]
    "every layer is taken to be LatentMoE" {
        fn is_dense(&self, _index: usize, _config: &RawConfig) -> bool {
            false
        }
    }

    OneDenseTooMany "dense-rule-inclusive" [L2]
    "first_k_dense_replace is taken as the last dense index" {
        fn is_dense(&self, index: usize, config: &RawConfig) -> bool {
            index <= config.first_k_dense_replace
        }
    }

    NextEmbedding "embedding-next-row" [L3]
    "the embedding row after the id's own is read" {
        fn embedding_row(&self, id: usize, vocabulary: usize) -> usize {
            (id + 1) % vocabulary
        }
    }

    ScaledEmbedding "embedding-scaled" [L3]
    "embedding rows are multiplied by the root of the width, as other models do" {
        fn stored(&self, key: StageKey, values: &mut [f64]) {
            if key.stage == Stage::Embed {
                // All rows are scaled alike; which power of two stands for the root is no matter.
                values.iter_mut().for_each(|v| *v *= 8.0);
            }
        }
    }

    NextHeadRow "head-next-row" [L3]
    "a logit is computed from the head row after its own" {
        fn head_row(&self, logit: usize, vocabulary: usize) -> usize {
            (logit + 1) % vocabulary
        }
    }

    TiedHead "head-tied-to-embedding" [L3]
    "the embedding table is used as the head" {
        fn head_tensor(&self) -> &'static str {
            "language_model.model.embed_tokens.weight"
        }
    }

    NoFinalNorm "final-norm-skipped" [L3]
    "the head reads the last mix without the final norm" {
        fn head_input(&self, mixed: &Rows, _normed: Rows) -> Rows {
            mixed.clone()
        }
    }
}
