//! The engine with one value off by a relative δ: how small an error do the gates still catch?
//!
//! A [`Site`] is a place where a clause forms a value (a product, an ε, a scale, a weight). The
//! engine with that site perturbed by δ computes value·(1+δ) there, in f64 and rounded once, and
//! everything else as in production; with δ = 0 it is production, bit for bit. What comes from the
//! checkpoint or from a call is perturbed there, everything else in the kernels. Clauses without a
//! number of their own have a site only where right and wrong can be blended by δ.

mod kernels;
mod loaded;

use std::cell::Cell;
use std::sync::Arc;

use super::{Carried, Loaded, WrongEngine};
use k3_core::stages::Stage;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::State;

/// A place where a clause forms a value.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Unique name, clause first: `k4-query-scale`.
    pub id: &'static str,
    /// The clause that forms the value.
    pub clause: &'static str,
    /// What is multiplied by 1+δ, or blended.
    pub what: &'static str,
    place: Place,
}

/// Where the value is to be had.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the kernels.
    Kernels(fn(Kernels) -> Kernels),
    /// The same, in what the kernel makes of a stage that has been put out before.
    After(Stage, fn(Kernels) -> Kernels),
    /// In what is loaded.
    Loaded(fn(Delta, &mut Loaded)),
    /// In the state, before a call.
    Carried(fn(Delta, &mut State)),
    /// In the logits.
    Logits,
}

impl Site {
    /// The engine with this site off by `delta`, to be run within `Delta::here`.
    #[must_use]
    pub fn engine(&self, delta: Delta) -> WrongEngine {
        let right = WrongEngine::default();
        match self.place {
            Place::Kernels(change) | Place::After(_, change) => {
                WrongEngine { kernels: change(right.kernels), ..right }
            }
            Place::Loaded(change) => {
                let loaded = Arc::new(move |loaded: &mut Loaded| change(delta, loaded));
                WrongEngine { loaded: Some(loaded), ..right }
            }
            Place::Carried(change) => {
                WrongEngine { carried: Some(Arc::new(Off { delta, change })), ..right }
            }
            Place::Logits => right,
        }
    }

    /// The stage whose values are off as well, as they are put out.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        match self.place {
            Place::After(stage, _) => Some(stage),
            Place::Logits => Some(Stage::Logits),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Off {
    delta: Delta,
    change: fn(Delta, &mut State),
}

impl Carried for Off {
    fn before(&self, state: &mut State) {
        (self.change)(self.delta, state);
    }
}

thread_local! {
    /// δ of the perturbed kernels that run on this thread: a function of a table has no data.
    static HERE: Cell<Delta> = const { Cell::new(Delta(0.0)) };
}

/// A relative error.
#[derive(Debug, Clone, Copy)]
pub struct Delta(pub f64);

/// Puts δ back.
struct Restore(Delta);

impl Drop for Restore {
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}

impl Delta {
    /// Runs `work` with perturbed kernels off by this δ. They stay on this thread: the engine must
    /// have no threads of its own.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> T {
        let _restore = Restore(HERE.replace(self));
        work()
    }

    /// δ of the perturbed kernels on this thread.
    fn here() -> Self {
        HERE.get()
    }

    /// value·(1+δ). The sum is formed of value and value·δ: 1+δ itself would lose a δ below 2⁻⁵³.
    #[must_use]
    pub fn of(self, value: f64) -> f64 {
        if value.is_finite() { value + value * self.0 } else { value }
    }

    /// The same, rounded to f32 once.
    #[must_use]
    pub fn single(self, value: f32) -> f32 {
        self.of(f64::from(value)) as f32
    }

    fn all(self, values: &mut [f32]) {
        for value in values {
            *value = self.single(*value);
        }
    }

    fn copy(self, values: &[f32]) -> Vec<f32> {
        values.iter().map(|value| self.single(*value)).collect()
    }

    /// right + δ·(wrong − right), rounded to f32 once; an infinite wrong value has no share.
    fn blend(self, right: f32, wrong: f32) -> f32 {
        if !wrong.is_finite() {
            return right;
        }
        let (right, wrong) = (f64::from(right), f64::from(wrong));
        (right + self.0 * (wrong - right)) as f32
    }
}

/// Every site: the model's clauses in the order of MODEL.md section 2, then the arithmetic's.
#[must_use]
pub fn sites() -> Vec<Site> {
    let mut sites = [kernels::list(), loaded::list()].concat();
    let letters = ["L", "N", "R", "K", "M", "E", "S", "Q", "A"];
    let key = |site: &Site| {
        let (letter, number) = site.clause.split_at(1);
        let place = letters.iter().position(|other| *other == letter);
        (place, number.parse::<usize>().unwrap_or(0))
    };
    sites.sort_by_key(key);
    sites
}
