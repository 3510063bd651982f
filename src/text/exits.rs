//! Exit codes and hints for bad vocabularies and text.

use crate::TextError;
use k3_core::exit::Exits;

impl Exits for TextError {}
