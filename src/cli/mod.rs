//! The command line: one file per subcommand. What was typed becomes a checked plan, the plan is
//! run, the result is reported; below this module nothing is unvalidated.

mod check;
mod gates;
mod inspect;
mod layers;
mod merge;
mod model_dir;
mod output;
mod plan_layers;
mod simcache;
mod synth;

use std::io::Write as _;

use clap::{Parser, Subcommand};

use crate::exit::Exit;
pub use output::{CommandError, Format, OutputArgs};

/// A verification-first harness for Kimi K3.
///
/// Exit codes: 0 everything asked for was checked and conforms; 1 something disagrees; 2 usage;
/// 3 an input is missing, unreadable or corrupt; 4 incomplete (nothing selected, something NOT
/// RUN); 5 refused, it would not fit the memory limit.
#[derive(Debug, Parser)]
#[command(name = "k3-verify", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Climb the ladder on the shipped sets or on other evidence
    Gates(gates::GatesArgs),
    /// Study the expert cache offline: hit rates at every capacity, bytes and seconds per token
    Simcache(Box<simcache::SimcacheArgs>),
    Synth(synth::SynthArgs),
    Inspect(inspect::InspectArgs),
    Check(check::CheckArgs),
    Layers(Box<layers::LayersArgs>),
    Merge(merge::MergeArgs),
    /// Before anything is downloaded or run: files, bytes, memory and time of a run of layers
    Plan(plan_layers::PlanLayersArgs),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Parses the process's arguments, runs the command and says how to exit.
#[must_use]
pub fn main() -> Exit {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Gates(args) => gates::run(args),
        Command::Simcache(args) => simcache::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Check(args) => check::run(args),
        Command::Layers(args) => layers::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Plan(args) => plan_layers::run(args),
        Command::Completions { shell } => completions(*shell),
    };
    match result {
        Ok(exit) => exit,
        Err(error) => output::report_error(&error),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, CommandError> {
    let mut script = Vec::new();
    let mut command = <Cli as clap::CommandFactory>::command();
    clap_complete::generate(shell, &mut command, "k3-verify", &mut script);
    output::quiet_pipe(std::io::stdout().write_all(&script))?;
    Ok(Exit::Conforms)
}
