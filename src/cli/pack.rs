//! `pack`: the trunk of a checkpoint as one file of aligned runs, for streaming.

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::generate::eprint_text;
use super::model_args::model_and_out;
use super::output::{self, CommandError, OutputArgs};
use k3_core::exit::Exit;
use k3_core::host::claims::Output;
use k3_core::host::interrupt::Interrupt;
use k3_engine::memory::plan::in_units;
use k3_engine::stream::ModelFiles;
use k3_engine::stream::pack;
use k3_engine::stream::pack::{Packed, Progress, Stage};
use k3_render::Document;

/// Arguments of `pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// The checkpoint, unless --model or K3_MODEL names it, then the folder for the packed trunk
    #[arg(value_name = "[MODEL] OUT", num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Exit, CommandError> {
    let (model, out) = model_and_out(&args.places, args.model.as_deref())?;
    output::claim(&args.output, &[&model], &[Output::Folder(&out)])?;
    let interrupt = Interrupt::listen();
    let files = ModelFiles::open(&model, None, None)?;
    let start = Instant::now();
    let bar = bar();
    let mut stage = Stage::Copy;
    let mut show = |progress: Progress| {
        if let Some(bar) = &bar {
            if progress.stage != stage {
                stage = progress.stage;
                bar.reset();
                bar.set_message("verifying");
            }
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        }
        if interrupt.is_set() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let packed = pack::pack(&files.checkpoint, &files.binding, &out, &mut show);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let packed = packed?;
    let seconds = start.elapsed().as_secs_f64();
    if packed.resumed_layers > 0 {
        eprint_text(&format!(
            "note: {} layers were already copied by an interrupted run\n",
            packed.resumed_layers
        ));
    }
    let (json, document) = report(&packed, seconds);
    output::deliver(&args.output, &json, &document)?;
    Ok(Exit::Conforms)
}

/// A bar with GB and MB/s, on a terminal only.
fn bar() -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let style = ProgressStyle::with_template(
        "{msg} {bar:40} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}",
    );
    let bar = ProgressBar::new(0).with_message("packing");
    Some(match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    })
}

fn report(packed: &Packed, seconds: f64) -> (serde_json::Value, Document) {
    // A resumed pack copied only a part in this run.
    let rate = if packed.resumed_layers == 0 {
        let rate = packed.bytes as f64 / 1e6 / seconds.max(1e-9);
        format!(" ({rate:.0} MB/s)")
    } else {
        String::new()
    };
    let mut document = Document::new("k3-verify pack");
    document.line(format!(
        "packed and verified {} layers, {} in {seconds:.1} s{rate}",
        packed.layers,
        in_units(packed.bytes)
    ));
    document.line(format!(
        "the largest layer has {}, which is the size of a ring slot",
        in_units(packed.largest_run_bytes)
    ));
    let json = serde_json::json!({
        "schema": "k3-verify/pack/1",
        "layers": packed.layers,
        "resumed_layers": packed.resumed_layers,
        "bytes": packed.bytes,
        "largest_run_bytes": packed.largest_run_bytes,
        "provenance": {"seconds": seconds},
    });
    (json, document)
}
