//! Where the CPU time of a cell went, and how much moved at a time: what explains its throughput.

use measure::{number::number, stats::Summary};

use super::ReducedCell;
use crate::backend::Kind;

/// Headings of the columns of [`costs`].
pub(crate) const HEADINGS: [&str; COLUMNS] = [
    "client ns",
    "daemon ns",
    "client switches",
    "daemon switches",
    "system calls",
    "requests/turn",
    "messages/batch",
    "turns/request",
    "in vain",
];
/// How many there are.
pub(crate) const COLUMNS: usize = 9;

/// Legend of the columns.
pub(crate) const MEANING: &str = "per call: CPU time, times that a core went to another process, and system calls \
                                  made in loops; of delegating daemons: messages/batch, and turns, some in vain";

/// Counters that are system calls: cores offered, sleeps, sockets looked at and used.
const SYSTEM_CALLS: [&str; 6] = ["yields", "waits", "sleeps", "looks", "reads", "writes"];

/// One text for each of [`HEADINGS`]; empty where a backend does not count it, or nothing was answered.
pub(crate) fn costs(cell: &ReducedCell) -> [String; COLUMNS] {
    let share = cell.ranks_cpu_share.median;
    let median = |summary: Option<Summary>| summary.map(|summary| summary.median);
    let total_ns = median(cell.cpu_per_call_ns);
    let shown = |value: Option<f64>| value.map_or_else(String::new, number);
    let counters = &cell.counters;
    let count = |name: &str| counters.total(&[name]) as f64;
    let ratio =
        |over: f64, under: f64| if under > 0.0 { number(over / under) } else { String::new() };
    let mean_batch = counters.mean_batch().map_or_else(String::new, number);
    let (per_turn, per_batch) = match cell.config.backend {
        Kind::Delegation | Kind::Provider => {
            let turns = counters.distributions.get("requests_per_loop");
            let turns = turns.map_or(0, |turns| turns.values().sum::<u64>());
            (ratio(count("daemon requests_ipc"), turns as f64), mean_batch)
        }
        Kind::Direct | Kind::Erpc | Kind::Scalerpc | Kind::UcxAm | Kind::Tcp => {
            (mean_batch, String::new())
        }
    };
    let calls_of = |side: &str| {
        let names = SYSTEM_CALLS.map(|name| format!("{side} {name}"));
        counters.total(&names.each_ref().map(String::as_str)) as f64
    };
    // Clients count from their first call on, daemons inside the interval.
    let system_calls = (cell.answers > 0 && cell.calls > 0)
        .then(|| calls_of("client") / cell.calls as f64 + calls_of("daemon") / cell.answers as f64);
    let loops = count("daemon loops");
    let requests = count("daemon requests_ipc") + count("daemon incoming");
    [
        shown(total_ns.map(|ns| ns * (1.0 - share))),
        shown(total_ns.map(|ns| ns * share)),
        shown(median(cell.clients_switches)),
        shown(median(cell.ranks_switches)),
        shown(system_calls),
        per_turn,
        per_batch,
        ratio(loops, requests),
        ratio(loops - count("daemon busy_loops"), loops),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{reduce, samples};

    #[test]
    fn a_cell_says_what_its_calls_cost_and_how_many_moved_together() {
        let mut cell = reduce(&samples::results()).remove(0);
        assert_eq!(
            costs(&cell)[..2],
            [number(3000.0), number(1000.0)],
            "a quarter is the daemons'"
        );
        assert_eq!(costs(&cell)[2..4], [number(0.25), number(0.1)]);
        assert_eq!(costs(&cell)[6..], ["", "", ""], "TCP has no daemons that count");
        cell.config.backend = Kind::Delegation;
        cell.counters = crate::backend::Counters::default();
        cell.counters.batch_sizes.insert(8, 3);
        cell.counters.named.insert("client yields".into(), 2 * cell.calls);
        cell.counters.named.insert("daemon waits".into(), cell.answers);
        let named = [("requests_ipc", 60), ("incoming", 40), ("loops", 50), ("busy_loops", 20)];
        let named = named.map(|(name, count)| (format!("daemon {name}"), count));
        cell.counters.named.extend(named);
        cell.counters.distributions.insert("requests_per_loop".into(), [(2, 5), (5, 10)].into());
        let expected = [3.0, 4.0, 8.0, 0.5, 0.6].map(number);
        assert_eq!(costs(&cell)[4..], expected);
    }
}
