//! `tokenize`: text to ids of K3's vocabulary, and back, byte for byte.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;

use super::generate::eprint_text;
use super::output::{self, CommandError, Format, bad_input};
use super::sizes::parse_id;
use super::text_input::{MAX_INPUT_BYTES, SpecialArg, name_of, read_text};
use k3_core::exit::Exit;
use k3_engine::generate::report::join;
use k3_text::{K3_RANKS, K3_VOCABULARY, Special, Tokenizer, UNICODE_VERSION};

/// Schema of the report.
const SCHEMA: &str = "k3-verify/tokenize/1";

/// Convert text to token ids of K3's vocabulary, and back.
///
/// Markers such as <|open|> in the text are plain text unless --special token is given. The ids are
/// printed as one line, separated by commas; empty input gives no ids. Text is split by the tables
/// of Unicode 16.0.0.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// File to read, - for stdin: text in UTF-8, or ids with --decode
    #[arg(value_name = "FILE", required_unless_present = "text")]
    input: Option<PathBuf>,
    /// The text itself, or the ids with --decode
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    text: Option<String>,
    /// Folder with tiktoken.model and tokenizer_config.json [default: K3's vocabulary, built in]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// How markers in the text are read
    #[arg(long, value_enum, default_value_t = SpecialArg::Text)]
    special: SpecialArg,
    /// Read ids (separated by commas or white space) and write their text, byte for byte
    #[arg(long, conflicts_with = "special")]
    decode: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the command.
///
/// # Errors
/// A file that is missing, not UTF-8 or not a vocabulary; an id without a token (3).
pub fn run(args: &TokenizeArgs) -> Result<Exit, CommandError> {
    let input = match (&args.text, &args.input) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path, MAX_INPUT_BYTES).map_err(|error| {
            let is_text = name_of(path) != "stdin" && !path.exists();
            if is_text { error.hint("--text TEXT takes the text itself") } else { error }
        })?,
        (None, None) => return Err(output::usage("expected FILE or --text TEXT")),
    };
    let tokenizer = match &args.tokenizer {
        Some(folder) => Tokenizer::open(folder),
        None => Tokenizer::built_in(),
    };
    let tokenizer = tokenizer?;
    if tokenizer.ranks() != K3_RANKS {
        // A file cut off at the end of a line is a valid smaller vocabulary, so this is the only
        // sign.
        eprint_text(&format!(
            "note: the vocabulary has {} ranks, K3's has {K3_RANKS}: the ids are not K3's\n",
            tokenizer.ranks()
        ));
    }
    let written = if args.decode {
        let ids = parse_ids(&input).map_err(|what| bad_ids(args, &what))?;
        let bytes = tokenizer.decode(&ids);
        let bytes = bytes.map_err(|error| bad_ids(args, &error.to_string()))?;
        decoded(args, &tokenizer, &ids, bytes)?
    } else {
        encoded(args, &tokenizer, &input)?
    };
    let mut stdout = io::stdout().lock();
    output::quiet_pipe(stdout.write_all(&written).and_then(|()| stdout.flush()))?;
    Ok(Exit::Conforms)
}

fn bad_ids(args: &TokenizeArgs, what: &str) -> CommandError {
    let name = args.input.as_deref().map_or("--text".to_owned(), name_of);
    let error = anyhow::anyhow!("{name}: {what}");
    bad_input(error).hint(format!(
        "ids are decimal numbers below {K3_VOCABULARY}, separated by commas or white space"
    ))
}

/// Parses ids separated by commas or white space.
fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    let mut ids = Vec::new();
    if text.trim().is_empty() {
        return Ok(ids);
    }
    let mut at_byte = 0;
    for part in text.split(',') {
        if part.trim().is_empty() {
            return Err(format!("byte {at_byte}: expected a token id, got nothing between commas"));
        }
        for word in part.split_whitespace() {
            // `word` is a slice of `text`, so the difference of their addresses is its offset.
            let at = word.as_ptr() as usize - text.as_ptr() as usize;
            ids.push(parse_id(word).map_err(|what| format!("byte {at}: {what}"))?);
        }
        at_byte += part.len() + 1;
    }
    Ok(ids)
}

fn encoded(
    args: &TokenizeArgs,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<Vec<u8>, CommandError> {
    let special = args.special;
    let ids = tokenizer.encode(text, special.into());
    if args.format == Format::Text {
        return Ok(format!("{}\n", join(&ids)).into_bytes());
    }
    let special = match Special::from(special) {
        Special::Text => "text",
        Special::Token => "token",
    };
    json(
        args,
        tokenizer,
        &serde_json::json!({
            "ids": ids,
            "special": special,
            "input_bytes": text.len(),
        }),
    )
}

fn decoded(
    args: &TokenizeArgs,
    tokenizer: &Tokenizer,
    ids: &[u32],
    bytes: Vec<u8>,
) -> Result<Vec<u8>, CommandError> {
    if args.format == Format::Text {
        return Ok(bytes);
    }
    json(
        args,
        tokenizer,
        &serde_json::json!({
            "ids": ids,
            "text": String::from_utf8_lossy(&bytes),
            "is_utf8": std::str::from_utf8(&bytes).is_ok(),
        }),
    )
}

/// The report, with the vocabulary that was used.
fn json(
    args: &TokenizeArgs,
    tokenizer: &Tokenizer,
    result: &serde_json::Value,
) -> Result<Vec<u8>, CommandError> {
    let folder = args.tokenizer.as_ref();
    let folder = folder.map_or("built-in".to_owned(), |folder| folder.display().to_string());
    let mut report = serde_json::json!({
        "schema": SCHEMA,
        "tokenizer": folder,
        "ranks": tokenizer.ranks(),
        "unicode": UNICODE_VERSION,
    });
    if let (Some(report), Some(result)) = (report.as_object_mut(), result.as_object()) {
        report.extend(result.clone());
    }
    Ok(k3_render::json::to_text(&report).map_err(bad_input)?.into_bytes())
}
