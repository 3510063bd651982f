//! The head of a safetensors file that is to be written: length, header, padding.
//!
//! Tensors are stored in the order given, without gaps; the header is padded with spaces to a
//! multiple of 8 bytes. Whatever [`super::header`] would refuse is refused here first.

use std::collections::HashSet;

use super::Problem;
use super::dtype::Dtype;
use super::header::{MAX_HEADER_BYTES, MAX_NAME_BYTES, METADATA_KEY};

/// The header's length is a multiple of this, so that data starts aligned.
const HEADER_ALIGN_BYTES: usize = 8;

/// Most dimensions of a tensor that is written: the release has up to four.
const MAX_RANK: usize = 8;

/// A tensor to be written, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSpec<'a> {
    /// Full name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
}

/// A file's head and the place of every tensor, before any data is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// Length prefix, header, padding: everything in front of the data.
    pub head: Vec<u8>,
    /// Bytes of each tensor, in order.
    pub tensor_bytes: Vec<u64>,
    /// Size of the whole file.
    pub file_bytes: u64,
}

impl FileLayout {
    /// Lays out the tensors in the order given; `metadata` may be empty.
    ///
    /// # Errors
    /// Names, shapes and sizes that the reader refuses.
    pub fn new<'a>(
        tensors: impl IntoIterator<Item = TensorSpec<'a>>,
        metadata: &[(&str, &str)],
    ) -> Result<Self, Problem> {
        let mut header = String::from("{");
        write_metadata(metadata, &mut header)?;
        let mut seen = HashSet::new();
        let mut tensor_bytes = Vec::new();
        let mut end = 0_u64;
        for tensor in tensors {
            let name = tensor.name;
            let byte_len = check_spec(&tensor)?;
            let start = end;
            end = start.checked_add(byte_len).ok_or_else(|| bad_shape(&tensor))?;
            if !seen.insert(name) {
                return Err(Problem::in_tensor(name, "would be written twice"));
            }
            if header.len() > 1 {
                header.push(',');
            }
            push_json_string(&mut header, name);
            let (dtype, shape) = (tensor.dtype, tensor.shape);
            // No blanks: so written, the headers of the release have their published sizes.
            let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
            let sizes = sizes.join(",");
            header.push_str(&format!(
                ":{{\"dtype\":\"{dtype}\",\"shape\":[{sizes}],\"data_offsets\":[{start},{end}]}}"
            ));
            tensor_bytes.push(byte_len);
        }
        header.push('}');
        while !header.len().is_multiple_of(HEADER_ALIGN_BYTES) {
            header.push(' ');
        }
        let header_bytes = header.len();
        if header_bytes as u64 > MAX_HEADER_BYTES {
            let what = format!("{header_bytes} bytes, above the limit of {MAX_HEADER_BYTES}");
            return Err(Problem::new("header", what));
        }
        let mut head = (header_bytes as u64).to_le_bytes().to_vec();
        head.extend_from_slice(header.as_bytes());
        let file_bytes = head.len() as u64 + end;
        Ok(Self { head, tensor_bytes, file_bytes })
    }
}

fn check_spec(tensor: &TensorSpec<'_>) -> Result<u64, Problem> {
    let TensorSpec { name, dtype, shape } = *tensor;
    if name == METADATA_KEY {
        return Err(Problem::in_tensor(name, "the format reserves this name"));
    }
    if name.len() > MAX_NAME_BYTES {
        let what = format!("a name of {} bytes is above the limit of {MAX_NAME_BYTES}", name.len());
        return Err(Problem::whole(what));
    }
    if shape.len() > MAX_RANK {
        let what = format!("{} dimensions are above the limit of {MAX_RANK}", shape.len());
        return Err(Problem::in_tensor(name, what));
    }
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64));
    elements.and_then(|elements| dtype.byte_len(elements)).ok_or_else(|| bad_shape(tensor))
}

fn bad_shape(tensor: &TensorSpec<'_>) -> Problem {
    let what = format!("shape {:?} of {} has no byte length", tensor.shape, tensor.dtype);
    Problem::in_tensor(tensor.name, what)
}

fn write_metadata(metadata: &[(&str, &str)], header: &mut String) -> Result<(), Problem> {
    if metadata.is_empty() {
        return Ok(());
    }
    push_json_string(header, METADATA_KEY);
    header.push_str(":{");
    let mut seen = HashSet::new();
    for (index, (key, value)) in metadata.iter().enumerate() {
        if !seen.insert(*key) {
            return Err(Problem::whole(format!("metadata key {key:?} would be written twice")));
        }
        if index > 0 {
            header.push(',');
        }
        push_json_string(header, key);
        header.push(':');
        push_json_string(header, value);
    }
    header.push('}');
    Ok(())
}

fn push_json_string(header: &mut String, text: &str) {
    header.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Checkpoint;

    fn spec<'a>(name: &'a str, dtype: Dtype, shape: &'a [usize]) -> TensorSpec<'a> {
        TensorSpec { name, dtype, shape }
    }

    /// What is written must be what both readers read, odd names, scalars and empties included.
    #[test]
    fn written_files_read_back_in_both_readers() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.safetensors");
        let tensors = [
            (spec("odd \"name\"\\\n café", Dtype::U8, &[3]), &[1_u8, 2, 3][..]),
            (spec("empty", Dtype::F32, &[0, 4]), &[]),
            (spec("scalar", Dtype::Bf16, &[]), &[0x80, 0x3F]),
        ];
        let specs = tensors.map(|(spec, _)| spec);
        let layout = FileLayout::new(specs, &[("ids", "1,2"), ("note", "}\"{")]).expect("layout");
        let bytes = [layout.head, tensors.map(|(_, data)| data).concat()].concat();
        assert_eq!(bytes.len() as u64, layout.file_bytes);
        std::fs::write(&path, &bytes).expect("written");
        let ours = Checkpoint::open_file(&path).expect("ours");
        let other = safetensors::SafeTensors::deserialize(&bytes).expect("crate");
        assert_eq!((ours.len(), other.len()), (3, 3));
        for (spec, data) in tensors {
            assert_eq!(ours.read(spec.name).expect("ours"), data);
            assert_eq!(other.tensor(spec.name).expect("crate").data(), data);
            assert_eq!(ours.tensor(spec.name).expect("ours").shape, spec.shape);
        }
        assert_eq!(ours.shards()[0].metadata()[1], ("note".into(), "}\"{".into()));
        assert!(ours.shards()[0].data_start().is_multiple_of(8));
    }

    /// A writer must not make what its own reader rejects.
    #[test]
    fn what_the_reader_refuses_is_not_laid_out() {
        let refuse = |tensors: &[TensorSpec<'_>], what: &str| {
            let refused = FileLayout::new(tensors.iter().copied(), &[]).expect_err("refused");
            assert!(refused.to_string().contains(what), "{refused}");
        };
        refuse(&[spec(METADATA_KEY, Dtype::U8, &[0])], "reserves this name");
        let twice = spec("w", Dtype::U8, &[0]);
        refuse(&[twice, twice], "tensor \"w\": would be written twice");
        let long = "n".repeat(MAX_NAME_BYTES + 1);
        refuse(&[spec(&long, Dtype::U8, &[0])], &format!("a name of {} bytes", long.len()));
        refuse(
            &[spec("w", Dtype::U8, &[1; MAX_RANK + 1])],
            &format!("{} dimensions", MAX_RANK + 1),
        );
        refuse(&[spec("w", Dtype::F64, &[usize::MAX, 2])], "has no byte length");
        assert!(FileLayout::new([], &[("a", "1"), ("a", "2")]).is_err());
    }
}
