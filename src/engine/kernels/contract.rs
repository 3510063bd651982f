//! The arithmetic contract of the engine: every rounding and every order of addition, once.
//!
//! Activations are f32 and every sum of products is f64. Whatever enters such a sum has been
//! rounded to f32 before (or is a weight), so each product is exact in f64: 24 by 24 bits fit 53,
//! and no exponent is out of reach. Therefore fused and separate multiply-add give the same bits
//! there, and only the ORDER of additions matters. Every other step is one IEEE f32 operation in
//! the order written. Rust never contracts `a * b + c` into a fused operation by itself, has no
//! fast-math mode, and leaves the processor's flush-to-zero modes off: nothing is contracted,
//! nothing is flushed (A12).
//!
//! | clause | rule | scalar definition |
//! | --- | --- | --- |
//! | A1 | exact widening: F32, BF16 bits, MXFP4 code · 2^(s−127) in f64 | [`bf16`], [`mxfp4`] |
//! | A2 A3 | a row product runs in sixteen f64 lanes, i mod 16, rising; then one fold | [`rows`] |
//! | A4 | weighted and scalar sums: one f64 accumulator per output, rising index | [`sums`] |
//! | A5 | RMSNorm, l2norm: sum by the row rule, root in f64, one rounding at the end | [`norm`] |
//! | A6 | softmax: e = exp(f32(s − M)), Z and N in f64, f32(N/Z), unblocked | [`softmax`] |
//! | A7 | MLA in the absorbed form, prefill and decode alike | [`mla`] |
//! | A8 | the KDA step | [`kda`] |
//! | A9 | expert outputs are f32, summed in rising id; SiTU in f32 steps | [`sums`], [`situ`] |
//! | A10 | one exp, tanh and σ for everything | [`functions`] |
//! | A11 | threads split rows, heads, tokens or experts, never a sum | [`threads`], [`products`] |
//! | A12 | f32 before every sum, nothing contracted, nothing flushed | everywhere |
//!
//! # The rules in full
//!
//! **Row product** (a weight row, or a cached row, with a vector of n terms). Sixteen f64 lanes
//! start at +0. Element i is multiplied in f64 and added to lane i mod 16, i rising; a short tail
//! touches only its own lanes. Then lane j += lane j+8 for j = 0..8, j += j+4 for 0..4, j += j+2
//! for 0..2, 0 += 1, and lane 0 is rounded to f32 once. The rule is the same for every weight
//! type, so a fused MXFP4 or BF16 kernel equals decode-to-f64-then-multiply bit for bit.
//!
//! **Weighted sum of vectors** (residual mix, absorbed query, attention output, expert sum,
//! KDA's u and o) and **scalar sums** (softmax Z, renormalisation): one f64 accumulator per output
//! that starts at +0, index rising, then one rounding to f32. (Z itself is not rounded: it is the
//! divisor inside one f32(N/Z).)
//!
//! **RMSNorm**: m = Σ x² by the row rule without its rounding; r = 1/√(m/n + ε) in f64;
//! y = f32((x·r)·w), the two products in f64. **l2norm**: r = 1/√(m + 1e-6), y = f32(x·r), and
//! for q one more f32 product with f32(D^−½). **Mix score**: the row product of the f32-rounded
//! RMSNorm(t; 1) with the folded f32 vector norm.w ⊙ proj.w.
//!
//! **Convolution**: f64 sum over the taps, oldest first, one rounding; SiLU is x · σ(x) in f32.
//!
//! **KDA decay**: t = f32(z + dt_bias), u = f32(exp(A_log)·t), g = f32(bound·σ(u)), α = exp(g).
//!
//! **KDA step**: a_i = f32(α_i·k_i); u_j = f32(Σ_i S_ij·a_i); δ_j = f32(β·f32(v_j − u_j));
//! S_ij = f32(α_i·S_ij + k_i·δ_j), both products exact in f64, one add, one rounding;
//! o_j = f32(Σ_i S_ij·q_i) from the updated S. S is f32.
//!
//! **Softmax** over scores s: M = max s; e = f32 exp(f32(s − M)); Z = Σ e; N = Σ e·v. All scores
//! −∞: the result is zero (no source has weight). A NaN or a +∞ among the scores gives NaN.
//!
//! **MLA**: per head, q' = weighted sum of kv_b's key rows with the nope part of q as weights;
//! score = one row product of [q' | q_rope] with the cached row [latent | rope], then one f32
//! product with f32((nope+rope)^−½); the softmax above over the latents; then kv_b's value rows
//! as row products.
//!
//! **Router**: score = σ(row product); selection by f32(score + bias); weight =
//! f32(score / f32(f32(Σ chosen scores, rising id) + 1e-20)), then one f32 product with the
//! scaling factor.
//!
//! **SiTU**: f32 steps t = β·tanh(g/β), a = t·σ(g), b = linβ·tanh(up/linβ), a·b.
//!
//! # Values that are not numbers
//!
//! NaN, ±∞ and subnormals flow through every rule as IEEE arithmetic says. WHETHER a result is
//! NaN is part of the contract; the sign and payload of a NaN are not (they differ between
//! processors). Scale byte 255 decodes to NaN. Nothing non-finite ever becomes a token: a NaN
//! router score and a non-finite logit are errors of the model.
//!
//! [`bf16`]: super::bf16
//! [`mxfp4`]: super::mxfp4
//! [`rows`]: super::rows
//! [`sums`]: super::sums
//! [`norm`]: super::norm
//! [`softmax`]: super::softmax
//! [`kda`]: super::kda
//! [`situ`]: super::situ
//! [`functions`]: super::functions
//! [`mla`]: super::mla
//! [`threads`]: super::threads
//! [`products`]: super::products

/// Lanes of the row product (A2): two AVX-512 registers of f64, four of AVX2, eight of NEON.
pub const LANES: usize = 16;

/// ε on the SUM of squares in KDA's l2norm (K3), whatever the configuration says.
pub const L2_NORM_EPS: f64 = 1e-6;

/// What is added to the sum of the chosen router scores before dividing (E4).
pub const RENORMALISATION_EPS: f32 = 1e-20;

/// sum + a · b, the product exact (A12): fused or not, the bits are the same. Fused is quicker
/// where the processor can do it, and very slow elsewhere.
#[inline(always)]
#[must_use]
pub fn add_product<const FUSED: bool>(sum: f64, a: f64, b: f64) -> f64 {
    if FUSED { a.mul_add(b, sum) } else { sum + a * b }
}

/// Folds the sixteen lanes into one sum (A3): halves, quarters, pairs, the last two.
#[inline(always)]
#[must_use]
pub fn fold_lanes(mut lanes: [f64; LANES]) -> f64 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// The one rounding of a sum to f32: to nearest, ties to even; overflow gives ±∞.
#[inline]
#[must_use]
pub fn round_to_f32(sum: f64) -> f32 {
    sum as f32
}
