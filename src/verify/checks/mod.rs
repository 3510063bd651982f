//! What the gates do, one file per gate. Each function judges one subject on one set and returns an
//! [`Outcome`](super::outcome::Outcome); which of them run, in which order, and what they catch is
//! data in [`super::registry`].

pub mod bind;
pub mod damage;
pub mod greedy;
pub mod incremental;
pub mod invariance;
pub mod stages;
pub mod teacher_forcing;
