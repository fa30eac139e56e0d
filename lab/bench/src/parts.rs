//! The parts of a call by way of two daemons, each measured beside the whole.

use measure::results::Results;

use crate::{
    delegated::{DelegatedCalls, LongService, Shape},
    job::Job,
    plan::{self, IpcGrid, LINE_ROUND_TRIP, Measurement, Planned},
    results::Metric,
    workers::switches::Grid,
};

/// Bytes of an answer.
const ANSWER_BYTES: usize = 56;
/// Between a process and what it calls over shared memory; between two workers.
const PARTS: [&str; 2] = ["ipc/round-trip/56B", "rpc/round-trip/56B"];
const WHOLE: &str = "daemons/remote/function/round-trip/56B";

/// The cells, and before each what it is compared with, behind `cells`.
#[must_use]
pub fn behind(mut cells: Vec<Planned>) -> Vec<Planned> {
    let [ipc, rpc] = PARTS;
    let ipc = plan::select(plan::ipc(false, &IpcGrid::default()), ipc);
    let rpc = plan::select(plan::rpc(false, &Grid::default()), rpc);
    let calls = DelegatedCalls {
        answer_bytes: ANSWER_BYTES,
        answers: LongService::Function,
        is_local: false,
        shape: Shape::RoundTrip,
    };
    let whole = Measurement::Together(Job::Delegated(calls));
    let whole = Planned::new(WHOLE.to_owned(), Metric::RoundTrip, whole).against(LINE_ROUND_TRIP);
    for planned in ipc.into_iter().chain(rpc).chain([whole]) {
        if cells.iter().all(|cell| cell.cell.name != planned.cell.name) {
            cells.push(planned);
        }
    }
    cells
}

/// What the parts explain of the whole, if all three were measured.
#[must_use]
pub fn explained(results: &Results) -> Option<String> {
    let median = |cell: &str| {
        let row = results.rows.iter().find(|row| row.cell == cell && row.is_of_all())?;
        Some(row.summary.median)
    };
    let [ipc, rpc] = PARTS.map(median);
    let (ipc, rpc, whole) = (ipc?, rpc?, median(WHOLE)?);
    let share = 100.0 * (ipc + rpc) / whole;
    Some(format!(
        "a call by way of two daemons takes {whole:.0} ns: {ipc:.0} ns between processes and {rpc:.0} ns between workers \
         explain {share:.0} % of it; the rest are turns of both loops, and changes of a core that a daemon shares"
    ))
}

#[cfg(test)]
mod tests {
    use measure::{
        results::{Header, Row},
        stats::Summary,
    };

    use super::*;

    #[test]
    fn the_parts_are_said_where_all_were_measured() {
        let row = |(cell, median): (&str, f64)| Row {
            cell: cell.to_owned(),
            regime: measure::regime::Regime::All.to_string(),
            summary: Summary { median, ..Summary::default() },
            ..Row::default()
        };
        let rows = [(PARTS[0], 300.0), (PARTS[1], 900.0), (WHOLE, 2000.0)].map(row).to_vec();
        let mut results =
            Results { header: Header::default(), rows, pace_change: None, notes: Vec::new() };
        let said = explained(&results).unwrap();
        assert!(said.contains("takes 2000 ns: 300 ns") && said.contains("explain 60 %"), "{said}");
        results.rows.pop();
        assert_eq!(explained(&results), None);
    }

    #[test]
    fn every_part_is_a_cell_and_so_is_the_whole() {
        let cells = behind(plan::daemons(true));
        for name in PARTS.into_iter().chain([WHOLE]) {
            assert_eq!(cells.iter().filter(|planned| planned.cell.name == name).count(), 1);
        }
    }
}
