//! The strict parser of a safetensors header.
//!
//! A file is 8 bytes of little-endian header length, the header (one JSON object), then the data.
//! The policy, stated once and followed everywhere:
//!
//! - The length is believed only as far as the file reaches and up to [`MAX_HEADER_BYTES`];
//!   nothing is allocated by it.
//! - The header starts with `{` at its first byte and may be followed by spaces, by nothing else.
//! - Names are unique, escapes resolved; so are the keys of an entry. An entry has exactly
//!   `dtype`, `shape` and `data_offsets`; all their numbers are integer literals.
//! - Dtype × shape = byte length, without overflow. Tensors cover the data exactly: no overlap,
//!   no gap at the start or in between, no spare byte at the end. Empty tensors are fine, scalars
//!   (`[]`) have one element.
//! - `__metadata__` maps strings to strings, may be absent or stand anywhere; no tensor can have
//!   that name.
//!
//! What cannot be seen: offsets that lie within these rules, and changed data bytes.

use std::collections::HashMap;
use std::io::Read;

use super::dtype::Dtype;
use super::foreign::Foreign;
pub use super::header_error::HeaderError;
use super::json::{FoundByte, JsonError, JsonReader, Kind};
use super::name_table::NameTable;

/// Largest header accepted: ten times what other readers allow (100,000,000 bytes), which a
/// legal file can exceed, and a thousand times the largest released one.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// Longest tensor name: ten times the longest released one.
pub const MAX_NAME_BYTES: usize = 1024;

/// Most dimensions of a tensor: the release has up to four.
pub const MAX_RANK: usize = 8;

/// Bytes in front of the header.
pub const LENGTH_BYTES: u64 = 8;

/// The one key of a header that is no tensor.
pub const METADATA_KEY: &str = "__metadata__";

/// Dtype and shape with the byte length they give; few distinct ones exist, so they are shared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Form {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Bytes of one tensor.
    pub byte_len: u64,
}

/// One tensor of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderEntry {
    /// Where it starts, from the start of the data.
    pub start: u64,
    /// Its name, in the resolver's numbering.
    pub name_id: u32,
    /// Index into [`Header::forms`].
    pub form: u32,
}

/// A parsed header. Entries stand in the order of their bytes and cover the data exactly.
#[derive(Debug, Default)]
pub struct Header {
    /// The tensors.
    pub entries: Vec<HeaderEntry>,
    /// Distinct dtypes and shapes.
    pub forms: Vec<Form>,
    /// `__metadata__`, in the order of the file.
    pub metadata: Vec<(String, String)>,
}

/// Gives names numbers: a table that grows, or a fixed one with a place for strangers.
pub trait NameResolver {
    /// The number of a name, the same one each time; `None` when no further name fits.
    fn resolve(&mut self, name: &str) -> Option<u32>;
    /// The name of a number.
    fn name(&self, id: u32) -> &str;
}

impl NameResolver for NameTable {
    fn resolve(&mut self, name: &str) -> Option<u32> {
        self.intern(name).map(|(id, _)| id)
    }

    fn name(&self, id: u32) -> &str {
        NameTable::name(self, id)
    }
}

/// Checks the first bytes of a file of `file_bytes` bytes and gives the header's length.
/// `first_bytes` holds the file's start: all of it, or at least 9 bytes.
///
/// # Errors
/// The variants of [`HeaderError`] from `Foreign` to `NotAnObject`.
pub fn header_length(first_bytes: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    if let Some(what) = Foreign::of_content(first_bytes) {
        return Err(HeaderError::Foreign(what));
    }
    let Some((length, rest)) = first_bytes.split_first_chunk::<8>() else {
        return Err(HeaderError::FileTooShort { file_bytes });
    };
    let room = file_bytes.saturating_sub(LENGTH_BYTES);
    let header_bytes = u64::from_le_bytes(*length);
    let swapped = u64::from_be_bytes(*length);
    if header_bytes == 0 {
        return Err(HeaderError::ZeroLength);
    }
    if header_bytes > room && swapped <= room && rest.first() == Some(&b'{') {
        return Err(HeaderError::BigEndianLength { header_bytes });
    }
    if header_bytes > room {
        return Err(HeaderError::LengthPastEnd { header_bytes, file_bytes });
    }
    if header_bytes > MAX_HEADER_BYTES {
        return Err(HeaderError::LengthAboveLimit { header_bytes });
    }
    match rest.first() {
        Some(b'{') => Ok(header_bytes),
        Some(found) => Err(HeaderError::NotAnObject { found: FoundByte(*found) }),
        None => Err(HeaderError::LengthPastEnd { header_bytes, file_bytes }),
    }
}

/// Parses the header that `source` yields (exactly the header's bytes) of a file with
/// `data_bytes` bytes behind it.
///
/// # Errors
/// The variants of [`HeaderError`] from `NotAnObject` on.
pub fn parse_header<R: Read>(
    source: R,
    data_bytes: u64,
    names: &mut dyn NameResolver,
) -> Result<Header, HeaderError> {
    let mut parser = Parser {
        json: JsonReader::new(source),
        header: Header::default(),
        form_places: HashMap::new(),
    };
    if let Some(found) = parser.json.peek_byte()?.filter(|&byte| byte != b'{') {
        return Err(HeaderError::NotAnObject { found: FoundByte(found) });
    }
    parser.object(names)?;
    parser.json.end_padded_with(b" ").map_err(|error| match error {
        JsonError::TrailingData { at_byte, found } => HeaderError::BadPadding { at_byte, found },
        other => HeaderError::Json(other),
    })?;
    let mut header = parser.header;
    refuse_duplicates(&header, names)?;
    check_layout(&mut header, data_bytes, names)?;
    header.entries.shrink_to_fit();
    Ok(header)
}

struct Parser<R> {
    json: JsonReader<R>,
    header: Header,
    form_places: HashMap<Form, u32>,
}

/// What one entry says, before it is checked; its buffers serve one entry after the other.
#[derive(Default)]
struct RawEntry {
    dtype: Option<Dtype>,
    has_shape: bool,
    shape: Vec<u64>,
    offsets: Option<(u64, u64)>,
    field: String,
    text: String,
}

impl<R: Read> Parser<R> {
    fn object(&mut self, names: &mut dyn NameResolver) -> Result<(), HeaderError> {
        let mut members = self.json.begin_object()?;
        let mut name = String::new();
        let mut entry = RawEntry::default();
        let mut metadata_seen = false;
        while self.json.next_key(&mut members, &mut name, MAX_NAME_BYTES)? {
            if name == METADATA_KEY {
                if metadata_seen {
                    return Err(HeaderError::DuplicateName { tensor: name });
                }
                metadata_seen = true;
                self.metadata()?;
                continue;
            }
            self.raw_entry(&name, &mut entry)?;
            let (start, form) = self.check_entry(&name, &entry)?;
            let name_id = names.resolve(&name).ok_or(HeaderError::TooManyNames)?;
            self.header.entries.push(HeaderEntry { start, name_id, form });
        }
        Ok(())
    }

    fn metadata(&mut self) -> Result<(), HeaderError> {
        self.expect(METADATA_KEY, "the value", "an object of strings", Kind::Object)?;
        let mut members = self.json.begin_object()?;
        let mut key = String::new();
        let mut seen = NameTable::new();
        while self.json.next_key(&mut members, &mut key, MAX_NAME_BYTES)? {
            match seen.intern(&key) {
                Some((_, true)) => {}
                Some((_, false)) => {
                    let tensor = METADATA_KEY.to_owned();
                    return Err(HeaderError::DuplicateField { tensor, field: key });
                }
                None => return Err(HeaderError::TooManyNames),
            }
            self.expect(METADATA_KEY, "a value", "a string", Kind::String)?;
            let mut value = String::new();
            self.json.string(&mut value, usize::MAX)?;
            self.header.metadata.push((std::mem::take(&mut key), value));
        }
        Ok(())
    }

    fn raw_entry(&mut self, tensor: &str, entry: &mut RawEntry) -> Result<(), HeaderError> {
        self.expect(tensor, "the entry", "an object", Kind::Object)?;
        (entry.dtype, entry.offsets, entry.has_shape) = (None, None, false);
        let mut members = self.json.begin_object()?;
        while self.json.next_key(&mut members, &mut entry.field, MAX_NAME_BYTES)? {
            let seen = match entry.field.as_str() {
                "dtype" => {
                    let dtype = self.dtype(tensor, &mut entry.text)?;
                    entry.dtype.replace(dtype).is_some()
                }
                "shape" => {
                    self.shape(tensor, &mut entry.shape)?;
                    std::mem::replace(&mut entry.has_shape, true)
                }
                "data_offsets" => entry.offsets.replace(self.offsets(tensor)?).is_some(),
                _ => {
                    let (tensor, field) = (tensor.to_owned(), std::mem::take(&mut entry.field));
                    return Err(HeaderError::UnknownField { tensor, field });
                }
            };
            if seen {
                let (tensor, field) = (tensor.to_owned(), std::mem::take(&mut entry.field));
                return Err(HeaderError::DuplicateField { tensor, field });
            }
        }
        Ok(())
    }

    fn dtype(&mut self, tensor: &str, text: &mut String) -> Result<Dtype, HeaderError> {
        self.expect(tensor, "dtype", "a string", Kind::String)?;
        self.json.string(text, MAX_NAME_BYTES)?;
        let unknown = || HeaderError::UnknownDtype { tensor: tensor.into(), got: text.clone() };
        Dtype::parse(text).ok_or_else(unknown)
    }

    fn shape(&mut self, tensor: &str, shape: &mut Vec<u64>) -> Result<(), HeaderError> {
        self.expect(tensor, "shape", "an array of integers", Kind::Array)?;
        let mut members = self.json.begin_array()?;
        shape.clear();
        while self.json.next_element(&mut members)? {
            if shape.len() == MAX_RANK {
                return Err(HeaderError::RankTooHigh { tensor: tensor.to_owned() });
            }
            shape.push(self.integer(tensor, "shape")?);
        }
        Ok(())
    }

    fn offsets(&mut self, tensor: &str) -> Result<(u64, u64), HeaderError> {
        self.expect(tensor, "data_offsets", "an array of two integers", Kind::Array)?;
        let mut members = self.json.begin_array()?;
        let mut offsets = [0; 2];
        let mut got = 0;
        while self.json.next_element(&mut members)? {
            if got == offsets.len() {
                return Err(HeaderError::OffsetCount { tensor: tensor.to_owned(), got: got + 1 });
            }
            offsets[got] = self.integer(tensor, "data_offsets")?;
            got += 1;
        }
        if got < offsets.len() {
            return Err(HeaderError::OffsetCount { tensor: tensor.to_owned(), got });
        }
        Ok((offsets[0], offsets[1]))
    }

    fn integer(&mut self, tensor: &str, field: &'static str) -> Result<u64, HeaderError> {
        self.expect(tensor, field, "integers", Kind::Number)?;
        let literal = self.json.number()?;
        // `parse` would take a sign; JSON has no plus and a minus is refused, −0 included.
        literal.parse().map_err(|_| HeaderError::BadInteger {
            tensor: tensor.to_owned(),
            field,
            got: literal.to_owned(),
        })
    }

    fn expect(
        &mut self,
        tensor: &str,
        field: &'static str,
        expected: &'static str,
        kind: Kind,
    ) -> Result<(), HeaderError> {
        let got = self.json.peek_kind()?;
        if got == kind {
            return Ok(());
        }
        Err(HeaderError::WrongType { tensor: tensor.to_owned(), field, expected, got })
    }

    /// Checks one entry by itself; gives its start and the index of its form.
    fn check_entry(&mut self, name: &str, entry: &RawEntry) -> Result<(u64, u32), HeaderError> {
        let missing = |field| HeaderError::MissingField { tensor: name.to_owned(), field };
        let dtype = entry.dtype.ok_or_else(|| missing("dtype"))?;
        let shape = entry.has_shape.then_some(&entry.shape).ok_or_else(|| missing("shape"))?;
        let (start, end) = entry.offsets.ok_or_else(|| missing("data_offsets"))?;
        let (tensor, shape_of) = (|| name.to_owned(), || shape.clone());
        let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
        let Some(bits) = elements.and_then(|elements| elements.checked_mul(dtype.bits())) else {
            return Err(HeaderError::ShapeOverflow { tensor: tensor(), shape: shape_of(), dtype });
        };
        if !bits.is_multiple_of(8) {
            return Err(HeaderError::PartByte { tensor: tensor(), shape: shape_of(), dtype });
        }
        let expected = bits / 8;
        let Some(got) = end.checked_sub(start) else {
            return Err(HeaderError::OffsetsReversed { tensor: tensor(), start, end });
        };
        if got != expected {
            let (tensor, shape) = (tensor(), shape_of());
            return Err(HeaderError::ByteLength { tensor, shape, dtype, expected, got });
        }
        match self.form_place(dtype, shape, expected) {
            Some(place) => Ok((start, place)),
            None => Err(HeaderError::ShapeOverflow { tensor: tensor(), shape: shape_of(), dtype }),
        }
    }

    /// The index of a form, noted where it is new; `None` for a dimension no `usize` holds.
    fn form_place(&mut self, dtype: Dtype, shape: &[u64], byte_len: u64) -> Option<u32> {
        // A shard has a few dozen forms, and the ones of its experts come round again and again.
        const LOOKED_AT: usize = 8;
        let forms = &mut self.header.forms;
        let oldest = forms.len().saturating_sub(LOOKED_AT);
        let same = |form: &Form| {
            form.dtype == dtype
                && form.shape.len() == shape.len()
                && form.shape.iter().zip(shape).all(|(&a, &b)| a as u64 == b)
        };
        if let Some(place) = forms[oldest..].iter().position(same) {
            return Some((oldest + place) as u32);
        }
        let dims: Option<Vec<usize>> = shape.iter().map(|&size| size.try_into().ok()).collect();
        let form = Form { dtype, shape: dims?, byte_len };
        let next = forms.len() as u32;
        Some(*self.form_places.entry(form).or_insert_with_key(|form| {
            forms.push(form.clone());
            next
        }))
    }
}

fn refuse_duplicates(header: &Header, names: &dyn NameResolver) -> Result<(), HeaderError> {
    let mut ids: Vec<u32> = header.entries.iter().map(|entry| entry.name_id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(HeaderError::DuplicateName { tensor: names.name(pair[0]).to_owned() }),
        None => Ok(()),
    }
}

/// Sorts the entries by their bytes and makes sure that they cover the data exactly.
fn check_layout(
    header: &mut Header,
    data_bytes: u64,
    names: &dyn NameResolver,
) -> Result<(), HeaderError> {
    let Header { entries, forms, .. } = header;
    // No overflow: start + length is the end that the file gave.
    let end_of = |entry: &HeaderEntry| entry.start + forms[entry.form as usize].byte_len;
    let name_of = |entry: &HeaderEntry| names.name(entry.name_id).to_owned();
    entries.sort_unstable_by_key(|entry| (entry.start, end_of(entry), entry.name_id));
    if let Some(last) = entries.iter().max_by_key(|entry| end_of(entry))
        && end_of(last) > data_bytes
    {
        let (tensor, end) = (name_of(last), end_of(last));
        return Err(HeaderError::Truncated { tensor, end, data_bytes });
    }
    let mut covered = 0;
    let mut before: Option<&HeaderEntry> = None;
    for entry in entries.iter() {
        let at = entry.start;
        if at > covered {
            let tensor = name_of(entry);
            return Err(HeaderError::Hole { tensor, at, hole_bytes: at - covered });
        }
        if let Some(before) = before.filter(|_| at < covered) {
            let (first, second) = (name_of(before), name_of(entry));
            return Err(HeaderError::Overlap { first, second, at });
        }
        covered = end_of(entry);
        before = Some(entry);
    }
    if covered < data_bytes {
        let spare_bytes = data_bytes - covered;
        return Err(HeaderError::TrailingBytes { end: covered, spare_bytes });
    }
    Ok(())
}
