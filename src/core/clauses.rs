//! The numbered clauses of the model and of the arithmetic contract, as data. `MODEL.md` has each
//! of them in full.
//!
//! Gates say which clauses they can see, mutants which one they break; the kill matrix counts
//! coverage against these two tables. L, N, R, K, M, E, S and Q say what Kimi K3 computes, A what
//! the engine promises about its arithmetic.

/// A statement that must be true of an implementation, under a stable id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clause {
    /// Letter of the area and number, for example `K7`.
    pub id: &'static str,
    /// The statement.
    pub text: &'static str,
}

const fn clause(id: &'static str, text: &'static str) -> Clause {
    Clause { id, text }
}

/// What the model computes.
pub const MODEL: [Clause; 50] = [
    clause("L1", "layer kinds come from the one-based lists, which partition the layers"),
    clause("L2", "a layer is dense iff its index is below first_k_dense_replace"),
    clause("L3", "the id's embedding row goes in; norm, then lm_head, come out"),
    clause("N1", "RMSNorm has its epsilon inside the root and its weight after"),
    clause("N2", "rms_norm_eps in the input, post-attention, final, mix, o_norm, latent norms"),
    clause("N3", "1e-6 in the two low-rank norms of MLA"),
    clause("R1", "mix sources are the banks in order, then the running sum"),
    clause("R2", "mix keys are normed, mix values are raw"),
    clause("R3", "one folded vector norm.w * proj.w per mixer: attention, MLP, output"),
    clause("R4", "the attention-side mix is left out only while there is no bank"),
    clause("R5", "at n mod block = 0 the un-mixed sum is banked and cleared"),
    clause("R6", "after a bank the sum restarts from the attention output"),
    clause("R7", "MLP-side mix always, with the new bank; output mix after the last layer"),
    clause("K1", "causal depthwise convolution, taps oldest to newest, zero history"),
    clause("K2", "SiLU after all three convolutions"),
    clause("K3", "l2norm on q and k, not v, with 1e-6 added to the sum of squares"),
    clause("K4", "q is scaled by D^-1/2"),
    clause("K5", "beta is a logistic, one per head"),
    clause("K6", "one low-rank pair for all heads, dt_bias inside the gate"),
    clause("K7", "g = bound * sigmoid(exp(A_log[h]) * (z + dt_bias)), A_log per head"),
    clause("K8", "A_log's padded tail is sliced off and must be zero"),
    clause("K9", "the state's rows decay before they are read"),
    clause("K10", "the delta rule writes beta * (v - u)"),
    clause("K11", "the output reads the updated state"),
    clause("K12", "per-head norm, then the logistic gate, then o_proj"),
    clause("K13", "state and convolution inputs are carried between calls"),
    clause("M1", "q is low-rank with a norm between; per head [nope, rope]"),
    clause("M2", "the latent norm covers the first kv_lora columns only"),
    clause("M3", "the rope part is shared by heads, un-normed, unrotated, scored and cached"),
    clause("M4", "scores are scaled by (nope + rope)^-1/2"),
    clause("M5", "causal softmax"),
    clause("M6", "kv_b gives per head [k_nope, v]"),
    clause("M7", "logistic gate without a norm before o_proj"),
    clause("M8", "the cache is carried between calls"),
    clause("E1", "the router sees the full width"),
    clause("E2", "selection by score + bias, ties to the lower index"),
    clause("E3", "weights come from the unbiased scores"),
    clause("E4", "weights are renormalised (+1e-20) when top-k > 1"),
    clause("E5", "weights are multiplied by the scaling factor"),
    clause("E6", "routed experts work on the latent down-projection"),
    clause("E7", "w1 is the gate, w3 the up and w2 the down projection"),
    clause("E8", "one RMSNorm on the weighted sum, not per expert"),
    clause("E9", "the up-projection follows the latent norm"),
    clause("E10", "the shared MLP sees the full-width input and is unweighted"),
    clause("S1", "SiTU's logistic takes the uncapped gate"),
    clause("S2", "SiTU caps both the gate and the linear part"),
    clause("Q1", "MXFP4 code table and sign"),
    clause("Q2", "the low nibble is the even column"),
    clause("Q3", "one scale 2^(s-127) per 32 columns"),
    clause("Q4", "scale byte 255 is reported, never read as 0"),
];

/// What the engine promises about its arithmetic.
pub const ARITHMETIC: [Clause; 12] = [
    clause("A1", "widening is exact"),
    clause("A2", "row products run in sixteen lanes, element i in lane i mod 16, rising"),
    clause("A3", "the lanes fold 8, 4, 2, 1"),
    clause("A4", "weighted and scalar sums: one accumulator per output, rising index"),
    clause("A5", "rounding points of RMSNorm and l2norm"),
    clause("A6", "softmax is never blocked or rescaled"),
    clause("A7", "MLA is absorbed everywhere"),
    clause("A8", "rounding points of the KDA step"),
    clause("A9", "MoE sums in rising expert id; SiTU in f32 steps"),
    clause("A10", "one definition of exp, tanh and the logistic"),
    clause("A11", "threads, SIMD, batch and chunking change no bit"),
    clause("A12", "what enters a sum is f32 first; nothing contracted, nothing flushed"),
];

/// The text of a clause, `None` for an unknown id.
#[must_use]
pub fn text(id: &str) -> Option<&'static str> {
    MODEL.iter().chain(&ARITHMETIC).find(|clause| clause.id == id).map(|clause| clause.text)
}
