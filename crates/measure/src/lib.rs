//! Parts that all benchmarks share: when a sample counts, how cells take turns, and how results
//! are shown.
//!
//! ```text
//! regime        classes of the machine's pace, from the run's own probes
//! ping_pong     the probe: a round trip of two cache lines between two cores
//! shared_words  the words that two processes, or two threads, of a measurement share
//! cores         which two cores measure               machine    what else a number depends on
//! schedule      interleaves cells, each sample between two probes
//! stats         samples of one regime to median, minimum, maximum
//! results       cells, rows and their circumstances: the file of JSON lines, written and read
//! table         one table as text, Markdown, CSV
//! report        sections of tables and charts: for a terminal, a document, or one HTML page
//! ```
//!
//! # Architecture invariant
//!
//! No number leaves this crate without the regime it was taken in, and no ratio mixes two regimes.

#![forbid(unsafe_code)]

pub mod cores;
mod header;
pub mod machine;
pub mod number;
pub mod ping_pong;
pub mod regime;
pub mod report;
pub mod results;
pub mod schedule;
pub mod shared_words;
pub mod stats;
pub mod table;
