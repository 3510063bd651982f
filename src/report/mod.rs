//! Reports: JSON with a schema version is the truth; text, plots and pages are pure functions of
//! it.

pub mod check;
pub mod gates;
pub mod html;
pub mod inspect;
pub mod json;
pub mod layers;
pub mod mutants;
pub mod svg;
pub mod synth;
