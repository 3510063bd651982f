//! Exit codes and hints for checkpoints that cannot be written.

use crate::SynthError;
use crate::probe::ProbeError;
use k3_core::exit::{Exit, Exits};

impl Exits for SynthError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSpace { .. } => Exit::Refused,
            Self::Io { .. } | Self::Threads(_) => Exit::BadInput,
            Self::ZeroBlock { .. } => Exit::Disagrees,
            _ => Exit::Usage,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Size { .. } | Self::TooManyTensors { .. } => "see k3-verify synth --help",
            Self::NotAFolder { .. } | Self::ForeignFile { .. } => {
                "name a folder that is empty or not there yet"
            }
            Self::OtherCheckpoint { .. } => {
                "nothing was changed; name another folder, or give the sizes and the seed it was \
                 made with"
            }
            Self::Busy { .. } => "wait for it to end",
            Self::NoSpace { .. } => {
                "nothing was written; smaller: --layers, --experts, --vocab, or --sparse for holes"
            }
            Self::Io { .. } => "complete shards are kept; the same command resumes there",
            Self::ZeroBlock { .. } => "another --seed",
            Self::Config(_) | Self::Layout { .. } => "smaller sizes",
            Self::Threads(_) => "fewer --threads",
        })
    }
}

impl Exits for ProbeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Engine(_) => Exit::Disagrees,
            Self::Checkpoint(_) => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some("the checkpoint is complete, but does not run")
    }
}
