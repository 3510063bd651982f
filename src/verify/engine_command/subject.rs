//! The command as a subject: every feed is a launch on everything fed so far.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::Template;
use super::launch::{LaunchError, Output, launch};
use crate::subject::{
    Generation, Logits, Opening, Recomputed, Sequence, Subject, SubjectError, SubjectSource,
};
use k3_core::Precision;

/// Name in reports.
const NAME: &str = "engine-cmd";

/// A foreign engine run by a command.
#[derive(Debug, Clone)]
pub struct EngineCommand {
    /// The command.
    pub template: Template,
    /// The precision of its activations, as the user says.
    pub precision: Precision,
}

impl SubjectSource for EngineCommand {
    fn name(&self) -> &str {
        NAME
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn open(&self, model: Opening<'_>) -> Result<Box<dyn Subject>, SubjectError> {
        Ok(Box::new(OnCheckpoint {
            template: self.template.clone(),
            model: model.dir.to_owned(),
            vocabulary: model.config.vocab_size,
            form: OnceLock::new(),
        }))
    }
}

/// What the rows of its logits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One per position fed.
    PerPosition,
    /// One per generated id.
    PerGenerated,
}

struct OnCheckpoint {
    template: Template,
    model: PathBuf,
    vocabulary: usize,
    form: OnceLock<Form>,
}

fn failed(error: LaunchError) -> SubjectError {
    let said = format!("the command {error}");
    match error {
        LaunchError::NoAnswer(_) => SubjectError::NotRun(said),
        LaunchError::Wrong(_) => SubjectError::Failed(said),
    }
}

impl OnCheckpoint {
    fn launch(&self, ids: &[u32], generate: usize) -> Result<Output, SubjectError> {
        launch(&self.template, &self.model, ids, generate, self.vocabulary).map_err(failed)
    }

    fn rows_error(&self, expected: String, got: usize) -> SubjectError {
        failed(LaunchError::rows(&expected, self.vocabulary, got))
    }

    /// The logits of every id given, from an empty state.
    fn logits_of(&self, ids: &[u32]) -> Result<Vec<f64>, SubjectError> {
        let given = ids.len();
        let output = self.launch(ids, 1)?;
        if output.rows == given || output.rows == given + 1 {
            if given > 1 {
                self.form.get_or_init(|| Form::PerPosition);
            }
            let mut logits = output.logits;
            logits.truncate(given * self.vocabulary);
            return Ok(logits);
        }
        if output.rows != 1 {
            let expected = format!("{given}, {} or 1", given + 1);
            return Err(self.rows_error(expected, output.rows));
        }
        self.form.get_or_init(|| Form::PerGenerated);
        let mut logits = Vec::with_capacity(given * self.vocabulary);
        for length in 1..given {
            let shorter = self.launch(&ids[..length], 1)?;
            if shorter.rows != 1 {
                return Err(self.rows_error("1".to_owned(), shorter.rows));
            }
            logits.extend(shorter.logits);
        }
        logits.extend(output.logits);
        Ok(logits)
    }

    /// Which form it writes; asked with a length at which the two differ.
    fn form(&self, ids: &[u32]) -> Result<Form, SubjectError> {
        if let Some(form) = self.form.get() {
            return Ok(*form);
        }
        let output = self.launch(ids, 1)?;
        let form =
            if output.rows == 1 && ids.len() > 1 { Form::PerGenerated } else { Form::PerPosition };
        Ok(*self.form.get_or_init(|| form))
    }
}

impl Subject for OnCheckpoint {
    fn sequence(&self) -> Box<dyn Sequence + '_> {
        Box::new(Recomputed::new(self.vocabulary, |ids: &[u32]| self.logits_of(ids)))
    }

    fn generate(&self, prompt: &[u32], count: usize) -> Option<Result<Generation, SubjectError>> {
        Some(self.generated(prompt, count))
    }
}

impl OnCheckpoint {
    fn generated(&self, prompt: &[u32], count: usize) -> Result<Generation, SubjectError> {
        let output = self.launch(prompt, count)?;
        let (given, rows) = (prompt.len(), output.rows);
        let ambiguous = rows == given && rows == count && count > 1;
        let per_generated = if ambiguous {
            self.form(prompt)? == Form::PerGenerated
        } else {
            rows == count && ![given + count, given + count - 1].contains(&rows)
        };
        let (first, kept) = if per_generated {
            (0, count)
        } else if rows == given + count || rows == given + count - 1 {
            (given - 1, count)
        } else if rows == given {
            (given - 1, 1)
        } else {
            let (all, more) = (given + count - 1, given + count);
            let expected = format!("{given}, {count}, {all} or {more}");
            return Err(self.rows_error(expected, rows));
        };
        let range = first * self.vocabulary..(first + kept) * self.vocabulary;
        Ok(Generation {
            ids: output.ids,
            logits: Logits {
                rows: kept,
                vocabulary: self.vocabulary,
                values: output.logits[range].to_vec(),
            },
        })
    }
}
