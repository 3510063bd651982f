//! Traces of other programs: JSON lines, CSV and TSV with named columns, NumPy arrays.
//!
//! They name no model, so its sizes are what the data show, unless options state them.

use std::io::Read;

use k3_core::content::known_form;
use k3_core::npy::{self, Npy};
use serde::Deserialize;

use super::{MAX_TRACE_BYTES, Trace, TraceError, headerless, router, too_large};
use crate::shape::{ExpertKey, ModelShape};

/// What the options say of the model; what they leave open is read off the data.
#[derive(Debug, Clone, Default)]
pub struct Stated {
    /// `--model-layers`
    pub layers: Option<u32>,
    /// `--experts`
    pub experts: Option<u32>,
    /// `--top-k`
    pub top_k: Option<u32>,
    /// `--expert-bytes`
    pub expert_bytes: Option<u64>,
    /// `--columns`: which column holds what, as (role, name).
    pub columns: Vec<(String, String)>,
}

/// One position asks one layer: the layer and its experts.
type Row = (u32, Vec<u32>);

/// The bytes themselves, or what gzip made them from.
pub(super) fn decompressed(bytes: Vec<u8>) -> Result<Vec<u8>, TraceError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    let decoder = flate2::read::MultiGzDecoder::new(bytes.as_slice());
    let read = decoder.take(MAX_TRACE_BYTES + 1).read_to_end(&mut plain);
    read.map_err(|error| TraceError::Cut(format!("the gzip data is damaged: {error}")))?;
    if plain.len() as u64 > MAX_TRACE_BYTES {
        return Err(too_large(plain.len() as u64, MAX_TRACE_BYTES));
    }
    Ok(plain)
}

/// The trace, if the bytes are one of these forms; None if they may be headerless pairs.
pub(super) fn read(bytes: &[u8], stated: &Stated) -> Result<Option<Trace>, TraceError> {
    let rows = if bytes.starts_with(npy::MAGIC) {
        from_npy(bytes)?
    } else if let Some(text) = text(bytes).filter(|text| !text.starts_with('<')) {
        match text.chars().next() {
            Some('{') => from_json_lines(text)?,
            Some('[') => {
                let what = "JSON, but one object a line with \"tok\" and \"layers\" is read";
                return Err(TraceError::whole(what));
            }
            _ => from_table(text, stated)?,
        }
    } else if let Some(form) = known_form(bytes) {
        return Err(TraceError::whole(format!("expected a trace, got {form}")));
    } else {
        return Ok(None);
    };
    trace(&rows, stated).map(Some)
}

/// Text without control characters; pairs of int32 hold zero bytes.
fn text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let text = text.trim_start_matches('\u{feff}');
    (!text.is_empty() && !text.contains(control)).then_some(text)
}

fn from_json_lines(text: &str) -> Result<Vec<Row>, TraceError> {
    #[derive(Deserialize)]
    struct Line {
        layers: Vec<Vec<u32>>,
    }
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: Line = serde_json::from_str(line).map_err(|error| {
            let number = number + 1;
            TraceError::whole(format!(
                "line {number}: JSON, but not one object a line with \"layers\", a list of expert \
                 ids for each layer: {error}"
            ))
        })?;
        rows.extend(line.layers.into_iter().enumerate().map(|(at, ids)| (at as u32, ids)));
    }
    Ok(rows)
}

fn from_npy(bytes: &[u8]) -> Result<Vec<Row>, TraceError> {
    let array = Npy::parse(bytes).map_err(TraceError::whole)?;
    let &[_, layers, top_k] = array.shape.as_slice() else {
        let shape = &array.shape;
        let what = format!("NumPy array of shape {shape:?}: expected [positions, layers, top-k]");
        return Err(TraceError::whole(what));
    };
    let Some(ids) = array.integers() else {
        return Err(TraceError::whole("NumPy array of floats: expert ids are integers"));
    };
    let row = |(at, ids): (usize, &[i64])| {
        let ids = ids.iter().map(|&id| u32::try_from(id)).collect::<Result<_, _>>();
        let ids = ids.map_err(|_| TraceError::in_record(at, "an expert id below 0 or above 2^32"));
        Ok(((at % layers) as u32, ids?))
    };
    ids.chunks_exact(top_k.max(1)).enumerate().map(row).collect()
}

/// Columns by name: `layer`, `expert` and, where a file has it, `token`. A row of it is a run
/// of lines of one token and layer.
fn from_table(text: &str, stated: &Stated) -> Result<Vec<Row>, TraceError> {
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    let separator = ['\t', ';'].into_iter().find(|c| header.contains(*c)).unwrap_or(',');
    let names: Vec<&str> = header.split(separator).map(|n| n.trim().trim_matches('"')).collect();
    let find = |role: &str, usual: &[&str]| {
        let given = stated.columns.iter().find(|(known, _)| known == role);
        let fits = |name: &str| match given {
            Some((_, wanted)) => name == wanted,
            None => usual.iter().any(|usual| name.eq_ignore_ascii_case(usual)),
        };
        names.iter().position(|name| fits(name))
    };
    let needed = |role: &str, usual: &[&str]| {
        find(role, usual).ok_or_else(|| {
            let header: String = header.chars().take(80).collect();
            let advice = if names.iter().all(|name| name.parse::<f64>().is_ok()) {
                "the first line must name the columns, such as token,layer,expert"
            } else {
                "name them with --columns token=NAME,layer=NAME,expert=NAME"
            };
            TraceError::whole(format!(
                "text without a column {role} (first line: {header}): {advice}"
            ))
        })
    };
    let layer = needed("layer", &["layer", "layer_id"])?;
    let expert = needed("expert", &["expert", "expert_id"])?;
    let token = needed("token", &["token", "position", "pos", "tok"])?;
    let mut rows: Vec<Row> = Vec::new();
    let mut before = None;
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(separator).collect();
        let value = |column: usize| {
            let field = fields.get(column).map_or("", |field| field.trim().trim_matches('"'));
            field.parse::<u32>().map_err(|_| {
                let (number, name) = (number + 1, names[column]);
                TraceError::whole(format!("line {number}: {name} is '{field}', expected a number"))
            })
        };
        let key = (value(token)?, value(layer)?);
        if before != Some(key) {
            rows.push((key.1, Vec::new()));
            before = Some(key);
        }
        let id = value(expert)?;
        rows.last_mut().into_iter().for_each(|row| row.1.push(id));
    }
    Ok(rows)
}

/// The trace of rows, with the sizes that are stated or else seen.
fn trace(rows: &[Row], stated: &Stated) -> Result<Trace, TraceError> {
    let Some(top) = rows.iter().map(|row| row.0).max() else {
        return Err(TraceError::Empty);
    };
    // The first pass may hold unions.
    let lengths: Vec<u32> = rows.iter().map(|row| row.1.len() as u32).collect();
    let Some(expert_bytes) = stated.expert_bytes else {
        let what = "the file does not say how large an expert is: give --expert-bytes N";
        return Err(TraceError::whole(what));
    };
    let largest = rows.iter().flat_map(|row| &row.1).max().copied().unwrap_or(0);
    let shape = ModelShape {
        layer_count: stated.layers.unwrap_or(top.saturating_add(1)),
        first_moe_layer: rows.iter().map(|row| row.0).min().unwrap_or(0),
        experts_per_layer: stated.experts.unwrap_or(largest.saturating_add(1)),
        top_k: stated.top_k.unwrap_or_else(|| router::usual(&lengths)),
        expert_bytes,
    };
    if let Some((field, value, allowed)) = shape.first_bad_field() {
        return Err(TraceError::whole(format!("{field} is {value}, allowed is {allowed}")));
    }
    let mut requests = Vec::new();
    for (record, (layer, ids)) in rows.iter().enumerate() {
        if ids.len() < shape.top_k as usize {
            let (got, k) = (ids.len(), shape.top_k);
            let what = format!("{got} experts where top-k is {k}: a router chooses as many always");
            return Err(TraceError::in_record(record, what));
        }
        if *layer >= shape.layer_count {
            return Err(TraceError::layer_out_of_range(record, *layer, 0, shape.layer_count - 1));
        }
        for &expert in ids {
            if expert >= shape.experts_per_layer {
                let count = shape.experts_per_layer;
                return Err(TraceError::expert_out_of_range(record, expert, count));
            }
            let (layer, expert) = (*layer as u16, expert as u16);
            requests.push(shape.index(ExpertKey { layer, expert }));
        }
    }
    Ok(headerless::from_requests(requests, &shape))
}
