//! A table of tokens by rank: the strict reader of `tiktoken.model`, and encoding over the table.
//!
//! A line is a token in base64, one space, its rank; ranks are ids. Lines may end in CR LF, blank
//! lines may follow the last. Refused is what would make some text fail or come out otherwise
//! than it should, without a word: a byte without a token, a rank or a token twice, a gap.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::merge::Merger;
use super::pieces::Splitter;
use super::{K3_RANKS, read_whole};
use k3_checkpoint::{Malformed, Problem};

/// Name of the file in a folder.
pub const FILE_NAME: &str = "tiktoken.model";
/// Largest file: the released one has 2.8 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Characters of a line that a message shows.
const SHOWN_CHARS: usize = 40;

/// Tokens by rank and ranks by token.
#[derive(Debug)]
pub struct RankTable {
    ranks: HashMap<Box<[u8]>, u32>,
    /// Bytes of all tokens, in the order of their ranks.
    bytes: Vec<u8>,
    /// Where the token of each rank ends in `bytes`.
    ends: Vec<usize>,
    longest_bytes: usize,
    splitter: Splitter,
}

impl RankTable {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Malformed`], naming the file and, where there is one, the line.
    pub fn read(path: &Path) -> Result<Self, Malformed> {
        let bytes = read_whole(path, MAX_FILE_BYTES)?;
        Self::parse(&bytes, path)
    }

    /// The table of a file's bytes; `path` is its name in messages.
    ///
    /// # Errors
    /// As [`RankTable::read`].
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, Malformed> {
        let ranks = parse_lines(text).map_err(|problem| problem.in_file(path))?;
        Ok(Self::of_ranks(ranks))
    }

    /// The table of ranks 0 to n-1, each given once.
    fn of_ranks(ranks: HashMap<Box<[u8]>, u32>) -> Self {
        let mut tokens: Vec<&[u8]> = vec![&[]; ranks.len()];
        for (token, rank) in &ranks {
            tokens[*rank as usize] = token;
        }
        let bytes = tokens.concat();
        let longest_bytes = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        let mut end = 0;
        let ends = tokens.iter().map(|token| {
            end += token.len();
            end
        });
        Self { ends: ends.collect(), bytes, longest_bytes, ranks, splitter: Splitter::new() }
    }

    /// Number of tokens: their ranks are 0 to this less 1.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the token of a rank below [`RankTable::count`].
    #[must_use]
    pub fn token(&self, rank: u32) -> &[u8] {
        let rank = rank as usize;
        let start = rank.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[rank]]
    }

    fn rank(&self, token: &[u8]) -> Option<u32> {
        // No hash of what is longer than any token.
        if token.len() > self.longest_bytes {
            return None;
        }
        self.ranks.get(token).copied()
    }

    /// Appends the ids of a text; markers in it are text.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger::default();
        for piece in self.splitter.split(text) {
            let piece = piece.as_bytes();
            match self.rank(piece) {
                Some(rank) => ids.push(rank),
                None => {
                    merger.merge(piece, |token| self.rank(token));
                    // Every part is a single byte or a join that had a rank.
                    ids.extend(merger.parts(piece).filter_map(|part| self.rank(part)));
                }
            }
        }
    }
}

fn parse_lines(text: &[u8]) -> Result<HashMap<Box<[u8]>, u32>, Problem> {
    let lines = text.split(|&byte| byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut lines: Vec<&[u8]> = lines.collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    let mut ranks: HashMap<Box<[u8]>, u32> = HashMap::with_capacity(lines.len());
    // The line of each rank.
    let mut places: Vec<usize> = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let added = parse_line(line)
            .and_then(|(token, rank)| add(&mut ranks, &mut places, (token, rank), index + 1));
        added.map_err(|what| Problem::new(format!("line {}", index + 1), what))?;
    }
    if ranks.is_empty() {
        return Err(Problem::whole("expected lines of base64 and a rank, got an empty file"));
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
        // A text with it could not be encoded.
        return Err(Problem::whole(format!(
            "expected a token for each of the 256 single bytes, got none for byte 0x{byte:02X}"
        )));
    }
    if let Some(rank) = places.iter().position(|&line| line == 0) {
        let (largest, lines) = (places.len() - 1, lines.len());
        return Err(Problem::whole(format!(
            "expected ranks 0 to {largest} without a gap, got none for rank {rank} ({lines} lines)"
        )));
    }
    Ok(ranks)
}

/// Takes a token with its rank, unless a line before had either.
fn add(
    ranks: &mut HashMap<Box<[u8]>, u32>,
    places: &mut Vec<usize>,
    (token, rank): (Vec<u8>, u32),
    line: usize,
) -> Result<(), String> {
    let at = rank as usize;
    if places.len() <= at {
        places.resize(at + 1, 0);
    }
    if places[at] != 0 {
        let first = places[at];
        return Err(format!(
            "expected every rank once, got rank {rank} again (first on line {first})"
        ));
    }
    match ranks.entry(token.into_boxed_slice()) {
        Entry::Occupied(first) => {
            let first = places[*first.get() as usize];
            return Err(format!("expected every token once, got that of line {first} again"));
        }
        Entry::Vacant(free) => free.insert(rank),
    };
    places[at] = line;
    Ok(())
}

fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(SHOWN_CHARS).collect()
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, u32), String> {
    if line.is_empty() {
        return Err("expected base64, a space and a rank, got a blank line".to_owned());
    }
    let mut fields = line.split(|&byte| byte == b' ');
    let (Some(token), Some(rank), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(format!("expected base64, one space and a rank, got {:?}", shown(line)));
    };
    let token = STANDARD.decode(token).map_err(|error| {
        let got = shown(token);
        format!(
            "expected base64 in fours of A-Z a-z 0-9 + / with = at its end, got {got:?}: {error}"
        )
    })?;
    if token.is_empty() {
        return Err("expected a token of at least one byte, got none".to_owned());
    }
    let plain = rank == b"0" || rank.first().is_some_and(|digit| *digit != b'0');
    let digits = plain && !rank.is_empty() && rank.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(rank).ok().filter(|_| digits);
    let number = number.and_then(|number| number.parse::<u32>().ok());
    match number.filter(|rank| (*rank as usize) < K3_RANKS) {
        Some(rank) => Ok((token, rank)),
        None => {
            let (last, got) = (K3_RANKS - 1, shown(rank));
            Err(format!("expected a rank from 0 to {last} in decimal digits, got {got:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lenient decoder would let through what no writer of the file makes.
    #[test]
    fn base64_is_strict() {
        let token = |text: &str| parse_line(format!("{text} 7").as_bytes()).map(|(token, _)| token);
        assert_eq!(token("4oI="), Ok(vec![0xE2, 0x82]));
        let wrong = [
            "Zg", "Zg=", "Zg===", "====", "Z===", "Zh==", "Zm9=", "Zm-v", "Zm_v", "Z=9v", "Zm9v\t",
            "Zg==Zg==",
        ];
        for text in wrong {
            let refused = token(text).expect_err(text);
            assert!(refused.starts_with("expected base64 in fours"), "{text}: {refused}");
        }
    }
}
