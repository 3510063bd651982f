//! The loop: feed, choose the largest logit, feed that.
//!
//! The state is carried from step to step, or, with full recompute, every step starts from nothing
//! with the whole prefix; both give the same bits. The last id chosen is not fed, since its
//! successor is not needed.

use std::time::Instant;

use serde::Serialize;

use crate::model::{EngineError, EngineSequence};
use k3_cache::trace::Phase;

/// What to generate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The sequence so far: ids of a loaded state, then the prompt. Those that the state has been
    /// fed are not fed again.
    pub ids: Vec<u32>,
    /// Ids to choose; 0 feeds the prompt and chooses none.
    pub count: usize,
    /// Ids after which to stop; the one that stops is kept.
    pub stop_ids: Vec<u32>,
    /// Every step from nothing.
    pub full_recompute: bool,
}

impl Request {
    /// Positions that the sequence will reach; the last id chosen is not fed.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.ids.len() + self.count.saturating_sub(1)
    }
}

/// One forward pass and the id it chose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Step {
    /// What the pass was for.
    pub phase: Phase,
    /// First position it fed.
    pub first_position: usize,
    /// Positions it fed.
    pub positions: usize,
    /// The id it chose; none when only the prompt was fed.
    pub id: Option<u32>,
    /// Largest logit less the second largest; how near another choice was.
    pub margin: Option<f32>,
    /// Wall time.
    pub seconds: f64,
}

/// Who looks on.
pub trait Watch {
    /// A pass over `count` positions from `first` on begins.
    ///
    /// # Errors
    /// The run ends.
    fn begin(&mut self, phase: Phase, first: usize, count: usize) -> Result<(), EngineError>;

    /// A pass has chosen an id from these logits \[V\].
    ///
    /// # Errors
    /// The run ends.
    fn done(&mut self, step: &Step, logits: &[f32]) -> Result<(), EngineError>;
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The ids chosen, in order.
    pub ids: Vec<u32>,
    /// The id that ended it, if one did.
    pub stopped_by: Option<u32>,
}

/// The largest logit's id, the lowest among equals, and its distance from the next. The engine has
/// refused logits that are not finite.
#[must_use]
pub fn choose(logits: &[f32]) -> (u32, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate().skip(1) {
        if logit > logits[best] {
            second = logits[best];
            best = id;
        } else if logit > second {
            second = logit;
        }
    }
    let margin = if logits.len() > 1 { logits[best] - second } else { 0.0 };
    (best as u32, margin)
}

/// Generates.
///
/// # Errors
/// Whatever the engine or the watch reports; the ids chosen before, the watch has seen.
pub fn generate(
    sequence: &mut EngineSequence,
    request: &Request,
    watch: &mut dyn Watch,
) -> Result<Generated, EngineError> {
    let mut ids = request.ids.clone();
    let mut generated = Generated { ids: Vec::with_capacity(request.count), stopped_by: None };
    for index in 0..request.count.max(1) {
        if request.full_recompute {
            sequence.state.clear();
        }
        let first = sequence.state.position;
        let fed = &ids[first..];
        if fed.is_empty() {
            break;
        }
        let phase = match (request.full_recompute, index) {
            (true, _) => Phase::Recompute,
            (false, 0) => Phase::Prefill,
            (false, _) => Phase::Decode,
        };
        watch.begin(phase, first, fed.len())?;
        let start = Instant::now();
        let logits = sequence.feed_last(fed)?;
        let (id, margin) = choose(&logits);
        let chosen = request.count > 0;
        let step = Step {
            phase,
            first_position: first,
            positions: fed.len(),
            id: chosen.then_some(id),
            margin: chosen.then_some(margin),
            seconds: start.elapsed().as_secs_f64(),
        };
        watch.done(&step, &logits)?;
        if !chosen {
            break;
        }
        ids.push(id);
        generated.ids.push(id);
        if request.stop_ids.contains(&id) {
            generated.stopped_by = Some(id);
            break;
        }
    }
    Ok(generated)
}

/// Teacher forcing: at how many positions the largest logit is the next id.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TeacherForcing {
    /// Positions with a next id.
    pub tf_positions: usize,
    /// Of them, those where it would have been chosen.
    pub tf_matches: usize,
    /// Their share.
    pub tf_agreement: f64,
}

/// Feeds `ids` chunk by chunk into the sequence and compares every choice with the id that
/// follows. At least two ids.
///
/// # Errors
/// Whatever the engine or the watch reports.
pub fn teacher_forcing(
    sequence: &mut EngineSequence,
    ids: &[u32],
    watch: &mut dyn Watch,
) -> Result<TeacherForcing, EngineError> {
    let (chunk, vocabulary) = {
        let engine = sequence.engine();
        (engine.options().chunk_tokens.max(1), engine.shape().vocab)
    };
    // The last id has nobody to predict.
    let fed = &ids[..ids.len().saturating_sub(1)];
    watch.begin(Phase::Prefill, 0, fed.len())?;
    let mut matches = 0;
    for (index, part) in fed.chunks(chunk).enumerate() {
        let logits = sequence.feed(part)?;
        let rows = logits.chunks_exact(vocabulary);
        let next = &ids[index * chunk + 1..];
        let right = rows.zip(next).filter(|(row, id)| choose(row).0 == **id);
        matches += right.count();
    }
    Ok(TeacherForcing {
        tf_positions: fed.len(),
        tf_matches: matches,
        tf_agreement: matches as f64 / fed.len().max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal logits: the lower id, with a margin of nothing.
    #[test]
    fn the_lowest_of_equals_and_the_distance_to_the_next() {
        assert_eq!(choose(&[1.0, 3.0, 3.0, 2.0]), (1, 0.0));
        assert_eq!(choose(&[4.0, 1.0, 3.5]), (0, 0.5));
        assert_eq!(choose(&[-2.0, -1.0]), (1, 1.0));
        assert_eq!(choose(&[7.0]), (0, 0.0));
    }
}
