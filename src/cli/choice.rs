//! Makes a named choice from a library a command-line value, with help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use k3_core::choice::Choice;

/// A value parser for one choice: its names, each with a line of help.
pub fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL.iter().map(|value| PossibleValue::new(value.name()).help(value.about()));
    PossibleValuesParser::new(values)
        .map(|name| T::from_name(&name).expect("one of the names above"))
}
