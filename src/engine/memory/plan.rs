//! Adding up a run's memory and choosing the split between trunk and experts.
//!
//! The trunk comes first: a byte of it that is held is a byte less to read for every token, while
//! a byte of expert slots saves less than that until one token's whole demand fits (the
//! laboratory's split advice). So experts get the slots they cannot do without, the trunk what is
//! left, and experts again what the trunk does not need.

use serde::Serialize;
use thiserror::Error;

use super::trunk::{self, Pinned};
use crate::model::{LayerKind, LayerShape, MlpKind, Shape, Workspace};
use k3_render::{Table, left, right};

/// Peak and plan may differ by this share of the plan …
pub const TOLERATED_SHARE: f64 = 0.05;
/// … or by this much, whichever is more: the allocator's and the threads' own.
pub const TOLERATED_BYTES: u64 = 64_000_000;

/// Default slots of a ring: one in use, one being filled.
const DEFAULT_RING_SLOTS: usize = 2;

/// What a run needs, before anything is chosen. All sizes in bytes.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Widths and layers.
    pub shape: Shape,
    /// Buffer of each layer.
    pub layer_bytes: Vec<u64>,
    /// Bytes of each layer that are copied on binding because they are misaligned.
    pub layer_copied_bytes: Vec<u64>,
    /// Slot of an expert, copies included.
    pub expert_slot_bytes: u64,
    /// Positions that the sequence may reach.
    pub positions: usize,
    /// Tokens of a chunk.
    pub chunk_tokens: usize,
    /// Rows of logits held at once.
    pub logit_rows: usize,
    /// The process before it takes anything: code, allocator, runtime.
    pub baseline_bytes: u64,
    /// Index of the checkpoint, names and places.
    pub index_bytes: u64,
    /// Tokenizer; 0 where no text is read or written.
    pub tokenizer_bytes: u64,
    /// Whether embedding rows and head are streamed.
    pub streams_vocabulary: bool,
}

/// The requested split; absent fields are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wishes {
    /// Bytes for the trunk: pinned layers and ring.
    pub trunk_bytes: Option<u64>,
    /// Bytes for expert slots.
    pub expert_bytes: Option<u64>,
    /// Expert slots.
    pub expert_slots: Option<usize>,
    /// Slots of the ring.
    pub ring_slots: Option<usize>,
}

/// One line of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Name.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// What they are.
    pub what: String,
}

/// The plan of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Lines.
    pub components: Vec<Component>,
    /// Sum of the lines.
    pub total_bytes: u64,
    /// The memory limit of the run; `None` if none was given.
    pub limit_bytes: Option<u64>,
    /// Layers in memory.
    pub pinned_layers: Vec<usize>,
    /// Slots of the ring; 0 when every layer is pinned.
    pub ring_slots: usize,
    /// Expert slots.
    pub expert_slots: usize,
}

/// Whose limit a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOf {
    /// The whole process.
    Process,
    /// The trunk, by a wish.
    Trunk,
    /// The expert slots, by a wish.
    Experts,
}

/// A run that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "refused: {what} needs {}, the limit is {} ({}); {advice}",
    in_units(*needed_bytes), in_units(*limit_bytes), shortfall(*needed_bytes, *limit_bytes)
)]
pub struct Refusal {
    /// Whose limit it is.
    pub limit_of: LimitOf,
    /// What does not fit: the plan, or a part that was given a limit of its own.
    pub what: &'static str,
    /// What the plan adds up to.
    pub needed_bytes: u64,
    /// What can be had.
    pub limit_bytes: u64,
    /// What would fit, or what is the least that could.
    pub advice: String,
}

fn shortfall(needed: u64, limit: u64) -> String {
    format!("{} too much", in_units(needed.saturating_sub(limit)))
}

/// A size for people, in the largest of GB, MB and kB (10⁹, 10⁶, 10³ bytes) that it fills, with
/// three decimals.
#[must_use]
pub fn in_units(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    let unit = units.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} bytes"),
        |(name, unit)| format!("{:.3} {name}", bytes as f64 / *unit as f64),
    )
}

/// A number of things, in the plural but for one.
fn counted(count: usize, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

impl Demand {
    /// Bytes of the vectors that binding a layer widens to f32.
    fn vector_bytes(&self, layer: &LayerShape) -> u64 {
        let shape = &self.shape;
        let attention = match layer.kind {
            LayerKind::Kda => {
                let projection = shape.kda.width;
                projection * (3 * shape.kda.taps + 1) + shape.kda.heads + shape.kda.head_dim
            }
            LayerKind::Mla => shape.mla.q_lora + shape.mla.kv_lora,
        };
        let mlp =
            if layer.mlp == MlpKind::Dense { 0 } else { shape.moe.experts + shape.moe.latent };
        4 * (4 * shape.hidden + attention + mlp) as u64
    }

    /// Bytes that binding a layer takes besides its buffer.
    fn bound_bytes(&self, layer: usize) -> u64 {
        self.vector_bytes(&self.shape.layers[layer]) + self.layer_copied_bytes[layer]
    }

    /// Bytes of the latent cache per position: kv_lora + rope floats in every MLA layer.
    #[must_use]
    pub fn latent_bytes_per_position(&self) -> u64 {
        let layers = self.shape.count(LayerKind::Mla);
        4 * (layers * self.shape.mla.cache_width) as u64
    }

    /// Bytes of the recurrent state: KDA layers only.
    #[must_use]
    pub fn recurrent_bytes(&self) -> u64 {
        let shape = &self.shape;
        let projection = shape.kda.width;
        let slot = projection * (shape.kda.head_dim + 3 * (shape.kda.taps - 1));
        4 * (shape.count(LayerKind::Kda) * slot) as u64
    }

    /// Bytes of a saved state, but for its header.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.recurrent_bytes() + self.latent_bytes_per_position() * self.positions as u64
    }

    /// Lines that no choice changes.
    fn fixed(&self) -> Vec<Component> {
        let shape = &self.shape;
        let line = |name, bytes: u64, what: String| Component { name, bytes, what };
        let table = 2 * (shape.vocab * shape.hidden) as u64;
        let (kda, mla) = (shape.count(LayerKind::Kda), shape.count(LayerKind::Mla));
        let rows = self.logit_rows.max(1);
        let buffers = Workspace::bytes(shape, self.chunk_tokens) as u64;
        let logits = 4 * (rows * shape.vocab) as u64;
        let per_position = self.latent_bytes_per_position();
        let mut lines = vec![
            line("program", self.baseline_bytes, "measured, rounded up".to_owned()),
            line("index", self.index_bytes, "names and places".to_owned()),
        ];
        if self.tokenizer_bytes > 0 {
            let what = "K3's tokens and ranks, measured".to_owned();
            lines.push(line("tokenizer", self.tokenizer_bytes, what));
        }
        if self.streams_vocabulary {
            let bytes = crate::stream::vocabulary::buffer_bytes(shape) as u64;
            let what = "embedding rows and chunks of the head, streamed".to_owned();
            lines.push(line("vocabulary", bytes, what));
        } else {
            let what = format!("{} rows, BF16", shape.vocab);
            lines.push(line("embedding", table, what.clone()));
            lines.push(line("head", table, what));
        }
        lines.extend([
            line("recurrent state", self.recurrent_bytes(), counted(kda, "KDA layer")),
            line(
                "latent cache",
                per_position * self.positions as u64,
                format!(
                    "{} x {} x {} floats",
                    counted(self.positions, "position"),
                    counted(mla, "MLA layer"),
                    shape.mla.cache_width
                ),
            ),
            line("buffers", buffers, format!("chunks of {} tokens", self.chunk_tokens)),
            line("logits", logits, counted(rows, "row")),
        ]);
        lines
    }

    /// Sizes of layers as the pinned set is chosen by: buffer and what binding adds.
    fn held_layer_bytes(&self) -> Vec<u64> {
        let layers = self.layer_bytes.iter().enumerate();
        layers.map(|(layer, bytes)| bytes + self.bound_bytes(layer)).collect()
    }

    /// Experts there are.
    fn expert_count(&self) -> usize {
        let shape = &self.shape;
        shape.layers.iter().filter(|layer| layer.mlp == MlpKind::Moe).count() * shape.moe.experts
    }

    /// The plan under `limit_bytes` (the whole process), with what was wished for.
    ///
    /// # Errors
    /// [`Refusal`] when it does not fit.
    pub fn plan(&self, wishes: &Wishes, limit_bytes: Option<u64>) -> Result<MemoryPlan, Refusal> {
        let fixed = self.fixed();
        let fixed_bytes: u64 = fixed.iter().map(|line| line.bytes).sum();
        let limit = limit_bytes.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(fixed_bytes);
        let least_slots = self.shape.moe.top_k.min(self.expert_count());
        let asked_slots = self.asked_slots(wishes);
        let first_slots = asked_slots.unwrap_or(least_slots);
        let for_trunk = left.saturating_sub(first_slots as u64 * self.expert_slot_bytes);
        let trunk_budget = wishes.trunk_bytes.unwrap_or(for_trunk);
        let sizes = self.held_layer_bytes();
        let rings = match wishes.ring_slots {
            Some(slots) => vec![slots.max(1)],
            None => (1..=DEFAULT_RING_SLOTS).rev().collect(),
        };
        let chosen = rings.iter().find_map(|&ring| {
            trunk::choose(&sizes, ring, trunk_budget).map(|pinned| (pinned, ring))
        });
        self.keeps_wishes(wishes, asked_slots, &sizes, chosen.is_some())?;
        let (pinned, ring) = chosen.unwrap_or_else(|| {
            // Not even the slots fit: the least there is, to be refused with its number.
            let slot_bytes = sizes.iter().copied().max().unwrap_or(0);
            let least = Pinned { slot_bytes, ..Pinned::default() };
            (least, *rings.last().unwrap_or(&1))
        });
        let slots = asked_slots.unwrap_or_else(|| {
            let trunk = pinned.pinned_bytes + ring as u64 * pinned.slot_bytes;
            let room = left.saturating_sub(trunk) / self.expert_slot_bytes.max(1);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            room.clamp(least_slots, self.expert_count().max(least_slots))
        });
        let plan = self.lines(fixed, &pinned, ring, slots, limit_bytes);
        match limit_bytes {
            Some(limit) if plan.total_bytes > limit => Err(self.refuse(&plan, limit, fixed_bytes)),
            _ => Ok(plan),
        }
    }

    /// Refuses a limit for the trunk or for the experts that nothing can keep: it is not exceeded
    /// in silence.
    fn keeps_wishes(
        &self,
        wishes: &Wishes,
        asked_slots: Option<usize>,
        sizes: &[u64],
        trunk_fits: bool,
    ) -> Result<(), Refusal> {
        if let (Some(limit_bytes), false) = (wishes.trunk_bytes, trunk_fits) {
            let ring = wishes.ring_slots.unwrap_or(1).max(1);
            let largest = sizes.iter().copied().max().unwrap_or(0);
            return Err(Refusal {
                limit_of: LimitOf::Trunk,
                what: "a ring that holds any layer",
                needed_bytes: trunk::least_bytes(sizes, ring),
                limit_bytes,
                advice: format!("a layer takes up to {}", in_units(largest)),
            });
        }
        let least = self.shape.moe.top_k.min(self.expert_count());
        if let Some(slots) = asked_slots.filter(|slots| *slots < least) {
            return Err(Refusal {
                limit_of: LimitOf::Experts,
                what: "what one token asks of a layer",
                needed_bytes: least as u64 * self.expert_slot_bytes,
                limit_bytes: slots as u64 * self.expert_slot_bytes,
                advice: format!("{least} expert slots are the least"),
            });
        }
        Ok(())
    }

    fn asked_slots(&self, wishes: &Wishes) -> Option<usize> {
        let by_bytes =
            wishes.expert_bytes.map(|bytes| (bytes / self.expert_slot_bytes.max(1)) as usize);
        let slots = wishes.expert_slots.or(by_bytes)?;
        Some(slots.min(self.expert_count()))
    }

    fn lines(
        &self,
        fixed: Vec<Component>,
        pinned: &Pinned,
        ring: usize,
        slots: usize,
        limit_bytes: Option<u64>,
    ) -> MemoryPlan {
        let ring = if pinned.slot_bytes == 0 { 0 } else { ring };
        let layers = self.layer_bytes.len();
        let mut components = fixed;
        components.push(Component {
            name: "trunk pinned",
            bytes: pinned.pinned_bytes,
            what: format!("{} of {layers} layers", pinned.layers.len()),
        });
        components.push(Component {
            name: "trunk ring",
            bytes: ring as u64 * pinned.slot_bytes,
            what: match ring {
                0 => "no ring: every layer is pinned".to_owned(),
                _ => format!("{} of {}", counted(ring, "slot"), in_units(pinned.slot_bytes)),
            },
        });
        components.push(Component {
            name: "experts",
            bytes: slots as u64 * self.expert_slot_bytes,
            what: format!(
                "{slots} slots of {}, {} experts",
                in_units(self.expert_slot_bytes),
                self.expert_count()
            ),
        });
        MemoryPlan {
            total_bytes: components.iter().map(|line| line.bytes).sum(),
            components,
            limit_bytes,
            pinned_layers: pinned.layers.clone(),
            ring_slots: ring,
            expert_slots: slots,
        }
    }

    /// The refusal, with the least that any choice of ours would need.
    fn refuse(&self, plan: &MemoryPlan, limit: u64, fixed_bytes: u64) -> Refusal {
        let sizes = self.held_layer_bytes();
        let least_slots = self.shape.moe.top_k.min(self.expert_count()) as u64;
        let trunk = trunk::least_bytes(&sizes, 1);
        let least = fixed_bytes + least_slots * self.expert_slot_bytes + trunk;
        let advice = if least <= limit {
            format!("with less pinned and fewer slots {} would fit", in_units(least))
        } else {
            let held =
                if self.streams_vocabulary { "" } else { " with embedding and head in memory" };
            format!(
                "the least for this model and {} positions{held} is {}",
                self.positions,
                in_units(least)
            )
        };
        Refusal {
            limit_of: LimitOf::Process,
            what: "the plan",
            needed_bytes: plan.total_bytes,
            limit_bytes: limit,
            advice,
        }
    }
}

impl MemoryPlan {
    /// For people: one line per component.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new([left("component", 0), right("size", 0), left("what", 0)]);
        for line in &self.components {
            table.row([line.name, &in_units(line.bytes), &line.what]);
        }
        table.row(["total", &in_units(self.total_bytes), "the sum"]);
        if let Some(limit) = self.limit_bytes {
            let whose = "of the machine, its control group or --memory";
            table.row(["limit", &in_units(limit), whose]);
        }
        table
    }

    /// How far peak and plan may be apart.
    #[must_use]
    pub fn tolerated_bytes(&self) -> u64 {
        TOLERATED_BYTES.max((self.total_bytes as f64 * TOLERATED_SHARE) as u64)
    }
}
