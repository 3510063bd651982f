//! NumPy `.npy` arrays in C order, little-endian: the header and a view of the values.

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
