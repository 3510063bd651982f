//! The buffers of a forward pass: typed, named, owned by one struct, sized once.
//!
//! A chunk of t tokens uses the first t rows of each. Nothing here outlives a chunk; what must is
//! in `State`.

use super::Shape;

/// Rows of a fixed width, one per token of a chunk.
#[derive(Debug, Clone)]
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    /// `rows` rows of `width` zeros.
    #[must_use]
    pub fn new(rows: usize, width: usize) -> Self {
        Self { width, data: vec![0.0; rows * width] }
    }

    /// Elements per row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first `rows` rows.
    #[must_use]
    pub fn first(&self, rows: usize) -> &[f32] {
        &self.data[..rows * self.width]
    }

    /// The first `rows` rows, to write.
    pub fn first_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.data[..rows * self.width]
    }

    /// One row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.width..(row + 1) * self.width]
    }
}

/// The running sum and its banks, and what the residual mixes make of them.
#[derive(Debug)]
pub struct ResidualBuffers {
    /// s \[T, E\].
    pub running: Rows,
    /// b₀, b₁, … each \[T, E\]; the first `filled` of them hold values.
    pub banks: Vec<Rows>,
    /// Banks pushed so far in this pass.
    pub filled: usize,
    /// h: the mix \[T, E\].
    pub mixed: Rows,
    /// The normed input of attention or MLP \[T, E\].
    pub normed: Rows,
    /// Output of attention or MLP \[T, E\].
    pub output: Rows,
}

/// KDA's intermediate values.
#[derive(Debug)]
pub struct KdaBuffers {
    /// Convolution inputs of q, k, v, each \[T, P\].
    pub inputs: [Rows; 3],
    /// q, k, v after convolution, SiLU and norm, each \[T, P\].
    pub vectors: [Rows; 3],
    /// f_a x \[T, D\].
    pub low_rank: Rows,
    /// z, then overwritten by nothing \[T, P\].
    pub z: Rows,
    /// Log decay g \[T, P\].
    pub log_decay: Rows,
    /// α = exp(g) \[T, P\].
    pub alpha: Rows,
    /// β \[T, H\].
    pub beta: Rows,
    /// g_proj x \[T, P\].
    pub gate: Rows,
    /// o, then normed and gated \[T, P\].
    pub output: Rows,
}

/// MLA's intermediate values.
#[derive(Debug)]
pub struct MlaBuffers {
    /// q_a x \[T, q_lora\].
    pub q_low: Rows,
    /// Its norm \[T, q_lora\].
    pub q_low_normed: Rows,
    /// q_b output \[T, heads·(nope+rope)\].
    pub q: Rows,
    /// kv_a x \[T, kv_lora+rope\].
    pub compressed: Rows,
    /// Rows as cached \[T, kv_lora+rope\].
    pub cache_rows: Rows,
    /// g_proj x \[T, heads·v\].
    pub gate: Rows,
    /// o \[T, heads·v\].
    pub output: Rows,
}

/// The intermediate values of a dense or shared MLP; as long as the wider of the two needs.
#[derive(Debug)]
pub struct MlpBuffers {
    /// gate x \[T, inner\].
    pub gate: Vec<f32>,
    /// up x \[T, inner\].
    pub up: Vec<f32>,
    /// SiTU \[T, inner\].
    pub activated: Vec<f32>,
}

/// LatentMoE's intermediate values.
#[derive(Debug)]
pub struct MoeBuffers {
    /// Router logits, then scores \[T, experts\].
    pub scores: Rows,
    /// z = down·x \[T, L\].
    pub latent: Rows,
    /// Inputs of the experts of a batch, grouped by expert \[T·k, L\].
    pub gathered: Rows,
    /// w1 z in the same order \[T·k, I\].
    pub expert_gate: Rows,
    /// w3 z \[T·k, I\].
    pub expert_up: Rows,
    /// SiTU \[T·k, I\].
    pub expert_activated: Rows,
    /// w2 of that \[T·k, L\].
    pub expert_grouped: Rows,
    /// Outputs of each token's experts in ascending id \[T, k·L\].
    pub expert_outputs: Rows,
    /// Weighted sum \[T, L\].
    pub sum: Rows,
    /// Its norm \[T, L\].
    pub sum_normed: Rows,
    /// up·y \[T, E\].
    pub routed: Rows,
    /// The shared MLP \[T, E\].
    pub shared: Rows,
}

/// Every buffer of a pass over chunks of at most `chunk_tokens` tokens.
#[derive(Debug)]
pub struct Workspace {
    /// Largest chunk it holds.
    pub chunk_tokens: usize,
    /// Residual stream.
    pub residual: ResidualBuffers,
    /// KDA.
    pub kda: KdaBuffers,
    /// MLA.
    pub mla: MlaBuffers,
    /// Dense MLP and shared MLP.
    pub mlp: MlpBuffers,
    /// LatentMoE.
    pub moe: MoeBuffers,
}

impl Workspace {
    /// Buffers for chunks of up to `chunk_tokens` tokens (at least 1).
    #[must_use]
    pub fn new(shape: &Shape, chunk_tokens: usize) -> Self {
        let t = chunk_tokens.max(1);
        Self {
            chunk_tokens: t,
            residual: residual_buffers(shape, t),
            kda: kda_buffers(shape, t),
            mla: mla_buffers(shape, t),
            mlp: mlp_buffers(shape, t),
            moe: moe_buffers(shape, t),
        }
    }

    /// Bytes of all buffers for chunks of `chunk_tokens` tokens, without making them.
    #[must_use]
    pub fn bytes(shape: &Shape, chunk_tokens: usize) -> usize {
        let (e, p, l) = (shape.hidden, shape.kda.width, shape.moe.latent);
        let residual = e * (4 + shape.banks);
        let kda = 11 * p + shape.kda.head_dim + shape.kda.heads;
        let heads = shape.mla.heads;
        let mla = 2 * shape.mla.q_lora
            + heads * (shape.mla.nope + shape.mla.rope + 2 * shape.mla.v)
            + 2 * shape.mla.cache_width;
        let mlp = 3 * shape.dense_inner.max(shape.moe.shared_inner);
        let moe = shape.moe.experts
            + l * (3 + 3 * shape.moe.top_k)
            + 2 * e
            + 3 * shape.moe.top_k * shape.moe.inner;
        4 * chunk_tokens.max(1) * (residual + kda + mla + mlp + moe)
    }
}

fn residual_buffers(shape: &Shape, t: usize) -> ResidualBuffers {
    let rows = || Rows::new(t, shape.hidden);
    ResidualBuffers {
        running: rows(),
        banks: (0..shape.banks).map(|_| rows()).collect(),
        filled: 0,
        mixed: rows(),
        normed: rows(),
        output: rows(),
    }
}

fn kda_buffers(shape: &Shape, t: usize) -> KdaBuffers {
    let projection = || Rows::new(t, shape.kda.width);
    KdaBuffers {
        inputs: [projection(), projection(), projection()],
        vectors: [projection(), projection(), projection()],
        low_rank: Rows::new(t, shape.kda.head_dim),
        z: projection(),
        log_decay: projection(),
        alpha: projection(),
        beta: Rows::new(t, shape.kda.heads),
        gate: projection(),
        output: projection(),
    }
}

fn mla_buffers(shape: &Shape, t: usize) -> MlaBuffers {
    let values = || Rows::new(t, shape.mla.heads * shape.mla.v);
    MlaBuffers {
        q_low: Rows::new(t, shape.mla.q_lora),
        q_low_normed: Rows::new(t, shape.mla.q_lora),
        q: Rows::new(t, shape.mla.heads * (shape.mla.nope + shape.mla.rope)),
        compressed: Rows::new(t, shape.mla.cache_width),
        cache_rows: Rows::new(t, shape.mla.cache_width),
        gate: values(),
        output: values(),
    }
}

fn mlp_buffers(shape: &Shape, t: usize) -> MlpBuffers {
    let widest = shape.dense_inner.max(shape.moe.shared_inner);
    let inner = || vec![0.0; t * widest];
    MlpBuffers { gate: inner(), up: inner(), activated: inner() }
}

fn moe_buffers(shape: &Shape, t: usize) -> MoeBuffers {
    let pairs = t * shape.moe.top_k;
    MoeBuffers {
        scores: Rows::new(t, shape.moe.experts),
        latent: Rows::new(t, shape.moe.latent),
        gathered: Rows::new(pairs, shape.moe.latent),
        expert_gate: Rows::new(pairs, shape.moe.inner),
        expert_up: Rows::new(pairs, shape.moe.inner),
        expert_activated: Rows::new(pairs, shape.moe.inner),
        expert_grouped: Rows::new(pairs, shape.moe.latent),
        expert_outputs: Rows::new(t, shape.moe.top_k * shape.moe.latent),
        sum: Rows::new(t, shape.moe.latent),
        sum_normed: Rows::new(t, shape.moe.latent),
        routed: Rows::new(t, shape.hidden),
        shared: Rows::new(t, shape.hidden),
    }
}
