//! Every wrong variant of the engine is visible: in the model's answers on the tiny checkpoint,
//! in its invariances, or in single operations on data made for the clause.
//!
//! This is the registry's own check, not the kill matrix: that runs the real gates.

use std::sync::Arc;

use super::tiny::{Tiny, bits};
use k3_engine::kernels::kda::StepInputs;
use k3_engine::kernels::matrix::{Matrix, SharedBytes};
use k3_engine::kernels::router::Weighting;
use k3_engine::kernels::rows::Row;
use k3_engine::kernels::situ::Caps;
use k3_engine::kernels::sums::Vectors;
use k3_engine::model::mutants::{EngineMutant, mutants};
use k3_engine::model::{
    Contract, Engine, EngineOptions, EngineSequence, Expert, HeadAttention, Operations, Shape,
};

/// Numbers from a linear congruential generator, in \[−1, 1).
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The same with exponents spread over 40 powers of two.
fn wide(n: usize, seed: u64) -> Vec<f32> {
    let spread = numbers(n, seed + 1000).into_iter().map(|x| (x * 20.0).round() as i32);
    numbers(n, seed).into_iter().zip(spread).map(|(x, e)| x * 2.0_f32.powi(e)).collect()
}

type Probe = (&'static str, fn(&dyn Operations) -> Vec<u64>);

/// NaN payloads are no part of the contract.
fn bits_of(values: &[f32]) -> Vec<u64> {
    let bits = |x: &f32| {
        if x.is_nan() { u64::MAX } else { u64::from(x.to_bits()) }
    };
    values.iter().map(bits).collect()
}

fn sum_bits(sum: f64) -> u64 {
    if sum.is_nan() { u64::MAX } else { sum.to_bits() }
}

fn row_sums(operations: &dyn Operations) -> Vec<u64> {
    let mut all = Vec::new();
    for n in [1, 15, 16, 37, 64, 96] {
        let (w, x) = (wide(n, 1), wide(n, 2));
        all.push(sum_bits(operations.row_sum(Row::F32(&w), &x)));
        all.push(sum_bits(operations.row_sum(Row::F32(&w), &w)));
        let mut b: Vec<u16> = w.iter().map(|w| (w.to_bits() >> 16) as u16).collect();
        b[0] = 1;
        all.push(sum_bits(operations.row_sum(Row::Bf16(&b), &vec![1.0; n])));
        all.push(sum_bits(operations.row_sum(Row::Bf16(&b[..1]), &[3.0])));
    }
    // Everything cancels, across lanes: what is left is the order of the roundings.
    for n in [40, 77, 200] {
        let half = wide(n, 3);
        let mut w = half.clone();
        w.extend((0..n).map(|i| -half[(i + 5) % n]));
        let x = vec![1.5; 2 * n];
        all.push(sum_bits(operations.row_sum(Row::F32(&w), &x)));
    }
    let tiny = f32::from_bits(77);
    all.push(sum_bits(operations.row_sum(Row::F32(&[tiny, 1e-20]), &[1e30, 1e-20])));
    all
}

fn mxfp4_values(operations: &dyn Operations) -> Vec<u64> {
    let packed: Vec<u8> = (0..32).map(|i| (i * 37 + 16 * (i % 3)) as u8 ^ 0x80).collect();
    let x = numbers(64, 5);
    let mut all = Vec::new();
    for scales in [[0, 1], [126, 127], [128, 134], [253, 254], [120, 255]] {
        let row = Row::Mxfp4 { packed: &packed, scales: &scales };
        all.push(sum_bits(operations.row_sum(row, &x)));
        let mut values = vec![0.0; 64];
        operations.widen_row(row, &mut values);
        all.extend(values.into_iter().map(sum_bits));
    }
    all
}

fn sums(operations: &dyn Operations) -> Vec<u64> {
    let weights = [1e16_f32, 1.0, 3.0, -1e16, 2.0, 0.3];
    let data = [vec![1.0; 6], numbers(6, 3)].concat();
    let data: Vec<f32> = (0..12).map(|p| data[p % 2 * 6 + p / 2]).collect();
    let vectors = Vectors::Strided { data: &data, stride: 2 };
    let mut out = vec![0.0; 4];
    operations.weighted_sum(&weights, vectors, &mut out[..2]);
    operations.expert_sum(&[9, 2, 5, 1, 7, 3], &weights, vectors, &mut out[2..]);
    let a = numbers(64, 8);
    let sources = operations.mix_sources(&[&a[..8], &a[8..16]], &a[16..24]);
    [bits_of(&out), sources.iter().flat_map(|s| bits_of(s)).collect()].concat()
}

fn softmaxes(operations: &dyn Operations) -> Vec<u64> {
    let mut all = Vec::new();
    for (n, seed) in [(1, 1), (5, 2), (9, 3), (41, 4), (300, 5)] {
        let data = numbers(n * 8, seed);
        let vectors = Vectors::Strided { data: &data, stride: 8 };
        let mut scores: Vec<f32> = numbers(n, seed + 10).iter().map(|x| 6.0 * x).collect();
        let mut out = vec![0.0; 8];
        operations.softmax_sum(&mut scores, vectors, &mut out);
        all.extend(bits_of(&out));
    }
    let cancelling = [1e16, 1.0, 3.0, -1e16, 5.0];
    let vectors = Vectors::Strided { data: &cancelling, stride: 1 };
    let mut out = [0.0];
    operations.softmax_sum(&mut [2.0; 5], vectors, &mut out);
    all.extend(bits_of(&out));
    let mut huge = [1e30, -1e30, 1e30];
    let mut out = [0.0];
    let vectors = Vectors::Strided { data: &[1.0, 2.0, 4.0], stride: 1 };
    operations.softmax_sum(&mut huge, vectors, &mut out);
    all.extend(bits_of(&out));
    all
}

fn norms(operations: &dyn Operations) -> Vec<u64> {
    let mut all = Vec::new();
    for (n, scale) in [(16, 1.0), (37, 1e-3), (128, 1e-4)] {
        let x: Vec<f32> = numbers(n, n as u64).iter().map(|x| x * scale).collect();
        let weight = numbers(n, 9);
        let mut out = vec![0.0; n];
        operations.rms_norm(&x, &weight, 1e-5, &mut out);
        all.extend(bits_of(&out));
        let mut head = x.clone();
        operations.l2_norm(&mut head);
        all.extend(bits_of(&head));
        let mut head = vec![1e-4; n];
        operations.l2_norm(&mut head);
        all.extend(bits_of(&head));
    }
    all
}

fn functions(operations: &dyn Operations) -> Vec<u64> {
    let mut inputs: Vec<f32> = numbers(20_000, 4).iter().map(|x| 100.0 * x).collect();
    inputs.extend(numbers(20_000, 5).iter().map(|x| 3.0 * x));
    inputs.extend(numbers(2000, 6).iter().map(|x| 1e-4 * x));
    let mut all = Vec::new();
    let functions: [fn(&dyn Operations, &mut [f32]); 3] = [
        |operations, values| operations.exp_all(values),
        |operations, values| operations.sigmoid_all(values),
        |operations, values| operations.tanh_all(values),
    ];
    for function in functions {
        let mut values = inputs.clone();
        function(operations, &mut values);
        all.extend(bits_of(&values));
    }
    let mut values = inputs;
    operations.silu_all(&mut values);
    all.extend(bits_of(&values));
    all
}

fn recurrence(operations: &dyn Operations) -> Vec<u64> {
    let (mut state, mut out) = (numbers(32 * 24, 2), vec![0.0; 24]);
    for step in 0..6 {
        let (q, k, v) = (numbers(32, step), numbers(32, step + 7), numbers(24, step + 9));
        let alpha: Vec<f32> = numbers(32, step + 20).iter().map(|x| 0.75 + 0.25 * x).collect();
        let inputs = StepInputs { q: &q, k: &k, v: &v, alpha: &alpha, beta: 0.37 };
        operations.kda_step(&mut state, &inputs, &mut out);
    }
    let mut g = vec![0.0; 32];
    operations.log_decay(1, &numbers(32, 3), &numbers(32, 4), (&[0.3, 0.7], -5.0), &mut g);
    let mut conv = vec![0.0; 8];
    let window = wide(32, 5);
    let window: Vec<&[f32]> = window.chunks(8).collect();
    operations.convolve(&window, &wide(32, 6), &mut conv);
    [bits_of(&state), bits_of(&out), bits_of(&g), bits_of(&conv)].concat()
}

fn routing(operations: &dyn Operations) -> Vec<u64> {
    let weighting = Weighting { renormalise: true, scaling_factor: 2.5 };
    let mut all = Vec::new();
    let infinite = [f32::NEG_INFINITY; 5];
    let cases: [(&[f32], &[f32], usize); 4] = [
        (&[0.5; 6], &[0.0; 6], 2),
        (&[0.5, 0.4, 0.3, 0.2, 0.6], &infinite, 3),
        (&[0.9, 0.4, 0.3, 0.2], &[0.0, 0.0, 0.5, 0.0], 2),
        (&[0.9, 0.4], &[0.0, 0.0], 1),
    ];
    for (scores, bias, k) in cases {
        let ids = operations.select(scores, bias, k).unwrap();
        all.extend(ids.iter().map(|&id| id as u64));
        all.extend(bits_of(&operations.routing_weights(scores, bias, &ids, weighting)));
    }
    let mut logits = numbers(8, 3);
    operations.router_scores(&mut logits);
    all.extend(bits_of(&logits));
    all
}

fn activations(operations: &dyn Operations) -> Vec<u64> {
    let scaled = |seed| numbers(300, seed).iter().map(|x| 12.0 * x).collect::<Vec<f32>>();
    let (gate, up) = (scaled(1), scaled(2));
    let mut out = vec![0.0; 300];
    operations.situ(&gate, &up, Caps { beta: 4.0, linear_beta: 25.0 }, &mut out);
    bits_of(&out)
}

fn loading(operations: &dyn Operations) -> Vec<u64> {
    let matrix = |scales: [u8; 2]| {
        let (codes, scales) = (SharedBytes::copy_of(&[0x21; 32]), SharedBytes::copy_of(&scales));
        Matrix::mxfp4(2, 32, codes, scales).unwrap()
    };
    let fine = || matrix([127, 127]);
    let damaged = Expert { w1: fine(), w2: fine(), w3: matrix([127, 255]) };
    let tail = operations.a_log(&[1.0, 0.0, 3.0], 2);
    vec![u64::from(operations.check_expert(1, 2, &damaged).is_err()), u64::from(tail.is_err())]
}

fn attention(operations: &dyn Operations) -> Vec<u64> {
    let config = super::external("tiny-k3-a").unwrap().join("model/config.json");
    let raw = k3_checkpoint::config::read(&config).unwrap();
    let shape = Shape::derive(&Contract::default(), &raw).unwrap();
    let kv_b = Matrix::from_f32(160, 32, &numbers(160 * 32, 1)).unwrap();
    let query: Vec<f32> = numbers(32, 2).iter().map(|x| 3.0 * x).collect();
    let rows = numbers(40 * 21, 3);
    let mut all = Vec::new();
    for (head, position) in [(0, 0), (1, 11), (3, 20)] {
        let rows = &rows[..40 * 21];
        let kv_b = kv_b.view();
        let head = HeadAttention { shape: &shape, head, position, query: &query, kv_b, rows };
        let mut out = vec![0.0; 16];
        operations.attend(&head, &mut out);
        all.extend(bits_of(&out));
    }
    all
}

const PROBES: [Probe; 11] = [
    ("row sums", row_sums),
    ("MXFP4", mxfp4_values),
    ("sums", sums),
    ("softmax", softmaxes),
    ("norms", norms),
    ("functions", functions),
    ("recurrence", recurrence),
    ("routing", routing),
    ("activations", activations),
    ("loading", loading),
    ("attention", attention),
];

/// What the right engine says, computed once.
struct Answers {
    tiny: Tiny,
    logits: Vec<f32>,
    reversed: Vec<u32>,
    probes: Vec<Vec<u64>>,
}

type Variant = Arc<Engine<dyn Operations>>;

impl Answers {
    fn engine(&self, mutant: &EngineMutant, options: EngineOptions) -> Option<Variant> {
        let checkpoint = &self.tiny.checkpoint;
        mutant.engine(&checkpoint.raw, checkpoint, options).ok()
    }

    /// Where the mutant shows, or nothing.
    fn shows(&self, mutant: &EngineMutant) -> Option<String> {
        let operations = mutant.operations();
        for ((name, probe), expected) in PROBES.iter().zip(&self.probes) {
            if probe(&*operations) != *expected {
                return Some(format!("operation: {name}"));
            }
        }
        let ids = &self.tiny.full_ids;
        let whole = EngineOptions { chunk_tokens: 64, ..EngineOptions::default() };
        let Some(engine) = self.engine(mutant, whole) else {
            return Some("bind".into());
        };
        let Ok(logits) = EngineSequence::new(engine).feed(ids) else {
            return Some("error".into());
        };
        let pairs = logits.iter().zip(&self.logits);
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if worst > 4e-4 {
            return Some(format!("logits by {worst:.1e}"));
        }
        let split = EngineOptions { threads: 3, chunk_tokens: 7, ..whole };
        let mut sequence = EngineSequence::new(self.engine(mutant, split)?);
        if sequence.feed(ids).map(|split| bits(&split)).ok() != Some(bits(&logits)) {
            return Some("threads and chunks".into());
        }
        let engine = self.engine(mutant, whole)?;
        let mut sequences = [EngineSequence::new(engine.clone()), EngineSequence::new(engine)];
        let backwards: Vec<u32> = ids.iter().rev().copied().collect();
        let mut second = Vec::new();
        for (p, q) in ids.chunks(5).zip(backwards.chunks(5)) {
            let first = sequences[0].feed(p);
            match (first, sequences[1].feed(q)) {
                (Ok(_), Ok(logits)) => second.extend(bits(&logits)),
                _ => return Some("interleaved: error".into()),
            }
        }
        let apart = second
            .iter()
            .zip(&self.reversed)
            .any(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs() > 4e-4);
        if apart {
            return Some("interleaved".into());
        }
        (worst > 6e-5).then(|| format!("stages, logits by {worst:.1e}"))
    }
}

/// No mutant is equivalent to the engine, ids are unique, families are as large as promised.
#[test]
fn every_mutant_shows_somewhere() {
    let Some(tiny) = Tiny::open() else { return };
    let engine = tiny.engine(EngineOptions { chunk_tokens: 64, ..EngineOptions::default() });
    let backwards: Vec<u32> = tiny.full_ids.iter().rev().copied().collect();
    let contract = Contract::default();
    let answers = Answers {
        logits: EngineSequence::new(engine.clone()).feed(&tiny.full_ids).unwrap(),
        reversed: bits(&EngineSequence::new(engine).feed(&backwards).unwrap()),
        probes: PROBES.iter().map(|(_, probe)| probe(&contract)).collect(),
        tiny,
    };
    let all = mutants();
    let mut survivors = Vec::new();
    for mutant in &all {
        let shown = answers.shows(mutant);
        let (family, id) = (mutant.family.letter(), mutant.id);
        println!("{family} {id}: {}", shown.as_deref().unwrap_or("SURVIVED"));
        if shown.is_none() {
            survivors.push(mutant.id);
        }
    }
    let family = |letter| all.iter().filter(|m| m.family.letter() == letter).count();
    println!("{} of family (b), {} of family (c)", family('b'), family('c'));
    assert!(family('b') >= 30 && family('c') >= 20);
    let mut ids: Vec<&str> = all.iter().map(|mutant| mutant.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}
