//! Exit codes and hints for checkpoints that cannot be written.

use crate::SynthError;
use crate::probe::ProbeError;
use k3_core::exit::{Exit, Exits};

impl Exits for SynthError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSpace(_) | Self::Threads(_) => Exit::Refused,
            Self::Io(_) => Exit::BadInput,
            Self::ZeroBlock(_) => Exit::Disagrees,
            _ => Exit::Usage,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Size(_) => "see k3-verify synth --help",
            Self::Taken(_) => "name a folder that is empty or not there yet",
            Self::OtherCheckpoint(_) => {
                "nothing was changed; name another folder, or give the sizes and the seed it was \
                 made with"
            }
            Self::Busy(_) => "wait for it to end",
            Self::NoSpace(_) => {
                "nothing was written; smaller: --layers, --experts, --vocab, or --sparse for holes"
            }
            Self::Io(_) => "complete shards are kept; the same command resumes there",
            Self::ZeroBlock(_) => "another --seed",
            Self::Config(_) | Self::Layout(_) => "smaller sizes",
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
