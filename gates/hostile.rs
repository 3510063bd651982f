//! Hostile inputs.
