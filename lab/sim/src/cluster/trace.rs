//! A run as a timeline in the format of Chrome's trace viewer.

use std::fmt::Write as _;

use daemon::metrics::Counter;

use super::{
    fault::Fault,
    history::{End, Made},
};
use crate::world::Time;

/// A turn of a daemon that handled something.
#[derive(Clone, Copy, Debug)]
struct Turn {
    rank: u32,
    began: Time,
    ended: Time,
    handled: usize,
}

/// Turns of a run.
#[derive(Debug, Default)]
pub(super) struct Spans {
    turns: Vec<Turn>,
}

/// Turns that are kept: more than a viewer shows.
const TURNS_MAX: usize = 1 << 20;

impl Spans {
    pub(super) fn turn(&mut self, rank: u32, began: Time, ended: Time, handled: usize) {
        if self.turns.len() < TURNS_MAX {
            self.turns.push(Turn { rank, began, ended, handled });
        }
    }
}

fn us(time: Time) -> f64 {
    time.as_ns() / 1000.0
}

/// The timeline: a process per node with turns of its daemon, calls of its clients, faults, and counters.
pub(super) fn chrome(
    spans: &Spans,
    calls: impl Iterator<Item = (Made, Time, End)>,
    faults: &[Fault],
    counters: &[Vec<u64>],
) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let mut event = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line},");
    };
    for turn in &spans.turns {
        let (at, length) = (us(turn.began), us(turn.ended.since(turn.began)));
        event(format_args!(
            r#"{{"ph":"X","name":"turn","pid":{},"tid":0,"ts":{at:.3},"dur":{length:.3},"args":{{"handled":{}}}}}"#,
            turn.rank, turn.handled
        ));
    }
    for (number, (made, ended, end)) in calls.enumerate() {
        let (from, at, until) = (made.from, us(made.at), us(ended));
        event(format_args!(
            r#"{{"ph":"b","cat":"call","name":"to {}","id":{number},"pid":{from},"tid":1,"ts":{at:.3}}}"#,
            made.to
        ));
        event(format_args!(
            r#"{{"ph":"e","cat":"call","name":"to {}","id":{number},"pid":{from},"tid":1,"ts":{until:.3},"args":{{"end":"{end}"}}}}"#,
            made.to
        ));
    }
    for (number, fault) in faults.iter().enumerate() {
        let (pid, at, until) = (fault.node, us(fault.begin()), us(fault.end()));
        for (phase, ts) in [("b", at), ("e", until)] {
            event(format_args!(
                r#"{{"ph":"{phase}","cat":"fault","name":"{fault}","id":{number},"pid":{pid},"tid":2,"ts":{ts:.3}}}"#
            ));
        }
    }
    for (rank, values) in counters.iter().enumerate() {
        let pairs: Vec<_> = (Counter::ALL.iter().zip(values))
            .map(|(counter, value)| format!(r#""{}":{value}"#, counter.name()))
            .collect();
        event(format_args!(
            r#"{{"ph":"M","name":"process_labels","pid":{rank},"args":{{"labels":"counters at the end","counters":{{{}}}}}}}"#,
            pairs.join(",")
        ));
        event(format_args!(
            r#"{{"ph":"M","name":"process_name","pid":{rank},"args":{{"name":"node {rank}"}}}}"#
        ));
    }
    // Events are separated, not terminated.
    text.truncate(text.trim_end_matches([',', '\n']).len());
    text.push_str("\n]}\n");
    text
}
