//! Lists in messages: as many names as a line has room for, and the number of the others.

/// Characters of a list in a message of at most 400, which also names a file and what is wrong.
const MOST_CHARS: usize = 160;
/// Characters of one name; those of tensors have at most 90.
const MOST_NAME_CHARS: usize = 100;

/// The first of some names, and how many more of `count` there are: `a, b and 17 more`.
#[must_use]
pub fn listed<S: AsRef<str>>(names: &[S], count: usize) -> String {
    let (mut text, mut shown) = (String::new(), 0);
    for name in names {
        let mut rest = name.as_ref().chars().flat_map(char::escape_debug);
        let mut name: String = rest.by_ref().take(MOST_NAME_CHARS).collect();
        if rest.next().is_some() {
            name.push('…');
        }
        if shown > 0 && text.chars().count() + name.chars().count() > MOST_CHARS {
            break;
        }
        let comma = if shown > 0 { ", " } else { "" };
        text += &format!("{comma}{name}");
        shown += 1;
    }
    match count.saturating_sub(shown) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few names whole, many or long ones cut between names, and one alone that is too long.
    #[test]
    fn a_list_is_cut_between_names_with_a_count() {
        let many: Vec<String> = (0..500).map(|id| format!("tensor.{id}")).collect();
        assert_eq!(listed(&many[..3], 3), "tensor.0, tensor.1, tensor.2");
        assert_eq!(listed(&many[..2], 9), "tensor.0, tensor.1 and 7 more");
        let text = listed(&many, many.len());
        let (names, more) = text.split_once(" and ").unwrap();
        let shown = names.split(", ").count();
        assert_eq!(names.split(", ").last(), Some(format!("tensor.{}", shown - 1).as_str()));
        assert_eq!(more, format!("{} more", 500 - shown));
        assert!(text.chars().count() < 180, "{text}");
        let long = listed(&["é".repeat(5_000_000), "b".to_owned()], 2);
        assert_eq!(long, format!("{}…, b", "é".repeat(100)));
        assert_eq!(listed(&["a\nb"], 1), "a\\nb");
    }
}
