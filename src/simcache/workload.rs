//! Requests to a cache, one group at a time: a trace in one request unit.
//!
//! `single` replays request by request, as the literature does. `batch` looks a demand's experts
//! up together. `union` is what the engine does in a chunked prefill: per chunk and layer every
//! distinct expert once. The groups are built once and replayed by every policy and by the
//! one-pass curves, so all of them answer the same question.

use std::ops::Range;

use k3_cache::shape::ModelShape;
use k3_cache::slot_table::Requests;
use k3_cache::trace::{Demand, Phase, Step, Trace};

/// Number of windows that hits are counted in.
pub const WINDOW_COUNT: usize = 6;

/// Which part of a run a group belongs to; every group is in exactly one. What is learned from a
/// trace is learned on the first part and judged on the rest, so the parts are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Window {
    /// Prompt positions.
    Prefill = 0,
    /// The first half of the single new positions.
    DecodeFirst = 1,
    /// The rest of them, but for the last.
    DecodeRest = 2,
    /// The last single position: the one a measured run reports.
    DecodeLast = 3,
    /// First half of recomputed prefixes and of traces whose order does not tell.
    OtherFirst = 4,
    /// The rest of those.
    OtherRest = 5,
}

impl Window {
    /// Single new positions.
    pub const DECODE: &'static [Window] =
        &[Window::DecodeFirst, Window::DecodeRest, Window::DecodeLast];
    /// Everything.
    pub const ALL: &'static [Window] = &[
        Window::Prefill,
        Window::DecodeFirst,
        Window::DecodeRest,
        Window::DecodeLast,
        Window::OtherFirst,
        Window::OtherRest,
    ];
    /// The part that is judged when something was learned on the part before.
    pub const JUDGED: &'static [Window] =
        &[Window::DecodeRest, Window::DecodeLast, Window::OtherRest];
}

/// Counts by window.
pub type ByWindow = [u64; WINDOW_COUNT];

/// Sum of the counts of some windows.
pub fn sum_over(windows: &[Window], counts: &ByWindow) -> u64 {
    windows.iter().map(|&window| counts[window as usize]).sum()
}

/// Experts looked up together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Range of [`Workload::experts`]: distinct experts, in order of first request.
    pub experts: Range<usize>,
    /// Requests beyond the distinct ones: an expert named twice is read once and used twice.
    pub repeat_count: u32,
    /// Demands that become known with this group; empty while a demand is served singly.
    pub demands: Range<usize>,
    /// Window of its step.
    pub window: Window,
}

/// A trace in one request unit.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// The unit.
    pub requests: Requests,
    /// Experts of all groups.
    pub experts: Vec<u32>,
    /// Groups in order.
    pub groups: Vec<Group>,
    /// Demands as the policies observe them: layer, experts, more to come in this layer.
    pub demands: Vec<ObservedDemand>,
    /// Experts of all demands, in request order.
    pub demanded: Vec<u32>,
    /// Requests per window.
    pub request_counts: ByWindow,
    /// Largest group: a cache must hold it, except that unions are served in waves.
    pub largest_group: usize,
}

/// A demand as a policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedDemand {
    /// Zero-based layer.
    pub layer: u16,
    /// Range of [`Workload::demanded`].
    pub experts: Range<usize>,
    /// Further positions of the chunk that will ask this layer after this one.
    pub pending: u32,
}

impl Workload {
    /// Groups a trace.
    pub fn new(trace: &Trace, requests: Requests) -> Workload {
        let demands = observe(&trace.demands);
        let mut workload = Workload {
            shape: trace.shape,
            requests,
            experts: Vec::with_capacity(trace.requests.len()),
            groups: Vec::new(),
            demands,
            demanded: trace.requests.clone(),
            request_counts: [0; WINDOW_COUNT],
            largest_group: 0,
        };
        let windows = windows_of_demands(trace);
        let mut seen = vec![u32::MAX; trace.shape.expert_count()];
        let mut first = 0;
        while first < trace.demands.len() {
            let window = windows[first];
            let end = match requests {
                Requests::Single => {
                    workload.push_singly(trace, first, window);
                    first += 1;
                    continue;
                }
                Requests::Batch => first + 1,
                Requests::Union => union_end(&trace.demands, first),
            };
            workload.push_together(trace, first..end, window, &mut seen);
            first = end;
        }
        workload
    }

    /// The experts of a group.
    pub fn experts_of(&self, group: &Group) -> &[u32] {
        &self.experts[group.experts.clone()]
    }

    /// Requests in all windows.
    pub fn request_count(&self) -> u64 {
        self.request_counts.iter().sum()
    }

    fn push_singly(&mut self, trace: &Trace, demand: usize, window: Window) {
        for (place, &expert) in trace.experts(&trace.demands[demand]).iter().enumerate() {
            let at = self.experts.len();
            self.experts.push(expert);
            let demands = if place == 0 { demand..demand + 1 } else { demand..demand };
            self.groups.push(Group { experts: at..at + 1, repeat_count: 0, demands, window });
            self.request_counts[window as usize] += 1;
            self.largest_group = self.largest_group.max(1);
        }
    }

    fn push_together(
        &mut self,
        trace: &Trace,
        demands: Range<usize>,
        window: Window,
        seen: &mut [u32],
    ) {
        let (begin, group) = (self.experts.len(), self.groups.len() as u32);
        let mut asked = 0;
        for demand in &trace.demands[demands.clone()] {
            for &expert in trace.experts(demand) {
                asked += 1;
                if std::mem::replace(&mut seen[expert as usize], group) != group {
                    self.experts.push(expert);
                }
            }
        }
        let distinct = self.experts.len() - begin;
        // A union asks once per chunk; within a demand a repeated expert is a use of its own.
        let repeats = if self.requests == Requests::Union { 0 } else { asked - distinct };
        self.request_counts[window as usize] += (distinct + repeats) as u64;
        self.largest_group = self.largest_group.max(distinct);
        let experts = begin..begin + distinct;
        self.groups.push(Group { experts, repeat_count: repeats as u32, demands, window });
    }
}

/// End of the run of demands that share chunk and layer.
fn union_end(demands: &[Demand], first: usize) -> usize {
    let key = |demand: &Demand| (demand.chunk, demand.layer);
    let same = |demand: &&Demand| key(demand) == key(&demands[first]);
    first + demands[first..].iter().take_while(same).count()
}

/// Demands with the number of positions that follow in the same chunk and layer.
fn observe(demands: &[Demand]) -> Vec<ObservedDemand> {
    let mut observed: Vec<ObservedDemand> = Vec::with_capacity(demands.len());
    let mut first = 0;
    while first < demands.len() {
        let end = union_end(demands, first);
        for (place, demand) in demands[first..end].iter().enumerate() {
            let experts = demand.first as usize..(demand.first + demand.count) as usize;
            let pending = (end - first - 1 - place) as u32;
            observed.push(ObservedDemand { layer: demand.layer, experts, pending });
        }
        first = end;
    }
    observed
}

/// The window of each demand.
fn windows_of_demands(trace: &Trace) -> Vec<Window> {
    let decode = |step: &Step| step.phase == Phase::Decode;
    let last_decode = trace.steps.iter().rposition(decode);
    let mut first_half = trace.steps.iter().filter(|step| decode(step)).count() / 2;
    let of_step: Vec<Option<Window>> = trace
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| match step.phase {
            Phase::Prefill => Some(Window::Prefill),
            Phase::Decode if Some(index) == last_decode => Some(Window::DecodeLast),
            Phase::Decode if first_half > 0 => {
                first_half -= 1;
                Some(Window::DecodeFirst)
            }
            Phase::Decode => Some(Window::DecodeRest),
            Phase::Recompute | Phase::Unknown => None,
        })
        .collect();
    let half = trace.demands.len() / 2;
    let window = |(index, demand): (usize, &Demand)| {
        let step = trace.chunks[demand.chunk as usize].step as usize;
        let other = if index < half { Window::OtherFirst } else { Window::OtherRest };
        of_step[step].unwrap_or(other)
    };
    trace.demands.iter().enumerate().map(window).collect()
}
