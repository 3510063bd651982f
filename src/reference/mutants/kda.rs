//! Mutants of KDA's convolutions, head norms and β (clauses K1 to K5).

use ndarray::{Axis, concatenate, s};

use super::super::arithmetic::{divided, sigmoid, silu};
use super::super::formulas::{Formulas, Part, RELEASED};
use super::super::released::{self, L2_NORM_EPS};
use super::super::rows::{Rows, dot, from_values, values};
use super::{ReferenceMutant, mutant};

/// The mutants of this area.
pub(super) const ALL: &[ReferenceMutant] = &[
    mutant(
        "conv-taps-reversed",
        &["K1"],
        "the taps are applied newest to oldest",
        Formulas {
            convolve: |part, history, input, taps| {
                let reversed = taps.slice(s![.., ..;-1]).as_standard_layout().into_owned();
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
                let (channels, kernel) = taps.dim();
                let turned = from_values(channels, values(taps).to_vec());
                debug_assert_eq!(turned.dim(), (kernel, channels));
                let turned = turned.t().as_standard_layout().into_owned();
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
                let mut cut = taps.clone();
                cut.column_mut(0).fill(0.0);
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
                let next = Rows::zeros((1, input.ncols()));
                let series = concatenate![Axis(0), *history, *input, next];
                let (before, shifted) = series.view().split_at(Axis(0), history.nrows() + 1);
                let before = before.slice(s![1.., ..]).to_owned();
                released::convolve(part, &before, &shifted.to_owned(), taps)
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
                for mut row in padded.rows_mut() {
                    if row.iter().all(|v| *v == 0.0) {
                        row.assign(&input.row(0));
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
                released::convolve(part, &history.mapv(silu), &input.mapv(silu), taps)
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
                divided(head, (dot(head, head) / head.len() as f64 + L2_NORM_EPS).sqrt())
            },
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-eps-outside-root",
        &["K3"],
        "ε of the l2norm is added outside the root",
        Formulas {
            l2_norm: |head| divided(head, dot(head, head).sqrt() + L2_NORM_EPS),
            ..RELEASED
        },
    ),
    mutant(
        "l2norm-eps-dropped",
        &["K3"],
        "ε of the l2norm is left out but for zero vectors",
        Formulas { l2_norm: |head| divided(head, dot(head, head).sqrt().max(1e-12)), ..RELEASED },
    ),
    mutant(
        "l2norm-eps-1e-5",
        &["K3"],
        "1e-5, the released rms_norm_eps, is used in the l2norm",
        Formulas { l2_norm: |head| divided(head, (dot(head, head) + 1e-5).sqrt()), ..RELEASED },
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
