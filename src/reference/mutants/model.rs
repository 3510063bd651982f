//! Mutants of the layer map, the embedding and the head (clauses L1 to L3).

use super::super::formulas::{AttentionKind, Formulas, NormSite, RELEASED};
use super::super::model::EMBEDDING;
use super::super::released;
use super::super::rows::map_rows;
use super::norms::no_norm;
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "layer-map-zero-based",
        &["L1"],
        "the one-based layer lists are read as zero-based",
        Formulas {
            layer_kind: |index, config| {
                let mla = config.full_attn_layers.contains(&index);
                if mla { AttentionKind::Mla } else { AttentionKind::Kda }
            },
            ..RELEASED
        },
    ),
    mutant(
        "layer-map-every-fourth",
        &["L1"],
        "every fourth layer is taken for MLA, so the last one is missed",
        Formulas {
            layer_kind: |index, _| {
                let mla = (index + 1).is_multiple_of(4);
                if mla { AttentionKind::Mla } else { AttentionKind::Kda }
            },
            ..RELEASED
        },
    ),
    mutant(
        "dense-rule-off",
        &["L2"],
        "every layer is taken to be LatentMoE",
        Formulas { is_dense: |_, _| false, ..RELEASED },
    ),
    mutant(
        "dense-rule-inclusive",
        &["L2"],
        "first_k_dense_replace is taken as the last dense index",
        Formulas { is_dense: |index, config| index <= config.first_k_dense_replace, ..RELEASED },
    ),
    mutant(
        "embedding-next-row",
        &["L3"],
        "the embedding row after the id's own is read",
        Formulas { embedding: |table, id| table.row((id + 1) % table.vocabulary), ..RELEASED },
    ),
    mutant(
        "embedding-scaled",
        &["L3"],
        "embedding rows are multiplied by the root of the width, as other models do",
        Formulas {
            embedding: |table, id| {
                let scale = (table.width as f64).sqrt();
                Ok(table.row(id)?.iter().map(|x| x * scale).collect())
            },
            ..RELEASED
        },
    ),
    mutant(
        "head-next-row",
        &["L3"],
        "a logit is computed from the head row after its own",
        Formulas {
            logits: |head, normed| {
                map_rows(&released::logits(head, normed), head.rows(), |logits| {
                    let mut logits = logits.to_vec();
                    logits.rotate_left(1);
                    logits
                })
            },
            ..RELEASED
        },
    ),
    mutant(
        "head-tied-to-embedding",
        &["L3"],
        "the embedding table is used as the head",
        Formulas {
            head: |reader, config| {
                reader.bf16_matrix(EMBEDDING, config.vocab_size, config.hidden_size)
            },
            ..RELEASED
        },
    ),
    mutant(
        "final-norm-skipped",
        &["L3"],
        "the head reads the last mix without the final norm",
        no_norm!(Final),
    ),
];
