//! How a command ends for what the engine refuses.

use crate::generate::limits::LimitsError;
use crate::model::EngineError;
use crate::stream::ModelError;
use crate::stream::pack::PackError;
use k3_core::exit::{Exit, Exits};

impl Exits for EngineError {
    fn exit(&self) -> Exit {
        match self {
            Self::NonFiniteLogits { .. } | Self::RouterNan { .. } => Exit::Disagrees,
            Self::TokenId { .. } => Exit::Usage,
            Self::Interrupted => Exit::Incomplete,
            Self::Threads(_) => Exit::Refused,
            _ => Exit::BadInput,
        }
    }
}

impl Exits for ModelError {
    fn exit(&self) -> Exit {
        match self {
            Self::Engine(error) => error.exit(),
            Self::Layers { .. } => Exit::Usage,
            _ => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        let again = "make the packed trunk again with `k3-verify pack MODEL OUT`";
        matches!(self, Self::Pack(_)).then_some(again)
    }
}

impl Exits for PackError {
    fn exit(&self) -> Exit {
        match self {
            Self::Interrupted(_) => Exit::Incomplete,
            _ => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some("the layers packed so far are kept; the same command resumes there")
    }
}

impl Exits for LimitsError {
    fn exit(&self) -> Exit {
        match self {
            Self::DifferentIds(_) => Exit::Disagrees,
            Self::NoField(_) => Exit::BadInput,
        }
    }
}
