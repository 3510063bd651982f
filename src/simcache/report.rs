//! The schema of a cache study. This struct, as JSON, is the truth; text, plots and page are made
//! from it. What changes from run to run without the input changing is in `provenance` only.

use serde::Serialize;

use super::forecast::{ForecastRow, Machine, TimeFit, TooSmall};
use super::order::{Order, Recognition};
use super::prefetch::PrefetchRow;
use super::recorded_run::RecordedRun;
use super::statistics::{DistanceBucket, HotExpert, Plateau, Reuse};
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_core::host::provenance::Provenance;

/// Version of this schema; grows when a field changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// A cache study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What this is.
    pub schema: &'static str,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The input.
    pub trace: TraceSummary,
    /// In which order it asks.
    pub order: OrderReport,
    /// What was chosen.
    pub settings: Settings,
    /// One study per order, the main one first.
    pub views: Vec<View>,
    /// Memory limits, bytes and seconds.
    pub forecast: Option<Forecast>,
    /// Forecast against what was measured.
    pub measured: Option<Measured>,
    /// Reading ahead in the main order, where it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefetch: Vec<PrefetchRow>,
    /// Why capacities have no such row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefetch_refused: Vec<String>,
    /// The recording caches' logs against replays of their settings, one per trace that has one.
    pub recorded_runs: Vec<RecordedRun>,
    /// What the reader should know.
    pub notes: Vec<String>,
    /// Time, host, paths.
    pub provenance: Provenance,
}

/// The input.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// `headerless` or `v1`, per file.
    pub formats: Vec<&'static str>,
    /// Requests.
    pub request_count: usize,
    /// Demands: one position, one layer.
    pub demand_count: usize,
    /// Demands with fewer experts than top-k.
    pub short_demand_count: usize,
    /// Requests that name an expert a second time in its demand.
    pub repeated_request_count: usize,
    /// Experts loaded ahead in the recorded run; replays leave them out.
    pub prefetched_expert_count: usize,
    /// Distinct experts.
    pub distinct_count: usize,
    /// Layers that ask for experts.
    pub moe_layer_count: usize,
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Identity of the checkpoint, hexadecimal, where the trace states it.
    pub checkpoint_identity: Option<String>,
    /// Filters that were applied.
    pub filters: Vec<String>,
}

/// In which order the trace asks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OrderReport {
    /// The request.
    pub asked: Order,
    /// What the order is, with the evidence, per file.
    pub recognition: Vec<Recognition>,
    /// The same in words.
    pub finding: String,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// Request unit.
    pub requests: Requests,
    /// Admission order.
    pub reserve: Reserve,
    /// Policies replayed.
    pub policies: Vec<&'static str>,
    /// Which optimum the bound is.
    pub optimum: &'static str,
    /// Share of a cache that pins may take in the pinned study.
    pub pinned_share: f64,
    /// The machine that bytes and seconds are for.
    pub machine: Machine,
}

/// A study of one order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct View {
    /// `recorded` or `decode`.
    pub order: &'static str,
    /// Why the numbers are not what an engine sees, if so.
    pub caveat: Option<String>,
    /// Which requests the rates are about: `decode` (single new positions) or `all`.
    pub focus: &'static str,
    /// Requests in all, and in the focus.
    pub request_count: u64,
    /// Requests in the focus.
    pub focus_request_count: u64,
    /// Requests of the prompt's positions.
    pub prefill_request_count: u64,
    /// Requests of the last single position.
    pub last_request_count: u64,
    /// Requests of one token: top-k times MoE layers. Also its working set in slots.
    pub requests_per_token: u64,
    /// Distinct experts.
    pub distinct_count: usize,
    /// Hit rate of a cache that holds everything, in the focus, percent.
    pub ceiling_percent: f64,
    /// Slots from which on the curves are defined.
    pub first_slot_count: usize,
    /// LRU at every number of slots.
    pub lru_curve: CurveReport,
    /// The forced optimum at every number of slots.
    pub optimum_curve: CurveReport,
    /// Where more slots bring LRU next to nothing, and the knee.
    pub plateau: Option<Plateau>,
    /// Policies at chosen capacities.
    pub rows: Vec<Row>,
    /// Pinned hottest and LRU, trained on the first part, judged on the rest.
    pub pinned: Vec<PinnedRow>,
    /// Most asked for experts.
    pub hottest: Vec<HotExpert>,
    /// Experts shared by consecutive positions.
    pub reuse: Option<Reuse>,
    /// Reuse distances of all lookups.
    pub distances: Vec<DistanceBucket>,
    /// Lookups without an earlier use.
    pub first_use_count: u64,
}

/// Hits at every number of slots, from `first_slot_count` to `distinct_count`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CurveReport {
    /// Hits of all requests.
    pub hits: Vec<u64>,
    /// Hits of the focus.
    pub focus_hits: Vec<u64>,
}

/// Hits of one policy at one capacity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: String,
    /// Hits of all requests.
    pub hits: u64,
    /// Hits of the focus.
    pub focus_hits: u64,
    /// Hits of the prompt's positions.
    pub prefill_hits: u64,
    /// Hits of the last single position.
    pub last_hits: u64,
    /// Hit rate of the focus.
    pub hit_percent: f64,
    /// Experts read for a token of the focus.
    pub expert_gb_per_token: f64,
}

/// One capacity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Slots.
    pub slot_count: usize,
    /// Bytes of the slots.
    pub slot_bytes: u64,
    /// Why nothing was replayed here.
    pub refused: Option<String>,
    /// The policies.
    pub policies: Vec<PolicyResult>,
    /// The bound: forced admission.
    pub optimum: Option<PolicyResult>,
    /// The note: storing may be declined.
    pub bypass: Option<PolicyResult>,
}

/// Pinned hottest and LRU against others, on the part that nothing was learned from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PinnedRow {
    /// Slots.
    pub slot_count: usize,
    /// Pins among them.
    pub pin_count: usize,
    /// Requests of the judged part.
    pub judged_request_count: u64,
    /// Hits there: pinned and LRU.
    pub pinned_hits: u64,
    /// Hits there: LRU.
    pub lru_hits: u64,
    /// Hits there: the best policy without pins, and which.
    pub best_hits: u64,
    /// Its name.
    pub best_policy: String,
}

/// Memory limits, bytes and seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Order of the view it rests on.
    pub order: &'static str,
    /// Under each limit LRU, the recommended policy (if another) and the optimum, each with its
    /// own best split; a preset's split is fixed.
    pub rows: Vec<ForecastRow>,
    /// What a GB of trunk and a GB of experts save, in words.
    pub split_advice: String,
    /// Memory limits that hold too little.
    pub too_small: Vec<TooSmall>,
    /// Seconds per token by split, for a few limits.
    pub splits: Vec<SplitCurve>,
    /// What to do under each limit.
    pub recommendations: Vec<Recommendation>,
}

/// Seconds per token of one limit over the memory given to experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitCurve {
    /// Memory in all.
    pub memory_bytes: u64,
    /// Points by expert slots, ascending.
    pub points: Vec<SplitPoint>,
}

/// One split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitPoint {
    /// Expert slots.
    pub slot_count: usize,
    /// GB of them.
    pub expert_slot_gb: f64,
    /// GB of trunk held.
    pub trunk_held_gb: f64,
    /// Seconds per token with LRU.
    pub lru_seconds: f64,
    /// With the forced optimum.
    pub optimum_seconds: f64,
    /// With the recommended policy, where it was replayed.
    pub policy_seconds: Option<f64>,
}

/// What to do under one limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// Memory in all.
    pub memory_bytes: u64,
    /// Preset, where it is one.
    pub preset: Option<&'static str>,
    /// Policy.
    pub policy: String,
    /// Trunk to hold, GB.
    pub trunk_held_gb: f64,
    /// Expert slots.
    pub slot_count: usize,
    /// Experts to pin; empty where pins do not pay.
    pub pins: Vec<HotExpert>,
    /// Why.
    pub reason: String,
}

/// Forecast against what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Requests of the step that was measured: the last.
    pub request_count: u64,
    /// Name of the model whose errors decide.
    pub model: &'static str,
    /// What each model is: name and description.
    pub models: Vec<MeasuredModel>,
    /// Limit by limit.
    pub rows: Vec<MeasuredRow>,
    /// Disk rate and compute time used for seconds.
    pub time: Option<TimeFit>,
    /// Whether they were fitted to these very rows.
    pub time_is_fitted: bool,
    /// Largest error of the seconds.
    pub largest_seconds_error: Option<f64>,
    /// Largest error of the bytes read, GB.
    pub largest_gb_error: Option<f64>,
    /// Whether every row agrees to the precision it was printed with.
    pub exact: bool,
    /// Largest error of the deciding model, points.
    pub largest_error_points: f64,
    /// Error, in points, up to which they count as agreeing.
    pub tolerance_points: f64,
    /// What plain LRU gets differently, in words.
    pub differences: Vec<String>,
}

/// One way to replay the measured run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredModel {
    /// Name.
    pub name: &'static str,
    /// What is replayed.
    pub description: &'static str,
    /// Rows that agree to the printed precision.
    pub exact_rungs: usize,
    /// Largest error, points.
    pub largest_error_points: f64,
}

/// One memory limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredRow {
    /// Memory in all, GB, where it was stated.
    pub total_gb: Option<f64>,
    /// Slots.
    pub slot_count: usize,
    /// Measured hit rate.
    pub measured_percent: f64,
    /// Forecast hits, in the order of the models.
    pub hits: Vec<u64>,
    /// Forecast hit rates, in the order of the models.
    pub forecast_percent: Vec<f64>,
    /// Error of the deciding model.
    pub error_points: f64,
    /// Measured and forecast GB of experts.
    pub measured_gb: Option<f64>,
    /// Forecast of it.
    pub forecast_gb: f64,
    /// Measured seconds per token.
    pub measured_seconds: Option<f64>,
    /// Forecast of them.
    pub forecast_seconds: Option<f64>,
}
