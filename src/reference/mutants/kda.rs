//! Mutants of KDA up to the recurrence: convolution, norms, β, decay (clauses K1 to K8).

use super::super::error::ReferenceError;
use super::super::formulas::{Formulas, L2_NORM_EPS, Part, Released, sigmoid, silu};
use super::super::kda::DecayInputs;
use super::super::rows::{Rows, dot};
use super::ReferenceMutant;

/// log(1 + exp(x)).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// exp(A_log\[h\]) and z + dt_bias of the channel.
fn rate_and_input(d: &DecayInputs<'_>) -> (f64, f64) {
    let channel = d.head * d.head_dim + d.channel;
    (d.a_log[d.head].exp(), d.z[channel] + d.dt_bias[channel])
}

/// The taps of every channel, oldest first, rearranged within the channel.
fn rearranged(taps: &[f64], kernel: usize, arrange: impl Fn(&mut [f64])) -> Vec<f64> {
    let mut taps = taps.to_vec();
    taps.chunks_exact_mut(kernel).for_each(arrange);
    taps
}

mutants! {
    TapsReversed "conv-taps-reversed" [K1]
    "the taps are applied newest to oldest" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let reversed = rearranged(taps, history.count() + 1, <[f64]>::reverse);
            Released.convolve(part, history, input, &reversed)
        }
    }

    TapsTransposed "conv-taps-transposed" [K1]
    "the taps are read as [kernel, P]" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let kernel = history.count() + 1;
            let at = |i: usize| taps[(i % kernel) * input.width + i / kernel];
            let turned: Vec<f64> = (0..taps.len()).map(at).collect();
            Released.convolve(part, history, input, &turned)
        }
    }

    OldestTapLost "conv-oldest-tap-lost" [K1]
    "the window is one input too short" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let cut = rearranged(taps, history.count() + 1, |taps| taps[0] = 0.0);
            Released.convolve(part, history, input, &cut)
        }
    }

    NotCausal "conv-not-causal" [K1]
    "the window is centred, so a token sees the next one" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let mut shifted = Rows::empty(input.width);
            for row in input.iter().skip(1) {
                shifted.push(row);
            }
            shifted.push(&vec![0.0; input.width]);
            let mut before = Rows::empty(input.width);
            for row in history.iter().skip(1).chain(input.iter().take(1)) {
                before.push(row);
            }
            Released.convolve(part, &before, &shifted, taps)
        }
    }

    EdgeRepeated "conv-history-repeats-first" [K1]
    "the inputs before position 0 are copies of the first, not zeros" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let mut padded = history.clone();
            for row in 0..padded.count() {
                if padded.row(row).iter().all(|v| *v == 0.0) {
                    padded.row_mut(row).copy_from_slice(input.row(0));
                }
            }
            Released.convolve(part, &padded, input, taps)
        }
    }

    NoConvolution "conv-skipped" [K1]
    "the projections go to the activation without a convolution" {
        fn convolve(&self, _part: Part, _history: &Rows, input: &Rows, _taps: &[f64]) -> Rows {
            input.clone()
        }
    }

    NoSiluOnQ "conv-no-silu-q" [K2]
    "q has no SiLU" {
        fn convolution_activation(&self, part: Part, x: f64) -> f64 {
            if part == Part::Query { x } else { silu(x) }
        }
    }

    NoSiluOnK "conv-no-silu-k" [K2]
    "k has no SiLU" {
        fn convolution_activation(&self, part: Part, x: f64) -> f64 {
            if part == Part::Key { x } else { silu(x) }
        }
    }

    NoSiluOnV "conv-no-silu-v" [K2]
    "v has no SiLU" {
        fn convolution_activation(&self, part: Part, x: f64) -> f64 {
            if part == Part::Value { x } else { silu(x) }
        }
    }

    SigmoidForSilu "conv-sigmoid" [K2]
    "the logistic is used instead of SiLU" {
        fn convolution_activation(&self, _part: Part, x: f64) -> f64 {
            sigmoid(x)
        }
    }

    SiluBefore "conv-silu-before" [K2]
    "SiLU is applied before the convolution" {
        fn convolve(&self, part: Part, history: &Rows, input: &Rows, taps: &[f64]) -> Rows {
            let row = |x: &[f64]| x.iter().map(|x| silu(*x)).collect();
            let (history, input) = (history.map(input.width, row), input.map(input.width, row));
            Released.convolve(part, &history, &input, taps)
        }
        fn convolution_activation(&self, _part: Part, x: f64) -> f64 {
            x
        }
    }

    NoNormOnQ "l2norm-skipped-q" [K3]
    "q is not l2-normed" {
        fn kda_head(&self, part: Part, head: &[f64]) -> Vec<f64> {
            if part == Part::Query { head.to_vec() } else { Released.kda_head(part, head) }
        }
    }

    NoNormOnK "l2norm-skipped-k" [K3]
    "k is not l2-normed" {
        fn kda_head(&self, part: Part, head: &[f64]) -> Vec<f64> {
            if part == Part::Key { head.to_vec() } else { Released.kda_head(part, head) }
        }
    }

    NormOnV "l2norm-on-v" [K3]
    "v is l2-normed too" {
        fn kda_head(&self, _part: Part, head: &[f64]) -> Vec<f64> {
            self.l2_norm(head)
        }
    }

    MeanForSum "l2norm-mean" [K3]
    "the mean of squares is taken instead of their sum" {
        fn l2_norm(&self, head: &[f64]) -> Vec<f64> {
            let root = (dot(head, head) / head.len() as f64 + L2_NORM_EPS).sqrt();
            head.iter().map(|t| t / root).collect()
        }
    }

    L2EpsOutside "l2norm-eps-outside-root" [K3]
    "ε of the l2norm is added outside the root" {
        fn l2_norm(&self, head: &[f64]) -> Vec<f64> {
            let divisor = dot(head, head).sqrt() + L2_NORM_EPS;
            head.iter().map(|t| t / divisor).collect()
        }
    }

    L2EpsDropped "l2norm-eps-dropped" [K3]
    "ε of the l2norm is left out but for zero vectors" {
        fn l2_norm(&self, head: &[f64]) -> Vec<f64> {
            let divisor = dot(head, head).sqrt().max(1e-12);
            head.iter().map(|t| t / divisor).collect()
        }
    }

    L2EpsOther "l2norm-eps-1e-5" [K3]
    "1e-5, the released rms_norm_eps, is used in the l2norm" {
        fn l2_norm(&self, head: &[f64]) -> Vec<f64> {
            let root = (dot(head, head) + 1e-5).sqrt();
            head.iter().map(|t| t / root).collect()
        }
    }

    NoQueryScale "kda-query-unscaled" [K4]
    "q is not scaled" {
        fn kda_query_scale(&self, _head_dim: usize) -> f64 {
            1.0
        }
    }

    QueryScaleWithoutRoot "kda-query-scale-without-root" [K4]
    "q is divided by the head width instead of its root" {
        fn kda_query_scale(&self, head_dim: usize) -> f64 {
            1.0 / head_dim as f64
        }
    }

    KeyScaledToo "kda-key-scaled" [K4]
    "k is scaled as q is" {
        fn kda_head(&self, part: Part, head: &[f64]) -> Vec<f64> {
            let scale = if part == Part::Key { self.kda_query_scale(head.len()) } else { 1.0 };
            Released.kda_head(part, head).iter().map(|t| t * scale).collect()
        }
    }

    BetaOfNextHead "beta-next-head" [K5]
    "β is taken from the next head" {
        fn beta(&self, logits: &[f64], head: usize) -> f64 {
            sigmoid(logits[(head + 1) % logits.len()])
        }
    }

    BetaOfFirstHead "beta-shared" [K5]
    "all heads use the first head's β" {
        fn beta(&self, logits: &[f64], _head: usize) -> f64 {
            sigmoid(logits[0])
        }
    }

    BetaRaw "beta-raw" [K5]
    "β is used without the logistic" {
        fn beta(&self, logits: &[f64], head: usize) -> f64 {
            logits[head]
        }
    }

    BetaDoubled "beta-doubled" [K5]
    "β is doubled, as where negative eigenvalues are allowed" {
        fn beta(&self, logits: &[f64], head: usize) -> f64 {
            2.0 * sigmoid(logits[head])
        }
    }

    SiluBetweenDecayPair "decay-silu-between" [K6]
    "SiLU stands between f_a and f_b" {
        fn decay_hidden(&self, hidden: Vec<f64>) -> Vec<f64> {
            hidden.into_iter().map(silu).collect()
        }
    }

    OneHeadForAll "decay-first-head-for-all" [K6]
    "the first head's rows of f_b serve every head" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let bias = d.dt_bias[d.head * d.head_dim + d.channel];
            let rate = d.a_log[d.head].exp();
            d.lower_bound * sigmoid(rate * (d.z[d.channel] + bias))
        }
    }

    BiasOutsideRate "decay-bias-outside" [K6]
    "dt_bias is added after the multiplication with exp(A_log)" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let channel = d.head * d.head_dim + d.channel;
            let rate = d.a_log[d.head].exp();
            d.lower_bound * sigmoid(rate * d.z[channel] + d.dt_bias[channel])
        }
    }

    BiasDropped "decay-bias-dropped" [K6]
    "dt_bias is left out" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let rate = d.a_log[d.head].exp();
            d.lower_bound * sigmoid(rate * d.z[d.head * d.head_dim + d.channel])
        }
    }

    BiasPerHead "decay-bias-per-head" [K6]
    "dt_bias is read as one value per head" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let z = d.z[d.head * d.head_dim + d.channel];
            d.lower_bound * sigmoid(d.a_log[d.head].exp() * (z + d.dt_bias[d.head]))
        }
    }

    SoftplusDecay "decay-softplus" [K7]
    "the older decay −exp(A_log)·softplus is used" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let (rate, input) = rate_and_input(d);
            -rate * softplus(input)
        }
    }

    SoftplusClamped "decay-softplus-clamped" [K7]
    "the older decay −exp(A_log)·softplus is used and clamped at the bound" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let (rate, input) = rate_and_input(d);
            (-rate * softplus(input)).max(d.lower_bound)
        }
    }

    LiteralBound "decay-bound-literal" [K7]
    "the released bound −5 stands in the code" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            Released.log_decay(&DecayInputs { lower_bound: -5.0, ..*d })
        }
    }

    RateWithoutExp "decay-rate-without-exp" [K7]
    "A_log is used without exp" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let (_, input) = rate_and_input(d);
            d.lower_bound * sigmoid(d.a_log[d.head] * input)
        }
    }

    RateOutside "decay-rate-outside" [K7]
    "exp(A_log) multiplies the logistic instead of its argument" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let (rate, input) = rate_and_input(d);
            d.lower_bound * rate * sigmoid(input)
        }
    }

    RatePerChannel "decay-rate-per-channel" [K7 K8]
    "A_log is taken per channel of the head, padding included" {
        fn decay_rates(
            &self,
            _layer: usize,
            stored: &[f64],
            _heads: usize,
        ) -> Result<Vec<f64>, ReferenceError> {
            Ok(stored.to_vec())
        }
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let channel = d.head * d.head_dim + d.channel;
            let rate = d.a_log[d.channel].exp();
            d.lower_bound * sigmoid(rate * (d.z[channel] + d.dt_bias[channel]))
        }
    }

    RateOfNextHead "decay-rate-next-head" [K7]
    "A_log is taken from the next head" {
        fn log_decay(&self, d: &DecayInputs<'_>) -> f64 {
            let (_, input) = rate_and_input(d);
            let rate = d.a_log[(d.head + 1) % d.a_log.len()].exp();
            d.lower_bound * sigmoid(rate * input)
        }
    }

    RatesFromTail "decay-rates-from-tail" [K8]
    "A_log is sliced at its end, where the padding is" {
        fn decay_rates(
            &self,
            _layer: usize,
            stored: &[f64],
            heads: usize,
        ) -> Result<Vec<f64>, ReferenceError> {
            Ok(stored[stored.len() - heads..].to_vec())
        }
    }

    PaddingNotChecked "decay-padding-not-checked" [K8]
    "non-zero padding of A_log is cut off in silence" {
        fn decay_rates(
            &self,
            _layer: usize,
            stored: &[f64],
            heads: usize,
        ) -> Result<Vec<f64>, ReferenceError> {
            Ok(stored[..heads].to_vec())
        }
    }
}
