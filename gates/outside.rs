//! Tests that need more than what ships: data made by others, or a facility of the machine.
//!
//! Outside data is in the folder that `K3_EXTERNAL` names. Without it, and where a facility is
//! missing, a test is ignored, and its line says what it needs. With it, data that is missing
//! fails the test: nothing counts as passed that did not run.

#![allow(clippy::unwrap_used)] // a test that cannot read its input fails
#![allow(clippy::print_stdout, reason = "measured values, and what did not run")]

#[path = "outside/cluster.rs"]
mod cluster;
#[path = "outside/commands.rs"]
mod commands;
#[path = "outside/container.rs"]
mod container;
#[path = "outside/engine.rs"]
mod engine;
#[path = "outside/operations.rs"]
mod operations;
#[path = "outside/reference.rs"]
mod reference;
#[path = "outside/released.rs"]
mod released;
#[path = "outside/routing.rs"]
mod routing;
#[path = "outside/shared_memory.rs"]
mod shared_memory;
#[allow(dead_code, reason = "written for all targets; `integration` uses all of it")]
mod support;
#[path = "outside/text.rs"]
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// What a test needs that does not ship.
#[derive(Clone, Copy)]
enum Needs {
    /// Files below the folder that `K3_EXTERNAL` names.
    Data,
    /// Something of the machine, and how to see whether it is there.
    Facility(&'static str, fn() -> bool),
}

impl Needs {
    /// The reason to ignore a test.
    fn unmet(self) -> Option<String> {
        match self {
            Self::Data if std::env::var_os("K3_EXTERNAL").is_some() => None,
            Self::Data => Some("K3_EXTERNAL, which is not set".to_owned()),
            Self::Facility(_, is_there) if is_there() => None,
            Self::Facility(name, _) => Some(format!("{name}, which is not there")),
        }
    }
}

/// A file or folder of the outside data.
#[track_caller]
fn external(part: &str) -> PathBuf {
    let root = std::env::var_os("K3_EXTERNAL").expect("K3_EXTERNAL names a folder");
    let path = PathBuf::from(root).join(part);
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// Name and function of each test of these modules.
macro_rules! tests {
    ($($module:ident: $($test:ident)+;)+) => {
        vec![$($(
            (concat!(stringify!($module), "::", stringify!($test)), $module::$test as fn())
        ),+),+]
    };
}

/// Name and function.
type Test = (&'static str, fn());

/// All tests by what they need.
fn groups() -> Vec<(Needs, Vec<Test>)> {
    let data = tests! {
        commands: the_golden_pair_gives_its_published_numbers outside_ids_come_out
            all_layers_of_an_outside_model_pass released_sizes_pin_more_largest_first
            the_replica_is_the_release_file_by_file;
        engine: logits_are_near_the_f64_answer greedy_ids_are_the_published_ones
            layers_and_routing_match_the_released_code;
        operations: op_rmsnorm op_situ_glu op_shortconv op_kda_decay op_kda_recur1_and_recur8
            op_kda_layer1_and_layer8 op_router op_attnres op_mla op_moe
            op_layer_kda_and_layer_mla released_mxfp4_bytes_decode_exactly;
        reference: logits_are_those_of_the_released_code
            layer_outputs_and_routing_are_those_of_the_released_code
            the_other_mla_epsilon_gives_the_other_engines_logits
            released_mxfp4_bytes_decode_exactly;
        released: released_config_gives_the_published_shape released_index_binds_name_for_name
            tables_of_names_equal_the_released_tensor_table
            released_mxfp4_bytes_decode_bit_for_bit;
        routing: the_trace_is_eight_sweeps_of_five_to_twelve_positions
            recorded_order_gives_the_published_hits
            decode_order_gives_the_measured_hits_of_the_last_step
            the_first_step_reads_99_70_gb_from_64_slots_on
            decode_order_gives_the_forced_optimum_of_the_single_steps
            layer_cycle_on_the_real_trace
            the_committed_report_and_plots_are_those_of_the_real_trace
            reading_ahead_reads_more_than_it_saves_on_real_routing
            the_forecast_is_exact_at_all_twelve_budgets f09_the_published_trace_and_its_cut
            j05_a_union_prefill_gives_the_rates_of_its_single_positions
            the_published_trace_takes_less_than_half_a_second;
        text: every_vector_both_ways the_published_pattern_names_and_ranks d06_chat_segments;
    };
    let shared_memory = tests! {
        shared_memory: c16_a_file_beyond_2_to_the_53_bytes
            e04_the_same_bits_with_and_without_direct_reads;
    };
    let container = tests! { container: e05_the_limit_of_a_container_is_kept; };
    let hyperqueue = tests! { cluster: hyperqueue_runs_four_parts_and_joins_them; };
    let slurm = tests! { cluster: slurm_runs_the_array_of_parts; };
    vec![
        (Needs::Data, data),
        (Needs::Facility("/dev/shm", shared_memory::is_there), shared_memory),
        (Needs::Facility("a memory control group", container::is_possible), container),
        (Needs::Facility("Python's hyperqueue", cluster::has_hyperqueue), hyperqueue),
        (Needs::Facility("sbatch", cluster::has_slurm), slurm),
    ]
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let (mut trials, mut unmet) = (Vec::new(), BTreeMap::<String, usize>::new());
    for (needs, tests) in groups() {
        let reason = needs.unmet();
        for (name, test) in tests {
            let trial = Trial::test(name, move || {
                test();
                Ok(())
            });
            trials.push(match &reason {
                None => trial,
                Some(reason) => {
                    *unmet.entry(reason.clone()).or_default() += 1;
                    trial.with_ignored_flag(true).with_kind(format!("needs {reason}"))
                }
            });
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list && conclusion.num_ignored > 0 {
        println!("{} tests were ignored. What is missing here:", conclusion.num_ignored);
        for (reason, count) in &unmet {
            println!("  {reason}: {count} tests");
        }
        println!();
    }
    conclusion.exit_code()
}
