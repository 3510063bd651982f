//! The strict parser of a safetensors header.
//!
//! A file is 8 bytes of little-endian header length, the header (one JSON object), then the data.
//! The policy, stated once and followed everywhere:
//!
//! - The length is believed only as far as the file reaches and up to [`MAX_HEADER_BYTES`];
//!   nothing is allocated by it.
//! - What the format's own library, the `safetensors` crate, opens, is opened: white space of JSON
//!   around the header's object, keys of an entry that nobody reads (they are noted), an entry
//!   written as a list `[dtype, shape, data_offsets]`, any number of dimensions. Two things that
//!   the crate takes are refused: equal names, of which it keeps the last, and names longer than
//!   [`MAX_NAME_BYTES`].
//! - Names are unique, escapes resolved; so are the keys of an entry. An entry has `dtype`, `shape`
//!   and `data_offsets`; all their numbers are integer literals.
//! - Dtype × shape = byte length, without overflow. Tensors cover the data exactly: no overlap,
//!   no gap at the start or in between, no spare byte at the end. Empty tensors are fine, scalars
//!   (`[]`) have one element.
//! - `__metadata__` maps strings to strings, may be absent, null or stand anywhere; no tensor can
//!   have that name.
//!
//! What cannot be seen: offsets that lie within these rules, and changed data bytes.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::Problem;
use super::dtype::Dtype;
use super::foreign::Foreign;
use super::json::{JSON_SPACE, Raw};
use super::name_table::{MAX_ARENA_BYTES, NameTable};

/// Largest header accepted: ten times what other readers allow (100,000,000 bytes), which a
/// legal file can exceed, and a thousand times the largest released one.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// Longest tensor name: six hundred times the longest released one. Names go into messages and
/// tables; a name of megabytes is no name.
pub const MAX_NAME_BYTES: usize = 1 << 16;

/// Unread keys of entries that are noted.
const NOTED_KEYS: usize = 8;

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
    /// Keys of entries that the format does not have; the first few.
    pub unread_keys: BTreeSet<String>,
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
    match bytes.iter().find(|byte| !JSON_SPACE.contains(byte)) {
        Some(b'{') => {}
        first => {
            let found = shown(first.copied());
            return Err(Problem::whole(format!("header starts with {found}, expected '{{'")));
        }
    }
    let mut parser = Parser::default();
    parser.object(Raw::document(bytes)?, names)?;
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

#[derive(Default)]
struct Parser {
    header: Header,
    form_places: HashMap<Form, u32>,
    /// The dimensions of the entry in hand, so that not every entry allocates.
    sizes: Vec<u64>,
    /// Its offsets, for the same reason.
    offsets: Vec<u64>,
}

/// What one entry says besides its shape, before it is checked.
#[derive(Default)]
struct RawEntry {
    dtype: Option<Dtype>,
    has_shape: bool,
    offsets: Option<(u64, u64)>,
}

/// The fields of an entry, in the order in which a list gives them.
const FIELDS: [&str; 3] = ["dtype", "shape", "data_offsets"];

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
            let entry = self.raw_entry(&name, value)?;
            let (start, form) = self.check_entry(&name, &entry)?;
            let name_id = names.resolve(&name).ok_or_else(too_many_names)?;
            self.header.entries.push(HeaderEntry { start, name_id, form });
            Ok(())
        })
    }

    fn metadata(&mut self, metadata: Raw<'_>) -> Result<(), Problem> {
        if metadata.kind() == "null" {
            return Ok(());
        }
        expect(METADATA_KEY, "the value", "an object", "an object of strings", metadata)?;
        let mut seen = HashSet::new();
        metadata.members(|key, value| {
            let Some(text) = value.string()? else {
                return Err(wrong_type(METADATA_KEY, &format!("{key:?}"), "a string", value));
            };
            self.header.metadata.push((key.clone().into_owned(), text.into_owned()));
            if seen.insert(key.clone()) { Ok(()) } else { Err(duplicate(METADATA_KEY, &key)) }
        })
    }

    /// Reads one entry, an object or a list; its shape goes to `sizes`.
    fn raw_entry(&mut self, tensor: &str, entry: Raw<'_>) -> Result<RawEntry, Problem> {
        let mut found = RawEntry::default();
        if entry.kind() == "an array" {
            let mut fields = FIELDS.into_iter();
            entry.elements(|value| match fields.next() {
                Some(field) => self.field(tensor, Cow::Borrowed(field), value, &mut found),
                None => Err(Problem::in_tensor(tensor, "the entry has more than 3 elements")),
            })?;
            return Ok(found);
        }
        expect(tensor, "the entry", "an object", "an object", entry)?;
        entry.members(|field, value| self.field(tensor, field, value, &mut found))?;
        Ok(found)
    }

    fn field(
        &mut self,
        tensor: &str,
        field: Cow<'_, str>,
        value: Raw<'_>,
        found: &mut RawEntry,
    ) -> Result<(), Problem> {
        let seen = match &*field {
            "dtype" => found.dtype.replace(read_dtype(tensor, value)?).is_some(),
            "shape" => {
                integers(tensor, "shape", value, &mut self.sizes)?;
                std::mem::replace(&mut found.has_shape, true)
            }
            "data_offsets" => {
                integers(tensor, "data_offsets", value, &mut self.offsets)?;
                let &[start, end] = self.offsets.as_slice() else {
                    let count = self.offsets.len();
                    let what = format!("data_offsets has {count} numbers, expected 2");
                    return Err(Problem::in_tensor(tensor, what));
                };
                found.offsets.replace((start, end)).is_some()
            }
            _ => {
                let keys = &mut self.header.unread_keys;
                if keys.len() < NOTED_KEYS && !keys.contains(&*field) {
                    keys.insert(field.chars().take(60).collect());
                }
                false
            }
        };
        if seen { Err(duplicate(tensor, &field)) } else { Ok(()) }
    }

    /// Checks one entry by itself; gives its start and the index of its form.
    fn check_entry(&mut self, name: &str, entry: &RawEntry) -> Result<(u64, u32), Problem> {
        let missing = |field| Problem::in_tensor(name, format!("{field} is missing"));
        let dtype = entry.dtype.ok_or_else(|| missing("dtype"))?;
        entry.has_shape.then_some(()).ok_or_else(|| missing("shape"))?;
        let (start, end) = entry.offsets.ok_or_else(|| missing("data_offsets"))?;
        let shape = std::mem::take(&mut self.sizes);
        let refused = |what: &str| {
            Problem::in_tensor(name, format!("shape {} of {dtype} {what}", few(&shape)))
        };
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
        let place = self.form_place(dtype, &shape, expected);
        let place = place.ok_or_else(|| refused("overflows 64 bits"))?;
        self.sizes = shape;
        Ok((start, place))
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

/// A dtype is a name, or (as the crate's own decoder has it) an object of that name and null.
fn read_dtype(tensor: &str, value: Raw<'_>) -> Result<Dtype, Problem> {
    let mut text = value.string()?;
    if value.kind() == "an object" {
        let mut members = 0;
        value.members(|key, inner| {
            members += 1;
            text = (members == 1 && inner.kind() == "null").then_some(key);
            Ok(())
        })?;
    }
    let Some(text) = text else {
        return Err(wrong_type(tensor, "dtype", "a string", value));
    };
    Dtype::parse(&text).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        Problem::in_tensor(tensor, format!("unknown dtype {shown:?}"))
    })
}

/// The integers of an array, put into `numbers` (cleared first).
fn integers(
    tensor: &str,
    field: &str,
    value: Raw<'_>,
    numbers: &mut Vec<u64>,
) -> Result<(), Problem> {
    expect(tensor, field, "an array", "an array of integers", value)?;
    numbers.clear();
    value.elements(|item| {
        expect(tensor, field, "a number", "integers", item)?;
        let Some(number) = item.integer() else {
            let shown: String = item.text().chars().take(60).collect();
            let what = format!("{field} holds {shown}, expected an integer from 0 to 2^64-1");
            return Err(Problem::in_tensor(tensor, what));
        };
        numbers.push(number);
        Ok(())
    })
}

/// A shape for a message, cut where it is long.
fn few(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    match shape.len().checked_sub(SHOWN + 1) {
        None => format!("{shape:?}"),
        Some(_) => format!("{:?}… ({} dimensions)", &shape[..SHOWN], shape.len()),
    }
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
