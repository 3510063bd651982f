//! Mutants of the residual mixes and the banks (clauses R1 to R7).

use super::super::formulas::{Folds, Formulas, NormSite, Released, sigmoid};
use super::super::rows::{Rows, add, dot};
use super::ReferenceMutant;

mutants! {
    OldestBankLost "mix-oldest-bank-lost" [R1]
    "the oldest bank is no source once there are two" {
        fn mix_sources<'a>(&self, banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]> {
            Released.mix_sources(&banks[usize::from(banks.len() > 1)..], sum)
        }
    }

    NewestBankLost "mix-newest-bank-lost" [R1]
    "the newest bank is no source once there are two" {
        fn mix_sources<'a>(&self, banks: &[&'a [f64]], sum: &'a [f64]) -> Vec<&'a [f64]> {
            let kept = banks.len() - usize::from(banks.len() > 1);
            Released.mix_sources(&banks[..kept], sum)
        }
    }

    SumNoSource "mix-sum-left-out" [R1]
    "the running sum is no source of the mix" {
        fn mix_sources<'a>(&self, banks: &[&'a [f64]], _sum: &'a [f64]) -> Vec<&'a [f64]> {
            banks.to_vec()
        }
    }

    SumAddedAfter "mix-sum-added" [R1]
    "the mix weights are those of a softmax, but the running sum is taken whole" {
        fn mix_weights(&self, scores: &[f64]) -> Vec<f64> {
            let mut weights = Released.mix_weights(scores);
            weights.splice(scores.len() - 1.., [1.0]);
            weights
        }
    }

    UniformMix "mix-uniform" [R1]
    "the sources are averaged" {
        fn mix_weights(&self, scores: &[f64]) -> Vec<f64> {
            vec![1.0 / scores.len() as f64; scores.len()]
        }
    }

    SigmoidMix "mix-sigmoid" [R1]
    "each source is weighted by a logistic of its own instead of a softmax" {
        fn mix_weights(&self, scores: &[f64]) -> Vec<f64> {
            scores.iter().map(|s| sigmoid(*s)).collect()
        }
    }

    RawKeys "mix-keys-raw" [R2]
    "the scores are taken from the raw sources" {
        fn mix_score(&self, _site: NormSite, source: &[f64], fold: &[f64], _eps: f64) -> f64 {
            dot(source, fold)
        }
    }

    NormedValues "mix-values-normed" [R2]
    "the normed sources are mixed instead of the raw ones" {
        fn mix_value(&self, site: NormSite, source: &[f64], eps: f64) -> Vec<f64> {
            self.normalise(site, source, eps)
        }
    }

    ScaledScores "mix-scores-scaled" [R2]
    "the scores are divided by the root of the width, as in attention" {
        fn mix_score(&self, site: NormSite, source: &[f64], fold: &[f64], eps: f64) -> f64 {
            let score = Released.mix_score(site, source, fold, eps);
            score / (source.len() as f64).sqrt()
        }
    }

    MlpFoldForAttention "mix-mlp-fold-for-attention" [R3]
    "the attention-side mix uses the MLP mixer's weights" {
        fn fold_of<'a>(&self, _site: NormSite, folds: Folds<'a>) -> Option<&'a [f64]> {
            Some(folds.mlp)
        }
    }

    AttentionFoldForMlp "mix-attention-fold-for-mlp" [R3]
    "the MLP-side mix uses the attention mixer's weights" {
        fn fold_of<'a>(&self, _site: NormSite, folds: Folds<'a>) -> Option<&'a [f64]> {
            folds.attention.or(Some(folds.mlp))
        }
    }

    NormWeightNotFolded "mix-norm-weight-dropped" [R3]
    "the mixer's norm weight is not folded into its projection" {
        fn fold(&self, _norm: &[f64], proj: &[f64]) -> Vec<f64> {
            proj.to_vec()
        }
    }

    ProjectionDropped "mix-projection-dropped" [R3]
    "the mixer's norm weight is used without its projection" {
        fn fold(&self, norm: &[f64], _proj: &[f64]) -> Vec<f64> {
            norm.to_vec()
        }
    }

    NoMixAtBlockStart "mix-attention-skipped-at-block-start" [R4]
    "the attention-side mix is left out in every layer that opens a block" {
        fn mixes_before_attention(&self, index: usize, block: usize, banks: usize) -> bool {
            banks > 0 && !index.is_multiple_of(block)
        }
    }

    NoMixInFirstBlock "mix-attention-skipped-in-first-block" [R4]
    "the attention-side mix begins with the second bank" {
        fn mixes_before_attention(&self, _index: usize, _block: usize, banks: usize) -> bool {
            banks > 1
        }
    }

    NoAttentionMix "mix-attention-skipped" [R4]
    "attention reads the running sum and never a mix" {
        fn mixes_before_attention(&self, _index: usize, _block: usize, _banks: usize) -> bool {
            false
        }
    }

    MixedSumBanked "bank-mixed-sum" [R5]
    "the mix is banked instead of the running sum" {
        fn banked(&self, _sum: &Rows, mixed: &Rows) -> Rows {
            mixed.clone()
        }
    }

    BlockOffByOne "bank-block-off-by-one" [R5]
    "a bank is pushed in the layer before the block's first" {
        fn opens_block(&self, index: usize, block: usize) -> bool {
            index == 0 || (index + 1).is_multiple_of(block)
        }
    }

    BlockAfter "bank-block-one-late" [R5]
    "after the first, a bank is pushed one layer too late" {
        fn opens_block(&self, index: usize, block: usize) -> bool {
            index == 0 || (index > 1 && index % block == 1)
        }
    }

    LiteralBlock "bank-block-literal" [R5]
    "the released block of 12 stands in the code" {
        fn opens_block(&self, index: usize, _block: usize) -> bool {
            index.is_multiple_of(12)
        }
    }

    OneBankOnly "bank-embedding-only" [R5]
    "only the embedding is banked" {
        fn opens_block(&self, index: usize, _block: usize) -> bool {
            index == 0
        }
    }

    BankEveryLayer "bank-every-layer" [R5]
    "every layer pushes a bank" {
        fn opens_block(&self, _index: usize, _block: usize) -> bool {
            true
        }
    }

    SumNotCleared "sum-not-restarted" [R6]
    "the sum goes on after it was banked" {
        fn sum_after_attention(&self, _opens_block: bool, sum: &Rows, attention: &Rows) -> Rows {
            add(sum, attention)
        }
    }

    SumAlwaysCleared "sum-restarted-in-every-layer" [R6]
    "the sum restarts from the attention output in every layer" {
        fn sum_after_attention(&self, _opens_block: bool, _sum: &Rows, attention: &Rows) -> Rows {
            attention.clone()
        }
    }

    OldBanksForMlp "mix-mlp-old-banks" [R7]
    "the MLP-side mix of the layer that pushes a bank does not see it" {
        fn banks_before_mlp<'a>(&self, opens_block: bool, banks: &'a [Rows]) -> &'a [Rows] {
            &banks[..banks.len() - usize::from(opens_block)]
        }
    }

    NoMlpMix "mix-mlp-skipped" [R7]
    "the MLP reads the running sum and never a mix" {
        fn banks_before_mlp<'a>(&self, _opens_block: bool, banks: &'a [Rows]) -> &'a [Rows] {
            &banks[..0]
        }
    }

    NoOutputMix "mix-output-skipped" [R7]
    "the final norm reads the running sum of the last layer" {
        fn banks_before_output<'a>(&self, banks: &'a [Rows]) -> &'a [Rows] {
            &banks[..0]
        }
    }

    OutputMixOldBanks "mix-output-newest-bank-lost" [R7]
    "the output mix does not see the newest bank" {
        fn banks_before_output<'a>(&self, banks: &'a [Rows]) -> &'a [Rows] {
            &banks[..banks.len() - 1]
        }
    }
}
