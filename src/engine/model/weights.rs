//! The weights of the model, as plain structs with the checkpoint's shapes, and their binding.
//!
//! Tensors come through [`WeightSource`], by name, with the dtype and shape that the
//! configuration implies; the source refuses what differs. Large matrices stay as stored (BF16,
//! packed MXFP4); vectors are widened to f32 once; each residual mixer's norm and projection are
//! folded into one vector. Layers come from a [`LayerSource`], so that they may be resident or
//! streamed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{EngineError, LayerKind, MlpKind, Shape};
use crate::kernels::bf16;
use crate::kernels::matrix::{Matrix, MatrixError, MatrixRef, SharedBytes};
use crate::kernels::residual::fold;
use crate::kernels::rows::Row;
use crate::kernels::table::Kernels;
use k3_checkpoint::{Dtype, Role};

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

impl TensorSpec {
    /// The tensor of a role in a layer (any, for those of the whole model) and of an expert.
    #[must_use]
    pub fn of(shape: &Shape, role: Role, layer: usize, expert: usize) -> Self {
        let kind = shape.layers[layer].kind;
        Self { name: role.name(layer, expert), dtype: role.dtype(), shape: role.shape(shape, kind) }
    }
}

/// Where tensors come from.
pub trait WeightSource {
    /// The bytes of a tensor, little-endian, row-major.
    ///
    /// # Errors
    /// The tensor is missing, unreadable, or of another dtype or shape.
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError>;

    /// The file that a tensor is read from, for messages.
    fn file(&self, _name: &str) -> Option<&Path> {
        None
    }
}

/// Something wrong with the values of a tensor, at a place in it.
pub(super) fn wrong_values(
    source: &dyn WeightSource,
    name: &str,
    place: String,
    what: String,
) -> EngineError {
    let file = source.file(name).map(|file| format!("{}: ", file.display()));
    EngineError::at(file.unwrap_or_default() + &place, what)
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

/// Loads tensors by their role in a layer; those of the whole model belong to any.
struct Binder<'a> {
    shape: &'a Shape,
    source: &'a dyn WeightSource,
    layer: usize,
}

impl Binder<'_> {
    fn spec(&self, role: Role) -> TensorSpec {
        TensorSpec::of(self.shape, role, self.layer, 0)
    }

    fn matrix(&self, role: Role) -> Result<Matrix, EngineError> {
        let spec = self.spec(role);
        let bytes = self.source.tensor(&spec)?;
        let columns = spec.shape.last().copied().unwrap_or(1);
        let rows = spec.shape.iter().rev().skip(1).product();
        named(spec.name, Matrix::bf16(rows, columns, bytes))
    }

    fn vector(&self, role: Role) -> Result<Vec<f32>, EngineError> {
        let spec = self.spec(role);
        let bytes = self.source.tensor(&spec)?;
        let bytes = bytes.bytes();
        let values: Vec<f32> = match spec.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::Bf16 => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| bf16::widen(u16::from_le_bytes(*b)))
                .collect(),
            _ => Vec::new(),
        };
        let (expected, got) = (spec.shape.iter().product::<usize>(), values.len());
        if got == expected {
            return Ok(values);
        }
        let what = format!("expected {expected} elements, got {got}");
        Err(EngineError::at(format!("tensor {}", spec.name), what))
    }

    /// A norm with `rms_norm_eps`.
    fn norm(&self, role: Role) -> Result<Norm, EngineError> {
        Ok(Norm { weight: self.vector(role)?, epsilon: self.shape.rms_norm_eps })
    }

    /// One of MLA's two low-rank norms (N3).
    fn low_rank_norm(&self, role: Role) -> Result<Norm, EngineError> {
        Ok(Norm { weight: self.vector(role)?, epsilon: self.shape.mla_norm_eps })
    }

    /// A residual mix, its norm with `rms_norm_eps` (N2).
    fn mixer(&self, norm: Role, projection: Role) -> Result<Mixer, EngineError> {
        let folded = fold(&self.vector(norm)?, &self.vector(projection)?);
        Ok(Mixer { folded, epsilon: self.shape.rms_norm_eps })
    }

    fn dense(&self, [gate, up, down]: [Role; 3]) -> Result<DenseWeights, EngineError> {
        Ok(DenseWeights {
            gate: self.matrix(gate)?,
            up: self.matrix(up)?,
            down: self.matrix(down)?,
        })
    }

    fn kda(&self) -> Result<KdaWeights, EngineError> {
        let stored = self.vector(Role::KdaALog)?;
        // The first H values are the heads', the rest is padding (K7, K8).
        let heads = self.shape.kda.heads;
        let (a_log, tail) = stored.split_at(heads);
        if let Some(place) = tail.iter().position(|value| *value != 0.0) {
            let name = self.spec(Role::KdaALog).name;
            let (index, value) = (heads + place, tail[place]);
            let what = format!("element {index} of the padding is {value}, expected 0");
            return Err(wrong_values(self.source, &name, format!("tensor {name}"), what));
        }
        Ok(KdaWeights {
            projections: [
                self.matrix(Role::KdaQProj)?,
                self.matrix(Role::KdaKProj)?,
                self.matrix(Role::KdaVProj)?,
            ],
            taps: [
                self.vector(Role::KdaQConv)?,
                self.vector(Role::KdaKConv)?,
                self.vector(Role::KdaVConv)?,
            ],
            f_a: self.matrix(Role::KdaFAProj)?,
            f_b: self.matrix(Role::KdaFBProj)?,
            b: self.matrix(Role::KdaBProj)?,
            a_log: a_log.to_vec(),
            dt_bias: self.vector(Role::KdaDtBias)?,
            o_norm: self.norm(Role::KdaONorm)?,
        })
    }

    fn mla(&self) -> Result<MlaWeights, EngineError> {
        Ok(MlaWeights {
            q_a: self.matrix(Role::MlaQAProj)?,
            q_a_norm: self.low_rank_norm(Role::MlaQANorm)?,
            q_b: self.matrix(Role::MlaQBProj)?,
            kv_a: self.matrix(Role::MlaKvAProj)?,
            kv_a_norm: self.low_rank_norm(Role::MlaKvANorm)?,
            kv_b: self.matrix(Role::MlaKvBProj)?,
        })
    }

    fn moe(&self) -> Result<MoeWeights, EngineError> {
        let shared = [Role::SharedGateProj, Role::SharedUpProj, Role::SharedDownProj];
        Ok(MoeWeights {
            router: self.matrix(Role::RouterWeight)?,
            bias: self.vector(Role::RouterBias)?,
            down: self.matrix(Role::LatentDownProj)?,
            up: self.matrix(Role::LatentUpProj)?,
            norm: self.norm(Role::LatentNorm)?,
            shared: self.dense(shared)?,
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

impl Weights {
    /// Binds embedding, head and closing stages.
    ///
    /// # Errors
    /// A tensor the source refuses.
    pub fn load(shape: &Shape, source: &dyn WeightSource) -> Result<Self, EngineError> {
        let binder = Binder { shape, source, layer: 0 };
        let vocabulary = Arc::new(ResidentVocabulary {
            embedding: binder.matrix(Role::EmbedTokens)?,
            head: binder.matrix(Role::LmHead)?,
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
        let binder = Binder { shape, source, layer: 0 };
        Ok(Self {
            vocabulary,
            output_mixer: binder.mixer(Role::OutputResNorm, Role::OutputResProj)?,
            final_norm: binder.norm(Role::FinalNorm)?,
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
        let binder = Binder { shape, source, layer };
        let place = shape.layers[layer];
        let attention = match place.kind {
            LayerKind::Kda => AttentionWeights::Kda(Box::new(binder.kda()?)),
            LayerKind::Mla => AttentionWeights::Mla(Box::new(binder.mla()?)),
        };
        let dense = [Role::DenseGateProj, Role::DenseUpProj, Role::DenseDownProj];
        let mlp = match place.mlp {
            MlpKind::Dense => MlpWeights::Dense(Box::new(binder.dense(dense)?)),
            MlpKind::Moe => MlpWeights::Moe(Box::new(binder.moe()?)),
        };
        Ok(Self {
            input_norm: binder.norm(Role::InputNorm)?,
            post_attention_norm: binder.norm(Role::PostAttentionNorm)?,
            attention_mixer: binder.mixer(Role::AttentionResNorm, Role::AttentionResProj)?,
            mlp_mixer: binder.mixer(Role::MlpResNorm, Role::MlpResProj)?,
            attention,
            gate: binder.matrix(Role::AttentionGProj)?,
            output: binder.matrix(Role::AttentionOProj)?,
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
