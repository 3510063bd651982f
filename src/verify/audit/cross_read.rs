//! Two readers on one checkpoint: the engine's and the reference's must say the same of every
//! tensor: dtype, shape, shard, absolute offset, length, and its first and last bits.

use rayon::prelude::*;

use super::census::file_name;
use super::{Finding, Findings};
use k3_checkpoint::{Checkpoint, TensorInfo};
use k3_reference::Reader;

/// Bytes compared at each end of a tensor.
pub const END_BYTES: u64 = 16;

/// Compares every tensor that either reader knows. Tensors in missing shards are nobody's.
///
/// # Errors
/// What the engine's reader says when it cannot read; the reference's failures are findings.
#[must_use]
pub fn cross_read(checkpoint: &Checkpoint, reference: &Reader) -> Findings {
    let tensors: Vec<TensorInfo<'_>> = checkpoint.tensors().collect();
    let differs = |info: &TensorInfo<'_>| {
        difference(checkpoint, reference, info).map(|what| Finding {
            file: file_name(checkpoint, info.shard),
            tensor: Some(info.name.to_owned()),
            what,
        })
    };
    let found: Vec<Finding> = tensors.par_iter().filter_map(differs).collect();
    let mut findings = Findings::default();
    found.into_iter().for_each(|finding| findings.push(finding));
    let mut only: Vec<&str> = reference
        .tensor_names()
        .filter(|name| checkpoint.find(name).is_none() && !checkpoint.is_in_missing_shard(name))
        .collect();
    only.sort_unstable();
    for name in only {
        findings.push(Finding {
            file: ".".to_owned(),
            tensor: Some(name.to_owned()),
            what: "the reference's reader has it, the engine's has not".to_owned(),
        });
    }
    findings
}

fn difference(
    checkpoint: &Checkpoint,
    reference: &Reader,
    info: &TensorInfo<'_>,
) -> Option<String> {
    let place = match reference.place(info.name) {
        Ok(place) => place,
        Err(error) => return Some(format!("the reference's reader: {error}")),
    };
    let pairs = [
        ("dtype", info.dtype.name().to_owned(), place.dtype),
        ("shape", format!("{:?}", info.shape), format!("{:?}", place.shape)),
        ("shard", file_name(checkpoint, info.shard), place.shard),
        ("offset", info.offset.to_string(), place.offset_bytes.to_string()),
        ("length", info.byte_len.to_string(), place.length_bytes.to_string()),
    ];
    for (what, ours, theirs) in pairs {
        if ours != theirs {
            return Some(format!("{what}: the engine reads {ours}, the reference {theirs}"));
        }
    }
    let length = info.byte_len.min(END_BYTES);
    for (what, start) in [("first", 0), ("last", info.byte_len - length)] {
        let mut ours = vec![0; length as usize];
        if let Err(error) = checkpoint.read_into(info, start..start + length, &mut ours) {
            return Some(error.to_string());
        }
        match reference.part(info.name, start, length as usize) {
            Ok(theirs) if theirs == ours => {}
            Ok(theirs) => {
                return Some(format!(
                    "{what} {length} bytes: engine {ours:02x?}, reference {theirs:02x?}"
                ));
            }
            Err(error) => return Some(format!("the reference's reader: {error}")),
        }
    }
    None
}
