//! Exit codes and hints for inputs that the reference refuses.

use crate::ReferenceError;
use k3_core::exit::Exits;

impl Exits for ReferenceError {}
