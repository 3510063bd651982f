//! Mutants of the residual mixes and the banks (clauses R1 to R7).

use super::super::arithmetic::{sigmoid, weighted_sum};
use super::super::formulas::{Formulas, NormSite, RELEASED};
use super::super::released;
use super::super::residual::mix_rows;
use super::super::rows::dot;
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "mix-oldest-bank-lost",
        &["R1"],
        "the oldest bank is no source once there are two",
        Formulas {
            mix_sources: |banks, sum| {
                released::mix_sources(&banks[usize::from(banks.len() > 1)..], sum)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-newest-bank-lost",
        &["R1"],
        "the newest bank is no source once there are two",
        Formulas {
            mix_sources: |banks, sum| {
                let kept = banks.len() - usize::from(banks.len() > 1);
                released::mix_sources(&banks[..kept], sum)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-sum-left-out",
        &["R1"],
        "the running sum is no source of the mix",
        Formulas { mix_sources: |banks, _| banks.to_vec(), ..RELEASED },
    ),
    mutant(
        "mix-sum-added",
        &["R1"],
        "the mix weights are those of a softmax, but the running sum is taken whole",
        Formulas {
            mix_weights: |scores| {
                let mut weights = released::mix_weights(scores);
                weights.splice(scores.len() - 1.., [1.0]);
                weights
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-uniform",
        &["R1"],
        "the sources are averaged",
        Formulas {
            mix_weights: |scores| vec![1.0 / scores.len() as f64; scores.len()],
            ..RELEASED
        },
    ),
    mutant(
        "mix-sigmoid",
        &["R1"],
        "each source is weighted by a logistic of its own instead of a softmax",
        Formulas { mix_weights: |scores| scores.iter().map(|s| sigmoid(*s)).collect(), ..RELEASED },
    ),
    mutant(
        "mix-keys-raw",
        &["R2"],
        "the scores are taken from the raw sources",
        Formulas { mix_score: |_, _, source, fold, _| dot(source, fold), ..RELEASED },
    ),
    mutant(
        "mix-values-normed",
        &["R2"],
        "the normed sources are mixed instead of the raw ones",
        Formulas {
            mix: |formulas, site, sources, fold, eps| {
                let score = |s: &&[f64]| (formulas.mix_score)(formulas, site, s, fold, eps);
                let scores: Vec<f64> = sources.iter().map(score).collect();
                let normed = sources.iter().map(|source| released::normalise(site, source, eps));
                let normed: Vec<Vec<f64>> = normed.collect();
                weighted_sum(&normed, &(formulas.mix_weights)(&scores), fold.len())
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-scores-scaled",
        &["R2"],
        "the scores are divided by the root of the width, as in attention",
        Formulas {
            mix_score: |formulas, site, source, fold, eps| {
                let score = released::mix_score(formulas, site, source, fold, eps);
                score / (source.len() as f64).sqrt()
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-mlp-fold-for-attention",
        &["R3"],
        "the attention-side mix uses the MLP mixer's weights",
        Formulas {
            attention_input: |pass, layer, banks, sum| match banks {
                [] => sum.clone(),
                _ => mix_rows(pass, NormSite::AttnMix, banks, sum, &layer.mlp_fold),
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-attention-fold-for-mlp",
        &["R3"],
        "the MLP-side mix uses the attention mixer's weights",
        Formulas {
            mlp_input: |pass, layer, banks, sum| {
                let fold = layer.attention_fold.as_ref().unwrap_or(&layer.mlp_fold);
                mix_rows(pass, NormSite::MlpMix, banks, sum, fold)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-norm-weight-dropped",
        &["R3"],
        "the mixer's norm weight is not folded into its projection",
        Formulas { fold: |_, proj| proj.to_vec(), ..RELEASED },
    ),
    mutant(
        "mix-projection-dropped",
        &["R3"],
        "the mixer's norm weight is used without its projection",
        Formulas { fold: |norm, _| norm.to_vec(), ..RELEASED },
    ),
    mutant(
        "mix-attention-skipped-at-block-start",
        &["R4"],
        "the attention-side mix is left out in every layer that opens a block",
        Formulas {
            attention_input: |pass, layer, banks, sum| {
                if layer.index.is_multiple_of(pass.config.attn_res_block_size) {
                    return sum.clone();
                }
                released::attention_input(pass, layer, banks, sum)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-attention-skipped-in-first-block",
        &["R4"],
        "the attention-side mix begins with the second bank",
        Formulas {
            attention_input: |pass, layer, banks, sum| match banks.len() {
                0 | 1 => sum.clone(),
                _ => released::attention_input(pass, layer, banks, sum),
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-attention-skipped",
        &["R4"],
        "attention reads the running sum and never a mix",
        Formulas { attention_input: |_, _, _, sum| sum.clone(), ..RELEASED },
    ),
    mutant(
        "bank-mixed-sum",
        &["R5"],
        "the mix is banked instead of the running sum",
        Formulas {
            bank: |pass, layer, residual| {
                let (banks, sum) = (&residual.banks, &residual.sum);
                let mixed = released::attention_input(pass, layer, banks, sum);
                residual.banks.push(mixed);
            },
            ..RELEASED
        },
    ),
    mutant(
        "bank-block-off-by-one",
        &["R5"],
        "a bank is pushed in the layer before the block's first",
        Formulas {
            opens_block: |index, block| index == 0 || (index + 1).is_multiple_of(block),
            ..RELEASED
        },
    ),
    mutant(
        "bank-block-one-late",
        &["R5"],
        "after the first, a bank is pushed one layer too late",
        Formulas {
            opens_block: |index, block| index == 0 || (index > 1 && index % block == 1),
            ..RELEASED
        },
    ),
    mutant(
        "bank-block-literal",
        &["R5"],
        "the released block of 12 is hard-coded",
        Formulas { opens_block: |index, _| index.is_multiple_of(12), ..RELEASED },
    ),
    mutant(
        "bank-embedding-only",
        &["R5"],
        "only the embedding is banked",
        Formulas { opens_block: |index, _| index == 0, ..RELEASED },
    ),
    mutant(
        "bank-every-layer",
        &["R5"],
        "every layer pushes a bank",
        Formulas { opens_block: |_, _| true, ..RELEASED },
    ),
    mutant(
        "sum-not-restarted",
        &["R6"],
        "the sum goes on after it was banked",
        Formulas { sum_after_attention: |_, sum, attention| sum + attention, ..RELEASED },
    ),
    mutant(
        "sum-restarted-in-every-layer",
        &["R6"],
        "the sum restarts from the attention output in every layer",
        Formulas { sum_after_attention: |_, _, attention| attention.clone(), ..RELEASED },
    ),
    mutant(
        "mix-mlp-old-banks",
        &["R7"],
        "the MLP-side mix of the layer that pushes a bank does not see it",
        Formulas {
            mlp_input: |pass, layer, banks, sum| {
                let block = pass.config.attn_res_block_size;
                let new = usize::from(released::opens_block(layer.index, block));
                released::mlp_input(pass, layer, &banks[..banks.len() - new], sum)
            },
            ..RELEASED
        },
    ),
    mutant(
        "mix-mlp-skipped",
        &["R7"],
        "the MLP reads the running sum and never a mix",
        Formulas {
            mlp_input: |pass, layer, _, sum| released::mlp_input(pass, layer, &[], sum),
            ..RELEASED
        },
    ),
    mutant(
        "mix-output-skipped",
        &["R7"],
        "the final norm reads the running sum of the last layer",
        Formulas {
            output_input: |pass, closing, _, sum| released::output_input(pass, closing, &[], sum),
            ..RELEASED
        },
    ),
    mutant(
        "mix-output-newest-bank-lost",
        &["R7"],
        "the output mix does not see the newest bank",
        Formulas {
            output_input: |pass, closing, banks, sum| {
                released::output_input(pass, closing, &banks[..banks.len() - 1], sum)
            },
            ..RELEASED
        },
    ),
];
