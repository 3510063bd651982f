//! `model.safetensors.index.json`: which shard holds which tensor.
//!
//! The released index has 57 MB; it is mapped while it is read, and kept as interned names and one
//! shard number per name. Refused: equal names, shard names that are no plain file names, values of
//! another type. Unknown keys at the root and in `metadata` are accepted. `total_size` is kept
//! for comparison; whoever opens the shards compares it.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use memmap2::Mmap;

use super::foreign::Foreign;
use super::header::MAX_NAME_BYTES;
use super::json::{Raw, Value};
use super::name_table::NameTable;
use super::{Malformed, Problem};

/// The index's file name.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Largest index accepted: 17 times the released one.
pub const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Most shards: kept as 16-bit numbers; the release has 96, and each is an open file.
pub const MAX_SHARDS: usize = 4096;

/// A parsed index.
#[derive(Debug)]
pub struct ShardIndex {
    /// Names of all tensors, in the order of the file.
    pub names: NameTable,
    /// Shard of each name, by name id; index into `shards`.
    pub shard_of_name: Vec<u16>,
    /// File names of the shards, sorted.
    pub shards: Vec<String>,
    /// `metadata.total_size`, where the file has it.
    pub total_size: Option<u64>,
    /// What `metadata` says in another form than it should.
    pub odd_metadata: Option<Problem>,
}

impl ShardIndex {
    /// Reads the index at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, is too large, or is not an index.
    pub fn read(path: &Path) -> Result<Self, Malformed> {
        let unreadable = |reason| Malformed::unreadable(path, &reason);
        let file = k3_core::host::files::open(path).map_err(unreadable)?;
        let file_bytes = file.metadata().map_err(unreadable)?.len();
        if file_bytes > MAX_INDEX_BYTES {
            let what = format!("{file_bytes} bytes, above the limit of {MAX_INDEX_BYTES}");
            return Err(Problem::whole(what).in_file(path));
        }
        if file_bytes == 0 {
            return Self::parse(&[], path);
        }
        // SAFETY: nothing keeps a reference to the map after parsing. A file that is cut or
        // written in this time ends the process or is misread; nobody writes a checkpoint's index
        // while it is opened.
        let mapped = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        Self::parse(&mapped, path)
    }

    /// Parses the bytes of an index; `origin` is the name used in messages.
    ///
    /// # Errors
    /// Whatever is not an index, with the tensor, the field or the byte.
    pub fn parse(bytes: &[u8], origin: &Path) -> Result<Self, Malformed> {
        Self::of_document(bytes).map_err(|problem| problem.in_file(origin))
    }

    fn of_document(bytes: &[u8]) -> Result<Self, Problem> {
        if let Some(what) = Foreign::of_content(bytes) {
            return Err(Problem::whole(format!("this is {what}")));
        }
        let mut index = Self {
            names: NameTable::new(),
            shard_of_name: Vec::new(),
            shards: Vec::new(),
            total_size: None,
            odd_metadata: None,
        };
        let mut seen = HashSet::new();
        let document = Raw::document(bytes)?;
        document.members(|key, value| {
            refuse_repeated(&mut seen, "", &key)?;
            match &*key {
                "weight_map" => index.weight_map(value),
                "metadata" => index.metadata(value),
                _ => Value::of(value, 1).map(|_| ()),
            }
        })?;
        if index.names.is_empty() {
            return Err(Problem::new("weight_map", "missing or empty"));
        }
        index.sort_shards();
        index.names.shrink();
        index.shard_of_name.shrink_to_fit();
        Ok(index)
    }

    fn metadata(&mut self, metadata: Raw<'_>) -> Result<(), Problem> {
        if metadata.kind() != "an object" {
            self.odd_metadata = Some(wrong_value("metadata", "an object", metadata));
            return Value::of(metadata, 1).map(|_| ());
        }
        let mut seen = HashSet::new();
        metadata.members(|key, value| {
            refuse_repeated(&mut seen, "metadata.", &key)?;
            if key != "total_size" {
                return Value::of(value, 2).map(|_| ());
            }
            self.total_size = value.integer();
            if self.total_size.is_none() {
                self.total_size = whole_number(value)?;
                let odd = wrong_value("metadata.total_size", "an integer", value);
                self.odd_metadata = Some(odd);
            }
            Value::of(value, 2).map(|_| ())
        })
    }

    fn weight_map(&mut self, map: Raw<'_>) -> Result<(), Problem> {
        expect("weight_map", "an object", map)?;
        let mut numbers = HashMap::new();
        map.members(|tensor, value| {
            let at = || format!("tensor {tensor:?}");
            if tensor.len() > MAX_NAME_BYTES {
                let at = format!("before byte {}", value.at_byte());
                return Err(Problem::new(at, format!("name longer than {MAX_NAME_BYTES} bytes")));
            }
            match self.names.intern(&tensor) {
                Some((_, true)) => {}
                Some((_, false)) => {
                    return Err(Problem::new(at(), "duplicate tensor name in weight_map"));
                }
                None => return Err(Problem::whole("too many tensor names")),
            }
            let Some(shard) = value.string()? else {
                return Err(wrong_value(&at(), "the name of a shard", value));
            };
            // Neighbours are in the same shard most of the time.
            if let Some(&last) = self.shard_of_name.last()
                && self.shards[usize::from(last)] == shard
            {
                self.shard_of_name.push(last);
                return Ok(());
            }
            if !is_plain_shard_name(&shard) {
                let what = "expected the plain name of a .safetensors file";
                return Err(Problem::new(at(), format!("is mapped to {shard:?}, {what}")));
            }
            let next = self.shards.len() as u16;
            let number = *numbers.entry(shard.into_owned()).or_insert_with_key(|shard: &String| {
                self.shards.push(shard.clone());
                next
            });
            self.shard_of_name.push(number);
            if self.shards.len() > MAX_SHARDS {
                return Err(Problem::new("weight_map", format!("more than {MAX_SHARDS} shards")));
            }
            Ok(())
        })
    }

    /// The shard that holds a tensor, as a file name.
    #[must_use]
    pub fn shard_of(&self, tensor: &str) -> Option<&str> {
        let id = self.names.find(tensor)?;
        Some(&self.shards[usize::from(self.shard_of_name[id as usize])])
    }

    /// Numbers the shards in the order of their names rather than of their first mention.
    fn sort_shards(&mut self) {
        let mut order: Vec<usize> = (0..self.shards.len()).collect();
        order.sort_by(|&a, &b| self.shards[a].cmp(&self.shards[b]));
        let mut new_number = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            new_number[old] = new as u16;
        }
        for shard in &mut self.shard_of_name {
            *shard = new_number[usize::from(*shard)];
        }
        self.shards.sort();
    }
}

/// A number of bytes in another spelling: a string of digits, a float without a fraction.
fn whole_number(value: Raw<'_>) -> Result<Option<u64>, Problem> {
    // Above it a double stands for several integers.
    const EXACT: f64 = (1_u64 << 53) as f64;
    if let Some(text) = value.string()? {
        return Ok(text.parse().ok());
    }
    let number = value.text().parse::<f64>().ok();
    let whole = number.filter(|n| (0.0..=EXACT).contains(n) && n.fract() == 0.0);
    Ok(whole.map(|number| number as u64))
}

fn refuse_repeated(seen: &mut HashSet<String>, object: &str, key: &str) -> Result<(), Problem> {
    if seen.insert(key.to_owned()) {
        return Ok(());
    }
    Err(Problem::new(format!("{object}{}", key.escape_debug()), "duplicate key"))
}

fn expect(field: &str, expected: &str, value: Raw<'_>) -> Result<(), Problem> {
    if value.kind() == expected { Ok(()) } else { Err(wrong_value(field, expected, value)) }
}

fn wrong_value(at: &str, expected: &str, value: Raw<'_>) -> Problem {
    let got = match value.kind() {
        kind @ "a number" => format!("{kind}, {}", &value.text()[..value.text().len().min(60)]),
        kind => kind.to_owned(),
    };
    Problem::new(at, format!("expected {expected}, got {got}"))
}

/// Whether a shard name stays in the folder and has the format's ending.
fn is_plain_shard_name(name: &str) -> bool {
    let plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    plain && name.ends_with(".safetensors")
}
