//! Patterns of `--only`: `*` matches any run of characters, `?` exactly one.

/// A pattern over gate ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    pattern: String,
}

impl Glob {
    /// Takes the pattern as typed.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self { pattern: pattern.to_owned() }
    }

    /// The pattern as typed.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether the whole of `text` fits the pattern.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        fits(self.pattern.as_bytes(), text.as_bytes())
    }
}

/// Greedy match with one point of return: the last `*` seen.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    p = after_star;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::Glob;

    /// A pattern that matched too much would hide that nothing was selected.
    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("*", "tiny/greedy", true),
            ("tiny/*", "tiny/greedy", true),
            ("*/greedy", "tiny/greedy", true),
            ("greedy", "tiny/greedy", false),
            ("t?ny/gr*dy", "tiny/greedy", true),
            ("*e*e*", "tiny/greedy", true),
            ("*e*e*e*", "tiny/greedy", false),
            ("", "", true),
            ("", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }
}
