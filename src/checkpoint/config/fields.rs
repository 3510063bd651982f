//! Reads single fields of a parsed `config.json` by their path and notes what is wrong, so that
//! all problems can be told at once.

use std::collections::BTreeSet;

use super::rules::Released;
use crate::Problem;
use crate::json::Value;
use k3_core::config::{MAX_SIZE, SpecialIds};

/// The document, and the problems found so far.
pub(super) struct Fields<'a> {
    root: &'a Value<'a>,
    problems: Vec<Problem>,
    read: BTreeSet<String>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(root: &'a Value<'a>) -> Self {
        Self { root, problems: Vec::new(), read: BTreeSet::new() }
    }

    pub(super) fn root(&self) -> &'a Value<'a> {
        self.root
    }

    /// Whether a field was asked for.
    pub(super) fn has_read(&self, key: &str) -> bool {
        self.read.contains(key)
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The value at a dotted path, without noting anything.
    pub(super) fn lookup(&self, key: &str) -> Option<&'a Value<'a>> {
        key.split('.').try_fold(self.root, |value, name| match value {
            Value::Object(members) => members.get(name),
            _ => None,
        })
    }

    /// The value at a dotted path. Where an object on the way is missing or is none, that one is
    /// noted, once, instead of everything in it.
    fn require(&mut self, key: &str, expected: &'static str) -> Option<&'a Value<'a>> {
        self.read.insert(key.to_owned());
        let mut value = self.root;
        let mut end = 0;
        for name in key.split('.') {
            let Value::Object(members) = value else {
                let key = if end == 0 { "the document" } else { &key[..end] };
                self.wrong_type(key, "an object", value);
                return None;
            };
            let here = if end == 0 { name.len() } else { end + 1 + name.len() };
            let Some(next) = members.get(name) else {
                let expected = if here == key.len() { expected } else { "an object" };
                self.note(&key[..here], format!("missing (expected {expected})"));
                return None;
            };
            (value, end) = (next, here);
        }
        Some(value)
    }

    pub(super) fn note(&mut self, key: &str, what: String) {
        let problem = Problem::new(key, what);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn wrong_type(&mut self, key: &str, expected: &'static str, value: &Value<'_>) {
        let got = match value {
            Value::Object(_) | Value::Array(_) | Value::Null => value.brief(),
            _ => format!("{}, {}", value.kind(), value.brief()),
        };
        self.note(key, format!("expected {expected}, got {got}"));
    }

    pub(super) fn width(&mut self, key: &str) -> usize {
        self.size(key, MAX_SIZE)
    }

    /// An integer in 1..=limit; 0 once a problem is noted.
    pub(super) fn size(&mut self, key: &str, limit: usize) -> usize {
        self.integer(key, limit, "must be above zero", 1)
    }

    /// An integer in 0..=limit; 0 once a problem is noted.
    pub(super) fn count(&mut self, key: &str, limit: usize) -> usize {
        self.integer(key, limit, "must not be negative", 0)
    }

    fn integer(&mut self, key: &str, limit: usize, too_small: &str, least: usize) -> usize {
        const EXPECTED: &str = "an integer";
        let got = match self.require(key, EXPECTED) {
            None => return 0,
            Some(Value::Number(text)) if is_integer(text) => *text,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                return 0;
            }
        };
        match got.parse::<usize>() {
            Ok(value) if (least..=limit).contains(&value) => return value,
            Ok(value) if value >= least => self.note(key, too_large(got, limit)),
            Err(_) if !got.starts_with('-') => self.note(key, too_large(got, limit)),
            Ok(_) | Err(_) => self.note(key, format!("{too_small}, got {got}")),
        }
        0
    }

    pub(super) fn boolean(&mut self, key: &str) -> bool {
        const EXPECTED: &str = "true or false";
        match self.require(key, EXPECTED) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                false
            }
        }
    }

    /// A finite number; `None` once a problem is noted.
    fn number(&mut self, key: &str) -> Option<f64> {
        const EXPECTED: &str = "a number";
        let literal = match self.require(key, EXPECTED)? {
            Value::Number(text) => *text,
            value => {
                self.wrong_type(key, EXPECTED, value);
                return None;
            }
        };
        let value = literal.parse::<f64>().ok().filter(|value| value.is_finite());
        if value.is_none() {
            self.note(key, format!("must be a finite number, got {literal}"));
        }
        value
    }

    pub(super) fn positive(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value <= 0.0 {
            self.note(key, format!("must be above zero, got {value}"));
        }
        value
    }

    pub(super) fn negative(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value >= 0.0 {
            self.note(key, format!("must be below zero, got {value}"));
        }
        value
    }

    /// A rising list of ONE-based layers; `layers` is 0 where that field had a problem itself.
    pub(super) fn layer_list(&mut self, key: &str, layers: usize) -> Vec<usize> {
        const EXPECTED: &str = "a list of ONE-based layer numbers";
        let items = match self.require(key, EXPECTED) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                return Vec::new();
            }
        };
        let mut list: Vec<usize> = Vec::new();
        for (position, item) in items.iter().enumerate() {
            let Value::Number(literal) = item else {
                self.wrong_type(&format!("{key}[{position}]"), "an integer", item);
                break;
            };
            if !is_integer(literal) {
                self.wrong_type(&format!("{key}[{position}]"), "an integer", item);
                break;
            }
            match next_in_list(literal, &list, layers) {
                Ok(layer) => list.push(layer),
                Err(what) => {
                    self.note(&format!("{key}[{position}]"), what);
                    break;
                }
            }
        }
        list
    }

    pub(super) fn released(&mut self, key: &str, released: &Released) {
        let digits;
        let (expected, released) = match released {
            Released::Text(text) => ("a string", Value::String((*text).into())),
            Released::Truth(truth) => ("true or false", Value::Bool(*truth)),
            Released::Integer(integer) => {
                digits = integer.to_string();
                ("an integer", Value::Number(&digits))
            }
        };
        let Some(value) = self.require(key, expected) else {
            return;
        };
        let same_type = match value {
            Value::Number(literal) => matches!(released, Value::Number(_)) && is_integer(literal),
            _ => value.kind() == released.kind(),
        };
        if !same_type {
            self.wrong_type(key, expected, value);
        } else if *value != released {
            self.note(key, not_released(&released.brief(), value));
        }
    }

    pub(super) fn special_ids(&mut self, prefix: &str) -> SpecialIds {
        SpecialIds {
            bos: self.token_ids(&format!("{prefix}bos_token_id"), false).first().copied(),
            eos: self.token_ids(&format!("{prefix}eos_token_id"), true),
            pad: self.token_ids(&format!("{prefix}pad_token_id"), false).first().copied(),
        }
    }

    /// An id, null, nothing at all, or (where `list_allowed`) a list of ids.
    fn token_ids(&mut self, key: &str, list_allowed: bool) -> Vec<u32> {
        let items = match self.lookup(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) if list_allowed => items.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let mut ids = Vec::new();
        for item in items {
            match item {
                Value::Number(literal) if is_integer(literal) && !literal.starts_with('-') => {
                    match literal.parse() {
                        Ok(id) => ids.push(id),
                        Err(_) => {
                            self.note(key, too_large(literal, u32::MAX as usize));
                            break;
                        }
                    }
                }
                value => {
                    self.wrong_type(key, "a token id or null", value);
                    break;
                }
            }
        }
        ids
    }
}

fn too_large(got: &str, limit: usize) -> String {
    format!("{got} is above the limit of {limit}")
}

/// A value this program does not compute; it computes the released one only.
pub(super) fn not_released(released: &str, value: &Value<'_>) -> String {
    format!("only the released value {released} is supported, got {}", value.brief())
}

/// The next entry of a layer list, checked against the range and the entries before it.
fn next_in_list(literal: &str, list: &[usize], layers: usize) -> Result<usize, String> {
    let got = match literal.parse::<usize>() {
        Ok(layer) if layer > 0 && (layer <= layers || layers == 0) => layer,
        _ => {
            return Err(format!("layer {literal} is outside 1..={layers} (the list is ONE-based)"));
        }
    };
    match list.last() {
        Some(previous) if got <= *previous && list.contains(&got) => {
            Err(format!("layer {got} stands twice in the ONE-based list"))
        }
        Some(previous) if got < *previous => {
            Err(format!("layer {got} after {previous}, the ONE-based list must rise"))
        }
        _ => Ok(got),
    }
}

/// Whether a JSON number is written as an integer.
fn is_integer(literal: &str) -> bool {
    literal.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}
