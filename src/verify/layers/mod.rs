//! The proof on a checkpoint: layer by layer, the engine and the f64 reference read the same bytes
//! through separate readers and have to agree, stage by stage.
//!
//! [`range`] says which layers, [`input`] what they are fed, [`subject`] what is judged (our
//! engine, or the dump of another), [`judge`] how, [`run`] in which order; [`journal`] lets a run
//! resume, [`merge`] splits one over machines and joins its reports. Each layer is fed T tokens as
//! a prefill and then single tokens on the carried state, from the empty state; after the prefill
//! another sequence takes a turn, which must leave no trace.
//!
//! The verdict is local: every stage recomputed from the subject's own inputs to it. The report
//! adds the chained comparison: the whole layer in f64 from the layer's input, within eight times
//! the measured floor (the same with every stored activation rounded to the subject's precision).
//! [`repeat`] recomputes narrow layers, and the last call of wide ones, another way, which must
//! change no bit. [`kernels`] runs the engine's single operations on the shipped fixtures first. On
//! a shipped set, [`ratchet`] compares both with the recorded ratios.

pub mod input;
pub mod journal;
pub mod judge;
pub mod kernels;
pub mod merge;
pub mod range;
pub mod ratchet;
pub mod repeat;
pub mod run;
pub mod sources;
pub mod subject;
