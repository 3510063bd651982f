//! Reads single fields of a parsed `config.json` by their path and notes what is wrong, so that
//! all problems can be told at once.

use super::ConfigProblem;
use super::rules::Released;
use crate::json::{Kind, Value};
use k3_core::config::{MAX_SIZE, SpecialIds};

/// The document, and the problems found so far.
pub(super) struct Fields<'a> {
    root: &'a Value,
    problems: Vec<ConfigProblem>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, problems: Vec::new() }
    }

    pub(super) fn into_problems(self) -> Vec<ConfigProblem> {
        self.problems
    }

    /// The value at a dotted path, without noting anything.
    pub(super) fn lookup(&self, key: &str) -> Option<&'a Value> {
        key.split('.').try_fold(self.root, |value, name| match value {
            Value::Object(members) => members.get(name),
            _ => None,
        })
    }

    /// The value at a dotted path. Where an object on the way is missing or is none, that one is
    /// noted, once, instead of everything in it.
    fn require(&mut self, key: &str, expected: &'static str) -> Option<&'a Value> {
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
                self.note(ConfigProblem::Missing { key: key[..here].to_owned(), expected });
                return None;
            };
            (value, end) = (next, here);
        }
        Some(value)
    }

    pub(super) fn note(&mut self, problem: ConfigProblem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn wrong_type(&mut self, key: &str, expected: &'static str, value: &Value) {
        let got = match value.kind() {
            Kind::Object | Kind::Array | Kind::Null => value.brief(),
            kind => format!("{kind}, {}", value.brief()),
        };
        self.note(ConfigProblem::WrongType { key: key.to_owned(), expected, got });
    }

    pub(super) fn width(&mut self, key: &str) -> usize {
        self.size(key, MAX_SIZE)
    }

    /// An integer in 1..=limit; 0 once a problem is noted.
    pub(super) fn size(&mut self, key: &str, limit: usize) -> usize {
        self.integer(key, limit, |key, got| ConfigProblem::NotPositive { key, got }, 1)
    }

    /// An integer in 0..=limit; 0 once a problem is noted.
    pub(super) fn count(&mut self, key: &str, limit: usize) -> usize {
        self.integer(key, limit, |key, got| ConfigProblem::Negative { key, got }, 0)
    }

    fn integer(
        &mut self,
        key: &str,
        limit: usize,
        too_small: fn(String, String) -> ConfigProblem,
        least: usize,
    ) -> usize {
        const EXPECTED: &str = "an integer";
        let literal = match self.require(key, EXPECTED) {
            None => return 0,
            Some(Value::Number(literal)) if is_integer(literal) => literal,
            Some(value) => {
                self.wrong_type(key, EXPECTED, value);
                return 0;
            }
        };
        let (key, got) = (key.to_owned(), literal.clone());
        match literal.parse::<usize>() {
            Ok(value) if (least..=limit).contains(&value) => return value,
            Ok(value) if value < least => self.note(too_small(key, got)),
            Err(_) if literal.starts_with('-') => self.note(too_small(key, got)),
            Ok(_) | Err(_) => self.note(ConfigProblem::TooLarge { key, got, limit }),
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
            Value::Number(literal) => literal,
            value => {
                self.wrong_type(key, EXPECTED, value);
                return None;
            }
        };
        let value = literal.parse::<f64>().ok().filter(|value| value.is_finite());
        if value.is_none() {
            let (key, got) = (key.to_owned(), literal.clone());
            self.note(ConfigProblem::NotFinite { key, got });
        }
        value
    }

    pub(super) fn positive(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value <= 0.0 {
            self.note(ConfigProblem::NotPositive { key: key.to_owned(), got: value.to_string() });
        }
        value
    }

    pub(super) fn negative(&mut self, key: &str) -> f64 {
        let value = self.number(key).unwrap_or(f64::NAN);
        if value >= 0.0 {
            self.note(ConfigProblem::NotNegative { key: key.to_owned(), got: value.to_string() });
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
            match next_in_list(key, position, literal, &list, layers) {
                Ok(layer) => list.push(layer),
                Err(problem) => {
                    self.note(problem);
                    break;
                }
            }
        }
        list
    }

    pub(super) fn released(&mut self, key: &str, released: &Released) {
        let (expected, released) = match released {
            Released::Text(text) => ("a string", Value::String((*text).to_owned())),
            Released::Truth(truth) => ("true or false", Value::Bool(*truth)),
            Released::Integer(integer) => ("an integer", Value::Number(integer.to_string())),
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
            self.note(ConfigProblem::NotReleased {
                key: key.to_owned(),
                released: released.brief(),
                got: value.brief(),
            });
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
                            let (key, got) = (key.to_owned(), literal.clone());
                            let limit = u32::MAX as usize;
                            self.note(ConfigProblem::TooLarge { key, got, limit });
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

/// The next entry of a layer list, checked against the range and the entries before it.
fn next_in_list(
    key: &str,
    position: usize,
    literal: &str,
    list: &[usize],
    layers: usize,
) -> Result<usize, ConfigProblem> {
    let key = key.to_owned();
    let got = match literal.parse::<usize>() {
        Ok(layer) if layer > 0 && (layer <= layers || layers == 0) => layer,
        _ => {
            let got = literal.to_owned();
            return Err(ConfigProblem::LayerOutOfRange { key, position, got, layers });
        }
    };
    match list.last().copied() {
        Some(previous) if got <= previous && list.contains(&got) => {
            Err(ConfigProblem::LayerTwice { key, position, got })
        }
        Some(previous) if got < previous => {
            Err(ConfigProblem::LayersNotRising { key, position, previous, got })
        }
        _ => Ok(got),
    }
}

/// Whether a JSON number is written as an integer.
fn is_integer(literal: &str) -> bool {
    literal.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}
