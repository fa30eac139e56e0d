//! Rows of one length: each way of a call, and on the NIC `tcp` a bare stream below them. Times of all rows are taken in
//! the same rounds, so that their ratios are of pairs.

use measure::{
    cores::Cores,
    paired::{ROUNDS_MIN, Ratio},
    schedule::shuffled,
};
use nics::{OpenError, Selection};

use super::{
    LongCallCosts, LongCallWay, long_call_costs, long_call_times_ns, percentiles,
    stream::stream_times_ns,
};
use crate::error::Error;

/// The NIC whose floor is a stream.
const STREAMED_NIC: &str = "tcp";

/// Name of the row of the bare stream.
pub const STREAM: &str = "stream";

/// What calls of one length cost by one way. What was not taken is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct LongCallRow {
    /// The way, or [`STREAM`].
    pub name: &'static str,
    /// Length of each request and of its answer.
    pub len_bytes: usize,
    /// Counts.
    pub costs: Option<LongCallCosts>,
    /// Time of a call with each side on its own core, in ns: the tenth percentile, and the median.
    pub time_ns: Option<[u64; 2]>,
    /// Median time over that of the stream in the same round.
    pub of_stream: Option<Ratio>,
}

/// The calls of a row; `None`: messages through a bare stream.
type Way = Option<LongCallWay>;

/// The times of a row.
#[derive(Default)]
struct Times {
    all_ns: Vec<u64>,
    /// Median of each round.
    medians_ns: Vec<f64>,
}

/// Measures calls of one length by each way that carries it: counts, and times in as many rounds as a ratio needs, each
/// in an order of its own.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`Error`]: a peer did not answer rightly and in time.
pub fn long_call_rows(
    nic: &Selection,
    len_bytes: usize,
    (calls, cores): (u32, Cores),
) -> Result<Result<Vec<LongCallRow>, Error>, OpenError> {
    let ways = ways(nic, len_bytes);
    let mut rows = Vec::new();
    for way in &ways {
        let costs = match way {
            Some(way) => match long_call_costs(nic, *way, len_bytes, calls)? {
                Ok(costs) => Some(costs),
                Err(error) => return Ok(Err(error)),
            },
            None => None,
        };
        let name = name(*way);
        rows.push(LongCallRow { name, len_bytes, costs, time_ns: None, of_stream: None });
    }
    let mut times: Vec<_> = ways.iter().map(|_| Times::default()).collect();
    let rounds = u32::try_from(ROUNDS_MIN).unwrap_or(u32::MAX);
    for round in 0..ROUNDS_MIN {
        for at in shuffled(ways.len(), round) {
            let part = (calls.div_ceil(rounds), cores);
            match times_ns(nic, ways[at], len_bytes, part)? {
                Ok(taken) => times[at].add(taken),
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    let floor = ways.iter().position(Option::is_none).map(|at| times[at].medians_ns.clone());
    for (row, times) in rows.iter_mut().zip(&mut times) {
        row.time_ns = percentiles(&mut times.all_ns);
        let floor = floor.as_ref().filter(|_| row.name != STREAM);
        row.of_stream = floor.and_then(|floor| times.over(floor));
    }
    Ok(Ok(rows))
}

/// The rows of a length.
fn ways(nic: &Selection, len_bytes: usize) -> Vec<Way> {
    let mut ways: Vec<_> = [LongCallWay::Rpc, LongCallWay::Daemons, LongCallWay::Process]
        .into_iter()
        .filter(|way| way.carries(len_bytes))
        .map(Some)
        .collect();
    if nic.name() == STREAMED_NIC {
        ways.push(None);
    }
    ways
}

fn name(way: Way) -> &'static str {
    way.map_or(STREAM, LongCallWay::name)
}

/// Times of one row in one round; none, if they are not taken.
fn times_ns(
    nic: &Selection,
    way: Way,
    len_bytes: usize,
    (calls, cores): (u32, Cores),
) -> Result<Result<Vec<u64>, Error>, OpenError> {
    match way {
        Some(way) if way.is_timed() => long_call_times_ns(nic, way, len_bytes, (calls, cores)),
        Some(_) => Ok(Ok(Vec::new())),
        None => Ok(stream_times_ns(len_bytes, calls, cores)),
    }
}

impl Times {
    fn add(&mut self, mut taken_ns: Vec<u64>) {
        if let Some([_, median_ns]) = percentiles(&mut taken_ns) {
            self.medians_ns.push(median_ns as f64);
        }
        self.all_ns.append(&mut taken_ns);
    }

    /// The ratio to a floor of the same rounds.
    fn over(&self, floor_ns: &[f64]) -> Option<Ratio> {
        Ratio::of(self.medians_ns.iter().copied().zip(floor_ns.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rows(nic: &str, cores: Cores) -> Vec<LongCallRow> {
        let nic = Selection::with_settings(nic, BTreeMap::new());
        long_call_rows(&nic, 4 << 10, (6, cores)).unwrap().unwrap()
    }

    /// What was not taken is nothing, and not 0.
    #[test]
    fn a_bare_stream_is_the_floor_of_the_nic_tcp_alone() {
        // Before this thread is pinned.
        let cores = Cores::choose().unwrap();
        let rows_of_tcp = rows("tcp", cores);
        let names: Vec<_> = rows_of_tcp.iter().map(|row| row.name).collect();
        assert_eq!(names, ["rpc", "daemons", "process", STREAM]);
        for row in rows_of_tcp {
            let is_stream = row.name == STREAM;
            let is_timed = row.name != "process";
            assert_eq!(row.costs.is_some(), !is_stream, "{row:?}");
            assert_eq!(row.time_ns.is_some_and(|[low, _]| low > 0), is_timed, "{row:?}");
            assert_eq!(row.time_ns.is_some(), is_timed, "{row:?}");
            let rounds = row.of_stream.map_or(0, |ratio| ratio.rounds);
            assert_eq!(rounds, if is_timed && !is_stream { ROUNDS_MIN } else { 0 }, "{row:?}");
        }
        let has_floor = |row: &LongCallRow| row.name == STREAM || row.of_stream.is_some();
        assert!(!rows("soft", cores).iter().any(has_floor));
    }
}
