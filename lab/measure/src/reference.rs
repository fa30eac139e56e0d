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

/// A ConnectX-7 that talks to itself, two threads of a Xeon Gold 6530 (copyrpc performance analysis of 2026-02-08).
/// Bodies of 32 B; times per operation in ns.
#[derive(Clone, Copy, Debug)]
pub struct LoopbackReference {
    /// Inline SENDs over RC, many in flight.
    pub send: f64,
    /// SENDs over RC with a doorbell (BlueFlame) each.
    pub send_doorbell_each: f64,
    /// WRITEs with immediate, many in flight.
    pub write_imm: f64,
    /// SENDs over UD, many in flight.
    pub ud_send: f64,
    /// Round trip over RC.
    pub round_trip: f64,
    /// Round trip over UD.
    pub ud_round_trip: f64,
    /// Round trip of a call with one endpoint.
    pub call: f64,
    /// A call with one endpoint and 32 in flight.
    pub call_of_32: f64,
    /// Round trip of a call over eRPC.
    pub erpc_call: f64,
    /// Calls in flight of one client over eRPC, and the time of one.
    pub erpc_calls: [(u16, f64); 4],
}

/// All of it.
pub const LOOPBACK: LoopbackReference = LoopbackReference {
    send: 50.7,
    send_doorbell_each: 129.1,
    write_imm: 56.4,
    ud_send: 49.9,
    round_trip: 2970.0,
    ud_round_trip: 3050.0,
    call: 3760.0,
    call_of_32: 169.9,
    erpc_call: 4510.0,
    erpc_calls: [(8, 691.0), (16, 375.0), (64, 161.0), (256, 152.0)],
};
