//! `plan`: the memory of a run by component, before it is taken; with RANGE a run of layers.

use clap::Args;

use super::generate::{self, ModelArgs, model_error};
use super::output::{self, CommandError, OutputArgs};
use super::plan_layers::{self, PlanLayersArgs};
use k3_core::exit::Exit;
use k3_core::host::memory;
use k3_engine::memory::plan::in_units;
use k3_engine::model::Contract;
use k3_engine::stream::ModelFiles;
use k3_text::K3_VOCABULARY;

/// What was typed.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    of_layers: PlanLayersArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Positions that the sequence may reach
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    positions: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// [`CommandError`]: a model that cannot be read (3), a run that would not fit (5).
pub fn run(args: &PlanArgs) -> Result<Exit, CommandError> {
    if let Some(range) = &args.of_layers.range {
        let model = args.model.model.as_deref();
        return plan_layers::run(&args.of_layers, range, model, &args.output);
    }
    output::check_writable(&args.output)?;
    let folder = args.model.folder()?;
    let layers = args.model.layers.map(|layers| layers as usize);
    let trunk = args.model.trunk.as_deref();
    let files = ModelFiles::open(&Contract::default(), &folder, layers, trunk);
    let files = files.map_err(|error| model_error(&error))?;
    let positions = args.positions as usize;
    // Its text is written with a tokenizer, which is not open yet.
    let tokenizer = (files.config.vocab_size == K3_VOCABULARY).then_some(0);
    let plan = generate::plan(&args.model, &files, positions, 1, tokenizer)?;
    let available = memory::available();
    let say = |bytes: Option<u64>| bytes.map_or("not known".to_owned(), in_units);
    let text = format!(
        "memory plan for {positions} positions\n{}free on this machine {}, in its control group \
         {}\n",
        plan.text(),
        say(available.machine_bytes),
        available.group_bytes.map_or("no limit".to_owned(), in_units),
    );
    let json = serde_json::json!({
        "schema": "k3-verify/plan/1",
        "positions": positions,
        "latent_bytes_per_position": files.demand(positions, 1).latent_bytes_per_position(),
        "plan": plan,
        "provenance": {
            "machine_bytes": available.machine_bytes,
            "group_bytes": available.group_bytes,
            "group_limit_bytes": available.group_limit_bytes,
        },
    });
    output::deliver(&args.output, &json, &text)?;
    Ok(Exit::Conforms)
}
