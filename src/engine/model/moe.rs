//! LatentMoE (E1…E10): router, latent down-projection, experts, norm on the sum, up-projection,
//! shared MLP.
//!
//! Experts come from an [`ExpertSource`] in batches that the source cuts, so that a cache can read
//! missing experts while it holds the resident ones. Within a batch the work is cut by rows over
//! all experts at once. Every output is kept in f32 until the token's sum, which runs in rising id
//! whatever the batches were.

use std::sync::Arc;

use super::dense;
use super::forward::Pass;
use super::stage_output::StageOutput;
use super::weights::{named, wrong_values};
use super::workspace::MoeBuffers;
use super::{EngineError, MoeWeights, Shape, TensorSpec, WeightSource, Workspace};
use crate::kernels::matrix::Matrix;
use crate::kernels::products::Product;
use crate::kernels::router::Choice;
use crate::kernels::sums::Vectors;
use k3_checkpoint::Role;
use k3_core::stages::Stage;

/// One routed expert. MXFP4 in the release; F32 works alike.
#[derive(Debug, Clone)]
pub struct Expert {
    /// Gate \[I, L\].
    pub w1: Matrix,
    /// Down \[L, I\].
    pub w2: Matrix,
    /// Linear part \[I, L\].
    pub w3: Matrix,
}

/// Where experts come from. An implementation may cache, read ahead and evict; a handle keeps
/// its expert alive.
pub trait ExpertSource: Send + Sync + std::fmt::Debug {
    /// The experts `ids` (distinct, at most [`ExpertSource::batch_limit`] of them) of a layer, in
    /// the same order. The caller lets go of a batch before it asks for the next.
    ///
    /// # Errors
    /// One of them cannot be had.
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError>;

    /// How many experts may be asked for at once; at least 1.
    fn batch_limit(&self) -> usize;

    /// Cuts what the tokens of a chunk, from `position` on, chose in a layer into batches: every
    /// distinct expert in exactly one. By default in rising id.
    ///
    /// # Errors
    /// The source cannot continue.
    fn batches(
        &self,
        _layer: usize,
        _position: usize,
        demands: &[&[usize]],
    ) -> Result<Vec<Vec<usize>>, EngineError> {
        let mut ids: Vec<usize> = demands.iter().copied().flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let batches = ids.chunks(self.batch_limit().max(1));
        Ok(batches.map(<[usize]>::to_vec).collect())
    }
}

impl<T: ExpertSource + ?Sized> ExpertSource for Arc<T> {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        (**self).experts(layer, ids)
    }

    fn batch_limit(&self) -> usize {
        (**self).batch_limit()
    }

    fn batches(
        &self,
        layer: usize,
        position: usize,
        demands: &[&[usize]],
    ) -> Result<Vec<Vec<usize>>, EngineError> {
        (**self).batches(layer, position, demands)
    }
}

/// All experts in memory: by layer (empty where dense), then by expert.
#[derive(Debug, Clone)]
pub struct ResidentExperts(pub Vec<Vec<Arc<Expert>>>);

impl ExpertSource for ResidentExperts {
    fn experts(&self, layer: usize, ids: &[usize]) -> Result<Vec<Arc<Expert>>, EngineError> {
        Ok(ids.iter().map(|&id| self.0[layer][id].clone()).collect())
    }

    fn batch_limit(&self) -> usize {
        usize::MAX
    }
}

impl Expert {
    /// Binds one MXFP4 expert.
    ///
    /// # Errors
    /// A tensor the source refuses, a NaN scale (Q4).
    pub fn load(
        shape: &Shape,
        source: &dyn WeightSource,
        layer: usize,
        id: usize,
    ) -> Result<Self, EngineError> {
        let bind = |packed: Role, scale: Role| {
            let [packed, scale] =
                [packed, scale].map(|role| TensorSpec::of(shape, role, layer, id));
            let (rows, columns) = (packed.shape[0], 2 * packed.shape[1]);
            let bytes = source.tensor(&packed)?;
            let scales = source.tensor(&scale)?;
            named(packed.name, Matrix::mxfp4(rows, columns, bytes, scales))
        };
        let expert = Self {
            w1: bind(Role::RoutedW1Packed, Role::RoutedW1Scale)?,
            w2: bind(Role::RoutedW2Packed, Role::RoutedW2Scale)?,
            w3: bind(Role::RoutedW3Packed, Role::RoutedW3Scale)?,
        };
        expert.check_scales(source, layer, id)?;
        Ok(expert)
    }

    /// Q4: the first NaN scale byte, with its place.
    ///
    /// # Errors
    /// File, layer, expert, matrix, row and group of it.
    fn check_scales(
        &self,
        source: &dyn WeightSource,
        layer: usize,
        expert: usize,
    ) -> Result<(), EngineError> {
        for (matrix, weights, role) in [
            ("w1", &self.w1, Role::RoutedW1Scale),
            ("w2", &self.w2, Role::RoutedW2Scale),
            ("w3", &self.w3, Role::RoutedW3Scale),
        ] {
            if let Some((row, group)) = weights.first_nan_scale() {
                let place = format!("layer {layer} expert {expert} {matrix}");
                let what = format!("scale byte 255 (NaN) in row {row}, group {group}");
                return Err(wrong_values(source, &role.name(layer, expert), place, what));
            }
        }
        Ok(())
    }
}

impl ResidentExperts {
    /// Binds every expert of every MoE layer.
    ///
    /// # Errors
    /// As for a single expert.
    pub fn load(shape: &Shape, source: &dyn WeightSource) -> Result<Self, EngineError> {
        let mut layers = Vec::with_capacity(shape.layers.len());
        for (layer, place) in shape.layers.iter().enumerate() {
            let count = if place.mlp == super::MlpKind::Dense { 0 } else { shape.moe.experts };
            let load = |id| Expert::load(shape, source, layer, id).map(Arc::new);
            layers.push((0..count).map(load).collect::<Result<_, _>>()?);
        }
        Ok(Self(layers))
    }
}

/// A (token, place among its chosen) pair that an expert serves.
type Served = (usize, usize);

/// LatentMoE of a chunk: reads `residual.normed`, writes `residual.output`.
pub(super) fn forward(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let (kernels, shape, t) = (&pass.kernels, pass.shape, pass.tokens);
    let x = work.residual.normed.first(t);
    let buffers = &mut work.moe;
    let products = vec![
        Product { matrix: weights.router.view(), vectors: x, out: buffers.scores.first_mut(t) },
        Product { matrix: weights.down.view(), vectors: x, out: buffers.latent.first_mut(t) },
    ];
    pass.products(products);
    (kernels.sigmoid)(buffers.scores.first_mut(t));
    let choices = choose(pass, &weights.bias, buffers)?;
    put_choices(shape, &choices, buffers, stages);
    run_experts(pass, &choices, buffers)?;
    finish_routed(pass, weights, &choices, buffers);
    let shared = buffers.shared.first_mut(t);
    dense::forward(pass, &weights.shared, x, &mut work.mlp, shared);
    let output = work.residual.output.first_mut(t);
    (kernels.combine)(buffers.routed.first(t), buffers.shared.first(t), output);
    stages.put(Stage::MoeLatent, &[t, shape.moe.latent], buffers.latent.first(t));
    stages.put(Stage::MoeSum, &[t, shape.moe.latent], buffers.sum.first(t));
    stages.put(Stage::MoeShared, &[t, shape.hidden], buffers.shared.first(t));
    Ok(())
}

/// Selects each token's experts and weighs them.
fn choose(pass: &Pass<'_>, bias: &[f32], buffers: &MoeBuffers) -> Result<Vec<Choice>, EngineError> {
    let mut choices = Vec::with_capacity(pass.tokens);
    for token in 0..pass.tokens {
        let scores = buffers.scores.row(token);
        let choice =
            (pass.kernels.choose)(scores, bias, pass.shape.moe.top_k, pass.shape.weighting);
        choices.push(choice.map_err(|nan| EngineError::RouterNan {
            layer: pass.layer,
            position: pass.position + token,
            expert: nan.expert,
        })?);
    }
    Ok(choices)
}

fn put_choices(
    shape: &Shape,
    choices: &[Choice],
    buffers: &MoeBuffers,
    stages: &mut StageOutput<'_>,
) {
    let t = choices.len();
    stages.put(Stage::RouterScores, &[t, shape.moe.experts], buffers.scores.first(t));
    let ids: Vec<i32> = choices.iter().flat_map(|c| &c.ids).map(|&id| id as i32).collect();
    stages.put_ids(Stage::RouterIds, &[t, ids.len() / t], &ids);
    let weights: Vec<f32> = choices.iter().flat_map(|c| &c.weights).copied().collect();
    stages.put(Stage::RouterWeights, &[t, weights.len() / t], &weights);
}

/// Runs every chosen expert on its tokens, in the batches that the source cuts.
fn run_experts(
    pass: &Pass<'_>,
    choices: &[Choice],
    buffers: &mut MoeBuffers,
) -> Result<(), EngineError> {
    let mut served: Vec<Vec<Served>> = vec![Vec::new(); pass.shape.moe.experts];
    for (token, choice) in choices.iter().enumerate() {
        for (place, &id) in choice.ids.iter().enumerate() {
            served[id].push((token, place));
        }
    }
    let demands: Vec<&[usize]> = choices.iter().map(|choice| choice.ids.as_slice()).collect();
    let batches = pass.experts.batches(pass.layer, pass.position, &demands)?;
    for batch in &batches {
        let experts = pass.experts.experts(pass.layer, batch)?;
        let groups: Vec<&[Served]> = batch.iter().map(|&id| served[id].as_slice()).collect();
        run_batch(pass, &experts, &groups, buffers);
    }
    Ok(())
}

/// w2 · SiTU(w1·z, w3·z) for each expert of a batch on the tokens it serves.
fn run_batch(
    pass: &Pass<'_>,
    experts: &[Arc<Expert>],
    groups: &[&[Served]],
    buffers: &mut MoeBuffers,
) {
    let pairs: Vec<Served> = groups.iter().flat_map(|group| group.iter()).copied().collect();
    for (row, (token, _)) in pairs.iter().enumerate() {
        buffers.gathered.row_mut(row).copy_from_slice(buffers.latent.row(*token));
    }
    let n = pairs.len();
    let w1 = experts.iter().map(|expert| &expert.w1);
    let w3 = experts.iter().map(|expert| &expert.w3);
    let gathered = buffers.gathered.first(n);
    let mut products = grouped(w1, groups, gathered, buffers.expert_gate.first_mut(n));
    products.extend(grouped(w3, groups, gathered, buffers.expert_up.first_mut(n)));
    pass.products(products);
    let (gate, up) = (buffers.expert_gate.first(n), buffers.expert_up.first(n));
    let activated = buffers.expert_activated.first_mut(n);
    pass.situ(gate, up, activated);
    let w2 = experts.iter().map(|expert| &expert.w2);
    let activated = buffers.expert_activated.first(n);
    let products = grouped(w2, groups, activated, buffers.expert_grouped.first_mut(n));
    pass.products(products);
    let latent = pass.shape.moe.latent;
    for (row, (token, place)) in pairs.iter().enumerate() {
        let outputs = buffers.expert_outputs.row_mut(*token);
        let out = &mut outputs[place * latent..(place + 1) * latent];
        out.copy_from_slice(buffers.expert_grouped.row(row));
    }
}

/// One product per expert on its part of `vectors`, which are grouped by expert.
fn grouped<'a>(
    matrices: impl Iterator<Item = &'a Matrix>,
    groups: &[&[Served]],
    mut vectors: &'a [f32],
    mut out: &'a mut [f32],
) -> Vec<Product<'a>> {
    let mut products = Vec::with_capacity(groups.len());
    for (matrix, group) in matrices.zip(groups) {
        let (inputs, inputs_rest) = vectors.split_at(group.len() * matrix.columns());
        let (outputs, outputs_rest) = out.split_at_mut(group.len() * matrix.rows());
        products.push(Product { matrix: matrix.view(), vectors: inputs, out: outputs });
        (vectors, out) = (inputs_rest, outputs_rest);
    }
    products
}

/// The weighted sum per token, its norm, and the up-projection.
fn finish_routed(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    choices: &[Choice],
    buffers: &mut MoeBuffers,
) {
    let (kernels, t) = (&pass.kernels, pass.tokens);
    let stride = pass.shape.moe.latent;
    for (token, choice) in choices.iter().enumerate() {
        let outputs = Vectors::Strided { data: buffers.expert_outputs.row(token), stride };
        let sum = buffers.sum.row_mut(token);
        (kernels.expert_sum)(&choice.ids, &choice.weights, outputs, sum);
        let normed = buffers.sum_normed.row_mut(token);
        weights.norm.apply(kernels, buffers.sum.row(token), normed);
    }
    pass.product(&weights.up, buffers.sum_normed.first(t), buffers.routed.first_mut(t));
}
