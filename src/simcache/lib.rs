//! The cache laboratory: offline study of the expert cache.
//!
//! If the machine cannot hold all experts, speed depends on how often the next expert is already in
//! memory. The laboratory reads a trace of expert requests ([`k3_cache::trace`]), decides in which
//! order incremental decoding would have asked ([`order`]), cuts it into groups that are looked up
//! together ([`workload`]) and answers for every number of slots: LRU ([`stack_distance`]) and the
//! optimum ([`optimum`]) in one pass each, other policies ([`k3_cache::policy`]) by replay
//! ([`replay`]) through the slot table ([`k3_cache::slot_table`]) that the engine uses too.
//!
//! It reads no weights and measures no disk: rates are arguments.

pub mod against_measured;
pub mod curve;
mod document;
mod exits;
pub mod forecast;
pub mod generator;
pub mod limits;
pub mod measured;
pub mod optimum;
pub mod order;
mod plots;
pub mod prefetch;
pub mod recorded_run;
pub mod replay;
pub mod report;
pub mod stack_distance;
pub mod statistics;
pub mod study;
pub mod tables;
pub mod view;
pub mod workload;
