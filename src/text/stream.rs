//! Streams text from ids, whole UTF-8 characters only.

/// Holds the bytes that may still become a character. What it hands out, joined, is the whole
/// decode as `String::from_utf8_lossy` gives it: bytes that can never become a character are one
/// U+FFFD for each longest run that begins like one, as Unicode advises, and nothing waits for
/// bytes that cannot help.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// At most three bytes: the beginning of a character.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes and gives the text that no further byte changes.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let certain = self.held.len() - incomplete_bytes(&self.held);
        let text = String::from_utf8_lossy(&self.held[..certain]).into_owned();
        self.held.drain(..certain);
        text
    }

    /// The end: half a character is one U+FFFD.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Length of the beginning of a character at the end of `bytes`.
fn incomplete_bytes(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let invalid = last.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(invalid) {
        // The standard library knows no length for what may go on.
        Err(error) if error.error_len().is_none() => invalid.len(),
        _ => 0,
    }
}
