//! The binary: parse, dispatch, exit code. Everything else is in the library.

use clap::Parser;
use k3_verify::cli::simcache;

#[derive(Debug, Parser)]
#[command(name = "k3-verify", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Study the expert cache offline
    Simcache(Box<simcache::SimcacheArgs>),
}

fn main() -> std::process::ExitCode {
    let Command::Simcache(args) = Cli::parse().command;
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    match simcache::run(&args, &mut out, &mut err) {
        Ok(exit) => std::process::ExitCode::from(exit as u8),
        Err(_) => std::process::ExitCode::from(3),
    }
}
