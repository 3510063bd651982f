//! Named splits of memory between trunk and experts, as data.
//!
//! The numbers are those of the laboratory's forecast, so that a forecast for a preset and a run
//! with it mean the same. `auto` is no entry: it takes what the machine has.

pub use crate::simcache::forecast::{PRESETS, Preset};

/// The preset that takes what there is.
pub const AUTO: &str = "auto";

/// The preset that streams the vocabulary too.
pub const ULTRA: &str = "ultra";

/// The names on the command line, smallest first.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).chain([AUTO]).collect()
}

/// The preset of that name; `None` for `auto` and for unknown names.
#[must_use]
pub fn named(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}
