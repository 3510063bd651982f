//! `model.safetensors.index.json`: which shard holds which tensor.
//!
//! The released index has 60 MB; it is read as a stream and kept as interned names and one shard
//! number per name. Refused: equal names, shard names that are no plain file names, values of
//! another type. Unknown keys at the root and in `metadata` are accepted. `total_size` is kept
//! for comparison; whoever opens the shards compares it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::foreign::{Foreign, SNIFF_BYTES};
use super::header::MAX_NAME_BYTES;
use super::json::{JsonError, JsonReader, Kind};
use super::link::LinkTrouble;
use super::name_table::NameTable;

/// The index's file name.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Largest index accepted: 17 times the released one.
pub const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Most shards: kept as 16-bit numbers; the release has 96, and each is an open file.
pub const MAX_SHARDS: usize = 4096;

/// One way an index can be wrong.
#[derive(Debug, Error)]
pub enum IndexError {
    /// The system refused.
    #[error("{}: cannot be read: {reason}", path.display())]
    Io {
        /// The index.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A link that leads nowhere.
    #[error("{}: {trouble}", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        trouble: LinkTrouble,
    },
    /// Larger than [`MAX_INDEX_BYTES`].
    #[error("{}: {file_bytes} bytes, above the limit of {MAX_INDEX_BYTES}", path.display())]
    TooLarge {
        /// The index.
        path: PathBuf,
        /// Its size.
        file_bytes: u64,
    },
    /// Something else under that name.
    #[error("{}: this is {what}", path.display())]
    Foreign {
        /// The index.
        path: PathBuf,
        /// What it is.
        what: Foreign,
    },
    /// Not one strict JSON document.
    #[error("{}: not valid JSON: {reason}", path.display())]
    Json {
        /// The index.
        path: PathBuf,
        /// Where and why.
        reason: JsonError,
    },
    /// A key twice at the root or in `metadata`.
    #[error("{}: duplicate key {key:?}", path.display())]
    DuplicateKey {
        /// The index.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A tensor named twice, escapes resolved.
    #[error("{}: duplicate tensor name {tensor:?} in weight_map", path.display())]
    DuplicateTensor {
        /// The index.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
    /// No `weight_map`, or an empty one.
    #[error("{}: weight_map is missing or empty", path.display())]
    NoWeightMap {
        /// The index.
        path: PathBuf,
    },
    /// A value of another kind.
    #[error("{}: {field} is {got}, expected {expected}", path.display())]
    WrongType {
        /// The index.
        path: PathBuf,
        /// Which value.
        field: String,
        /// What should stand there.
        expected: &'static str,
        /// What does.
        got: Kind,
    },
    /// `total_size` is no integer of 64 bits.
    #[error("{}: metadata.total_size is {got}, expected an integer", path.display())]
    BadTotalSize {
        /// The index.
        path: PathBuf,
        /// The literal.
        got: String,
    },
    /// A shard name that leads elsewhere or is no `.safetensors` file.
    #[error(
        "{}: tensor {tensor:?} is mapped to {shard:?}, expected the plain name of a \
         .safetensors file",
        path.display()
    )]
    BadShardName {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard's name.
        shard: String,
    },
    /// More than [`MAX_SHARDS`].
    #[error("{}: more than {MAX_SHARDS} shards", path.display())]
    TooManyShards {
        /// The index.
        path: PathBuf,
    },
    /// More names than the table of names holds.
    #[error("{}: too many tensor names", path.display())]
    TooManyNames {
        /// The index.
        path: PathBuf,
    },
}

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
}

impl ShardIndex {
    /// Reads the index at `path`.
    ///
    /// # Errors
    /// Every variant of [`IndexError`].
    pub fn read(path: &Path) -> Result<Self, IndexError> {
        let io_error = |reason| IndexError::Io { path: path.to_owned(), reason };
        let file = File::open(path).map_err(|reason| match LinkTrouble::of(path, &reason) {
            Some(trouble) => IndexError::Link { path: path.to_owned(), trouble },
            None => io_error(reason),
        })?;
        let file_bytes = file.metadata().map_err(io_error)?.len();
        if file_bytes > MAX_INDEX_BYTES {
            return Err(IndexError::TooLarge { path: path.to_owned(), file_bytes });
        }
        Self::parse(file, path)
    }

    /// Parses what `source` yields; `origin` is the name used in messages.
    ///
    /// # Errors
    /// Every variant of [`IndexError`] but `Link` and `TooLarge`.
    pub fn parse(mut source: impl Read, origin: &Path) -> Result<Self, IndexError> {
        let io_error = |reason| IndexError::Io { path: origin.to_owned(), reason };
        let mut start = Vec::new();
        let mut sniff = source.by_ref().take(SNIFF_BYTES as u64);
        sniff.read_to_end(&mut start).map_err(io_error)?;
        if let Some(what) = Foreign::of_content(&start) {
            return Err(IndexError::Foreign { path: origin.to_owned(), what });
        }
        let mut parser = IndexParser {
            json: JsonReader::new(start.chain(source)),
            origin,
            shard_numbers: HashMap::new(),
            index: Self {
                names: NameTable::new(),
                shard_of_name: Vec::new(),
                shards: Vec::new(),
                total_size: None,
            },
        };
        parser.document()?;
        let mut index = parser.index;
        if index.names.is_empty() {
            let path = origin.to_owned();
            return Err(IndexError::NoWeightMap { path });
        }
        index.sort_shards();
        index.names.shrink();
        index.shard_of_name.shrink_to_fit();
        Ok(index)
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

struct IndexParser<'a, R> {
    json: JsonReader<R>,
    origin: &'a Path,
    shard_numbers: HashMap<String, u16>,
    index: ShardIndex,
}

impl<R: Read> IndexParser<'_, R> {
    fn document(&mut self) -> Result<(), IndexError> {
        self.expect("the document", "an object", Kind::Object)?;
        let mut members = self.json.begin_object().map_err(|e| self.json_error(e))?;
        let mut key = String::new();
        let mut seen = NameTable::new();
        while self.next_key(&mut members, &mut key)? {
            if !matches!(seen.intern(&key), Some((_, true))) {
                let path = self.origin.to_owned();
                return Err(IndexError::DuplicateKey { path, key });
            }
            match key.as_str() {
                "weight_map" => self.weight_map()?,
                "metadata" => self.metadata()?,
                _ => {
                    self.json.value().map_err(|e| self.json_error(e))?;
                }
            }
        }
        self.json.end().map_err(|e| self.json_error(e))
    }

    fn metadata(&mut self) -> Result<(), IndexError> {
        self.expect("metadata", "an object", Kind::Object)?;
        let mut members = self.json.begin_object().map_err(|e| self.json_error(e))?;
        let mut key = String::new();
        let mut seen = NameTable::new();
        while self.next_key(&mut members, &mut key)? {
            if !matches!(seen.intern(&key), Some((_, true))) {
                let (path, key) = (self.origin.to_owned(), format!("metadata.{key}"));
                return Err(IndexError::DuplicateKey { path, key });
            }
            if key != "total_size" {
                self.json.value().map_err(|e| self.json_error(e))?;
                continue;
            }
            self.expect("metadata.total_size", "an integer", Kind::Number)?;
            let path = self.origin.to_owned();
            let literal = match self.json.number() {
                Ok(literal) => literal,
                Err(reason) => return Err(IndexError::Json { path, reason }),
            };
            let total_size = literal.parse();
            let got = literal.to_owned();
            self.index.total_size =
                Some(total_size.map_err(|_| IndexError::BadTotalSize { path, got })?);
        }
        Ok(())
    }

    fn weight_map(&mut self) -> Result<(), IndexError> {
        self.expect("weight_map", "an object", Kind::Object)?;
        let mut members = self.json.begin_object().map_err(|e| self.json_error(e))?;
        let (mut tensor, mut shard) = (String::new(), String::new());
        while self.next_key(&mut members, &mut tensor)? {
            let path = || self.origin.to_owned();
            match self.index.names.intern(&tensor) {
                Some((_, true)) => {}
                Some((_, false)) => {
                    return Err(IndexError::DuplicateTensor { path: path(), tensor });
                }
                None => return Err(IndexError::TooManyNames { path: path() }),
            }
            self.expect(&tensor, "the name of a shard", Kind::String)?;
            let taken = self.json.string(&mut shard, MAX_NAME_BYTES);
            taken.map_err(|e| self.json_error(e))?;
            let number = self.shard_number(&tensor, &shard)?;
            self.index.shard_of_name.push(number);
        }
        Ok(())
    }

    fn shard_number(&mut self, tensor: &str, shard: &str) -> Result<u16, IndexError> {
        // Neighbours lie in the same shard most of the time.
        if let Some(&last) = self.index.shard_of_name.last()
            && self.index.shards[usize::from(last)] == shard
        {
            return Ok(last);
        }
        if let Some(number) = self.shard_numbers.get(shard) {
            return Ok(*number);
        }
        let path = self.origin.to_owned();
        if !is_plain_shard_name(shard) {
            let (tensor, shard) = (tensor.to_owned(), shard.to_owned());
            return Err(IndexError::BadShardName { path, tensor, shard });
        }
        if self.index.shards.len() == MAX_SHARDS {
            return Err(IndexError::TooManyShards { path });
        }
        let number = self.index.shards.len() as u16;
        self.index.shards.push(shard.to_owned());
        self.shard_numbers.insert(shard.to_owned(), number);
        Ok(number)
    }

    fn next_key(
        &mut self,
        members: &mut super::json::Members,
        key: &mut String,
    ) -> Result<bool, IndexError> {
        self.json.next_key(members, key, MAX_NAME_BYTES).map_err(|e| self.json_error(e))
    }

    fn expect(
        &mut self,
        field: &str,
        expected: &'static str,
        kind: Kind,
    ) -> Result<(), IndexError> {
        let got = self.json.peek_kind().map_err(|e| self.json_error(e))?;
        if got == kind {
            return Ok(());
        }
        let (path, field) = (self.origin.to_owned(), field.escape_debug().to_string());
        Err(IndexError::WrongType { path, field, expected, got })
    }

    fn json_error(&self, reason: JsonError) -> IndexError {
        IndexError::Json { path: self.origin.to_owned(), reason }
    }
}

/// Whether a shard name stays in the folder and has the format's ending.
fn is_plain_shard_name(name: &str) -> bool {
    let plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    plain && name.ends_with(".safetensors")
}
