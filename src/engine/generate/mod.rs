//! Generation: greedy ids from a prompt, step by step, and the report of a run.
//!
//! [`run`] is the loop, [`state_file`] saved states, [`report`] the report of a run, [`limits`]
//! that of the same run under several memory limits. It does not know where weights come from or
//! how much memory they use.

mod document;
pub mod limits;
pub mod report;
pub mod run;
pub mod state_file;
