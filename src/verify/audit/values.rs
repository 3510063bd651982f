//! Every stored number: NaN scales, weights that are not finite, matrices of nothing but zeros, and
//! the padding of `A_log`, each with its place. This reads the whole checkpoint.

use rayon::prelude::*;

use super::census::file_name;
use super::{Finding, Findings};
use k3_checkpoint::mxfp4::NAN_SCALE;
use k3_checkpoint::{Checkpoint, Dtype, ReadError, TensorInfo};

/// Bytes read at a time; a multiple of every element size.
const BLOCK_BYTES: usize = 4 << 20;

/// The bits of two MXFP4 codes that are not signs.
const MAGNITUDES: u8 = 0x77;

/// Looks at every tensor, in parallel; findings come in the order of the files. `done` is told the
/// bytes of each tensor that was read.
///
/// # Errors
/// The first shard that cannot be read.
pub fn check_values(
    checkpoint: &Checkpoint,
    kda_heads: usize,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Findings, ReadError> {
    let tensors: Vec<TensorInfo<'_>> = checkpoint.tensors().collect();
    let look = |info: &TensorInfo<'_>| {
        let found = Look { checkpoint, info, kda_heads }.run();
        done(info.byte_len);
        found.transpose()
    };
    let found: Vec<Result<Finding, ReadError>> = tensors.par_iter().filter_map(look).collect();
    let mut findings = Findings::default();
    for finding in found {
        findings.push(finding?);
    }
    Ok(findings)
}

struct Look<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo<'a>,
    kda_heads: usize,
}

impl Look<'_> {
    fn run(&self) -> Result<Option<Finding>, ReadError> {
        let name = self.info.name;
        let what = match self.info.dtype {
            Dtype::U8 if name.ends_with(".weight_scale") => self.nan_scales()?,
            Dtype::U8 if name.ends_with(".weight_packed") => self.all_zero()?,
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64 => {
                let tail = name.ends_with(".self_attn.A_log");
                match self.not_finite()? {
                    None if tail => self.padding()?,
                    other => other,
                }
            }
            _ => None,
        };
        Ok(what.map(|what| Finding {
            file: file_name(self.checkpoint, self.info.shard),
            tensor: Some(name.to_owned()),
            what,
        }))
    }

    /// Calls `each` with blocks of the tensor until it gives false.
    fn blocks(&self, mut each: impl FnMut(u64, &[u8]) -> bool) -> Result<(), ReadError> {
        let mut block = vec![0; BLOCK_BYTES.min(self.info.byte_len as usize)];
        let mut start = 0;
        while start < self.info.byte_len {
            let end = self.info.byte_len.min(start + BLOCK_BYTES as u64);
            let bytes = &mut block[..(end - start) as usize];
            self.checkpoint.read_into(self.info, start..end, bytes)?;
            if !each(start, bytes) {
                break;
            }
            start = end;
        }
        Ok(())
    }

    fn nan_scales(&self) -> Result<Option<String>, ReadError> {
        let (mut first, mut count) = (None, 0_u64);
        self.blocks(|start, bytes| {
            for (index, _) in bytes.iter().enumerate().filter(|(_, b)| **b == NAN_SCALE) {
                first.get_or_insert(start + index as u64);
                count += 1;
            }
            true
        })?;
        let groups = self.info.shape.last().map_or(1, |&groups| groups.max(1)) as u64;
        Ok(first.map(|first| {
            let (row, group) = (first / groups, first % groups);
            format!(
                "{}row {row}, group {group}: scale byte 255 (NaN), expected 0..254{}",
                expert_place(self.info.name),
                others(count)
            )
        }))
    }

    fn all_zero(&self) -> Result<Option<String>, ReadError> {
        let mut is_zero = self.info.byte_len > 0;
        self.blocks(|_, bytes| {
            is_zero = bytes.iter().all(|byte| byte & MAGNITUDES == 0);
            is_zero
        })?;
        Ok(is_zero.then(|| {
            let place = expert_place(self.info.name);
            format!("{place}every code is zero, so the expert computes nothing")
        }))
    }

    fn not_finite(&self) -> Result<Option<String>, ReadError> {
        let (mut first, mut count, mut index) = (None, 0_u64, 0_u64);
        let dtype = self.info.dtype;
        self.blocks(|_, bytes| {
            super::statistics::numbers(bytes, dtype, |value| {
                if !value.is_finite() {
                    first.get_or_insert((index, value));
                    count += 1;
                }
                index += 1;
            });
            true
        })?;
        Ok(first.map(|(index, value)| {
            let place = unravel(index, self.info.shape);
            format!("index {place:?}: expected a finite weight, got {value}{}", others(count))
        }))
    }

    /// K8: after the heads, `A_log` is padded with exact zeros.
    fn padding(&self) -> Result<Option<String>, ReadError> {
        let (mut what, mut index) = (None, 0);
        let dtype = self.info.dtype;
        self.blocks(|_, bytes| {
            super::statistics::numbers(bytes, dtype, |value| {
                if index >= self.kda_heads && value != 0.0 && what.is_none() {
                    what = Some(format!(
                        "A_log[{index}] is padding after {} heads: expected 0, got {value}",
                        self.kda_heads
                    ));
                }
                index += 1;
            });
            true
        })?;
        Ok(what)
    }
}

fn others(count: u64) -> String {
    if count > 1 { format!(" ({} more in this tensor)", count - 1) } else { String::new() }
}

/// `layer 3, expert 5, w1, ` of an expert's tensor; empty for others.
fn expert_place(name: &str) -> String {
    let numbers = || {
        let (_, rest) = name.split_once(".layers.")?;
        let (layer, rest) = rest.split_once('.')?;
        let (_, rest) = rest.split_once(".experts.")?;
        let (expert, rest) = rest.split_once('.')?;
        let (matrix, _) = rest.split_once('.')?;
        Some(format!("layer {layer}, expert {expert}, {matrix}, "))
    };
    numbers().unwrap_or_default()
}

fn unravel(mut position: u64, shape: &[usize]) -> Vec<u64> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        *place = position % extent.max(1) as u64;
        position /= extent.max(1) as u64;
    }
    index
}
