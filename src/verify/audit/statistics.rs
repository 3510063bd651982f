//! Numbers about the values of single tensors, read in blocks.
//!
//! MXFP4 codes are decoded with their scales; a scale tensor is counted as bytes. Sums run in f64
//! in the order of the file.

use serde::Serialize;

use k3_checkpoint::dtype::widen_bf16;
use k3_checkpoint::mxfp4::{decode_code, decode_scale};
use k3_checkpoint::{Checkpoint, Dtype, ReadError, TensorInfo};
use k3_core::config::MXFP4_GROUP_COLUMNS;

/// Bytes read at a time; a multiple of every element size and of a group of codes.
const BLOCK_BYTES: usize = 4 << 20;

/// What is known of a tensor's values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorStatistics {
    /// Full name.
    pub name: String,
    /// Element type on disk.
    pub dtype: &'static str,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Shard's file name.
    pub shard: String,
    /// Absolute offset.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What the values are: `numbers`, `MXFP4 codes with their scales`, `scale bytes`, `bytes`.
    pub values: &'static str,
    /// How many values.
    pub count: u64,
    /// Smallest finite value.
    pub min: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Mean of the finite values.
    pub mean: Option<f64>,
    /// Root of their mean square.
    pub rms: Option<f64>,
    /// NaNs (for scale bytes: byte 255).
    pub nan: u64,
    /// Infinities.
    pub infinite: u64,
    /// Zeros over all values.
    pub zero_share: f64,
    /// Distinct bytes, of scale tensors.
    pub distinct_bytes: Option<usize>,
}

#[derive(Default)]
struct Tally {
    count: u64,
    zeros: u64,
    nan: u64,
    infinite: u64,
    sum: f64,
    squares: f64,
    range: Option<(f64, f64)>,
}

impl Tally {
    fn add(&mut self, value: f64) {
        self.count += 1;
        if value.is_nan() {
            self.nan += 1;
            return;
        }
        if value.is_infinite() {
            self.infinite += 1;
            return;
        }
        self.zeros += u64::from(value == 0.0);
        self.sum += value;
        self.squares += value * value;
        let (low, high) = self.range.unwrap_or((value, value));
        self.range = Some((low.min(value), high.max(value)));
    }
}

/// Reads a tensor and counts.
///
/// # Errors
/// The shard cannot be read.
pub fn statistics(
    checkpoint: &Checkpoint,
    info: &TensorInfo<'_>,
) -> Result<TensorStatistics, ReadError> {
    let mut tally = Tally::default();
    let scales = scales_of(checkpoint, info)?;
    let is_scale = info.dtype == Dtype::U8 && info.name.ends_with(".weight_scale");
    let mut seen = [false; 256];
    let mut block = vec![0; BLOCK_BYTES.min(info.byte_len as usize)];
    let mut start = 0;
    while start < info.byte_len {
        let end = info.byte_len.min(start + BLOCK_BYTES as u64);
        let bytes = &mut block[..(end - start) as usize];
        checkpoint.read_into(info, start..end, bytes)?;
        match (&scales, info.dtype) {
            (Some(scales), _) => add_codes(&mut tally, bytes, start, scales),
            (None, Dtype::U8) => {
                for &byte in bytes.iter() {
                    seen[usize::from(byte)] = true;
                    tally.add(f64::from(byte));
                }
            }
            (None, dtype) => numbers(bytes, dtype, |value| tally.add(value)),
        }
        start = end;
    }
    if is_scale {
        tally.nan = u64::from(seen[255]);
    }
    let values = match (&scales, info.dtype) {
        (Some(_), _) => "MXFP4 codes with their scales",
        (None, Dtype::U8) if is_scale => "scale bytes",
        (None, Dtype::Bf16 | Dtype::F32 | Dtype::F16 | Dtype::F64) => "numbers",
        _ => "bytes",
    };
    let finite = tally.count - tally.nan * u64::from(!is_scale) - tally.infinite;
    let mean = |sum: f64| (finite > 0).then(|| sum / finite as f64);
    Ok(TensorStatistics {
        name: info.name.to_owned(),
        dtype: info.dtype.name(),
        shape: info.shape.to_vec(),
        shard: super::census::file_name(checkpoint, info.shard),
        offset: info.offset,
        bytes: info.byte_len,
        values,
        count: tally.count,
        min: tally.range.map(|(low, _)| low),
        max: tally.range.map(|(_, high)| high),
        mean: mean(tally.sum),
        rms: mean(tally.squares).map(f64::sqrt),
        nan: tally.nan,
        infinite: tally.infinite,
        zero_share: tally.zeros as f64 / tally.count.max(1) as f64,
        distinct_bytes: is_scale.then(|| seen.iter().filter(|seen| **seen).count()),
    })
}

/// Calls `each` with every element as f64; types that are not numbers count as bytes.
pub(super) fn numbers(bytes: &[u8], dtype: Dtype, mut each: impl FnMut(f64)) {
    match dtype {
        Dtype::Bf16 => {
            for word in bytes.as_chunks::<2>().0 {
                each(f64::from(widen_bf16(u16::from_le_bytes(*word))));
            }
        }
        Dtype::F16 => {
            for word in bytes.as_chunks::<2>().0 {
                each(half::f16::from_le_bytes(*word).to_f64());
            }
        }
        Dtype::F32 => {
            for word in bytes.as_chunks::<4>().0 {
                each(f64::from(f32::from_le_bytes(*word)));
            }
        }
        Dtype::F64 => {
            for word in bytes.as_chunks::<8>().0 {
                each(f64::from_le_bytes(*word));
            }
        }
        _ => bytes.iter().for_each(|byte| each(f64::from(*byte))),
    }
}

/// The scales of a tensor of codes, if it is one and their shape matches.
fn scales_of(checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> Result<Option<Vec<u8>>, ReadError> {
    let Some(stem) = info.name.strip_suffix(".weight_packed") else {
        return Ok(None);
    };
    let name = format!("{stem}.weight_scale");
    let fits = checkpoint
        .tensor(&name)
        .is_some_and(|scale| scale.byte_len * MXFP4_GROUP_COLUMNS as u64 == info.byte_len * 2);
    if fits && info.dtype == Dtype::U8 { checkpoint.read(&name).map(Some) } else { Ok(None) }
}

/// `bytes` begin at byte `start` of the tensor; a group is 16 bytes of codes and never split.
fn add_codes(tally: &mut Tally, bytes: &[u8], start: u64, scales: &[u8]) {
    const GROUP_BYTES: usize = MXFP4_GROUP_COLUMNS / 2;
    let first = (start / GROUP_BYTES as u64) as usize;
    for (group, codes) in bytes.chunks(GROUP_BYTES).enumerate() {
        let factor = decode_scale(scales[first + group]).unwrap_or(f64::NAN);
        for byte in codes {
            tally.add(decode_code(byte & 15) * factor);
            tally.add(decode_code(byte >> 4) * factor);
        }
    }
}
