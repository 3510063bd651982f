//! A whole study: traces in, report out. No files are read or written here.

use k3_core::choice::Choice as _;
use rayon::prelude::*;
use thiserror::Error;

use super::forecast::{Machine, MemoryLimit, slots_beside_trunk};
use super::measured::MeasuredLimit;
use super::order::{self, Order, Recognition};
use super::prefetch::{PrefetchPlan, PrefetchRow, Scale};
use super::report::{OrderReport, Report, SCHEMA_VERSION, Settings, TraceSummary};
use super::view::{PINNED_SHARE, Studied, ViewPlan, requests_per_token, study as study_view};
use super::{against_measured, limits, recorded_run};
use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{CacheError, Requests, Reserve};
use k3_cache::trace::{Phase, Trace, TraceError};
use k3_core::hex;
use k3_core::host::provenance::Provenance;

/// Capacities of the default grid, GB (10⁹ bytes), for models whose experts need them.
const GRID_GB: [u64; 12] = [2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
/// Points of the grid for smaller models, from the largest group to all distinct experts.
const GRID_POINTS: usize = 12;

/// Why a study cannot be made.
#[derive(Debug, Error)]
pub enum StudyError {
    /// No trace, or nothing left after filters.
    #[error("nothing to study: no request is left")]
    Empty,
    /// Traces of different models.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// `--order decode` on a trace whose order does not tell.
    #[error("cannot put the trace into decode order: {0}")]
    NoDecodeOrder(String),
    /// A capacity that makes no sense.
    #[error("{0}")]
    Cache(#[from] CacheError),
    /// `--positions` on a trace whose order does not tell positions.
    #[error("cannot keep the first positions: {0}")]
    NoPositions(String),
    /// A measured table is about the last single position, and there is none.
    #[error("a measured table needs single decoded positions, and the trace has none")]
    NothingToMeasure,
}

/// What to study, checked.
#[derive(Debug, Clone)]
pub struct StudyPlan {
    /// Order.
    pub order: Order,
    /// Request unit; None: batches where demands can be made out, else single.
    pub requests: Option<Requests>,
    /// Admission order.
    pub reserve: Reserve,
    /// Policies; empty: all.
    pub policies: Vec<PolicyName>,
    /// Ways to read ahead, replayed with the policies named, or else with LRU and layer-cycle.
    pub prefetch: Vec<PrefetchPlan>,
    /// Capacities; empty: the default grid.
    pub slot_counts: Vec<usize>,
    /// Memory limits; None: the published ones, where the model is as large.
    pub limits: Option<Vec<MemoryLimit>>,
    /// The machine.
    pub machine: Machine,
    /// What was measured.
    pub measured: Option<Vec<MeasuredLimit>>,
    /// Error up to which they count as agreeing, points.
    pub tolerance_points: f64,
    /// Layers to keep, with the words for the report.
    pub keep_layers: Option<(Vec<u16>, String)>,
    /// Positions to keep, counted from 0.
    pub keep_positions: Option<u32>,
}

/// One order of the input, and why it is or is not what an engine sees.
struct OrderedTrace {
    name: &'static str,
    trace: Trace,
    caveat: Option<String>,
}

/// Makes the study.
pub fn run(mut traces: Vec<Trace>, plan: &StudyPlan) -> Result<Report, StudyError> {
    if traces.iter().all(|trace| trace.requests.is_empty()) {
        return Err(StudyError::Empty);
    }
    if plan.slot_counts.contains(&0) {
        return Err(CacheError::NoSlots.into());
    }
    let recorded_runs = traces.iter().filter_map(recorded_run::check).collect();
    let recognition: Vec<Recognition> = traces.iter().map(order::recognise).collect();
    for (trace, recognition) in traces.iter_mut().zip(&recognition) {
        order::mark_steps(trace, recognition);
    }
    check_positions(&recognition, plan)?;
    let orders = orders(&traces, &recognition, plan)?;
    let recorded = join(&traces)?;
    let main = &orders[0].trace;
    let (requests, requests_note) = unit(main, plan);
    let limits = plan.limits.clone().unwrap_or_else(|| limits::defaults(&main.shape));
    let table_slot_counts = table_grid(main, plan);
    let view_plan = ViewPlan {
        requests,
        reserve: plan.reserve,
        policies: policies(plan),
        slot_counts: replay_grid(&table_slot_counts, main, plan, &limits),
        table_slot_counts,
        full: true,
    };
    let views = study_orders(&orders, &view_plan);
    let main_view = &views[0];
    let forecast = limits::forecast(main, main_view, &view_plan, &plan.machine, &limits);
    let measured = plan.measured.as_ref();
    let measured = measured.map(|measured| against_measured::compare(main, measured, plan));
    let measured = measured.map(|measured| measured.ok_or(StudyError::NothingToMeasure));
    let measured = measured.transpose()?;
    let (prefetch, prefetch_refused) = prefetch(main, main_view, &view_plan, plan);
    let finding = finding(&recognition, plan.order);
    let notes = notes(&recorded, main_view, requests_note, plan.reserve);
    Ok(Report {
        schema: "k3-verify.simcache",
        schema_version: SCHEMA_VERSION,
        trace: summary(&traces, &recorded, plan),
        order: OrderReport { asked: plan.order, recognition, finding },
        settings: Settings {
            requests,
            reserve: plan.reserve,
            policies: view_plan.policies.iter().map(|policy| policy.name()).collect(),
            optimum: "forced admission: what is used is stored (the bound); bypass is a note",
            pinned_share: PINNED_SHARE,
            machine: plan.machine,
        },
        views: views.into_iter().map(|studied| studied.view).collect(),
        forecast,
        measured,
        prefetch,
        prefetch_refused,
        recorded_runs,
        notes,
        provenance: Provenance::default(),
    })
}

/// Positions can only be kept where they are known.
fn check_positions(recognition: &[Recognition], plan: &StudyPlan) -> Result<(), StudyError> {
    let unknown = recognition.iter().find_map(|found| match found {
        Recognition::Unknown { reason } => Some(reason),
        Recognition::Incremental { union_sweep_count: 1.., reason, .. } => Some(reason),
        _ => None,
    });
    match unknown {
        Some(reason) if plan.keep_positions.is_some() => {
            Err(StudyError::NoPositions(reason.clone()))
        }
        _ => Ok(()),
    }
}

fn policies(plan: &StudyPlan) -> Vec<PolicyName> {
    match plan.policies[..] {
        [] => PolicyName::ALL.to_vec(),
        _ => plan.policies.clone(),
    }
}

/// Every way to read ahead, with every policy, at every capacity of the table; and why capacities
/// are left out, once each.
fn prefetch(
    trace: &Trace,
    main: &Studied,
    view: &ViewPlan,
    plan: &StudyPlan,
) -> (Vec<PrefetchRow>, Vec<String>) {
    let scale = Scale {
        workload: &main.workload,
        focus: main.focus,
        requests_per_token: requests_per_token(trace),
        machine: &plan.machine,
    };
    let policies = match plan.policies[..] {
        [] => vec![PolicyName::Lru, PolicyName::LayerCycle],
        _ => plan.policies.clone(),
    };
    let mut tasks = Vec::new();
    for &way in &plan.prefetch {
        for &policy in &policies {
            let slots = view.table_slot_counts.iter();
            tasks.extend(slots.map(|&slots| (way, policy, slots)));
        }
    }
    let row = |(way, policy, slots)| scale.row(slots, policy, plan.reserve, way);
    let rows: Vec<_> = tasks.into_par_iter().map(row).collect();
    let (mut fitting, mut refused) = (Vec::new(), Vec::new());
    for row in rows {
        match row {
            Ok(row) => fitting.push(row),
            Err(error) => refused.push(error.to_string()),
        }
    }
    refused.sort();
    refused.dedup();
    (fitting, refused)
}

/// The trace in the order that is mainly studied, filters applied: what an export should hold.
pub fn main_order(mut traces: Vec<Trace>, plan: &StudyPlan) -> Result<Trace, StudyError> {
    let recognition: Vec<Recognition> = traces.iter().map(order::recognise).collect();
    for (trace, recognition) in traces.iter_mut().zip(&recognition) {
        order::mark_steps(trace, recognition);
    }
    check_positions(&recognition, plan)?;
    let orders = orders(&traces, &recognition, plan)?;
    Ok(orders.into_iter().next().ok_or(StudyError::Empty)?.trace)
}

/// Studies every order; only the curves of the others than the main one are shown.
fn study_orders(orders: &[OrderedTrace], plan: &ViewPlan) -> Vec<Studied> {
    let study_one = |(index, ordered): (usize, &OrderedTrace)| {
        let mut plan = plan.clone();
        if index > 0 {
            plan.policies.retain(|policy| *policy == PolicyName::Lru);
            plan.full = false;
        }
        let mut studied = study_view(&ordered.trace, ordered.name, &plan);
        studied.view.caveat.clone_from(&ordered.caveat);
        studied
    };
    orders.par_iter().enumerate().map(study_one).collect()
}

/// The orders to study, the main one first.
fn orders(
    traces: &[Trace],
    recognition: &[Recognition],
    plan: &StudyPlan,
) -> Result<Vec<OrderedTrace>, StudyError> {
    let recomputes = recognition.iter().any(|found| matches!(found, Recognition::Recompute(_)));
    let recorded = |caveat| -> Result<OrderedTrace, StudyError> {
        Ok(OrderedTrace { name: "recorded", trace: filtered(join(traces)?, plan)?, caveat })
    };
    let artefact = recomputes.then(|| {
        "this order computes the whole prefix again at every step: its reuse is re-computation, \
         and an engine that carries state does not see it"
            .to_string()
    });
    match plan.order {
        Order::Recorded => return Ok(vec![recorded(artefact)?]),
        Order::Decode if !recomputes => {
            if let Some(Recognition::Unknown { reason }) =
                recognition.iter().find(|found| matches!(found, Recognition::Unknown { .. }))
            {
                return Err(StudyError::NoDecodeOrder(reason.clone()));
            }
        }
        Order::Auto if !recomputes => return Ok(vec![recorded(None)?]),
        Order::Decode | Order::Auto => {}
    }
    let linear: Vec<Trace> = traces
        .iter()
        .map(|trace| order::relinearise(trace).unwrap_or_else(|| trace.clone()))
        .collect();
    let trace = filtered(join(&linear)?, plan)?;
    let decode = OrderedTrace { name: "decode", trace, caveat: None };
    match plan.order {
        Order::Auto => Ok(vec![decode, recorded(artefact)?]),
        _ => Ok(vec![decode]),
    }
}

/// One trace after the other: the cache stays warm in between.
fn join(traces: &[Trace]) -> Result<Trace, StudyError> {
    let mut joined = traces.first().ok_or(StudyError::Empty)?.clone();
    for trace in &traces[1..] {
        joined.append(trace)?;
    }
    Ok(joined)
}

fn filtered(trace: Trace, plan: &StudyPlan) -> Result<Trace, StudyError> {
    if plan.keep_layers.is_none() && plan.keep_positions.is_none() {
        return Ok(trace);
    }
    let part = trace.filtered(|demand| {
        let layer = plan.keep_layers.as_ref().is_none_or(|keep| keep.0.contains(&demand.layer));
        layer && plan.keep_positions.is_none_or(|count| demand.position < count)
    });
    if part.requests.is_empty() { Err(StudyError::Empty) } else { Ok(part) }
}

/// The request unit, and why it is not batches if it is not.
fn unit(trace: &Trace, plan: &StudyPlan) -> (Requests, Option<String>) {
    if let Some(requests) = plan.requests {
        return (requests, None);
    }
    let top_k = trace.shape.top_k;
    let short = trace.demands.iter().filter(|demand| demand.count != top_k).count();
    let known = trace.steps.iter().all(|step| step.phase != Phase::Unknown);
    if short == 0 || known || trace.header.is_some() {
        return (Requests::Batch, None);
    }
    let note = format!(
        "requests are replayed one by one: {short} of {} runs of one layer are shorter than top-k \
         {top_k}, so demands cannot be made out (--requests batch takes the runs as they are)",
        trace.demands.len()
    );
    (Requests::Single, Some(note))
}

/// Capacities of the table: those asked for or the default grid.
fn table_grid(trace: &Trace, plan: &StudyPlan) -> Vec<usize> {
    let shape = &trace.shape;
    let mut slots = plan.slot_counts.clone();
    if slots.is_empty() {
        let distinct = trace.distinct_count();
        let by_gb = GRID_GB.map(|gb| (gb * 1_000_000_000 / shape.expert_bytes) as usize);
        let least = shape.top_k as usize;
        let inside = by_gb.iter().filter(|&&s| s >= least && s < distinct).count();
        slots = if inside >= 4 {
            by_gb.into_iter().filter(|&slots| slots >= least).collect()
        } else {
            geometric(least, distinct, GRID_POINTS)
        };
        // One capacity that holds everything is enough.
        if let Some(all) = slots.iter().position(|&slots| slots >= distinct) {
            slots.truncate(all + 1);
        }
    }
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// The table's capacities and those that limits need: the least an engine can work with, and what
/// is left besides the whole trunk.
fn replay_grid(
    table: &[usize],
    trace: &Trace,
    plan: &StudyPlan,
    limits: &[MemoryLimit],
) -> Vec<usize> {
    let shape = &trace.shape;
    let mut slots = table.to_vec();
    if !limits.is_empty() {
        slots.push(shape.top_k as usize);
    }
    slots.extend(limits.iter().filter_map(|limit| match limit {
        MemoryLimit::Memory { bytes } => slots_beside_trunk(*bytes, &plan.machine, shape),
        MemoryLimit::Preset { expert_bytes, .. } => {
            Some((expert_bytes / shape.expert_bytes) as usize).filter(|&slots| slots > 0)
        }
    }));
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// `count` capacities from `first` to `last` in even ratios.
fn geometric(first: usize, last: usize, count: usize) -> Vec<usize> {
    let (first, last) = (first.min(last).max(1), last.max(1));
    let ratio = last as f64 / first as f64;
    let mut slots: Vec<usize> = (0..count)
        .map(|step| ratio.powf(step as f64 / (count - 1) as f64) * first as f64)
        .map(|slots| slots.round() as usize)
        .collect();
    slots.dedup();
    slots
}

fn summary(traces: &[Trace], recorded: &Trace, plan: &StudyPlan) -> TraceSummary {
    let format = |trace: &Trace| {
        if trace.header.is_some() { "v1" } else { "headerless" }
    };
    let identity = recorded.header.as_ref().map(|header| header.checkpoint_identity);
    let mut filters = Vec::new();
    if let Some((_, words)) = &plan.keep_layers {
        filters.push(format!("layers {words}"));
    }
    if let Some(count) = plan.keep_positions {
        filters.push(format!("positions 0..{count} (first {count})"));
    }
    let top_k = recorded.shape.top_k;
    TraceSummary {
        formats: traces.iter().map(format).collect(),
        request_count: recorded.requests.len(),
        demand_count: recorded.demands.len(),
        short_demand_count: recorded.demands.iter().filter(|d| d.count != top_k).count(),
        repeated_request_count: repeats(recorded),
        prefetched_expert_count: recorded.prefetches.iter().map(|p| p.experts.len()).sum(),
        distinct_count: recorded.distinct_count(),
        moe_layer_count: recorded.layers().len(),
        shape: recorded.shape,
        checkpoint_identity: identity.filter(|bytes| *bytes != [0; 32]).map(hex),
        filters,
    }
}

/// Requests that name an expert again within their demand.
fn repeats(trace: &Trace) -> usize {
    let again = |experts: &[u32]| {
        (1..experts.len()).filter(|&i| experts[..i].contains(&experts[i])).count()
    };
    trace.demands.iter().map(|demand| again(trace.experts(demand))).sum()
}

/// What the order is, in words.
fn finding(recognition: &[Recognition], asked: Order) -> String {
    let say = |found: &Recognition| match found {
        Recognition::Recompute(evidence) => {
            let first = evidence.positions_per_sweep.first().unwrap_or(&0);
            let last = evidence.positions_per_sweep.last().unwrap_or(&0);
            let (sweeps, repeated) = (evidence.sweep_count, evidence.repeated_row_count);
            format!(
                "recompute sweeps: {sweeps} passes over growing prefixes of {first} to {last} \
                 positions; {repeated} of {} rows repeat a row of the pass before ({} of them in \
                 the same order), {} are new",
                evidence.row_count,
                evidence.same_order_row_count,
                evidence.row_count - repeated,
            )
        }
        Recognition::Incremental { positions_per_sweep, union_sweep_count, reason } => {
            let passes = positions_per_sweep.len();
            let unions = match union_sweep_count {
                0 => String::new(),
                count => format!(
                    ", {count} of them a prefill that asks each layer for the union of its \
                     positions' experts (rates are about the others, of single positions)"
                ),
            };
            format!(
                "incremental: {passes} passes through the layers{unions}; not recompute: {reason}"
            )
        }
        Recognition::Unknown { reason } => format!("no passes through the layers: {reason}"),
    };
    let mut words: Vec<String> = recognition.iter().map(say).collect();
    if recognition.iter().any(|found| matches!(found, Recognition::Recompute(_))) {
        words.push(match asked {
            Order::Recorded => "studied as recorded, on request".to_string(),
            _ => "re-linearised: prefill layer by layer, then single tokens".to_string(),
        });
    }
    words.join("; ")
}

fn notes(
    recorded: &Trace,
    main: &Studied,
    requests_note: Option<String>,
    reserve: Reserve,
) -> Vec<String> {
    let mut notes: Vec<String> = requests_note.into_iter().collect();
    if reserve == Reserve::Early && main.workload.requests != Requests::Single {
        notes.push(
            "LRU's curve at every capacity is for hits first; the table's column reserves early"
                .to_string(),
        );
    }
    let repeated = repeats(recorded);
    if repeated > 0 {
        notes.push(format!(
            "{repeated} requests name an expert a second time in its demand: one read, two uses, \
             the second use is a hit"
        ));
    }
    if !recorded.prefetches.is_empty() {
        notes.push(
            "the recorded run read experts ahead; replays leave prefetches out (only the check of \
             the recorded run applies them)"
                .to_string(),
        );
    }
    let positions = main.view.reuse.as_ref().map_or(0, |reuse| reuse.positions.len() + 1);
    let one = recorded.steps.iter().filter(|step| step.first_position == 0).count() == 1;
    let few = positions < 100 && (one || main.view.order == "decode");
    if main.view.focus == "decode" && few {
        notes.push(format!(
            "the trace has {positions} positions of one sequence: it shows how routing repeats \
             from one token to the next and what a cold cache does with it; it cannot show a long \
             conversation, a change of subject, or how far rates differ between prompts"
        ));
    }
    if requests_per_token(recorded) == 0 {
        notes.push("no layer asks for experts".to_string());
    }
    notes
}
