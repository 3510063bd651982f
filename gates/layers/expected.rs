//! Where each mutant of the engine has to show: by clause the stages, by stage the first layer that
//! has it, and the mutants that show elsewhere, with the reason.

/// Mutants that cannot show in the first layer of their kind, where they do, and why.
pub const LATE: [(&str, usize, &str); 1] =
    [("a11-expert-of-another-layer", 2, "layer 1 is the first with experts")];

/// Mutants that no layer shows, by the kernel whose fixtures do: the one the clause is about. They
/// leave every bit of every stage as it is, here where each token is computed again: an f64
/// sum in another order rounds to the same f32 almost always, and no layer has a subnormal weight.
pub const KERNELS: [(&str, &[&str]); 8] = [
    ("mxfp4-decode", &["a1-scale-zero-flushed", "a1-largest-scales-clamped"]),
    ("bf16-widen", &["a1-bf16-subnormals-flushed", "a1-bf16-through-f16"]),
    ("elementary", &["a10-exp-flushes-subnormals"]),
    (
        "row-product",
        &[
            "a1-weights-through-f32",
            "a2-one-lane",
            "a2-four-lanes",
            "a2-eight-lanes",
            "a2-thirty-two-lanes",
            "a2-contiguous-lanes",
            "a2-falling",
            "a2-tail-after-the-fold",
            "a3-neighbours-first",
            "a3-lane-after-lane",
            "a3-split-sum",
            "a12-subnormals-flushed",
        ],
    ),
    ("weighted-sum", &["a4-falling-order", "a4-pairwise"]),
    ("residual-mix", &["a4-sources-reversed"]),
    ("softmax-sum", &["a6-falling-order"]),
    ("moe-sum", &["a9-order-of-arrival"]),
];

/// Where a mistake in a clause can first show: stages, `KDA attn_out` where only layers of that
/// kind count. Written from `src/MODEL.md`: the stage whose formula has the clause in
/// it, given that every stage is judged from the subject's own inputs to it.
const WHERE: &[(&str, &[&str])] = &[
    // Another kind of layer asks for tensors that are not there: refused, or stages are missing.
    ("L1", &[]),
    ("L2", &[]),
    ("L3", &["embed", "final_norm", "logits"]),
    ("N1", NORMS),
    ("N2", NORMS),
    ("N3", &["mla.q", "mla.latent"]),
    ("R1", MIXES),
    ("R2", MIXES),
    ("R3", MIXES),
    ("R4", &["attn_mix"]),
    // A wrong bank is first read by the MLP-side mix of the layer that makes it; a sum that is not
    // cleared, or not restarted, by the same mix.
    ("R5", &["attn_mix", "mlp_mix"]),
    ("R6", &["mlp_mix", "out"]),
    ("R7", &["mlp_mix", "final_mix"]),
    ("K1", &["kda.q", "kda.k", "kda.v", "kda.conv"]),
    ("K2", &["kda.q", "kda.k", "kda.v"]),
    ("K3", &["kda.q", "kda.k", "kda.v"]),
    ("K4", &["kda.q", "kda.k"]),
    ("K5", &["kda.beta"]),
    ("K6", &["kda.z", "kda.g"]),
    ("K7", &["kda.g"]),
    ("K8", &["kda.g"]),
    ("K9", &["kda.o", "kda.state"]),
    ("K10", &["kda.o", "kda.state"]),
    ("K11", &["kda.o", "kda.state"]),
    ("K12", &["KDA attn_out"]),
    ("K13", &["kda.q", "kda.k", "kda.v", "kda.o", "kda.state", "kda.conv"]),
    ("M1", &["mla.q", "mla.o"]),
    ("M2", &["mla.latent"]),
    ("M3", &["mla.k_rope", "mla.o"]),
    ("M4", &["mla.o"]),
    ("M5", &["mla.o"]),
    ("M6", &["mla.o"]),
    ("M7", &["MLA attn_out"]),
    ("M8", &["mla.o"]),
    ("E1", &["router_scores"]),
    // The scores that are selected by, where the mistake is in them.
    ("E2", &["router_scores", "router_ids"]),
    ("E3", &["router_weights"]),
    ("E4", &["router_weights"]),
    ("E5", &["router_weights"]),
    ("E6", &["moe.latent", "moe.sum"]),
    ("E7", &["moe.sum"]),
    ("E8", &["moe.sum", "MoE mlp_out"]),
    ("E9", &["MoE mlp_out"]),
    ("E10", &["moe.shared", "MoE mlp_out"]),
    ("S1", ACTIVATIONS),
    ("S2", ACTIVATIONS),
    ("Q1", &["moe.sum"]),
    ("Q2", &["moe.sum"]),
    ("Q3", &["moe.sum"]),
    ("Q4", &["moe.sum"]),
    // The row product, and what it reads: the first of a layer's matrices, or its first mix.
    ("A1", PRODUCTS),
    ("A2", PRODUCTS),
    ("A3", PRODUCTS),
    ("A4", SUMS),
    ("A5", NORMS_OF_ROWS),
    ("A6", SOFTMAXES),
    ("A7", &["mla.o"]),
    ("A8", &["kda.o", "kda.state"]),
    ("A9", &["moe.sum", "moe.shared", "dense mlp_out"]),
    ("A10", FUNCTIONS),
    ("A11", &["kda.q", "kda.k", "kda.v", "kda.o", "kda.state", "kda.conv", "mla.o", "moe.sum"]),
    ("A12", FUNCTIONS),
];

const NORMS: &[&str] = &[
    "attn_mix",
    "attn_norm",
    "mlp_mix",
    "mlp_norm",
    "KDA attn_out",
    "mla.q",
    "mla.latent",
    "MoE mlp_out",
    "final_mix",
    "final_norm",
];
const NORMS_OF_ROWS: &[&str] = &[
    "attn_mix",
    "attn_norm",
    "mlp_mix",
    "mlp_norm",
    "kda.q",
    "kda.k",
    "KDA attn_out",
    "mla.q",
    "mla.latent",
    "MoE mlp_out",
    "final_mix",
    "final_norm",
];
const MIXES: &[&str] = &["attn_mix", "mlp_mix", "final_mix"];
const ACTIVATIONS: &[&str] = &["dense mlp_out", "moe.sum", "moe.shared"];
const PRODUCTS: &[&str] = &[
    "kda.q",
    "kda.k",
    "kda.v",
    "kda.z",
    "kda.beta",
    "kda.conv",
    "attn_out",
    "mla.q",
    "mla.latent",
    "mla.k_rope",
    "mla.o",
    "router_scores",
    "moe.latent",
    "moe.sum",
    "moe.shared",
    "mlp_out",
    "logits",
    "embed",
];
const SUMS: &[&str] =
    &["attn_mix", "mlp_mix", "final_mix", "kda.o", "mla.o", "moe.sum", "router_weights"];
const SOFTMAXES: &[&str] = &["attn_mix", "mlp_mix", "final_mix", "mla.o"];
const FUNCTIONS: &[&str] = &[
    "attn_mix",
    "mlp_mix",
    "final_mix",
    "kda.q",
    "kda.k",
    "kda.v",
    "kda.g",
    "kda.beta",
    "kda.o",
    "kda.state",
    "attn_out",
    "mla.o",
    "router_scores",
    "moe.sum",
    "moe.shared",
    "mlp_out",
];

/// Whether a mistake in one of the clauses may first show at that stage of such a layer.
pub fn is_expected(clauses: &[&str], kind: &str, stage: &str) -> bool {
    let stages_of = |clause: &&str| WHERE.iter().find(|(id, _)| id == clause).unwrap().1;
    clauses.iter().flat_map(stages_of).any(|place| match place.split_once(' ') {
        Some((only, name)) => name == stage && kind.contains(only),
        None => *place == stage,
    })
}

/// The first layer of the tiny model that has such a stage: KDA in 0, experts from 1, MLA in 3. The
/// mix before attention begins with the first bank, in layer 1.
pub fn first_with(kind: &str, stage: &str) -> Option<usize> {
    let name = stage.split('.').next().unwrap();
    match (name, kind) {
        (_, " ") => None,
        ("mla", _) => Some(3),
        ("attn_out", "MLA MoE") => Some(3),
        ("moe" | "router_scores" | "router_ids" | "router_weights" | "attn_mix", _) => Some(1),
        ("mlp_out", kind) if kind.contains("MoE") => Some(1),
        _ => Some(0),
    }
}
