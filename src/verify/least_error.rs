//! The least detectable error: for each site and each gate, the smallest δ that turns it red.
//!
//! The engine is run with one value off by δ = 2^e. From [`TOP`] downwards δ falls by factors of
//! [`STRIDE`] powers of two until a gate has stayed green twice in a row; between the last red and
//! the first green the exponent is bisected. A gate need not be monotone in δ (ids may come out
//! right by luck), so a lone red below a green does not count, and a green above the answer is
//! reported. Gates that run over hundreds of tokens are searched around the answer of a faster one
//! that judges alike, outwards by 1, 2, 4, …; where the answers agree that is one red and one
//! green. The engine's bits are the contract's, so the table is the same on every machine.

use std::collections::BTreeMap;

use super::context::Context;
use super::evidence::EvidenceSet;
use super::kernels::KernelFixtures;
use super::kill_matrix::caught;
use super::outcome::Verdict;
use super::registry::{Gate, of_subjects};
use super::runner::{in_parallel, judge};
use super::subjects;
use crate::mutants::perturbed::Site;
use k3_core::config::MLA_NORM_EPS;

/// Exponent of the largest δ tried: a value 257 times too large.
pub const TOP: i32 = 8;
/// Exponent of the smallest δ tried: the last bit of an f64.
pub const BOTTOM: i32 = -52;
/// Powers of two between neighbours of the scan.
pub const STRIDE: i32 = 4;

/// A gate that takes long, and the faster one whose answer is looked at first.
const LOOKED_AT_FIRST: [(&str, &str); 2] =
    [("teacher-forcing-long", "teacher-forcing"), ("incremental", "greedy")];

/// What one gate sees of one site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Least {
    /// Green at every δ tried.
    Unseen,
    /// Red from 2^`exponent` on, green at half of that.
    At {
        /// log₂ δ.
        exponent: i32,
        /// Whether no larger δ that was tried was green.
        monotone: bool,
    },
}

impl Least {
    /// log₂ of the smallest δ that is seen.
    #[must_use]
    pub fn exponent(self) -> Option<i32> {
        match self {
            Self::Unseen => None,
            Self::At { exponent, .. } => Some(exponent),
        }
    }
}

/// One site on every gate.
#[derive(Debug, Clone)]
pub struct SiteRow {
    /// The site.
    pub site: Site,
    /// One answer per gate, in the order of the ladder.
    pub cells: Vec<Least>,
}

/// The table.
#[derive(Debug, Clone)]
pub struct LeastErrors {
    /// Ids of the gates, in the order of the ladder.
    pub gates: Vec<String>,
    /// Gates that are red with δ = 0: then the table means nothing.
    pub red_at_zero: Vec<String>,
    /// One row per site.
    pub rows: Vec<SiteRow>,
}

/// The gates that judge numbers.
fn gates_of_numbers() -> Vec<&'static Gate> {
    of_subjects().filter(|gate| gate.numbers).collect()
}

impl LeastErrors {
    /// Searches all gates for every site on the kernel fixtures and on `set`, with `threads`
    /// workers; `tick` is called after each site.
    #[must_use]
    pub fn run(
        kernels: &KernelFixtures,
        set: &EvidenceSet,
        sites: &[Site],
        threads: usize,
        tick: &(dyn Fn() + Sync),
    ) -> Self {
        let rungs = gates_of_numbers();
        let gates: Vec<String> = rungs.iter().map(|gate| gate.full_id(&set.name)).collect();
        // Without an error every site is the same engine, so one of them represents all.
        let zero = sites.first().map(|site| subjects::perturbed(*site, 0.0));
        let red_at_zero = zero.map_or_else(Vec::new, |source| {
            let context = Context::new(set, source.as_ref(), MLA_NORM_EPS);
            let is_red = |place: &usize| red(kernels, &context, rungs[*place]);
            let red = (0..rungs.len()).filter(is_red);
            red.map(|place| gates[place].clone()).collect()
        });
        let rows = in_parallel(threads, sites.len(), |index| {
            let row = one_site(kernels, set, sites[index], &rungs);
            tick();
            row
        });
        Self { gates, red_at_zero, rows }
    }
}

/// The row of one site.
fn one_site(kernels: &KernelFixtures, set: &EvidenceSet, site: Site, rungs: &[&Gate]) -> SiteRow {
    let sources: BTreeMap<i32, _> = (BOTTOM..=TOP)
        .map(|exponent| {
            let delta = f64::from(exponent).exp2();
            (exponent, subjects::perturbed(site, delta))
        })
        .collect();
    let contexts: BTreeMap<i32, _> = sources
        .iter()
        .map(|(e, source)| (*e, Context::new(set, source.as_ref(), MLA_NORM_EPS)))
        .collect();
    let mut cells: Vec<Least> = Vec::with_capacity(rungs.len());
    for rung in rungs {
        let is_red = |exponent| red(kernels, &contexts[&exponent], rung);
        let near = looked_at_first(rungs, rung).and_then(|place| cells[place].exponent());
        cells.push(match near {
            Some(near) => least_near(near, is_red),
            None => least(is_red),
        });
    }
    SiteRow { site, cells }
}

/// Place of the gate whose answer is looked at before this one is searched.
fn looked_at_first(rungs: &[&Gate], gate: &Gate) -> Option<usize> {
    let (_, first) = LOOKED_AT_FIRST.iter().find(|(slow, _)| *slow == gate.id)?;
    rungs.iter().position(|gate| gate.id == *first)
}

fn red(kernels: &KernelFixtures, context: &Context<'_>, gate: &Gate) -> bool {
    caught(|| judge(gate, kernels, context)).verdict == Verdict::Fail
}

/// Scans and bisects; `red` says whether a gate is red at δ = 2^exponent.
fn least(mut red: impl FnMut(i32) -> bool) -> Least {
    let mut scanned: Vec<(i32, bool)> = Vec::new();
    for exponent in (BOTTOM..=TOP).rev().step_by(STRIDE as usize) {
        scanned.push((exponent, red(exponent)));
        if matches!(scanned.as_slice(), [.., (_, false), (_, false)]) {
            break;
        }
    }
    let counts = |place: usize| scanned[place].1 && (place == 0 || scanned[place - 1].1);
    let Some(last) = (0..scanned.len()).rev().find(|place| counts(*place)) else {
        return Least::Unseen;
    };
    let monotone = scanned[..last].iter().all(|(_, red)| *red);
    let mut exponent = scanned[last].0;
    // Below the last red that counts is a green, or the end of the scan.
    if last + 1 < scanned.len() {
        exponent = bisect(exponent, exponent - STRIDE, red);
    }
    Least::At { exponent, monotone }
}

/// Goes outwards from `near`, by 1, 2, 4, … powers of two, to the other colour, and bisects.
fn least_near(near: i32, mut red: impl FnMut(i32) -> bool) -> Least {
    let is_seen = red(near);
    let (mut inner, mut step) = (near, 1);
    let outer = loop {
        let at = if is_seen { near - step } else { near + step }.clamp(BOTTOM, TOP);
        if at == inner {
            break None;
        }
        if red(at) != is_seen {
            break Some(at);
        }
        inner = at;
        step *= 2;
    };
    let exponent = match (outer, is_seen) {
        (None, false) => return Least::Unseen,
        (None, true) => inner,
        (Some(outer), true) => bisect(inner, outer, red),
        (Some(outer), false) => bisect(outer, inner, red),
    };
    // Every green that was tried is below the red.
    Least::At { exponent, monotone: true }
}

/// The lowest red next to a green between a red and a green below it.
fn bisect(mut seen: i32, mut unseen: i32, mut red: impl FnMut(i32) -> bool) -> i32 {
    while seen - unseen > 1 {
        let middle = i32::midpoint(seen, unseen);
        if red(middle) {
            seen = middle;
        } else {
            unseen = middle;
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every border is found to the power of two, and a gate that sees nothing is reported.
    #[test]
    fn the_border_is_found_wherever_it_lies() {
        for border in BOTTOM..=TOP {
            let found = least(|exponent| exponent >= border);
            let monotone = true;
            let exponent = border;
            assert_eq!(found, Least::At { exponent, monotone }, "{border}");
            for near in [BOTTOM, -20, border, TOP] {
                let found = least_near(near, |exponent| exponent >= border);
                assert_eq!(found, Least::At { exponent, monotone }, "{border} from {near}");
            }
        }
        assert_eq!(least(|_| false), Least::Unseen);
        assert_eq!(least_near(-20, |_| false), Least::Unseen);
    }

    /// A gate that is right by luck at one δ: the luck is reported, a lone red does not count.
    #[test]
    fn luck_is_not_taken_for_a_border() {
        let lucky = least(|exponent| exponent >= -9 && exponent != 0);
        assert_eq!(lucky, Least::At { exponent: -9, monotone: false });
        assert_eq!(least(|exponent| exponent == 4), Least::Unseen);
        let lone = least(|exponent| exponent >= 0 || exponent == -8);
        assert_eq!(lone.exponent(), Some(0));
    }
}
