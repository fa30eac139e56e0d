//! Measurements of others on hardware, beside which several tools show their own numbers.
//!
//! Source of the READs over DC: A. Kalia, M. Kaminsky, D. Andersen: notes of `other/dct-bench` in repository *fasst*
//! (OSDI 2016), measured with HoTS commit 09ec57b.

/// READs over DC to random targets, as five machines with 14 threads each and Connect-IB cards had them.
#[derive(Clone, Copy, Debug)]
pub struct DcReadsReference {
    /// READs in flight per thread.
    pub window: u16,
    /// Initiators per thread.
    pub initiators: u16,
    /// Millions of READs per second and machine.
    pub mops: f64,
    /// Microseconds per READ.
    pub us: f64,
}

const fn row(window: u16, initiators: u16, mops: f64, us: f64) -> DcReadsReference {
    DcReadsReference { window, initiators, mops, us }
}

/// Every combination that was measured.
pub const DC_READS: [DcReadsReference; 13] = [
    row(16, 1, 9.14, 24.4),
    row(16, 2, 13.8, 16.2),
    row(16, 4, 22.0, 10.2),
    row(16, 6, 22.9, 9.7),
    row(16, 8, 22.6, 9.8),
    row(16, 16, 20.0, 11.2),
    row(32, 1, 9.1, 49.0),
    row(32, 2, 13.7, 32.8),
    row(32, 4, 20.1, 22.3),
    row(32, 6, 21.9, 20.4),
    row(32, 8, 22.1, 20.3),
    row(32, 16, 20.9, 21.3),
    row(32, 32, 18.4, 24.3),
];
