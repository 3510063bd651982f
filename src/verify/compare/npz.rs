//! The arrays of a NumPy archive (`.npz`).

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};

/// The most bytes that the arrays of an archive may come to: more than 4,000 rows of K3's
/// vocabulary in f64. A small archive can unfold to any size.
const MAX_BYTES: u64 = 8 << 30;

/// The `.npy` files of an archive by name; an error says what was found instead.
pub(super) fn arrays(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let damaged = |error: zip::result::ZipError| format!("ZIP: {error}");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
    let mut arrays = BTreeMap::new();
    let mut left = MAX_BYTES;
    for index in 0..archive.len() {
        let file = archive.by_index(index).map_err(damaged)?;
        let name = file.name().map_err(damaged)?.into_owned();
        if name.ends_with("data.pkl") {
            return Err("expected NumPy arrays, got a PyTorch file (pickle): not read".to_owned());
        }
        let Some(array) = name.strip_suffix(".npy") else {
            return Err(format!("expected NumPy arrays, got an archive with {name:?}"));
        };
        let mut content = Vec::new();
        let read = file.take(left + 1).read_to_end(&mut content);
        read.map_err(|error| format!("{name}: {error}"))?;
        left = left.checked_sub(content.len() as u64).ok_or_else(|| {
            format!("expected arrays of at most {MAX_BYTES} bytes in all, got more")
        })?;
        arrays.insert(array.to_owned(), content);
    }
    Ok(arrays)
}
