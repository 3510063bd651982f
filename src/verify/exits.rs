//! Exit codes and hints for inputs that cannot be judged.

use crate::answers::AnswerError;
use crate::audit::digests::DigestError;
use crate::compare::LogitFileError;
use crate::engine_command::TemplateError;
use crate::evidence::EvidenceError;
use crate::layers::journal::JournalError;
use crate::layers::merge::MergeError;
use crate::layers::range::RangeError;
use crate::layers::run::RunError;
use crate::layers::sources::SourcesError;
use crate::noise_floor::FloorError;
use crate::scale_out::PlanError;
use crate::tensor_file::TensorFileError;
use k3_core::exit::{Exit, Exits};

impl Exits for AnswerError {}
impl Exits for FloorError {}
impl Exits for PlanError {}
impl Exits for SourcesError {}

impl Exits for DigestError {
    fn hint(&self) -> Option<&'static str> {
        Some("sha256sum FILE... writes such a list")
    }
}

impl Exits for EvidenceError {
    fn hint(&self) -> Option<&'static str> {
        Some("an evidence set is a folder with model/, expected.json and expected.safetensors")
    }
}

impl Exits for JournalError {
    fn exit(&self) -> Exit {
        match self {
            Self::OtherRun(_) => Exit::Usage,
            _ => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some("another --out, or the same command without --resume")
    }
}

impl Exits for LogitFileError {
    fn hint(&self) -> Option<&'static str> {
        Some("a logit file is raw little-endian f32, JSON with logits_bits, safetensors or NumPy")
    }
}

impl Exits for MergeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Gap(_) => Exit::Incomplete,
            Self::Differs(_) => Exit::BadInput,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some("all parts 1/N to N/N of one run, each once")
    }
}

impl Exits for RangeError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl Exits for RunError {
    fn hint(&self) -> Option<&'static str> {
        Some("k3-verify check looks for damage")
    }
}

impl Exits for TemplateError {
    fn exit(&self) -> Exit {
        match self {
            // As an engine that cannot be started: nothing is known of it.
            Self::NoProgram(_) => Exit::Incomplete,
            _ => Exit::Usage,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some("for example --engine-cmd 'python3 engine.py {model} {ids} {gen} {logits}'")
    }
}

impl Exits for TensorFileError {
    fn hint(&self) -> Option<&'static str> {
        Some("a dump is a safetensors file of named tensors, as `dump` writes it")
    }
}
