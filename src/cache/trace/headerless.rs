//! The headerless trace of other engines: little-endian int32 pairs (layer, expert).
//!
//! Such a file says nothing about itself, so every value is checked against the model's shape, and
//! a file in the other byte order is refused by name. Demands are the maximal runs of one layer,
//! cut at top-k; the last one of a cut trace may be shorter. An expert that occurs twice in a
//! demand is accepted: one read, two uses, and the second use is a hit. Steps and positions are not
//! in the file: `order` reads them off the order.

use super::{Chunk, Demand, Phase, Step, Trace, TraceError};
use crate::shape::ModelShape;

/// Bytes of one pair.
pub const RECORD_BYTES: usize = 8;

/// Parses and checks the pairs. Layer 0 is accepted although K3 has no experts there: traces of
/// other models may use it.
pub fn import(bytes: &[u8], shape: &ModelShape) -> Result<Trace, TraceError> {
    if bytes.is_empty() {
        return Err(TraceError::Empty);
    }
    if !bytes.len().is_multiple_of(RECORD_BYTES) {
        return Err(TraceError::Malformed(format!(
            "half a record at the end: {} bytes are no multiple of 8 (a pair of int32: layer, \
             expert)",
            bytes.len()
        )));
    }
    let mut requests = Vec::with_capacity(bytes.len() / RECORD_BYTES);
    for (record, pair) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
        requests.push(check_pair(record, pair, shape)?);
    }
    Ok(from_requests(requests, shape))
}

/// A trace without marks from dense indices inside the shape.
pub fn from_requests(requests: Vec<u32>, shape: &ModelShape) -> Trace {
    let demands = cut_into_demands(&requests, shape);
    let position_count = 0;
    Trace {
        shape: *shape,
        requests,
        demands,
        chunks: vec![Chunk { step: 0, first_position: 0, position_count }],
        steps: vec![Step { phase: Phase::Unknown, first_position: 0, position_count }],
        prefetches: Vec::new(),
        decisions: Vec::new(),
        header: None,
    }
}

/// One pair, as dense index.
fn check_pair(record: usize, pair: &[u8], shape: &ModelShape) -> Result<u32, TraceError> {
    let layer = i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
    let expert = i32::from_le_bytes([pair[4], pair[5], pair[6], pair[7]]);
    let fits = |layer: i32, expert: i32| {
        (0..shape.layer_count as i32).contains(&layer)
            && (0..shape.experts_per_layer as i32).contains(&expert)
    };
    if fits(layer, expert) {
        return Ok(layer as u32 * shape.experts_per_layer + expert as u32);
    }
    if fits(layer.swap_bytes(), expert.swap_bytes()) {
        return Err(TraceError::ByteSwapped(format!(
            "record {record}: byte-swapped: layer {layer}, expert {expert} are layer {}, expert {} \
             in the other byte order (little-endian int32 expected)",
            layer.swap_bytes(),
            expert.swap_bytes()
        )));
    }
    if layer < 0 {
        return Err(TraceError::in_record(record, format!("layer {layer} is negative")));
    }
    if layer as u32 >= shape.layer_count {
        let last = shape.layer_count - 1;
        return Err(TraceError::layer_out_of_range(record, layer as u32, 0, last));
    }
    if expert < 0 {
        return Err(TraceError::in_record(record, format!("expert {expert} is negative")));
    }
    Err(TraceError::expert_out_of_range(record, expert as u32, shape.experts_per_layer))
}

/// Maximal runs of one layer, cut at top-k.
fn cut_into_demands(requests: &[u32], shape: &ModelShape) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    for (request, &expert) in requests.iter().enumerate() {
        let layer = shape.key(expert).layer;
        match demands.last_mut() {
            Some(demand) if demand.layer == layer && demand.count < shape.top_k => {
                demand.count += 1;
            }
            _ => {
                let first = request as u32;
                demands.push(Demand { chunk: 0, position: 0, layer, first, count: 1 });
            }
        }
    }
    demands
}
