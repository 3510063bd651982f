//! Exit codes and hints for bad traces.

use crate::trace::TraceError;
use k3_core::exit::{Exit, Exits};

impl Exits for TraceError {
    fn exit(&self) -> Exit {
        match self {
            Self::Empty => Exit::Incomplete,
            _ => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Empty => Some("a trace of at least one request is needed"),
            Self::ByteSwapped(_) => Some("write the pairs little-endian"),
            Self::OutOfRange(_) => {
                Some("a trace of another model needs --model-layers, --experts and --top-k")
            }
            Self::Cut(_) => Some("the run that wrote it did not finish, or the copy is incomplete"),
            _ => None,
        }
    }
}
