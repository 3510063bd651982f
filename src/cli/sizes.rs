//! Parses sizes with a unit and lists of ids, strictly.

/// Largest size: the address space.
const MAX_BYTES: f64 = (1_u64 << 56) as f64;

/// A size such as `8GB`, `1.5GiB`, `700MB` or `4096` (bytes); GB is 10⁹, GiB is 2³⁰, in upper or
/// lower case.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let units = [
        ("tib", 1_u64 << 40),
        ("gib", 1 << 30),
        ("mib", 1 << 20),
        ("kib", 1 << 10),
        ("tb", 1_000_000_000_000),
        ("gb", 1_000_000_000),
        ("mb", 1_000_000),
        ("kb", 1000),
        ("b", 1),
    ];
    let text = text.to_ascii_lowercase();
    let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((&text, 1));
    scaled(number, unit as f64).ok_or_else(|| "expected a size such as 8GB, 1.5GiB or 700MB".into())
}

/// A number of GB (10⁹ bytes), without a unit.
pub fn parse_gigabytes(text: &str) -> Result<u64, String> {
    scaled(text, 1e9).ok_or_else(|| "expected a number of GB, 0 or more".into())
}

/// Digits with at most one decimal point, times a unit.
fn scaled(number: &str, unit: f64) -> Option<u64> {
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = number.parse().ok().filter(|_| plain)?;
    let bytes = value * unit;
    (bytes.is_finite() && bytes <= MAX_BYTES).then_some(bytes as u64)
}

/// Ids: decimal digits separated by single commas.
pub fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    text.split(',').map(parse_id).collect()
}

/// How many characters of a bad id a message shows.
const SHOWN_CHARS: usize = 40;

/// One id: decimal digits.
pub fn parse_id(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = text.parse().ok().filter(|_| digits);
    id.ok_or_else(|| {
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        let shown = shown.escape_debug();
        format!("'{shown}' is no token id (decimal digits, below 2^32)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H01, H02: text that is not an id is refused, never read as another number.
    #[test]
    fn h01_h02_ids_are_digits_and_commas() {
        assert_eq!(parse_ids("1,2,3"), Ok(vec![1, 2, 3]));
        assert_eq!(parse_ids("007"), Ok(vec![7]));
        assert_eq!(parse_ids("0,4294967295"), Ok(vec![0, u32::MAX]));
        for text in [
            "abc",
            "1,x",
            "1,,2",
            "1,2,",
            "1 2",
            "",
            "-1",
            "4294967296",
            "9999999999999999999",
            "0x10",
            "+1",
            "1.0",
            " 1",
            "1, 2",
        ] {
            assert!(parse_ids(text).is_err(), "{text:?}");
        }
    }

    /// H04, E10: units are what they say; nothing negative, infinite or absurd passes.
    #[test]
    fn h04_sizes_have_one_meaning() {
        assert_eq!(parse_size("8GB"), Ok(8_000_000_000));
        assert_eq!(parse_size("8GiB"), Ok(8 << 30));
        assert_eq!(parse_size("1.5MB"), Ok(1_500_000));
        assert_eq!(parse_size("8gb"), parse_size("8GB"));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_gigabytes("2.5"), Ok(2_500_000_000));
        for text in ["-1", "nan", "inf", "1e30", "1e3", "", "GB", "8 GB", "+8GB"] {
            assert!(parse_size(text).is_err(), "{text:?}");
            assert!(parse_gigabytes(text).is_err(), "{text:?}");
        }
        assert!(parse_size("999999999999999999999GB").is_err());
    }
}
