//! Reports: JSON with a schema version is the truth; the view for people is a `Document` made from
//! it.

pub mod check;
pub mod gates;
mod gates_document;
pub mod inspect;
pub mod layers;
mod layers_document;
pub mod least_error;
pub mod mutants;
