//! The MLP with SiTU, and LatentMoE (MODEL.md sections 2.5 and 2.6: S1, S2, E1 to E10).
//!
//! Routed experts stay in the files and are read and decoded when a token is routed to them: a
//! released layer has 896 of 17.5 MB each. Nothing is cached.

use std::sync::Arc;

use ndarray::Array2;
use safetensors::Dtype;

use super::error::ReferenceError;
use super::formulas::{Formulas, NormSite};
use super::layer::Pass;
use super::reader::Reader;
use super::released::GROUP_COLUMNS;
use super::rows::{Matrix, Rows, from_values, map_rows, row, slices, stack};
use super::stage_hook::Stages;
use k3_core::config::RawConfig;
use k3_core::stages::Stage;

/// A gated MLP: the dense layer's, or the shared experts stored as one.
#[derive(Debug, Clone)]
pub struct MlpWeights {
    /// `gate_proj` \[inner, E\].
    pub gate: Matrix,
    /// `up_proj` \[inner, E\].
    pub up: Matrix,
    /// `down_proj` \[E, inner\].
    pub down: Matrix,
}

/// Weights of a LatentMoE layer but its routed experts, which are read when they are needed.
#[derive(Debug, Clone)]
pub struct MoeWeights {
    /// `gate.weight` \[experts, E\].
    pub router: Matrix,
    /// `gate.e_score_correction_bias` \[experts\].
    pub bias: Vec<f64>,
    /// `routed_expert_down_proj` \[L, E\].
    pub down: Matrix,
    /// `routed_expert_norm` \[L\].
    pub norm: Vec<f64>,
    /// `routed_expert_up_proj` \[E, L\].
    pub up: Matrix,
    /// `shared_experts.*`, inner width I · `num_shared_experts`.
    pub shared: MlpWeights,
    experts: ExpertSource,
}

/// What the three parts of LatentMoE read, each \[T, E\]: one and the same in the released model.
#[derive(Debug, Clone, Copy)]
pub struct MoeInputs<'a> {
    /// The router.
    pub router: &'a Rows,
    /// The down-projection before the routed experts.
    pub experts: &'a Rows,
    /// The shared MLP.
    pub shared: &'a Rows,
}

/// The chosen experts of each token and their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Ids \[T\]\[k\], ascending within a token.
    pub chosen: Vec<Vec<usize>>,
    /// Weights \[T\]\[k\], in the order of the ids.
    pub weights: Vec<Vec<f64>>,
}

/// One routed expert, kept in its codes.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertWeights {
    /// Gate \[I, L\].
    pub w1: Matrix,
    /// Down \[L, I\].
    pub w2: Matrix,
    /// Up \[I, L\].
    pub w3: Matrix,
}

/// Where a layer's routed experts are read from.
#[derive(Debug, Clone)]
struct ExpertSource {
    reader: Arc<Reader>,
    layer: usize,
    /// `…layers.N.block_sparse_moe.experts.`
    prefix: String,
    latent: usize,
    inner: usize,
}

impl MlpWeights {
    /// Reads `{gate,up,down}_proj` below `prefix`.
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies.
    pub fn load(
        reader: &Reader,
        prefix: &str,
        width: usize,
        inner: usize,
    ) -> Result<Self, ReferenceError> {
        let name = |rest: &str| format!("{prefix}{rest}.weight");
        Ok(Self {
            gate: reader.bf16_matrix(&name("gate_proj"), inner, width)?,
            up: reader.bf16_matrix(&name("up_proj"), inner, width)?,
            down: reader.bf16_matrix(&name("down_proj"), width, inner)?,
        })
    }
}

impl MoeWeights {
    /// Reads the `block_sparse_moe.*` tensors below `prefix` (`…layers.N.`) of layer `layer` and
    /// checks the headers of every routed expert.
    ///
    /// # Errors
    /// A tensor is missing or not as the config implies.
    pub fn load(
        reader: &Arc<Reader>,
        config: &RawConfig,
        layer: usize,
        prefix: &str,
    ) -> Result<Self, ReferenceError> {
        let width = config.hidden_size;
        let (experts, latent) = (config.num_experts, config.routed_expert_hidden_size);
        let inner = config.moe_intermediate_size;
        let name = |rest: &str| format!("{prefix}block_sparse_moe.{rest}");
        let source = ExpertSource {
            reader: Arc::clone(reader),
            layer,
            prefix: name("experts."),
            latent,
            inner,
        };
        for expert in 0..experts {
            source.check(expert)?;
        }
        let shared_inner = inner * config.num_shared_experts;
        let down = name("routed_expert_down_proj.weight");
        let up = name("routed_expert_up_proj.weight");
        Ok(Self {
            router: reader.bf16_matrix(&name("gate.weight"), experts, width)?,
            bias: reader.f32_vector(&name("gate.e_score_correction_bias"), &[experts])?,
            down: reader.bf16_matrix(&down, latent, width)?,
            norm: reader.bf16_vector(&name("routed_expert_norm.weight"), &[latent])?,
            up: reader.bf16_matrix(&up, width, latent)?,
            shared: MlpWeights::load(reader, &name("shared_experts."), width, shared_inner)?,
            experts: source,
        })
    }

    /// Reads and decodes one routed expert.
    ///
    /// # Errors
    /// A read fails, or a scale byte is 255 (clause Q4).
    pub fn expert(
        &self,
        formulas: &Formulas,
        expert: usize,
    ) -> Result<ExpertWeights, ReferenceError> {
        self.experts.load(formulas, expert)
    }
}

impl ExpertSource {
    /// The three matrices with their rows and columns.
    fn matrices(&self) -> [(&'static str, usize, usize); 3] {
        [
            ("w1", self.inner, self.latent),
            ("w2", self.latent, self.inner),
            ("w3", self.inner, self.latent),
        ]
    }

    /// Names of a matrix's codes and scales.
    fn names(&self, expert: usize, matrix: &str) -> (String, String) {
        let stem = format!("{}{expert}.{matrix}", self.prefix);
        (format!("{stem}.weight_packed"), format!("{stem}.weight_scale"))
    }

    fn check(&self, expert: usize) -> Result<(), ReferenceError> {
        for (matrix, rows, columns) in self.matrices() {
            let (packed, scale) = self.names(expert, matrix);
            self.reader.check(&packed, Dtype::U8, &[rows, columns / 2])?;
            self.reader.check(&scale, Dtype::U8, &[rows, columns / GROUP_COLUMNS])?;
        }
        Ok(())
    }

    fn load(&self, formulas: &Formulas, expert: usize) -> Result<ExpertWeights, ReferenceError> {
        let mut decoded = Vec::with_capacity(3);
        for (matrix, rows, columns) in self.matrices() {
            let (packed, scale) = self.names(expert, matrix);
            let packed = self.reader.bytes(&packed, Dtype::U8, &[rows, columns / 2])?;
            let shape = [rows, columns / GROUP_COLUMNS];
            let scales = self.reader.bytes(&scale, Dtype::U8, &shape)?;
            let codes = Mxfp4Rows::new(formulas, columns, packed, scales);
            let codes = codes.map_err(|(row, group)| {
                let layer = self.layer;
                let at = format!("layer {layer}, expert {expert}, {matrix}.weight_scale");
                let what = "expected a scale byte of 0..254, got 255 (NaN)".to_owned();
                self.reader.malformed(&scale, format!("{at}, row {row}, group {group}"), what)
            })?;
            decoded.push(Matrix::Mxfp4(Box::new(codes)));
        }
        let [w1, w2, w3] = <[Matrix; 3]>::try_from(decoded).expect("three matrices were pushed");
        Ok(ExpertWeights { w1, w2, w3 })
    }
}

/// Decodes a packed matrix: `packed` \[rows, columns/2\], `scales` \[rows, columns/32\]; `columns`
/// is a multiple of 32. Gives \[rows, columns\].
///
/// # Errors
/// Row and group of the first scale byte 255.
pub fn decode_mxfp4(
    formulas: &Formulas,
    columns: usize,
    packed: &[u8],
    scales: &[u8],
) -> Result<Vec<f64>, (usize, usize)> {
    let codes = Mxfp4Rows::new(formulas, columns, packed.to_vec(), scales.to_vec())?;
    let mut values = vec![0.0; packed.len() * 2];
    for (row, values) in values.chunks_exact_mut(columns).enumerate() {
        codes.decode(row, values);
    }
    Ok(values)
}

/// A packed matrix that is decoded row by row: a released expert in f64 would be 264 MB.
#[derive(Debug, Clone, PartialEq)]
pub struct Mxfp4Rows {
    /// Codes \[rows, columns/2\].
    packed: Array2<u8>,
    /// Scale bytes \[rows, columns/32\].
    scales: Array2<u8>,
    /// The codes of a byte, low half first.
    pairs: Vec<[f64; 2]>,
    /// By scale byte; NaN where there is none.
    factors: Vec<f64>,
    columns_of_byte: Vec<[usize; 2]>,
    group_of_column: Vec<usize>,
    /// Whether both lists rise, as released: a group is then a run of bytes and of columns.
    in_order: bool,
}

impl Mxfp4Rows {
    /// Takes the bytes of a matrix whose rows have `columns` (a multiple of 32) values.
    ///
    /// # Errors
    /// Row and group of the first scale byte that has no value.
    pub fn new(
        formulas: &Formulas,
        columns: usize,
        packed: Vec<u8>,
        scales: Vec<u8>,
    ) -> Result<Self, (usize, usize)> {
        let (row_bytes, groups) = (columns / 2, columns / GROUP_COLUMNS);
        let decoded: Vec<Option<f64>> = (0..=255).map(formulas.scale).collect();
        let is_nan = |byte: &u8| decoded[usize::from(*byte)].is_none();
        if let Some(place) = scales.iter().position(is_nan) {
            return Err((place / groups, place % groups));
        }
        let column_of = |index| (formulas.nibble_columns)(index, row_bytes);
        let group_of = |column| (formulas.scale_group)(column, groups);
        let columns_of_byte: Vec<[usize; 2]> = (0..row_bytes).map(column_of).collect();
        let group_of_column: Vec<usize> = (0..columns).map(group_of).collect();
        let in_order = columns_of_byte.as_flattened().iter().copied().eq(0..columns)
            && group_of_column
                .iter()
                .enumerate()
                .all(|(column, group)| column / GROUP_COLUMNS == *group);
        Ok(Self {
            packed: from_values(row_bytes, packed),
            scales: from_values(groups, scales),
            pairs: (0..=255).map(|byte| [byte & 15, byte >> 4].map(formulas.e2m1)).collect(),
            factors: decoded.into_iter().map(|f| f.unwrap_or(f64::NAN)).collect(),
            columns_of_byte,
            group_of_column,
            in_order,
        })
    }

    /// Rows and columns of the decoded matrix.
    #[must_use]
    pub fn dim(&self) -> (usize, usize) {
        (self.packed.nrows(), self.packed.ncols() * 2)
    }

    /// Decodes row `index` into `values` \[columns\].
    pub fn decode(&self, index: usize, values: &mut [f64]) {
        let packed = row(&self.packed, index);
        let scales = row(&self.scales, index).iter();
        let factors: Vec<f64> = scales.map(|byte| self.factors[usize::from(*byte)]).collect();
        if self.in_order {
            let groups = packed.chunks_exact(GROUP_COLUMNS / 2).zip(factors);
            for ((packed, factor), values) in groups.zip(values.chunks_exact_mut(GROUP_COLUMNS)) {
                for (byte, pair) in packed.iter().zip(values.as_chunks_mut::<2>().0) {
                    let [low, high] = self.pairs[usize::from(*byte)];
                    *pair = [low * factor, high * factor];
                }
            }
            return;
        }
        for (byte, columns) in packed.iter().zip(&self.columns_of_byte) {
            for (value, column) in self.pairs[usize::from(*byte)].iter().zip(columns) {
                values[*column] = value * factors[self.group_of_column[*column]];
            }
        }
    }
}

/// down · SiTU(gate·x, up·x), for the dense MLP, the shared MLP and a routed expert alike.
pub fn gated_mlp(pass: &Pass<'_>, [gate, up, down]: [&Matrix; 3], x: &Rows) -> Rows {
    let beta = pass.config.activation_situ_beta;
    let linear_beta = pass.config.activation_situ_linear_beta;
    let mut inner = gate.apply(x);
    let up = up.apply(x);
    inner.zip_mut_with(&up, |gate, up| {
        *gate = (pass.formulas.situ)(*gate, *up, beta, linear_beta);
    });
    down.apply(&inner)
}

/// LatentMoE; gives \[T, E\].
///
/// # Errors
/// A routed expert cannot be read, or one of its scale bytes is 255.
pub fn moe(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    inputs: MoeInputs<'_>,
    stages: &mut Stages<'_>,
) -> Result<Rows, ReferenceError> {
    let formulas = pass.formulas;

    // router, on the full width
    let routing = route(pass, weights, inputs.router, stages);

    // the chosen experts on the latent; the norm is on their weighted sum
    let mut z = (formulas.expert_input)(weights, inputs.experts);
    stages.put_rows(Stage::MoeLatent, &mut z);
    let mut sum = (formulas.routed_sum)(pass, weights, &z, &routing)?;
    stages.put_rows(Stage::MoeSum, &mut sum);
    let normed = pass.norm(NormSite::Latent, &sum, &weights.norm);
    let routed = (formulas.project_up)(&weights.up, &normed);

    // the shared MLP on the full width, unweighted
    let shared = &weights.shared;
    let mut shared = gated_mlp(pass, [&shared.gate, &shared.up, &shared.down], inputs.shared);
    stages.put_rows(Stage::MoeShared, &mut shared);
    Ok((formulas.add_shared)(&routed, &shared, &routing))
}

/// The choice of experts from the router's input \[T, E\].
fn route(pass: &Pass<'_>, weights: &MoeWeights, input: &Rows, stages: &mut Stages<'_>) -> Routing {
    let (formulas, bias, config) = (pass.formulas, &weights.bias, pass.config);
    let logits = weights.router.apply(input);
    let mut scores = map_rows(&logits, logits.ncols(), formulas.router_scores);
    stages.put_rows(Stage::RouterScores, &mut scores);
    let select = |scores| (formulas.select)(scores, bias, config.num_experts_per_token);
    let mut chosen: Vec<Vec<usize>> = slices(&scores).map(select).collect();
    stages.put_ids(Stage::RouterIds, &mut chosen);
    let pairs = slices(&scores).zip(&chosen);
    let weigh = |(scores, chosen): (&[f64], &Vec<usize>)| {
        (formulas.routing_weights)(scores, bias, chosen, config)
    };
    let mut weights: Vec<Vec<f64>> = pairs.map(weigh).collect();
    put_weights(&mut weights, stages);
    Routing { chosen, weights }
}

/// The weighted sum \[T, L\] of the experts' outputs, each of them as `share` makes it.
///
/// # Errors
/// A routed expert cannot be read, or one of its scale bytes is 255.
pub fn sum_of_experts(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    z: &Rows,
    routing: &Routing,
    share: impl Fn(Vec<f64>) -> Vec<f64>,
) -> Result<Rows, ReferenceError> {
    let latent = weights.norm.len();
    let outputs = expert_outputs(pass, weights, z, &routing.chosen)?.into_iter();
    let combine = |(outputs, weights): (Vec<Vec<f64>>, &Vec<f64>)| {
        let shares: Vec<Vec<f64>> = outputs.into_iter().map(&share).collect();
        (pass.formulas.combine)(&shares, weights, latent)
    };
    Ok(stack(latent, outputs.zip(&routing.weights).map(combine)))
}

/// The outputs \[L\] of each token's chosen experts, in the order of its ids. Experts are taken in
/// rising id, each read once.
fn expert_outputs(
    pass: &Pass<'_>,
    weights: &MoeWeights,
    z: &Rows,
    chosen: &[Vec<usize>],
) -> Result<Vec<Vec<Vec<f64>>>, ReferenceError> {
    let mut outputs: Vec<Vec<Vec<f64>>> =
        chosen.iter().map(|c| vec![Vec::new(); c.len()]).collect();
    for expert in 0..pass.config.num_experts {
        let slot_of = |ids: &Vec<usize>| ids.iter().position(|id| *id == expert);
        let places: Vec<(usize, usize)> = chosen
            .iter()
            .enumerate()
            .filter_map(|(token, ids)| Some((token, slot_of(ids)?)))
            .collect();
        if places.is_empty() {
            continue;
        }
        let expert = (pass.formulas.expert)(pass.formulas, weights, expert)?;
        let inputs = places.iter().map(|(token, _)| row(z, *token).to_vec());
        let inputs = stack(z.ncols(), inputs);
        let out = gated_mlp(pass, [&expert.w1, &expert.w3, &expert.w2], &inputs);
        for ((token, slot), output) in places.into_iter().zip(slices(&out)) {
            outputs[token][slot] = output.to_vec();
        }
    }
    Ok(outputs)
}

/// The routing weights as a stage \[T, k\].
fn put_weights(routing: &mut [Vec<f64>], stages: &mut Stages<'_>) {
    let shape = [routing.len(), routing.first().map_or(0, Vec::len)];
    let mut weights = routing.concat();
    stages.put(Stage::RouterWeights, &shape, &mut weights);
    for (row, kept) in routing.iter_mut().zip(weights.chunks(shape[1].max(1))) {
        row.copy_from_slice(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::super::RELEASED;
    use super::*;

    /// The loop over runs and the loop over the two lists give the same bits.
    #[test]
    fn rows_in_order_decode_as_by_the_lists() {
        let (columns, rows) = (96, 5);
        let byte = |i: usize| (i * 7919 % 256) as u8;
        let packed = (0..rows * columns / 2).map(byte).collect();
        let scales = (0..rows * columns / 32).map(|i| byte(i) % 255).collect();
        let quick = Mxfp4Rows::new(&RELEASED, columns, packed, scales).unwrap();
        assert!(quick.in_order);
        let by_lists = Mxfp4Rows { in_order: false, ..quick.clone() };
        for row in 0..rows {
            let mut out = [vec![f64::NAN; columns], vec![f64::NAN; columns]];
            quick.decode(row, &mut out[0]);
            by_lists.decode(row, &mut out[1]);
            let bits = out.map(|values| values.into_iter().map(f64::to_bits).collect::<Vec<_>>());
            assert_eq!(bits[0], bits[1]);
        }
    }
}
