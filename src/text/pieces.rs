//! Cutting text into pieces; nothing is ever merged across a cut.

use std::ops::Range;

use regex::Regex;

/// The released split pattern, verbatim: Han runs first, then words (case classes without Han, an
/// optional character before, a contraction after), one to three digits, punctuation with the line
/// ends after it, line ends, white space. Unlike its relative o200k it takes no `/` into the tail
/// of punctuation.
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
    #[expect(clippy::missing_panics_doc, reason = "a constant pattern, compiled by the tests")]
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

/// Parts of a text, of at least `least_bytes` where it can be cut, that give the pieces of the
/// whole when each is split by itself.
///
/// A cut may be made before white space that is no line end and comes after something else: no
/// alternative takes both, none looks back, and the one that looks ahead takes white space only.
/// And after the last line end of white space: with a line end in it, `\s*[\r\n]+` is what takes
/// it, and that ends there.
pub fn apart(text: &str, least_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (part, others) = rest.split_at(cut(rest, least_bytes.max(1)));
        rest = others;
        Some(part)
    })
}

/// The first place from `least_bytes` on where a text may be cut; its end if there is none.
fn cut(text: &str, least_bytes: usize) -> usize {
    let mut from = least_bytes.min(text.len());
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let ends_line = |c: char| c == '\r' || c == '\n';
    let Some(mut before) = text[..from].chars().next_back() else {
        return text.len();
    };
    for (at, c) in text[from..].char_indices() {
        let at = from + at;
        let last_of_its_run = || {
            let mut white = text[at..].chars().take_while(|c| c.is_whitespace());
            !white.any(ends_line)
        };
        let may = match (before.is_whitespace(), c.is_whitespace()) {
            (false, true) => !ends_line(c),
            _ => ends_line(before) && last_of_its_run(),
        };
        if may {
            return at;
        }
        before = c;
    }
    text.len()
}
