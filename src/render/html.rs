//! A document as a self-contained page: headings, paragraphs, tables, inline SVG. No script, no
//! font, no link to anywhere, so a report can be mailed and opened in ten years.

use std::fmt::Write as _;

use crate::document::{Block, Document};
use crate::table::{Row, Table};

/// Rows of a long table shown at each end; the text and the JSON have all of them.
const ROWS_AT_EACH_END: usize = 500;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:62rem;margin:2rem auto;\
padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .5rem;\
border-bottom:1px solid #ccc;padding-bottom:.2rem}\
table{border-collapse:collapse;margin:.6rem 0;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}\
th{border-bottom:1px solid #888;font-weight:600}td.text,th.text{text-align:left}\
td.text:last-child{white-space:normal;min-width:24rem}td.below{padding-left:2rem;color:#555}\
.wide{overflow-x:auto}figure{margin:1rem 0}svg{max-width:100%;height:auto}\
p{margin:.4rem 0;overflow-wrap:anywhere}p.note{color:#555}\
pre{margin:0;font-size:13px;white-space:pre-wrap}";

/// Text with the five characters that mean something in HTML replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

impl Document {
    /// The document as a page. `figures` are its plots, drawn by [`Document::figures`].
    #[must_use]
    pub fn page(&self, figures: &[(String, String)]) -> String {
        let mut body = String::new();
        for block in self.page_blocks() {
            // Writing to a String cannot fail.
            let _ = match block {
                Block::Heading(text) => writeln!(body, "<h2>{}</h2>", escaped(text)),
                Block::Line(text) if text.is_empty() => Ok(()),
                // An indented line is one of a list or of a drawing.
                Block::Line(text) if text.starts_with(' ') => {
                    writeln!(body, "<pre>{}</pre>", escaped(text))
                }
                Block::Line(text) => writeln!(body, "<p>{}</p>", escaped(text)),
                Block::Note(text) => writeln!(body, "<p class=\"note\">{}</p>", escaped(text)),
                Block::Table(table) => write_table(&mut body, table),
                Block::Figure { name, .. } => {
                    let drawn = figures.iter().find(|figure| figure.0 == *name);
                    let svg = drawn.map_or("", |figure| figure.1.trim());
                    writeln!(body, "<figure>{svg}</figure>")
                }
            };
        }
        let title = escaped(self.title());
        let heading = if title.is_empty() { String::new() } else { format!("<h1>{title}</h1>\n") };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n\
             {heading}{body}</body></html>\n"
        )
    }
}

fn write_table(body: &mut String, table: &Table) -> std::fmt::Result {
    let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.enumerate().map(|(column, cell)| {
            let class = if table.is_left(column) { " class=\"text\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let row = |row: &Row| {
        let mut lines = line("td", &mut row.cells.iter().map(String::as_str));
        let columns = table.columns.len();
        for below in &row.below {
            let below = escaped(below);
            let _ = writeln!(
                lines,
                "<tr><td class=\"text below\" colspan=\"{columns}\">{below}</td></tr>"
            );
        }
        lines
    };
    let count = table.rows.len();
    let cut = if count > 2 * ROWS_AT_EACH_END { ROWS_AT_EACH_END } else { count };
    let mut rows: String = table.rows[..cut].iter().map(row).collect();
    if cut < count {
        let left_out = count - 2 * cut;
        let columns = table.columns.len();
        let _ = writeln!(
            rows,
            "<tr><td class=\"text\" colspan=\"{columns}\">… {left_out} more rows in report.txt \
             …</td></tr>"
        );
        rows.extend(table.rows[count - cut..].iter().map(row));
    }
    let head = line("th", &mut table.columns.iter().map(|column| column.head.as_str()));
    writeln!(
        body,
        "<div class=\"wide\"><table><thead>{head}</thead><tbody>\n{rows}</tbody></table></div>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_block_and_its_markup_is_text() {
        let mut document = Document::new("A & B");
        document.line("<script>");
        document.line("    in a list");
        let cells = vec!["x".to_owned(), "1".to_owned()];
        let mut table = Table::new(["name", "n"]);
        table.push(Row { cells, below: vec!["why".to_owned()] });
        document.table(table);
        let mut appendix = Document::new("");
        appendix.note("only here");
        document.appendix(appendix);
        let page = document.page(&[]);
        for part in [
            "<h1>A &amp; B</h1>",
            "<p>&lt;script&gt;</p>",
            "<pre>    in a list</pre>",
            "<td class=\"text\">x</td><td>1</td>",
            "colspan=\"2\">why<",
            "<p class=\"note\">only here</p>",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!document.text().contains("only here"));
    }
}
