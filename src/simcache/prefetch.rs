//! Would reading ahead pay? A predictor names, before a layer is asked, experts that it may ask
//! for; those that are not resident are read into the cache, and the replay counts the effect.
//!
//! A predictor knows what had been asked before, never what comes, except `perfect`, which is the
//! bound. It predicts when the computation reaches a layer: anything read earlier would occupy the
//! same slots and cost the same bytes. Bytes that the computation waits for and bytes read in all
//! are counted separately, because one matters to an idle disk and the other to a busy one. A read
//! ahead that is not used costs its bytes, the expert thrown out for it, and nothing else.
//!
//! The seconds are the best case for reading ahead: the disk is never idle while there is something
//! to read, nothing waits but for demanded experts, and slots are given away as early as the
//! replay does it.

use k3_core::choice::Choice as _;
use std::ops::Range;
use std::str::FromStr;

use serde::Serialize;

use super::forecast::Machine;
use super::replay::serve_group;
use super::statistics::{percent, rounded_fine};
use super::workload::{Group, Window, Workload, sum_over};
use k3_cache::policy::PolicyName;
use k3_cache::slot_table::{CacheError, Reserve, SlotTable};
use k3_cache::trace::Outcome;

/// Most experts that may be named at a time.
const MAX_COUNT: usize = 4096;

/// Who says what the next layer will ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Predictor {
    /// What the layer's last demand asked for, in its order.
    PreviousToken,
    /// What the layer has been asked for most often so far; the lowest number among equals.
    MostFrequent,
    /// What it is going to ask for: the bound, which no engine reaches.
    Perfect,
}

impl Predictor {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::PreviousToken, Self::MostFrequent, Self::Perfect];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreviousToken => "previous-token",
            Self::MostFrequent => "most-frequent",
            Self::Perfect => "perfect",
        }
    }
}

/// A predictor and how many experts it may name at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PrefetchPlan {
    /// Who says.
    pub predictor: Predictor,
    /// How many at most, those included that are resident.
    pub count: usize,
}

impl FromStr for PrefetchPlan {
    type Err = String;

    /// `NAME:N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let names = Predictor::ALL.map(Predictor::as_str).join(", ");
        let wrong = || format!("expected NAME:N with N from 1 to {MAX_COUNT}, NAME one of {names}");
        let (name, count) = text.split_once(':').ok_or_else(wrong)?;
        let mut all = Predictor::ALL.into_iter();
        let predictor = all.find(|predictor| predictor.as_str() == name);
        let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.parse().ok().filter(|_| digits);
        Ok(Self {
            predictor: predictor.ok_or_else(wrong)?,
            count: count.filter(|count| (1..=MAX_COUNT).contains(count)).ok_or_else(wrong)?,
        })
    }
}

/// What reading ahead came to in the requests that the study is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PrefetchCounts {
    /// Experts read because they were asked for.
    pub demand_misses: u64,
    /// Experts read ahead.
    pub reads_ahead: u64,
    /// Of them, those that the layer then asked for.
    pub used_ahead: u64,
    /// Experts thrown out to read ahead.
    pub evictions_ahead: u64,
    /// Demand misses of experts that were last thrown out to read ahead.
    pub caused_misses: u64,
}

/// One predictor with one policy at one capacity, and the same without prefetching.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrefetchRow {
    /// Predictor and count.
    pub plan: PrefetchPlan,
    /// Policy of the cache.
    pub policy: &'static str,
    /// Slots.
    pub slot_count: usize,
    /// Demand misses without reading ahead.
    pub plain_misses: u64,
    /// With it.
    pub counts: PrefetchCounts,
    /// Share of the reads ahead that were used.
    pub used_percent: f64,
    /// GB per token that the computation waits for without reading ahead: all that is read.
    pub plain_gb_per_token: f64,
    /// GB per token that it waits for with reading ahead.
    pub waited_gb_per_token: f64,
    /// GB per token read with reading ahead.
    pub read_gb_per_token: f64,
    /// Seconds per token when the trunk is in memory.
    pub trunk_held: Seconds,
    /// Seconds per token when the whole trunk is streamed during the computation.
    pub trunk_streamed: Seconds,
}

/// Seconds per token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Seconds {
    /// Without reading ahead.
    pub plain: f64,
    /// With it, at best.
    pub ahead: f64,
}

/// Predictions from what has been asked so far.
#[derive(Debug)]
struct History {
    /// By layer, the last demand.
    last: Vec<Vec<u32>>,
    /// By expert.
    uses: Vec<u64>,
    experts_per_layer: u32,
}

impl History {
    fn new(workload: &Workload) -> Self {
        let shape = &workload.shape;
        Self {
            last: vec![Vec::new(); shape.layer_count as usize],
            uses: vec![0; shape.expert_count()],
            experts_per_layer: shape.experts_per_layer,
        }
    }

    fn predict(
        &self,
        plan: PrefetchPlan,
        layer: u16,
        asked: impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        let named = match plan.predictor {
            Predictor::PreviousToken => self.last[usize::from(layer)].clone(),
            Predictor::Perfect => asked.collect(),
            Predictor::MostFrequent => {
                let first = u32::from(layer) * self.experts_per_layer;
                let experts = first..first + self.experts_per_layer;
                let mut seen: Vec<u32> = experts.filter(|&e| self.uses[e as usize] > 0).collect();
                seen.sort_by_key(|&expert| (std::cmp::Reverse(self.uses[expert as usize]), expert));
                seen
            }
        };
        // An expert may be named twice in a demand; it is read once.
        let mut distinct = Vec::with_capacity(plan.count.min(named.len()));
        for expert in named {
            if distinct.len() < plan.count && !distinct.contains(&expert) {
                distinct.push(expert);
            }
        }
        distinct
    }

    fn learn(&mut self, workload: &Workload, group: &Group) {
        for demand in &workload.demands[group.demands.clone()] {
            let experts = &workload.demanded[demand.experts.clone()];
            self.last[usize::from(demand.layer)] = experts.to_vec();
            for &expert in experts {
                self.uses[expert as usize] += 1;
            }
        }
    }
}

/// The groups of each visit of a layer: within a chunk the positions ask it one after the other.
fn visits(workload: &Workload) -> Vec<Range<usize>> {
    let mut visits: Vec<Range<usize>> = Vec::new();
    let (mut layer, mut open) = (None, false);
    for (place, group) in workload.groups.iter().enumerate() {
        let goes_on = open || group.demands.is_empty();
        match visits.last_mut() {
            Some(visit) if goes_on && layer == Some(layer_of(workload, group)) => {
                visit.end = place + 1;
            }
            _ => visits.push(place..place + 1),
        }
        layer = Some(layer_of(workload, group));
        if let Some(last) = workload.demands[group.demands.clone()].last() {
            open = last.pending > 0;
        }
    }
    visits
}

fn layer_of(workload: &Workload, group: &Group) -> u16 {
    let expert = workload.experts_of(group).first().copied().unwrap_or(0);
    workload.shape.key(expert).layer
}

/// Replays with reading ahead; counts are of the groups in `focus`.
///
/// # Errors
/// A batch larger than the cache.
pub fn replay(
    workload: &Workload,
    slot_count: usize,
    policy: PolicyName,
    reserve: Reserve,
    plan: PrefetchPlan,
    focus: &[Window],
) -> Result<PrefetchCounts, CacheError> {
    let experts = workload.shape.expert_count();
    let policy = policy.build(&workload.shape, slot_count);
    let mut table = SlotTable::new(experts, slot_count, policy)?;
    let plan = PrefetchPlan { count: plan.count.min(slot_count), ..plan };
    let mut history = History::new(workload);
    let mut counts = PrefetchCounts::default();
    // Read ahead for the current layer and not requested yet; evicted to read ahead.
    let (mut waiting, mut thrown_out) = (vec![false; experts], vec![false; experts]);
    for visit in visits(workload) {
        let groups = &workload.groups[visit];
        let layer = layer_of(workload, &groups[0]);
        let asked = groups.iter().flat_map(|group| workload.experts_of(group));
        let named = history.predict(plan, layer, asked.copied());
        let counted = |group: &Group| u64::from(focus.contains(&group.window));
        let first = counted(&groups[0]);
        waiting.fill(false);
        for read in table.prefetch(&named)? {
            counts.reads_ahead += first;
            waiting[read.expert as usize] = true;
            thrown_out[read.expert as usize] = false;
            if let Outcome::LoadedOver(victim) = read.outcome {
                counts.evictions_ahead += first;
                thrown_out[victim as usize] = true;
            }
        }
        for group in groups {
            let counted = counted(group);
            serve_group(&mut table, workload, group, reserve, |served| {
                let expert = served.expert as usize;
                if served.outcome == Outcome::Hit {
                    counts.used_ahead += counted * u64::from(waiting[expert]);
                } else {
                    counts.demand_misses += counted;
                    counts.caused_misses += counted * u64::from(thrown_out[expert]);
                    thrown_out[expert] = false;
                }
                if let Outcome::LoadedOver(victim) = served.outcome {
                    thrown_out[victim as usize] = false;
                }
                waiting[expert] = false;
            })?;
            history.learn(workload, group);
        }
    }
    Ok(counts)
}

/// What rows are worked out with.
#[derive(Debug, Clone, Copy)]
pub struct Scale<'a> {
    /// What is replayed.
    pub workload: &'a Workload,
    /// Groups that count.
    pub focus: &'a [Window],
    /// Requests of one token.
    pub requests_per_token: u64,
    /// Disk, computation, trunk.
    pub machine: &'a Machine,
}

impl Scale<'_> {
    /// GB per token of a number of experts read in the focus.
    fn gb_per_token(&self, reads: u64) -> f64 {
        let requests = sum_over(self.focus, &self.workload.request_counts).max(1);
        let tokens = requests as f64 / self.requests_per_token.max(1) as f64;
        reads as f64 * self.workload.shape.expert_bytes as f64 / tokens.max(1e-9) / 1e9
    }

    /// The longer of what the disk has to read in all, and of waiting and computing in turn.
    fn seconds(&self, trunk_gb: f64, read_gb: f64, waited_gb: f64) -> f64 {
        let rate = self.machine.disk_bytes_per_second / 1e9;
        let disk = (trunk_gb + read_gb) / rate;
        let in_turn = waited_gb / rate + self.machine.compute_seconds_per_token;
        rounded_fine(disk.max(in_turn))
    }

    /// One row.
    ///
    /// # Errors
    /// A batch larger than the cache.
    pub fn row(
        &self,
        slot_count: usize,
        policy: PolicyName,
        reserve: Reserve,
        plan: PrefetchPlan,
    ) -> Result<PrefetchRow, CacheError> {
        let (workload, focus) = (self.workload, self.focus);
        // Room for more experts than there are changes nothing.
        let slot_count = slot_count.min(workload.shape.expert_count());
        let counts = replay(workload, slot_count, policy, reserve, plan, focus)?;
        let built = policy.build(&workload.shape, slot_count);
        let hits = super::replay::replay(workload, slot_count, built, reserve)?;
        let requests = sum_over(focus, &workload.request_counts);
        let plain_misses = requests - sum_over(focus, &hits);
        let plain = self.gb_per_token(plain_misses);
        let waited = self.gb_per_token(counts.demand_misses);
        let read = self.gb_per_token(counts.demand_misses + counts.reads_ahead);
        let seconds = |trunk_gb: f64| Seconds {
            plain: self.seconds(trunk_gb, plain, plain),
            ahead: self.seconds(trunk_gb, read, waited),
        };
        Ok(PrefetchRow {
            plan,
            policy: policy.name(),
            slot_count,
            plain_misses,
            counts,
            used_percent: percent(counts.used_ahead, counts.reads_ahead),
            plain_gb_per_token: rounded_fine(plain),
            waited_gb_per_token: rounded_fine(waited),
            read_gb_per_token: rounded_fine(read),
            trunk_held: seconds(0.0),
            trunk_streamed: seconds(self.machine.trunk_bytes as f64 / 1e9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_name_and_a_count() {
        let plan = PrefetchPlan { predictor: Predictor::PreviousToken, count: 16 };
        assert_eq!("previous-token:16".parse(), Ok(plan));
        for bad in [
            "",
            "previous-token",
            "previous-token:",
            "previous-token:0",
            "next:4",
            "perfect:-1",
            "perfect:+1",
            "perfect:4097",
            "perfect:1e2",
            "most-frequent:4:4",
        ] {
            assert!(bad.parse::<PrefetchPlan>().is_err(), "{bad}");
        }
    }
}
