//! The slot table: which experts are resident, in use, or evicted. The laboratory and the engine
//! share it, so a forecast and a run make the same decisions.
//!
//! A group of experts that are used together is served like this (`late`, ours): residents among
//! them are marked as in use, then every missing one gets an empty slot or the slot of the
//! policy's victim, never of one in use, and then all are used in request order. kimi-k3-in-c does
//! it the other way round (`early`): missing ones are reserved before the residents are refreshed,
//! so that a reservation may evict an expert of the same group, which is then read again. Both are
//! modelled because they give different counts.
//!
//! No reads happen here, and no threads: decisions are taken in request order. A table of 0 slots
//! is refused, since what is used must be held.

use k3_core::choice::Choice;
use serde::Serialize;
use thiserror::Error;

use crate::policy::{DemandView, Policy};
use crate::trace::Outcome;

/// What is looked up together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Requests {
    /// One by one, as the literature replays.
    Single,
    /// A position's top-k in one layer.
    Batch,
    /// Per chunk and layer every distinct expert once.
    Union,
}

/// When the slots of missing experts are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reserve {
    /// Before the group's residents are refreshed (as kimi-k3-in-c does).
    Early,
    /// After: hits first.
    Late,
}

impl Choice for Requests {
    const ALL: &'static [Self] = &[Self::Single, Self::Batch, Self::Union];

    fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Batch => "batch",
            Self::Union => "union",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Single => "One by one, as the literature replays",
            Self::Batch => "A position's top-k in one layer",
            Self::Union => "Per chunk and layer every distinct expert once",
        }
    }
}

impl Choice for Reserve {
    const ALL: &'static [Self] = &[Self::Early, Self::Late];

    fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::Late => "late",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Early => "Before the group's residents are refreshed (kimi-k3-in-c's order)",
            Self::Late => "After: hits first",
        }
    }
}

/// Why a cache cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CacheError {
    /// No slots at all.
    #[error("a cache of 0 slots cannot hold what it uses")]
    NoSlots,
    /// A group does not fit and must not be split.
    #[error("{slot_count} slots are too few: {group} experts are used together")]
    GroupTooLarge {
        /// Slots of the cache.
        slot_count: usize,
        /// Size of the group.
        group: usize,
    },
}

const EMPTY: u32 = u32::MAX;

/// Slots that must not be given away now.
#[derive(Debug)]
pub struct InUse {
    stamps: Vec<u32>,
    epoch: u32,
}

impl InUse {
    fn new(slot_count: usize) -> Self {
        InUse { stamps: vec![0; slot_count], epoch: 0 }
    }

    /// Whether a slot is in use.
    pub fn contains(&self, slot: u32) -> bool {
        self.stamps[slot as usize] == self.epoch
    }

    fn clear(&mut self) {
        self.epoch += 1;
    }

    fn insert(&mut self, slot: u32) {
        self.stamps[slot as usize] = self.epoch;
    }

    fn remove(&mut self, slot: u32) {
        self.stamps[slot as usize] = self.epoch - 1;
    }
}

/// One expert of a served group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The expert.
    pub expert: u32,
    /// Where it is.
    pub slot: u32,
    /// Whether it was there, or whom it replaced.
    pub outcome: Outcome,
}

/// Counters of a table since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Requests that found their expert resident.
    pub hits: u64,
    /// Experts read because they were asked for.
    pub misses: u64,
    /// Experts thrown out.
    pub evictions: u64,
    /// Experts read ahead.
    pub prefetch_reads: u64,
}

/// Residents of a cache with a policy.
pub struct SlotTable {
    slot_of: Vec<u32>,
    expert_in: Vec<u32>,
    filled: u32,
    in_use: InUse,
    fresh: Vec<bool>,
    policy: Box<dyn Policy>,
    counters: Counters,
}

impl std::fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slots = self.expert_in.len();
        write!(f, "SlotTable({} of {slots} slots, {:?})", self.filled, self.counters)
    }
}

impl SlotTable {
    /// An empty table for experts `0..expert_count`.
    pub fn new(
        expert_count: usize,
        slot_count: usize,
        policy: Box<dyn Policy>,
    ) -> Result<Self, CacheError> {
        if slot_count == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(SlotTable {
            slot_of: vec![EMPTY; expert_count],
            expert_in: vec![EMPTY; slot_count],
            filled: 0,
            in_use: InUse::new(slot_count),
            fresh: vec![false; slot_count],
            policy,
            counters: Counters::default(),
        })
    }

    /// Slots in all.
    pub fn slot_count(&self) -> usize {
        self.expert_in.len()
    }

    /// Experts resident now; never more than the slots.
    pub fn resident_count(&self) -> usize {
        self.filled as usize
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Where an expert is, if it is resident.
    pub fn slot_of(&self, expert: u32) -> Option<u32> {
        Some(self.slot_of[expert as usize]).filter(|&slot| slot != EMPTY)
    }

    /// Tells the policy what a position asks a layer for, before it is served.
    pub fn observe(&mut self, demand: &DemandView<'_>) {
        self.policy.demand(demand);
    }

    /// Counts a further use, in the same group, of an expert that is being served.
    pub fn count_repeats(&mut self, repeats: u32) {
        self.counters.hits += u64::from(repeats);
    }

    /// Serves distinct experts that are used together. `sink` hears of each in request order.
    pub fn serve(
        &mut self,
        group: &[u32],
        reserve: Reserve,
        mut sink: impl FnMut(Served),
    ) -> Result<(), CacheError> {
        let slot_count = self.slot_count();
        if group.len() > slot_count {
            return Err(CacheError::GroupTooLarge { slot_count, group: group.len() });
        }
        match reserve {
            Reserve::Late => self.serve_late(group, &mut sink),
            Reserve::Early => self.serve_early(group, &mut sink),
        }
        Ok(())
    }

    /// Cuts a group into waves that fit: residents first, then the missing ones, both in request
    /// order. A group that fits is one wave, in request order.
    pub fn waves(&self, group: &[u32]) -> Vec<Vec<u32>> {
        if group.len() <= self.slot_count() {
            return vec![group.to_vec()];
        }
        let (mut order, missing): (Vec<u32>, Vec<u32>) =
            group.iter().partition(|&&expert| self.slot_of(expert).is_some());
        order.extend(missing);
        order.chunks(self.slot_count()).map(<[u32]>::to_vec).collect()
    }

    /// Loads experts that nobody has asked for yet; those resident are left alone. Gives those that
    /// were loaded.
    pub fn prefetch(&mut self, experts: &[u32]) -> Result<Vec<Served>, CacheError> {
        let slot_count = self.slot_count();
        if experts.len() > slot_count {
            return Err(CacheError::GroupTooLarge { slot_count, group: experts.len() });
        }
        self.in_use.clear();
        for slot in experts.iter().filter_map(|&expert| self.slot_of(expert)).collect::<Vec<_>>() {
            self.in_use.insert(slot);
        }
        let mut read = Vec::new();
        for &expert in experts {
            if self.slot_of(expert).is_none() {
                let outcome = self.load(expert);
                let slot = self.slot_of[expert as usize];
                self.counters.prefetch_reads += 1;
                read.push(Served { expert, slot, outcome });
            }
        }
        Ok(read)
    }

    fn serve_late(&mut self, group: &[u32], sink: &mut impl FnMut(Served)) {
        self.in_use.clear();
        for &expert in group {
            let slot = self.slot_of[expert as usize];
            if slot != EMPTY {
                self.in_use.insert(slot);
            }
        }
        for &expert in group {
            let outcome = self.find_or_load(expert);
            sink(Served { expert, slot: self.slot_of[expert as usize], outcome });
        }
        for &expert in group {
            self.mark_used(expert);
        }
    }

    /// Reservations first; whoever of the group they throw out is read again when its turn comes.
    fn serve_early(&mut self, group: &[u32], sink: &mut impl FnMut(Served)) {
        self.in_use.clear();
        let mut outcomes = vec![None; group.len()];
        for (outcome, &expert) in outcomes.iter_mut().zip(group) {
            if self.slot_of[expert as usize] == EMPTY {
                *outcome = Some(self.find_or_load(expert));
            }
        }
        for (outcome, &expert) in outcomes.into_iter().zip(group) {
            let outcome = match outcome {
                Some(reserved) => reserved,
                None => self.find_or_load(expert),
            };
            let slot = self.slot_of[expert as usize];
            sink(Served { expert, slot, outcome });
            self.mark_used(expert);
            self.in_use.remove(slot);
        }
    }

    fn find_or_load(&mut self, expert: u32) -> Outcome {
        if self.slot_of[expert as usize] != EMPTY {
            self.counters.hits += 1;
            return Outcome::Hit;
        }
        self.counters.misses += 1;
        self.load(expert)
    }

    fn load(&mut self, expert: u32) -> Outcome {
        let mut outcome = Outcome::Loaded;
        let slot = if (self.filled as usize) < self.expert_in.len() {
            self.filled += 1;
            self.filled - 1
        } else {
            let slot = self.policy.victim(expert, &self.in_use);
            assert!(!self.in_use.contains(slot), "a policy gave away a slot in use");
            let victim = self.expert_in[slot as usize];
            self.slot_of[victim as usize] = EMPTY;
            self.counters.evictions += 1;
            outcome = Outcome::LoadedOver(victim);
            slot
        };
        self.expert_in[slot as usize] = expert;
        self.slot_of[expert as usize] = slot;
        self.fresh[slot as usize] = true;
        self.in_use.insert(slot);
        self.policy.inserted(slot, expert);
        outcome
    }

    fn mark_used(&mut self, expert: u32) {
        let slot = self.slot_of[expert as usize];
        let fresh = std::mem::replace(&mut self.fresh[slot as usize], false);
        self.policy.used(slot, fresh);
    }
}
