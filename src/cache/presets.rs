//! Named splits of memory between trunk and experts, as data.
//!
//! The numbers are those of the laboratory's forecast, so that a forecast for a preset and a run
//! with it mean the same. `auto` is no entry: it takes what the machine has.

/// A named split of kimi-k3-in-c: trunk and experts in GB.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Trunk held, GB.
    pub trunk_gb: f64,
    /// Expert slots, GB.
    pub expert_gb: f64,
}

/// The published presets, smallest first.
pub const PRESETS: [Preset; 6] = [
    Preset { name: "ultra", trunk_gb: 2.5, expert_gb: 0.31 },
    Preset { name: "laptop", trunk_gb: 3.0, expert_gb: 1.0 },
    Preset { name: "desktop", trunk_gb: 16.0, expert_gb: 10.0 },
    Preset { name: "workstation", trunk_gb: 60.0, expert_gb: 30.0 },
    Preset { name: "server", trunk_gb: 110.0, expert_gb: 13.0 },
    Preset { name: "max", trunk_gb: 110.0, expert_gb: 109.0 },
];

/// The preset that uses all available memory.
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
