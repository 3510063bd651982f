//! The strict reader of trace v1: every byte is accounted for, every value is checked against the
//! header's shape, and the nesting of steps, chunks and demands is checked.

use std::fmt::Display;

use sha2::{Digest, Sha256};

use super::super::{Chunk, Decision, Demand, Outcome, Phase, Prefetch, Step, Trace, TraceError};
use super::{
    HEADER_BYTES, Header, KIND_CHUNK, KIND_DECISION, KIND_DEMAND, KIND_END, KIND_PREFETCH,
    KIND_STEP, NO_VICTIM, VERSION,
};
use crate::shape::ModelShape;
use crate::slot_table::{Requests, Reserve};

/// Largest position: sequences are far shorter, and sums stay in 32 bits.
const MAX_POSITIONS: u32 = 1 << 28;
/// Words of the end record.
const END_WORDS: usize = 12;

/// Parses a whole file that starts with the magic.
pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let header = read_header(bytes)?;
    let mut reader = Reader::new(header);
    let mut at = HEADER_BYTES;
    loop {
        let (kind, words, next) = reader.next_record(bytes, at)?;
        if kind == KIND_END {
            check_end(&reader, &words, &bytes[..at])?;
            if next != bytes.len() {
                let left = bytes.len() - next;
                return Err(TraceError::whole(format!("{left} bytes follow the end record")));
            }
            break;
        }
        reader.take(kind, &words)?;
        reader.record += 1;
        at = next;
    }
    let trace = reader.trace;
    if trace.requests.is_empty() {
        return Err(TraceError::Empty);
    }
    check_decisions(&trace)?;
    Ok(trace)
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(word_at(bytes, at)) | u64::from(word_at(bytes, at + 4)) << 32
}

fn bad_field(field: &str, value: impl Into<u64>, allowed: &str) -> TraceError {
    let value = value.into();
    TraceError::Malformed(format!("header field {field} is {value}, allowed is {allowed}"))
}

fn read_header(bytes: &[u8]) -> Result<Header, TraceError> {
    if bytes.len() < HEADER_BYTES {
        let what = format!("the header is cut: {} bytes, {HEADER_BYTES} expected", bytes.len());
        return Err(TraceError::Malformed(what));
    }
    let version = word_at(bytes, 8);
    if version != VERSION {
        let what =
            format!("trace version {version} is not known (this program reads version {VERSION})");
        return Err(TraceError::Malformed(what));
    }
    if word_at(bytes, 12) != HEADER_BYTES as u32 {
        return Err(bad_field("header_bytes", word_at(bytes, 12), "128"));
    }
    let shape = ModelShape {
        layer_count: word_at(bytes, 16),
        first_moe_layer: word_at(bytes, 20),
        experts_per_layer: word_at(bytes, 24),
        top_k: word_at(bytes, 28),
        expert_bytes: long_at(bytes, 32),
    };
    if let Some((field, value, allowed)) = shape.first_bad_field() {
        return Err(bad_field(field, value, allowed));
    }
    let requests = match word_at(bytes, 92) {
        0 => None,
        1 => Some(Requests::Single),
        2 => Some(Requests::Batch),
        3 => Some(Requests::Union),
        other => return Err(bad_field("requests", other, "0 to 3")),
    };
    let reserve = match word_at(bytes, 96) {
        0 => None,
        1 => Some(Reserve::Late),
        2 => Some(Reserve::Early),
        other => return Err(bad_field("reserve", other, "0 to 2")),
    };
    if word_at(bytes, 100) != 0 {
        return Err(bad_field("reserved", word_at(bytes, 100), "0"));
    }
    let mut checkpoint_identity = [0; 32];
    checkpoint_identity.copy_from_slice(&bytes[56..88]);
    Ok(Header {
        shape,
        trunk_bytes: long_at(bytes, 40),
        head_bytes: long_at(bytes, 48),
        checkpoint_identity,
        slot_count: word_at(bytes, 88),
        requests,
        reserve,
        policy: read_policy(&bytes[104..HEADER_BYTES])?,
    })
}

/// Letters, digits and dashes, then zeros only.
fn read_policy(bytes: &[u8]) -> Result<String, TraceError> {
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (name, padding) = bytes.split_at(length);
    let plain = name.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !plain || padding.iter().any(|&byte| byte != 0) {
        return Err(TraceError::whole("header field policy is no ASCII name padded with zeros"));
    }
    Ok(name.iter().map(|&byte| char::from(byte)).collect())
}

/// The trace so far and what the next record must fit into.
struct Reader {
    trace: Trace,
    shape: ModelShape,
    record: usize,
}

impl Reader {
    fn new(header: Header) -> Reader {
        let shape = header.shape;
        let trace = Trace {
            shape,
            requests: Vec::new(),
            demands: Vec::new(),
            chunks: Vec::new(),
            steps: Vec::new(),
            prefetches: Vec::new(),
            decisions: Vec::new(),
            header: Some(header),
        };
        Reader { trace, shape, record: 0 }
    }

    /// Kind, words and end of the record at `at`.
    fn next_record(&self, bytes: &[u8], at: usize) -> Result<(u32, Vec<u32>, usize), TraceError> {
        let record = self.record;
        let left = bytes.len() - at;
        if left == 0 {
            let what =
                format!("the trace is cut after {record} records: the end record is missing");
            return Err(TraceError::Cut(what));
        }
        let cut = |needed| {
            let what = format!("it needs {needed} bytes, {left} are left");
            TraceError::Cut(format!("record {record} is cut: {what}"))
        };
        if left < 8 {
            return Err(cut(8));
        }
        let words = word_at(bytes, at + 4) as usize;
        let needed = 8 + 4 * words;
        if left < needed {
            return Err(cut(needed));
        }
        let values = (0..words).map(|word| word_at(bytes, at + 8 + 4 * word)).collect();
        Ok((word_at(bytes, at), values, at + needed))
    }

    fn take(&mut self, kind: u32, words: &[u32]) -> Result<(), TraceError> {
        match kind {
            KIND_STEP => self.take_step(words),
            KIND_CHUNK => self.take_chunk(words),
            KIND_DEMAND => self.take_demand(words),
            KIND_PREFETCH => self.take_prefetch(words),
            KIND_DECISION => self.take_decision(words),
            _ => Err(self.wrong(format!("kind {kind} does not exist"))),
        }
    }

    fn wrong(&self, what: impl Display) -> TraceError {
        TraceError::in_record(self.record, what)
    }

    fn positions(&self, first: u32, count: u32, outer: &str) -> TraceError {
        self.wrong(format!("positions {first}+{count} lie outside {outer}"))
    }

    fn wrong_length(&self, kind: &str, words: &[u32], expected: &str) -> TraceError {
        let (record, words) = (self.record, words.len());
        TraceError::Malformed(format!(
            "record {record} ({kind}): {words} words, expected {expected}"
        ))
    }

    fn take_step(&mut self, words: &[u32]) -> Result<(), TraceError> {
        let &[phase, first, count] = words else {
            return Err(self.wrong_length("step", words, "3"));
        };
        let phase = match phase {
            1 => Phase::Prefill,
            2 => Phase::Decode,
            3 => Phase::Recompute,
            _ => return Err(self.wrong(format!("phase {phase} does not exist"))),
        };
        if count == 0 || u64::from(first) + u64::from(count) > u64::from(MAX_POSITIONS) {
            return Err(self.positions(first, count, "a sequence of 1 to 2^28"));
        }
        self.trace.steps.push(Step { phase, first_position: first, position_count: count });
        Ok(())
    }

    fn take_chunk(&mut self, words: &[u32]) -> Result<(), TraceError> {
        let &[first, count] = words else {
            return Err(self.wrong_length("chunk", words, "2"));
        };
        let Some(step) = self.trace.steps.last() else {
            return Err(self.wrong("a chunk before any step"));
        };
        let step_end = step.first_position + step.position_count;
        let inside = first >= step.first_position
            && count > 0
            && u64::from(first) + u64::from(count) <= u64::from(step_end);
        if !inside {
            return Err(self.positions(first, count, "their step"));
        }
        let step = self.trace.steps.len() as u32 - 1;
        self.trace.chunks.push(Chunk { step, first_position: first, position_count: count });
        Ok(())
    }

    fn take_demand(&mut self, words: &[u32]) -> Result<(), TraceError> {
        if words.len() < 3 || words.len() - 2 > self.shape.top_k as usize {
            return Err(self.wrong_length("demand", words, "3 to 2 + top-k"));
        }
        let (layer, position, experts) = (words[0], words[1], &words[2..]);
        let Some(chunk) = self.current_chunk() else {
            return Err(self.wrong("a demand before any chunk"));
        };
        if !(chunk.first_position..chunk.first_position + chunk.position_count).contains(&position)
        {
            return Err(self.positions(position, 1, "their chunk"));
        }
        let indices = self.indices(layer, experts)?;
        if let Some(twice) = (1..experts.len()).find(|&i| experts[..i].contains(&experts[i])) {
            let what = format!("expert {} of layer {layer} twice in one demand", experts[twice]);
            return Err(self.wrong(what));
        }
        let (first, count) = (self.trace.requests.len() as u32, experts.len() as u32);
        let chunk = self.trace.chunks.len() as u32 - 1;
        self.trace.requests.extend(indices);
        self.trace.demands.push(Demand { chunk, position, layer: layer as u16, first, count });
        Ok(())
    }

    fn take_prefetch(&mut self, words: &[u32]) -> Result<(), TraceError> {
        if words.len() < 2 || words.len() - 1 > self.shape.experts_per_layer as usize {
            return Err(self.wrong_length("prefetch", words, "2 to 1 + experts per layer"));
        }
        if self.current_chunk().is_none() {
            return Err(self.wrong("a prefetch before any chunk"));
        }
        let experts = self.indices(words[0], &words[1..])?;
        let before_demand = self.trace.demands.len() as u32;
        self.trace.prefetches.push(Prefetch { before_demand, experts });
        Ok(())
    }

    fn take_decision(&mut self, words: &[u32]) -> Result<(), TraceError> {
        let &[layer, expert, outcome, victim_layer, victim_expert] = words else {
            return Err(self.wrong_length("decision", words, "5"));
        };
        let expert = self.indices(layer, &[expert])?[0];
        let none = victim_layer == NO_VICTIM && victim_expert == NO_VICTIM;
        let outcome = match outcome {
            0 if none => Outcome::Hit,
            1 if none => Outcome::Loaded,
            2 => Outcome::LoadedOver(self.indices(victim_layer, &[victim_expert])?[0]),
            _ => {
                let what = format!("outcome {outcome} does not exist or its victim is wrong");
                return Err(self.wrong(what));
            }
        };
        self.trace.decisions.push(Decision { expert, outcome });
        Ok(())
    }

    /// The chunk that demands belong to: the last one, if it is the current step's.
    fn current_chunk(&self) -> Option<&Chunk> {
        let chunk = self.trace.chunks.last()?;
        (chunk.step as usize + 1 == self.trace.steps.len()).then_some(chunk)
    }

    /// Dense indices of experts of one layer.
    fn indices(&self, layer: u32, experts: &[u32]) -> Result<Vec<u32>, TraceError> {
        let record = self.record;
        let (first, count) = (self.shape.first_moe_layer, self.shape.experts_per_layer);
        if !(first..self.shape.layer_count).contains(&layer) {
            let last = self.shape.layer_count - 1;
            return Err(TraceError::layer_out_of_range(record, layer, first, last));
        }
        if let Some(&expert) = experts.iter().find(|&&expert| expert >= count) {
            return Err(TraceError::expert_out_of_range(record, expert, count));
        }
        Ok(experts.iter().map(|expert| layer * count + expert).collect())
    }
}

fn miscounted(what: &str, counted: u64, found: u64) -> TraceError {
    let what = format!("the end record counts {counted} {what}, the file holds {found}");
    TraceError::Malformed(what)
}

/// Counts and checksum of the end record.
fn check_end(reader: &Reader, words: &[u32], before: &[u8]) -> Result<(), TraceError> {
    if words.len() != END_WORDS {
        return Err(reader.wrong_length("end", words, "12"));
    }
    let long = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let counts = [
        ("records", long(0), reader.record as u64),
        ("requests", long(2), reader.trace.requests.len() as u64),
    ];
    for (what, counted, found) in counts {
        if counted != found {
            return Err(miscounted(what, counted, found));
        }
    }
    let digest: Vec<u8> = words[4..].iter().flat_map(|word| word.to_le_bytes()).collect();
    if digest[..] != Sha256::digest(before)[..] {
        return Err(TraceError::whole(
            "the checksum does not fit: the trace was changed after it was written",
        ));
    }
    Ok(())
}

/// Decisions, where there are any, are about the requests in their order. For unions that order
/// depends on the chunks; there the replay compares them.
fn check_decisions(trace: &Trace) -> Result<(), TraceError> {
    let unit = trace.header.as_ref().and_then(|header| header.requests);
    if trace.decisions.is_empty() || unit == Some(Requests::Union) {
        return Ok(());
    }
    let asked = trace.decisions.iter().map(|decision| decision.expert);
    let differs = asked.zip(&trace.requests).position(|(asked, &request)| asked != request);
    if let Some(decision) = differs {
        return Err(TraceError::Malformed(format!(
            "decision {decision} is about another expert than the request it belongs to"
        )));
    }
    if trace.decisions.len() != trace.requests.len() {
        let (counted, found) = (trace.decisions.len() as u64, trace.requests.len() as u64);
        return Err(miscounted("decisions", counted, found));
    }
    Ok(())
}
