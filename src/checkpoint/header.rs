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

use std::collections::{HashMap, HashSet};

use super::Problem;
use super::dtype::Dtype;
use super::foreign::Foreign;
use super::json::Raw;
use super::name_table::{MAX_ARENA_BYTES, NameTable};

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
/// Another kind of file, and a length that cannot be.
pub fn header_length(first_bytes: &[u8], file_bytes: u64) -> Result<u64, Problem> {
    let refused = |what: String| Err(Problem::whole(what));
    if let Some(what) = Foreign::of_content(first_bytes) {
        return refused(format!("this is {what}"));
    }
    let Some((length, rest)) = first_bytes.split_first_chunk::<8>() else {
        return refused(format!(
            "file of {file_bytes} bytes is too short for a header length of {LENGTH_BYTES} bytes"
        ));
    };
    let room = file_bytes.saturating_sub(LENGTH_BYTES);
    let header_bytes = u64::from_le_bytes(*length);
    let swapped = u64::from_be_bytes(*length);
    if header_bytes == 0 {
        return refused("header length is 0, expected at least the two bytes of {}".to_owned());
    }
    if header_bytes > room && swapped <= room && rest.first() == Some(&b'{') {
        return refused(format!(
            "header length {header_bytes} is written big-endian, expected little-endian"
        ));
    }
    if header_bytes > room {
        return refused(format!(
            "header length {header_bytes} reaches past the end, the file has {file_bytes} bytes"
        ));
    }
    if header_bytes > MAX_HEADER_BYTES {
        return refused(format!(
            "header length {header_bytes} is above the limit of {MAX_HEADER_BYTES} bytes"
        ));
    }
    Ok(header_bytes)
}

/// Parses a header of a file with `data_bytes` bytes of data.
///
/// # Errors
/// Everything that the module refuses, with the tensor and field, or the byte of the header.
pub fn parse_header(
    bytes: &[u8],
    data_bytes: u64,
    names: &mut dyn NameResolver,
) -> Result<Header, Problem> {
    match bytes.first() {
        Some(b'{') => {}
        first => {
            let found = shown(first.copied());
            return Err(Problem::whole(format!("header starts with {found}, expected '{{'")));
        }
    }
    let padding = bytes.iter().rev().take_while(|byte| **byte == b' ').count();
    let object = &bytes[..bytes.len() - padding];
    let mut parser = Parser { header: Header::default(), form_places: HashMap::new() };
    parser.object(Raw::document(object)?, names)?;
    if let Some(&last) = object.last().filter(|last| **last != b'}') {
        let at = format!("byte {}", object.len() - 1);
        let found = shown(Some(last));
        return Err(Problem::new(
            at,
            format!("{found} after the header's object, only spaces may follow"),
        ));
    }
    let mut header = parser.header;
    refuse_duplicates(&header, names)?;
    check_layout(&mut header, data_bytes, names)?;
    header.entries.shrink_to_fit();
    Ok(header)
}

/// A byte, readable in one line.
fn shown(byte: Option<u8>) -> String {
    match byte {
        None => "nothing".to_owned(),
        Some(byte) if byte.is_ascii_graphic() => format!("'{}'", char::from(byte)),
        Some(byte) => format!("byte 0x{byte:02X}"),
    }
}

struct Parser {
    header: Header,
    form_places: HashMap<Form, u32>,
}

/// What one entry says, before it is checked.
#[derive(Default)]
struct RawEntry {
    dtype: Option<Dtype>,
    shape: Option<([u64; MAX_RANK], usize)>,
    offsets: Option<(u64, u64)>,
}

impl Parser {
    fn object(&mut self, header: Raw<'_>, names: &mut dyn NameResolver) -> Result<(), Problem> {
        let mut metadata_seen = false;
        header.members(|name, value| {
            if name.len() > MAX_NAME_BYTES {
                return Err(too_long(value));
            }
            if name == METADATA_KEY {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(duplicate_name(METADATA_KEY));
                }
                return self.metadata(value);
            }
            let entry = raw_entry(&name, value)?;
            let (start, form) = self.check_entry(&name, &entry)?;
            let name_id = names.resolve(&name).ok_or_else(too_many_names)?;
            self.header.entries.push(HeaderEntry { start, name_id, form });
            Ok(())
        })
    }

    fn metadata(&mut self, metadata: Raw<'_>) -> Result<(), Problem> {
        expect(METADATA_KEY, "the value", "an object", "an object of strings", metadata)?;
        let mut seen = HashSet::new();
        metadata.members(|key, value| {
            if key.len() > MAX_NAME_BYTES {
                return Err(too_long(value));
            }
            let Some(text) = value.string()? else {
                return Err(wrong_type(METADATA_KEY, &format!("{key:?}"), "a string", value));
            };
            self.header.metadata.push((key.clone().into_owned(), text.into_owned()));
            if seen.insert(key.clone()) { Ok(()) } else { Err(duplicate(METADATA_KEY, &key)) }
        })
    }

    /// Checks one entry by itself; gives its start and the index of its form.
    fn check_entry(&mut self, name: &str, entry: &RawEntry) -> Result<(u64, u32), Problem> {
        let missing = |field| Problem::in_tensor(name, format!("{field} is missing"));
        let dtype = entry.dtype.ok_or_else(|| missing("dtype"))?;
        let (sizes, rank) = entry.shape.as_ref().ok_or_else(|| missing("shape"))?;
        let (start, end) = entry.offsets.ok_or_else(|| missing("data_offsets"))?;
        let shape = &sizes[..*rank];
        let refused =
            |what: &str| Problem::in_tensor(name, format!("shape {shape:?} of {dtype} {what}"));
        let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits()));
        let bits = bits.ok_or_else(|| refused("overflows 64 bits"))?;
        if !bits.is_multiple_of(8) {
            return Err(refused("does not fill whole bytes"));
        }
        let expected = bits / 8;
        let Some(got) = end.checked_sub(start) else {
            let what = format!("data_offsets end {end} is before start {start}");
            return Err(Problem::in_tensor(name, what));
        };
        if got != expected {
            return Err(refused(&format!("has {expected} bytes, its data_offsets give {got}")));
        }
        let place = self.form_place(dtype, shape, expected);
        Ok((start, place.ok_or_else(|| refused("overflows 64 bits"))?))
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

fn raw_entry(tensor: &str, entry: Raw<'_>) -> Result<RawEntry, Problem> {
    expect(tensor, "the entry", "an object", "an object", entry)?;
    let mut found = RawEntry::default();
    entry.members(|field, value| {
        let seen = match &*field {
            "dtype" => found.dtype.replace(read_dtype(tensor, value)?).is_some(),
            "shape" => found.shape.replace(integers(tensor, "shape", value)?).is_some(),
            "data_offsets" => {
                let (offsets, count) = integers::<2>(tensor, "data_offsets", value)?;
                if count < 2 {
                    let what = format!("data_offsets has {count} numbers, expected 2");
                    return Err(Problem::in_tensor(tensor, what));
                }
                found.offsets.replace((offsets[0], offsets[1])).is_some()
            }
            _ => {
                let what = format!("unknown key {field:?}, expected dtype, shape, data_offsets");
                return Err(Problem::in_tensor(tensor, what));
            }
        };
        if seen { Err(duplicate(tensor, &field)) } else { Ok(()) }
    })?;
    Ok(found)
}

fn read_dtype(tensor: &str, value: Raw<'_>) -> Result<Dtype, Problem> {
    let Some(text) = value.string()? else {
        return Err(wrong_type(tensor, "dtype", "a string", value));
    };
    Dtype::parse(&text).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        Problem::in_tensor(tensor, format!("unknown dtype {shown:?}"))
    })
}

/// At most N integers, and how many there are.
fn integers<const N: usize>(
    tensor: &str,
    field: &str,
    value: Raw<'_>,
) -> Result<([u64; N], usize), Problem> {
    expect(tensor, field, "an array", "an array of integers", value)?;
    let (mut numbers, mut count) = ([0; N], 0);
    value.elements(|item| {
        if count == N {
            return Err(Problem::in_tensor(tensor, format!("{field} has more than {N} numbers")));
        }
        expect(tensor, field, "a number", "integers", item)?;
        let Some(number) = item.integer() else {
            let shown: String = item.text().chars().take(60).collect();
            let what = format!("{field} holds {shown}, expected an integer from 0 to 2^64-1");
            return Err(Problem::in_tensor(tensor, what));
        };
        numbers[count] = number;
        count += 1;
        Ok(())
    })?;
    Ok((numbers, count))
}

fn expect(
    tensor: &str,
    field: &str,
    kind: &str,
    expected: &str,
    value: Raw<'_>,
) -> Result<(), Problem> {
    if value.kind() == kind { Ok(()) } else { Err(wrong_type(tensor, field, expected, value)) }
}

fn wrong_type(tensor: &str, field: &str, expected: &str, value: Raw<'_>) -> Problem {
    Problem::in_tensor(tensor, format!("{field} is {}, expected {expected}", value.kind()))
}

fn duplicate(tensor: &str, field: &str) -> Problem {
    Problem::in_tensor(tensor, format!("duplicate key {field:?}"))
}

fn duplicate_name(tensor: &str) -> Problem {
    Problem::whole(format!("duplicate tensor name {tensor:?} in the header"))
}

fn too_many_names() -> Problem {
    Problem::whole(format!("more than {MAX_ARENA_BYTES} bytes of tensor names"))
}

fn too_long(value: Raw<'_>) -> Problem {
    let at = format!("before byte {} of the header", value.at_byte());
    Problem::new(at, format!("name or key longer than {MAX_NAME_BYTES} bytes"))
}

fn refuse_duplicates(header: &Header, names: &dyn NameResolver) -> Result<(), Problem> {
    let mut ids: Vec<u32> = header.entries.iter().map(|entry| entry.name_id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(duplicate_name(names.name(pair[0]))),
        None => Ok(()),
    }
}

/// Sorts the entries by their bytes and makes sure that they cover the data exactly.
fn check_layout(
    header: &mut Header,
    data_bytes: u64,
    names: &dyn NameResolver,
) -> Result<(), Problem> {
    let Header { entries, forms, .. } = header;
    // No overflow: start + length is the end that the file gave.
    let end_of = |entry: &HeaderEntry| entry.start + forms[entry.form as usize].byte_len;
    let name_of = |entry: &HeaderEntry| names.name(entry.name_id);
    entries.sort_unstable_by_key(|entry| (entry.start, end_of(entry), entry.name_id));
    if let Some(last) = entries.iter().max_by_key(|entry| end_of(entry))
        && end_of(last) > data_bytes
    {
        let (tensor, end) = (name_of(last), end_of(last));
        return Err(Problem::whole(format!(
            "truncated: tensor {tensor:?} ends at data byte {end}, the file has {data_bytes}; {} \
             bytes are missing",
            end - data_bytes
        )));
    }
    let mut covered = 0;
    let mut before: Option<&HeaderEntry> = None;
    for entry in entries.iter() {
        let at = entry.start;
        if at > covered {
            let (tensor, hole_bytes) = (name_of(entry), at - covered);
            let what = format!("hole of {hole_bytes} bytes before tensor {tensor:?}");
            return Err(Problem::new(format!("data byte {at}"), what));
        }
        if let Some(before) = before.filter(|_| at < covered) {
            let what = format!("tensors {:?} and {:?} overlap", name_of(before), name_of(entry));
            return Err(Problem::new(format!("data byte {at}"), what));
        }
        covered = end_of(entry);
        before = Some(entry);
    }
    if covered < data_bytes {
        let spare_bytes = data_bytes - covered;
        let what = format!("{spare_bytes} spare bytes after the last tensor");
        return Err(Problem::new(format!("data byte {covered}"), what));
    }
    Ok(())
}
