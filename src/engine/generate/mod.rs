//! Generation: greedy ids from a prompt, one step after the other, and what a run reports.
//!
//! [`run`] is the loop, [`state_file`] saved states, [`report`] the report of a run, [`limits`]
//! that of the same run under several memory limits. Where weights come from and how much memory
//! they have is none of its business.

mod document;
pub mod limits;
pub mod report;
pub mod run;
pub mod state_file;
