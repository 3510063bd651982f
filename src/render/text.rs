//! A document as plain text: prose within 100 columns, tables as wide as they are.

use crate::document::{Block, Document};

/// Columns of a line of prose.
const COLUMNS: usize = 100;

impl Document {
    /// The document as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.title().is_empty() {
            text = format!("{}\n", self.title());
        }
        let mut after_gap = text.is_empty();
        for block in self.blocks() {
            let is_gap = match block {
                Block::Heading(heading) => {
                    let rule = "-".repeat(heading.chars().count());
                    let gap = if after_gap { "" } else { "\n" };
                    text.push_str(&format!("{gap}{heading}\n{rule}\n"));
                    true
                }
                Block::Line(line) if line.is_empty() => {
                    text.push_str(if after_gap { "" } else { "\n" });
                    true
                }
                Block::Line(line) => {
                    text.push_str(&format!("{line}\n"));
                    false
                }
                Block::Note(note) => {
                    push_broken(&mut text, note);
                    false
                }
                Block::Table(table) => {
                    let gap = if after_gap { "" } else { "\n" };
                    text.push_str(&format!("{gap}{}", table.text()));
                    false
                }
                Block::Figure { .. } => after_gap,
            };
            after_gap = is_gap;
        }
        text
    }
}

/// Appends prose, broken at spaces, continuation lines indented.
fn push_broken(out: &mut String, prose: &str) {
    let mut column = 0;
    for word in prose.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            out.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn every_block_but_the_figures_is_in_the_text() {
        let mut document = Document::new("title");
        document.line("one line");
        document.heading("Part");
        document.table(Table::new(["n"]).with([vec!["1".to_owned()]]));
        document.note(["word"; 30].join(" "));
        document.gap();
        document.line("end");
        let prose = [["word"; 20].join(" "), ["word"; 10].join(" ")].join("\n  ");
        let expected = format!("title\none line\n\nPart\n----\nn\n1\n{prose}\n\nend\n");
        assert_eq!(document.text(), expected);
    }
}
