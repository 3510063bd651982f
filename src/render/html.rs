//! A plain page that stands alone: headings, paragraphs, tables, inline SVG. No script, no font,
//! no link to anywhere, so a report can be mailed and opened in ten years.

use std::fmt::Write as _;

/// A page while it is being put together.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    body: String,
}

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:62rem;margin:2rem auto;\
padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .5rem;\
border-bottom:1px solid #ccc;padding-bottom:.2rem}\
table{border-collapse:collapse;margin:.6rem 0;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}\
th{border-bottom:1px solid #888;font-weight:600}td.text,th.text{text-align:left}\
td.text:last-child{white-space:normal;min-width:24rem}\
.wide{overflow-x:auto}figure{margin:1rem 0}svg{max-width:100%;height:auto}\
p{margin:.4rem 0}ul{margin:.4rem 0}code{font-size:13px}";

/// Text with the five characters that mean something in HTML replaced.
pub fn escaped(text: &str) -> String {
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

impl Page {
    /// An empty page with a title.
    pub fn new(title: &str) -> Page {
        Page { title: title.to_string(), body: String::new() }
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escaped(heading));
    }

    /// A paragraph of plain text.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    /// A list of plain texts; nothing if there are none.
    pub fn list(&mut self, items: &[String]) {
        if items.is_empty() {
            return;
        }
        let items: String =
            items.iter().map(|item| format!("<li>{}</li>", escaped(item))).collect();
        let _ = writeln!(self.body, "<ul>{items}</ul>");
    }

    /// A table: cells that start with a digit, sign or dash stand right, others left.
    pub fn table(&mut self, header: &[String], rows: &[Vec<String>]) {
        let textual = |column: usize| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .any(|cell| cell.starts_with(|c: char| !c.is_ascii_digit() && c != '-' && c != '+'))
        };
        let class: Vec<&str> = (0..header.len())
            .map(|column| if textual(column) { " class=\"text\"" } else { "" })
            .collect();
        let row = |tag: &str, cells: &[String]| {
            let cells = cells.iter().enumerate().map(|(column, cell)| {
                let class = class.get(column).copied().unwrap_or_default();
                format!("<{tag}{class}>{}</{tag}>", escaped(cell))
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let head = row("th", header);
        let body: String = rows.iter().map(|cells| row("td", cells)).collect();
        let _ = writeln!(
            self.body,
            "<div class=\"wide\"><table><thead>{head}</thead><tbody>\n{body}</tbody></table></div>"
        );
    }

    /// A plot made by [`svg`](super::svg), as it is.
    pub fn figure(&mut self, svg: &str) {
        let _ = writeln!(self.body, "<figure>{}</figure>", svg.trim());
    }

    /// The whole document.
    pub fn finish(self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n\
             {}</body></html>\n",
            self.body
        )
    }
}
