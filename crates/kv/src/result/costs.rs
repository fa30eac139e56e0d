//! Where the CPU time of a cell went, and how much moved at a time: what explains its throughput.

use bench::report::number;

use super::Cell;
use crate::backend::Kind;

/// What [`costs`] are.
pub(super) const HEADINGS: [&str; 6] = [
    "clients' CPU ns/call",
    "daemons' CPU ns/call",
    "requests/turn",
    "messages/batch",
    "turns/request",
    "of these in vain",
];

/// What they mean.
pub(super) const MEANING: &str = "requests/turn: of clients, in daemon turns that took some; messages/batch \
                                  and turns: of delegating daemons";

/// One text for each of [`HEADINGS`]; empty where a backend does not count it.
pub(super) fn costs(cell: &Cell) -> [String; 6] {
    let (total_ns, share) = (cell.cpu_per_call_ns.median, cell.ranks_cpu_share.median);
    let counters = &cell.counters;
    let count = |name: &str| counters.total(&[name]) as f64;
    let ratio =
        |over: f64, under: f64| if under > 0.0 { number(over / under) } else { String::new() };
    let mean_batch = counters.mean_batch().map_or_else(String::new, number);
    let (per_turn, per_batch) = match cell.config.backend {
        Kind::Delegation => {
            let turns = counters.distributions.get("requests_per_loop");
            let turns = turns.map_or(0, |turns| turns.values().sum::<u64>());
            (ratio(count("daemon requests_ipc"), turns as f64), mean_batch)
        }
        Kind::Direct | Kind::Tcp => (mean_batch, String::new()),
    };
    let loops = count("daemon loops");
    let requests = count("daemon requests_ipc") + count("daemon incoming");
    [
        number(total_ns * (1.0 - share)),
        number(total_ns * share),
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
        assert_eq!(costs(&cell)[3..], ["", "", ""], "TCP has no daemons that count");
        cell.config.backend = Kind::Delegation;
        cell.counters = crate::backend::Counters::default();
        cell.counters.batch_sizes.insert(8, 3);
        let named = [("requests_ipc", 60), ("incoming", 40), ("loops", 50), ("busy_loops", 20)];
        let named = named.map(|(name, count)| (format!("daemon {name}"), count));
        cell.counters.named.extend(named);
        cell.counters.distributions.insert("requests_per_loop".into(), [(2, 5), (5, 10)].into());
        let expected = [4.0, 8.0, 0.5, 0.6].map(number);
        assert_eq!(costs(&cell)[2..], expected);
    }
}
