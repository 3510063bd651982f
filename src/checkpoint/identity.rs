//! A checkpoint's identity: which checkpoint numbers were made from.
//!
//! SHA-256 over config.json, and over every shard's name, size, header and fixed sample blocks
//! (the first and last block of the data and others evenly between). Traces, packs, states and
//! part reports carry it.
//!
//! What it cannot see: data changed outside the sample blocks (a whole hash of 1.56 TB takes
//! hours; `check --sha256` is for that), the index (headers decide what it says), and files that
//! no shard list names (tokenizer, generation settings).

use std::fmt;

use sha2::{Digest, Sha256};

use super::shard::{ReadError, Shard};
use super::store::Checkpoint;
use super::{Malformed, Problem};

/// Bytes of a sample block.
pub const SAMPLE_BLOCK_BYTES: u64 = 4096;

/// Sample blocks of a shard; shards that are smaller than all of them are hashed whole.
pub const SAMPLE_BLOCKS: u64 = 16;

/// What is hashed first, so that another recipe can never give an equal identity.
const RECIPE: &[u8] = b"k3-verify checkpoint identity 1\n";

/// SHA-256 as described in the module's documentation; shown as 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 32]);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&k3_core::hex(self.0))
    }
}

/// Works out the identity of a complete checkpoint.
///
/// # Errors
/// Shards that are not there; the config or a shard cannot be read.
pub fn identity(checkpoint: &Checkpoint) -> Result<Identity, ReadError> {
    let missing = checkpoint.missing_shards().len();
    if missing > 0 {
        let what = format!("no identity, {missing} shards are missing");
        return Err(Problem::whole(what).in_file(checkpoint.folder()).into());
    }
    let path = checkpoint.config_path();
    let config = k3_core::host::files::read(&path)
        .map_err(|reason| Malformed::unreadable(&path, &reason))?;
    let mut hash = Sha256::new_with_prefix(RECIPE);
    add_framed(&mut hash, &config);
    for shard in checkpoint.shards() {
        add_shard(&mut hash, shard)?;
    }
    Ok(Identity(hash.finalize().into()))
}

/// The digest of one shard alone (name, size, header, sample blocks), for runs that read a part of
/// a checkpoint.
///
/// # Errors
/// The shard cannot be read.
pub fn shard_identity(shard: &Shard) -> Result<Identity, ReadError> {
    let mut hash = Sha256::new_with_prefix(RECIPE);
    add_shard(&mut hash, shard)?;
    Ok(Identity(hash.finalize().into()))
}

/// Adds bytes with their length in front, so that no two sequences run together.
fn add_framed(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn add_shard(hash: &mut Sha256, shard: &Shard) -> Result<(), ReadError> {
    let name = shard.path().file_name().unwrap_or_default();
    add_framed(hash, name.as_encoded_bytes());
    hash.update(shard.file_bytes().to_le_bytes());
    let mut block = vec![0; SAMPLE_BLOCK_BYTES as usize];
    add_range(hash, shard, 0, shard.data_start(), &mut block)?;
    let data_bytes = shard.file_bytes() - shard.data_start();
    if data_bytes <= SAMPLE_BLOCKS * SAMPLE_BLOCK_BYTES {
        return add_range(hash, shard, shard.data_start(), data_bytes, &mut block);
    }
    let last_start = data_bytes - SAMPLE_BLOCK_BYTES;
    for index in 0..SAMPLE_BLOCKS {
        // In 128 bits: the product of a large offset and the index may not fit 64.
        let place = u128::from(last_start) * u128::from(index) / u128::from(SAMPLE_BLOCKS - 1);
        let start = shard.data_start() + place as u64;
        add_range(hash, shard, start, SAMPLE_BLOCK_BYTES, &mut block)?;
    }
    Ok(())
}

/// Hashes a range of a shard block by block.
fn add_range(
    hash: &mut Sha256,
    shard: &Shard,
    start: u64,
    length: u64,
    block: &mut [u8],
) -> Result<(), ReadError> {
    let mut done = 0;
    while done < length {
        let size = (length - done).min(block.len() as u64);
        let part = &mut block[..size as usize];
        shard.read_at(start + done, part)?;
        hash.update(&*part);
        done += size;
    }
    Ok(())
}
