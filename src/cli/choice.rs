//! A named choice of a library as a value of the command line, with its help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use k3_core::choice::Choice;

/// The parser of one choice: its names, each with a line of help.
pub fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL.iter().map(|value| PossibleValue::new(value.name()).help(value.about()));
    PossibleValuesParser::new(values)
        .map(|name| T::from_name(&name).expect("one of the names above"))
}
