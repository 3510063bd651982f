//! Cutting text into pieces; nothing is ever merged across a cut.

use std::ops::Range;

use regex::Regex;

/// The released split pattern, verbatim: Han runs first, then words (case classes without Han, an
/// optional character before, a contraction after), one to three digits, punctuation with the
/// line ends behind it, line ends, white space. Unlike its relative o200k it takes no `/` into
/// the tail of punctuation.
pub const SPLIT_PATTERN: &str = concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The alternative with a look-ahead, which the engine in linear time does not have.
const LOOK_AHEAD: &str = r"\s+(?!\S)|";

/// The pattern, made ready.
#[derive(Debug, Clone)]
pub struct Splitter {
    pattern: Regex,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::new()
    }
}

impl Splitter {
    /// Makes it ready.
    #[must_use]
    #[expect(
        clippy::missing_panics_doc,
        reason = "a constant pattern, compiled by the tests"
    )]
    pub fn new() -> Self {
        let linear = SPLIT_PATTERN.replace(LOOK_AHEAD, "");
        #[expect(clippy::expect_used, reason = "as above")]
        let pattern = Regex::new(&linear).expect("the split pattern compiles");
        Self { pattern }
    }

    /// The pieces of a text, in order; joined they are the text.
    pub fn split<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let found = self.pattern.find_at(text, from)?;
            let piece = before_a_word(text, found.range());
            from = piece.end;
            Some(&text[piece])
        })
    }
}

/// What `\s+(?!\S)` does: white space that something follows leaves its last character to that.
/// A run with a line end in it was taken by `\s*[\r\n]+` and ends there; a run of one character
/// falls to `\s+`. What follows a greedy run at all is no white space.
fn before_a_word(text: &str, found: Range<usize>) -> Range<usize> {
    let piece = &text[found.clone()];
    let last = match piece.chars().next_back() {
        Some(last) if last.is_whitespace() && last != '\r' && last != '\n' => last,
        _ => return found,
    };
    if found.end == text.len() || piece.len() == last.len_utf8() {
        return found;
    }
    found.start..found.end - last.len_utf8()
}
