//! Right engines that no judge may accuse: the reference's steps with every value rounded at the
//! tabled points (`gates/PRECISION.md`), every sum in an order, in lanes and in an accumulator of
//! its own, and exp, σ and tanh by one of several right ways.
//!
//! An engine is a seed. `cargo test` runs 30 of each precision; the run of 1,000 (`long.rs`) writes
//! `reports/right-engines/report.txt`.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use k3_core::Precision;
use k3_core::choice::Choice as _;
use k3_core::config::MLA_NORM_EPS;
use k3_core::random::SplitMix64;
use k3_core::stages::{NoStages, StageDump, StageSink};
use k3_gates::context::Context;
use k3_gates::evidence::EvidenceSet;
use k3_gates::fixtures::Fixtures;
use k3_gates::layers::judge::Judge;
use k3_gates::layers::subject::DumpSubject;
use k3_gates::outcome::Verdict;
use k3_gates::registry::{Needs, of_sets};
use k3_gates::runner::{SetState, in_parallel, judge_on_set, shipped_sets};
use k3_gates::subject::{Generation, Logits};
use k3_gates::{Opening, Sequence, Subject, SubjectError, SubjectSource};
use k3_reference::formulas::NormSite;
use k3_reference::local::Arithmetic;
use k3_reference::released::{self, L2_NORM_EPS, RENORMALISE_EPS};
use k3_reference::rounding::{RoundedStages, rounded_formulas};
use k3_reference::rows::{Matrix, Rows, from_values, row, slices, values};
use k3_reference::{Formulas, Model};

/// What an engine draws from: its choices, and an order for every sum.
struct Draw {
    random: SplitMix64,
    precision: Precision,
    /// Accumulators in f32; in f64 otherwise.
    single: bool,
    /// Functions of the platform in f32; in f64 and rounded otherwise.
    platform: bool,
}

thread_local! {
    /// The engine that runs on this thread: a table of functions cannot carry one.
    static DRAW: RefCell<Draw> = RefCell::new(Draw::new(0, Precision::F64));
}

impl Draw {
    fn new(seed: u64, precision: Precision) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut coin = || precision != Precision::F64 && random.below(2) == 0;
        let (single, platform) = (coin(), coin());
        Self { random, precision, single, platform }
    }
}

/// To the precision of the stored activations.
fn stored(x: f64) -> f64 {
    DRAW.with_borrow(|draw| draw.precision.round(x))
}

fn stored_all(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| stored(*x)).collect()
}

/// To what a single step computes in: f32, or f64 in an f64 engine.
fn step(x: f64) -> f64 {
    DRAW.with_borrow(|draw| draw.precision.at_least_single().round(x))
}

/// A way to add `places.len()` products.
struct Order {
    places: Vec<usize>,
    lanes: usize,
    pairwise: bool,
    fused: bool,
    single: bool,
}

impl Order {
    fn draw(terms: usize) -> Self {
        DRAW.with_borrow_mut(|draw| {
            let mut places: Vec<usize> = (0..terms).collect();
            if draw.random.below(3) > 0 {
                draw.random.shuffle(&mut places);
            }
            Self {
                places,
                lanes: 1 + draw.random.below(16) as usize,
                pairwise: draw.random.below(2) == 0,
                fused: draw.random.below(2) == 0,
                single: draw.single,
            }
        })
    }

    fn round(&self, x: f64) -> f64 {
        if self.single { f64::from(x as f32) } else { x }
    }

    /// Σ a·b in this order.
    fn dot(&self, a: &[f64], b: &[f64]) -> f64 {
        let mut lanes = [0.0; 16];
        let mut lane = 0;
        for place in &self.places {
            let product = a[*place] * b[*place];
            let product = if self.fused { product } else { self.round(product) };
            lanes[lane] = self.round(lanes[lane] + product);
            lane = if lane + 1 == self.lanes { 0 } else { lane + 1 };
        }
        let mut left = self.lanes;
        while self.pairwise && left > 1 {
            let half = left / 2;
            for lane in 0..half {
                lanes[lane] = self.round(lanes[lane] + lanes[left - 1 - lane]);
            }
            left -= half;
        }
        lanes[..left].iter().fold(0.0, |sum, lane| self.round(sum + lane))
    }
}

/// Σ a·b in an order of its own.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    step(Order::draw(a.len()).dot(a, b))
}

fn sum(terms: &[f64]) -> f64 {
    dot(terms, &vec![1.0; terms.len()])
}

/// W·x: one order for all rows of a call.
fn apply(matrix: &Matrix, input: &Rows) -> Rows {
    let order = Order::draw(matrix.columns());
    let mut out = Rows::zeros((input.nrows(), matrix.rows()));
    let mut buffer = Vec::new();
    for index in 0..matrix.rows() {
        let weights = matrix.row(index, &mut buffer);
        for (token, x) in slices(input).enumerate() {
            out[[token, index]] = step(order.dot(weights, x));
        }
    }
    out
}

/// Σ w·x over vectors, one order for all columns.
fn weighted<V: AsRef<[f64]>>(vectors: &[V], weights: &[f64], width: usize) -> Vec<f64> {
    let order = Order::draw(vectors.len());
    let column = |j: usize| -> Vec<f64> { vectors.iter().map(|v| v.as_ref()[j]).collect() };
    (0..width).map(|j| step(order.dot(&column(j), weights))).collect()
}

/// A function by one of its right ways.
fn function(x: f64, single: fn(f32) -> f32, double: fn(f64) -> f64) -> f64 {
    let platform = DRAW.with_borrow(|draw| draw.platform);
    if platform { f64::from(single(x as f32)) } else { step(double(x)) }
}

fn exp(x: f64) -> f64 {
    function(x, f32::exp, f64::exp)
}

fn tanh(x: f64) -> f64 {
    function(x, f32::tanh, f64::tanh)
}

fn sigmoid(x: f64) -> f64 {
    step(1.0 / step(1.0 + exp(-x)))
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let each: Vec<f64> = scores.iter().map(|s| exp(step(s - max))).collect();
    let z = sum(&each);
    each.iter().map(|e| step(e / z)).collect()
}

fn normalise(_site: NormSite, x: &[f64], eps: f64) -> Vec<f64> {
    let root = step(step(step(dot(x, x) / x.len() as f64) + eps).sqrt());
    x.iter().map(|x| step(x / root)).collect()
}

/// The steps of an engine of this precision.
#[allow(clippy::too_many_lines, reason = "a table of functions")]
fn formulas(precision: Precision) -> Formulas {
    Formulas {
        apply,
        logits: apply,
        normalise,
        mix_score: |_, site, source, fold, eps| dot(&normalise(site, source, eps), fold),
        mix_weights: softmax,
        mix: |formulas, site, sources, fold, eps| {
            let score = |source: &&[f64]| (formulas.mix_score)(formulas, site, source, fold, eps);
            let scores: Vec<f64> = sources.iter().map(score).collect();
            weighted(sources, &softmax(&scores), fold.len())
        },
        convolve: |_, history, input, taps| {
            let series: Vec<f64> = values(history).iter().chain(values(input)).copied().collect();
            let (width, kernel) = (input.ncols(), taps.ncols());
            let series = from_values(width, stored_all(&series));
            let order = Order::draw(kernel);
            let one = |token: usize, p: usize| {
                let window: Vec<f64> = (token..token + kernel).map(|t| series[[t, p]]).collect();
                stored(order.dot(row(taps, p), &window))
            };
            let all = (0..input.nrows()).flat_map(|t| (0..width).map(move |p| (t, p)));
            from_values(width, all.map(|(token, p)| one(token, p)).collect())
        },
        convolution_activation: |_, x| stored(step(x * sigmoid(x))),
        l2_norm: |head| {
            let root = step(step(dot(head, head) + L2_NORM_EPS).sqrt());
            head.iter().map(|x| stored(x / root)).collect()
        },
        decay_input: |weights, x| apply(&weights.f_b, &apply(&weights.f_a, x).mapv(stored)),
        beta: |logits, head| sigmoid(stored(logits[head])),
        log_decay: |d| {
            let channel = d.head * d.head_dim + d.channel;
            let inner = step(exp(d.a_log[d.head]) * step(d.z[channel] + d.dt_bias[channel]));
            step(d.lower_bound * sigmoid(inner))
        },
        delta_step: |state, s| {
            for (mut row, g) in state.rows_mut().into_iter().zip(s.log_decay) {
                let decay = exp(*g);
                row.mapv_inplace(|x| step(x * decay));
            }
            let rows: Vec<_> = state.rows().into_iter().map(|row| row.to_vec()).collect();
            let u = weighted(&rows, s.k, s.v.len());
            let delta: Vec<f64> =
                s.v.iter().zip(u).map(|(v, u)| step(s.beta * step(v - u))).collect();
            for (mut row, k) in state.rows_mut().into_iter().zip(s.k) {
                row.iter_mut().zip(&delta).for_each(|(x, d)| *x = step(*x + k * d));
            }
            let rows: Vec<_> = state.rows().into_iter().map(|row| row.to_vec()).collect();
            weighted(&rows, s.q, s.v.len())
        },
        kda_output: |formulas, o, o_norm, gate, eps| {
            let normed = released::norm_heads(formulas, o, o_norm, eps);
            gated(&normed, gate)
        },
        attention_dot: |q, k, _| dot(&[q.0, q.1].concat(), &[k.0, k.1].concat()),
        attention_weights: softmax,
        attention_sum: |values, weights, width| weighted(values, weights, width),
        mla_output: gated,
        situ: |gate, up, beta, linear_beta| {
            let (gate, up) = (stored(gate), stored(up));
            let gate_part = step(step(beta * tanh(step(gate / beta))) * sigmoid(gate));
            stored(step(gate_part * step(linear_beta * tanh(step(up / linear_beta)))))
        },
        router_scores: |logits| logits.iter().map(|l| sigmoid(*l)).collect(),
        routing_weights: |scores, _, chosen, config| {
            let unbiased: Vec<f64> = chosen.iter().map(|e| scores[*e]).collect();
            let renormalise = chosen.len() > 1 && config.moe_renormalize;
            let divisor = if renormalise { sum(&unbiased) + RENORMALISE_EPS } else { 1.0 };
            let scaling = config.routed_scaling_factor;
            unbiased.iter().map(|w| step(step(w / divisor) * scaling)).collect()
        },
        expert_input: |weights, x| apply(&weights.down, x),
        combine: |outputs, weights, width| weighted(outputs, weights, width),
        project_up: |up, normed| apply(up, normed).mapv(stored),
        ..rounded_formulas(precision)
    }
}

/// o · σ(gate).
fn gated(o: &[f64], gate: &[f64]) -> Vec<f64> {
    o.iter().zip(gate).map(|(o, g)| stored(step(o * sigmoid(stored(*g))))).collect()
}

/// The engine of a seed.
#[derive(Clone, Copy)]
struct Right {
    seed: u64,
    precision: Precision,
}

struct Opened {
    model: Model,
    hook: RoundedStages,
    right: Right,
}

struct Running<'a> {
    sequence: k3_reference::Sequence<'a>,
    right: Right,
}

impl SubjectSource for Right {
    fn name(&self) -> &str {
        "right engine"
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn has_contract_bits(&self) -> bool {
        false
    }

    fn offers(&self) -> &[Needs] {
        &[Needs::Stages]
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let opened = Model::open_with(model.dir, model.mla_norm_eps, &formulas(self.precision));
        let model = opened.map_err(|error| SubjectError::Refused(error.to_string()))?;
        Ok(Box::new(Opened { model, hook: RoundedStages(self.precision), right: *self }))
    }
}

impl Subject for Opened {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        let sequence = self.model.sequence_with(&self.hook);
        Box::new(Running { sequence, right: self.right })
    }

    fn generate(&self, prompt: &[u32], count: usize) -> Option<Result<Generation, SubjectError>> {
        let mut sequence = self.sequence();
        let mut ids: Vec<u32> = Vec::new();
        let mut logits = Logits { rows: 0, vocabulary: 0, values: Vec::new() };
        while ids.len() < count {
            let fed = ids.last().map_or(prompt, std::slice::from_ref);
            let last = match sequence.feed(fed, &mut NoStages) {
                Ok(last) => last,
                Err(error) => return Some(Err(error)),
            };
            ids.push(last.argmax(last.rows - 1)?);
            logits.values.extend_from_slice(last.row(last.rows - 1));
            (logits.rows, logits.vocabulary) = (logits.rows + 1, last.vocabulary);
        }
        Some(Ok(Generation { ids, logits }))
    }
}

impl Sequence for Running<'_> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let seed = self.right.seed.wrapping_add((self.sequence.position() as u64) << 32);
        DRAW.set(Draw::new(seed, self.right.precision));
        Sequence::feed(&mut self.sequence, ids, sink)
    }
}

/// The gates on a set that judge such an engine by numbers; a full recompute for every id is the
/// same numbers again.
const GATES: [&str; 3] = ["stages", "teacher-forcing", "incremental"];
const IDS: [u32; 8] = [3, 17, 200, 5, 9, 44, 100, 7];

/// What the shipped sets and `layers` said of an engine: how often what was judged, the largest
/// share of a tolerance that was taken, and whatever is no pass.
#[derive(Default)]
struct Said {
    passed: usize,
    inapplicable: usize,
    worst: f64,
    wrong: Vec<String>,
}

impl Said {
    fn take(&mut self, seed: u64, what: &str, verdict: Verdict, ratio: f64, why: &str) {
        match verdict {
            Verdict::Pass => self.passed += 1,
            Verdict::NotApplicable | Verdict::NotSelected => self.inapplicable += 1,
            Verdict::Fail | Verdict::NotRun => {
                self.wrong.push(format!("{what}, seed {seed}: {} {why}", verdict.word()));
            }
        }
        self.worst = self.worst.max(ratio);
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.inapplicable += other.inapplicable;
        self.worst = self.worst.max(other.worst);
        self.wrong.extend(other.wrong);
    }
}

fn judged_by_gates(right: Right, set: &EvidenceSet, said: &mut Said) {
    let precision = (right.precision != Precision::F64).then_some(right.precision);
    let context = Context::new(set, &right, MLA_NORM_EPS).with_precision(precision);
    for gate in of_sets().filter(|gate| GATES.contains(&gate.id)) {
        let outcome = judge_on_set(gate, &context);
        let ratios = outcome.comparisons.iter().filter_map(|c| c.record.ratio);
        let worst = ratios.fold(0.0, f64::max);
        let what = format!("{} {}", right.precision.name(), gate.full_id(&set.name));
        said.take(right.seed, &what, outcome.verdict, worst, &outcome.summary);
    }
}

fn judged_by_layers(right: Right, set: &EvidenceSet, said: &mut Said) {
    let engine = right.open(set.opening(MLA_NORM_EPS)).unwrap();
    let (mut dump, mut sequence) = (StageDump::default(), engine.sequence());
    for call in [&IDS[..4], &IDS[4..5], &IDS[5..7], &IDS[7..]] {
        sequence.feed(call, &mut dump).unwrap();
    }
    let precision = right.precision;
    let dump = DumpSubject { dump, precision, rows: IDS.len(), unknown: Vec::new() };
    let reference = Model::open(&set.model_dir, MLA_NORM_EPS).unwrap();
    let arithmetic = Arithmetic::of(right.precision);
    let config = &set.config;
    let judge = Judge { config, mla_norm_eps: MLA_NORM_EPS, arithmetic, stages: None };
    let (block, width) = (config.attn_res_block_size, config.hidden_size);
    let before = |layer| dump.before(layer, block, width);
    let mut rows = Vec::new();
    for layer in reference.layers() {
        let of_layer = dump.layer(Some(layer.index));
        rows.push(judge.layer(layer, &before(layer.index), &of_layer).unwrap().0);
    }
    let closing = (reference.closing(), before(reference.layers().len()));
    rows.push(judge.closing(closing.0, &closing.1, &dump.layer(None)).unwrap());
    for row in rows {
        let what = format!("{} {} layer {:?}", right.precision.name(), set.name, row.layer);
        let at = row.first_divergence().map_or(String::new(), |stage| stage.stage.clone());
        let ratios = row.stages.iter().filter_map(|stage| stage.ratio);
        said.take(right.seed, &what, row.verdict, ratios.fold(0.0, f64::max), &at);
    }
}

const PRECISIONS: [Precision; 4] =
    [Precision::F64, Precision::F32, Precision::F16, Precision::Bf16];

/// Judges `count` engines of each precision; one line a precision.
fn run(count: usize, threads: usize, mut after: impl FnMut(&str)) -> Vec<String> {
    let fixtures = Fixtures::embedded().unwrap();
    let sets = shipped_sets(&fixtures);
    let sets = sets.each_ref().map(|set| match set {
        SetState::Ready(set) => set.as_ref(),
        SetState::NotRun { reason, .. } => panic!("{reason}"),
    });
    let mut wrong = Vec::new();
    for precision in PRECISIONS {
        let one = |index: usize| {
            let right = Right { seed: index as u64, precision };
            let mut said = Said::default();
            for set in sets {
                judged_by_gates(right, set, &mut said);
                judged_by_layers(right, set, &mut said);
            }
            said
        };
        let mut all = Said::default();
        in_parallel(threads, count, one).into_iter().for_each(|said| all.add(said));
        assert!(all.passed >= 28 * count, "{}: {} passes", precision.name(), all.passed);
        let mut line = format!(
            "{}: {count} engines, {} verdicts PASS, {} NOT APPLICABLE, {} others; the most of a \
             tolerance that one took: {:.3}\n",
            precision.name(),
            all.passed,
            all.inapplicable,
            all.wrong.len(),
            all.worst
        );
        all.wrong.iter().for_each(|wrong| {
            let _ = writeln!(line, "  {wrong}");
        });
        after(&line);
        wrong.extend(all.wrong);
    }
    wrong
}

/// In f64, rising, by the reference's own functions nothing is changed: the steps above are the
/// reference's but for rounding and order.
#[test]
fn a_right_engine_is_not_the_reference_but_near_it() {
    let model = super::support::tiny();
    let right = Model::open_with(&model, MLA_NORM_EPS, &formulas(Precision::F64)).unwrap();
    let plain = Model::open_with(&model, MLA_NORM_EPS, &k3_reference::RELEASED).unwrap();
    DRAW.set(Draw::new(5, Precision::F64));
    let right = right.sequence().feed(&IDS, &mut NoStages).unwrap().values;
    let plain = plain.sequence().feed(&IDS, &mut NoStages).unwrap().values;
    let apart = super::support::largest_difference(&right, &plain);
    assert!(apart > 0.0 && apart < 1e-10, "{apart}");
}

#[test]
fn no_right_engine_is_accused() {
    let wrong = run(30, 2, |line| print!("{line}"));
    assert_eq!(wrong, Vec::<String>::new());
}

/// The long run: `count` engines of each precision; writes the report anew.
#[allow(dead_code, reason = "called by `long`")]
pub fn report(count: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/right-engines/report.txt");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut text = String::new();
    run(count, 2, |line| {
        text += line;
        fs::write(&path, &text).unwrap();
    });
}
