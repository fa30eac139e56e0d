//! The cells of READs over DC, and what a cluster of Connect-IB cards had.

use measure::reference::{DC_READS, DcReadsReference};

use crate::{
    dc_reads::{DcPick, DcReads},
    job::Job,
    plan::{LINE_ROUND_TRIP, LINE_STREAM, Measurement, Planned},
    results::Metric,
};

/// Targets of what changes its target.
const TARGETS: u16 = 4;

/// Windows, initiators and targets, of which every combination is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcGrid {
    /// READs in flight.
    pub windows: Vec<u16>,
    /// Initiators.
    pub initiators: Vec<u16>,
    /// Targets.
    pub targets: Vec<u16>,
}

/// One initiator: target, window, µs per READ.
const ALONE: [(DcPick, u16, f64); 4] = [
    (DcPick::Same, 1, 1.9),
    (DcPick::Changing, 1, 2.9),
    (DcPick::Same, 16, 4.0),
    (DcPick::Changing, 16, 26.0),
];
/// All to one target, 32 in flight: initiators of each of 140 threads, M READs/s.
const INCAST: [(u16, f64); 2] = [(1, 94.6), (16, 20.1)];
/// One thread with one target per initiator, M READs/s.
const STATIC: [(u16, f64); 2] = [(1, 7.2), (16, 7.2)];

fn planned(name: String, reads: DcReads, reference: Option<f64>) -> Planned {
    let (metric, line) = match reads.is_latency {
        true => (Metric::RoundTrip, LINE_ROUND_TRIP),
        false => (Metric::Rate, LINE_STREAM),
    };
    let mut planned = Planned::new(name, metric, Measurement::Together(Job::DcReads(reads)));
    planned.cell.reference = reference;
    planned.against(line)
}

/// The cells; those of `grid` instead, if it has any.
#[must_use]
pub fn dc_reads(quick: bool, grid: &DcGrid) -> Vec<Planned> {
    if *grid != DcGrid::default() {
        return of_grid(grid);
    }
    let few = |index: usize| !quick || index.is_multiple_of(4);
    let mut cells = Vec::new();
    for (pick, window, us) in ALONE {
        let name = if pick == DcPick::Same { "same" } else { "changing" };
        let name = format!("dc-read/latency/{name}-target/window-{window}");
        let reads = DcReads { window, initiators: 1, targets: TARGETS, pick, is_latency: true };
        cells.push(planned(name, reads, Some(us * 1e3)));
    }
    for (_, row) in DC_READS.into_iter().enumerate().filter(|(index, _)| few(*index)) {
        let DcReadsReference { window, initiators, mops: rate, us } = row;
        let (pick, targets) = (DcPick::Random, TARGETS);
        for (what, is_latency, reference) in [("rate", false, rate), ("latency", true, us * 1e3)] {
            let name =
                format!("dc-read/{what}/random-target/window-{window}/{initiators}-initiators");
            let reads = DcReads { window, initiators, targets, pick, is_latency };
            cells.push(planned(name, reads, Some(reference)));
        }
    }
    for (what, cases, targets) in [("incast", INCAST, 1), ("static", STATIC, 16)] {
        for (initiators, rate) in cases {
            let name = format!("dc-read/rate/{what}/window-32/{initiators}-initiators");
            let pick = DcPick::Same;
            let reads = DcReads { window: 32, initiators, targets, pick, is_latency: false };
            cells.push(planned(name, reads, Some(rate)));
        }
    }
    cells
}

/// Each combination with the same and with changing targets.
fn of_grid(grid: &DcGrid) -> Vec<Planned> {
    let or =
        |values: &[u16], default| if values.is_empty() { vec![default] } else { values.to_vec() };
    let mut cells = Vec::<Planned>::new();
    for &window in &or(&grid.windows, 16) {
        for &initiators in &or(&grid.initiators, 1) {
            for &targets in &or(&grid.targets, TARGETS) {
                for (name, pick) in [
                    ("same", DcPick::Same),
                    ("changing", DcPick::Changing),
                    ("random", DcPick::Random),
                ] {
                    let name = format!(
                        "dc-read/rate/{name}-target/window-{window}/{initiators}-initiators/{targets}-targets"
                    );
                    let reads = DcReads { window, initiators, targets, pick, is_latency: false };
                    if cells.iter().all(|cell| cell.cell.name != name) {
                        cells.push(planned(name, reads, None));
                    }
                }
            }
        }
    }
    cells
}
