//! Digests and identities in hexadecimal.

use std::fmt::Write as _;

/// Two lower-case digits per byte.
#[must_use]
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for byte in bytes.as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
#[test]
fn every_byte_has_two_digits() {
    assert_eq!(hex([0x00, 0x0a, 0xff]), "000aff");
}
