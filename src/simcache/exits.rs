//! Exit codes and hints for studies that cannot be made.

use crate::measured::MeasuredError;
use crate::study::StudyError;
use k3_core::exit::{Exit, Exits};

impl Exits for MeasuredError {}

impl Exits for StudyError {
    fn exit(&self) -> Exit {
        match self {
            Self::Cache(_) => Exit::Usage,
            Self::Trace(_) => Exit::BadInput,
            _ => Exit::Incomplete,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Empty => Some("the filters leave nothing"),
            Self::NoDecodeOrder(_) => Some("--order recorded replays the trace as it is"),
            _ => None,
        }
    }
}
