//! The weights of the model, as plain structs with the checkpoint's shapes, and their binding.
//!
//! Tensors come through [`WeightSource`], by name, with the dtype and shape that the
//! configuration implies; the source refuses what differs. Large matrices stay as stored (BF16,
//! packed MXFP4); vectors are widened to f32 once; each residual mixer's norm and projection are
//! folded into one vector. Layers come from a [`LayerSource`], so that they may be resident or
//! streamed.

use std::ops::Range;
use std::sync::Arc;

use super::{AttentionKind, EngineError, Shape};
use crate::kernels::bf16;
use crate::kernels::matrix::{Matrix, MatrixError, MatrixRef, SharedBytes};
use crate::kernels::residual::fold;
use crate::kernels::rows::Row;
use crate::kernels::table::Kernels;
use k3_checkpoint::Dtype;

/// A tensor the engine asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Full name in the checkpoint.
    pub name: String,
    /// Expected element type.
    pub dtype: Dtype,
    /// Expected shape, outermost first.
    pub shape: Vec<usize>,
}

/// Where tensors come from.
pub trait WeightSource {
    /// The bytes of a tensor, little-endian, row-major.
    ///
    /// # Errors
    /// The tensor is missing, unreadable, or of another dtype or shape.
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError>;
}

/// What an RMSNorm(x; w, ε) has of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// w.
    pub weight: Vec<f32>,
    /// ε (N2, N3).
    pub epsilon: f64,
}

impl Norm {
    /// RMSNorm(x; w, ε) of one row.
    pub fn apply(&self, kernels: &Kernels, x: &[f32], out: &mut [f32]) {
        (kernels.rms_norm)(x, &self.weight, self.epsilon, out);
    }
}

/// What a residual mix has of its own (R3).
#[derive(Debug, Clone, PartialEq)]
pub struct Mixer {
    /// norm.w ⊙ proj.w \[E\].
    pub folded: Vec<f32>,
    /// ε of the keys' norm (N2).
    pub epsilon: f64,
}

/// KDA's tensors (P = H·D).
#[derive(Debug, Clone)]
pub struct KdaWeights {
    /// q, k, v projections, each \[P, E\].
    pub projections: [Matrix; 3],
    /// Taps of q, k, v, each \[P, kernel\], oldest first.
    pub taps: [Vec<f32>; 3],
    /// \[D, E\].
    pub f_a: Matrix,
    /// \[P, D\].
    pub f_b: Matrix,
    /// \[H, E\].
    pub b: Matrix,
    /// Per head \[H\] (K7), sliced (K8).
    pub a_log: Vec<f32>,
    /// Per channel \[P\].
    pub dt_bias: Vec<f32>,
    /// \[D\].
    pub o_norm: Norm,
}

/// MLA's tensors.
#[derive(Debug, Clone)]
pub struct MlaWeights {
    /// \[q_lora, E\].
    pub q_a: Matrix,
    /// \[q_lora\].
    pub q_a_norm: Norm,
    /// \[heads·(nope+rope), q_lora\].
    pub q_b: Matrix,
    /// \[kv_lora+rope, E\].
    pub kv_a: Matrix,
    /// \[kv_lora\].
    pub kv_a_norm: Norm,
    /// \[heads·(nope+v), kv_lora\].
    pub kv_b: Matrix,
}

/// The attention of a layer.
#[derive(Debug, Clone)]
pub enum AttentionWeights {
    /// KDA.
    Kda(Box<KdaWeights>),
    /// MLA.
    Mla(Box<MlaWeights>),
}

/// A gated MLP of inner width I: dense layer or shared experts.
#[derive(Debug, Clone)]
pub struct DenseWeights {
    /// \[I, E\].
    pub gate: Matrix,
    /// \[I, E\].
    pub up: Matrix,
    /// \[E, I\].
    pub down: Matrix,
}

/// LatentMoE but for its routed experts.
#[derive(Debug, Clone)]
pub struct MoeWeights {
    /// Router \[experts, E\].
    pub router: Matrix,
    /// Selection bias \[experts\].
    pub bias: Vec<f32>,
    /// \[L, E\].
    pub down: Matrix,
    /// \[E, L\].
    pub up: Matrix,
    /// \[L\].
    pub norm: Norm,
    /// The shared MLP.
    pub shared: DenseWeights,
}

/// The MLP of a layer.
#[derive(Debug, Clone)]
pub enum MlpWeights {
    /// Dense.
    Dense(Box<DenseWeights>),
    /// Mixture of experts.
    Moe(Box<MoeWeights>),
}

/// One layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// \[E\].
    pub input_norm: Norm,
    /// \[E\].
    pub post_attention_norm: Norm,
    /// Attention-side mixer. Layer 0 has one and never uses it.
    pub attention_mixer: Mixer,
    /// MLP-side mixer.
    pub mlp_mixer: Mixer,
    /// KDA or MLA.
    pub attention: AttentionWeights,
    /// Output gate \[P or heads·v, E\].
    pub gate: Matrix,
    /// Output projection \[E, P or heads·v\].
    pub output: Matrix,
    /// Dense or MoE.
    pub mlp: MlpWeights,
}

/// Where layers come from: memory, or a ring that streams them.
pub trait LayerSource: Send + Sync + std::fmt::Debug {
    /// Layer `layer`; kept alive by the handle. The caller lets go of a layer before it asks for
    /// the next: its memory may be what the next one needs.
    ///
    /// # Errors
    /// It cannot be read.
    fn layer(&self, layer: usize) -> Result<Arc<LayerWeights>, EngineError>;
}

impl<T: LayerSource + ?Sized> LayerSource for Arc<T> {
    fn layer(&self, layer: usize) -> Result<Arc<LayerWeights>, EngineError> {
        (**self).layer(layer)
    }
}

/// All layers in memory.
#[derive(Debug, Clone)]
pub struct ResidentLayers(pub Vec<Arc<LayerWeights>>);

impl LayerSource for ResidentLayers {
    fn layer(&self, layer: usize) -> Result<Arc<LayerWeights>, EngineError> {
        Ok(self.0[layer].clone())
    }
}

/// Where embedding rows and the head come from: memory, or the disk.
pub trait VocabularySource: Send + Sync + std::fmt::Debug {
    /// Gives the embedding row \[E\] of `id`.
    ///
    /// # Errors
    /// It cannot be read.
    fn embed(&self, id: usize, take: &mut dyn FnMut(Row<'_>)) -> Result<(), EngineError>;

    /// Gives the head \[V, E\] from its first row to its last, in one piece or in several.
    ///
    /// # Errors
    /// It cannot be read.
    fn head(&self, take: &mut dyn FnMut(Range<usize>, MatrixRef<'_>)) -> Result<(), EngineError>;
}

/// Embedding and head in memory.
#[derive(Debug, Clone)]
pub struct ResidentVocabulary {
    /// Embedding table \[V, E\].
    pub embedding: Matrix,
    /// lm_head \[V, E\].
    pub head: Matrix,
}

impl VocabularySource for ResidentVocabulary {
    fn embed(&self, id: usize, take: &mut dyn FnMut(Row<'_>)) -> Result<(), EngineError> {
        take(self.embedding.view().row(id));
        Ok(())
    }

    fn head(&self, take: &mut dyn FnMut(Range<usize>, MatrixRef<'_>)) -> Result<(), EngineError> {
        take(0..self.head.rows(), self.head.view());
        Ok(())
    }
}

/// The weights outside the layers.
#[derive(Debug, Clone)]
pub struct Weights {
    /// Embedding and head.
    pub vocabulary: Arc<dyn VocabularySource>,
    /// Output mixer.
    pub output_mixer: Mixer,
    /// \[E\].
    pub final_norm: Norm,
}

/// Binds names below a prefix.
struct Binder<'a> {
    shape: &'a Shape,
    source: &'a dyn WeightSource,
    prefix: String,
}

impl<'a> Binder<'a> {
    /// For tensors outside the layers.
    fn of_model(shape: &'a Shape, source: &'a dyn WeightSource) -> Self {
        let prefix = "language_model.".to_owned();
        Self { shape, source, prefix }
    }

    fn bytes(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<(String, SharedBytes), EngineError> {
        let name = format!("{}{name}", self.prefix);
        let spec = TensorSpec { name, dtype, shape: shape.to_vec() };
        let bytes = self.source.tensor(&spec)?;
        Ok((spec.name, bytes))
    }

    fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Matrix, EngineError> {
        let (name, bytes) = self.bytes(name, Dtype::Bf16, &[rows, columns])?;
        named(name, Matrix::bf16(rows, columns, bytes))
    }

    fn vector(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        let (name, bytes) = self.bytes(name, dtype, shape)?;
        let bytes = bytes.bytes();
        let values: Vec<f32> = match dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::Bf16 => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| bf16::widen(u16::from_le_bytes(*b)))
                .collect(),
            _ => Vec::new(),
        };
        let expected: usize = shape.iter().product();
        let got = values.len();
        if got != expected {
            let what = format!("expected {expected} elements, got {got}");
            return Err(EngineError::at(format!("tensor {name}"), what));
        }
        Ok(values)
    }

    /// A norm with `rms_norm_eps`.
    fn norm(&self, name: &str, width: usize) -> Result<Norm, EngineError> {
        let weight = self.vector(name, Dtype::Bf16, &[width])?;
        Ok(Norm { weight, epsilon: self.shape.rms_norm_eps })
    }

    /// One of MLA's two low-rank norms (N3).
    fn low_rank_norm(&self, name: &str, width: usize) -> Result<Norm, EngineError> {
        let epsilon = self.shape.mla_norm_eps;
        Ok(Norm { epsilon, ..self.norm(name, width)? })
    }

    fn mixer(&self, name: &str) -> Result<Mixer, EngineError> {
        let hidden = self.shape.hidden;
        let norm = self.vector(&format!("{name}_norm.weight"), Dtype::Bf16, &[hidden])?;
        let projection = self.vector(&format!("{name}_proj.weight"), Dtype::Bf16, &[1, hidden])?;
        Ok(Mixer { folded: fold(&norm, &projection), epsilon: self.shape.rms_norm_eps })
    }

    fn dense(&self, name: &str, inner: usize) -> Result<DenseWeights, EngineError> {
        let hidden = self.shape.hidden;
        Ok(DenseWeights {
            gate: self.matrix(&format!("{name}.gate_proj.weight"), inner, hidden)?,
            up: self.matrix(&format!("{name}.up_proj.weight"), inner, hidden)?,
            down: self.matrix(&format!("{name}.down_proj.weight"), hidden, inner)?,
        })
    }

    fn kda(&self) -> Result<KdaWeights, EngineError> {
        let shape = self.shape;
        let (p, e, d) = (shape.kda_projection(), shape.hidden, shape.kda_width);
        let projection = |name| self.matrix(&format!("self_attn.{name}_proj.weight"), p, e);
        let taps = |name| {
            let name = format!("self_attn.{name}_conv1d.weight");
            self.vector(&name, Dtype::F32, &[p, 1, shape.conv_kernel])
        };
        let stored = self.vector("self_attn.A_log", Dtype::F32, &[d])?;
        // The first H values are the heads', the rest is padding (K7, K8).
        let (a_log, tail) = stored.split_at(shape.kda_heads);
        if let Some(place) = tail.iter().position(|value| *value != 0.0) {
            let name = format!("tensor {}self_attn.A_log", self.prefix);
            let (index, value) = (shape.kda_heads + place, tail[place]);
            let what = format!("element {index} of the padding is {value}, expected 0");
            return Err(EngineError::at(name, what));
        }
        Ok(KdaWeights {
            projections: [projection("q")?, projection("k")?, projection("v")?],
            taps: [taps("q")?, taps("k")?, taps("v")?],
            f_a: self.matrix("self_attn.f_a_proj.weight", d, e)?,
            f_b: self.matrix("self_attn.f_b_proj.weight", p, d)?,
            b: self.matrix("self_attn.b_proj.weight", shape.kda_heads, e)?,
            a_log: a_log.to_vec(),
            dt_bias: self.vector("self_attn.dt_bias", Dtype::F32, &[p])?,
            o_norm: Norm {
                weight: self.vector("self_attn.o_norm.weight", Dtype::F32, &[d])?,
                epsilon: shape.rms_norm_eps,
            },
        })
    }

    fn mla(&self) -> Result<MlaWeights, EngineError> {
        let shape = self.shape;
        let (e, heads) = (shape.hidden, shape.mla_heads);
        let q_rows = heads * (shape.nope + shape.rope);
        let kv_rows = heads * (shape.nope + shape.v_width);
        let (q_lora, kv_lora) = (shape.q_lora, shape.kv_lora);
        Ok(MlaWeights {
            q_a: self.matrix("self_attn.q_a_proj.weight", q_lora, e)?,
            q_a_norm: self.low_rank_norm("self_attn.q_a_layernorm.weight", q_lora)?,
            q_b: self.matrix("self_attn.q_b_proj.weight", q_rows, q_lora)?,
            kv_a: self.matrix("self_attn.kv_a_proj_with_mqa.weight", shape.cache_width(), e)?,
            kv_a_norm: self.low_rank_norm("self_attn.kv_a_layernorm.weight", kv_lora)?,
            kv_b: self.matrix("self_attn.kv_b_proj.weight", kv_rows, kv_lora)?,
        })
    }

    fn moe(&self) -> Result<MoeWeights, EngineError> {
        let shape = self.shape;
        let (e, l, n) = (shape.hidden, shape.latent, shape.experts);
        let block = |name: &str| format!("block_sparse_moe.{name}");
        Ok(MoeWeights {
            router: self.matrix(&block("gate.weight"), n, e)?,
            bias: self.vector(&block("gate.e_score_correction_bias"), Dtype::F32, &[n])?,
            down: self.matrix(&block("routed_expert_down_proj.weight"), l, e)?,
            up: self.matrix(&block("routed_expert_up_proj.weight"), e, l)?,
            norm: self.norm(&block("routed_expert_norm.weight"), l)?,
            shared: self.dense(&block("shared_experts"), shape.shared_inner)?,
        })
    }
}

/// Gives a matrix error its tensor's name.
pub(super) fn named(
    name: String,
    matrix: Result<Matrix, MatrixError>,
) -> Result<Matrix, EngineError> {
    matrix.map_err(|error| EngineError::at(format!("tensor {name}"), error))
}

/// The prefix of a layer's tensors.
pub(super) fn layer_prefix(layer: usize) -> String {
    format!("language_model.model.layers.{layer}.")
}

impl Weights {
    /// Binds embedding, head and closing stages.
    ///
    /// # Errors
    /// A tensor the source refuses.
    pub fn load(shape: &Shape, source: &dyn WeightSource) -> Result<Self, EngineError> {
        let binder = Binder::of_model(shape, source);
        let (v, e) = (shape.vocabulary, shape.hidden);
        let vocabulary = Arc::new(ResidentVocabulary {
            embedding: binder.matrix("model.embed_tokens.weight", v, e)?,
            head: binder.matrix("lm_head.weight", v, e)?,
        });
        Self::load_beside(shape, source, vocabulary)
    }

    /// Binds the closing stages; embedding and head come from elsewhere.
    ///
    /// # Errors
    /// A tensor the source refuses.
    pub fn load_beside(
        shape: &Shape,
        source: &dyn WeightSource,
        vocabulary: Arc<dyn VocabularySource>,
    ) -> Result<Self, EngineError> {
        let binder = Binder::of_model(shape, source);
        Ok(Self {
            vocabulary,
            output_mixer: binder.mixer("model.output_attn_res")?,
            final_norm: binder.norm("model.norm.weight", shape.hidden)?,
        })
    }
}

impl LayerWeights {
    /// Binds one layer.
    ///
    /// # Errors
    /// A tensor the source refuses; a non-zero tail of `A_log` (K8).
    pub fn load(
        shape: &Shape,
        source: &dyn WeightSource,
        layer: usize,
    ) -> Result<Self, EngineError> {
        let binder = Binder { shape, source, prefix: layer_prefix(layer) };
        let (e, place) = (shape.hidden, shape.layers[layer]);
        let (attention, width) = match place.attention {
            AttentionKind::Kda => {
                let kda = Box::new(binder.kda()?);
                (AttentionWeights::Kda(kda), shape.kda_projection())
            }
            AttentionKind::Mla => {
                let mla = Box::new(binder.mla()?);
                (AttentionWeights::Mla(mla), shape.mla_heads * shape.v_width)
            }
        };
        let mlp = if place.dense {
            MlpWeights::Dense(Box::new(binder.dense("mlp", shape.dense_inner)?))
        } else {
            MlpWeights::Moe(Box::new(binder.moe()?))
        };
        Ok(Self {
            input_norm: binder.norm("input_layernorm.weight", e)?,
            post_attention_norm: binder.norm("post_attention_layernorm.weight", e)?,
            attention_mixer: binder.mixer("self_attention_res")?,
            mlp_mixer: binder.mixer("mlp_res")?,
            attention,
            gate: binder.matrix("self_attn.g_proj.weight", width, e)?,
            output: binder.matrix("self_attn.o_proj.weight", e, width)?,
            mlp,
        })
    }
}

impl ResidentLayers {
    /// Binds every layer.
    ///
    /// # Errors
    /// As for a single layer.
    pub fn load(shape: &Shape, source: &dyn WeightSource) -> Result<Self, EngineError> {
        let load = |layer| LayerWeights::load(shape, source, layer).map(Arc::new);
        (0..shape.layers.len()).map(load).collect::<Result<_, _>>().map(Self)
    }
}
