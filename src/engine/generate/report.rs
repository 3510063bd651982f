//! The report of a run: chosen ids, cost, planned and measured memory.

use serde::Serialize;

use super::run::{Step, TeacherForcing};
use crate::memory::MemoryPlan;
use crate::memory::plan::in_units;
use k3_cache::slot_table::Counters;
use k3_core::host::provenance::Provenance;
use k3_render::{Row, Table, left, right};

/// Schema of the report.
pub const SCHEMA: &str = "k3-verify/generate/1";

/// One step with what it cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRow {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// Requests of experts: every distinct one of a chunk and layer counts once.
    pub requests: u64,
    /// Of them, those that were resident.
    pub hits: u64,
    /// Experts thrown out.
    pub evictions: u64,
    /// Bytes of experts read.
    pub expert_bytes: u64,
    /// Bytes of streamed layers used.
    pub trunk_bytes: u64,
    /// Seconds in which the computation waited for the disk.
    pub wait_seconds: f64,
}

impl StepRow {
    /// The step table that is shown during the run, without rows.
    #[must_use]
    pub fn live_table() -> Table {
        let columns = [("step", 6), ("id", 7), ("seconds", 9), ("hit %", 6), ("read", 12)];
        let columns = columns.into_iter().chain([("wait %", 8), ("tok/s", 10)]);
        Table::new(columns.map(|(head, width)| right(head, width)))
    }

    /// Its row of this step.
    #[must_use]
    pub fn live_row(&self, index: usize) -> Row {
        let seconds = self.step.seconds;
        let cells = vec![
            index.to_string(),
            self.step.id.map_or("-".to_owned(), |id| id.to_string()),
            format!("{seconds:.3}"),
            format!("{:.2}", percent(self.hits as f64, self.requests as f64)),
            in_units(self.expert_bytes + self.trunk_bytes),
            format!("{:.1}", percent(self.wait_seconds, seconds)),
            format!("{:.4}", self.tokens_per_second()),
        ];
        Row { cells, below: Vec::new() }
    }

    /// Steps of this length in a second.
    pub(super) fn tokens_per_second(&self) -> f64 {
        if self.step.seconds > 0.0 { 1.0 / self.step.seconds } else { 0.0 }
    }
}

/// In percent; 0 of nothing is 0.
fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Sums over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Totals {
    /// Decisions of the expert cache.
    pub experts: Counters,
    /// Bytes of experts read.
    pub expert_bytes: u64,
    /// Bytes of streamed layers used.
    pub trunk_bytes: u64,
    /// Bytes read for streamed layers, those that were read ahead and not used included.
    pub trunk_read_bytes: u64,
    /// Bytes read once, for pinned layers.
    pub pinned_bytes: u64,
    /// Layers asked for.
    pub layer_uses: u64,
    /// Of them, layers in memory.
    pub layer_pinned_uses: u64,
    /// Of the others, those that had been read when they were asked for.
    pub layer_ready_uses: u64,
    /// Seconds of all steps, or of the check where there are none.
    pub seconds: f64,
    /// Seconds in which the computation waited for the disk, in percent of them.
    pub io_share_percent: f64,
    /// Hit rate of the expert cache in percent.
    pub hit_percent: f64,
}

/// Peak memory against the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Planned.
    pub planned_bytes: u64,
    /// Measured.
    pub peak_resident_bytes: u64,
    /// How far they may be apart.
    pub tolerated_bytes: u64,
    /// Whether they are no further apart.
    pub within: bool,
}

/// How the run was made; nothing here changes a result but layers and ε.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// Layers of the stack that were run.
    pub layers: usize,
    /// Layers there are.
    pub layers_of_model: usize,
    /// ε of MLA's two low-rank norms.
    pub mla_norm_eps: f64,
    /// Policy of the expert cache.
    pub policy: &'static str,
    /// Tokens of a chunk.
    pub prefill_chunk: usize,
    /// Every step from nothing.
    pub full_recompute: bool,
    /// Whether the trunk was packed.
    pub packed_trunk: bool,
    /// Whether embedding and head were streamed.
    pub streamed_vocabulary: bool,
    /// Where the tokenizer came from, in a run that reads or writes text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary_of_text: Option<&'static str>,
    /// Kernel path.
    pub kernel_path: &'static str,
    /// Whether reads went past the page cache.
    pub direct_reads: bool,
}

/// The report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// Schema.
    pub schema: &'static str,
    /// Whether the run came to its end; interrupted, its report is INCOMPLETE.
    pub complete: bool,
    /// Identity of the checkpoint; none where shards are missing.
    pub checkpoint_identity: Option<String>,
    /// Ids of the prompt, those of a loaded state included.
    pub prompt_ids: Vec<u32>,
    /// Ids asked for; a stop id ends a run before.
    pub ids_asked: usize,
    /// Ids chosen.
    pub generated_ids: Vec<u32>,
    /// Their text, where the vocabulary is K3's; bytes that are no characters are U+FFFD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generated_text: Option<String>,
    /// The id that ended the run.
    pub stopped_by: Option<u32>,
    /// What names it as an end: files with their fields, or `--stop-id`.
    pub stopped_by_source: Option<String>,
    /// Logits of a row of `logits_file`.
    pub vocab_size: usize,
    /// Where the logits of the generated ids are, if they were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_file: Option<String>,
    /// Teacher forcing, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_forcing: Option<TeacherForcing>,
    /// Settings.
    pub settings: Settings,
    /// The memory plan.
    pub plan: MemoryPlan,
    /// Every step.
    pub steps: Vec<StepRow>,
    /// Sums.
    pub totals: Totals,
    /// Memory.
    pub peak: Option<Peak>,
    /// Where and how long.
    pub provenance: Provenance,
}

impl RunReport {
    /// What the run cost.
    #[must_use]
    pub fn summary(&self) -> Table {
        let mut table = Table::new([left("", 0), left("", 0)]);
        let totals = &self.totals;
        let experts = &totals.experts;
        let cost = format!(
            "{} requests, {} hits ({:.2} %), {} evictions, {} read",
            experts.hits + experts.misses,
            experts.hits,
            totals.hit_percent,
            experts.evictions,
            in_units(totals.expert_bytes)
        );
        table.row(["experts:", &cost]);
        let cost = format!(
            "{} layer uses, {} of pinned layers, {} of others, {} of them read ahead in time; {} \
             read at the start, {} streamed",
            totals.layer_uses,
            totals.layer_pinned_uses,
            totals.layer_uses - totals.layer_pinned_uses,
            totals.layer_ready_uses,
            in_units(totals.pinned_bytes),
            in_units(totals.trunk_bytes)
        );
        table.row(["trunk:", &cost]);
        let (seconds, share) = (totals.seconds, totals.io_share_percent);
        table.row(["time:", &format!("{seconds:.3} s, {share:.1} % of it waiting for the disk")]);
        if let Some(peak) = &self.peak {
            let cost = format!(
                "peak resident {}, planned {}: {} apart, {} {} allowed",
                in_units(peak.peak_resident_bytes),
                in_units(peak.planned_bytes),
                in_units(peak.planned_bytes.abs_diff(peak.peak_resident_bytes)),
                if peak.within { "within the" } else { "MORE than the" },
                in_units(peak.tolerated_bytes)
            );
            table.row(["memory:", &cost]);
        }
        if let (Some(id), Some(source)) = (self.stopped_by, &self.stopped_by_source) {
            table.row(["ended by:", &format!("id {id} ({source})")]);
        }
        if let Some(forced) = &self.teacher_forcing {
            let cost = format!(
                "{} of {} positions ({:.2} %)",
                forced.tf_matches,
                forced.tf_positions,
                100.0 * forced.tf_agreement
            );
            table.row(["teacher forcing:", &cost]);
        }
        table
    }

    /// How far an interrupted run came.
    #[must_use]
    pub fn progress(&self) -> String {
        let (chosen, asked) = (self.generated_ids.len(), self.ids_asked);
        if asked == 0 {
            return "interrupted before the end of the ids that were to be fed".to_owned();
        }
        let which = match &self.generated_ids[..] {
            [] => String::new(),
            ids => format!(": {}", join(ids)),
        };
        format!("interrupted: {chosen} of {asked} ids were chosen{which}")
    }

    /// The first line: whether it came to its end, and with what.
    #[must_use]
    pub fn verdict(&self) -> String {
        if !self.complete {
            return format!("INCOMPLETE: {}", self.progress());
        }
        let fed = self.prompt_ids.len();
        match (self.teacher_forcing, self.stopped_by) {
            (Some(_), _) => format!("COMPLETE: {fed} ids by teacher forcing"),
            (None, Some(id)) => format!(
                "COMPLETE: {} ids generated after a prompt of {fed}, the last is an end id ({id}: \
                 {})",
                self.generated_ids.len(),
                self.stopped_by_source.as_deref().unwrap_or_default()
            ),
            (None, None) => {
                let chosen = self.generated_ids.len();
                format!("COMPLETE: {chosen} ids generated after a prompt of {fed}")
            }
        }
    }
}

/// Ids, comma-separated.
#[must_use]
pub fn join(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}
