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
pub enum RangeError {
    /// Not of the form.
    #[error(
        "layers {text:?}: expected numbers and FIRST..LAST with both ends included (0..92 is 93 \
         layers), joined by commas, or all; got {piece:?}"
    )]
    Syntax {
        /// What was typed.
        text: String,
        /// The piece at fault.
        piece: String,
    },
    /// A piece that ends before it begins.
    #[error("layers {text:?}: {first}..{last} ends before it begins")]
    Reversed {
        /// What was typed.
        text: String,
        /// Its first layer.
        first: usize,
        /// Its last layer.
        last: usize,
    },
    /// A layer twice.
    #[error("layers {text:?}: layer {layer} is named twice")]
    Twice {
        /// What was typed.
        text: String,
        /// The layer.
        layer: usize,
    },
    /// A layer the model does not have.
    #[error(
        "layers {text:?}: layer {layer} of a model with {layers} layers; all of them are 0..{} \
         (both ends included)",
        layers - 1
    )]
    NoSuchLayer {
        /// What was typed.
        text: String,
        /// The layer.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
}

impl FromStr for LayerRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        if text == "all" {
            let text = text.to_owned();
            return Ok(Self { text, pieces: None });
        }
        let pieces: Result<Vec<_>, _> = text.split(',').map(|piece| parse(text, piece)).collect();
        Ok(Self { text: text.to_owned(), pieces: Some(pieces?) })
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str, piece: &str) -> Result<(usize, usize), RangeError> {
    let wrong = || RangeError::Syntax { text: text.to_owned(), piece: piece.to_owned() };
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
        let text = text.to_owned();
        return Err(RangeError::Reversed { text, first, last });
    }
    Ok((first, last))
}

impl LayerRange {
    /// The layers of a model with `layers` layers, rising.
    ///
    /// # Errors
    /// [`RangeError::NoSuchLayer`], [`RangeError::Twice`].
    pub fn resolve(&self, layers: usize) -> Result<Vec<usize>, RangeError> {
        let Some(pieces) = &self.pieces else {
            return Ok((0..layers).collect());
        };
        let text = || self.text.clone();
        let mut chosen = Vec::new();
        for &(first, last) in pieces {
            if last >= layers {
                let layer = last;
                return Err(RangeError::NoSuchLayer { text: text(), layer, layers });
            }
            chosen.extend(first..=last);
        }
        chosen.sort_unstable();
        if let Some(pair) = chosen.windows(2).find(|pair| pair[0] == pair[1]) {
            let layer = pair[0];
            return Err(RangeError::Twice { text: text(), layer });
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

    /// A range silently one short or empty: half-open against closed.
    #[test]
    fn h03_both_ends_are_included_and_nothing_is_clipped() {
        assert_eq!(layers("0..92").map(|l| l.len()), Ok(93));
        assert_eq!(layers("all").map(|l| l.len()), Ok(93));
        assert_eq!(layers("92"), Ok(vec![92]));
        assert_eq!(layers("92..92"), Ok(vec![92]));
        assert_eq!(layers("91..92,0,3"), Ok(vec![0, 3, 91, 92]));
        for text in ["0..93", "0..94", "93", "0,93"] {
            assert!(matches!(layers(text), Err(RangeError::NoSuchLayer { .. })), "{text}");
        }
        for text in ["5..3", "92..0"] {
            assert!(matches!(layers(text), Err(RangeError::Reversed { .. })), "{text}");
        }
        for text in ["3,3", "0..5,5", "0..4,2..3"] {
            assert!(matches!(layers(text), Err(RangeError::Twice { .. })), "{text}");
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
            assert!(matches!(layers(text), Err(RangeError::Syntax { .. })), "{text}");
        }
    }
}
