//! The op fixtures of kimi-k3-in-c through our kernels and model layers, at its own tolerance
//! (1e-5 absolute + 1e-4 relative; values there are rounded to seven decimals). Its two MLA
//! fixtures were made with ε 1e-5 in the low-rank norms.

use std::sync::Arc;

use serde_json::Value;

use super::external;
use crate::support::read_json;
use k3_core::config::RawConfig;
use k3_core::stages::NoStages;
use k3_engine::kernels::convolution::shift_history;
use k3_engine::kernels::kda::{DecayInputs, StepInputs};
use k3_engine::kernels::matrix::Matrix;
use k3_engine::kernels::norm::inverse_root;
use k3_engine::kernels::residual::fold;
use k3_engine::kernels::router::Choice;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    AttentionWeights, DenseWeights, EngineOptions, Expert, KdaWeights, LayerWeights, Mixer,
    MlaWeights, MlpWeights, MoeWeights, Norm, ResidentExperts, Residual, Rig, Shape,
};

const KERNELS: Kernels = Kernels::SCALAR;

/// One fixture file; names are prefixed with `prefix`.
struct Fixture {
    json: Value,
    prefix: &'static str,
    suffix: &'static str,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let path = external("kimi-k3-in-c-ops").join(format!("{name}.json"));
        Self { json: read_json(&path), prefix: "", suffix: "" }
    }

    fn named(mut self, prefix: &'static str, suffix: &'static str) -> Self {
        (self.prefix, self.suffix) = (prefix, suffix);
        self
    }

    /// A tensor under its plain name.
    fn plain(&self, name: &str) -> Vec<f32> {
        let data = self.json[name]["data"].as_array().unwrap_or_else(|| panic!("{name}"));
        data.iter().map(|value| value.as_f64().unwrap() as f32).collect()
    }

    /// A weight under prefix and suffix.
    fn vector(&self, name: &str) -> Vec<f32> {
        self.plain(&format!("{}{name}{}", self.prefix, self.suffix))
    }

    fn matrix(&self, name: &str, columns: usize) -> Matrix {
        let values = self.vector(name);
        Matrix::from_f32(values.len() / columns, columns, &values).unwrap()
    }

    /// A vector that is written without the suffix.
    fn bare(&self, name: &str) -> Vec<f32> {
        self.plain(&format!("{}{name}", self.prefix))
    }
}

fn assert_near(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let mut worst = 0.0_f32;
    for (place, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let difference = (ours - theirs).abs();
        assert!(difference <= 1e-5 + 1e-4 * theirs.abs(), "{what} at {place}: {ours} {theirs}");
        worst = worst.max(difference);
    }
    println!("{what}: largest difference {worst:.2e}");
}

/// The configuration the fixtures were made with: the tiny one, with a narrower expert.
fn raw() -> RawConfig {
    let config = external("tiny-k3-a/model/config.json");
    RawConfig { moe_intermediate_size: 48, ..k3_checkpoint::config::read(&config).unwrap() }
}

fn kda_weights(fixture: &Fixture, names: [&str; 9]) -> KdaWeights {
    let [q, k, v, taps_q, taps_k, taps_v, f_a, f_b, b] = names;
    let p = |name| fixture.matrix(name, 128);
    KdaWeights {
        projections: [p(q), p(k), p(v)],
        taps: [fixture.vector(taps_q), fixture.vector(taps_k), fixture.vector(taps_v)],
        f_a: p(f_a),
        f_b: fixture.matrix(f_b, 16),
        b: p(b),
        a_log: fixture.bare("A_log"),
        dt_bias: fixture.bare("dt_bias"),
        o_norm: norm(fixture, "o_norm"),
    }
}

/// A norm with ε 1e-5, as the fixtures have it everywhere.
fn norm(fixture: &Fixture, name: &str) -> Norm {
    Norm { weight: fixture.vector(name), epsilon: 1e-5 }
}

fn mla_weights(fixture: &Fixture) -> MlaWeights {
    MlaWeights {
        q_a: fixture.matrix("q_a_proj", 128),
        q_a_norm: norm(fixture, "q_a_layernorm"),
        q_b: fixture.matrix("q_b_proj", 64),
        kv_a: fixture.matrix("kv_a_proj_with_mqa", 128),
        kv_a_norm: norm(fixture, "kv_a_layernorm"),
        kv_b: fixture.matrix("kv_b_proj", 32),
    }
}

fn moe_weights(fixture: &Fixture) -> (MoeWeights, Vec<Arc<Expert>>) {
    let weights = MoeWeights {
        router: fixture.matrix("gate", 128),
        bias: fixture.bare("e_score_correction_bias"),
        down: fixture.matrix("down", 128),
        up: fixture.matrix("up", 64),
        norm: norm(fixture, "norm"),
        shared: DenseWeights {
            gate: fixture.matrix("shared_w1", 128),
            up: fixture.matrix("shared_w3", 128),
            down: fixture.matrix("shared_w2", 96),
        },
    };
    let expert = |id| {
        Arc::new(Expert {
            w1: fixture.matrix(&format!("experts_{id}_w1"), 64),
            w2: fixture.matrix(&format!("experts_{id}_w2"), 48),
            w3: fixture.matrix(&format!("experts_{id}_w3"), 64),
        })
    };
    (weights, (0..8).map(expert).collect())
}

/// A rig with these experts at `layer`.
fn rig(layer: usize, experts: Vec<Arc<Expert>>) -> Rig {
    let shape = shape();
    let mut all = vec![Vec::new(); shape.layers.len()];
    all[layer] = experts;
    let options = EngineOptions { threads: 2, chunk_tokens: 8 };
    let experts = Box::new(ResidentExperts(all));
    Rig::new(KERNELS, shape, experts, options).unwrap()
}

fn shape() -> Shape {
    Shape::derive(&raw()).unwrap()
}

pub fn op_rmsnorm() {
    let fixture = Fixture::open("rmsnorm");
    let (x, weight) = (fixture.plain("in"), fixture.plain("weight"));
    let mut out = vec![0.0; x.len()];
    for (x, out) in x.chunks(128).zip(out.chunks_mut(128)) {
        (KERNELS.rms_norm)(x, &weight, 1e-5, out);
    }
    assert_near("rmsnorm", &out, &fixture.plain("out"));
}

pub fn op_situ_glu() {
    let fixture = Fixture::open("situ_glu");
    let mut out = vec![0.0; 48];
    let x = fixture.plain("in");
    let caps = shape().caps;
    for (x, out) in x.chunks(16).zip(out.chunks_mut(8)) {
        (KERNELS.situ)(&KERNELS, &x[..8], &x[8..], caps, out);
    }
    assert_near("situ_glu", &out, &fixture.plain("out"));
    assert!(out.iter().all(|value| value.abs() <= 100.0));
}

/// Outputs, the state after five tokens, and one more token from that state.
pub fn op_shortconv() {
    let fixture = Fixture::open("shortconv");
    let (x, taps) = (fixture.plain("in"), fixture.plain("weight"));
    let mut history = vec![0.0; 3 * 64];
    let token = |history: &mut Vec<f32>, x: &[f32], out: &mut [f32]| {
        let mut window: Vec<&[f32]> = history.chunks_exact(64).collect();
        window.push(x);
        (KERNELS.convolve)(&window, &taps, out);
        (KERNELS.silu)(&KERNELS, out);
        shift_history(history, x);
    };
    let mut out = vec![0.0; x.len()];
    for (x, out) in x.chunks(64).zip(out.chunks_mut(64)) {
        token(&mut history, x, out);
    }
    assert_near("shortconv", &out, &fixture.plain("out"));
    let per_channel: Vec<f32> = (0..192).map(|place| history[place % 3 * 64 + place / 3]).collect();
    assert_near("shortconv state", &per_channel, &fixture.plain("state_after"));
    let mut out = vec![0.0; 64];
    token(&mut history, &fixture.plain("in_next"), &mut out);
    assert_near("shortconv next", &out, &fixture.plain("out_next"));
}

pub fn op_kda_decay() {
    let fixture = Fixture::open("kda_decay");
    let (z, bias, a_log) = (fixture.plain("z"), fixture.plain("dt_bias"), fixture.plain("A_log"));
    let mut g = vec![0.0; z.len()];
    for (place, (z, g)) in z.chunks(16).zip(g.chunks_mut(16)).enumerate() {
        let head = place % 4;
        let bias = &bias[head * 16..][..16];
        let inputs = DecayInputs { z, dt_bias: bias, a_log: a_log[head], lower_bound: -5.0 };
        (KERNELS.log_decay)(&KERNELS, &inputs, g);
    }
    assert_near("kda_decay g", &g, &fixture.plain("g"));
    (KERNELS.exp)(&mut g);
    assert_near("kda_decay alpha", &g, &fixture.plain("alpha"));
}

pub fn op_kda_recur1_and_recur8() {
    for name in ["kda_recur1", "kda_recur8"] {
        let fixture = Fixture::open(name);
        let tensor = |name| fixture.plain(name);
        let (q, k, v) = (tensor("q"), tensor("k"), tensor("v"));
        let (alpha, beta) = (tensor("alpha"), tensor("beta"));
        let scale = inverse_root(16);
        let q: Vec<f32> = q.iter().map(|q| q * scale).collect();
        let mut state = vec![0.0; 4 * 256];
        let mut out = vec![0.0; q.len()];
        for (place, out) in out.chunks_mut(16).enumerate() {
            let part = place * 16..(place + 1) * 16;
            let inputs = StepInputs {
                q: &q[part.clone()],
                k: &k[part.clone()],
                v: &v[part.clone()],
                alpha: &alpha[part],
                beta: beta[place],
            };
            let state = &mut state[place % 4 * 256..][..256];
            (KERNELS.kda_step)(state, &inputs, out);
        }
        assert_near(name, &out, &fixture.plain("out"));
        assert_near("its state", &state, &fixture.plain("state_out"));
    }
}

const KDA_NAMES: [&str; 9] =
    ["q_proj", "k_proj", "v_proj", "q_conv", "k_conv", "v_conv", "f_a", "f_b", "b_proj"];

/// A layer whose other parts are never read.
fn layer_around(fixture: &Fixture, attention: AttentionWeights, width: usize) -> LayerWeights {
    let nothing = || DenseWeights {
        gate: Matrix::from_f32(0, 128, &[]).unwrap(),
        up: Matrix::from_f32(0, 128, &[]).unwrap(),
        down: Matrix::from_f32(0, 128, &[]).unwrap(),
    };
    LayerWeights {
        input_norm: Norm { weight: Vec::new(), epsilon: 1e-5 },
        post_attention_norm: Norm { weight: Vec::new(), epsilon: 1e-5 },
        attention_mixer: Mixer { folded: Vec::new(), epsilon: 1e-5 },
        mlp_mixer: Mixer { folded: Vec::new(), epsilon: 1e-5 },
        attention,
        gate: fixture.matrix("g_proj", 128),
        output: fixture.matrix("o_proj", width),
        mlp: MlpWeights::Dense(Box::new(nothing())),
    }
}

pub fn op_kda_layer1_and_layer8() {
    for (name, tokens) in [("kda_layer1", 1), ("kda_layer8", 8)] {
        let fixture = Fixture::open(name);
        let weights = Box::new(kda_weights(&fixture, KDA_NAMES));
        let layer = layer_around(&fixture, AttentionWeights::Kda(weights.clone()), 64);
        let mut rig = rig(0, Vec::new());
        let x = fixture.plain("in");
        assert_eq!(x.len(), tokens * 128);
        let out = rig.kda(0, &layer, &weights, &x).unwrap();
        assert_near(name, &out, &fixture.plain("out"));
        assert_near("its state", &rig.state.kda[0].recurrent, &fixture.plain("state_out"));
    }
}

pub fn op_router() {
    let fixture = Fixture::open("router");
    let (x, bias) = (fixture.plain("in"), fixture.plain("bias"));
    let gate = Matrix::from_f32(8, 128, &fixture.plain("gate_weight")).unwrap();
    let weighting = shape().weighting;
    let (ids, weights) = (fixture.plain("topk_idx"), fixture.plain("topk_weight"));
    let theirs = ids.chunks(2).zip(weights.chunks(2));
    for (x, (their_ids, their_weights)) in x.chunks(128).zip(theirs) {
        let mut scores: Vec<f32> =
            (0..8).map(|row| KERNELS.row_product(gate.view().row(row), x)).collect();
        (KERNELS.sigmoid)(&mut scores);
        let Choice { ids, weights } = (KERNELS.choose)(&scores, &bias, 2, weighting).unwrap();
        let mut order = [0, 1];
        order.sort_by_key(|&place| their_ids[place] as usize);
        let sorted = |values: &[f32]| order.map(|place| values[place]);
        assert_eq!(sorted(their_ids).map(|id| id as usize), ids[..]);
        assert_near("router weights", &weights, &sorted(their_weights));
    }
}

/// Nine sources, and one: a single source is itself.
pub fn op_attnres() {
    let fixture = Fixture::open("attnres");
    let folded = fold(&fixture.plain("norm_weight"), &fixture.plain("proj_weight"));
    assert_near("fold", &folded, &fixture.plain("fold_hint"));
    let (prefix, banks) = (fixture.plain("prefix_sum"), fixture.plain("block_residual"));
    let mut out = vec![0.0; 512];
    let tokens = prefix.chunks(128).zip(banks.chunks(8 * 128)).zip(out.chunks_mut(128));
    for ((prefix, banks), out) in tokens {
        let sources: Vec<&[f32]> = banks.chunks(128).chain([prefix]).collect();
        assert_eq!(sources.len(), 9);
        (KERNELS.residual_mix)(&KERNELS, &sources, (&folded, 1e-5), out);
    }
    assert_near("attnres", &out, &fixture.plain("out"));
    (KERNELS.residual_mix)(&KERNELS, &[&prefix[..128]], (&folded, 1e-5), &mut out[..128]);
    assert_eq!(&out[..128], &prefix[..128]);
}

pub fn op_mla() {
    let fixture = Fixture::open("mla");
    let fixture = fixture.named("", "_weight");
    let weights = Box::new(mla_weights(&fixture));
    let layer = layer_around(&fixture, AttentionWeights::Mla(weights.clone()), 64);
    let mut rig = rig(3, Vec::new());
    let out = rig.mla(3, &layer, &weights, &fixture.plain("in")).unwrap();
    assert_near("mla", &out, &fixture.plain("out"));
    let rows = rig.state.mla[0].rows.chunks(40);
    let latent: Vec<f32> = rows.clone().flat_map(|row| &row[..32]).copied().collect();
    let rope: Vec<f32> = rows.flat_map(|row| &row[32..]).copied().collect();
    assert_near("mla latent", &latent, &fixture.plain("kv_latent"));
    assert_near("mla rope part", &rope, &fixture.plain("k_rope"));
}

pub fn op_moe() {
    let fixture = Fixture::open("moe");
    let fixture = fixture.named("", "_weight");
    let (weights, experts) = moe_weights(&fixture);
    let out = rig(1, experts).moe(1, &weights, &fixture.plain("in")).unwrap();
    assert_near("moe", &out, &fixture.plain("out"));
}

/// Two whole decoder layers: 1 (KDA, no banking) and 3 (MLA, banks).
pub fn op_layer_kda_and_layer_mla() {
    for (name, index) in [("layer_kda", 1), ("layer_mla", 3)] {
        let fixture = Fixture::open(name);
        let attention =
            Fixture { json: fixture.json.clone(), prefix: "self_attn_", suffix: "_weight" };
        let names = [
            "q_proj", "k_proj", "v_proj", "q_conv1d", "k_conv1d", "v_conv1d", "f_a_proj",
            "f_b_proj", "b_proj",
        ];
        let attention_weights = if index == 1 {
            AttentionWeights::Kda(Box::new(kda_weights(&attention, names)))
        } else {
            AttentionWeights::Mla(Box::new(mla_weights(&attention)))
        };
        let mlp = Fixture { json: fixture.json.clone(), prefix: "mlp_", suffix: "_weight" };
        let (moe, experts) = moe_weights(&mlp);
        let whole = Fixture { json: fixture.json.clone(), prefix: "", suffix: "_weight" };
        let mixer = |name: &str| {
            let norm = whole.vector(&format!("{name}_res_norm"));
            let folded = fold(&norm, &whole.vector(&format!("{name}_res_proj")));
            Mixer { folded, epsilon: 1e-5 }
        };
        let mut layer = layer_around(&attention, attention_weights, 64);
        layer.input_norm = norm(&whole, "input_layernorm");
        layer.post_attention_norm = norm(&whole, "post_attention_layernorm");
        (layer.attention_mixer, layer.mlp_mixer) = (mixer("self_attention"), mixer("mlp"));
        layer.mlp = MlpWeights::Moe(Box::new(moe));
        let stacked = fixture.plain("block_residual_in");
        let bank = |bank: usize| -> Vec<f32> {
            stacked.chunks(128).skip(bank).step_by(2).flatten().copied().collect()
        };
        let (running, banks) = (fixture.plain("in"), vec![bank(0), bank(1)]);
        let mut residual = Residual { running, banks };
        rig(index, experts).layer(index, &layer, &mut residual, &mut NoStages).unwrap();
        assert_near(name, &residual.running, &fixture.plain("out"));
        let count = residual.banks.len();
        assert_eq!(count, if index == 1 { 2 } else { 3 });
        let banks: Vec<f32> = (0..4 * count)
            .flat_map(|place| &residual.banks[place % count][place / count * 128..][..128])
            .copied()
            .collect();
        assert_near("its banks", &banks, &fixture.plain("block_residual_out"));
    }
}

/// The released MXFP4 bytes decode bit for bit; the swapped nibble order does not.
pub fn released_mxfp4_bytes_decode_exactly() {
    let json = read_json(&external("kimi-k3-mxfp4/mxfp4.json"));
    let bytes = |name: &str| -> Vec<u8> {
        let data = json[name]["data"].as_array().unwrap_or_else(|| json[name].as_array().unwrap());
        data.iter().map(|value| value.as_u64().unwrap() as u8).collect()
    };
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (packed, scales) = (bytes("packed"), bytes("scales"));
    let expected = numbers(&json["expected"]["data"]);
    let mut decoded = vec![0.0; 64 * 3584];
    for (row, out) in decoded.chunks_mut(3584).enumerate() {
        let (packed, scales) = (&packed[row * 1792..][..1792], &scales[row * 112..][..112]);
        k3_engine::kernels::mxfp4::decode_row(packed, scales, out);
    }
    assert_eq!(decoded.len(), expected.len());
    let bits = |values: &[f64]| -> Vec<u32> {
        values.iter().map(|&value| (value as f32).to_bits()).collect()
    };
    assert!(bits(&decoded) == bits(&expected));
    let swapped = numbers(&json["expected_swapped_nibbles"]["first64"]);
    assert!(bits(&decoded[..64]) != bits(&swapped));
}
