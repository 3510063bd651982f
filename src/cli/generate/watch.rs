//! Observes generation: prints the step table to stderr, writes logits and trace to their files.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};

use super::super::output::{CommandError, unwritable};
use super::super::pending_file::PendingFile;
use super::text::TextOutput;
use super::{GenerateArgs, Pending, eprint_text};
use k3_cache::trace::Phase;
use k3_cache::trace::v1::Header;
use k3_core::exit::Exit;
use k3_core::host::interrupt::Interrupt;
use k3_engine::generate::report::StepRow;
use k3_engine::generate::run::{Step, Watch};
use k3_engine::model::EngineError;
use k3_engine::stream::StreamedEngine;
use k3_engine::stream::experts::ExpertCounters;
use k3_engine::stream::layers::TrunkCounters;
use k3_engine::stream::recorder::Recorder;

/// Files that the run writes, made before it.
#[derive(Debug)]
pub struct Outputs {
    logits: Option<PendingFile>,
    trace: Option<PendingFile>,
}

impl Outputs {
    /// Creates them.
    pub fn create(args: &GenerateArgs) -> Result<Self, CommandError> {
        let make = |path: &Option<std::path::PathBuf>| {
            path.as_deref().map(PendingFile::create).transpose()
        };
        Ok(Self { logits: make(&args.dump_logits)?, trace: make(&args.dump_trace)? })
    }
}

/// The observer of a run.
#[derive(Debug)]
pub struct RunWatch<'a> {
    streamed: &'a StreamedEngine,
    outputs: Outputs,
    logits: Option<BufWriter<File>>,
    steps: Vec<StepRow>,
    before: (ExpertCounters, TrunkCounters),
    interrupt: Interrupt,
    text: Option<TextOutput<'a>>,
    /// Whether text and table share a terminal: the table then waits for the end of the text.
    is_shared: bool,
    /// Whether stdout is the only output: if it closes, the run stops.
    only_text: bool,
}

impl<'a> RunWatch<'a> {
    /// Starts observing.
    pub fn new(
        streamed: &'a StreamedEngine,
        outputs: Outputs,
        header: Header,
        interrupt: Interrupt,
        (text, only_text): (Option<TextOutput<'a>>, bool),
    ) -> Result<Self, CommandError> {
        if let Some(file) = &outputs.trace {
            if header.shape.first_bad_field().is_some() {
                let error = anyhow::anyhow!("--dump-trace: these layers have no routed experts");
                return Err(CommandError::new(error, Exit::Usage));
            }
            let recorder = Recorder::create(file.path(), Box::new(file.writer()?), &header);
            let recorder = recorder.map_err(|error| EngineError::source("trace", error))?;
            streamed.experts.record(recorder);
        }
        let logits = outputs.logits.as_ref().map(PendingFile::writer);
        Ok(Self {
            streamed,
            logits: logits.transpose()?.map(BufWriter::new),
            outputs,
            steps: Vec::new(),
            before: (ExpertCounters::default(), TrunkCounters::default()),
            interrupt,
            is_shared: text.is_some() && io::stdout().is_terminal() && io::stderr().is_terminal(),
            text,
            only_text,
        })
    }

    /// Whether the run stopped because stdout was closed.
    #[must_use]
    pub fn reader_left(&self) -> bool {
        self.only_text && self.text.as_ref().is_some_and(TextOutput::reader_left)
    }

    /// The ids chosen so far.
    #[must_use]
    pub fn chosen(&self) -> Vec<u32> {
        self.steps.iter().filter_map(|row| row.step.id).collect()
    }

    /// Ends an interrupted run: ends its text, discards the logits and trace files, returns its
    /// steps.
    pub fn give_up(mut self) -> Result<Vec<StepRow>, CommandError> {
        self.end_text()?;
        Ok(self.steps)
    }

    /// Ends the text, then shows the table that waited for it.
    fn end_text(&mut self) -> Result<(), CommandError> {
        let ended = self.text.take().map_or(Ok(()), TextOutput::finish);
        ended?;
        if self.is_shared {
            let rows = self.steps.iter().enumerate();
            let table = StepRow::live_table();
            let rows: String =
                rows.map(|(index, row)| table.lines_of(&row.live_row(index))).collect();
            eprint_text(&format!("{}\n{rows}", table.head()));
        }
        Ok(())
    }

    /// Finishes text, logits and trace; the files still have to be renamed.
    pub fn finish(mut self) -> Result<(Vec<StepRow>, Pending), CommandError> {
        self.end_text()?;
        if let (Some(logits), Some(file)) = (&mut self.logits, &self.outputs.logits) {
            let flushed = logits.flush();
            flushed.map_err(|reason| unwritable(file.path(), &reason))?;
        }
        let ended = self.streamed.experts.finish_record();
        ended.map_err(|error| EngineError::source("trace", error))?;
        let files = [self.outputs.logits, self.outputs.trace];
        Ok((self.steps, files.into_iter().flatten().collect()))
    }

    fn counters(&self) -> (ExpertCounters, TrunkCounters) {
        (self.streamed.experts.counters(), self.streamed.layers.counters())
    }
}

impl Watch for RunWatch<'_> {
    fn begin(&mut self, phase: Phase, first: usize, count: usize) -> Result<(), EngineError> {
        if self.interrupt.is_set() || self.reader_left() {
            return Err(EngineError::Interrupted);
        }
        if self.steps.is_empty() && !self.is_shared {
            eprint_text(&format!("{}\n", StepRow::live_table().head()));
        }
        self.interrupt.begin(&format!("step {}", self.steps.len()));
        self.before = self.counters();
        let begun = self.streamed.experts.begin_step(phase, first, count);
        begun.map_err(|error| EngineError::source("trace", error))
    }

    fn done(&mut self, step: &Step, logits: &[f32]) -> Result<(), EngineError> {
        let (experts, trunk) = self.counters();
        let (experts_before, trunk_before) = self.before;
        let (now, before) = (experts.table, experts_before.table);
        let waited = experts.wait_nanoseconds + trunk.wait_nanoseconds
            - experts_before.wait_nanoseconds
            - trunk_before.wait_nanoseconds;
        let row = StepRow {
            step: *step,
            requests: now.hits + now.misses - before.hits - before.misses,
            hits: now.hits - before.hits,
            evictions: now.evictions - before.evictions,
            expert_bytes: experts.read_bytes - experts_before.read_bytes,
            trunk_bytes: trunk.used_bytes - trunk_before.used_bytes,
            wait_seconds: waited as f64 / 1e9,
        };
        if !self.is_shared {
            eprint_text(&StepRow::live_table().lines_of(&row.live_row(self.steps.len())));
        }
        self.steps.push(row);
        let file = self.outputs.logits.as_ref();
        if let (Some(sink), Some(file), true) = (&mut self.logits, file, step.id.is_some()) {
            for logit in logits {
                let written = sink.write_all(&logit.to_le_bytes());
                written.map_err(|error| {
                    EngineError::source(&format!("{}: cannot write", file.path().display()), error)
                })?;
            }
        }
        if let (Some(text), Some(id)) = (&mut self.text, step.id) {
            text.push(id)?;
        }
        Ok(())
    }
}
