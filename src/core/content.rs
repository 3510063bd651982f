//! What a file that is expected to hold raw numbers begins with, when it is something else.

use crate::npy;

/// First bytes of a ZIP archive.
pub const ZIP_MAGIC: &[u8] = b"PK\x03\x04";

/// First bytes, and the form that begins with them.
const SIGNATURES: [(&[u8], &str); 13] = [
    (npy::MAGIC, "a NumPy array (.npy)"),
    (ZIP_MAGIC, "a ZIP archive (.npz, or a PyTorch file)"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b\x08", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"\x80\x02\x8a\x0a", "a Python pickle (an old PyTorch file)"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"\x80\x05\x95", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded"),
];

/// Bytes that are looked at to tell text from numbers.
const LOOKED_AT: usize = 4096;

/// Shorter texts may be numbers by chance.
const SHORTEST_TEXT: usize = 8;

/// The form of content that is not raw numbers, if it is a known one.
#[must_use]
pub fn known_form(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, form)) = SIGNATURES.iter().find(|(first, _)| bytes.starts_with(first)) {
        return Some(form);
    }
    if looks_like_safetensors(bytes) {
        return Some("a safetensors file");
    }
    let start = &bytes[..bytes.len().min(LOOKED_AT)];
    if is_utf16(start) {
        return Some("UTF-16 text: save it as UTF-8");
    }
    text_form(start)
}

/// Text in two bytes a character, with or without a mark: every second byte is zero, the others
/// are ASCII.
fn is_utf16(start: &[u8]) -> bool {
    let (pairs, _) = start.as_chunks::<2>();
    let pairs = pairs.strip_prefix(&[[0xff, 0xfe]]).unwrap_or(pairs);
    let pairs = pairs.strip_prefix(&[[0xfe, 0xff]]).unwrap_or(pairs);
    let is_ascii = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t');
    pairs.len() >= SHORTEST_TEXT
        && [0, 1]
            .iter()
            .any(|&zero| pairs.iter().all(|pair| pair[zero] == 0 && is_ascii(pair[1 - zero])))
}

/// Whether bytes begin as a safetensors file does: a plausible header length, then a brace.
#[must_use]
pub fn looks_like_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return false;
    };
    let fits = usize::try_from(u64::from_le_bytes(*length)).is_ok_and(|n| n <= rest.len());
    fits && rest.first() == Some(&b'{')
}

fn text_form(start: &[u8]) -> Option<&'static str> {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // A character may be cut at the end of what is looked at.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    if text.len() < SHORTEST_TEXT || !text.chars().all(is_text) {
        return None;
    }
    let text = text.trim_start();
    let lower = text.get(..9.min(text.len())).unwrap_or("").to_ascii_lowercase();
    Some(match text.chars().next() {
        Some('{' | '[') => "JSON",
        Some('<') if lower.starts_with("<!doctype") || lower.starts_with("<html") => {
            "an HTML page: a download that failed?"
        }
        _ if text.lines().next().is_some_and(|line| line.contains([',', ';', '\t'])) => "CSV text",
        _ => "text",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_forms_are_named_and_numbers_are_not() {
        for (bytes, form) in [
            (&b"\x93NUMPY\x01\x00"[..], "NumPy"),
            (b"PK\x03\x04abcd", "ZIP"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"\xff\xfe[\x001\0,\x002\0,\x003\0,\x004\0", "UTF-16"),
            (b"\0[\x001\0,\x002\0,\x003\0,\x004", "UTF-16"),
            (b"\x1f\x8b\x08\0", "gzip"),
            (b"\x80\x02\x8a\x0a", "pickle"),
            (b"1.5,2.5\n3.5,4.5\n", "CSV"),
            (b"1.5 2.5\n3.5 4.5\n", "text"),
            (b"{\"logits\": [1]}", "JSON"),
            (b"<!DOCTYPE html><html>", "HTML"),
            (b"\x02\0\0\0\0\0\0\0{}", "safetensors"),
        ] {
            assert!(known_form(bytes).unwrap_or("none").contains(form), "{bytes:?}");
        }
        let numbers: Vec<u8> = (0..64).flat_map(|i| (i as f32 * 0.37).to_le_bytes()).collect();
        assert_eq!(known_form(&numbers), None);
        assert_eq!(known_form(&1.5f32.to_le_bytes()), None);
    }
}
