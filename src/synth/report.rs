//! The report of `synth`.

use serde::Serialize;

use crate::probe::Probe;
use k3_core::host::provenance::Provenance;
use k3_render::{Document, Table};

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/synth/1";

/// The checkpoint written.
#[derive(Debug, Clone, Serialize)]
pub struct SynthReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// Name of the shape.
    pub shape: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// What the weights are drawn from; none where there are only holes.
    pub seed: Option<u64>,
    /// Whether the data is holes.
    pub sparse: bool,
    /// Whether there is an index.
    pub index: bool,
    /// Shards in all.
    pub shards: usize,
    /// Of these, shards that were there and right.
    pub shards_kept: usize,
    /// Tensors in all.
    pub tensors: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Sum of the sizes of all shards.
    pub shard_bytes: u64,
    /// What the engine measured, where it was asked.
    pub probe: Option<Probe>,
    /// Why it was not, otherwise.
    pub probe_left_out: Option<String>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

impl SynthReport {
    /// The report for people.
    #[must_use]
    pub fn document(&self) -> Document {
        let of = match (self.sparse, self.seed) {
            (false, Some(seed)) => format!("seed {seed}"),
            _ => "holes".to_owned(),
        };
        let mut document = Document::new("k3-verify synth");
        document.line(format!(
            "shape {}: {} layers, {} experts, vocabulary {}, {of}",
            self.shape, self.layers, self.experts, self.vocab
        ));
        document.line(format!(
            "{} tensors, {} bytes, in {} shards of {} bytes{}",
            self.tensors,
            self.tensor_bytes,
            self.shards,
            self.shard_bytes,
            if self.index { "" } else { ", no index" }
        ));
        if self.shards_kept > 0 {
            document.line(format!(
                "{} shards were there, have the right header, and the right bytes wherever looked \
                 at; kept",
                self.shards_kept
            ));
        }
        match (&self.probe, &self.probe_left_out) {
            (Some(probe), _) => statistics(&mut document, probe),
            (None, Some(reason)) => document.line(format!("statistics: not measured ({reason})")),
            (None, None) => {}
        }
        document
    }
}

fn statistics(document: &mut Document, probe: &Probe) {
    document.gap();
    document.line(format!("measured by the engine on {} tokens:", probe.tokens));
    let columns = ["layer", "kind", "|h| rms", "|h| max", "router entropy, bits", "experts used"];
    let rows = probe.layers.iter().map(|layer| {
        let router = layer.router.as_ref();
        vec![
            layer.layer.to_string(),
            layer.attention.to_owned(),
            format!("{:.3}", layer.rms),
            format!("{:.3}", layer.max),
            router.map_or("dense".to_owned(), |router| {
                format!("{:.2} of {:.2}", router.entropy_bits, router.most_bits)
            }),
            router.map_or(String::new(), |router| format!("{} of {}", router.used, router.experts)),
        ]
    });
    document.table(Table::new(columns).with(rows));
    let (rms, max) = (probe.logits_rms, probe.logits_max);
    document.line(format!("logits: rms {rms:.3}, max {max:.3}"));
}
