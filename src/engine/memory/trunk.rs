//! Which layers to pin under a limit.
//!
//! A pinned byte saves a byte of reading per token, whichever layer it is in, so what counts is
//! how full the limit gets. Slots of the ring must hold the largest layer that is not pinned:
//! pinning the largest layers first makes the slots smaller as well. On the released sizes
//! (layer 0 is dense and twice the others) this holds more than a prefix of the layers at every
//! limit; `gates/outside/commands.rs` compares the two.

/// A choice of pinned layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pinned {
    /// Layers, ascending.
    pub layers: Vec<usize>,
    /// Bytes they take.
    pub pinned_bytes: u64,
    /// Bytes of one slot of the ring; 0 when every layer is pinned.
    pub slot_bytes: u64,
}

/// The choice that pins most bytes with `ring_slots` slots besides, by layer sizes; `None` when not
/// even the slots fit. Largest first, with every number of largest layers tried.
#[must_use]
pub fn choose(layer_bytes: &[u64], ring_slots: usize, limit_bytes: u64) -> Option<Pinned> {
    let mut order: Vec<usize> = (0..layer_bytes.len()).collect();
    order.sort_by_key(|&layer| (std::cmp::Reverse(layer_bytes[layer]), layer));
    let mut best: Option<Pinned> = None;
    let mut must_bytes = 0;
    for must in 0..=order.len() {
        let slot_bytes = order.get(must).map_or(0, |&layer| layer_bytes[layer]);
        let fixed = must_bytes + ring_slots as u64 * slot_bytes;
        if let Some(mut left) = limit_bytes.checked_sub(fixed) {
            let mut layers = order[..must].to_vec();
            // The slots are there for the layer at `must`: that one is not pinned.
            for &layer in order.iter().skip(must + 1) {
                if layer_bytes[layer] <= left {
                    left -= layer_bytes[layer];
                    layers.push(layer);
                }
            }
            layers.sort_unstable();
            let pinned_bytes = layers.iter().map(|&layer| layer_bytes[layer]).sum();
            if best.as_ref().is_none_or(|best| pinned_bytes > best.pinned_bytes) {
                best = Some(Pinned { layers, pinned_bytes, slot_bytes });
            }
        }
        must_bytes += slot_bytes;
    }
    best
}

/// The least bytes with which the layers can run with that many slots: slots alone, or some layers
/// pinned and smaller slots, or all pinned.
#[must_use]
pub fn least_bytes(layer_bytes: &[u64], ring_slots: usize) -> u64 {
    let mut order = layer_bytes.to_vec();
    order.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
    let mut pinned = 0;
    let mut least = u64::MAX;
    for slot in order.into_iter().chain([0]) {
        least = least.min(pinned + ring_slots as u64 * slot);
        pinned += slot;
    }
    least
}

/// The longest prefix of the layers that fits with its slots; for comparison.
#[must_use]
pub fn prefix(layer_bytes: &[u64], ring_slots: usize, limit_bytes: u64) -> Option<Pinned> {
    let choice = |count: usize| {
        let pinned_bytes = layer_bytes[..count].iter().sum();
        let slot_bytes = layer_bytes[count..].iter().copied().max().unwrap_or(0);
        Pinned { layers: (0..count).collect(), pinned_bytes, slot_bytes }
    };
    let fits = |pinned: &Pinned| {
        pinned.pinned_bytes + ring_slots as u64 * pinned.slot_bytes <= limit_bytes
    };
    let longest_first = (0..=layer_bytes.len()).rev();
    longest_first.map(choice).find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit is kept, everything is pinned once it fits, and nothing fits into nothing.
    #[test]
    fn the_budget_is_kept_at_every_size() {
        let sizes = [230, 90, 90, 60, 90, 90, 90, 60, 61];
        let all: u64 = sizes.iter().sum();
        for ring in 1..=3 {
            for limit in 0..=all + 700 {
                let Some(pinned) = choose(&sizes, ring, limit) else {
                    assert!(limit < least_bytes(&sizes, ring));
                    continue;
                };
                assert!(limit >= least_bytes(&sizes, ring));
                let slots = if pinned.layers.len() == sizes.len() {
                    assert_eq!(pinned.slot_bytes, 0);
                    0
                } else {
                    ring as u64
                };
                assert!(pinned.pinned_bytes + slots * pinned.slot_bytes <= limit);
                let streamed = (0..sizes.len()).filter(|layer| !pinned.layers.contains(layer));
                let largest = streamed.map(|layer| sizes[layer]).max().unwrap_or(0);
                assert!(largest <= pinned.slot_bytes);
                let by_prefix = prefix(&sizes, ring, limit).unwrap();
                assert!(pinned.pinned_bytes >= by_prefix.pinned_bytes, "{limit}");
            }
            let full = choose(&sizes, ring, all).unwrap();
            assert_eq!(full.layers.len(), sizes.len());
        }
    }
}
