//! The command line, one file per subcommand. Arguments become a checked plan, the plan runs, the
//! result is reported; nothing below this module sees unvalidated input.

mod bench;
mod check;
mod choice;
mod compare;
mod dump;
mod evidence;
mod export;
mod gates;
mod generate;
mod inspect;
mod layers;
mod logits;
mod merge;
mod model_args;
mod output;
mod pack;
mod pending_file;
mod plan;
mod plan_layers;
mod simcache;
mod sizes;
mod synth;
mod text_input;
mod threads;
mod tokenize;
mod tolerance;

use std::io::Write as _;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use k3_core::exit::Exit;
use k3_core::host::interrupt::{self, Interrupt};
pub use output::CommandError;

/// A verification-first harness for Kimi K3.
///
/// Exit codes: 0 everything asked for was checked and conforms; 1 something disagrees; 2 usage; 3
/// an input is missing, unreadable or corrupt; 4 incomplete (nothing selected, something NOT RUN);
/// 5 refused, it would exceed the memory limit.
#[derive(Debug, Parser)]
#[command(name = "k3-verify", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the ladder of gates on the shipped sets or on other evidence
    Gates(gates::GatesArgs),
    /// Study the expert cache offline: hit rates at every capacity, bytes and seconds per token
    Simcache(Box<simcache::SimcacheArgs>),
    Synth(synth::SynthArgs),
    /// Compare two logit files of any engine
    Logits(logits::LogitsArgs),
    /// Compare two dumps of named tensors of any engine, in execution order
    Compare(compare::CompareArgs),
    /// Write the stage tensors of one pass
    Dump(dump::DumpArgs),
    /// Make an evidence set for any checkpoint, with answers from the f64 reference
    Evidence(evidence::EvidenceArgs),
    /// Write the shipped fixtures and the tiny oracle to disk
    Export(export::ExportArgs),
    /// Generate text or ids within a memory limit, from the shards or a packed trunk
    Generate(Box<generate::GenerateArgs>),
    /// Run `generate` under several memory limits
    Bench(bench::BenchArgs),
    /// Pack the trunk (every layer's tensors but the experts) for streaming
    Pack(pack::PackArgs),
    Inspect(inspect::InspectArgs),
    Check(check::CheckArgs),
    Layers(Box<layers::LayersArgs>),
    Merge(merge::MergeArgs),
    Tokenize(tokenize::TokenizeArgs),
    /// Plan before downloading or running: memory by component or, with RANGE, the files, bytes,
    /// memory and time of a `layers` run
    Plan(Box<plan::PlanArgs>),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Parses the process's arguments, runs the command and says how to exit.
#[must_use]
pub fn main() -> Exit {
    let (cli, typed) = match parsed() {
        Ok(parsed) => parsed,
        Err(exit) => return exit,
    };
    if let Err(error) = prepare() {
        return output::report_error(&error);
    }
    let result = match &cli.command {
        Command::Gates(args) => gates::run(args),
        Command::Simcache(args) => simcache::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Evidence(args) => evidence::run(args),
        Command::Export(args) => export::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Plan(args) => plan::run(args, &typed),
        Command::Inspect(args) => inspect::run(args),
        Command::Check(args) => check::run(args),
        Command::Layers(args) => layers::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Completions { shell } => completions(*shell),
    };
    interrupt::wait_for_the_end();
    match result {
        Ok(exit) => exit,
        Err(error) => output::report_error(&error),
    }
}

/// The arguments, and which of them were typed for the subcommand, or how to exit: help that cannot
/// be written is an error.
fn parsed() -> Result<(Cli, ArgMatches), Exit> {
    let matches = Cli::command().try_get_matches();
    let parsed = matches.and_then(|matches| {
        let typed = matches.subcommand().map(|(_, typed)| typed.clone()).unwrap_or_default();
        Ok((Cli::from_arg_matches(&matches)?, typed))
    });
    parsed.map_err(|error| {
        let written = error.print().and_then(|()| std::io::stdout().flush());
        match output::quiet_pipe(written) {
            Err(error) => output::report_error(&error),
            Ok(()) if error.use_stderr() => Exit::Usage,
            Ok(()) => Exit::Conforms,
        }
    })
}

/// Signals and threads of the process.
fn prepare() -> Result<(), CommandError> {
    let refused = |error: anyhow::Error| CommandError::new(error, Exit::Refused);
    k3_core::host::memory::expect_limits();
    Interrupt::end_others().map_err(|e| refused(anyhow::anyhow!("cannot start a thread: {e}")))?;
    // The first parallel loop would start it, and panic where it cannot.
    let global = rayon::ThreadPoolBuilder::new().build_global();
    global.map_err(|error| refused(anyhow::anyhow!("cannot start the threads: {error}")))
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, CommandError> {
    let mut script = Vec::new();
    let mut command = Cli::command();
    clap_complete::generate(shell, &mut command, "k3-verify", &mut script);
    output::quiet_pipe(std::io::stdout().write_all(&script))?;
    Ok(Exit::Conforms)
}
