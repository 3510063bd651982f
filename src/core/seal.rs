//! A digest inside JSON that this program writes for itself to read again: manifests of packs,
//! reports of parts, lines of journals. Whoever changes a number there changes a result.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::hex;

/// The field that holds the SHA-256 of all others, as compact JSON.
const DIGEST: &str = "digest";

fn digest(value: &Value) -> String {
    hex(Sha256::digest(value.to_string()))
}

/// An object with its digest; one that it had is replaced.
///
/// # Errors
/// It is no JSON object.
pub fn seal(value: &impl Serialize) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    let Value::Object(fields) = &mut value else {
        return Err(serde::ser::Error::custom("only an object can be sealed"));
    };
    fields.remove(DIGEST);
    let digest = digest(&value);
    value[DIGEST] = digest.into();
    Ok(value)
}

/// What was sealed. Layout and order of fields may have changed since, values may not.
///
/// # Errors
/// It is no such object, or one that was altered: a line for people.
pub fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let fields = value.as_object_mut().ok_or("expected a JSON object")?;
    let stated = fields.remove(DIGEST);
    let got = digest(&value);
    match stated {
        Some(Value::String(expected)) if expected == got => {}
        Some(expected) => {
            return Err(format!("altered: its digest is {got}, expected {expected}"));
        }
        None => return Err(format!("no {DIGEST}: written by another version, or altered")),
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Numbers = BTreeMap<String, f64>;

    /// Every flipped bit of the text is seen, or leaves the values as they were.
    #[test]
    fn no_altered_value_is_believed() {
        let numbers = Numbers::from([("a".to_owned(), 0.1), ("b".to_owned(), -3.5e-300)]);
        let text = serde_json::to_string_pretty(&seal(&numbers).unwrap()).unwrap();
        assert_eq!(unseal::<Numbers>(text.as_bytes()), Ok(numbers.clone()));
        let mut refused = 0;
        for at in 0..8 * text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            match unseal::<Numbers>(&bytes) {
                Ok(read) => assert_eq!(read, numbers, "bit {at}"),
                Err(_) => refused += 1,
            }
        }
        // The others are white space for white space.
        assert!(refused > 8 * text.len() - 40, "{refused} of {}", 8 * text.len());
    }

    #[test]
    fn what_has_no_digest_is_refused() {
        for text in [r#"{"a": 1.0}"#, r#"{"a": 1.0, "digest": null}"#, "[]", "1", ""] {
            assert!(unseal::<Numbers>(text.as_bytes()).is_err(), "{text}");
        }
        assert!(seal(&[1, 2]).is_err());
    }
}
