//! The ways a `config.json` can be wrong: one for the file, one for each kind of field problem.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use k3_core::config::MXFP4_GROUP_COLUMNS;

use super::MAX_CONFIG_BYTES;
use crate::foreign::Foreign;
use crate::json::JsonError;
use crate::link::LinkTrouble;

/// One way a `config.json` can be unusable.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// There is none.
    #[error("{}: no such file (nothing stands in for a missing config.json)", path.display())]
    NotFound {
        /// The path tried.
        path: PathBuf,
    },
    /// A link that leads nowhere.
    #[error("{}: {trouble}", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        trouble: LinkTrouble,
    },
    /// The system refused.
    #[error("{}: cannot be read: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// Larger than [`MAX_CONFIG_BYTES`].
    #[error("{}: larger than the limit of {MAX_CONFIG_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Something else under that name.
    #[error("{}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: Foreign,
    },
    /// Not one strict JSON document.
    #[error("{}: not valid JSON: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: JsonError,
    },
    /// Fields that are missing, ill-typed or not what this program computes.
    #[error("{}: {}", path.display(), list_problems(problems))]
    Refused {
        /// The file.
        path: PathBuf,
        /// Everything found, never empty.
        problems: Vec<ConfigProblem>,
    },
}

fn list_problems(problems: &[ConfigProblem]) -> String {
    // Above the number of fields there are; only layer lists can have more problems.
    const SHOWN: usize = 80;
    let texts: Vec<_> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = problems.len() - texts.len();
    match texts.as_slice() {
        [only] => only.clone(),
        _ if more > 0 => {
            format!("{} problems: {}; and {more} more", problems.len(), texts.join("; "))
        }
        _ => format!("{} problems: {}", problems.len(), texts.join("; ")),
    }
}

/// One way a field can be wrong; `key` is the full path in the file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigProblem {
    /// Not there. Nothing is assumed in its place.
    #[error("{key} is missing (expected {expected})")]
    Missing {
        /// Full path.
        key: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// Another kind of value.
    #[error("{key}: expected {expected}, got {got}")]
    WrongType {
        /// Full path.
        key: String,
        /// What should stand there.
        expected: &'static str,
        /// What does.
        got: String,
    },
    /// A value this program does not compute; it computes the released one only.
    #[error("{key}: only the released value {released} is supported, got {got}")]
    NotReleased {
        /// Full path.
        key: String,
        /// The released value.
        released: String,
        /// What the file says.
        got: String,
    },
    /// A second group of quantised weights.
    #[error("{key}: only group_0 is supported")]
    OtherGroup {
        /// Full path.
        key: String,
    },
    /// Zero or below where that makes no sense.
    #[error("{key}: must be above zero, got {got}")]
    NotPositive {
        /// Full path.
        key: String,
        /// What the file says.
        got: String,
    },
    /// Below zero where zero is the least.
    #[error("{key}: must not be negative, got {got}")]
    Negative {
        /// Full path.
        key: String,
        /// What the file says.
        got: String,
    },
    /// Zero or above where that makes no sense.
    #[error("{key}: must be below zero, got {got}")]
    NotNegative {
        /// Full path.
        key: String,
        /// What the file says.
        got: String,
    },
    /// A number no double can hold.
    #[error("{key}: must be a finite number, got {got}")]
    NotFinite {
        /// Full path.
        key: String,
        /// What the file says.
        got: String,
    },
    /// Above `super::MAX_SIZE`, `super::MAX_LAYERS` or what an id can be.
    #[error("{key}: {got} is above the limit of {limit}")]
    TooLarge {
        /// Full path.
        key: String,
        /// What the file says.
        got: String,
        /// The limit.
        limit: usize,
    },
    /// Grouped keys and values do not exist in this model.
    #[error("text_config.num_key_value_heads: {kv_heads} differs from num_attention_heads {heads}")]
    KvHeadsDiffer {
        /// `num_attention_heads`.
        heads: usize,
        /// `num_key_value_heads`.
        kv_heads: usize,
    },
    /// More experts chosen than there are.
    #[error("text_config.num_experts_per_token: {top_k} is above num_experts {experts}")]
    TopKAboveExperts {
        /// `num_experts_per_token`.
        top_k: usize,
        /// `num_experts`.
        experts: usize,
    },
    /// More dense layers than layers.
    #[error("text_config.first_k_dense_replace: {dense} is above num_hidden_layers {layers}")]
    DenseAboveLayers {
        /// `first_k_dense_replace`.
        dense: usize,
        /// `num_hidden_layers`.
        layers: usize,
    },
    /// `A_log` is stored with `head_dim` values and holds one per head.
    #[error(
        "text_config.linear_attn_config.num_heads: {heads} is above head_dim {head_dim}, \
         the length A_log is stored with"
    )]
    HeadsAboveALog {
        /// `num_heads`.
        heads: usize,
        /// `head_dim`.
        head_dim: usize,
    },
    /// MXFP4 shares a scale among 32 columns; a part of a group has none.
    #[error("{key}: {got} is not a multiple of the {MXFP4_GROUP_COLUMNS} columns of a scale group")]
    PartGroup {
        /// Full path.
        key: String,
        /// What the file says.
        got: usize,
    },
    /// An entry of a layer list outside 1..=layers.
    #[error("{key}[{position}]: layer {got} is outside 1..={layers} (the list is ONE-based)")]
    LayerOutOfRange {
        /// Full path of the list.
        key: String,
        /// Zero-based place in the list.
        position: usize,
        /// The entry as written.
        got: String,
        /// `num_hidden_layers`.
        layers: usize,
    },
    /// A layer list that does not rise.
    #[error("{key}[{position}]: layer {got} after {previous}, the ONE-based list must rise")]
    LayersNotRising {
        /// Full path of the list.
        key: String,
        /// Zero-based place in the list.
        position: usize,
        /// The entry before.
        previous: usize,
        /// The entry.
        got: usize,
    },
    /// The same entry twice in a layer list.
    #[error("{key}[{position}]: layer {got} stands twice in the ONE-based list")]
    LayerTwice {
        /// Full path of the list.
        key: String,
        /// Zero-based place of the second one.
        position: usize,
        /// The entry.
        got: usize,
    },
    /// A layer that would be both.
    #[error("layer {layer} (ONE-based) stands in both kda_layers and full_attn_layers")]
    LayerInBothLists {
        /// ONE-based.
        layer: usize,
    },
    /// A layer that would be neither.
    #[error("layer {layer} (ONE-based) stands in neither kda_layers nor full_attn_layers")]
    LayerInNoList {
        /// ONE-based.
        layer: usize,
    },
}
