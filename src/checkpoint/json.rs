//! A strict, streaming JSON reader, shared by `config.json`, the index and shard headers.
//!
//! What is refused here is what lenient readers let through and two readers then see differently:
//! equal keys in one object, lone surrogates, leading zeros, `NaN`, trailing commas, a second
//! document, bytes that are not UTF-8, nesting without end. Numbers are handed out as the literal
//! that stands in the file, so no integer ever passes through a double. The source is read through
//! a fixed window: a document's size never decides an allocation. Not here: what a document
//! means; and no writer (tests and tools use `serde_json` for that).

use std::collections::BTreeMap;
use std::io::{self, Read};

pub use super::json_error::{FoundByte, JsonError};
pub use super::json_value::{Kind, Value};

/// Deepest nesting accepted; the released config has five levels, a header three.
pub const MAX_DEPTH: usize = 64;

/// Longest number literal accepted: no finite double and no 64-bit integer needs as many digits.
pub const MAX_NUMBER_BYTES: usize = 1024;

/// Bytes read at a time.
const WINDOW_BYTES: usize = 64 * 1024;

/// Where a reader stands inside an object or an array.
#[derive(Debug)]
pub struct Members {
    first: bool,
}

/// Reads one document from `source`, piece by piece.
#[derive(Debug)]
pub struct JsonReader<R> {
    source: R,
    window: Box<[u8]>,
    start: usize,
    end: usize,
    bytes_before_window: u64,
    depth: usize,
    literal: String,
}

impl<R: Read> JsonReader<R> {
    /// A reader at the first byte of `source`.
    pub fn new(source: R) -> Self {
        Self {
            source,
            window: vec![0; WINDOW_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            bytes_before_window: 0,
            depth: 0,
            literal: String::new(),
        }
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn at_byte(&self) -> u64 {
        self.bytes_before_window + self.start as u64
    }

    /// The next byte, white space included, without taking it; `None` at the end.
    ///
    /// # Errors
    /// [`JsonError::Io`].
    pub fn peek_byte(&mut self) -> Result<Option<u8>, JsonError> {
        if self.start < self.end || self.fill()? {
            return Ok(Some(self.window[self.start]));
        }
        Ok(None)
    }

    /// Kind of the value that follows, after white space.
    ///
    /// # Errors
    /// A byte that starts no value, or the end.
    pub fn peek_kind(&mut self) -> Result<Kind, JsonError> {
        const EXPECTED: &str = "a value";
        match self.peek_token(EXPECTED)? {
            b'n' => Ok(Kind::Null),
            b't' | b'f' => Ok(Kind::Bool),
            b'-' | b'0'..=b'9' => Ok(Kind::Number),
            b'"' => Ok(Kind::String),
            b'[' => Ok(Kind::Array),
            b'{' => Ok(Kind::Object),
            found => Err(self.unexpected(EXPECTED, found)),
        }
    }

    /// Takes `{`.
    ///
    /// # Errors
    /// Anything else, or nesting deeper than [`MAX_DEPTH`].
    pub fn begin_object(&mut self) -> Result<Members, JsonError> {
        self.begin(b'{', "'{'")
    }

    /// Takes `[`.
    ///
    /// # Errors
    /// Anything else, or nesting deeper than [`MAX_DEPTH`].
    pub fn begin_array(&mut self) -> Result<Members, JsonError> {
        self.begin(b'[', "'['")
    }

    /// Takes the next key and its colon into `key`; `false` when the object has ended.
    /// Equal keys are for the caller to refuse.
    ///
    /// # Errors
    /// Broken syntax, a key above `limit_bytes`.
    pub fn next_key(
        &mut self,
        members: &mut Members,
        key: &mut String,
        limit_bytes: usize,
    ) -> Result<bool, JsonError> {
        if !self.next_member(members, b'}', "',' or '}'")? {
            return Ok(false);
        }
        self.string(key, limit_bytes)?;
        self.take_token(b':', "':'")?;
        Ok(true)
    }

    /// Moves to the next element; `false` when the array has ended.
    ///
    /// # Errors
    /// Broken syntax.
    pub fn next_element(&mut self, members: &mut Members) -> Result<bool, JsonError> {
        self.next_member(members, b']', "',' or ']'")
    }

    /// Takes a string into `text` (cleared first), escapes resolved.
    ///
    /// # Errors
    /// Broken syntax, bytes that are not UTF-8, more than `limit_bytes`.
    pub fn string(&mut self, text: &mut String, limit_bytes: usize) -> Result<(), JsonError> {
        self.take_token(b'"', "a string")?;
        let at_byte = self.at_byte() - 1;
        let mut bytes = std::mem::take(text).into_bytes();
        bytes.clear();
        loop {
            if self.peek_byte()?.is_none() {
                return Err(self.ended("the end of a string"));
            }
            let window = &self.window[self.start..self.end];
            let run = plain_run(window);
            bytes.extend_from_slice(&window[..run]);
            let stop = window.get(run).copied();
            self.start += run;
            if bytes.len() > limit_bytes {
                return Err(JsonError::StringTooLong { at_byte, limit_bytes });
            }
            match stop {
                None => {}
                Some(b'"') => break,
                Some(b'\\') => self.escape(&mut bytes)?,
                Some(byte) => {
                    let (at_byte, found) = (self.at_byte(), FoundByte(byte));
                    return Err(JsonError::ControlCharacter { at_byte, found });
                }
            }
        }
        self.start += 1;
        *text = String::from_utf8(bytes).map_err(|_| JsonError::NotUtf8 { at_byte })?;
        Ok(())
    }

    /// Takes a number and gives its literal.
    ///
    /// # Errors
    /// Broken syntax, a leading zero, too many digits.
    pub fn number(&mut self) -> Result<&str, JsonError> {
        self.peek_token("a number")?;
        self.literal.clear();
        if self.take_plain_integer() {
            return Ok(&self.literal);
        }
        if self.peek_byte()? == Some(b'-') {
            self.take_into_literal()?;
        }
        let leading_zero = self.peek_byte()? == Some(b'0');
        if self.digits()? > 1 && leading_zero {
            let at_byte = self.at_byte() - self.literal.len() as u64;
            return Err(JsonError::LeadingZero { at_byte });
        }
        if self.peek_byte()? == Some(b'.') {
            self.take_into_literal()?;
            self.digits()?;
        }
        if matches!(self.peek_byte()?, Some(b'e' | b'E')) {
            self.take_into_literal()?;
            if matches!(self.peek_byte()?, Some(b'+' | b'-')) {
                self.take_into_literal()?;
            }
            self.digits()?;
        }
        Ok(&self.literal)
    }

    /// Takes a whole value of any kind.
    ///
    /// # Errors
    /// Broken syntax, equal keys in one object, nesting deeper than [`MAX_DEPTH`].
    pub fn value(&mut self) -> Result<Value, JsonError> {
        match self.peek_kind()? {
            Kind::Null => self.word("null").map(|()| Value::Null),
            Kind::Bool if self.peek_byte()? == Some(b't') => {
                self.word("true").map(|()| Value::Bool(true))
            }
            Kind::Bool => self.word("false").map(|()| Value::Bool(false)),
            Kind::Number => Ok(Value::Number(self.number()?.to_owned())),
            Kind::String => {
                let mut text = String::new();
                self.string(&mut text, usize::MAX)?;
                Ok(Value::String(text))
            }
            Kind::Array => {
                let mut members = self.begin_array()?;
                let mut items = Vec::new();
                while self.next_element(&mut members)? {
                    items.push(self.value()?);
                }
                Ok(Value::Array(items))
            }
            Kind::Object => self.object_value(),
        }
    }

    /// Makes sure that nothing but white space follows.
    ///
    /// # Errors
    /// [`JsonError::TrailingData`].
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.skip_white_space()?;
        self.end_padded_with(&[])
    }

    /// Makes sure that nothing but bytes of `padding` follows.
    ///
    /// # Errors
    /// [`JsonError::TrailingData`].
    pub fn end_padded_with(&mut self, padding: &[u8]) -> Result<(), JsonError> {
        while let Some(byte) = self.peek_byte()? {
            if !padding.contains(&byte) {
                let (at_byte, found) = (self.at_byte(), FoundByte(byte));
                return Err(JsonError::TrailingData { at_byte, found });
            }
            self.start += 1;
        }
        Ok(())
    }

    fn object_value(&mut self) -> Result<Value, JsonError> {
        let mut members = self.begin_object()?;
        let mut object = BTreeMap::new();
        let mut key = String::new();
        while self.next_key(&mut members, &mut key, usize::MAX)? {
            if object.contains_key(&key) {
                let at_byte = self.at_byte();
                return Err(JsonError::DuplicateKey { key, at_byte });
            }
            let value = self.value()?;
            object.insert(std::mem::take(&mut key), value);
        }
        Ok(Value::Object(object))
    }

    /// Refills the empty window; `false` at the end of the source.
    fn fill(&mut self) -> Result<bool, JsonError> {
        self.bytes_before_window += self.end as u64;
        self.start = 0;
        self.end = 0;
        loop {
            match self.source.read(&mut self.window) {
                Ok(count) => {
                    self.end = count;
                    return Ok(count > 0);
                }
                Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
                Err(reason) => {
                    let at_byte = self.at_byte();
                    return Err(JsonError::Io { at_byte, reason });
                }
            }
        }
    }

    fn skip_white_space(&mut self) -> Result<(), JsonError> {
        loop {
            let window = &self.window[self.start..self.end];
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            let run = window.iter().position(|byte| !is_space(byte));
            self.start += run.unwrap_or(window.len());
            if run.is_some() || !self.fill()? {
                return Ok(());
            }
        }
    }

    /// The next byte after white space, without taking it.
    fn peek_token(&mut self, expected: &'static str) -> Result<u8, JsonError> {
        self.skip_white_space()?;
        match self.peek_byte()? {
            Some(byte) => Ok(byte),
            None => Err(self.ended(expected)),
        }
    }

    fn take_token(&mut self, token: u8, expected: &'static str) -> Result<(), JsonError> {
        let found = self.peek_token(expected)?;
        if found != token {
            return Err(self.unexpected(expected, found));
        }
        self.start += 1;
        Ok(())
    }

    fn begin(&mut self, token: u8, expected: &'static str) -> Result<Members, JsonError> {
        self.take_token(token, expected)?;
        if self.depth == MAX_DEPTH {
            let at_byte = self.at_byte() - 1;
            return Err(JsonError::TooDeep { at_byte });
        }
        self.depth += 1;
        Ok(Members { first: true })
    }

    fn next_member(
        &mut self,
        members: &mut Members,
        close: u8,
        expected: &'static str,
    ) -> Result<bool, JsonError> {
        let mut found = self.peek_token(expected)?;
        if !members.first && found == b',' {
            self.start += 1;
            found = self.peek_token("a further member")?;
            if found == close {
                let at_byte = self.at_byte();
                return Err(JsonError::TrailingComma { at_byte });
            }
            return Ok(true);
        }
        if found == close {
            self.start += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if !members.first {
            return Err(self.unexpected(expected, found));
        }
        members.first = false;
        Ok(true)
    }

    /// Takes a number that is nothing but digits and lies in the window with the byte behind it:
    /// almost all numbers there are. `false`, and nothing taken, for any other.
    fn take_plain_integer(&mut self) -> bool {
        let window = &self.window[self.start..self.end];
        let Some(run) = window.iter().position(|byte| !byte.is_ascii_digit()) else {
            return false;
        };
        let is_whole = !matches!(window[run], b'.' | b'e' | b'E');
        let is_plain = run == 1 || (run > 1 && run <= MAX_NUMBER_BYTES && window[0] != b'0');
        if is_whole && is_plain {
            self.literal.extend(window[..run].iter().copied().map(char::from));
            self.start += run;
        }
        is_whole && is_plain
    }

    /// Takes digits into the literal; at least one must be there.
    fn digits(&mut self) -> Result<usize, JsonError> {
        const EXPECTED: &str = "a digit";
        let mut count = 0;
        while let Some(b'0'..=b'9') = self.peek_byte()? {
            self.take_into_literal()?;
            count += 1;
        }
        match self.peek_byte()? {
            _ if count > 0 => Ok(count),
            Some(found) => Err(self.unexpected(EXPECTED, found)),
            None => Err(self.ended(EXPECTED)),
        }
    }

    /// Takes the peeked ASCII byte into the literal.
    fn take_into_literal(&mut self) -> Result<(), JsonError> {
        if self.literal.len() == MAX_NUMBER_BYTES {
            let at_byte = self.at_byte() - MAX_NUMBER_BYTES as u64;
            return Err(JsonError::NumberTooLong { at_byte });
        }
        self.literal.push(char::from(self.window[self.start]));
        self.start += 1;
        Ok(())
    }

    fn word(&mut self, word: &'static str) -> Result<(), JsonError> {
        for expected in word.bytes() {
            match self.peek_byte()? {
                Some(found) if found == expected => self.start += 1,
                Some(found) => return Err(self.unexpected(word, found)),
                None => return Err(self.ended(word)),
            }
        }
        Ok(())
    }

    /// Resolves an escape; the reader stands at its backslash.
    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), JsonError> {
        let at_byte = self.at_byte();
        self.start += 1;
        let Some(letter) = self.peek_byte()? else {
            return Err(self.ended("an escape"));
        };
        self.start += 1;
        let plain = match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let scalar = self.unicode_escape(at_byte)?;
                bytes.extend_from_slice(scalar.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(JsonError::BadEscape { at_byte }),
        };
        bytes.push(plain);
        Ok(())
    }

    /// The scalar of a `\u` escape, both halves of a pair taken; the first `\u` is behind us.
    fn unicode_escape(&mut self, at_byte: u64) -> Result<char, JsonError> {
        let lone = || JsonError::LoneSurrogate { at_byte };
        let first = self.four_hex(at_byte)?;
        if !(0xD800..0xDC00).contains(&first) {
            return char::from_u32(first).ok_or_else(lone);
        }
        for expected in [b'\\', b'u'] {
            match self.peek_byte()? {
                Some(found) if found == expected => self.start += 1,
                _ => return Err(lone()),
            }
        }
        let second = self.four_hex(at_byte)?;
        if !(0xDC00..0xE000).contains(&second) {
            return Err(lone());
        }
        char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)).ok_or_else(lone)
    }

    fn four_hex(&mut self, at_byte: u64) -> Result<u32, JsonError> {
        let mut value = 0;
        for _ in 0..4 {
            let Some(byte) = self.peek_byte()? else {
                return Err(self.ended("four hex digits"));
            };
            let digit = char::from(byte).to_digit(16);
            value = value * 16 + digit.ok_or(JsonError::BadEscape { at_byte })?;
            self.start += 1;
        }
        Ok(value)
    }

    fn unexpected(&self, expected: &'static str, found: u8) -> JsonError {
        JsonError::Unexpected { at_byte: self.at_byte(), expected, found: FoundByte(found) }
    }

    fn ended(&self, expected: &'static str) -> JsonError {
        JsonError::UnexpectedEnd { at_byte: self.at_byte(), expected }
    }
}

/// How many first bytes of a string's inside stand for themselves: up to the first quote,
/// backslash or control character. Eight bytes at a time, as most of a checkpoint's index is names.
fn plain_run(window: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    // Sets the high bit of each byte of `word` below `limit`, if limit is at most 128; may set
    // it in bytes above the first such one as well, which is looked for byte by byte then.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH;
    let equal = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let is_plain = |byte: u8| byte != b'"' && byte != b'\\' && byte >= 0x20;
    let (words, tail) = window.as_chunks::<8>();
    for (index, bytes) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*bytes);
        if (below(word, 0x20) | equal(word, b'"') | equal(word, b'\\')) != 0
            && let Some(place) = bytes.iter().position(|&byte| !is_plain(byte))
        {
            return index * 8 + place;
        }
    }
    let place = tail.iter().position(|&byte| !is_plain(byte)).unwrap_or(tail.len());
    words.len() * 8 + place
}

/// Reads a whole document.
///
/// # Errors
/// Every variant of [`JsonError`] but the size limits of its callers.
pub fn parse_document(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut reader = JsonReader::new(bytes);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that is a byte too long swallows a quote; every byte at every place of two words.
    #[test]
    fn plain_runs_end_at_the_first_special_byte() {
        for place in 0..20 {
            for byte in 0..=u8::MAX {
                for filling in [b'a', 0x7F, 0x80, 0xFF, 0x20, 0x21, 0x23, 0x5B, 0x5D] {
                    let mut window = [filling; 20];
                    window[place] = byte;
                    let special = byte == b'"' || byte == b'\\' || byte < 0x20;
                    let expected = if special { place } else { window.len() };
                    assert_eq!(plain_run(&window), expected, "{byte} at {place} in {filling}");
                }
            }
        }
    }
}
