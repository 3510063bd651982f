//! How a command ends for a vocabulary or text that is wrong.

use crate::TextError;
use k3_core::exit::Exits;

impl Exits for TextError {}
