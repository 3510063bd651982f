//! Reports for people and programs. JSON is the truth; a report says what it contains once, as a
//! [`Document`], and text, plots and page are made from that.

mod document;
mod html;
pub mod json;
pub mod svg;
mod table;
mod text;

pub use document::{Block, Chart, Document};
pub use table::{Column, Row, Table, left, right};
