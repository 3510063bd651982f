//! Running where the weights do not fit: trials E, G04 to G06, G08 and the `generate` part of H.
//!
//! Most run on the tiny oracle that ships; outside data is reached through `K3_EXTERNAL`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "stream/command.rs"]
mod command;
#[path = "stream/container.rs"]
mod container;
#[path = "stream/experts.rs"]
mod experts;
#[path = "stream/files.rs"]
mod files;
#[path = "stream/interrupt.rs"]
mod interrupt;
#[path = "stream/invariance.rs"]
mod invariance;
#[path = "stream/layers.rs"]
mod layers;
#[path = "stream/make.rs"]
mod make;
#[path = "stream/memory.rs"]
mod memory;
#[path = "stream/pack.rs"]
mod pack;
#[path = "stream/state.rs"]
mod state;
#[path = "support/widen.rs"]
mod widen;
