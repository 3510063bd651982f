//! Every stored number: NaN scales, weights that are not finite, tensors of nothing but zeros,
//! holes of zeros, and the padding of `A_log`, each with its place. This reads the whole
//! checkpoint.
//!
//! When zeros are damage follows from what a tensor does. A module's `weight` (codes and scales of
//! one too) multiplies: all zeros make its output zero for any input, which nobody trains and
//! stores. What has another name (`A_log`, a bias, the router's correction buffer) is added or
//! exponentiated, and zeros are the neutral value it starts from: a note. Integers are no weights.
//! A hole is [`HOLE_BYTES`] of zeros in a row beside other values, in any tensor, and across the
//! border of two; only the embedding of the padding id may be one, since PyTorch keeps it zero.

use std::ops::Range;

use rayon::prelude::*;

use super::census::file_name;
use super::{Finding, Findings};
use k3_checkpoint::mxfp4::NAN_SCALE;
use k3_checkpoint::{Checkpoint, Dtype, ReadError, Role, TensorInfo};
use k3_core::config::RawConfig;

/// Bytes read at a time; a multiple of every element size and of [`WORD`].
const BLOCK_BYTES: usize = 4 << 20;

/// A page: the least that a file system, a cache or a download loses. Of stored weights no two
/// thousand in a row are zero by chance; of MXFP4 codes these are 256 groups, and the largest of a
/// group is never coded as zero unless the group is.
pub const HOLE_BYTES: u64 = 4096;

/// Bytes that are looked at together.
const WORD: usize = 8;

/// What the values of a checkpoint say.
#[derive(Debug, Default)]
pub struct Values {
    /// Damage.
    pub findings: Findings,
    /// Tensors of zeros that may be: they are added, not multiplied by.
    pub neutral: Vec<String>,
}

/// Looks at every tensor, in parallel; findings come in the order of the files. `done` is told the
/// bytes of each tensor that was read.
///
/// # Errors
/// The first shard that cannot be read.
pub fn check_values(
    checkpoint: &Checkpoint,
    config: &RawConfig,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Values, ReadError> {
    let tensors: Vec<TensorInfo<'_>> = checkpoint.tensors().collect();
    let look = |info: &TensorInfo<'_>| {
        let seen = Look { checkpoint, info, config }.run();
        done(info.byte_len);
        seen
    };
    let seen: Vec<Result<Seen, ReadError>> = tensors.par_iter().map(look).collect();
    let mut values = Values::default();
    let mut hole = Hole::default();
    for (info, seen) in tensors.iter().zip(seen) {
        let seen = seen?;
        let mut find = |info: &TensorInfo<'_>, what| {
            values.findings.push(Finding {
                file: file_name(checkpoint, info.shard),
                tensor: Some(info.name.to_owned()),
                what,
            });
        };
        seen.wrong.into_iter().for_each(|what| find(info, what));
        for run in seen.zeros {
            if !hole.goes_on(info, &run) {
                hole.end(&mut find);
            }
            hole.add(info, run);
        }
        if seen.is_neutral {
            values.neutral.push(info.name.to_owned());
        }
    }
    hole.end(&mut |info, what| {
        let tensor = Some(info.name.to_owned());
        values.findings.push(Finding { file: file_name(checkpoint, info.shard), tensor, what });
    });
    Ok(values)
}

/// What one tensor holds.
#[derive(Default)]
struct Seen {
    wrong: Vec<String>,
    /// Places of zeros in the tensor, in order: at its ends, or of [`HOLE_BYTES`] and more.
    zeros: Vec<Range<u64>>,
    is_neutral: bool,
}

/// Zeros that may go on in the next tensor of the file.
#[derive(Default)]
struct Hole<'a> {
    /// The tensors, and where in each.
    parts: Vec<(&'a TensorInfo<'a>, Range<u64>)>,
}

impl<'a> Hole<'a> {
    fn goes_on(&self, info: &TensorInfo<'_>, run: &Range<u64>) -> bool {
        self.parts.last().is_some_and(|(last, before)| {
            last.shard == info.shard && last.offset + before.end == info.offset + run.start
        })
    }

    fn add(&mut self, info: &'a TensorInfo<'a>, run: Range<u64>) {
        self.parts.push((info, run));
    }

    /// Reports what there is, if it is long enough and not told of each tensor already.
    fn end(&mut self, find: &mut impl FnMut(&TensorInfo<'_>, String)) {
        let parts = std::mem::take(&mut self.parts);
        let (Some((first, from)), Some((last, to))) = (parts.first(), parts.last()) else {
            return;
        };
        let (start, end) = (first.offset + from.start, last.offset + to.end);
        let is_whole = |(info, run): &(&TensorInfo<'_>, Range<u64>)| *run == (0..info.byte_len);
        if end - start < HOLE_BYTES || parts.iter().all(is_whole) {
            return;
        }
        let place = match parts.len() {
            1 => format!("bytes {}..{} of the tensor", from.start, to.end),
            _ => format!("from its byte {} to byte {} of {}", from.start, to.end, last.name),
        };
        let bytes = end - start;
        find(
            first,
            format!("a hole of {bytes} zero bytes: bytes {start}..{end} of the file, {place}"),
        );
    }
}

struct Look<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo<'a>,
    config: &'a RawConfig,
}

impl Look<'_> {
    fn run(&self) -> Result<Seen, ReadError> {
        let (name, dtype) = (self.info.name, self.info.dtype);
        let length = self.info.byte_len;
        let heads = match name.ends_with(".self_attn.A_log") {
            true => self.config.kda_num_heads as u64,
            false => u64::MAX,
        };
        let is_scale = dtype == Dtype::U8 && name.ends_with(".weight_scale");
        let mask = magnitudes(name, dtype);
        let mut zeros = Zeros { mask: mask.unwrap_or_default(), ..Zeros::default() };
        let (mut bad, mut padding, mut index) = (Places::default(), None, 0_u64);
        self.blocks(|start, bytes| {
            if mask.is_some() {
                zeros.add(start, bytes, length);
            }
            if is_scale {
                for (index, _) in bytes.iter().enumerate().filter(|(_, b)| **b == NAN_SCALE) {
                    bad.add(start + index as u64, f64::NAN);
                }
            } else if matches!(dtype, Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64) {
                super::statistics::numbers(bytes, dtype, |value| {
                    if !value.is_finite() {
                        bad.add(index, value);
                    } else if index >= heads && value != 0.0 && padding.is_none() {
                        padding = Some((index, value));
                    }
                    index += 1;
                });
            }
        })?;
        let mut seen = Seen { zeros: zeros.runs, ..Seen::default() };
        if let Some((first, value)) = bad.first {
            let others = others(bad.count);
            seen.wrong.push(match is_scale {
                true => self.nan_scale(first) + &others,
                false => {
                    let place = unravel(first, self.info.shape);
                    format!("index {place:?}: expected a finite weight, got {value}{others}")
                }
            });
        } else if let Some((index, value)) = padding {
            // K8: after the heads, `A_log` is padded with exact zeros.
            seen.wrong.push(format!(
                "A_log[{index}] is padding after {heads} heads: expected 0, got {value}"
            ));
        }
        // Whole elements; the padding of A_log is no hole.
        let size = (dtype.bits() / 8).max(1);
        let used = length.min(heads.saturating_mul(size));
        let whole =
            |run: Range<u64>| run.start.next_multiple_of(size)..run.end.min(used) / size * size;
        seen.zeros = seen.zeros.into_iter().map(whole).filter(|run| !run.is_empty()).collect();
        if seen.zeros.first() == Some(&(0..used)) {
            if multiplies(name) {
                seen.wrong.push(self.all_zero(is_scale));
            } else {
                (seen.is_neutral, seen.zeros) = (true, Vec::new());
            }
        }
        if let Some(row) = self.padding_row() {
            seen.zeros = seen.zeros.into_iter().flat_map(|run| without(run, &row)).collect();
        }
        Ok(seen)
    }

    /// Calls `each` with blocks of the tensor.
    fn blocks(&self, mut each: impl FnMut(u64, &[u8])) -> Result<(), ReadError> {
        let mut block = vec![0; BLOCK_BYTES.min(self.info.byte_len as usize)];
        let mut start = 0;
        while start < self.info.byte_len {
            let end = self.info.byte_len.min(start + BLOCK_BYTES as u64);
            let bytes = &mut block[..(end - start) as usize];
            self.checkpoint.read_into(self.info, start..end, bytes)?;
            each(start, bytes);
            start = end;
        }
        Ok(())
    }

    fn nan_scale(&self, first: u64) -> String {
        let groups = self.info.shape.last().map_or(1, |&groups| groups.max(1)) as u64;
        let (row, group) = (first / groups, first % groups);
        let place = expert_place(self.info.name);
        format!("{place}row {row}, group {group}: scale byte 255 (NaN), expected 0..254")
    }

    fn all_zero(&self, is_scale: bool) -> String {
        let place = expert_place(self.info.name);
        match (place.is_empty(), is_scale) {
            (true, _) => "every value is zero, so whatever comes in, nothing comes out".to_owned(),
            (_, true) => format!("{place}every scale byte is zero (2^-127)"),
            (_, false) => format!("{place}every code is zero, so the expert computes nothing"),
        }
    }

    /// Bytes of the padding id's row of the embedding.
    fn padding_row(&self) -> Option<Range<u64>> {
        let ids = &self.config.token_ids;
        let id = ids
            .text
            .pad
            .or(ids.root.pad)
            .filter(|_| self.info.name == Role::EmbedTokens.template())?;
        let row = self.info.byte_len / (*self.info.shape.first()?).max(1) as u64;
        Some(row * u64::from(id)..row * (u64::from(id) + 1))
    }
}

/// What is left of a run without a row that lies in it.
fn without(run: Range<u64>, row: &Range<u64>) -> Vec<Range<u64>> {
    if run.start > row.start || run.end < row.end {
        return vec![run];
    }
    let rest = [run.start..row.start, row.end..run.end];
    rest.into_iter().filter(|rest| rest.end - rest.start >= HOLE_BYTES).collect()
}

/// Whether a tensor multiplies, going by PyTorch's name for it.
fn multiplies(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.starts_with("weight"))
}

/// The bits of a word of elements that are zero in a zero of either sign; none of what is no
/// weight.
fn magnitudes(name: &str, dtype: Dtype) -> Option<u64> {
    use Dtype as D;
    match dtype {
        D::Bf16 | D::F16 => Some(0x7FFF_7FFF_7FFF_7FFF),
        D::F32 => Some(0x7FFF_FFFF_7FFF_FFFF),
        D::F64 => Some(0x7FFF_FFFF_FFFF_FFFF),
        D::F8E5M2 | D::F8E4M3 => Some(0x7F7F_7F7F_7F7F_7F7F),
        // Two codes to a byte.
        D::F4 => Some(0x7777_7777_7777_7777),
        D::U8 if name.ends_with(".weight_packed") => Some(0x7777_7777_7777_7777),
        D::F6E2M3 | D::F6E3M2 | D::F8E8M0 | D::F8E4M3Fnuz | D::F8E5M2Fnuz => Some(u64::MAX),
        D::U8 if name.ends_with(".weight_scale") => Some(u64::MAX),
        _ => None,
    }
}

/// The first of several places, and their number.
#[derive(Default)]
struct Places {
    first: Option<(u64, f64)>,
    count: u64,
}

impl Places {
    fn add(&mut self, index: u64, value: f64) {
        self.first.get_or_insert((index, value));
        self.count += 1;
    }
}

/// Finds zeros in a row, word by word.
#[derive(Default)]
struct Zeros {
    mask: u64,
    /// Zero bytes right before the word in hand.
    before: u64,
    runs: Vec<Range<u64>>,
}

impl Zeros {
    /// `bytes` begin at byte `start` of a tensor of `length`.
    fn add(&mut self, start: u64, bytes: &[u8], length: u64) {
        let mut at = start;
        let (words, rest) = bytes.as_chunks::<WORD>();
        for word in words {
            self.word(at, u64::from_le_bytes(*word) & self.mask, length);
            at += WORD as u64;
        }
        if !rest.is_empty() {
            // What follows the tensor is not zero.
            let mut word = [0xFF; WORD];
            word[..rest.len()].copy_from_slice(rest);
            self.word(at, u64::from_le_bytes(word) & self.mask, length);
        } else if at == length {
            self.close(at, length);
        }
    }

    #[inline]
    fn word(&mut self, at: u64, word: u64, length: u64) {
        if word == 0 {
            self.before += WORD as u64;
            return;
        }
        let more = u64::from(word.trailing_zeros() / 8);
        self.before += more;
        self.close(at + more, length);
        self.before = u64::from(word.leading_zeros() / 8);
    }

    #[inline]
    fn close(&mut self, end: u64, length: u64) {
        let is_at_end = self.before > 0 && (self.before == end || end == length);
        if self.before >= HOLE_BYTES || is_at_end {
            self.runs.push(end - self.before..end);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A hole at any byte, of any length, fed in blocks: found to the byte, or too short.
    #[test]
    fn holes_are_found_to_the_byte() {
        for (start, bytes) in [(0, 1), (1, 4096), (7, 4103), (8, 4095), (4095, 4097), (9000, 999)] {
            for length in [9999, 10_000] {
                let mut data = vec![1_u8; length];
                let end = (start + bytes).min(length);
                data[start..end].fill(0);
                let mut zeros = Zeros { mask: u64::MAX, ..Zeros::default() };
                for (index, block) in data.chunks(1024).enumerate() {
                    zeros.add(1024 * index as u64, block, length as u64);
                }
                let is_told = start == 0 || end == length || bytes >= 4096;
                let expected = is_told.then_some(start as u64..end as u64);
                assert_eq!(zeros.runs, Vec::from_iter(expected), "{start}, {bytes} of {length}");
            }
        }
    }

    /// The padding id's row may be zero; a hole that goes on beyond it is one.
    #[test]
    fn a_row_is_taken_out_of_a_hole() {
        let row = 10_000..24_000;
        assert_eq!(without(10_000..24_002, &row), []);
        assert_eq!(without(9000..10_000, &row).first(), Some(&(9000..10_000)));
        assert_eq!(without(1000..30_000, &row), [1000..10_000, 24_000..30_000]);
    }
}
