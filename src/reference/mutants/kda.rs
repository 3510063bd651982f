//! Mutants of KDA's convolutions, head norms and β (clauses K1 to K5).

use super::super::arithmetic::{sigmoid, silu};
use super::super::formulas::{Formulas, Part, RELEASED};
use super::super::released::{self, L2_NORM_EPS};
use super::super::rows::{Rows, dot};
use super::{ReferenceMutant, mutant};

/// The taps of every channel, oldest first, rearranged within the channel.
fn rearranged(taps: &[f64], kernel: usize, arrange: impl Fn(&mut [f64])) -> Vec<f64> {
    let mut taps = taps.to_vec();
    taps.chunks_exact_mut(kernel).for_each(arrange);
    taps
}

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "conv-taps-reversed",
        &["K1"],
        "the taps are applied newest to oldest",
        Formulas {
            convolve: |part, history, input, taps| {
                let reversed = rearranged(taps, history.count() + 1, <[f64]>::reverse);
                released::convolve(part, history, input, &reversed)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-taps-transposed",
        &["K1"],
        "the taps are read as [kernel, P]",
        Formulas {
            convolve: |part, history, input, taps| {
                let kernel = history.count() + 1;
                let at = |i: usize| taps[(i % kernel) * input.width + i / kernel];
                let turned: Vec<f64> = (0..taps.len()).map(at).collect();
                released::convolve(part, history, input, &turned)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-oldest-tap-lost",
        &["K1"],
        "the window is one input too short",
        Formulas {
            convolve: |part, history, input, taps| {
                let cut = rearranged(taps, history.count() + 1, |taps| taps[0] = 0.0);
                released::convolve(part, history, input, &cut)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-not-causal",
        &["K1"],
        "the window is centred, so a token sees the next one",
        Formulas {
            convolve: |part, history, input, taps| {
                let mut shifted = Rows::empty(input.width);
                for row in input.iter().skip(1) {
                    shifted.push(row);
                }
                shifted.push(&vec![0.0; input.width]);
                let mut before = Rows::empty(input.width);
                for row in history.iter().skip(1).chain(input.iter().take(1)) {
                    before.push(row);
                }
                released::convolve(part, &before, &shifted, taps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-history-repeats-first",
        &["K1"],
        "the inputs before position 0 are copies of the first, not zeros",
        Formulas {
            convolve: |part, history, input, taps| {
                let mut padded = history.clone();
                for row in 0..padded.count() {
                    if padded.row(row).iter().all(|v| *v == 0.0) {
                        padded.row_mut(row).copy_from_slice(input.row(0));
                    }
                }
                released::convolve(part, &padded, input, taps)
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-skipped",
        &["K1"],
        "the projections go to the activation without a convolution",
        Formulas { convolve: |_, _, input, _| input.clone(), ..RELEASED },
    ),
    mutant(
        "conv-no-silu-q",
        &["K2"],
        "q has no SiLU",
        Formulas {
            convolution_activation: |part, x| {
                if part == Part::Query { x } else { silu(x) }
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-no-silu-k",
        &["K2"],
        "k has no SiLU",
        Formulas {
            convolution_activation: |part, x| {
                if part == Part::Key { x } else { silu(x) }
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-no-silu-v",
        &["K2"],
        "v has no SiLU",
        Formulas {
            convolution_activation: |part, x| {
                if part == Part::Value { x } else { silu(x) }
            },
            ..RELEASED
        },
    ),
    mutant(
        "conv-sigmoid",
        &["K2"],
        "the logistic is used instead of SiLU",
        Formulas { convolution_activation: |_, x| sigmoid(x), ..RELEASED },
    ),
    mutant(
        "conv-silu-before",
        &["K2"],
        "SiLU is applied before the convolution",
        Formulas {
            convolve: |part, history, input, taps| {
                let row = |x: &[f64]| x.iter().map(|x| silu(*x)).collect();
                let (history, input) = (history.map(input.width, row), input.map(input.width, row));
                released::convolve(part, &history, &input, taps)
            },
            convolution_activation: |_, x| x,
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-skipped-q",
        &["K3"],
        "q is not l2-normed",
        Formulas {
            kda_head: |formulas, part, head| {
                if part == Part::Query {
                    head.to_vec()
                } else {
                    released::kda_head(formulas, part, head)
                }
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-skipped-k",
        &["K3"],
        "k is not l2-normed",
        Formulas {
            kda_head: |formulas, part, head| {
                if part == Part::Key {
                    head.to_vec()
                } else {
                    released::kda_head(formulas, part, head)
                }
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-on-v",
        &["K3"],
        "v is l2-normed too",
        Formulas { kda_head: |formulas, _, head| (formulas.l2_norm)(head), ..RELEASED },
    ),
    mutant(
        "l2norm-mean",
        &["K3"],
        "the mean of squares is taken instead of their sum",
        Formulas {
            l2_norm: |head| {
                let root = (dot(head, head) / head.len() as f64 + L2_NORM_EPS).sqrt();
                head.iter().map(|t| t / root).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-eps-outside-root",
        &["K3"],
        "ε of the l2norm is added outside the root",
        Formulas {
            l2_norm: |head| {
                let divisor = dot(head, head).sqrt() + L2_NORM_EPS;
                head.iter().map(|t| t / divisor).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-eps-dropped",
        &["K3"],
        "ε of the l2norm is left out but for zero vectors",
        Formulas {
            l2_norm: |head| {
                let divisor = dot(head, head).sqrt().max(1e-12);
                head.iter().map(|t| t / divisor).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-eps-1e-5",
        &["K3"],
        "1e-5, the released rms_norm_eps, is used in the l2norm",
        Formulas {
            l2_norm: |head| {
                let root = (dot(head, head) + 1e-5).sqrt();
                head.iter().map(|t| t / root).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "kda-query-unscaled",
        &["K4"],
        "q is not scaled",
        Formulas { kda_query_scale: |_| 1.0, ..RELEASED },
    ),
    mutant(
        "kda-query-scale-without-root",
        &["K4"],
        "q is divided by the head width instead of its root",
        Formulas { kda_query_scale: |head_dim| 1.0 / head_dim as f64, ..RELEASED },
    ),
    mutant(
        "kda-key-scaled",
        &["K4"],
        "k is scaled as q is",
        Formulas {
            kda_head: |formulas, part, head| {
                let scale =
                    if part == Part::Key { (formulas.kda_query_scale)(head.len()) } else { 1.0 };
                released::kda_head(formulas, part, head).iter().map(|t| t * scale).collect()
            },
            ..RELEASED
        },
    ),
    mutant(
        "beta-next-head",
        &["K5"],
        "β is taken from the next head",
        Formulas { beta: |logits, head| sigmoid(logits[(head + 1) % logits.len()]), ..RELEASED },
    ),
    mutant(
        "beta-shared",
        &["K5"],
        "all heads use the first head's β",
        Formulas { beta: |logits, _| sigmoid(logits[0]), ..RELEASED },
    ),
    mutant(
        "beta-raw",
        &["K5"],
        "β is used without the logistic",
        Formulas { beta: |logits, head| logits[head], ..RELEASED },
    ),
    mutant(
        "beta-doubled",
        &["K5"],
        "β is doubled, as where negative eigenvalues are allowed",
        Formulas { beta: |logits, head| 2.0 * sigmoid(logits[head]), ..RELEASED },
    ),
];
