//! The arguments of `simcache` and the plan they become.

use std::path::{Path, PathBuf};

use super::super::output::{CommandError, OutputArgs, usage};
use super::super::sizes::parse_size;
use super::super::threads::ThreadsArgs;
use crate::cli::choice::choice;
use clap::Args;
use k3_cache::policy::PolicyName;
use k3_cache::presets::PRESETS;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_cache::trace::Trace;
use k3_cache::trace::foreign::Stated;
use k3_gates::layers::range::LayerRange;
use k3_simcache::forecast::{
    ASSUMED_DISK_RATE, K3_FIXED_BYTES, K3_TRUNK_BYTES, Machine, MemoryLimit,
};
use k3_simcache::measured::MeasuredLimit;
use k3_simcache::order::Order;
use k3_simcache::prefetch::PrefetchPlan;
use k3_simcache::study::StudyPlan;

/// Maximum slots: more than any model has experts.
const MAX_SLOTS: u64 = 1 << 24;

/// Study the expert cache offline: hit rates at every capacity, bytes and seconds per token
#[derive(Debug, Clone, Args)]
pub struct SimcacheArgs {
    /// Traces (format v1, headerless int32 pairs, JSON lines, CSV, TSV, .npy [positions, layers,
    /// top-k]; any of them gzipped), each studied by itself
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Order of requests: as recorded, as incremental decoding makes them, or both where they
    /// differ
    #[arg(long, value_parser = choice::<Order>(), default_value = "auto")]
    pub order: Order,
    /// What is looked up together [default: batch, where batches can be recognised]
    #[arg(long, value_parser = choice::<Requests>())]
    pub requests: Option<Requests>,
    /// Whether misses are reserved before (early) or after (late) the batch's hits are refreshed
    #[arg(long, value_parser = choice::<Reserve>(), default_value = "late")]
    pub reserve: Reserve,
    /// Replay this policy (repeatable) [default: all]
    #[arg(long = "policy", value_name = "NAME", value_parser = choice::<PolicyName>())]
    pub policies: Vec<PolicyName>,
    /// Study prefetching of at most N experts before each layer, predicted by previous-token,
    /// most-frequent or, as the bound, perfect (repeatable)
    #[arg(long, value_name = "PREDICTOR:N")]
    pub prefetch: Vec<PrefetchPlan>,
    /// Capacities in slots, comma separated
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=MAX_SLOTS))]
    pub slots: Vec<u64>,
    /// Capacities in GB (10^9 bytes), comma separated
    #[arg(long, value_name = "X,X", value_delimiter = ',', value_parser = positive)]
    pub cache_gb: Vec<f64>,
    /// Memory limits to forecast, such as 8GB,64GiB [default for a large model: the published ones]
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',', value_parser = size)]
    pub memory: Vec<u64>,
    /// Forecast a preset (repeatable)
    #[arg(long, value_name = "NAME", value_parser = preset_names())]
    pub preset: Vec<String>,
    /// Disk rate in GB/s (10^9 bytes) [default: 3, assumed]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub disk_gbs: Option<f64>,
    /// Compute time per token in seconds
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = not_negative)]
    pub compute_seconds: f64,
    /// Trunk bytes read per token if none of it is in memory [default: the trace's, or K3's
    /// 108.81GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub trunk: Option<u64>,
    /// Memory apart from trunk and experts [default for K3: 6.65GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub fixed: Option<u64>,
    /// Compare the forecast with measurements under several memory limits: a tab-separated table,
    /// as `bench` writes it
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Largest difference that counts as agreement, in points of hit rate
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = not_negative,
        requires = "measured")]
    pub tolerance: f64,
    /// Keep only these layers (0..92, both ends included; 7; 0,3,91..92)
    #[arg(long, value_name = "RANGE")]
    pub layers: Option<LayerRange>,
    /// Keep only the first N positions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub positions: Option<u32>,
    /// Layers of the model of a headerless trace [default: 93]
    #[arg(long, value_name = "N")]
    pub model_layers: Option<u32>,
    /// Experts per layer of a headerless trace [default: 896]
    #[arg(long, value_name = "N")]
    pub experts: Option<u32>,
    /// Experts per token of a headerless trace [default: 16]
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,
    /// Bytes of an expert of a headerless trace [default: 17547264]
    #[arg(long, value_name = "N")]
    pub expert_bytes: Option<u64>,
    /// Columns of a CSV or TSV trace that have other names (token=NAME,layer=NAME,expert=NAME)
    #[arg(long, value_name = "ROLE=NAME,...", value_delimiter = ',', value_parser = column)]
    pub columns: Vec<(String, String)>,
    /// Write the requests, in the order studied, as CSV for libCacheSim
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl SimcacheArgs {
    /// The shape that headerless traces must have.
    pub fn shape(&self) -> Result<ModelShape, CommandError> {
        let k3 = ModelShape::K3;
        let shape = ModelShape {
            layer_count: self.model_layers.unwrap_or(k3.layer_count),
            first_moe_layer: if self.model_layers == Some(1) { 0 } else { k3.first_moe_layer },
            experts_per_layer: self.experts.unwrap_or(k3.experts_per_layer),
            top_k: self.top_k.unwrap_or(k3.top_k),
            expert_bytes: self.expert_bytes.unwrap_or(k3.expert_bytes),
        };
        let option = |field| match field {
            "layer_count" | "first_moe_layer" => "--model-layers",
            "experts_per_layer" => "--experts",
            "top_k" => "--top-k",
            _ => "--expert-bytes",
        };
        match shape.first_bad_field() {
            None => Ok(shape),
            Some((field, value, allowed)) => {
                Err(usage(format!("{} is {value}, allowed is {allowed}", option(field))))
            }
        }
    }

    /// What the options say of the model of a trace that does not name it.
    pub fn stated(&self) -> Stated {
        Stated {
            layers: self.model_layers,
            experts: self.experts,
            top_k: self.top_k,
            expert_bytes: self.expert_bytes,
            columns: self.columns.clone(),
        }
    }

    /// Options that describe a headerless trace must not contradict a header.
    pub fn check_against(&self, trace: &Trace, path: &Path) -> Result<(), CommandError> {
        let Some(header) = &trace.header else {
            return Ok(());
        };
        let given = [
            (
                "--model-layers",
                self.model_layers.map(u64::from),
                u64::from(header.shape.layer_count),
            ),
            ("--experts", self.experts.map(u64::from), u64::from(header.shape.experts_per_layer)),
            ("--top-k", self.top_k.map(u64::from), u64::from(header.shape.top_k)),
            ("--expert-bytes", self.expert_bytes, header.shape.expert_bytes),
        ];
        for (option, given, stated) in given {
            if let Some(given) = given.filter(|&given| given != stated) {
                let path = path.display();
                return Err(usage(format!("{option} {given}, but {path} states {stated}")));
            }
        }
        Ok(())
    }

    /// The checked plan for traces like `trace`.
    pub fn plan(
        &self,
        trace: &Trace,
        measured: Option<Vec<MeasuredLimit>>,
    ) -> Result<StudyPlan, CommandError> {
        let shape = &trace.shape;
        let by_gb = self.cache_gb.iter().map(|gb| (gb * 1e9 / shape.expert_bytes as f64) as usize);
        let slot_counts: Vec<usize> =
            self.slots.iter().map(|&slots| slots as usize).chain(by_gb).collect();
        if slot_counts.iter().any(|&slots| slots == 0 || slots as u64 > MAX_SLOTS) {
            return Err(usage("--cache-gb gives a cache of no slots, or of too many".to_string()));
        }
        let keep_layers = match &self.layers {
            Some(range) => {
                let layers = range.resolve(shape.layer_count as usize)?;
                Some((layers.into_iter().map(|layer| layer as u16).collect(), range.to_string()))
            }
            None => None,
        };
        let mut policies: Vec<PolicyName> = Vec::new();
        for &policy in &self.policies {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        Ok(StudyPlan {
            order: self.order,
            requests: self.requests,
            reserve: self.reserve,
            policies,
            prefetch: self.prefetch.clone(),
            slot_counts,
            limits: self.limits(),
            machine: self.machine(trace),
            measured,
            tolerance_points: self.tolerance,
            keep_layers,
            keep_positions: self.positions,
        })
    }

    fn limits(&self) -> Option<Vec<MemoryLimit>> {
        let mut memory = self.memory.clone();
        memory.sort_unstable();
        memory.dedup();
        let mut limits: Vec<MemoryLimit> =
            memory.into_iter().map(|bytes| MemoryLimit::Memory { bytes }).collect();
        let chosen = PRESETS.iter().filter(|preset| self.preset.iter().any(|p| p == preset.name));
        limits.extend(chosen.map(|preset| MemoryLimit::Preset {
            name: preset.name,
            trunk_bytes: (preset.trunk_gb * 1e9) as u64,
            expert_bytes: (preset.expert_gb * 1e9) as u64,
        }));
        (!limits.is_empty()).then_some(limits)
    }

    /// K3's trunk and fixed memory are defaults only for K3's shape.
    fn machine(&self, trace: &Trace) -> Machine {
        let k3 = |bytes| {
            if trace.shape == ModelShape::K3 { bytes } else { 0 }
        };
        let stated = trace.header.as_ref().map_or(0, |header| header.trunk_bytes);
        let trunk = if stated > 0 { stated } else { k3(K3_TRUNK_BYTES) };
        Machine {
            disk_bytes_per_second: self.disk_gbs.map_or(ASSUMED_DISK_RATE, |rate| rate * 1e9),
            disk_rate_given: self.disk_gbs.is_some(),
            compute_seconds_per_token: self.compute_seconds,
            trunk_bytes: self.trunk.unwrap_or(trunk),
            fixed_bytes: self.fixed.unwrap_or(k3(K3_FIXED_BYTES)),
        }
    }
}

fn preset_names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

fn column(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((role @ ("token" | "layer" | "expert"), name)) if !name.is_empty() => {
            Ok((role.to_string(), name.to_string()))
        }
        _ => Err("expected token=NAME, layer=NAME or expert=NAME".to_string()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 && value <= 1e9 => Ok(value),
        _ => Err("expected a number above 0".to_string()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && (0.0..=1e9).contains(&value) => Ok(value),
        _ => Err("expected a number of at least 0".to_string()),
    }
}

/// A size with its unit, such as 8GB: a bare number might mean GB or bytes.
fn size(text: &str) -> Result<u64, String> {
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err("expected a size with its unit, such as 8GB, 64GiB or 500MB".to_string());
    }
    parse_size(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!(size("8GB"), Ok(8_000_000_000));
        assert_eq!(size("1.5gib"), Ok(1_610_612_736));
        for bad in ["8", "GB", "8XB", "-1GB", "1e3GB", ""] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
