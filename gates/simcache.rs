//! The cache laboratory: published numbers, trials F and I, hostile traces, properties, reports.
//!
//! Numbers from outside (the real trace, the published measurements) are restated in tables here,
//! and read from the folder that K3_EXTERNAL names; without it those tests print NOT RUN.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a test that did not run says so")]

#[path = "simcache/command.rs"]
mod command;
#[path = "simcache/held_out.rs"]
mod held_out;
#[path = "simcache/hostile.rs"]
mod hostile;
#[path = "simcache/make.rs"]
mod make;
#[path = "simcache/measured.rs"]
mod measured;
#[path = "simcache/plots.rs"]
mod plots;
#[path = "simcache/prefetch.rs"]
mod prefetch;
#[path = "simcache/properties.rs"]
mod properties;
#[path = "simcache/published.rs"]
mod published;
#[path = "simcache/reports.rs"]
mod reports;
#[path = "simcache/trace_v1.rs"]
mod trace_v1;
#[path = "simcache/trials.rs"]
mod trials;
