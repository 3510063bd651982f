//! Reports: JSON with a schema version is the truth; text, plots and pages are pure functions of
//! it.

pub mod check;
pub mod gates;
pub mod gates_page;
pub mod inspect;
pub mod layers;
pub mod layers_page;
pub mod least_error;
pub mod mutants;
pub mod mutants_page;
