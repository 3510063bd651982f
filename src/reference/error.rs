//! What can go wrong in the reference: one variant per cause, one line per message.
//!
//! Messages name the file, the tensor or the layer, what was expected and what was found. NaN and
//! infinity are not errors: they flow through the arithmetic to the logits.

use std::path::PathBuf;

/// An error of the reference's reader or forward pass.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// A file could not be opened or read.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// `model.safetensors.index.json` is not what it should be.
    #[error("{}: bad index: {reason}", file.display())]
    Index {
        /// The index file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A shard's header is not valid, or does not cover the file.
    #[error("{}: bad safetensors header: {reason}", file.display())]
    Header {
        /// The shard.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the config asks for is neither in the index nor in its shard.
    #[error("{}: tensor {tensor} is missing", file.display())]
    MissingTensor {
        /// The index or the shard that should name it.
        file: PathBuf,
        /// Full tensor name.
        tensor: String,
    },
    /// A tensor's shape is not the one the config implies.
    #[error("{}: {tensor}: expected shape {expected:?}, got {got:?}", file.display())]
    Shape {
        /// The shard.
        file: PathBuf,
        /// Full tensor name.
        tensor: String,
        /// Shape by the config.
        expected: Vec<usize>,
        /// Shape in the header.
        got: Vec<usize>,
    },
    /// A tensor's dtype is not the released one.
    #[error("{}: {tensor}: expected dtype {expected}, got {got}", file.display())]
    Dtype {
        /// The shard.
        file: PathBuf,
        /// Full tensor name.
        tensor: String,
        /// Released dtype.
        expected: &'static str,
        /// Dtype in the header.
        got: String,
    },
    /// `A_log` is padded to the head width; the padding must be exactly zero (clause K8).
    #[error("layer {layer}: A_log[{index}] is padding: expected 0, got {got}")]
    DecayPadding {
        /// Zero-based layer.
        layer: usize,
        /// Index into the stored vector, at or above the number of heads.
        index: usize,
        /// The value found.
        got: f64,
    },
    /// MXFP4 scale byte 255 is NaN by the OCP MX specification (clause Q4).
    #[error(
        "layer {layer}, expert {expert}, {matrix}.weight_scale, row {row}, group {group}: \
         expected a scale byte of 0..254, got 255 (NaN)"
    )]
    ScaleNan {
        /// Zero-based layer.
        layer: usize,
        /// Expert id.
        expert: usize,
        /// `w1`, `w2` or `w3`.
        matrix: &'static str,
        /// Output row.
        row: usize,
        /// Group of 32 columns.
        group: usize,
    },
    /// The two lists of layer kinds are not a partition of 1..n (clause L1).
    #[error(
        "config: layer {layer_one_based} must be in one of kda_layers, full_attn_layers: {got}"
    )]
    LayerKinds {
        /// The layer as the lists count, from one.
        layer_one_based: usize,
        /// What the lists say.
        got: &'static str,
    },
    /// A config that no forward pass can be built from.
    #[error("config: {field}: expected {expected}, got {got}")]
    Config {
        /// The field.
        field: &'static str,
        /// What it has to satisfy.
        expected: String,
        /// Its value.
        got: usize,
    },
    /// A layer index beyond the model.
    #[error("layer {layer}: expected 0..{layers} (the end excluded)")]
    NoSuchLayer {
        /// Zero-based layer asked for.
        layer: usize,
        /// Number of layers.
        layers: usize,
    },
    /// An input id beyond the embedding table.
    #[error("input id {id} at position {index}: expected below the vocabulary size {vocabulary}")]
    TokenId {
        /// The id.
        id: u32,
        /// Its index in the ids of this call.
        index: usize,
        /// Number of embedding rows.
        vocabulary: usize,
    },
    /// A call without input ids.
    #[error("no input ids: a forward pass needs at least one")]
    NoTokens,
}
