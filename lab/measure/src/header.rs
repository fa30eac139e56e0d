//! Under which circumstances numbers were taken.

use serde::{Deserialize, Serialize};

/// Version of the files that this program writes. Formats 1 and 2, whose ratios are of one pace, are read, too.
pub const FORMAT: u32 = 3;

fn first_format() -> u32 {
    1
}

/// Under which circumstances the numbers were taken: the first JSON line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`] of the program that wrote the file.
    #[serde(default = "first_format")]
    pub format: u32,
    /// Name of the benchmark.
    pub bench: String,
    /// How it was called.
    pub command: String,
    /// Version of this program.
    pub version: String,
    /// Commit it was built from, or "unknown".
    pub commit: String,
    /// `debug` or `release`.
    pub profile: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The two cores that measured: initiator, responder.
    pub pinning: String,
    /// Kernel release.
    pub kernel: String,
    /// Name of the NIC; "none" if only memory was measured.
    pub nic: String,
    /// When it began, UTC.
    pub date: String,
}
