//! Shared by all commands: output options, error lines, files written whole or not at all.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::{ThreadPool, ThreadPoolBuilder};

use k3_core::exit::{Exit, Exits};
use k3_core::host::files::replace_file;
use k3_core::host::{claims, files};
use k3_render::{Document, json};

/// The format of the report on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs; carries a schema version.
    Json,
}

/// Options of every command that reports.
#[derive(Debug, Clone, clap::Args)]
pub struct OutputArgs {
    /// Format of the report on stdout
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Folder for report.json, report.txt, the plots and report.html
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A bar on stderr that counts to `total`, on a terminal only.
#[must_use]
pub fn progress(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(what)
}

/// A command that could not reach a verdict: one error line, an optional hint, and the exit code.
#[derive(Debug)]
pub struct CommandError {
    /// What happened.
    pub error: anyhow::Error,
    /// The hint.
    pub hint: Option<String>,
    /// How the process ends.
    pub exit: Exit,
}

impl CommandError {
    /// An error with its exit code.
    pub fn new(error: impl Into<anyhow::Error>, exit: Exit) -> Self {
        Self { error: error.into(), hint: None, exit }
    }

    /// The same, naming the file it is about.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Self {
        self.error = self.error.context(path.display().to_string());
        self
    }

    /// The same with a hint line.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl<E: Exits> From<E> for CommandError {
    fn from(error: E) -> Self {
        let (exit, hint) = (error.exit(), error.hint().map(str::to_owned));
        Self { error: error.into(), hint, exit }
    }
}

/// A bad argument.
pub fn usage(message: impl Display) -> CommandError {
    CommandError::new(anyhow::anyhow!("{message}"), Exit::Usage)
}

/// An input that is missing, unreadable or corrupt, or a system that refuses.
pub fn bad_input(error: impl Into<anyhow::Error>) -> CommandError {
    CommandError::new(error, Exit::BadInput)
}

/// Sets the number of worker threads; 0 for one per processor.
pub fn pool(threads: usize) -> Result<ThreadPool, CommandError> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let refused = |error| anyhow::anyhow!("cannot start {threads} threads: {error}");
    pool.map_err(|error| CommandError::new(refused(error), Exit::Refused))
}

/// Writes the error to stderr and returns its exit code.
pub fn report_error(error: &CommandError) -> Exit {
    let mut stderr = io::stderr().lock();
    // If stderr is closed, the exit code has to do.
    let _ = writeln!(stderr, "error: {}", short(&in_one_line(&error.error)));
    if let Some(hint) = &error.hint {
        let _ = writeln!(stderr, "hint: {}", short(hint));
    }
    error.exit
}

/// The text on one line of at most 390 characters: control characters are escaped, and a longer
/// text loses its middle, since it begins with the place and ends with the cause.
fn short(text: &str) -> String {
    let mut line = Vec::new();
    for c in text.trim_end().chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    if line.len() <= 390 {
        return line.into_iter().collect();
    }
    let (head, tail) = (&line[..220], &line[line.len() - 120..]);
    let omitted = line.len() - head.len() - tail.len();
    let [head, tail] = [head, tail].map(|part| part.iter().collect::<String>());
    format!("{head} … {omitted} characters … {tail}")
}

/// An error and its causes; a cause whose text the error already contains is omitted.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// A closed pipe is not an error; any other failure to write is.
pub fn quiet_pipe(result: io::Result<()>) -> Result<(), CommandError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let error = anyhow::anyhow!("stdout: {error}");
            Err(bad_input(error))
        }
        _ => Ok(()),
    }
}

/// Prints a report in the chosen format and writes it to `--out`. Numbers come first: a plot that
/// cannot be drawn is an error after them.
pub fn deliver(
    args: &OutputArgs,
    json: &impl serde::Serialize,
    document: &Document,
) -> Result<(), CommandError> {
    let [json, text] = write_report(args, json, document)?;
    print(match args.format {
        Format::Text => &text,
        Format::Json => &json,
    })?;
    write_page(args, document)
}

/// Prints to stdout; a closed pipe is quiet.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    quiet_pipe(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes a report's JSON and text to `--out`, if it is given, and returns both.
pub fn write_report(
    args: &OutputArgs,
    json: &impl serde::Serialize,
    document: &Document,
) -> Result<[String; 2], CommandError> {
    let json = json::to_text(json).map_err(bad_input)?;
    let text = document.text();
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
        write_whole(&folder.join("report.json"), json.as_bytes())?;
        write_whole(&folder.join("report.txt"), text.as_bytes())?;
    }
    Ok([json, text])
}

/// Writes a report's plots and page to `--out`, if it is given.
pub fn write_page(args: &OutputArgs, document: &Document) -> Result<(), CommandError> {
    let Some(folder) = &args.out else {
        return Ok(());
    };
    let figures = document.figures().map_err(bad_input)?;
    for (name, svg) in &figures {
        write_whole(&folder.join(format!("{name}.svg")), svg.as_bytes())?;
    }
    write_whole(&folder.join("report.html"), document.page(&figures).as_bytes())
}

/// Files of every report, besides its figures.
const REPORT_FILES: &[&str] = &["report.json", "report.txt", "report.html"];

/// Declares what a command reads and writes, `--out` included, before any work.
///
/// # Errors
/// An output that is an input or in a folder that is read, is another output, or is there and no
/// file (2); one that cannot be written (3).
pub fn claim(
    args: &OutputArgs,
    inputs: &[&Path],
    outputs: &[claims::Output<'_>],
) -> Result<(), CommandError> {
    let reports = args.out.as_deref().map(|out| claims::Output::Reports(out, REPORT_FILES));
    let all: Vec<_> = outputs.iter().copied().chain(reports).collect();
    claims::check(inputs, &all).map_err(usage)?;
    let is_writable = |folder: &Path| tempfile::tempfile_in(folder).map(|_| ());
    if let Some(folder) = &args.out {
        let made = fs::create_dir_all(folder).and_then(|()| is_writable(folder));
        made.map_err(|error| unwritable(folder, &error))?;
    }
    for output in outputs {
        if let claims::Output::File(path) = output {
            let error =
                is_writable(files::folder_of(path)).map_err(|error| unwritable(path, &error));
            error.map_err(|error| error.hint("its folder must exist and be writable"))?;
        }
    }
    Ok(())
}

/// Refuses a large file that the disk has no room for, before any work.
pub fn check_space(path: &Path, bytes: u64) -> Result<(), CommandError> {
    let folder = files::folder_of(path);
    let free = files::free_bytes(folder).map_err(|error| unwritable(path, &error))?;
    if bytes <= free {
        return Ok(());
    }
    let path = path.display();
    let what =
        format!("{path}: expected room for {bytes} bytes, {free} bytes are free on its disk");
    Err(CommandError::new(anyhow::anyhow!(what), Exit::Refused).hint("nothing was written"))
}

/// Writes a file whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    replace_file(path, bytes).map_err(|error| unwritable(path, &error))
}

/// A path that cannot be written.
pub fn unwritable(path: &Path, error: &io::Error) -> CommandError {
    bad_input(anyhow::anyhow!("{}: cannot write: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_stays_one_line_of_at_most_400_characters() {
        let line = short(&format!("a.json: {}\n\u{1b}[31m: the cause", "x".repeat(5_000_000)));
        assert!("error: ".len() + line.chars().count() <= 400, "{line}");
        assert!(
            line.starts_with("a.json: ") && line.ends_with("\\n\\u{1b}[31m: the cause"),
            "{line}"
        );
        assert_eq!(short("short\n"), "short");
    }

    /// Errors that name their cause and also return it as source printed it two or three times.
    #[test]
    fn a_cause_is_told_once() {
        let cause = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = anyhow::Error::new(cause).context("model/config.json: no such file");
        assert_eq!(in_one_line(&error), "model/config.json: no such file");
        let error = error.context("cannot begin");
        let whole = "cannot begin: model/config.json: no such file";
        assert_eq!(in_one_line(&error), whole);
    }
}
