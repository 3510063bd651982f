//! The report of `inspect`: schema and text.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::audit::census::Census;
use crate::audit::end_ids::EndId;
use crate::audit::statistics::TensorStatistics;
use k3_checkpoint::{LayerKind, MlpKind, ModelShape};
use k3_core::config::RawConfig;
use k3_core::host::provenance::Provenance;

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/inspect/1";

/// What the config says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sizes {
    /// Layers in all.
    pub layers: usize,
    /// Layers with KDA.
    pub kda_layers: usize,
    /// Layers with MLA.
    pub mla_layers: usize,
    /// Layers with a dense MLP (counted above as well).
    pub dense_layers: usize,
    /// Layers with routed experts.
    pub moe_layers: usize,
    /// Layers that bank the running sum.
    pub bank_layers: Vec<usize>,
    /// Routed experts of a layer.
    pub routed_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Shared experts of a layer.
    pub shared_experts: usize,
    /// Bytes of one routed expert.
    pub expert_bytes: u64,
    /// Weights of one routed expert.
    pub expert_parameters: u64,
    /// E.
    pub hidden: usize,
    /// L.
    pub latent: usize,
    /// I.
    pub expert_inner: usize,
    /// V.
    pub vocabulary: usize,
}

impl Sizes {
    /// From config and derived shape.
    #[must_use]
    pub fn of(config: &RawConfig, shape: &ModelShape) -> Self {
        let of_kind = |kind| shape.layers_of(kind).count();
        let banks = shape.layers.iter().enumerate();
        let dense = shape.layers.iter().filter(|l| l.mlp == MlpKind::Dense);
        Self {
            layers: shape.layers.len(),
            kda_layers: of_kind(LayerKind::Kda),
            mla_layers: of_kind(LayerKind::Mla),
            dense_layers: dense.count(),
            moe_layers: shape.moe_layers().count(),
            bank_layers: banks.filter(|(_, l)| l.pushes_bank).map(|(n, _)| n).collect(),
            routed_experts: shape.moe.experts,
            top_k: shape.moe.top_k,
            shared_experts: config.num_shared_experts,
            expert_bytes: shape.moe.expert_bytes(),
            expert_parameters: 3 * shape.moe.latent as u64 * shape.moe.inner as u64,
            hidden: shape.hidden,
            latent: shape.moe.latent,
            expert_inner: shape.moe.inner,
            vocabulary: shape.vocab,
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct InspectReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// What the config says.
    pub sizes: Sizes,
    /// Shards that are there.
    pub shards: usize,
    /// Shards that are not.
    pub missing_shards: Vec<String>,
    /// Whether there is an index.
    pub has_index: bool,
    /// What the reader noticed.
    pub notes: Vec<String>,
    /// Bytes the index of tensors takes in memory.
    pub index_held_bytes: usize,
    /// The count.
    pub census: Census,
    /// Ids that end a turn.
    pub end_ids: Vec<EndId>,
    /// Patterns asked for.
    pub tensor_globs: Vec<String>,
    /// What fits them.
    pub statistics: Vec<TensorStatistics>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

impl InspectReport {
    /// The report in words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        self.write_sizes(text)?;
        self.write_census(text)?;
        self.write_layers(text)?;
        self.write_end_ids(text)?;
        self.write_problems(text)?;
        self.write_statistics(text)
    }

    fn write_sizes(&self, text: &mut String) -> fmt::Result {
        let s = &self.sizes;
        writeln!(
            text,
            "{} KDA + {} MLA = {} layers; dense MLP in {} of them (counted among these), routed \
             experts in {}",
            s.kda_layers, s.mla_layers, s.layers, s.dense_layers, s.moe_layers
        )?;
        writeln!(
            text,
            "{} routed experts, {} of a token, {} shared; {} MoE layers x {}",
            s.routed_experts, s.top_k, s.shared_experts, s.moe_layers, s.routed_experts
        )?;
        writeln!(
            text,
            "one routed expert: {} bytes, {:.2} million parameters (latent {}, inner {})",
            s.expert_bytes,
            s.expert_parameters as f64 / 1e6,
            s.latent,
            s.expert_inner
        )?;
        writeln!(
            text,
            "{} tensors, {} bytes, {} parameters in {} shards{}; their index takes {:.1} MB of \
             memory",
            self.census.tensors,
            self.census.bytes,
            self.census.parameters,
            self.shards,
            if self.has_index { "" } else { ", no index file" },
            self.index_held_bytes as f64 / 1e6
        )?;
        for note in &self.notes {
            writeln!(text, "note: {note}")?;
        }
        Ok(())
    }

    fn write_census(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\nclass                 tensors   expected              bytes         parameters  \
             dtypes"
        )?;
        for row in &self.census.classes {
            let dtypes: Vec<String> = row
                .bytes_by_dtype
                .iter()
                .map(|(dtype, bytes)| format!("{dtype} {bytes}"))
                .collect();
            writeln!(
                text,
                "{:<18}  {:>9}  {:>9}  {:>17}  {:>17}  {}",
                row.class,
                row.tensors,
                row.expected,
                row.bytes,
                row.parameters,
                dtypes.join(", ")
            )?;
        }
        if self.census.absent > 0 || !self.missing_shards.is_empty() {
            writeln!(
                text,
                "absent: {} tensors; {} missing shards{}{}",
                self.census.absent,
                self.missing_shards.len(),
                if self.missing_shards.is_empty() { "" } else { ": " },
                shortened(&self.missing_shards)
            )?;
            for name in &self.census.absent_outside_layers {
                writeln!(text, "absent: {name}")?;
            }
        }
        Ok(())
    }

    fn write_layers(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\nlayer map (K KDA, M MLA; lower case: dense MLP; | before a layer that banks; . \
             absent, ~ in part)"
        )?;
        for row in &self.census.layers {
            if row.banks {
                write!(text, "|")?;
            }
            let mark = match (row.tensors, row.attention, row.mlp) {
                (0, _, _) => '.',
                (there, _, _) if there < row.expected => '~',
                (_, "KDA", "dense") => 'k',
                (_, "KDA", _) => 'K',
                (_, _, "dense") => 'm',
                _ => 'M',
            };
            write!(text, "{mark}")?;
        }
        writeln!(text)?;
        let present = self.census.layers.iter().filter(|row| row.tensors == row.expected);
        let partial: Vec<String> = self
            .census
            .layers
            .iter()
            .filter(|row| row.tensors < row.expected)
            .map(|row| format!("{} ({} of {} tensors)", row.layer, row.tensors, row.expected))
            .collect();
        writeln!(text, "layers complete: {} of {}", present.count(), self.sizes.layers)?;
        if !partial.is_empty() {
            writeln!(text, "layers not complete: {}", shortened(&partial))?;
        }
        Ok(())
    }

    fn write_end_ids(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "\nids that end a turn")?;
        if self.end_ids.is_empty() {
            writeln!(text, "  no file names one")?;
        }
        for end in &self.end_ids {
            let token = end.token.as_ref().map_or(String::new(), |t| format!(" {t}"));
            writeln!(text, "  {:?}{token}: {}, {}", end.ids, end.file, end.field)?;
        }
        Ok(())
    }

    fn write_problems(&self, text: &mut String) -> fmt::Result {
        let problems = &self.census.problems;
        if problems.is_empty() {
            return Ok(());
        }
        writeln!(text, "\n{} problems", problems.count)?;
        for finding in &problems.listed {
            let tensor = finding.tensor.as_ref().map_or(String::new(), |t| format!("{t}: "));
            writeln!(text, "  {}: {tensor}{}", finding.file, finding.what)?;
        }
        Ok(())
    }

    fn write_statistics(&self, text: &mut String) -> fmt::Result {
        if self.tensor_globs.is_empty() {
            return Ok(());
        }
        writeln!(text, "\ntensors that fit {}", self.tensor_globs.join(" or "))?;
        if self.statistics.is_empty() {
            return writeln!(text, "  none: NOT RUN");
        }
        for s in &self.statistics {
            let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.6e}"));
            writeln!(
                text,
                "  {}\n    {} {:?}, {} bytes in {} at {}; {}",
                s.name, s.dtype, s.shape, s.bytes, s.shard, s.offset, s.values
            )?;
            write!(
                text,
                "    min {}  max {}  mean {}  rms {}  NaN {}  inf {}  zeros {:.4} %",
                value(s.min),
                value(s.max),
                value(s.mean),
                value(s.rms),
                s.nan,
                s.infinite,
                100.0 * s.zero_share
            )?;
            if let Some(distinct) = s.distinct_bytes {
                write!(text, "  distinct bytes {distinct}")?;
            }
            let all_zero = s.zero_share == 1.0 && s.distinct_bytes.is_none();
            writeln!(text, "{}", if all_zero { "  ALL ZERO" } else { "" })?;
        }
        Ok(())
    }
}

/// A list that fits a line.
fn shortened(items: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = items.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if items.len() > SHOWN {
        let _ = write!(text, ", … ({} more)", items.len() - SHOWN);
    }
    text
}
