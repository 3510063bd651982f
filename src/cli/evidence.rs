//! `evidence MODEL --ids … --gen N OUT`: an evidence set for any checkpoint, answers by the f64
//! reference.

use k3_core::choice::Choice as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::export::{NewFolder, copy_below, files_below};
use super::model_args::{Ids, check_ids, model_and_out, parse_epsilon, parse_ids, read_config};
use super::output::{self, CommandError, OutputArgs, bad_input};
use k3_core::config::{MLA_NORM_EPS, epsilon_line};
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::provenance::{Provenance, default_threads};
use k3_core::stages::{Stage, StageKey};
use k3_engine::generate::report::join;
use k3_gates::answers::{Answers, floors};
use k3_gates::fixtures::hex_sha256;
use k3_gates::noise_floor::NoiseFloor;
use k3_render::{Document, json};

/// Checkpoints up to this size are copied into the set, larger ones linked.
const COPIED_BYTES: u64 = 1 << 30;

/// Arguments of `evidence`.
#[derive(Debug, Args)]
pub struct EvidenceArgs {
    /// The checkpoint, unless --model or K3_MODEL names it, then the folder to make
    #[arg(value_name = "[MODEL] OUT", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Prompt ids, separated by commas
    #[arg(long, value_name = "IDS", value_parser = parse_ids, required = true)]
    ids: Ids,
    /// Ids to generate greedily after the prompt, 1 to 65536
    #[arg(long = "gen", value_name = "N", required = true,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    count: u32,
    /// Epsilon of the two low-rank norms in MLA
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    mla_norm_eps: f64,
    #[command(flatten)]
    output: OutputArgs,
}

/// The report.
#[derive(Debug, Serialize)]
struct EvidenceReport {
    schema: &'static str,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    mla_norm_eps: f64,
    /// Smallest gap between the two largest logits of a position.
    least_gap: f64,
    noise: Vec<Noise>,
    model_linked: bool,
    provenance: Provenance,
}

#[derive(Debug, Serialize)]
struct Noise {
    precision: &'static str,
    logits_max_abs: f64,
    /// The first decision that rounding alone changes: the set cannot judge this precision.
    first_flip: Option<String>,
}

impl Noise {
    fn of(floor: &NoiseFloor) -> Self {
        let logits = floor.stages.get(&StageKey::model(Stage::Logits));
        Self {
            precision: floor.precision.name(),
            logits_max_abs: logits.map_or(f64::NAN, |floor| floor.max_abs),
            first_flip: floor.flipped.clone(),
        }
    }
}

/// Runs the command.
pub fn run(args: &EvidenceArgs) -> Result<Exit, CommandError> {
    let start = Instant::now();
    let (model, out) = model_and_out(&args.paths, args.model.as_deref())?;
    output::claim(&args.output, &[&model], &[Output::Folder(&out)])?;
    let config = read_config(&model)?;
    check_ids(&args.ids.0, &config)?;
    let made = NewFolder::beside(&out)?;
    let count = args.count as usize;
    let answers = Answers::make(&model, args.mla_norm_eps, &args.ids.0, count)?;
    let floors = floors(&model, args.mla_norm_eps, &answers.full_ids())?;
    let tensors = answers.tensors(&config)?;
    output::write_whole(&made.path().join("expected.safetensors"), &tensors)?;
    let model_linked = place_model(&model, made.path())?;
    let mut hashes = hashes(&model, model_linked);
    hashes.insert("expected.safetensors".to_owned(), hex_sha256(&tensors));
    let name = out.file_name().map_or("set".into(), |name| name.to_string_lossy());
    let json = answers.json(&name, args.mla_norm_eps, &floors, &hashes);
    let json = json::to_text(&json).map_err(bad_input)?;
    output::write_whole(&made.path().join("expected.json"), json.as_bytes())?;
    made.keep(&out)?;
    let report = EvidenceReport {
        schema: "k3-verify/evidence/1",
        prompt_ids: answers.prompt_ids,
        greedy_ids: answers.greedy_ids,
        mla_norm_eps: args.mla_norm_eps,
        least_gap: answers.least_gap,
        noise: floors.iter().map(Noise::of).collect(),
        model_linked,
        provenance: Provenance::since(start, default_threads(), vec![model.display().to_string()]),
    };
    output::deliver(&args.output, &report, &document(&report, &out))?;
    Ok(Exit::Conforms)
}

/// Copies a small checkpoint, links a large one; returns whether it linked.
fn place_model(model: &Path, set: &Path) -> Result<bool, CommandError> {
    let size = |file: &String| fs::metadata(model.join(file)).map_or(0, |facts| facts.len());
    let bytes: u64 = files_below(model).iter().map(size).sum();
    let target = set.join("model");
    if bytes <= COPIED_BYTES {
        copy_below(model, &target)?;
        return Ok(false);
    }
    let absolute = model.canonicalize();
    absolute.and_then(|from| std::os::unix::fs::symlink(from, &target)).map_err(|error| {
        let error = anyhow::anyhow!("{}: cannot link: {error}", target.display());
        bad_input(error)
    })?;
    Ok(true)
}

/// Hashes of the checkpoint's files if they were copied into the set; none for a link.
fn hashes(model: &Path, linked: bool) -> BTreeMap<String, String> {
    if linked {
        return BTreeMap::new();
    }
    let hash = |file: String| {
        let bytes = k3_core::host::files::read(&model.join(&file)).ok()?;
        Some((format!("model/{file}"), hex_sha256(&bytes)))
    };
    files_below(model).into_iter().filter_map(hash).collect()
}

fn document(report: &EvidenceReport, out: &Path) -> Document {
    let mut document = Document::new("k3-verify evidence: answers by the f64 reference");
    document.line(epsilon_line(report.mla_norm_eps));
    document.line(format!("prompt ids: {}", join(&report.prompt_ids)));
    document.line(format!("greedy ids: {}", join(&report.greedy_ids)));
    document.line(format!("smallest gap between the two best logits: {:.3e}", report.least_gap));
    for noise in &report.noise {
        let precision = noise.precision;
        let effect = match &noise.first_flip {
            None => ", no decision changes".to_owned(),
            Some(flip) => format!("; it changes {flip}: the set cannot judge {precision}"),
        };
        let most = noise.logits_max_abs;
        document.line(format!("noise of {precision}: {most:.3e} in a logit{effect}"));
    }
    let model = if report.model_linked { "model/ is a link" } else { "model/ is a copy" };
    document.line(format!("{}: {model}", out.display()));
    document
}
