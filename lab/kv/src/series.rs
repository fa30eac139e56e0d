//! What happened from microsecond to microsecond around one event of an interval.
//!
//! Clients and daemons count in slices of the clock that all processes of a host share, from the first call on. When the
//! interval is over, the event is found and the slices around it are kept.

use std::{collections::BTreeMap, io, ops::Range};

use measure::table::Table;
use serde::{Deserialize, Serialize};

pub use crate::workload::{SLICES_MAX, SeriesEvent, SeriesPlan};

use crate::backend::ServerTotals;

/// What clients count in a slice.
pub const CLIENT_COLUMNS: [&str; 3] = ["answers", "outstanding", "round_trip_ns"];
/// What the daemon of a rank counts in a slice. The last five are where its time went.
pub const RANK_COLUMNS: [&str; 12] = [
    "turns",
    "busy_turns",
    "requests",
    "responses",
    "incoming",
    "replies",
    "outstanding",
    "clients_ns",
    "nic_ns",
    "post_ns",
    "waiting_ns",
    "control_ns",
];
/// Number of the column with calls in flight: a level, where others are counts.
const RANK_OUTSTANDING: usize = 6;
/// Phases of a turn, and the column of the first.
const PHASES: usize = 5;
const RANK_PHASES: usize = RANK_COLUMNS.len() - PHASES;
/// Slices that are kept before the event, and from it on.
const KEPT: u64 = 200;
/// Slices that the rate before and after a moment is taken over.
const SPAN: usize = 16;
/// A rate that falls by less is no collapse.
const COLLAPSE: f64 = 2.0;
/// The event of a death.
const KILLED: &str = "kill: the last client process dies by SIGKILL";
const NODE_KILLED: &str = "kill-node: the last node's daemon and clients die by SIGKILL";
/// Rows of numbers, one row a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    /// Number of the first slice, by the clock.
    first: u64,
    /// Numbers of a row.
    width: usize,
    values: Vec<u64>,
    /// Slice and value of a level that was seen last.
    #[serde(skip)]
    seen: Option<(u64, u64)>,
}

impl Slices {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    /// The row of a slice that is not before the first one, or of the last possible one.
    pub(crate) fn row(&mut self, slice: u64) -> &mut [u64] {
        if self.values.is_empty() {
            self.first = slice;
        }
        let at = slice.saturating_sub(self.first).min(SLICES_MAX - 1);
        let at = usize::try_from(at).unwrap_or(0) * self.width;
        if self.values.len() < at + self.width {
            self.values.resize(at + self.width, 0);
        }
        &mut self.values[at..at + self.width]
    }

    /// Sees a level, which was the same since it was seen last; the highest of a slice counts.
    pub(crate) fn see(&mut self, column: usize, slice: u64, value: u64) {
        if let Some((last, before)) = self.seen.replace((slice, value)) {
            let gap = slice.saturating_sub(last).min(SLICES_MAX);
            for passed in 1..gap {
                self.row(last + passed)[column] = before;
            }
        }
        let level = &mut self.row(slice)[column];
        *level = value.max(*level);
    }

    /// The numbers of a slice; none if nothing was counted in it.
    fn get(&self, slice: u64) -> Option<&[u64]> {
        let at = usize::try_from(slice.checked_sub(self.first)?).ok()?.checked_mul(self.width)?;
        self.values.get(at..at + self.width)
    }

    fn end(&self) -> u64 {
        self.first + (self.values.len() / self.width.max(1)) as u64
    }

    fn cut(&self, from: u64, to: u64) -> Self {
        let rows = (from..to).flat_map(|slice| match self.get(slice) {
            Some(row) => row.to_vec(),
            None => vec![0; self.width],
        });
        Self { first: from, width: self.width, values: rows.collect(), seen: None }
    }

    fn add(&mut self, other: &Self) {
        if other.values.is_empty() {
            return;
        }
        if self.values.is_empty() {
            *self = other.clone();
            return;
        }
        if other.first < self.first {
            let rows = self.cut(other.first, self.end());
            *self = rows;
        }
        for slice in other.first..other.end() {
            let more = other.get(slice).unwrap_or_default();
            for (sum, more) in self.row(slice).iter_mut().zip(more) {
                *sum += more;
            }
        }
    }

    /// A column, from the first slice on.
    fn column(&self, column: usize) -> impl Iterator<Item = u64> + '_ {
        self.values.iter().skip(column).step_by(self.width.max(1)).copied()
    }
}

/// What a thread of a daemon counts, slice by slice.
#[derive(Debug)]
pub(crate) struct RankRecorder {
    slice_ns: u64,
    slices: Slices,
    before: ServerTotals,
}

impl RankRecorder {
    pub(crate) fn new(slice_ns: u64, before: Option<ServerTotals>) -> Self {
        let slices = Slices::new(RANK_COLUMNS.len());
        Self { slice_ns, slices, before: before.unwrap_or_default() }
    }

    /// After a turn that handled so much.
    pub(crate) fn turn(&mut self, now_ns: u64, handled: usize, now: Option<ServerTotals>) {
        let slice = now_ns / self.slice_ns;
        let row = self.slices.row(slice);
        row[0] += 1;
        row[1] += u64::from(handled > 0);
        let Some(now) = now else { return };
        let before = std::mem::replace(&mut self.before, now);
        for (at, (now, before)) in (2..).zip(now.counts.iter().zip(before.counts)) {
            row[at] += now - before;
        }
        self.slices.see(RANK_OUTSTANDING, slice, now.outstanding);
        // The phases of a turn follow each other, and the last one ends now.
        let mut end_ns = now_ns;
        for phase in (0..PHASES).rev() {
            let begin_ns = end_ns.saturating_sub(now.phases_ns[phase] - before.phases_ns[phase]);
            self.spend(RANK_PHASES + phase, begin_ns..end_ns);
            end_ns = begin_ns;
        }
    }

    /// Adds a time to the slices that it is in. What was before the first slice counts for that.
    fn spend(&mut self, column: usize, time: Range<u64>) {
        let mut at_ns = time.start;
        while at_ns < time.end {
            let slice = at_ns / self.slice_ns;
            let end_ns = time.end.min((slice + 1) * self.slice_ns);
            self.slices.row(slice)[column] += end_ns - at_ns;
            at_ns = end_ns;
        }
    }

    pub(crate) fn finish(self, rank: u16) -> EventSeries {
        EventSeries::of_rank(self.slice_ns, rank, self.slices)
    }
}

/// What clients and daemons counted; after `around` only near the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventSeries {
    /// What it is, in words.
    pub event: String,
    /// Number of the slice of the event, by the clock.
    at: u64,
    /// Length of a slice.
    pub slice_ns: u64,
    clients: Slices,
    ranks: BTreeMap<u16, Slices>,
}

/// One curve: its name, and a number for each slice.
pub type Curve = (String, Vec<f64>);

impl EventSeries {
    pub(crate) fn of_client(slice_ns: u64, clients: Slices) -> Self {
        Self { slice_ns, clients, ..Self::default() }
    }

    pub(crate) fn of_rank(slice_ns: u64, rank: u16, slices: Slices) -> Self {
        Self { slice_ns, ranks: BTreeMap::from([(rank, slices)]), ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.slice_ns = self.slice_ns.max(other.slice_ns);
        self.clients.add(&other.clients);
        for (rank, slices) in &other.ranks {
            self.ranks.entry(*rank).or_default().add(slices);
        }
    }

    /// Finds the event and keeps what is near it.
    pub(crate) fn around(
        &self,
        event: SeriesEvent,
        interval_ns: Range<u64>,
        death_ns: Option<u64>,
    ) -> Self {
        let begin = interval_ns.start / self.slice_ns.max(1);
        let end = interval_ns.end / self.slice_ns.max(1);
        let (at, event) = match event {
            SeriesEvent::Start => (begin, "start".to_owned()),
            SeriesEvent::Kill | SeriesEvent::KillNode => match death_ns {
                Some(at_ns) => {
                    let is_of_node = event == SeriesEvent::KillNode;
                    let killed = if is_of_node { NODE_KILLED } else { KILLED };
                    (at_ns / self.slice_ns.max(1), killed.to_owned())
                }
                None => (begin, "start, without a kill: of one interval only".to_owned()),
            },
            SeriesEvent::Collapse => {
                let clients = self.clients.cut(begin, end);
                match steepest_fall(&clients.column(0).collect::<Vec<_>>()) {
                    Some((at, factor)) if factor >= COLLAPSE => (
                        begin + at as u64,
                        format!("collapse: the rate falls by a factor of {factor:.1}"),
                    ),
                    Some((at, factor)) => {
                        let event = format!(
                            "no collapse; the rate falls most here, by a factor of {factor:.2}"
                        );
                        (begin + at as u64, event)
                    }
                    None => (begin, "no collapse: the interval is too short for one".to_owned()),
                }
            }
        };
        let (from, to) = (at.saturating_sub(KEPT).max(begin), (at + KEPT).min(end));
        let cut = |(rank, slices): (&u16, &Slices)| (*rank, slices.cut(from, to));
        Self {
            event,
            at,
            slice_ns: self.slice_ns,
            clients: self.clients.cut(from, to),
            ranks: self.ranks.iter().map(cut).collect(),
        }
    }

    /// Time from the event to the begin of the first slice, in ns.
    #[must_use]
    pub fn begin_ns(&self) -> i64 {
        let slices =
            i64::try_from(self.clients.first).unwrap_or(0) - i64::try_from(self.at).unwrap_or(0);
        slices * i64::try_from(self.slice_ns).unwrap_or(0)
    }

    /// Everything, as curves: rates in M/s, levels, times in ns, and shares of the time in per cent.
    #[must_use]
    pub fn curves(&self) -> Vec<(&'static str, Vec<Curve>)> {
        let per_us = |count: u64| count as f64 * 1e3 / self.slice_ns as f64;
        let clients = |column| self.clients.column(column);
        let trips = clients(0).zip(clients(2));
        let trips = trips.map(|(answers, ns)| ns.checked_div(answers).unwrap_or(0) as f64);
        let rank = |column: usize, value: &dyn Fn(u64) -> f64| {
            let curve = |(rank, slices): (&u16, &Slices)| {
                (format!("rank {rank}"), slices.column(column).map(value).collect())
            };
            self.ranks.iter().map(curve).collect::<Vec<Curve>>()
        };
        let answers = ("clients".to_owned(), clients(0).map(per_us).collect());
        let outstanding = ("clients".to_owned(), clients(1).map(|n| n as f64).collect());
        let mut curves = vec![
            ("answers, M/s", vec![answers]),
            ("outstanding", vec![outstanding]),
            ("round trip, ns", vec![("clients".to_owned(), trips.collect())]),
        ];
        for (column, name) in RANK_COLUMNS.iter().enumerate() {
            let title: &'static str = match column {
                0 => "turns of the loop, M/s",
                2 => "requests of clients, M/s",
                3 => "responses of other nodes, M/s",
                4 => "requests of other nodes, M/s",
                RANK_OUTSTANDING => "outstanding at other nodes",
                _ if name.ends_with("_ns") => match *name {
                    "clients_ns" => "time with clients, %",
                    "nic_ns" => "time with the NIC, %",
                    "post_ns" => "time posting, %",
                    _ => continue,
                },
                _ => continue,
            };
            let share = |ns: u64| 100.0 * ns as f64 / self.slice_ns as f64;
            let curve = match column {
                RANK_OUTSTANDING => rank(column, &|n| n as f64),
                _ if name.ends_with("_ns") => rank(column, &share),
                _ => rank(column, &per_us),
            };
            if curve.iter().any(|(_, values)| values.iter().any(|value| *value > 0.0)) {
                curves.push((title, curve));
            }
        }
        curves
    }

    /// A line for each slice: time from the event in µs, then what clients and each rank counted.
    fn lines(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut head = vec!["time_us".to_owned()];
        head.extend(CLIENT_COLUMNS.map(str::to_owned));
        for rank in self.ranks.keys() {
            head.extend(RANK_COLUMNS.map(|name| format!("rank{rank}_{name}")));
        }
        let line = |slice: u64| {
            let from_event =
                i64::try_from(slice).unwrap_or(0) - i64::try_from(self.at).unwrap_or(0);
            let us = from_event as f64 * self.slice_ns as f64 / 1e3;
            let tables = std::iter::once(&self.clients).chain(self.ranks.values());
            let values = tables.flat_map(|slices| slices.get(slice).unwrap_or_default());
            let mut line = vec![format!("{us}")];
            line.extend(values.map(ToString::to_string));
            line
        };
        let lines = (self.clients.first..self.clients.end()).map(line).collect();
        (head, lines)
    }

    /// Writes the lines of several series, each of a configuration and a run.
    pub(crate) fn write_csv<'a>(
        all: impl Iterator<Item = (String, u32, &'a Self)>,
        to: &mut dyn io::Write,
    ) -> io::Result<()> {
        for (name, run, series) in all {
            let (head, lines) = series.lines();
            let first = ["cell", "run", "event"].map(str::to_owned);
            let mut table = Table::new(3, first.into_iter().chain(head));
            for line in lines {
                let about = [name.clone(), run.to_string(), series.event.clone()];
                table.push(about.into_iter().chain(line));
            }
            table.write_csv(&mut *to)?;
        }
        Ok(())
    }
}

/// The moment at which the rate falls most, and by which factor: the rate of [`SPAN`] slices before it over that of as
/// many from it on, of moments before which something happened. `None`: there are too few slices.
fn steepest_fall(answers: &[u64]) -> Option<(usize, f64)> {
    let sums = answers.windows(SPAN).map(|window| window.iter().sum::<u64>()).collect::<Vec<_>>();
    let pairs = sums.iter().zip(sums.get(SPAN..)?).enumerate();
    let falls =
        pairs.map(|(at, (before, after))| (at + SPAN, *before as f64 / (*after as f64).max(1.0)));
    falls.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices of 1 µs; 40 answers each until the collapse at 500 µs, then 5.
    fn series() -> (EventSeries, Range<u64>) {
        let schedule = 7_000_300..8_000_300;
        let (mut clients, mut rank) = (Slices::new(3), Slices::new(RANK_COLUMNS.len()));
        for slice in 7_000..8_000_u64 {
            let answers = if slice < 7_500 { 40 } else { 5 };
            clients.row(slice).copy_from_slice(&[answers, 32, answers * 2_000]);
            rank.row(slice)[2] = answers;
        }
        let mut series = EventSeries::of_client(1_000, clients);
        series.add(&EventSeries::of_rank(1_000, 1, rank));
        (series, schedule)
    }

    #[test]
    fn a_collapse_is_found_where_it_is_and_what_is_near_it_is_kept() {
        let (series, schedule) = series();
        let near = series.around(SeriesEvent::Collapse, schedule.clone(), None);
        assert_eq!(
            (near.at, near.event.as_str()),
            (7_500, "collapse: the rate falls by a factor of 8.0")
        );
        assert_eq!((near.begin_ns(), near.clients.end() - near.clients.first), (-200_000, 400));
        let curves = near.curves();
        let of = |title: &str| &curves.iter().find(|(name, _)| *name == title).unwrap().1[0].1;
        assert_eq!((of("answers, M/s")[199], of("answers, M/s")[200]), (40.0, 5.0));
        assert_eq!((of("round trip, ns")[0], of("requests of clients, M/s")[399]), (2_000.0, 5.0));
        let json = serde_json::to_string(&near).unwrap();
        assert_eq!(serde_json::from_str::<EventSeries>(&json).unwrap(), near);
    }

    #[test]
    fn a_start_is_the_first_call_and_a_flat_rate_is_no_collapse() {
        let (mut series, schedule) = series();
        let start = series.around(SeriesEvent::Start, schedule.clone(), None);
        assert_eq!((start.at, start.begin_ns()), (7_000, 0));
        let death = series.around(SeriesEvent::Kill, schedule.clone(), Some(7_600_999));
        assert_eq!((death.at, death.event.as_str()), (7_600, KILLED));
        for slice in 7_500..8_000 {
            series.clients.row(slice)[0] = 40;
        }
        let flat = series.around(SeriesEvent::Collapse, schedule.clone(), None);
        assert!(flat.event.starts_with("no collapse"), "{}", flat.event);
    }

    #[test]
    fn a_turn_spends_its_time_in_each_slice_that_it_is_in_and_no_slice_has_more_than_it_lasts() {
        let mut recorder = RankRecorder::new(1_000, None);
        let totals = |phases_ns| Some(ServerTotals { phases_ns, ..ServerTotals::default() });
        recorder.turn(7_000_100, 1, totals([20, 0, 30, 0, 50]));
        // The core was taken away for three slices while the NIC was served.
        recorder.turn(7_004_000, 1, totals([20 + 100, 3_300, 30 + 200, 100, 50 + 200]));
        let slices = recorder.slices;
        let nic_ns: Vec<_> = slices.column(RANK_PHASES + 1).collect();
        assert_eq!(nic_ns, [800, 1_000, 1_000, 500, 0]);
        for slice in 7_000..7_005 {
            let spent_ns: u64 = slices.get(slice).unwrap()[RANK_PHASES..].iter().sum();
            assert!(spent_ns <= 1_000, "{slice}: {spent_ns}");
        }
        let all_ns: u64 = (0..PHASES).flat_map(|phase| slices.column(RANK_PHASES + phase)).sum();
        assert_eq!(all_ns, 100 + 3_900);
    }

    #[test]
    fn slices_of_several_add_up_wherever_they_begin() {
        let (mut one, mut two) = (Slices::new(1), Slices::new(1));
        one.row(10)[0] = 1;
        one.row(12)[0] = 2;
        two.row(8)[0] = 5;
        two.row(10)[0] = 5;
        one.add(&two);
        assert_eq!((one.first, one.values), (8, vec![5, 0, 6, 0, 2]));
        let mut level = Slices::new(1);
        for (slice, value) in [(3, 4), (3, 2), (6, 1), (6, 0)] {
            level.see(0, slice, value);
        }
        assert_eq!(level.values, [4, 2, 2, 1]);
    }

    #[test]
    fn a_table_has_a_line_for_each_slice_with_every_rank() {
        let (series, schedule) = series();
        let near = series.around(SeriesEvent::Collapse, schedule.clone(), None);
        let mut text = Vec::new();
        EventSeries::write_csv([("cell".to_owned(), 3, &near)].into_iter(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().collect::<Vec<_>>();
        assert_eq!(lines.len(), 401);
        assert!(
            lines[0].starts_with(
                "cell,run,event,time_us,answers,outstanding,round_trip_ns,rank1_turns"
            )
        );
        assert!(lines[1].contains(",-200,40,32,80000,0,0,40,"), "{}", lines[1]);
        assert!(lines[201].contains(",0,5,32,10000,"), "{}", lines[201]);
    }
}
