//! The report of `inspect`: schema and text.

use serde::Serialize;

use crate::audit::census::Census;
use crate::audit::end_ids::EndId;
use crate::audit::statistics::TensorStatistics;
use k3_checkpoint::{LayerKind, MlpKind, ModelShape};
use k3_core::config::RawConfig;
use k3_core::host::provenance::Provenance;
use k3_core::listing::listed;
use k3_render::{Document, Table, left, right};

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
    /// The report for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new("k3-verify inspect");
        self.sizes(&mut document);
        self.classes(&mut document);
        self.layers(&mut document);
        self.ends(&mut document);
        let problems = &self.census.problems;
        if !problems.is_empty() {
            document.heading(format!("{} problems", problems.count));
            problems.lines().into_iter().for_each(|line| document.line(line));
        }
        self.tensors(&mut document);
        document
    }

    fn sizes(&self, document: &mut Document) {
        let s = &self.sizes;
        document.line(format!(
            "{} KDA + {} MLA = {} layers; dense MLP in {} of them (counted among these), routed \
             experts in {}",
            s.kda_layers, s.mla_layers, s.layers, s.dense_layers, s.moe_layers
        ));
        document.line(format!(
            "{} routed experts, {} of a token, {} shared; {} MoE layers x {}",
            s.routed_experts, s.top_k, s.shared_experts, s.moe_layers, s.routed_experts
        ));
        document.line(format!(
            "one routed expert: {} bytes, {:.2} million parameters (latent {}, inner {})",
            s.expert_bytes,
            s.expert_parameters as f64 / 1e6,
            s.latent,
            s.expert_inner
        ));
        document.line(format!(
            "{} tensors, {} bytes, {} parameters in {} shards{}; their index takes {:.1} MB of \
             memory",
            self.census.tensors,
            self.census.bytes,
            self.census.parameters,
            self.shards,
            if self.has_index { "" } else { ", no index file" },
            self.index_held_bytes as f64 / 1e6
        ));
        for note in &self.notes {
            document.line(format!("note: {note}"));
        }
    }

    fn classes(&self, document: &mut Document) {
        let columns = [left("class", 0), right("tensors", 0), right("expected", 0)];
        let sizes = [right("bytes", 0), right("parameters", 0), left("dtypes", 0)];
        let mut table = Table::new(columns.into_iter().chain(sizes));
        for row in &self.census.classes {
            let dtypes = row.bytes_by_dtype.iter();
            let dtypes: Vec<_> = dtypes.map(|(dtype, bytes)| format!("{dtype} {bytes}")).collect();
            table.row([
                row.class.to_owned(),
                row.tensors.to_string(),
                row.expected.to_string(),
                row.bytes.to_string(),
                row.parameters.to_string(),
                dtypes.join(", "),
            ]);
        }
        document.table(table);
        if self.census.absent > 0 || !self.missing_shards.is_empty() {
            document.line(format!(
                "absent: {} tensors; {} missing shards{}{}",
                self.census.absent,
                self.missing_shards.len(),
                if self.missing_shards.is_empty() { "" } else { ": " },
                listed(&self.missing_shards, self.missing_shards.len())
            ));
            for name in &self.census.absent_outside_layers {
                document.line(format!("absent: {name}"));
            }
        }
    }

    fn layers(&self, document: &mut Document) {
        document.gap();
        document.line(
            "layer map (K KDA, M MLA; lower case: dense MLP; | before a layer that banks; . \
             absent, ~ in part)",
        );
        let mut map = String::new();
        for row in &self.census.layers {
            if row.banks {
                map.push('|');
            }
            map.push(match (row.tensors, row.attention, row.mlp) {
                (0, _, _) => '.',
                (there, _, _) if there < row.expected => '~',
                (_, "KDA", "dense") => 'k',
                (_, "KDA", _) => 'K',
                (_, _, "dense") => 'm',
                _ => 'M',
            });
        }
        document.line(map);
        let present = self.census.layers.iter().filter(|row| row.tensors == row.expected);
        let (complete, all) = (present.count(), self.sizes.layers);
        document.line(format!("layers complete: {complete} of {all}"));
        let partial = self.census.layers.iter().filter(|row| row.tensors < row.expected);
        let partial: Vec<String> = partial
            .map(|row| format!("{} ({} of {} tensors)", row.layer, row.tensors, row.expected))
            .collect();
        if !partial.is_empty() {
            document.line(format!("layers not complete: {}", listed(&partial, partial.len())));
        }
    }

    fn ends(&self, document: &mut Document) {
        document.heading("ids that end a turn");
        if self.end_ids.is_empty() {
            document.line("no file names one");
        }
        for end in &self.end_ids {
            let token = end.token.as_ref().map_or(String::new(), |t| format!(" {t}"));
            document.line(format!("{:?}{token}: {}, {}", end.ids, end.file, end.field));
        }
    }

    fn tensors(&self, document: &mut Document) {
        if self.tensor_globs.is_empty() {
            return;
        }
        document.heading(format!("tensors that match {}", self.tensor_globs.join(" or ")));
        if self.statistics.is_empty() {
            document.line("none: NOT RUN");
        }
        for s in &self.statistics {
            let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.6e}"));
            document.line(s.name.as_str());
            document.line(format!(
                "    {} {:?}, {} bytes in {} at {}; {}",
                s.dtype, s.shape, s.bytes, s.shard, s.offset, s.values
            ));
            let distinct = s
                .distinct_bytes
                .map_or(String::new(), |distinct| format!("  distinct bytes {distinct}"));
            let all_zero = s.zero_share == 1.0 && s.distinct_bytes.is_none();
            document.line(format!(
                "    min {}  max {}  mean {}  rms {}  NaN {}  inf {}  zeros {:.4} %{distinct}{}",
                value(s.min),
                value(s.max),
                value(s.mean),
                value(s.rms),
                s.nan,
                s.infinite,
                100.0 * s.zero_share,
                if all_zero { "  ALL ZERO" } else { "" }
            ));
        }
    }
}
