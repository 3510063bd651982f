//! Text of a run: its vocabulary, the ids of the prompt, and the generated text as it streams.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use super::super::output::{CommandError, Format, bad_input, usage};
use super::super::text_input::{MAX_PROMPT_BYTES, SpecialArg, read_text};
use super::{GenerateArgs, eprint_text};
use k3_core::host::memory;
use k3_engine::model::EngineError;
use k3_text::ranks::FILE_NAME;
use k3_text::{K3_RANKS, K3_VOCABULARY, TextError, Tokenizer, Utf8Stream};

/// The vocabulary of a run.
#[derive(Debug)]
pub struct RunText {
    /// It encodes and decodes.
    pub tokenizer: Tokenizer,
    /// Where it comes from, without a path.
    pub source: &'static str,
    /// The folder it was read from.
    pub folder: Option<PathBuf>,
    /// Resident bytes that opening it took.
    pub held_bytes: u64,
}

impl RunText {
    /// Opens the vocabulary if the run reads or writes text: from `--tokenizer`, the model's
    /// folder, or the built-in one, in this order.
    ///
    /// # Errors
    /// Text for a vocabulary that is not K3's (2); files that are wrong (3).
    pub fn open(
        args: &GenerateArgs,
        model: &Path,
        vocabulary: usize,
    ) -> Result<Option<Self>, CommandError> {
        let asked = args.text_option();
        if vocabulary != K3_VOCABULARY {
            let Some(option) = asked else { return Ok(None) };
            let error = usage(format!(
                "{option}: expected a model with K3's vocabulary of {K3_VOCABULARY} ids, got \
                 vocab_size {vocabulary}"
            ));
            return Err(error.hint("give token ids: --ids 1,2,3"));
        }
        if asked.is_none() && args.tf_check {
            return Ok(None);
        }
        let before = memory::resident_bytes();
        let (source, folder) = match &args.tokenizer {
            Some(folder) => ("--tokenizer", Some(folder.clone())),
            // A dangling link is an error, not an absent file.
            None if model.join(FILE_NAME).symlink_metadata().is_ok() => {
                ("the model's folder", Some(model.to_owned()))
            }
            None => ("built in", None),
        };
        let tokenizer = match &folder {
            Some(folder) => Tokenizer::open(folder).map_err(|error| other_folder(error, source))?,
            None => Tokenizer::built_in()?,
        };
        if tokenizer.ranks() != K3_RANKS {
            let path = folder.unwrap_or_default().join(FILE_NAME);
            let error = anyhow::anyhow!(
                "{}: expected K3's {K3_RANKS} ranks, got {}",
                path.display(),
                tokenizer.ranks()
            );
            return Err(bad_input(error)
                .hint("without --tokenizer and without the file K3's vocabulary is built in"));
        }
        let place = folder.as_deref().map(Path::display);
        let place = place.map_or(String::new(), |place| format!(" ({place})"));
        eprint_text(&format!("vocabulary of the text: {source}{place}\n"));
        let held = memory::resident_bytes().zip(before);
        Ok(Some(Self {
            tokenizer,
            source,
            folder,
            held_bytes: held.map_or(0, |(now, before)| now.saturating_sub(before)),
        }))
    }

    /// The ids of `--prompt` or `--prompt-file`, or none.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8 (3).
    pub fn prompt(&self, args: &GenerateArgs) -> Result<Option<Vec<u32>>, CommandError> {
        let special = args.special.unwrap_or(SpecialArg::Text).into();
        let encode = |text: &str| Some(self.tokenizer.encode(text, special));
        match (&args.prompt, &args.prompt_file) {
            (Some(text), _) => Ok(encode(text)),
            (None, Some(path)) => Ok(encode(&read_text(path, MAX_PROMPT_BYTES)?)),
            (None, None) => Ok(None),
        }
    }

    /// The text of ids; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, CommandError> {
        let bytes = self.tokenizer.decode(ids)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The error for a bad vocabulary file, with a hint how to use another one.
fn other_folder(error: TextError, source: &str) -> CommandError {
    let error = CommandError::from(error);
    if source == "--tokenizer" {
        return error;
    }
    error.hint("--tokenizer DIR reads the vocabulary of another folder")
}

/// Streams the generated text to stdout: whole characters only, each chunk at once.
#[derive(Debug)]
pub struct TextOutput<'a> {
    text: &'a RunText,
    stream: Utf8Stream,
    ends_line: bool,
    reader_left: bool,
}

impl<'a> TextOutput<'a> {
    /// Begins, if text goes to stdout.
    #[must_use]
    pub fn new(args: &GenerateArgs, text: Option<&'a RunText>) -> Option<Self> {
        let wanted = args.output.format == Format::Text && !args.tf_check;
        Some(Self {
            text: text.filter(|_| wanted)?,
            stream: Utf8Stream::default(),
            ends_line: true,
            reader_left: false,
        })
    }

    /// Whether the reader closed the pipe.
    #[must_use]
    pub fn reader_left(&self) -> bool {
        self.reader_left
    }

    /// The next id.
    pub fn push(&mut self, id: u32) -> Result<(), EngineError> {
        let mut bytes = Vec::new();
        let decoded = self.text.tokenizer.decode_into(id, &mut bytes);
        decoded.map_err(|error| EngineError::source("the generated text", error))?;
        let text = self.stream.push(&bytes);
        self.write(&text)
    }

    /// Flushes an incomplete character, and ends the line on a terminal.
    pub fn finish(mut self) -> Result<(), EngineError> {
        let rest = std::mem::take(&mut self.stream).finish();
        self.write(&rest)?;
        if !self.ends_line && io::stdout().is_terminal() {
            self.write("\n")?;
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<(), EngineError> {
        if text.is_empty() || self.reader_left {
            return Ok(());
        }
        self.ends_line = text.ends_with('\n');
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_left = true;
                Ok(())
            }
            written => written.map_err(|error| EngineError::source("stdout", error)),
        }
    }
}
