//! The cache laboratory: trials F and I, hostile traces, properties, reports.

mod command;
mod held_out;
mod hostile;
mod measured;
mod oracle;
mod plots;
mod prefetch;
mod properties;
mod reports;
mod trace_v1;
mod trials;
