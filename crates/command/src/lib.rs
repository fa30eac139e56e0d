//! Parts that the programs `copyrpc` and `copyrpc-lab` share.
//!
//! ```text
//!  knobs ─▶ flags   every setting, and a flag for each
//!  launch           rank, size and place to meet, from knobs and launcher
//!  nic              the selected NIC
//!  exit             errors to exit codes
//!  output, table    results on standard output, lines on standard error
//!  logs             the filter of log lines
//!  interrupt        signals that ask for the end
//! ```

#![forbid(unsafe_code)]
// They panic where no process reads any more; `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod exit;
pub mod flags;
pub mod interrupt;
pub mod knobs;
pub mod launch;
pub mod logs;
pub mod nic;
pub mod output;
pub mod table;
