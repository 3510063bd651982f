//! The reader of `config.json` that refuses: every field is required, nothing has a default.
//!
//! It yields the raw fields of the released, nested form (`text_config`,
//! `text_config.linear_attn_config`, `text_config.quantization_config`); no flat form, no second
//! spelling of a key, no search in another place. What follows from the fields (layer kinds,
//! banks, derived widths) is worked out by the engine and by the reference, each for itself.
//!
//! Choices: an integer must be written as one (`16.0` and `1.6e1` are refused, `1` for a real
//! number is fine); a boolean must be a boolean; keys this reader does not know are accepted,
//! since the release has a hundred that no computation reads. Everything missing or ill-typed is
//! told in one message; what contradicts itself is told, again all at once, when nothing is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::foreign::Foreign;
use crate::checkpoint::json::{JsonError, Kind, Value, parse_document};

/// Largest `config.json` read: the released one has 7,006 bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Largest width or count accepted. Six times the released vocabulary, the largest size there is;
/// any tensor of the plan, a product of at most three widths and an element size, then stays
/// below 2^63 bytes, so no product of sizes can wrap.
pub const MAX_SIZE: usize = 1 << 20;

/// Most layers accepted: 44 times the released number.
pub const MAX_LAYERS: usize = 4096;

/// Columns that share one scale in MXFP4.
pub const MXFP4_GROUP_COLUMNS: usize = 32;

/// ε of the two low-rank norms in MLA (`q_a_layernorm`, `kv_a_layernorm`): the released code
/// builds them without an ε, so its class default holds, not `rms_norm_eps`.
pub const MLA_NORM_EPS: f64 = 1e-6;

/// The raw fields of `text_config` (and `text_config.linear_attn_config`), as written in the file.
/// Sizes are checked to be non-zero and sane, numbers to be finite; nothing is derived here.
#[derive(Debug, Clone, PartialEq)]
pub struct RawConfig {
    /// E: width of the running sum.
    pub hidden_size: usize,
    /// V: rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// ε of every RMSNorm but the two low-rank norms of MLA (see [`MLA_NORM_EPS`]).
    pub rms_norm_eps: f64,
    /// `linear_attn_config.num_heads`: KDA heads H.
    pub kda_num_heads: usize,
    /// `linear_attn_config.head_dim`: KDA key and value width D.
    pub kda_head_dim: usize,
    /// `linear_attn_config.short_conv_kernel_size`: taps of the depthwise convolutions.
    pub short_conv_kernel_size: usize,
    /// `linear_attn_config.gate_lower_bound`: lower bound of the log decay, negative.
    pub gate_lower_bound: f64,
    /// `linear_attn_config.full_attn_layers`: MLA layers, ONE-based, as written.
    pub full_attn_layers: Vec<usize>,
    /// `linear_attn_config.kda_layers`: KDA layers, ONE-based, as written.
    pub kda_layers: Vec<usize>,
    /// MLA heads (`num_key_value_heads` is checked to be equal).
    pub num_attention_heads: usize,
    /// Rank of the query's low-rank pair.
    pub q_lora_rank: usize,
    /// Width of the cached latent.
    pub kv_lora_rank: usize,
    /// Per-head query and key width without the shared part.
    pub qk_nope_head_dim: usize,
    /// Width of the key part shared by all heads (never rotated in K3).
    pub qk_rope_head_dim: usize,
    /// Per-head value width of MLA.
    pub v_head_dim: usize,
    /// A bank is pushed at every layer whose index is a multiple of this.
    pub attn_res_block_size: usize,
    /// Layers with a smaller index have a dense MLP.
    pub first_k_dense_replace: usize,
    /// Inner width of the dense MLP.
    pub intermediate_size: usize,
    /// Routed experts per MoE layer.
    pub num_experts: usize,
    /// Experts chosen per token (top-k).
    pub num_experts_per_token: usize,
    /// L: latent width the routed experts work on.
    pub routed_expert_hidden_size: usize,
    /// I: inner width of a routed expert; the shared MLP's is this times `num_shared_experts`.
    pub moe_intermediate_size: usize,
    /// Shared experts, stored as one MLP.
    pub num_shared_experts: usize,
    /// Whether the chosen scores are divided by their sum (when top-k > 1).
    pub moe_renormalize: bool,
    /// Factor on the routing weights.
    pub routed_scaling_factor: f64,
    /// SiTU's cap on the gate.
    pub activation_situ_beta: f64,
    /// SiTU's cap on the linear part.
    pub activation_situ_linear_beta: f64,
    /// Ids of the control tokens, wherever the file names them. No computation reads them.
    pub token_ids: TokenIds,
}

/// The control ids of the two places that name them; the release has them in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// At the root of the file.
    pub root: SpecialIds,
    /// Under `text_config`.
    pub text: SpecialIds,
}

/// `bos_token_id`, `eos_token_id`, `pad_token_id`: optional, since no computation depends on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Start of a text.
    pub bos: Option<u32>,
    /// Where generation ends; one id or a list in the file, empty where absent or null.
    pub eos: Vec<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// One way a `config.json` can be unusable.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// There is none.
    #[error("{}: no such file (nothing stands in for a missing config.json)", path.display())]
    NotFound {
        /// The path tried.
        path: PathBuf,
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
    let texts: Vec<_> = problems
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    let more = problems.len() - texts.len();
    match texts.as_slice() {
        [only] => only.clone(),
        _ if more > 0 => {
            format!(
                "{} problems: {}; and {more} more",
                problems.len(),
                texts.join("; ")
            )
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
    /// Above [`MAX_SIZE`], [`MAX_LAYERS`] or what an id can be.
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

impl RawConfig {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// Every variant of [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let io_error = |reason: io::Error| match reason.kind() {
            io::ErrorKind::NotFound => ConfigError::NotFound {
                path: path.to_owned(),
            },
            _ => ConfigError::Io {
                path: path.to_owned(),
                reason,
            },
        };
        let file = File::open(path).map_err(io_error)?;
        let mut bytes = Vec::new();
        file.take(MAX_CONFIG_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(io_error)?;
        Self::parse(&bytes, path)
    }

    /// Checks the bytes of a file; `origin` is the name used in messages.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`], [`ConfigError::Foreign`], [`ConfigError::Json`],
    /// [`ConfigError::Refused`].
    pub fn parse(bytes: &[u8], origin: &Path) -> Result<Self, ConfigError> {
        let path = origin.to_owned();
        if bytes.len() as u64 > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { path });
        }
        if let Some(what) = Foreign::of_content(bytes) {
            return Err(ConfigError::Foreign { path, what });
        }
        let root = match parse_document(bytes) {
            Ok(root) => root,
            Err(reason) => return Err(ConfigError::Json { path, reason }),
        };
        let mut fields = Fields {
            root: &root,
            problems: Vec::new(),
        };
        check_released_values(&mut fields);
        let config = read_fields(&mut fields);
        if fields.problems.is_empty() {
            check_consistency(&config, &mut fields);
        }
        let problems = fields.problems;
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Refused { path, problems })
        }
    }
}

/// Reads every field; a problem is noted and leaves an empty value behind, never a guess that is
/// used: the caller returns no config once a problem is noted.
fn read_fields(fields: &mut Fields<'_>) -> RawConfig {
    let layers = fields.size("text_config.num_hidden_layers", MAX_LAYERS);
    RawConfig {
        hidden_size: fields.width("text_config.hidden_size"),
        vocab_size: fields.width("text_config.vocab_size"),
        num_hidden_layers: layers,
        rms_norm_eps: fields.positive("text_config.rms_norm_eps"),
        kda_num_heads: fields.width("text_config.linear_attn_config.num_heads"),
        kda_head_dim: fields.width("text_config.linear_attn_config.head_dim"),
        short_conv_kernel_size: fields
            .width("text_config.linear_attn_config.short_conv_kernel_size"),
        gate_lower_bound: fields.negative("text_config.linear_attn_config.gate_lower_bound"),
        full_attn_layers: fields.layer_list(FULL_ATTN_LAYERS, layers),
        kda_layers: fields.layer_list(KDA_LAYERS, layers),
        num_attention_heads: fields.width("text_config.num_attention_heads"),
        q_lora_rank: fields.width("text_config.q_lora_rank"),
        kv_lora_rank: fields.width("text_config.kv_lora_rank"),
        qk_nope_head_dim: fields.width("text_config.qk_nope_head_dim"),
        qk_rope_head_dim: fields.width("text_config.qk_rope_head_dim"),
        v_head_dim: fields.width("text_config.v_head_dim"),
        attn_res_block_size: fields.width("text_config.attn_res_block_size"),
        first_k_dense_replace: fields.count("text_config.first_k_dense_replace", MAX_LAYERS),
        intermediate_size: fields.width("text_config.intermediate_size"),
        num_experts: fields.width("text_config.num_experts"),
        num_experts_per_token: fields.width("text_config.num_experts_per_token"),
        routed_expert_hidden_size: fields.width("text_config.routed_expert_hidden_size"),
        moe_intermediate_size: fields.width("text_config.moe_intermediate_size"),
        num_shared_experts: fields.width("text_config.num_shared_experts"),
        moe_renormalize: fields.boolean("text_config.moe_renormalize"),
        routed_scaling_factor: fields.positive("text_config.routed_scaling_factor"),
        activation_situ_beta: fields.positive("text_config.activation_situ_beta"),
        activation_situ_linear_beta: fields.positive("text_config.activation_situ_linear_beta"),
        token_ids: TokenIds {
            root: fields.special_ids(""),
            text: fields.special_ids("text_config."),
        },
    }
}

/// The path of a field of the one group of quantised weights.
macro_rules! group_weights {
    ($field:literal) => {
        concat!(
            "text_config.quantization_config.config_groups.group_0.weights.",
            $field
        )
    };
}

const CONFIG_GROUPS: &str = "text_config.quantization_config.config_groups";
const GROUP_FORMAT: &str = "text_config.quantization_config.config_groups.group_0.format";
const FULL_ATTN_LAYERS: &str = "text_config.linear_attn_config.full_attn_layers";
const KDA_LAYERS: &str = "text_config.linear_attn_config.kda_layers";

/// The released value of a field that this program computes with no other.
enum Released {
    Text(&'static str),
    Truth(bool),
    Integer(usize),
}

/// Fields whose meaning is built in.
const RELEASED: &[(&str, Released)] = {
    use Released::{Integer, Text, Truth};
    &[
        ("tie_word_embeddings", Truth(false)),
        ("text_config.tie_word_embeddings", Truth(false)),
        ("text_config.hidden_act", Text("situ")),
        ("text_config.moe_router_activation_func", Text("sigmoid")),
        ("text_config.mla_use_nope", Truth(true)),
        ("text_config.mla_use_output_gate", Truth(true)),
        (
            "text_config.linear_attn_config.use_full_rank_gate",
            Truth(true),
        ),
        ("text_config.latent_moe_use_norm", Truth(true)),
        ("text_config.num_expert_group", Integer(1)),
        ("text_config.topk_group", Integer(1)),
        ("text_config.moe_layer_freq", Integer(1)),
        ("text_config.num_nextn_predict_layers", Integer(0)),
        (
            "text_config.quantization_config.format",
            Text("mxfp4-pack-quantized"),
        ),
        (
            "text_config.quantization_config.quant_method",
            Text("compressed-tensors"),
        ),
        (GROUP_FORMAT, Text("mxfp4-pack-quantized")),
        (group_weights!("group_size"), Integer(MXFP4_GROUP_COLUMNS)),
        (group_weights!("num_bits"), Integer(4)),
        (group_weights!("type"), Text("float")),
        (group_weights!("scale_dtype"), Text("torch.uint8")),
        (group_weights!("strategy"), Text("group")),
        (group_weights!("symmetric"), Truth(true)),
    ]
};

/// Fields that may be absent; where they say something else, the numbers would differ.
const RELEASED_WHERE_PRESENT: &[(&str, Option<Released>)] = &[
    ("text_config.topk_method", Some(Released::Text("noaux_tc"))),
    ("text_config.quantization_config.kv_cache_scheme", None),
    (
        "text_config.quantization_config.config_groups.group_0.input_activations",
        None,
    ),
    (
        "text_config.quantization_config.config_groups.group_0.output_activations",
        None,
    ),
    (group_weights!("actorder"), None),
    (group_weights!("zp_dtype"), None),
];

fn check_released_values(fields: &mut Fields<'_>) {
    for (key, released) in RELEASED {
        fields.released(key, released);
    }
    for (key, released) in RELEASED_WHERE_PRESENT {
        match (fields.lookup(key), released) {
            (None | Some(Value::Null), _) => {}
            (Some(_), Some(released)) => fields.released(key, released),
            (Some(value), None) => fields.problems.push(ConfigProblem::NotReleased {
                key: (*key).to_owned(),
                released: "null".to_owned(),
                got: value.brief(),
            }),
        }
    }
    if let Some(Value::Object(groups)) = fields.lookup(CONFIG_GROUPS) {
        for name in groups.keys().filter(|name| *name != "group_0") {
            let key = format!("{CONFIG_GROUPS}.{}", name.escape_debug());
            fields.problems.push(ConfigProblem::OtherGroup { key });
        }
    }
}

/// What single fields cannot show: contradictions between them.
fn check_consistency(config: &RawConfig, fields: &mut Fields<'_>) {
    let kv_heads = fields.width("text_config.num_key_value_heads");
    let (heads, layers) = (config.num_attention_heads, config.num_hidden_layers);
    let problems = &mut fields.problems;
    if kv_heads != 0 && kv_heads != heads {
        problems.push(ConfigProblem::KvHeadsDiffer { heads, kv_heads });
    }
    let (top_k, experts) = (config.num_experts_per_token, config.num_experts);
    if top_k > experts {
        problems.push(ConfigProblem::TopKAboveExperts { top_k, experts });
    }
    let dense = config.first_k_dense_replace;
    if dense > layers {
        problems.push(ConfigProblem::DenseAboveLayers { dense, layers });
    }
    let (heads, head_dim) = (config.kda_num_heads, config.kda_head_dim);
    if heads > head_dim {
        problems.push(ConfigProblem::HeadsAboveALog { heads, head_dim });
    }
    for (key, got) in [
        (
            "text_config.routed_expert_hidden_size",
            config.routed_expert_hidden_size,
        ),
        (
            "text_config.moe_intermediate_size",
            config.moe_intermediate_size,
        ),
    ] {
        if !got.is_multiple_of(MXFP4_GROUP_COLUMNS) {
            problems.push(ConfigProblem::PartGroup {
                key: key.to_owned(),
                got,
            });
        }
    }
    check_partition(config, problems);
}

/// The two lists, each rising and in range by now, must hold every layer once.
fn check_partition(config: &RawConfig, problems: &mut Vec<ConfigProblem>) {
    let mut holders = vec![0_u8; config.num_hidden_layers];
    for layer in config.full_attn_layers.iter().chain(&config.kda_layers) {
        holders[layer - 1] += 1;
    }
    for (index, count) in holders.into_iter().enumerate() {
        let layer = index + 1;
        match count {
            0 => problems.push(ConfigProblem::LayerInNoList { layer }),
            1 => {}
            _ => problems.push(ConfigProblem::LayerInBothLists { layer }),
        }
    }
}

/// The document, and the problems found so far.
struct Fields<'a> {
    root: &'a Value,
    problems: Vec<ConfigProblem>,
}

impl<'a> Fields<'a> {
    /// The value at a dotted path, without noting anything.
    fn lookup(&self, key: &str) -> Option<&'a Value> {
        key.split('.')
            .try_fold(self.root, |value, name| match value {
                Value::Object(members) => members.get(name),
                _ => None,
            })
    }

    /// The value at a dotted path. Where an object on the way is missing or is none, that one is
    /// noted, once, instead of everything in it.
    fn require(&mut self, key: &str, expected: &'static str) -> Option<&'a Value> {
        let mut value = self.root;
        let mut end = 0;
        for name in key.split('.') {
            let Value::Object(members) = value else {
                let key = if end == 0 {
                    "the document"
                } else {
                    &key[..end]
                };
                self.wrong_type(key, "an object", value);
                return None;
            };
            let here = if end == 0 {
                name.len()
            } else {
                end + 1 + name.len()
            };
            let Some(next) = members.get(name) else {
                let expected = if here == key.len() {
                    expected
                } else {
                    "an object"
                };
                self.note(ConfigProblem::Missing {
                    key: key[..here].to_owned(),
                    expected,
                });
                return None;
            };
            (value, end) = (next, here);
        }
        Some(value)
    }

    fn note(&mut self, problem: ConfigProblem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn wrong_type(&mut self, key: &str, expected: &'static str, value: &Value) {
        let got = match value.kind() {
            Kind::Object | Kind::Array | Kind::Null => value.brief(),
            kind => format!("{kind}, {}", value.brief()),
        };
        self.note(ConfigProblem::WrongType {
            key: key.to_owned(),
            expected,
            got,
        });
    }

    fn width(&mut self, key: &str) -> usize {
        self.size(key, MAX_SIZE)
    }

    /// An integer in 1..=limit; 0 once a problem is noted.
    fn size(&mut self, key: &str, limit: usize) -> usize {
        let before = self.problems.len();
        let size = self.count(key, limit);
        if size == 0 && self.problems.len() == before && self.lookup(key).is_some() {
            self.note(ConfigProblem::NotPositive {
                key: key.to_owned(),
                got: "0".to_owned(),
            });
        }
        size
    }

    /// An integer in 0..=limit; 0 once a problem is noted.
    fn count(&mut self, key: &str, limit: usize) -> usize {
        const EXPECTED: &str = "an integer";
        let literal = match self.require(key, EXPECTED) {
            None => return 0,
            Some(Value::Number(literal)) if is_integer(literal) => literal,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                return 0;
            }
        };
        let (key, got) = (key.to_owned(), literal.clone());
        match literal.parse::<usize>() {
            Ok(value) if value <= limit => return value,
            Err(_) if literal.starts_with('-') => {
                self.note(ConfigProblem::NotPositive { key, got });
            }
            Ok(_) | Err(_) => self.note(ConfigProblem::TooLarge { key, got, limit }),
        }
        0
    }

    fn boolean(&mut self, key: &str) -> bool {
        const EXPECTED: &str = "true or false";
        match self.require(key, EXPECTED) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                false
            }
        }
    }

    /// A finite number; `None` once a problem is noted.
    fn number(&mut self, key: &str) -> Option<f64> {
        const EXPECTED: &str = "a number";
        let literal = match self.require(key, EXPECTED)? {
            Value::Number(literal) => literal,
            value => {
                self.wrong_type(key, EXPECTED, value);
                return None;
            }
        };
        let value = literal
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite());
        if value.is_none() {
            let (key, got) = (key.to_owned(), literal.clone());
            self.note(ConfigProblem::NotFinite { key, got });
        }
        value
    }

    fn positive(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value <= 0.0 {
            self.note(ConfigProblem::NotPositive {
                key: key.to_owned(),
                got: value.to_string(),
            });
        }
        value
    }

    fn negative(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value >= 0.0 {
            self.note(ConfigProblem::NotNegative {
                key: key.to_owned(),
                got: value.to_string(),
            });
        }
        value
    }

    /// A rising list of ONE-based layers; `layers` is 0 where that field had a problem itself.
    fn layer_list(&mut self, key: &str, layers: usize) -> Vec<usize> {
        const EXPECTED: &str = "a list of ONE-based layer numbers";
        let items = match self.require(key, EXPECTED) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                return Vec::new();
            }
        };
        let mut list: Vec<usize> = Vec::new();
        for (position, item) in items.iter().enumerate() {
            let Value::Number(literal) = item else {
                self.wrong_type(&format!("{key}[{position}]"), "an integer", item);
                break;
            };
            if !is_integer(literal) {
                self.wrong_type(&format!("{key}[{position}]"), "an integer", item);
                break;
            }
            match next_in_list(key, position, literal, &list, layers) {
                Ok(layer) => list.push(layer),
                Err(problem) => {
                    self.note(problem);
                    break;
                }
            }
        }
        list
    }

    fn released(&mut self, key: &str, released: &Released) {
        let (expected, released) = match released {
            Released::Text(text) => ("a string", Value::String((*text).to_owned())),
            Released::Truth(truth) => ("true or false", Value::Bool(*truth)),
            Released::Integer(integer) => ("an integer", Value::Number(integer.to_string())),
        };
        let Some(value) = self.require(key, expected) else {
            return;
        };
        let same_type = match value {
            Value::Number(literal) => matches!(released, Value::Number(_)) && is_integer(literal),
            _ => value.kind() == released.kind(),
        };
        if !same_type {
            self.wrong_type(key, expected, value);
        } else if *value != released {
            self.note(ConfigProblem::NotReleased {
                key: key.to_owned(),
                released: released.brief(),
                got: value.brief(),
            });
        }
    }

    fn special_ids(&mut self, prefix: &str) -> SpecialIds {
        SpecialIds {
            bos: self
                .token_ids(&format!("{prefix}bos_token_id"), false)
                .first()
                .copied(),
            eos: self.token_ids(&format!("{prefix}eos_token_id"), true),
            pad: self
                .token_ids(&format!("{prefix}pad_token_id"), false)
                .first()
                .copied(),
        }
    }

    /// An id, null, nothing at all, or (where `list_allowed`) a list of ids.
    fn token_ids(&mut self, key: &str, list_allowed: bool) -> Vec<u32> {
        let items = match self.lookup(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) if list_allowed => items.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let mut ids = Vec::new();
        for item in items {
            match item {
                Value::Number(literal) if is_integer(literal) && !literal.starts_with('-') => {
                    match literal.parse() {
                        Ok(id) => ids.push(id),
                        Err(_) => {
                            let (key, got) = (key.to_owned(), literal.clone());
                            let limit = u32::MAX as usize;
                            self.note(ConfigProblem::TooLarge { key, got, limit });
                            break;
                        }
                    }
                }
                value => {
                    self.wrong_type(key, "a token id or null", value);
                    break;
                }
            }
        }
        ids
    }
}

/// The next entry of a layer list, checked against the range and the entries before it.
fn next_in_list(
    key: &str,
    position: usize,
    literal: &str,
    list: &[usize],
    layers: usize,
) -> Result<usize, ConfigProblem> {
    let key = key.to_owned();
    let got = match literal.parse::<usize>() {
        Ok(layer) if layer > 0 && (layer <= layers || layers == 0) => layer,
        _ => {
            let got = literal.to_owned();
            return Err(ConfigProblem::LayerOutOfRange {
                key,
                position,
                got,
                layers,
            });
        }
    };
    match list.last().copied() {
        Some(previous) if got <= previous && list.contains(&got) => {
            Err(ConfigProblem::LayerTwice { key, position, got })
        }
        Some(previous) if got < previous => Err(ConfigProblem::LayersNotRising {
            key,
            position,
            previous,
            got,
        }),
        _ => Ok(got),
    }
}

/// Whether a JSON number is written as an integer.
fn is_integer(literal: &str) -> bool {
    literal
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'-')
}
