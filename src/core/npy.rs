//! NumPy `.npy` arrays in C order, little-endian: the header and a view of the values.

use half::f16;

use crate::Precision;

/// What a `.npy` file starts with.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// Element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// Float of that many bytes: 2, 4 or 8.
    Float(usize),
    /// Signed integer of that many bytes: 1, 2, 4 or 8.
    Signed(usize),
    /// Unsigned integer of that many bytes: 1, 2, 4 or 8.
    Unsigned(usize),
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Float(bytes) | Self::Signed(bytes) | Self::Unsigned(bytes) => bytes,
        }
    }
}

/// An array: its type, its shape and its bytes.
#[derive(Debug)]
pub struct Npy<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, the slowest first.
    pub shape: Vec<usize>,
    /// The elements: as many bytes as type and shape say.
    pub data: &'a [u8],
}

impl<'a> Npy<'a> {
    /// Reads the header; what is not read is refused by name.
    pub fn parse(bytes: &'a [u8]) -> Result<Npy<'a>, String> {
        let cut = || "a NumPy file that ends inside its header".to_string();
        let version = *bytes.get(MAGIC.len()).ok_or_else(cut)?;
        let width = if version == 1 { 2 } else { 4 };
        let begin = MAGIC.len() + 2 + width;
        let length = bytes.get(MAGIC.len() + 2..begin).ok_or_else(cut)?;
        let length = length.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
        let header = bytes.get(begin..begin + length).ok_or_else(cut)?;
        let header = String::from_utf8_lossy(header);
        let field = |name: &str| {
            let value = header.split_once(&format!("'{name}':")).map(|(_, rest)| rest.trim_start());
            value.ok_or_else(|| format!("NumPy header without '{name}'"))
        };
        let dtype = dtype(field("descr")?)?;
        if field("fortran_order")?.starts_with("True") {
            return Err("NumPy array in Fortran order: save numpy.ascontiguousarray(a)".into());
        }
        let inside = field("shape")?.trim_start_matches('(').split(')').next().unwrap_or("");
        let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape: Result<Vec<usize>, _> = sizes.map(str::parse).collect();
        let shape = shape.map_err(|_| format!("NumPy header with the shape ({inside})"))?;
        let wanted =
            shape.iter().try_fold(dtype.bytes(), |product, &size| product.checked_mul(size));
        let data = &bytes[begin + length..];
        if wanted != Some(data.len()) {
            let got = data.len();
            return Err(format!("NumPy array {shape:?} with {got} bytes of values, not as stated"));
        }
        Ok(Npy { dtype, shape, data })
    }

    /// The values of an array of floats, widened exactly, and their precision; None for integers.
    #[must_use]
    pub fn floats(&self) -> Option<(Precision, Vec<f64>)> {
        let Dtype::Float(bytes) = self.dtype else {
            return None;
        };
        let (halves, _) = self.data.as_chunks();
        let (singles, _) = self.data.as_chunks();
        let (doubles, _) = self.data.as_chunks();
        Some(match bytes {
            2 => {
                let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f64();
                (Precision::F16, halves.iter().map(value).collect())
            }
            4 => {
                let value = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
                (Precision::F32, singles.iter().map(value).collect())
            }
            _ => {
                let value = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
                (Precision::F64, doubles.iter().map(value).collect())
            }
        })
    }

    /// The values of an integer array; None for floats and for values beyond i64.
    #[must_use]
    pub fn integers(&self) -> Option<Vec<i64>> {
        let signed = match self.dtype {
            Dtype::Float(_) => return None,
            Dtype::Signed(_) => true,
            Dtype::Unsigned(_) => false,
        };
        let value = |element: &[u8]| {
            let negative = signed && element.last().is_some_and(|&byte| byte >= 128);
            let mut wide = [if negative { 255 } else { 0 }; 8];
            wide[..element.len()].copy_from_slice(element);
            let value = i64::from_le_bytes(wide);
            (signed || value >= 0).then_some(value)
        };
        self.data.chunks_exact(self.dtype.bytes()).map(value).collect()
    }
}

/// The type that `descr` names, such as `'<i8'`.
fn dtype(descr: &str) -> Result<Dtype, String> {
    let name = descr.trim_start_matches('\'').split('\'').next().unwrap_or("");
    if name.starts_with('>') {
        return Err(format!("big-endian NumPy array ({name}): save it little-endian"));
    }
    if name.contains('O') {
        return Err("NumPy array of pickled objects: save a plain integer or float array".into());
    }
    let size = name.get(2..).and_then(|size| size.parse().ok()).unwrap_or(0);
    match (name.get(1..2), size) {
        (Some("f"), 2 | 4 | 8) => Ok(Dtype::Float(size)),
        (Some("i"), 1 | 2 | 4 | 8) => Ok(Dtype::Signed(size)),
        (Some("u"), 1 | 2 | 4 | 8) => Ok(Dtype::Unsigned(size)),
        _ => Err(format!("NumPy array of type {name}: f2, f4, f8 and integers are read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let length = u16::try_from(header.len()).expect("short").to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), data].concat()
    }

    #[test]
    fn arrays_in_c_order_are_read_and_all_else_is_refused_by_name() {
        let singles = [1.5f32, -2.0].map(f32::to_le_bytes).concat();
        let halves = [0x3e00u16, 0xc000].map(u16::to_le_bytes).concat();
        let doubles = [1.5f64, -2.0].map(f64::to_le_bytes).concat();
        for (descr, data, precision) in [
            ("<f2", &halves, Precision::F16),
            ("<f4", &singles, Precision::F32),
            ("<f8", &doubles, Precision::F64),
        ] {
            let bytes = file(descr, "False", "(1, 2)", data);
            let array = Npy::parse(&bytes).expect("an array");
            assert_eq!(array.shape, [1, 2]);
            assert_eq!(array.floats(), Some((precision, vec![1.5, -2.0])));
            assert_eq!(array.integers(), None);
        }
        let words = file("<i4", "False", "(2,)", &[255, 255, 255, 255, 7, 0, 0, 0]);
        assert_eq!(Npy::parse(&words).expect("an array").integers(), Some(vec![-1, 7]));
        for (descr, order, shape, says) in [
            ("<f4", "True", "(1, 2)", "Fortran order"),
            (">f4", "False", "(1, 2)", "big-endian"),
            ("|O", "False", "(1, 2)", "pickled"),
            ("<c8", "False", "(1, 1)", "<c8"),
            ("<f4", "False", "(1, 3)", "8 bytes"),
            ("<f4", "False", "(x,)", "shape"),
        ] {
            let error = Npy::parse(&file(descr, order, shape, &singles)).expect_err(descr);
            assert!(error.contains(says), "{descr}: {error}");
        }
        assert!(Npy::parse(&file("<f4", "False", "(1, 2)", &singles)[..20]).is_err());
    }
}
