//! The report of `layers` and `merge`.
//!
//! Everything here can be read back from JSON, so that the reports of parts can be joined.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layers::sources::Sources;
use crate::outcome::Verdict;
use k3_core::host::provenance::Provenance;

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/layers/1";

/// An element with its place; values that are not finite are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Element {
    /// Index per dimension (token, head, channel, …).
    pub index: Vec<usize>,
    /// |got − expected|.
    pub difference: Option<f64>,
    /// The subject's value.
    pub got: Option<f64>,
    /// The reference's.
    pub expected: Option<f64>,
}

/// The comparison end to end, from the layer's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chained {
    /// Whether every element is within eight floors.
    pub within: bool,
    /// Largest difference over the tolerance; absent where the floor is 0 and the difference is
    /// not.
    pub ratio: Option<f64>,
    /// Largest difference.
    pub max_abs: Option<f64>,
    /// Largest difference the rounding of stored activations makes.
    pub floor: f64,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageRow {
    /// Name without the layer.
    pub stage: String,
    /// By the local tolerances.
    pub verdict: Verdict,
    /// What forbids a pass, or why it did not run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// Values compared.
    pub count: usize,
    /// Values beyond their bound.
    pub mismatches: usize,
    /// Largest difference over its bound; absent for ids and exact values, and where infinite.
    pub ratio: Option<f64>,
    /// Tolerance that would have been required.
    pub required: Option<f64>,
    /// The largest difference.
    pub worst: Option<Element>,
    /// The first value beyond its bound.
    pub first: Option<Element>,
    /// Rows in which two experts inside the band changed places.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub ties: usize,
    /// End to end, if there is an f64 chain to compare with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chained: Option<Chained>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// One layer, or the embedding, or what closes the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerRow {
    /// `embed`, `layer` or `closing`.
    pub place: String,
    /// Zero-based.
    pub layer: Option<usize>,
    /// `KDA` or `MLA`.
    pub attention: Option<String>,
    /// `dense` or `MoE`.
    pub mlp: Option<String>,
    /// Of all its stages.
    pub verdict: Verdict,
    /// Why nothing was compared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// Largest |h| of the subject: the running sum after the layer.
    pub h_max: Option<f64>,
    /// Largest |h| of what the layer was fed.
    pub input_max: Option<f64>,
    /// Its stages in execution order.
    pub stages: Vec<StageRow>,
    /// The same computed another way; none of a dump.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeated: Option<Repeated>,
}

/// How many bits another computation of the same has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Repeated {
    /// Values computed again.
    pub values: usize,
    /// Values with other bits, those that follow from others included.
    pub differing: usize,
}

/// A stage at its layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spot {
    /// Full name, `layers.3.kda.o`.
    pub at: String,
    /// Local ratio.
    pub ratio: Option<f64>,
    /// The element.
    pub element: Option<Element>,
}

impl LayerRow {
    /// A row of which nothing could be compared.
    #[must_use]
    pub fn not_run(place: &str, layer: Option<usize>, problem: String) -> Self {
        Self {
            place: place.to_owned(),
            layer,
            attention: None,
            mlp: None,
            verdict: Verdict::NotRun,
            problem: Some(problem),
            h_max: None,
            input_max: None,
            stages: Vec::new(),
            repeated: None,
        }
    }

    pub(super) fn name(&self, stage: &StageRow) -> String {
        match self.layer {
            Some(layer) => format!("layers.{layer}.{}", stage.stage),
            None if self.place == "kernels" => format!("kernels/{}", stage.stage),
            None => stage.stage.clone(),
        }
    }

    /// The stage nearest to its tolerance, or farthest beyond it.
    #[must_use]
    pub fn worst(&self) -> Option<&StageRow> {
        let size = |stage: &StageRow| match (stage.verdict, stage.ratio) {
            (Verdict::Fail, None) => f64::INFINITY,
            (_, ratio) => ratio.unwrap_or(0.0),
        };
        let compared = self.stages.iter().filter(|s| s.verdict != Verdict::NotRun);
        compared.reduce(|worst, stage| if size(stage) > size(worst) { stage } else { worst })
    }

    /// The first stage beyond its tolerance.
    #[must_use]
    pub fn first_divergence(&self) -> Option<&StageRow> {
        self.stages.iter().find(|stage| stage.verdict == Verdict::Fail)
    }

    /// Largest chained ratio, and whether all are within.
    #[must_use]
    pub fn chained(&self) -> Option<(f64, bool, &str)> {
        let chained = self.stages.iter().filter_map(|s| Some((s, s.chained.as_ref()?)));
        let size = |c: &Chained| c.ratio.unwrap_or(f64::INFINITY);
        let worst = chained.reduce(|a, b| if size(b.1) > size(a.1) { b } else { a })?;
        let mut all = self.stages.iter().filter_map(|s| s.chained.as_ref());
        Some((size(worst.1), all.all(|c| c.within), &worst.0.stage))
    }

    pub(super) fn ties(&self) -> usize {
        self.stages.iter().map(|stage| stage.ties).sum()
    }
}

/// The request. Parts of one run have equal requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Version of this program.
    pub program: String,
    /// RANGE as typed; both ends are included.
    pub range: String,
    /// What that means, zero-based.
    pub layers: Vec<usize>,
    /// Layers of the model.
    pub model_layers: usize,
    /// Whether embedding and closing stages belong to it.
    pub whole_model: bool,
    /// `synthetic`, `chain` or `dump`.
    pub input: String,
    /// Seed of synthetic input.
    pub seed: Option<u64>,
    /// Ids of chained input.
    pub ids: Vec<u32>,
    /// SHA-256 of the dump that is the input, or is judged.
    pub dump: Option<String>,
    /// Tokens of each call: a prefill, then single ones.
    pub calls: Vec<usize>,
    /// ε of the two low-rank norms in MLA.
    pub mla_norm_eps: f64,
    /// Who is judged.
    pub subject: String,
    /// What it computes in.
    pub arithmetic: String,
    /// Stages asked for.
    pub stages: Option<String>,
    /// Whether the reference read another copy.
    pub reference_copy: bool,
    /// The recorded run of the ratchet that this one is held to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratchet: Option<String>,
}

/// One part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// From 1.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// Everything that differs from run to run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LayersProvenance {
    /// What every report has.
    #[serde(flatten)]
    pub run: Provenance,
    /// Kernel path in use.
    pub kernel_path: String,
    /// Seconds of each row, by its name.
    pub row_seconds: BTreeMap<String, f64>,
    /// Rows taken over from a journal.
    pub resumed_rows: usize,
    /// How layers were computed again; empty for a dump.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub again: String,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayersReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// The process exit code.
    pub exit_code: u8,
    /// The request.
    pub question: Question,
    /// Which bytes the subject read.
    pub sources: Sources,
    /// Which bytes the reference read, where they were others.
    pub reference_sources: Option<Sources>,
    /// Which part this is; none of an undivided run.
    pub part: Option<Part>,
    /// The layers of this report.
    pub selected: Vec<usize>,
    /// The engine's single operations on the shipped fixtures: a stage per kernel. None of a dump.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernels: Option<LayerRow>,
    /// In the order of the model.
    pub rows: Vec<LayerRow>,
    /// Selected, and not come to: interrupted.
    pub outstanding: Vec<String>,
    /// The stage nearest to its tolerance, or farthest beyond.
    pub worst: Option<Spot>,
    /// Where the first difference arises.
    pub first_divergence: Option<Spot>,
    /// Everything that differs from run to run.
    pub provenance: LayersProvenance,
}

/// Name of a row.
#[must_use]
pub fn row_name(row: &LayerRow) -> String {
    match row.layer {
        Some(layer) => layer.to_string(),
        None => row.place.clone(),
    }
}

impl LayersReport {
    /// Fills in what follows from the rows: worst stage, first divergence, exit code.
    pub fn conclude(&mut self) {
        self.worst = None;
        let mut largest = -1.0;
        for row in &self.rows {
            let Some(stage) = row.worst() else { continue };
            let size = match (stage.verdict, stage.ratio) {
                (Verdict::Fail, None) => f64::INFINITY,
                (_, ratio) => ratio.unwrap_or(0.0),
            };
            if size > largest {
                largest = size;
                self.worst = Some(Spot {
                    at: row.name(stage),
                    ratio: stage.ratio,
                    element: stage.worst.clone(),
                });
            }
        }
        let all = || self.kernels.iter().chain(&self.rows);
        self.first_divergence = all().find_map(|row| {
            row.first_divergence().map(|stage| Spot {
                at: row.name(stage),
                ratio: stage.ratio,
                element: stage.first.clone().or_else(|| stage.worst.clone()),
            })
        });
        let has = |verdict| all().any(|row| row.verdict == verdict);
        let mut selected = self.rows.iter();
        let is_compared = selected.any(|row| row.verdict != Verdict::NotSelected);
        self.exit_code = if has(Verdict::Fail) {
            1
        } else if has(Verdict::NotRun) || !self.outstanding.is_empty() || !is_compared {
            4
        } else {
            0
        };
    }
}
