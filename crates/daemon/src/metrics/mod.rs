//! The counters of a daemon, in one file that every process of its user can read: while it runs, without its
//! help, and after it died.
//!
//! ```text
//! byte 0 ┌──────────────────────────────────────────────┐ 256 B, before the file gets its name
//!        │ magic │ version, layout │ who, when │ state  │
//!    256 ├──────────────────────────────────────────────┤ one section per thread of the daemon
//!        │ counters, 64 words                           │
//!        │ histograms: sum, 592 buckets each            │
//!        │ samples: a ring of 2048 x 6 words            │
//!        └──────────────────────────────────────────────┘
//! ```
//!
//! A section has one writer, so writing is a load, an addition and a store, all relaxed: no locked
//! instruction and no fence. A reader copies the file and believes nothing: what it may find is a
//! mixture of moments some nanoseconds apart, so sums may be off by what happened meanwhile, and a
//! sample that was being written fails its check word and is left out.
//!
//! Events per call are counted in private memory first ([`Tally`]), and get into the file once a
//! millisecond and before the daemon sleeps. So much is lost of a daemon that is killed.
//!
//! Phases are timed in one of so many turns of the loop ([`LoopTimer`]). What that costs, measured by
//! `cargo bench -p copyrpc-daemon --bench metrics` on a virtual core of an AMD EPYC (Zen 4):
//!
//! | | ns |
//! |---|---|
//! | one addition to a counter | 0.6 |
//! | one value of a distribution | 4.5 |
//! | the same value again | 0.8 |
//! | a turn that counts four things, untimed | 2.5 |
//! | the same, all five phases timed in 1 of 1024 turns (the default) | 3.1 |
//! | in 1 of 64 | 6.2 |
//! | in every turn | 200 |
//!
//! So the default costs a turn 0.6 ns. Others used the machine, too.

mod counters;
mod histogram;
mod layout;
mod reader;
mod recorder;
pub mod render;
mod tally;

pub use counters::{Counter, CounterKind, Phase, Timing};
pub use histogram::{BUCKETS, Histogram, bucket_of, upper_bound};
pub use layout::{LAYOUT, Life, SAMPLES, VERSION, file_bytes};
pub use reader::{DaemonState, MetricsSample, ReadError, Section, Snapshot};
pub use recorder::{Lap, LoopTimer, MetricsError, MetricsFile, Recorder};
pub use tally::Tally;
