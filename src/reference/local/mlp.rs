//! The MLPs with bounds: dense, shared and routed (S1, S2, E6 to E10), and the router (E1 to E5).

use super::arithmetic::Rounding;
use super::bounded::{Bounded, Terms};
use super::rows::{BoundedRows, zip};
use crate::error::ReferenceError;
use crate::formulas::RELEASED;
use crate::moe::{MlpWeights, MoeWeights};
use crate::released::{RENORMALISE_EPS, select};
use crate::rows::{Matrix, from_values, map_rows, row, slices, stack};
use k3_core::config::RawConfig;

/// down · SiTU(gate·x, up·x).
#[must_use]
pub fn gated_mlp(
    rounding: &Rounding,
    config: &RawConfig,
    [gate, up, down]: [&Matrix; 3],
    x: &BoundedRows,
) -> BoundedRows {
    let beta = config.activation_situ_beta;
    let linear_beta = config.activation_situ_linear_beta;
    let (gate, up) = (rounding.apply(gate, x), rounding.apply(up, x));
    let inner = zip(&gate, &up, |g, u| rounding.situ(g, u, beta, linear_beta));
    rounding.apply(down, &inner)
}

/// The three matrices of a dense or shared MLP in the order [`gated_mlp`] takes them.
#[must_use]
pub fn roles(weights: &MlpWeights) -> [&Matrix; 3] {
    [&weights.gate, &weights.up, &weights.down]
}

/// The choice of every token from the subject's own scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Ids \[T·k\], ascending in a row; in a tied row the subject's.
    pub expected: Vec<i32>,
    /// Rows in which the subject's choice differs from the one made here, inside the band.
    pub ties: Vec<usize>,
}

/// E2 on the subject's scores \[T, experts\]; `theirs` are its ids \[T·k\].
///
/// A subject rounds score + bias once, so two experts whose sums are no farther apart than both
/// roundings together may be in either order. A choice is right when no expert left out beats a
/// chosen one by more than that. Equal sums round to equal numbers: there the lower id must win.
#[must_use]
pub fn choose(
    rounding: &Rounding,
    scores: &BoundedRows,
    bias: &[f64],
    k: usize,
    theirs: &[i32],
) -> Choice {
    let (mut expected, mut ties) = (Vec::new(), Vec::new());
    for (row, scores) in slices(scores).enumerate() {
        let values: Vec<f64> = scores.iter().map(|s| s.value).collect();
        // Expert counts fit i32 by far.
        let ours: Vec<i32> = select(&values, bias, k).iter().map(|id| *id as i32).collect();
        let theirs = theirs.get(row * k..(row + 1) * k).unwrap_or_default();
        if ours != theirs && is_right(rounding, &values, bias, theirs) {
            ties.push(row);
            expected.extend_from_slice(theirs);
        } else {
            expected.extend(ours);
        }
    }
    Choice { expected, ties }
}

/// Whether `ids` are distinct, ascending, in range, and no other expert beats one of them by more
/// than the rounding of the two sums.
fn is_right(rounding: &Rounding, scores: &[f64], bias: &[f64], ids: &[i32]) -> bool {
    let Some(chosen) = as_experts(ids, scores.len()) else {
        return false;
    };
    let step = rounding.single().step;
    let sum = |e: usize| step.add(Bounded::exact(scores[e]), Bounded::exact(bias[e]));
    let sums: Vec<Bounded> = (0..scores.len()).map(sum).collect();
    let mut left_out = (0..scores.len()).filter(|e| !chosen.contains(e));
    left_out.all(|other| {
        let beaten = |id: &usize| {
            let (out, chosen) = (sums[other], sums[*id]);
            let equal = out.value == chosen.value && other < *id;
            equal || out.value - chosen.value > out.error + chosen.error
        };
        !chosen.iter().any(beaten)
    })
}

/// A row of ids as experts: `None` unless they ascend strictly and are below `experts`.
#[must_use]
pub fn as_experts(ids: &[i32], experts: usize) -> Option<Vec<usize>> {
    let chosen: Vec<usize> = ids.iter().filter_map(|id| usize::try_from(*id).ok()).collect();
    let ascends = chosen.is_sorted_by(|a, b| a < b);
    let fits = chosen.last().is_some_and(|last| *last < experts);
    (chosen.len() == ids.len() && ascends && fits).then_some(chosen)
}

/// E3 to E5: scores of the chosen over (their sum + 1e-20) where there is more than one and
/// `moe_renormalize`, times the scaling factor; one step each, in f32 at least. A narrow subject
/// may store the outcome.
#[must_use]
pub fn routing_weights(
    rounding: &Rounding,
    config: &RawConfig,
    scores: &[Bounded],
    chosen: &[usize],
) -> Vec<Bounded> {
    let stored = |x| rounding.narrow_store(x);
    let rounding = rounding.single();
    let step = rounding.step;
    let mut terms = Terms::default();
    let one = Bounded::exact(1.0);
    chosen.iter().for_each(|e| terms.push(scores[*e], one));
    let sum = step.round(rounding.wide.sum(terms));
    let divisor = step.add(sum, step.constant(RENORMALISE_EPS));
    let renormalise = chosen.len() > 1 && config.moe_renormalize;
    let scaling = step.constant(config.routed_scaling_factor);
    let weight = |e: &usize| {
        let score = scores[*e];
        let share = if renormalise { step.div(score, divisor) } else { score };
        stored(step.mul(share, scaling))
    };
    chosen.iter().map(weight).collect()
}

/// The weighted sum of the chosen experts' outputs \[T, L\]; `routing` \[T, k\] is in the order
/// of `chosen`. Experts are read one after the other. A narrow subject may store the weight and
/// each product.
///
/// # Errors
/// A routed expert cannot be read, or one of its scale bytes is 255.
pub fn expert_sum(
    rounding: &Rounding,
    config: &RawConfig,
    weights: &MoeWeights,
    latent: &BoundedRows,
    chosen: &[Vec<usize>],
    routing: &BoundedRows,
) -> Result<BoundedRows, ReferenceError> {
    let mut sums = vec![Terms::default(); latent.len()];
    for expert in 0..config.num_experts {
        let slot_of = |ids: &Vec<usize>| ids.iter().position(|id| *id == expert);
        let rows = chosen.iter().enumerate();
        let places: Vec<(usize, usize)> =
            rows.filter_map(|(token, ids)| Some((token, slot_of(ids)?))).collect();
        if places.is_empty() {
            continue;
        }
        let decoded = weights.expert(&RELEASED, expert)?;
        let inputs = places.iter().map(|(token, _)| row(latent, *token).to_vec());
        let inputs = stack(latent.ncols(), inputs);
        let roles = [&decoded.w1, &decoded.w3, &decoded.w2];
        let outputs = gated_mlp(rounding, config, roles, &inputs);
        for ((token, slot), output) in places.into_iter().zip(slices(&outputs)) {
            let weight = rounding.narrow_store(rounding.narrow_store(routing[[token, slot]]));
            let sums = &mut sums[token * latent.ncols()..][..latent.ncols()];
            sums.iter_mut().zip(output).for_each(|(s, v)| s.push(weight, *v));
        }
    }
    let finish = |terms| rounding.step.round(rounding.wide.sum(terms));
    Ok(from_values(latent.ncols(), sums.into_iter().map(finish).collect()))
}

/// E8 to E10: RMSNorm of the weighted sum, up, plus the shared output.
#[must_use]
pub fn moe_output(
    rounding: &Rounding,
    weights: &MoeWeights,
    sum: &BoundedRows,
    shared: &BoundedRows,
    eps: f64,
) -> BoundedRows {
    let norm = |row: &[Bounded]| rounding.rms_norm(row, &weights.norm, eps);
    let routed = rounding.apply(&weights.up, &map_rows(sum, sum.ncols(), norm));
    zip(&routed, shared, |a, b| rounding.step.add(a, b))
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::Arithmetic;
    use super::super::rows::exact;
    use super::*;

    fn choice(scores: &[f64], theirs: &[i32]) -> Choice {
        let rounding = Rounding::new(Arithmetic::F64Sums);
        let rows = exact(scores.len(), scores);
        choose(&rounding, &rows, &vec![0.0; scores.len()], theirs.len(), theirs)
    }

    /// A hair apart, either order is right and reported; one part in ten thousand is a wrong
    /// choice, and so is the higher id of two equal ones.
    #[test]
    fn ties_are_inside_the_rounding_of_the_sum() {
        let hair = 0.5 + 1e-8;
        let tied = choice(&[0.5, 0.9, hair], &[0, 1]);
        assert_eq!((tied.expected, tied.ties), (vec![0, 1], vec![0]));
        let agreed = choice(&[0.5, 0.9, hair], &[1, 2]);
        assert_eq!((agreed.expected, agreed.ties), (vec![1, 2], vec![]));
        let wrong = choice(&[0.5, 0.9, 0.50005], &[0, 1]);
        assert_eq!((wrong.expected, wrong.ties), (vec![1, 2], vec![]));
        let higher = choice(&[0.5, 0.9, 0.5], &[1, 2]);
        assert_eq!((higher.expected, higher.ties), (vec![0, 1], vec![]));
    }

    /// Ids that are no choice: out of range, negative, twice, not ascending.
    #[test]
    fn ids_of_a_foreign_dump_are_checked() {
        assert_eq!(as_experts(&[1, 7], 8), Some(vec![1, 7]));
        for wrong in [[1, 8], [-1, 2], [3, 3], [5, 2]] {
            assert_eq!(as_experts(&wrong, 8), None, "{wrong:?}");
        }
    }
}
