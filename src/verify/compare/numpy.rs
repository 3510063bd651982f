//! NumPy arrays: `.npy`, and the `.npz` archives of them. Little-endian, in C order.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use k3_core::Precision;
use k3_core::stages::StageValues;

/// First bytes of a `.npy`.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// First bytes of a `.npz`.
pub const ZIP_MAGIC: &[u8] = b"PK\x03\x04";

/// An array with its values as they are, widened.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// How its real numbers are stored; integers have none.
    pub stored: Option<Precision>,
    /// Row-major.
    pub values: StageValues,
}

/// The array of a `.npy`; an error says what was expected and what was found.
///
/// # Errors
///
/// Fortran order, big-endian or unsupported element types (objects are pickles), a header that is
/// not one, data of another length than the shape.
pub fn read(bytes: &[u8]) -> Result<Array, String> {
    let (header, data) = split(bytes).ok_or("expected a NumPy header, got a cut or damaged one")?;
    if field(header, "fortran_order") != Some("False") {
        return Err("expected C order, got fortran_order: save numpy.ascontiguousarray(a)".into());
    }
    let descr = field(header, "descr").unwrap_or("").trim_matches(['\'', '"']);
    let shape = shape_of(header).ok_or_else(|| format!("expected a shape, got {header:?}"))?;
    let count = shape.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
    let sized = |size: usize| match count.and_then(|count| count.checked_mul(size)) {
        Some(length) if length == data.len() => Ok(()),
        _ => Err(format!("expected {shape:?} values of {size} bytes, got {} bytes", data.len())),
    };
    let real = |stored, values| (Some(stored), StageValues::Real(values));
    let (stored, values) = match descr {
        "<f2" => {
            sized(2)?;
            let value = |b: &[u8; 2]| half::f16::from_le_bytes(*b).to_f64();
            real(Precision::F16, data.as_chunks().0.iter().map(value).collect())
        }
        "<f4" => {
            sized(4)?;
            let value = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
            real(Precision::F32, data.as_chunks().0.iter().map(value).collect())
        }
        "<f8" => {
            sized(8)?;
            let value = |b: &[u8; 8]| f64::from_le_bytes(*b);
            real(Precision::F64, data.as_chunks().0.iter().map(value).collect())
        }
        "<i4" => {
            sized(4)?;
            let value = |b: &[u8; 4]| i32::from_le_bytes(*b);
            (None, StageValues::Ids(data.as_chunks().0.iter().map(value).collect()))
        }
        "<i8" => {
            sized(8)?;
            let value = |b: &[u8; 8]| i32::try_from(i64::from_le_bytes(*b));
            let ids: Result<_, _> = data.as_chunks().0.iter().map(value).collect();
            (None, StageValues::Ids(ids.map_err(|_| "expected ids, got one beyond 32 bits")?))
        }
        other if other.contains('O') => {
            return Err(format!("expected numbers, got pickled objects ({other:?}): not read"));
        }
        other if other.starts_with('>') => {
            return Err(format!("expected little-endian values, got {other:?} (big-endian)"));
        }
        other => return Err(format!("expected f2, f4, f8, i4 or i8, got {other:?}")),
    };
    Ok(Array { shape, stored, values })
}

/// The arrays of a `.npz` by name.
///
/// # Errors
///
/// As [`read`]; an archive that is none, a PyTorch file.
pub fn read_archive(bytes: &[u8]) -> Result<BTreeMap<String, Array>, String> {
    let mut archive =
        zip::ZipArchive::new(Cursor::new(bytes)).map_err(|error| format!("ZIP: {error}"))?;
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).map_err(|error| format!("ZIP: {error}"))?;
        let name = file.name().map_err(|error| format!("ZIP: {error}"))?.into_owned();
        if name.ends_with("data.pkl") {
            return Err("expected NumPy arrays, got a PyTorch file (pickle): not read".to_owned());
        }
        let Some(array) = name.strip_suffix(".npy") else {
            return Err(format!("expected NumPy arrays, got an archive with {name:?}"));
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(|error| format!("{name}: {error}"))?;
        let read = read(&content).map_err(|error| format!("{name}: {error}"))?;
        arrays.insert(array.to_owned(), read);
    }
    Ok(arrays)
}

/// Header text and data.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (&[major, _], rest) = rest.split_first_chunk()?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::try_from(u32::from_le_bytes(*length)).ok()?, rest)
        }
        _ => return None,
    };
    let (header, data) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// The text of a field of the header up to its comma.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))?;
    let (_, value) = header[at..].split_once(':')?;
    value.split([',', '}']).next().map(str::trim)
}

fn shape_of(header: &str) -> Option<Vec<usize>> {
    let (_, value) = header.split_once("'shape'")?;
    let (_, value) = value.split_once('(')?;
    let (extents, _) = value.split_once(')')?;
    let extents = extents.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    extents.map(|extent| extent.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), data].concat()
    }

    #[test]
    fn arrays_in_c_order_are_read_and_all_else_is_refused_by_name() {
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let array = read(&file("<f4", "False", "(1, 2)", &data)).unwrap();
        assert_eq!(array.shape, [1, 2]);
        assert_eq!(array.values, StageValues::Real(vec![1.5, -2.0]));
        let halves = [0x3e00u16, 0xc000].map(u16::to_le_bytes).concat();
        let array = read(&file("<f2", "False", "(2,)", &halves)).unwrap();
        assert_eq!(array.values, StageValues::Real(vec![1.5, -2.0]));
        for (descr, order, shape, says) in [
            ("<f4", "True", "(1, 2)", "fortran_order"),
            (">f4", "False", "(1, 2)", "big-endian"),
            ("|O", "False", "(1, 2)", "pickled"),
            ("<c8", "False", "(1, 1)", "<c8"),
            ("<f4", "False", "(1, 3)", "8 bytes"),
            ("<f4", "False", "", "shape"),
        ] {
            let error = read(&file(descr, order, shape, &data)).unwrap_err();
            assert!(error.contains(says), "{descr}: {error}");
        }
        assert!(read(&file("<f4", "False", "(1, 2)", &data)[..20]).is_err());
    }
}
