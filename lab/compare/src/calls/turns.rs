//! Who takes turns at a work, with how many calls, and where the time goes.

use std::time::{Duration, Instant};

use measure::cores::Cores;

use super::{CallWork, Peer, REFERENCE, SAMPLE, Session, peers, tools};
use crate::{Fallible, plan::ComparisonPlan, table::Measurements};

/// Calls of a sample, at least and at most.
const COUNT_MIN: u64 = 8;
const COUNT_MAX: u64 = 1_000_000;

/// Whoever takes a turn in each round.
pub enum Contender {
    Peer(usize, Peer),
    Tool(tools::Tool),
}

impl Contender {
    fn all() -> Vec<Self> {
        let peers = peers().into_iter().enumerate().map(|(index, peer)| Self::Peer(index, peer));
        peers.chain(tools::all().into_iter().map(Self::Tool)).collect()
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Peer(_, peer) => peer.name,
            Self::Tool(tool) => tool.name,
        }
    }

    fn lacks(&self, work: CallWork) -> Option<&'static str> {
        match self {
            Self::Peer(_, peer) => (peer.lacks)(work),
            Self::Tool(tool) => (tool.lacks)(work),
        }
    }

    fn missing(&self) -> Option<String> {
        if let Self::Tool(tool) = self { tool.missing() } else { None }
    }

    /// Calls of a trial that says how many fill a sample; `None`: it looks at the clock meanwhile.
    fn first_count(&self, work: CallWork) -> Option<u64> {
        match self {
            Self::Peer(_, peer) if peer.name != REFERENCE => None,
            _ => Some(tools::Tool::first_count(work)),
        }
    }
}

/// All of the plan that this machine has.
pub fn present(plan: &ComparisonPlan, comparison: &mut Measurements) -> Vec<Contender> {
    let mut contenders = Contender::all();
    contenders.retain(|contender| {
        let missing = contender.missing().filter(|_| plan.has(contender.name(), REFERENCE));
        if let Some(missing) = &missing {
            comparison.note(format!("{}: skipped: {missing}", contender.name()));
        }
        missing.is_none() && plan.has(contender.name(), REFERENCE)
    });
    contenders
}

/// The turn of a contender at a work.
pub struct Turn<'a> {
    pub contender: &'a Contender,
    work: CallWork,
    count: u64,
}

impl Turn<'_> {
    /// Whether another program takes the sample.
    pub fn is_of_a_tool(&self) -> bool {
        matches!(self.contender, Contender::Tool(_))
    }

    /// The number of the work.
    pub fn sample(&self, session: &mut Session, cores: Cores) -> Fallible<f64> {
        let value = match self.contender {
            Contender::Peer(index, _) => session.sample(*index, self.work, self.count),
            Contender::Tool(tool) => tool.run(cores, self.work, self.count),
        };
        value.map_err(|error| format!("{}: {error}", self.contender.name()).into())
    }
}

/// The turns at `work`, after a trial of those that must know how many calls fill a sample.
pub fn turns_of<'a>(
    session: &mut Session,
    (plan, work): (&ComparisonPlan, CallWork),
    contenders: &'a [Contender],
    comparison: &mut Measurements,
) -> Fallible<Vec<Turn<'a>>> {
    let mut turns = Vec::new();
    for contender in contenders {
        if let Some(lack) = contender.lacks(work) {
            comparison.note(format!("{}/{}: no number: {lack}", work.name(), contender.name()));
            continue;
        }
        plan.go_on()?;
        let mut turn = Turn { contender, work, count: 0 };
        if let Some(count) = contender.first_count(work) {
            turn.count = count;
            let value = match turn.sample(session, plan.cores) {
                // A tool of another version may not know the test.
                Err(error) if matches!(contender, Contender::Tool(_)) => {
                    comparison.note(format!("{}: skipped: {error}", work.name()));
                    continue;
                }
                value => value?,
            };
            turn.count = count_for(SAMPLE, work.metric().each_ns(value, work.len_bytes));
        }
        turns.push(turn);
    }
    Ok(turns)
}

/// Calls of `each_ns` that fill a sample.
fn count_for(sample: Duration, each_ns: f64) -> u64 {
    // Saturates; not a number is the fewest.
    ((sample.as_nanos() as f64 / each_ns) as u64).clamp(COUNT_MIN, COUNT_MAX)
}

/// Where the time of all rounds went.
#[derive(Default)]
pub struct Spent {
    probes: Duration,
    peers: Duration,
    tools: Duration,
}

impl Spent {
    /// Takes a probe.
    pub fn probe(&mut self, session: &mut Session) -> Fallible<f64> {
        let begin = Instant::now();
        let value = session.probe();
        self.probes += begin.elapsed();
        value
    }

    /// Takes a sample.
    pub fn sample(
        &mut self,
        turn: &Turn<'_>,
        (session, cores): (&mut Session, Cores),
    ) -> Fallible<f64> {
        let begin = Instant::now();
        let value = turn.sample(session, cores);
        let part = match turn.contender {
            Contender::Peer(..) => &mut self.peers,
            Contender::Tool(_) => &mut self.tools,
        };
        *part += begin.elapsed();
        value
    }

    /// In words, of a run of `all` that took so long to prepare.
    pub fn sentence(&self, all: Duration, prepared: Duration) -> String {
        let Self { probes, peers, tools } = self;
        let seconds = |time: Duration| format!("{:.0}", time.as_secs_f64());
        format!(
            "calls took {} s: {} to find how many fill a sample, {} of probes, {} of samples by this program, {} of those by \
             other programs; a sample measures {SAMPLE:?}, the rest starts and connects both sides",
            seconds(all),
            seconds(prepared),
            seconds(*probes),
            seconds(*peers),
            seconds(*tools),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_as_many_calls_as_fill_their_time() {
        let of = |each_ns| count_for(Duration::from_millis(20), each_ns);
        assert_eq!((of(200.0), of(7e6), of(0.0)), (100_000, COUNT_MIN, COUNT_MAX));
        assert_eq!(of(f64::NAN), COUNT_MIN);
    }

    #[test]
    fn a_run_says_where_its_time_went() {
        let s = Duration::from_secs;
        let spent = Spent { probes: s(30), peers: s(200), tools: s(240) };
        let sentence = spent.sentence(s(480), s(10));
        assert!(sentence.starts_with("calls took 480 s: 10 to find"), "{sentence}");
        assert!(sentence.contains("30 of probes, 200 of samples by this program, 240 of those"));
    }
}
