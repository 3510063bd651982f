//! RANGE: `0..92` (BOTH ends included: 93 layers), `7`, `0,3,91..92`, or `all`.
//!
//! Digits only: no blanks, signs, `=`, open ends. Reversed ranges, layers named twice and layers
//! the model does not have are refused; nothing is clipped.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A range as typed; which layers it means depends on the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerRange {
    text: String,
    /// First and last of each piece, both included; `None` for all layers.
    pieces: Option<Vec<(usize, usize)>>,
}

/// A range that means nothing, or nothing in this model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("layers {text:?}: {what}")]
pub struct RangeError {
    text: String,
    what: String,
}

fn refused(text: &str, what: String) -> RangeError {
    RangeError { text: text.to_owned(), what }
}

impl FromStr for LayerRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        if text == "all" {
            let text = text.to_owned();
            return Ok(Self { text, pieces: None });
        }
        let pieces: Result<Vec<_>, _> = text.split(',').map(|piece| parse(text, piece)).collect();
        let mut pieces = pieces?;
        pieces.sort_unstable();
        if let Some(pair) = pieces.windows(2).find(|pair| pair[1].0 <= pair[0].1) {
            return Err(refused(text, format!("layer {} is named twice", pair[1].0)));
        }
        Ok(Self { text: text.to_owned(), pieces: Some(pieces) })
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str, piece: &str) -> Result<(usize, usize), RangeError> {
    let wrong = || {
        let form = "numbers and FIRST..LAST with both ends included (0..92 is 93 layers)";
        refused(text, format!("expected {form}, joined by commas, or all; got {piece:?}"))
    };
    let number = |digits: &str| {
        // `parse` takes a sign; a range does not.
        if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            digits.parse::<usize>().map_err(|_| wrong())
        } else {
            Err(wrong())
        }
    };
    let (first, last) = match piece.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(piece)?, number(piece)?),
    };
    if first > last {
        return Err(refused(text, format!("{first}..{last} ends before it begins")));
    }
    Ok((first, last))
}

impl LayerRange {
    /// The layers of a model with `layers` layers, rising.
    ///
    /// # Errors
    /// A layer that the model does not have.
    pub fn resolve(&self, layers: usize) -> Result<Vec<usize>, RangeError> {
        let Some(pieces) = &self.pieces else {
            return Ok((0..layers).collect());
        };
        let mut chosen = Vec::new();
        for &(first, last) in pieces {
            if last >= layers {
                let what = format!(
                    "layer {last} of a model with {layers} layers; all of them are 0..{} (both \
                     ends included)",
                    layers - 1
                );
                return Err(refused(&self.text, what));
            }
            chosen.extend(first..=last);
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(text: &str) -> Result<Vec<usize>, RangeError> {
        text.parse::<LayerRange>()?.resolve(93)
    }

    fn refuse(text: &str, words: &str) {
        let error = layers(text).expect_err(text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }

    /// A range silently one short or empty: half-open against closed.
    #[test]
    fn h03_both_ends_are_included_and_nothing_is_clipped() {
        assert_eq!(layers("0..92").map(|l| l.len()), Ok(93));
        assert_eq!(layers("all").map(|l| l.len()), Ok(93));
        assert_eq!(layers("92"), Ok(vec![92]));
        assert_eq!(layers("92..92"), Ok(vec![92]));
        assert_eq!(layers("91..92,0,3"), Ok(vec![0, 3, 91, 92]));
        for text in ["0..93", "0..94", "93", "0,93"] {
            refuse(text, "of a model with");
        }
        for text in ["5..3", "92..0"] {
            refuse(text, "ends before it begins");
        }
        for text in ["3,3", "0..5,5", "0..4,2..3"] {
            refuse(text, "is named twice");
        }
        for text in [
            "",
            "..",
            "0..",
            "..5",
            "0..=92",
            "-1..3",
            " 1..2",
            "1 ..2",
            "1..2 ",
            "1..2..3",
            "1,,2",
            "1,",
            ",1",
            "+1",
            "0x10",
            "1.0",
            "ALL",
            "0...3",
            "0..18446744073709551616",
            "\u{663}",
        ] {
            refuse(text, "expected numbers and FIRST..LAST");
        }
    }
}
