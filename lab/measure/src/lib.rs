//! Parts that all benchmarks share: how cells take turns, what their ratios are, and how results are shown.
//!
//! ```text
//! paired        ratios of two cells, from samples of the same rounds, with their intervals
//! regime        classes of the pace, for those who want numbers by pace
//! ping_pong     the probe: a round trip of two cache lines between two cores
//! shared_words  the words that two processes, or two threads, of a measurement share
//! cores         which two cores measure               date       when a number was measured
//! rounds        how many rounds there are: a number, or as many as ratios take
//! schedule      interleaves cells, each sample between two probes
//! events        what the processor counts meanwhile: cycles, instructions, cache misses
//! reference     numbers of others, on hardware
//! progress      a bar, or lines in a file, while samples are taken
//! stats         samples of one regime to median, minimum, maximum
//! results       cells, rows and their circumstances: the file of JSON lines, written and read
//! table         one table as text, Markdown, CSV
//! report        sections of tables and charts: for a terminal, a document, or one HTML page
//! ```
//!
//! # Architecture invariant
//!
//! No sample is left out, and a ratio is that of two samples of the same round.

#![forbid(unsafe_code)]

pub mod cores;
pub mod date;
pub mod events;
mod header;
pub mod number;
pub mod paired;
pub mod ping_pong;
pub mod progress;
pub mod reference;
pub mod regime;
pub mod report;
pub mod results;
pub mod rounds;
pub mod schedule;
pub mod shared_words;
pub mod stats;
pub mod table;
