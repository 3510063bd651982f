//! One order of a trace, studied: curves, grid, pins, statistics.
//!
//! Replays run in parallel, one task per policy and capacity; each is serial in itself and the
//! results are put in order, so the number of threads changes nothing.

use k3_core::choice::Choice as _;
use rayon::prelude::*;

use super::curve::Curve;
use super::optimum::{self, Admission};
use super::replay::replay;
use super::report::{CurveReport, PinnedRow, PolicyResult, Row, View};
use super::stack_distance;
use super::statistics::{distance_histogram, hottest, percent, plateau, reuse, rounded_fine};
use super::workload::{ByWindow, Window, Workload, sum_over};
use k3_cache::policy::PolicyName;
use k3_cache::policy::pinned::PinnedLru;
use k3_cache::slot_table::{CacheError, Requests, Reserve};
use k3_cache::trace::Trace;

/// Share of a cache that pins may take.
pub const PINNED_SHARE: f64 = 0.5;
/// Experts listed as hottest.
const HOTTEST_COUNT: usize = 10;

/// What to study.
#[derive(Debug, Clone)]
pub struct ViewPlan {
    /// Request unit.
    pub requests: Requests,
    /// Admission order.
    pub reserve: Reserve,
    /// Policies to replay on the grid.
    pub policies: Vec<PolicyName>,
    /// Capacities to replay, ascending.
    pub slot_counts: Vec<usize>,
    /// Those of them that are rows of the table; the others are for limits only.
    pub table_slot_counts: Vec<usize>,
    /// Whether to replay pins and the bypass optimum too.
    pub full: bool,
}

/// A view with the hit counts that forecasts need.
#[derive(Debug)]
pub struct Studied {
    /// For the report.
    pub view: View,
    /// The groups that were replayed.
    pub workload: Workload,
    /// LRU everywhere.
    pub lru: Curve,
    /// The forced optimum everywhere.
    pub optimum: Curve,
    /// Windows of the focus.
    pub focus: &'static [Window],
    /// Hits of each policy at each capacity, None where it was refused.
    pub grid: Vec<Vec<Option<ByWindow>>>,
    /// Pins against others at each capacity.
    pub pinned: Vec<PinnedRow>,
}

/// Studies one order.
pub fn study(trace: &Trace, order: &'static str, plan: &ViewPlan) -> Studied {
    let workload = Workload::new(trace, plan.requests);
    let distances = stack_distance::distances(&workload);
    let lru = stack_distance::lru_curve(&workload, &distances);
    let ((optimum, bypasses), (grid, pinned)) = rayon::join(
        || rayon::join(|| optimum::curve(&workload), || bypasses(&workload, plan)),
        || rayon::join(|| replay_grid(&workload, plan, &lru), || replay_pinned(&workload, plan)),
    );
    let decodes = sum_over(Window::DECODE, &workload.request_counts) > 0;
    let (focus, focus_name) =
        if decodes { (Window::DECODE, "decode") } else { (Window::ALL, "all") };
    let scale = RowScale { workload: &workload, focus, tokens: requests_per_token(trace) };
    let rows = rows(&scale, plan, &grid, &optimum, &bypasses);
    let pinned = pinned_rows(&workload, plan, &lru, &grid, &pinned);
    let (distance_buckets, first_use_count) = distance_histogram(&distances);
    let focus_requests = sum_over(focus, &workload.request_counts);
    let distinct_count = lru.distinct_count();
    let view = View {
        order,
        caveat: None,
        focus: focus_name,
        request_count: workload.request_count(),
        focus_request_count: focus_requests,
        prefill_request_count: workload.request_counts[Window::Prefill as usize],
        last_request_count: workload.request_counts[Window::DecodeLast as usize],
        requests_per_token: scale.tokens,
        distinct_count,
        ceiling_percent: percent(sum_over(focus, &lru.by_window(distinct_count)), focus_requests),
        first_slot_count: lru.first_slot_count,
        lru_curve: curve_report(&lru, focus),
        optimum_curve: curve_report(&optimum, focus),
        plateau: plateau(&lru, focus_requests, |curve, slots| {
            sum_over(focus, &curve.by_window(slots))
        }),
        rows,
        pinned: pinned
            .iter()
            .filter(|row| plan.table_slot_counts.contains(&row.slot_count))
            .cloned()
            .collect(),
        hottest: hottest(trace, HOTTEST_COUNT),
        reuse: reuse(trace),
        distances: distance_buckets,
        first_use_count,
    };
    Studied { view, workload, lru, optimum, focus, grid, pinned }
}

/// Requests of one token: top-k in each layer that occurs.
pub fn requests_per_token(trace: &Trace) -> u64 {
    u64::from(trace.shape.top_k) * trace.layers().len() as u64
}

fn curve_report(curve: &Curve, focus: &[Window]) -> CurveReport {
    let slots = curve.first_slot_count..=curve.distinct_count().max(curve.first_slot_count);
    CurveReport {
        hits: slots.clone().map(|slots| curve.hits(slots)).collect(),
        focus_hits: slots.map(|slots| sum_over(focus, &curve.by_window(slots))).collect(),
    }
}

/// The bypass optimum at each capacity; empty unless asked for.
fn bypasses(workload: &Workload, plan: &ViewPlan) -> Vec<ByWindow> {
    let slot_counts: &[usize] = if plan.full { &plan.table_slot_counts } else { &[] };
    slot_counts
        .par_iter()
        .map(|&slots| optimum::replay(workload, slots, Admission::MayBypass))
        .collect()
}

/// Every policy at every capacity. LRU comes from its curve where that is what would be replayed.
fn replay_grid(workload: &Workload, plan: &ViewPlan, lru: &Curve) -> Vec<Vec<Option<ByWindow>>> {
    let tasks: Vec<(PolicyName, usize)> = plan
        .policies
        .iter()
        .flat_map(|&policy| plan.slot_counts.iter().map(move |&slots| (policy, slots)))
        .collect();
    let one_pass = plan.reserve == Reserve::Late || plan.requests == Requests::Single;
    let results: Vec<Option<ByWindow>> = tasks
        .par_iter()
        .map(|&(policy, slots)| {
            if policy == PolicyName::Lru && one_pass && slots >= workload.largest_group {
                return Some(lru.by_window(slots));
            }
            // Room for more experts than there are changes nothing.
            let slots = slots.min(workload.shape.expert_count());
            let policy = policy.build(&workload.shape, slots);
            replay(workload, slots, policy, plan.reserve).ok()
        })
        .collect();
    let count = plan.slot_counts.len().max(1);
    results.chunks(count).map(<[Option<ByWindow>]>::to_vec).collect()
}

/// How rates and bytes of a row are worked out.
struct RowScale<'a> {
    workload: &'a Workload,
    focus: &'static [Window],
    tokens: u64,
}

impl RowScale<'_> {
    fn result(&self, policy: &str, hits: &ByWindow) -> PolicyResult {
        let requests = sum_over(self.focus, &self.workload.request_counts);
        let focus_hits = sum_over(self.focus, hits);
        let per_request = self.workload.shape.expert_bytes as f64 / requests.max(1) as f64;
        let read = (requests - focus_hits) as f64 * per_request * self.tokens as f64;
        PolicyResult {
            policy: policy.to_string(),
            hits: hits.iter().sum(),
            focus_hits,
            prefill_hits: hits[Window::Prefill as usize],
            last_hits: hits[Window::DecodeLast as usize],
            hit_percent: percent(focus_hits, requests),
            expert_gb_per_token: rounded_fine(read / 1e9),
        }
    }
}

fn rows(
    scale: &RowScale<'_>,
    plan: &ViewPlan,
    grid: &[Vec<Option<ByWindow>>],
    optimum: &Curve,
    bypasses: &[ByWindow],
) -> Vec<Row> {
    let workload = scale.workload;
    let row = |(row, &slot_count): (usize, &usize)| {
        let slot_bytes = slot_count as u64 * workload.shape.expert_bytes;
        let group = workload.largest_group;
        if slot_count < group && workload.requests != Requests::Union {
            let refused = Some(CacheError::GroupTooLarge { slot_count, group }.to_string());
            let policies = Vec::new();
            return Row { slot_count, slot_bytes, refused, policies, optimum: None, bypass: None };
        }
        let policies = plan.policies.iter().zip(grid);
        let hits = if slot_count >= group {
            optimum.by_window(slot_count)
        } else {
            optimum::replay(workload, slot_count, Admission::Forced)
        };
        Row {
            slot_count,
            slot_bytes,
            refused: None,
            policies: policies
                .filter_map(|(policy, hits)| {
                    let place = plan.slot_counts.binary_search(&slot_count).ok()?;
                    hits[place].as_ref().map(|hits| scale.result(policy.name(), hits))
                })
                .collect(),
            optimum: Some(scale.result("optimum", &hits)),
            bypass: bypasses.get(row).map(|hits| scale.result("optimum-bypass", hits)),
        }
    };
    plan.table_slot_counts.iter().enumerate().map(row).collect()
}

/// Experts in order of requests in the part that is not judged; only those asked for twice or
/// more: an expert seen once is no more likely than another.
pub fn trained_pins(workload: &Workload, count: usize) -> Vec<u32> {
    let mut uses = vec![0_u32; workload.shape.expert_count()];
    for group in &workload.groups {
        if !Window::JUDGED.contains(&group.window) {
            for &expert in workload.experts_of(group) {
                uses[expert as usize] += 1;
            }
        }
    }
    let mut ranked: Vec<u32> =
        (0..uses.len() as u32).filter(|&expert| uses[expert as usize] > 1).collect();
    ranked.sort_by_key(|&expert| (std::cmp::Reverse(uses[expert as usize]), expert));
    ranked.truncate(count);
    ranked
}

fn pin_count(slot_count: usize) -> usize {
    (slot_count as f64 * PINNED_SHARE) as usize
}

fn replay_pinned(workload: &Workload, plan: &ViewPlan) -> Vec<Option<ByWindow>> {
    let slot_counts: &[usize] = if plan.full { &plan.slot_counts } else { &[] };
    let ranked = trained_pins(workload, usize::MAX);
    let experts = workload.shape.expert_count();
    slot_counts
        .par_iter()
        .map(|&slots| {
            let slots = slots.min(experts);
            let pins = &ranked[..pin_count(slots).min(ranked.len())];
            let policy = Box::new(PinnedLru::new(slots, experts, pins));
            replay(workload, slots, policy, plan.reserve).ok()
        })
        .collect()
}

fn pinned_rows(
    workload: &Workload,
    plan: &ViewPlan,
    lru: &Curve,
    grid: &[Vec<Option<ByWindow>>],
    pinned: &[Option<ByWindow>],
) -> Vec<PinnedRow> {
    let judged_request_count = sum_over(Window::JUDGED, &workload.request_counts);
    if judged_request_count == 0 {
        return Vec::new();
    }
    let trained = trained_pins(workload, usize::MAX).len();
    let row = |(place, (&slot_count, pinned)): (usize, (&usize, &Option<ByWindow>))| {
        let pinned = pinned.as_ref()?;
        let judged = |hits: &ByWindow| sum_over(Window::JUDGED, hits);
        let others =
            plan.policies.iter().zip(grid).filter_map(|(policy, hits)| {
                hits[place].as_ref().map(|hits| (judged(hits), *policy))
            });
        // The first of the best: ties go to the order of the policies.
        let plain_lru = plan.policies.iter().position(|&policy| policy == PolicyName::Lru);
        let plain_lru = plain_lru.and_then(|lru| grid[lru][place]);
        let best = others.fold(None, |best: Option<(u64, PolicyName)>, other| match best {
            Some(best) if best.0 >= other.0 => Some(best),
            _ => Some(other),
        });
        let (best_hits, best_policy) = best.unwrap_or((0, PolicyName::Lru));
        Some(PinnedRow {
            slot_count,
            pin_count: pin_count(slot_count).min(trained),
            judged_request_count,
            pinned_hits: judged(pinned),
            lru_hits: judged(&plain_lru.unwrap_or_else(|| lru.by_window(slot_count))),
            best_hits,
            best_policy: best_policy.name().to_string(),
        })
    };
    plan.slot_counts.iter().zip(pinned).enumerate().filter_map(row).collect()
}
