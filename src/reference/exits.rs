//! How a command ends for what the reference refuses.

use crate::ReferenceError;
use k3_core::exit::Exits;

impl Exits for ReferenceError {}
