//! The report of `synth`: schema and text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::probe::Probe;
use k3_core::host::provenance::Provenance;

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/synth/1";

/// What was made.
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
    /// The report in words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let of = match (self.sparse, self.seed) {
            (false, Some(seed)) => format!("seed {seed}"),
            _ => "holes".to_owned(),
        };
        writeln!(
            text,
            "shape {}: {} layers, {} experts, vocabulary {}, {of}",
            self.shape, self.layers, self.experts, self.vocab
        )?;
        writeln!(
            text,
            "{} tensors, {} bytes, in {} shards of {} bytes{}",
            self.tensors,
            self.tensor_bytes,
            self.shards,
            self.shard_bytes,
            if self.index { "" } else { ", no index" }
        )?;
        if self.shards_kept > 0 {
            writeln!(
                text,
                "{} shards were there, have the right header, and the right bytes wherever looked \
                 at; kept",
                self.shards_kept
            )?;
        }
        match (&self.probe, &self.probe_left_out) {
            (Some(probe), _) => write_probe(probe, text),
            (None, Some(reason)) => writeln!(text, "statistics: not measured ({reason})"),
            (None, None) => Ok(()),
        }
    }
}

fn write_probe(probe: &Probe, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\nmeasured by the engine on {} tokens:", probe.tokens)?;
    writeln!(text, "layer  kind   |h| rms   |h| max   router entropy, bits   experts used")?;
    for layer in &probe.layers {
        write!(
            text,
            "{:5}  {}  {:9.3}  {:9.3}",
            layer.layer, layer.attention, layer.rms, layer.max
        )?;
        match &layer.router {
            Some(router) => writeln!(
                text,
                "   {:6.2} of {:5.2}        {:4} of {}",
                router.entropy_bits, router.most_bits, router.used, router.experts
            )?,
            None => writeln!(text, "   dense")?,
        }
    }
    writeln!(text, "logits: rms {:.3}, max {:.3}", probe.logits_rms, probe.logits_max)
}
