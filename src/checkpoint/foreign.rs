//! Recognises files that are not what their name says: Git LFS pointers, web pages, unfinished
//! downloads. Without this the first eight bytes of a pointer read as a header length of 2.3e18
//! and the message sends people the wrong way.

use std::fmt;
use std::path::Path;

/// How many first bytes [`Foreign::of_content`] wants to see.
pub const SNIFF_BYTES: usize = 64;

/// Something else under a checkpoint file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// The text that stands in for a file in a Git repository without LFS.
    LfsPointer,
    /// A page of a web server, usually an error or a login.
    HtmlPage,
    /// A file whose name says that its download did not finish.
    Incomplete,
}

impl Foreign {
    /// What the first bytes of a file give away.
    #[must_use]
    pub fn of_content(first_bytes: &[u8]) -> Option<Self> {
        // A text has no NUL; the length of a real header has one in its upper bytes, whatever
        // its lower bytes spell.
        if first_bytes.iter().take(8).any(|&byte| byte == 0) {
            return None;
        }
        let text =
            first_bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(first_bytes).trim_ascii_start();
        let starts = |mark: &str| {
            text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark.as_bytes()))
        };
        if starts("version https://git-lfs") {
            return Some(Self::LfsPointer);
        }
        let marks = ["<!doctype", "<html", "<head", "<?xml", "<!--"];
        marks.into_iter().any(starts).then_some(Self::HtmlPage)
    }

    /// What the file's name gives away.
    #[must_use]
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy();
        let marks = [".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".tmp"];
        marks.iter().any(|mark| name.ends_with(mark)).then_some(Self::Incomplete)
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LfsPointer => "a Git LFS pointer, not the file itself (run `git lfs pull`)",
            Self::HtmlPage => "a web page (HTML), not the file itself (download it again)",
            Self::Incomplete => "an unfinished download, going by its name",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header length may spell the start of a text: 757,932,348 is `<!--` and four NULs.
    #[test]
    fn a_header_length_is_no_text() {
        let length = u64::from(u32::from_le_bytes(*b"<!--"));
        let bytes = [&length.to_le_bytes()[..], b"{\"w\":{}}"].concat();
        assert_eq!(Foreign::of_content(&bytes), None);
        assert_eq!(Foreign::of_content(b"<!-- gone --> <html>"), Some(Foreign::HtmlPage));
        assert_eq!(Foreign::of_content(b""), None);
    }
}
