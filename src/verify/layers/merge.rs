//! A run split over machines: the layers of each part, and joining the reports of the parts.
//!
//! Parts are runs of neighbouring layers, as even as can be, so that a part needs few files and a
//! chain little before it. Apart from provenance, a joined report is that of the undivided run;
//! parts that do not belong together are refused.

use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use super::sources::Sources;
use crate::outcome::Verdict;
use crate::report::layers::{LayerRow, LayersProvenance, LayersReport, Part, Question};

/// Why parts cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MergeError {
    /// Reports that are no parts of one run.
    #[error("{0}")]
    Differs(String),
    /// Parts missing.
    #[error("{0}")]
    Gap(String),
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, of)| {
            let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
            (digits(index) && digits(of)).then_some(())?;
            Some((index.parse().ok()?, of.parse().ok()?))
        });
        match numbers {
            Some((index, of)) if 1 <= index && index <= of => Ok(Self { index, of }),
            _ => Err("expected i/N with i from 1 to N".to_owned()),
        }
    }
}

/// Places of part `part` among `count` layers: neighbouring ones, sizes at most one apart.
#[must_use]
pub fn places(count: usize, part: Part) -> Range<usize> {
    (part.index - 1) * count / part.of..part.index * count / part.of
}

fn differs<T>(what: String) -> Result<T, MergeError> {
    Err(MergeError::Differs(what))
}

/// Joins reports of parts; each comes with the name of its file.
///
/// # Errors
/// [`MergeError`].
pub fn merge(mut parts: Vec<(String, LayersReport)>) -> Result<LayersReport, MergeError> {
    for (file, report) in &parts {
        if report.part.is_none() {
            return differs(format!("{file}: the report of an undivided run, not of a part"));
        }
    }
    parts.sort_by_key(|(_, report)| report.part.map(|part| part.index));
    let Some((first_file, first)) = parts.first().cloned() else {
        return differs("no part report was given".to_owned());
    };
    let of = first.part.map_or(0, |part| part.of);
    let mut previous: Option<(usize, String)> = None;
    for (file, report) in &parts {
        let Some(part) = report.part else { continue };
        alike(file, report, &first_file, &first)?;
        if let Some((index, other)) = previous.filter(|(index, _)| *index == part.index) {
            return differs(format!("{file}: part {index} is already in {other}"));
        }
        previous = Some((part.index, file.clone()));
        let expected = first.question.layers[places(first.question.layers.len(), part)].to_vec();
        if report.selected != expected {
            let (index, got) = (part.index, &report.selected);
            let what = format!("should hold layers {expected:?}, it has {got:?}");
            return differs(format!("{file}: part {index} of {of} {what}"));
        }
    }
    let there = |index: &usize| {
        let mut indices = parts.iter().filter_map(|(_, report)| report.part);
        indices.any(|part| part.index == *index)
    };
    let missing: Vec<usize> = (1..=of).filter(|index| !there(index)).collect();
    if !missing.is_empty() {
        let count = missing.len();
        return Err(MergeError::Gap(format!("parts missing: {count} of {of}: {missing:?}")));
    }
    let mut whole = first;
    whole.part = None;
    whole.selected.clone_from(&whole.question.layers);
    (whole.rows, whole.outstanding) = (Vec::new(), Vec::new());
    whole.provenance = LayersProvenance::default();
    for (file, report) in parts {
        whole.sources.shards.extend(report.sources.shards);
        if let (Some(all), Some(more)) = (&mut whole.reference_sources, report.reference_sources) {
            all.shards.extend(more.shards);
        }
        // Each machine has run the kernels; the first of the worst speaks for all.
        let kernels = report.kernels.or_else(|| unsaid(&whole.question));
        if badness(kernels.as_ref()) > badness(whole.kernels.as_ref()) {
            whole.kernels = kernels;
        }
        if report.question.ratchet.is_none() {
            whole.question.ratchet = None;
        }
        whole.rows.extend(report.rows);
        whole.outstanding.extend(report.outstanding);
        let provenance = report.provenance;
        whole.provenance.run.seconds += provenance.run.seconds;
        whole.provenance.row_seconds.extend(provenance.row_seconds);
        whole.provenance.run.version = provenance.run.version;
        whole.provenance.run.platform = provenance.run.platform;
        whole.provenance.kernel_path = provenance.kernel_path;
        whole.provenance.again = provenance.again;
        whole.provenance.run.inputs.push(file);
    }
    whole.conclude();
    Ok(whole)
}

/// A fail is worse than what did not run, and that is worse than a pass.
fn badness(kernels: Option<&LayerRow>) -> u8 {
    match kernels.map(|row| row.verdict) {
        None | Some(Verdict::Pass) => 0,
        Some(Verdict::Fail) => 2,
        Some(_) => 1,
    }
}

/// A part of our engine that says nothing of its kernels has not run them.
fn unsaid(question: &Question) -> Option<LayerRow> {
    let problem = || "a part does not report them".to_owned();
    (question.subject == "engine").then(|| LayerRow::not_run("kernels", None, problem()))
}

/// Refuses parts of different runs.
fn alike(
    file: &str,
    report: &LayersReport,
    first_file: &str,
    first: &LayersReport,
) -> Result<(), MergeError> {
    // A part sees its own shards only: whether all of them are those of a set that ships shows in
    // the whole.
    let asked = |report: &LayersReport| Question { ratchet: None, ..report.question.clone() };
    let (ours, theirs) = (&asked(report), &asked(first));
    let same_count = report.part.map(|part| part.of) == first.part.map(|part| part.of);
    let input =
        |q: &Question| (q.input.clone(), q.seed, q.ids.clone(), q.dump.clone(), q.calls.clone());
    let what = if report.schema != first.schema {
        Some("the schema".to_owned())
    } else if ours.program != theirs.program {
        Some("the program's version".to_owned())
    } else if !same_count {
        Some("the number of parts".to_owned())
    } else if input(ours) != input(theirs) {
        Some("the input".to_owned())
    } else if ours != theirs {
        Some("the question".to_owned())
    } else {
        conflict(&report.sources, &first.sources).or_else(|| {
            match (&report.reference_sources, &first.reference_sources) {
                (Some(ours), Some(theirs)) => conflict(ours, theirs),
                (None, None) => None,
                _ => Some("the reference's checkpoint".to_owned()),
            }
        })
    };
    match what {
        None => Ok(()),
        Some(what) => differs(format!("{file}: {what} differs from {first_file}")),
    }
}

/// A file that both read and that was not the same.
fn conflict(ours: &Sources, theirs: &Sources) -> Option<String> {
    if ours.config != theirs.config {
        return Some("the checkpoint's config.json".to_owned());
    }
    let differs = |(name, digest): &(&String, &String)| {
        theirs.shards.get(*name).is_some_and(|other| other != *digest)
    };
    let shard = ours.shards.iter().find(differs);
    shard.map(|(name, _)| format!("the checkpoint's {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A split that loses or doubles a layer at a seam.
    #[test]
    fn parts_are_neighbours_and_even() {
        for (count, of) in [(93, 16), (13, 4), (4, 4), (2, 5), (1, 1)] {
            let sizes: Vec<_> = (1..=of).map(|index| places(count, Part { index, of })).collect();
            assert!(sizes.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((sizes[0].start, sizes[of - 1].end), (0, count));
            let lengths = || sizes.iter().map(ExactSizeIterator::len);
            assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_part_is_typed_as_one_of_n() {
        assert_eq!("1/4".parse(), Ok(Part { index: 1, of: 4 }));
        for wrong in ["0/4", "5/4", "1", "/", "1/", "/4", "+1/4", "1/0", "a/b", "1/4/2", " 1/4"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }
}
