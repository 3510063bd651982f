//! Reports for people and programs: JSON is the truth; text, plots and pages are pure functions
//! of it.

pub mod html;
pub mod json;
pub mod svg;
