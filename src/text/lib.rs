//! Text to token ids and back.
//!
//! A thin layer over the crate `tiktoken`, which carries K3's vocabulary and encodes with it. This
//! crate adds what it lacks: rank tables of a folder ([`ranks`], [`pieces`], [`merge`]), since none
//! of its constructors takes one; names for all 256 markers ([`markers`]), of which it has 16; an
//! error for an id without a token, which it ignores; time linear in the length of the text instead
//! of quadratic ([`pieces::apart`]); and text that is whole UTF-8 while its ids still come
//! ([`stream`]). Over K3's ranks both encoders must give the same ids, and the tests hold them to
//! that.
//!
//! The rules, from the released `tokenization_kimi.py` and its `tiktoken` table: markers first, if
//! they are to be read at all, the longest at each place; the texts between them separately; pieces
//! by [`pieces::SPLIT_PATTERN`]; a piece that is a token is one; otherwise its bytes are merged
//! pair by pair, the pair whose join has the lowest rank first.

pub mod error;
mod exits;
pub mod markers;
pub mod merge;
pub mod pieces;
pub mod ranks;
pub mod stream;

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use tiktoken::CoreBpe;

pub use error::TextError;
use k3_checkpoint::foreign::Foreign;
use k3_checkpoint::{Malformed, Problem};
pub use markers::Markers;
pub use ranks::RankTable;
pub use stream::Utf8Stream;

/// Ids of K3's vocabulary: ranks, then markers.
pub const K3_VOCABULARY: usize = 163_840;
/// Tokens with a rank; the ids from here on are markers.
pub const K3_RANKS: usize = 163_584;
/// Version of the Unicode tables for letters, numbers, white space and Han in
/// [`pieces::SPLIT_PATTERN`]: those of the crate `regex-syntax`, which both encoders use.
pub const UNICODE_VERSION: &str = "16.0.0";
/// Name of K3's encoding in the crate.
const K3_ENCODING: &str = "kimi_k3";
/// Resident bytes that an open tokenizer adds to a process, for the memory plan. Measured as
/// VmRSS before and after opening it and encoding two prompts: 21.6 MB by the crate, 17.8 MB by a
/// folder's files; 26.7 and 26.0 MB for a moment while it is opened.
pub const RESIDENT_BYTES: u64 = 22_000_000;
/// Bytes of text given to the crate at a time, until the next place where it may be cut. Version
/// 4.1.2 checks ALL of the rest of its text for UTF-8 at every piece of white space outside ASCII
/// (`adjust_whitespace_end`), so that a Chinese text, indented with U+3000, takes time by the
/// square of its length: 50 s for 0.8 MB. In parts the rest is short.
const PART_BYTES: usize = 4096;

/// How markers in a text are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// As the characters they are written with: no id from [`K3_RANKS`] on comes out.
    Text,
    /// As control tokens, one id each.
    Token,
}

/// Who encodes: the crate over the ranks it carries, or our own merge over a table.
enum Encoder {
    BuiltIn(&'static CoreBpe),
    Table(RankTable),
}

/// A vocabulary that encodes and decodes.
pub struct Tokenizer {
    encoder: Encoder,
    markers: Markers,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let built_in = matches!(self.encoder, Encoder::BuiltIn(_));
        f.debug_struct("Tokenizer")
            .field("built_in", &built_in)
            .field("ranks", &self.ranks())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// K3's vocabulary as the crate carries it.
    ///
    /// # Errors
    /// The crate carries another one.
    pub fn built_in() -> Result<Self, TextError> {
        let refuse = |got| {
            let what = format!("expected {K3_RANKS} ranks, got {got}");
            TextError::Vocabulary(Problem::new("the built-in vocabulary", what))
        };
        let core = tiktoken::get_encoding(K3_ENCODING).ok_or_else(|| refuse(0))?;
        if core.vocab_size() != K3_RANKS {
            return Err(refuse(core.vocab_size()));
        }
        let named = (K3_RANKS..K3_VOCABULARY).filter_map(|id| {
            let name = core.decode_to_string(&[id as u32]).ok()?;
            (!name.is_empty()).then_some((id as u32, name))
        });
        Ok(Self { markers: Markers::new(named.collect()), encoder: Encoder::BuiltIn(core) })
    }

    /// The vocabulary of a folder: `tiktoken.model` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// Every variant of [`TextError`] that names a file.
    pub fn open(folder: &Path) -> Result<Self, TextError> {
        let table = RankTable::read(&folder.join(ranks::FILE_NAME))?;
        let markers = Markers::read(&folder.join(markers::FILE_NAME), table.count())?;
        Ok(Self::of_table(table, markers))
    }

    /// A vocabulary of ranks and markers.
    #[must_use]
    pub fn of_table(table: RankTable, markers: Markers) -> Self {
        Self { encoder: Encoder::Table(table), markers }
    }

    /// Tokens with a rank: their ids are 0 to this number less 1.
    #[must_use]
    pub fn ranks(&self) -> usize {
        match &self.encoder {
            Encoder::BuiltIn(_) => K3_RANKS,
            Encoder::Table(table) => table.count(),
        }
    }

    /// The names of the markers.
    #[must_use]
    pub fn markers(&self) -> &Markers {
        &self.markers
    }

    /// Ids of a text.
    #[must_use]
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, special, &mut ids);
        ids
    }

    /// Ids of neighbouring segments: each encoded apart, never merged across a joint. This is how a
    /// control token next to a user's text stays one, and the text stays text.
    #[must_use]
    pub fn encode_segments(&self, segments: &[(&str, Special)]) -> Vec<u32> {
        let mut ids = Vec::new();
        for (text, special) in segments {
            self.encode_into(text, *special, &mut ids);
        }
        ids
    }

    fn encode_into(&self, text: &str, special: Special, ids: &mut Vec<u32>) {
        let mut from = 0;
        if special == Special::Token {
            for (place, id) in self.markers.find(text) {
                self.encode_plain(&text[from..place.start], ids);
                ids.push(id);
                from = place.end;
            }
        }
        self.encode_plain(&text[from..], ids);
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::BuiltIn(core) => {
                encode_in_parts(core, text, PART_BYTES, ids);
            }
            Encoder::Table(table) => table.encode(text, ids),
        }
    }

    /// Appends the bytes of an id.
    ///
    /// # Errors
    /// An id that stands for nothing.
    pub fn decode_into(&self, id: u32, bytes: &mut Vec<u8>) -> Result<(), TextError> {
        if let Some(name) = self.markers.name(id) {
            bytes.extend_from_slice(name.as_bytes());
            return Ok(());
        }
        match &self.encoder {
            Encoder::BuiltIn(core) if (id as usize) < K3_RANKS => bytes.extend(core.decode(&[id])),
            Encoder::Table(table) if (id as usize) < table.count() => {
                bytes.extend_from_slice(table.token(id));
            }
            _ => {
                let what = format!(
                    "expected an id of the vocabulary ({} ranks from 0 on, markers up to {}), \
                     got {id}",
                    self.ranks(),
                    K3_VOCABULARY - 1
                );
                return Err(TextError::Vocabulary(Problem::new(format!("token id {id}"), what)));
            }
        }
        Ok(())
    }

    /// The bytes of ids, which need not be UTF-8.
    ///
    /// # Errors
    /// An id that stands for nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TextError> {
        let mut bytes = Vec::new();
        for &id in ids {
            self.decode_into(id, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Ids of a text that the crate is given in parts.
fn encode_in_parts(core: &CoreBpe, text: &str, part_bytes: usize, ids: &mut Vec<u32>) {
    for part in pieces::apart(text, part_bytes) {
        ids.extend(core.encode(part));
    }
}

/// A whole file of a vocabulary, at most `limit_bytes` of it, if it is not plainly something else.
fn read_whole(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Malformed> {
    let unreadable = |reason| Malformed::unreadable(path, &reason);
    let file = k3_core::host::files::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let refused = |what: String| Err(Problem::whole(what).in_file(path));
    if bytes.len() as u64 > limit_bytes {
        return refused(format!("larger than the limit of {limit_bytes} bytes"));
    }
    Foreign::of_content(&bytes).map_or(Ok(bytes), |what| refused(what.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A cut inside a piece would change ids: parts of a few bytes against the text in one.
        #[test]
        fn parts_change_no_id(
            text in "([ \t\r\n\u{a0}\u{3000}a-zA-Z0-9.'/\u{4e2d}\u{301}é]|\\PC){0,80}",
            part_bytes in 1_usize..64,
        ) {
            let core = tiktoken::get_encoding(K3_ENCODING).unwrap();
            let mut ids = Vec::new();
            encode_in_parts(core, &text, part_bytes, &mut ids);
            prop_assert_eq!(ids, core.encode(&text));
        }
    }

    /// What the parts are for: the crate never sees more than a few of them at once, whatever
    /// white space there is.
    #[test]
    fn parts_stay_short_on_the_text_that_takes_time_by_the_square() {
        let text = "\u{3000}話說 天下\u{3000}é ".repeat(4000);
        let longest = pieces::apart(&text, PART_BYTES).map(str::len).max();
        assert!(longest.unwrap() < 2 * PART_BYTES);
    }
}
