//! Running where the weights do not fit: trials E, G04 to G06, G08 and the `generate` part of H.

mod command;
mod experts;
mod files;
mod interrupt;
mod invariance;
mod layers;
mod make;
mod memory;
mod pack;
mod state;
