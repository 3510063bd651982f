//! A JSON document in memory, and the kinds of its values.

use std::collections::BTreeMap;
use std::fmt;

/// What kind of value stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true`, `false`
    Bool,
    /// Any number
    Number,
    /// A string
    String,
    /// An array
    Array,
    /// An object
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

/// A whole value; numbers are kept as their literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// The literal, such as `1e-05`
    Number(String),
    /// Escapes resolved
    String(String),
    /// Elements in order
    Array(Vec<Value>),
    /// Members by key; keys are unique
    Object(BTreeMap<String, Value>),
}

impl Value {
    /// What kind of value this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Bool(_) => Kind::Bool,
            Self::Number(_) => Kind::Number,
            Self::String(_) => Kind::String,
            Self::Array(_) => Kind::Array,
            Self::Object(_) => Kind::Object,
        }
    }

    /// The value in a few words for a message: scalars as they stand, containers by kind.
    #[must_use]
    pub fn brief(&self) -> String {
        const SHOWN_CHARS: usize = 60;
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Number(literal) => literal.chars().take(SHOWN_CHARS).collect(),
            Self::String(text) => {
                let start: String = text.chars().take(SHOWN_CHARS).collect();
                format!("{start:?}")
            }
            Self::Array(items) => format!("an array of {}", items.len()),
            Self::Object(members) => format!("an object of {}", members.len()),
        }
    }
}
