//! What `generate` accepts, and the checks that need no file.

use std::path::{Path, PathBuf};

use clap::Args;

use super::super::model_args::{CheckpointArgs, Ids, parse_epsilon, parse_ids};
use super::super::output::{self, CommandError, OutputArgs, usage};
use super::super::sizes::{parse_gigabytes, parse_id, parse_size};
use super::super::text_input::SpecialArg;
use super::super::threads::ThreadsArgs;
use crate::cli::choice::choice;
use k3_cache::policy::PolicyName;
use k3_cache::presets;
use k3_core::config::MLA_NORM_EPS;
use k3_core::host::claims::Output;

/// Maximum ids to generate in one run.
const MAX_GEN: u32 = 1_000_000;
/// Maximum slots of a ring.
const MAX_RING: u32 = 64;
/// Maximum tokens of a chunk.
const MAX_CHUNK: u32 = 65_536;

/// How much memory a run gets and how it uses it.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Packed trunk, made by `pack`
    #[arg(long, value_name = "DIR")]
    pub trunk: Option<PathBuf>,
    /// Memory limit of the process, such as 8GB or 6.5GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Preset split of memory between trunk and experts
    #[arg(long, value_name = "NAME", value_parser = presets::names())]
    pub preset: Option<String>,
    /// Memory limit of the trunk (pinned layers and ring) in GB
    #[arg(long, value_name = "X", value_parser = parse_gigabytes)]
    pub trunk_gb: Option<u64>,
    /// Memory limit of the expert slots in GB
    #[arg(long, value_name = "X", value_parser = parse_gigabytes)]
    pub cache_gb: Option<u64>,
    /// Expert slots (instead of --cache-gb)
    #[arg(long, value_name = "N", conflicts_with = "cache_gb",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub expert_slots: Option<u32>,
    /// Slots for layers that are streamed; with 2 or more the next layer is read ahead
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RING)))]
    pub ring: Option<u32>,
    /// Prompt tokens that go through a layer together
    #[arg(long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHUNK)))]
    pub prefill_chunk: u32,
    /// Run only the first N layers; the ids are then not the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Policy of the expert cache; the default is what `simcache` recommends
    #[arg(long, value_name = "NAME", value_parser = choice::<PolicyName>(),
        default_value = "layer-cycle")]
    pub policy: PolicyName,
    /// Prompt as token ids: decimal numbers, separated by commas
    #[arg(long, value_name = "IDS", value_parser = parse_ids,
        conflicts_with_all = ["prompt", "prompt_file"])]
    pub ids: Option<Ids>,
    /// Prompt as text, for a model with K3's vocabulary. Markers such as <|open|> in it are plain
    /// text unless --special token is given
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// Prompt text from a file (- for stdin), byte for byte, a final line end included
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// How markers in the prompt are read [default: text]
    #[arg(long, value_enum, value_name = "HOW")]
    pub special: Option<SpecialArg>,
    /// Folder with tiktoken.model and tokenizer_config.json [default: the model's folder if it has
    /// them, else K3's vocabulary, built in]
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    // Accepted so that the error can say what to do instead.
    #[arg(long, hide = true)]
    chat: bool,
    /// Ids to generate; 0 only feeds the prompt
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_GEN)))]
    pub r#gen: u32,
    /// Stop after this id too, which is included in ids and text (repeatable). A run stops after
    /// the ids that the files of the checkpoint name as its end
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    pub stop_id: Vec<u32>,
    /// Go on after the end ids of the checkpoint
    #[arg(long)]
    pub ignore_eos: bool,
    /// Recompute the whole prefix at every step
    #[arg(long, conflicts_with_all = ["load_state", "save_state"])]
    pub full_recompute: bool,
    /// Write the logits of every generated id, raw little-endian f32
    #[arg(long, value_name = "FILE")]
    pub dump_logits: Option<PathBuf>,
    /// Write a trace of expert requests and cache decisions, for `simcache`
    #[arg(long, value_name = "FILE")]
    pub dump_trace: Option<PathBuf>,
    /// Write the state at the end. An interrupted run completes the current forward pass and saves
    /// its state before exiting, so that --load-state can continue from there
    #[arg(long, value_name = "FILE")]
    pub save_state: Option<PathBuf>,
    /// Continue from a saved state; the ids of a prompt are appended
    #[arg(long, value_name = "FILE")]
    pub load_state: Option<PathBuf>,
    /// Instead of generating, feed the ids and report how many are the model's own choice
    #[arg(long, conflicts_with_all = [
        "load_state", "save_state", "full_recompute", "stop_id", "dump_logits",
        "ignore_eos", "gen",
    ])]
    pub tf_check: bool,
    /// Epsilon of the two low-rank norms in MLA
    #[arg(long, value_name = "X", default_value_t = MLA_NORM_EPS, value_parser = parse_epsilon)]
    pub mla_norm_eps: f64,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Teacher forcing compares each id with the choice made before it.
pub fn enough_to_check(ids: usize) -> Result<(), CommandError> {
    if ids < 2 {
        return Err(usage(format!("--tf-check needs at least 2 ids, got {ids}")));
    }
    Ok(())
}

impl GenerateArgs {
    /// Declares what is read and written.
    pub fn claim(&self, model: &Path) -> Result<(), CommandError> {
        let files = [&self.model.trunk, &self.tokenizer, &self.prompt_file, &self.load_state];
        let read = files.into_iter().flatten().map(|path| &**path);
        let read: Vec<&Path> = read.chain([model]).collect();
        let files = [&self.dump_logits, &self.dump_trace, &self.save_state];
        let written: Vec<_> = files.into_iter().flatten().map(|path| Output::File(path)).collect();
        output::claim(&self.output, &read, &written)
    }

    /// Checks that clap cannot express.
    pub fn check(&self) -> Result<(), CommandError> {
        if self.chat {
            let error = usage("--chat: chat is not implemented yet");
            return Err(error.hint("give the rendered conversation as --prompt or --ids"));
        }
        let text = self.prompt.is_some() || self.prompt_file.is_some();
        if self.special.is_some() && !text {
            let error = usage("--special: expected --prompt or --prompt-file, got neither");
            return Err(error.hint("only text can contain markers"));
        }
        if !text && self.ids.is_none() && self.load_state.is_none() {
            let error = usage("no prompt");
            return Err(error.hint("give --prompt TEXT, --prompt-file FILE or --ids 1,2,3"));
        }
        if self.tf_check && self.tokenizer.is_some() && !text {
            return Err(usage("--tokenizer: --tf-check on --ids reads and writes no text"));
        }
        match &self.ids {
            Some(ids) if self.tf_check => enough_to_check(ids.0.len()),
            _ => Ok(()),
        }
    }

    /// The option that needs K3's vocabulary, if one does.
    #[must_use]
    pub fn text_option(&self) -> Option<&'static str> {
        let options = [
            ("--prompt", self.prompt.is_some()),
            ("--prompt-file", self.prompt_file.is_some()),
            ("--tokenizer", self.tokenizer.is_some()),
        ];
        let given = options.into_iter().find(|(_, given)| *given);
        given.map(|(option, _)| option)
    }

    /// Whether stdout is the only output.
    #[must_use]
    pub fn only_stdout(&self) -> bool {
        let files = [&self.dump_logits, &self.dump_trace, &self.save_state, &self.output.out];
        files.iter().all(|file| file.is_none())
    }
}
