//! JSON for people and diffs: objects over lines, lists of numbers on one line.
//!
//! A list of ten thousand hit counts would be ten thousand lines with the usual pretty printer.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;

/// Serialises with a newline at the end.
pub fn to_text(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Lines::default());
    value.serialize(&mut serializer)?;
    bytes.push(b'\n');
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Breaks lines in objects, and in arrays only around objects and arrays.
#[derive(Debug, Default)]
struct Lines {
    /// For each open object or array: whether its end goes on a line of its own.
    open: Vec<bool>,
}

impl Lines {
    fn new_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.open.len()).try_for_each(|_| writer.write_all(b"  "))
    }

    /// What is inside breaks the line, so the end of the container does too.
    fn open_inner<W: ?Sized + io::Write>(&mut self, writer: &mut W, by: &[u8]) -> io::Result<()> {
        if let Some(outer) = self.open.last_mut().filter(|outer| !**outer) {
            *outer = true;
        }
        self.open.push(false);
        writer.write_all(by)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, by: &[u8]) -> io::Result<()> {
        if self.open.pop() == Some(true) {
            self.new_line(writer)?;
        }
        writer.write_all(by)
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open_inner(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open_inner(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        if let Some(inner) = self.open.last_mut() {
            *inner = true;
        }
        self.new_line(writer)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_share_a_line_and_the_value_is_the_same() {
        let value = serde_json::json!({
            "curve": [1, 2, 3],
            "rows": [{"a": 1, "b": []}, {"a": 2, "b": [[1], [2]]}],
            "none": null,
            "empty": {},
        });
        let text = to_text(&value).unwrap();
        assert!(text.contains("\"curve\": [1, 2, 3]"), "{text}");
        assert!(text.ends_with("}\n"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
