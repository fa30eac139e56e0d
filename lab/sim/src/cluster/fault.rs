//! Faults: what they are, how a seed draws them, and how a command line names them.

use std::{fmt, str::FromStr};

use crate::world::{RandomStream, Time};

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Requests and answers of all ports are lost, `amount` of a thousand.
    Loss,
    /// They come twice, `amount` of a thousand.
    Repeat,
    /// They take up to `amount` ns longer, so that later ones overtake earlier ones.
    Reorder,
    /// Nothing that the NIC of `node` sends reaches `peer`.
    CutFabric,
    /// No datagram of the daemon of `node` reaches `peer`.
    CutControl,
    /// The NIC of `node` does nothing.
    NicStall,
    /// The NIC of `node` answers "receiver not ready" to `amount` of a thousand requests.
    Rnr,
    /// Bytes of WRITEs that reach `node` become visible in pieces of 8 and more, in any order, and their
    /// completions up to `amount` ns later.
    Torn,
    /// `amount` READs of the memory of `node` find its key revoked.
    Revoked,
    /// All completion queues of `node` overrun: its daemon ends, and is started again.
    CqOverrun,
    /// `amount` requests of `node` fail with "remote operation error", and so do their queue pairs.
    QpError,
    /// The daemon of `node` is stopped.
    Pause,
    /// Turns of the daemon of `node` take `amount` times as long.
    Slow,
    /// The daemon of `node` dies, and is started again.
    Crash,
    /// The same, and its clock went back between the two lives.
    CrashClockBack,
    /// Client `amount` of `node` dies with what it has in flight, and another one comes.
    ClientDeath,
    /// The clients of `node` are stopped.
    ClientPause,
    /// The clock of `node` gains `amount` ppm.
    ClockRate,
    /// Client `amount` of `node` ends by itself with what it has in flight, and another one comes.
    ClientExit,
    /// The daemon of `node` takes nothing new, ends then, and is started again.
    Drain,
}

impl FaultKind {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 20] = [
        (Self::Loss, "loss"),
        (Self::Repeat, "repeat"),
        (Self::Reorder, "reorder"),
        (Self::CutFabric, "cut-fabric"),
        (Self::CutControl, "cut-control"),
        (Self::NicStall, "nic-stall"),
        (Self::Rnr, "rnr"),
        (Self::Torn, "torn"),
        (Self::Revoked, "revoked"),
        (Self::CqOverrun, "cq-overrun"),
        (Self::QpError, "qp-error"),
        (Self::Pause, "pause"),
        (Self::Slow, "slow"),
        (Self::Crash, "crash"),
        (Self::CrashClockBack, "crash-clock-back"),
        (Self::ClientDeath, "client-death"),
        (Self::ClientPause, "client-pause"),
        (Self::ClockRate, "clock-rate"),
        (Self::ClientExit, "client-exit"),
        (Self::Drain, "drain"),
    ];

    /// What befalls networks and nodes.
    pub(super) const OF_CLUSTERS: [Self; 18] = [
        Self::Loss,
        Self::Repeat,
        Self::Reorder,
        Self::CutFabric,
        Self::CutControl,
        Self::NicStall,
        Self::Rnr,
        Self::Torn,
        Self::Revoked,
        Self::CqOverrun,
        Self::QpError,
        Self::Pause,
        Self::Slow,
        Self::Crash,
        Self::CrashClockBack,
        Self::ClientDeath,
        Self::ClientPause,
        Self::ClockRate,
    ];

    /// What befalls the processes of a node.
    pub(super) const OF_A_NODE: [Self; 8] = [
        Self::Pause,
        Self::Slow,
        Self::Crash,
        Self::ClientDeath,
        Self::ClientPause,
        Self::ClockRate,
        Self::ClientExit,
        Self::Drain,
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Whether calls of clients of that node may end late: a process of it does not run as it should.
    pub(super) fn is_of_processes(self) -> bool {
        matches!(
            self,
            Self::Pause
                | Self::Slow
                | Self::CqOverrun
                | Self::Crash
                | Self::CrashClockBack
                | Self::ClientDeath
                | Self::ClientPause
                | Self::ClockRate
                | Self::ClientExit
                | Self::Drain
        )
    }

    /// How much of it a seed draws.
    fn amount(self, random: &mut RandomStream) -> u32 {
        match self {
            Self::Loss | Self::Repeat => random.choose(&[5, 20, 100, 300]),
            Self::Reorder => random.choose(&[500, 5_000, 50_000]),
            Self::Rnr => random.choose(&[100, 500, 1000]),
            Self::QpError | Self::Revoked => random.choose(&[1, 2, 8]),
            Self::Torn => random.choose(&[100, 2_000, 20_000]),
            Self::Slow => random.choose(&[3, 30]),
            Self::ClientDeath | Self::ClientExit => random.choose(&[0, 1, 2, 3]),
            Self::ClockRate => random.choose(&[100, 10_000]),
            Self::CutFabric
            | Self::CutControl
            | Self::NicStall
            | Self::CqOverrun
            | Self::Pause
            | Self::ClientPause
            | Self::Crash
            | Self::CrashClockBack
            | Self::Drain => 0,
        }
    }
}

/// One fault of a run. `node`, `peer` and a client's number count modulo how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Number of the node.
    pub node: u32,
    /// On the way to which node.
    pub peer: u32,
    /// Strength of the fault, in the unit of its kind.
    pub amount: u32,
    /// When, in µs from the start.
    pub at_us: u64,
    /// For how long.
    pub for_us: u64,
}

impl Fault {
    /// Time of its begin.
    #[must_use]
    pub fn begin(&self) -> Time {
        Time::from_ns(1000 * self.at_us)
    }

    /// Time of its end.
    #[must_use]
    pub fn end(&self) -> Time {
        Time::from_ns(1000 * (self.at_us + self.for_us))
    }

    /// The same fault in a world whose clients begin at `start`, and whose faults are over at `end`.
    #[must_use]
    pub(super) fn within(self, start: Time, end: Time) -> Self {
        let [start_us, end_us] = [start, end].map(|time| time.whole_ns() / 1000);
        let at_us = (self.at_us + start_us).min(end_us);
        Self { at_us, for_us: self.for_us.min(end_us - at_us), ..self }
    }

    /// Whether it is about this node, or begins there.
    #[must_use]
    pub fn is_of(&self, node: u32, nodes: u32) -> bool {
        self.node % nodes == node
    }
}

/// `KIND:NODE/PEER/AMOUNT@AT+FOR`, times in µs.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, node, peer, amount, at_us, for_us } = self;
        write!(f, "{}:{node}/{peer}/{amount}@{at_us}+{for_us}", kind.name())
    }
}

/// Text that names no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no fault; write KIND:NODE/PEER/AMOUNT@AT+FOR with times in µs, such as crash:1/0/0@200+300"
)]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        parse(text).ok_or_else(|| FaultError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (name, rest) = text.split_once(':')?;
    let (kind, _) = *FaultKind::ALL.iter().find(|(_, known)| *known == name)?;
    let (place, time) = rest.split_once('@')?;
    let mut numbers = place.split('/').map(|number| number.parse().ok());
    let (node, peer, amount) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let (at, length) = time.split_once('+')?;
    let (at_us, for_us) = (at.parse().ok()?, length.parse().ok()?);
    numbers.next().is_none().then_some(Fault { kind, node, peer, amount, at_us, for_us })
}

/// Draws the faults of a run: some kinds are left out altogether, so that runs differ in what they are
/// about (swarm testing).
#[must_use]
pub fn draw(kinds: &[FaultKind], seed: u64, nodes: u32, length: Time) -> Vec<Fault> {
    let mut random = RandomStream::new(seed, "faults");
    let length_us = (length.whole_ns() / 1000).max(2);
    let kinds: Vec<_> = kinds.iter().copied().filter(|_| random.happens(300)).collect();
    let mut faults = Vec::new();
    if kinds.is_empty() {
        return faults;
    }
    for _ in 0..random.below(6) {
        let kind = random.choose(&kinds);
        let node = u32::try_from(random.number(nodes.into())).unwrap_or(0);
        let other = 1 + u32::try_from(random.number(nodes.max(2).into())).unwrap_or(0);
        faults.push(Fault {
            kind,
            node,
            peer: (node + other) % nodes.max(1),
            amount: kind.amount(&mut random),
            at_us: random.number(length_us),
            for_us: 1 + random.number(length_us),
        });
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Vec<Fault> {
        let all: Vec<_> = FaultKind::ALL.iter().map(|(kind, _)| *kind).collect();
        draw(&all, seed, 3, Time::from_ns(5_000_000))
    }

    #[test]
    fn a_fault_is_what_its_text_says_and_other_text_is_refused() {
        for seed in 0..200 {
            for fault in drawn(seed) {
                assert_eq!(fault.to_string().parse(), Ok(fault));
            }
        }
        for text in
            ["", "crash", "crush:1/0/0@1+2", "crash:1/0@1+2", "crash:1/0/0/0@1+2", "crash:1/0/0@1"]
        {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_kind_is_drawn_by_some_seed() {
        let faults: Vec<_> = (0..500).flat_map(drawn).collect();
        for (kind, name) in FaultKind::ALL {
            assert!(faults.iter().any(|fault| fault.kind == kind), "{name}");
        }
        assert!((0..500).any(|seed| drawn(seed).is_empty()));
    }
}
