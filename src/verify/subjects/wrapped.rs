//! Mutants around a right subject: a loader that forgives, a batch whose tail is left over.
//!
//! These mistakes are outside the formulas. A forgiving loader is modelled by its effect: it
//! computes on a damaged checkpoint as if the damage were not there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::checks::damage::replace_text;
use crate::kill_matrix::Mutant;
use crate::registry::Needs;
use crate::subject::{
    Answer, KernelCase, Logits, Opening, Precision, Sequence, Subject, SubjectError, SubjectSource,
};
use k3_core::config::RawConfig;
use k3_core::stages::StageSink;

/// Rows that a batch kernel takes at once, in the mutant that forgets the rest.
const BLOCK_ROWS: usize = 4;

/// The mutants of this module around the subject that `make` yields.
pub fn mutants(make: impl Fn() -> Box<dyn SubjectSource>) -> Vec<Mutant> {
    let forgiving =
        |repair| -> Box<dyn SubjectSource> { Box::new(Forgiving { inner: make(), repair }) };
    vec![
        Mutant {
            id: "loader-absent-norm-forgiven".to_owned(),
            family: 'a',
            clauses: vec!["E8"],
            what: "a latent expert norm under an unknown name is taken for the missing one",
            source: forgiving(restore_norm_name),
        },
        Mutant {
            id: "loader-shape-by-count".to_owned(),
            family: 'a',
            clauses: vec!["K5"],
            what: "the loader compares element counts, not shapes",
            source: forgiving(restore_shape),
        },
        Mutant {
            id: "batch-tail-left-over".to_owned(),
            family: 'a',
            clauses: vec!["L3"],
            what: "rows after the last full block of four repeat that block's last logits",
            source: Box::new(TailForgotten { inner: make() }),
        },
    ]
}

/// Puts the checkpoint right before the inner subject sees it.
struct Forgiving {
    inner: Box<dyn SubjectSource>,
    repair: fn(&Path, &RawConfig),
}

fn restore_norm_name(folder: &Path, _config: &RawConfig) {
    // Nothing to restore in an undamaged copy.
    let _ = replace_text(folder, "routed_expert_nork.weight", "routed_expert_norm.weight");
}

fn restore_shape(folder: &Path, config: &RawConfig) {
    let (heads, width) = (config.kda_num_heads, config.hidden_size);
    for separator in [",", ", "] {
        let stored = format!("[{width}{separator}{heads}]");
        let right = format!("[{heads}{separator}{width}]");
        let _ = replace_text(folder, &stored, &right);
    }
}

/// A subject with the folder that it reads from.
struct OnCopy {
    inner: Box<dyn Subject>,
    _folder: k3_core::host::files::Scratch,
}

impl Subject for OnCopy {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        self.inner.sequence()
    }

    fn loaded(&self) -> Option<BTreeSet<String>> {
        self.inner.loaded()
    }
}

impl SubjectSource for Forgiving {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn offers(&self) -> &[Needs] {
        self.inner.offers()
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let failed = |error: std::io::Error| SubjectError::Failed(error.to_string());
        let folder = k3_core::host::files::scratch_folder("k3-verify-", None).map_err(failed)?;
        for entry in std::fs::read_dir(model.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A FIFO would be waited for.
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.path().join(entry.file_name()))
                    .map_err(failed)?;
            }
        }
        (self.repair)(folder.path(), model.config);
        let copy = Opening { dir: folder.path(), ..model };
        let inner = self.inner.open(copy)?;
        Ok(Box::new(OnCopy { inner, _folder: folder }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        self.inner.operation(case)
    }
}

/// Gives the rows after the last full block the logits of the row before them.
struct TailForgotten {
    inner: Box<dyn SubjectSource>,
}

struct TailForgottenSubject {
    inner: Box<dyn Subject>,
}

struct TailForgottenSequence<'a> {
    inner: Box<dyn Sequence + 'a>,
}

impl SubjectSource for TailForgotten {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn offers(&self) -> &[Needs] {
        self.inner.offers()
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        let inner = self.inner.open(model)?;
        Ok(Box::new(TailForgottenSubject { inner }))
    }

    fn operation(&self, case: KernelCase<'_>) -> Answer {
        self.inner.operation(case)
    }
}

impl Subject for TailForgottenSubject {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(TailForgottenSequence { inner: self.inner.sequence() })
    }

    fn loaded(&self) -> Option<BTreeSet<String>> {
        self.inner.loaded()
    }
}

impl Sequence for TailForgottenSequence<'_> {
    fn feed(&mut self, ids: &[u32], sink: &mut dyn StageSink) -> Result<Logits, SubjectError> {
        let mut logits = self.inner.feed(ids, sink)?;
        let full = ids.len() / BLOCK_ROWS * BLOCK_ROWS;
        if full > 0 {
            let last = logits.row(full - 1).to_vec();
            for row in logits.values.chunks_mut(last.len()).skip(full) {
                row.copy_from_slice(&last);
            }
        }
        Ok(logits)
    }
}
