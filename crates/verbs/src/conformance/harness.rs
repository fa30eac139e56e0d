//! What every scenario stands on: roles, verdicts, deadlines, and the talk between the roles.

use std::{
    panic::Location,
    time::{Duration, Instant},
};

use crate::{AddressVector, Endpoint, Gid, GidRoute, Lid, Mtu, Nic, Qpn, RemoteSlice, Rkey, Route};

use super::{
    data::{Buffer, Rng},
    end::Watched,
    oob::{Gone, OutOfBand},
};

/// How long one look at the out-of-band channel may take while the NIC must be kept going.
const GLANCE: Duration = Duration::from_micros(50);

/// Which part of the dialogue a [`Side`] plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Mostly the requester.
    Client,
    /// Mostly the responder.
    Server,
}

impl Role {
    /// 0 or 1.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

/// Where a NIC is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// For whom.
    pub role: Role,
    /// Unique to this run: a software fabric that is named so is shared with no other test.
    /// Hardware ignores it.
    pub fabric: String,
}

bitflags::bitflags! {
    /// What a device can do beyond RC. A scenario that needs more is skipped, and says so.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// UD queue pairs.
        const UD = 1;
        /// DC initiators and targets.
        const DC = 1 << 1;
        /// Shared receive queues.
        const SRQ = 1 << 2;
        /// 8-byte atomics.
        const ATOMICS = 1 << 3;
        /// 128-byte completion queue entries.
        const CQE128 = 1 << 4;
        /// Small payloads in the completion queue entry.
        const SCATTER_TO_CQE = 1 << 5;
        /// A WRITE's bytes become visible in ascending order, so its last word can be polled.
        const LAST_BYTE_POLL = 1 << 6;
        /// CQ overrun is reported as an asynchronous event.
        const CQ_OVERRUN = 1 << 7;
        /// State SQD.
        const SQD = 1 << 8;
        /// `Nic::create_qp` refuses queues whose completions might not fit the CQ.
        const CQ_ACCOUNTING = 1 << 9;
        /// A queue pair reaches another one of the same NIC.
        const LOOPBACK = 1 << 10;
        /// A responder whose queue pair is denied an access goes to ERR itself.
        const RESPONDER_ERR = 1 << 11;
    }
}

/// What the suite may expect of a device, and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testbed {
    /// What the device can do.
    pub capabilities: Capabilities,
    /// Longest wait for one thing to happen: generous, because it only bounds a failure.
    pub deadline: Duration,
    /// Longest time for a whole scenario, after which it is abandoned or killed.
    pub scenario_deadline: Duration,
    /// How long "nothing happens" is watched.
    pub quiet: Duration,
    /// Largest inline payload that a queue of 4-block WQEs takes.
    pub inline_bytes_max: usize,
    /// Also run what takes minutes: 24-bit CQ index wrap. `CONFORMANCE_LONG` sets it.
    pub long: bool,
    /// How many children [`peer_death`](super::peer_death) kills.
    pub death_rounds: u32,
    /// Of everything random. Printed with every failure; `CONFORMANCE_SEED` overrides it.
    pub seed: u64,
}

impl Testbed {
    /// Every capability, 10 s deadlines.
    pub const FULL: Self = Self {
        capabilities: Capabilities::all(),
        deadline: Duration::from_secs(10),
        scenario_deadline: Duration::from_secs(120),
        quiet: Duration::from_millis(5),
        inline_bytes_max: 220,
        long: false,
        death_rounds: 8,
        seed: 0x00c0_ffee,
    };
}

/// Why a scenario ended early.
#[derive(Debug)]
pub enum Stop {
    /// The device lacks something; not a failure.
    Skipped(&'static str),
    /// The NIC broke a rule.
    Violation {
        /// Which, and how.
        what: String,
        /// Where the suite noticed.
        at: &'static Location<'static>,
    },
    /// The other role ended first: a consequence, never the cause.
    PeerEnded,
}

impl Stop {
    /// A rule is broken.
    #[track_caller]
    pub(super) fn violation(what: impl Into<String>) -> Self {
        Self::Violation { what: what.into(), at: Location::caller() }
    }
}

impl core::fmt::Display for Stop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Skipped(why) => write!(f, "skipped: the testbed has no {why}"),
            Self::Violation { what, at } => write!(f, "{what}\n    at {at}"),
            Self::PeerEnded => Gone.fmt(f),
        }
    }
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Self::PeerEnded
    }
}

/// Errors of the interface that a scenario does not expect are violations.
macro_rules! unexpected {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            #[track_caller]
            fn from(error: $error) -> Self {
                Self::violation(format!("unexpected {}: {error}", stringify!($error)))
            }
        }
    )*};
}
unexpected!(
    crate::CreateError,
    crate::MemoryError,
    crate::ModifyError,
    crate::PostSendError,
    crate::PostRecvError,
    crate::ArmError
);

/// Result of a step or of a scenario.
pub type Verdict<T = ()> = Result<T, Stop>;

/// Leaves the scenario with a [`Stop::Violation`] if a rule does not hold.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return core::result::Result::Err($crate::conformance::harness::Stop::violation(format!($($what)+)));
        }
    };
}
pub(super) use ensure;

/// Leaves the scenario if two values differ.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($what:tt)+) => {{
        let (found, expected) = (&$found, &$expected);
        if found != expected {
            let what = format!($($what)+);
            return core::result::Result::Err($crate::conformance::harness::Stop::violation(format!(
                "{what}: {found:?} instead of {expected:?}"
            )));
        }
    }};
}
pub(super) use ensure_eq;

/// A bound on one wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait)
    }

    pub(super) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// One role's view of a running scenario.
pub struct Side<N: Nic> {
    /// This role's device.
    pub nic: N,
    /// Who this is.
    pub role: Role,
    /// What may be expected.
    pub testbed: Testbed,
    /// The same sequence at both sides, as long as both draw from it alike.
    pub rng: Rng,
    oob: Box<dyn OutOfBand>,
}

impl<N: Nic> Side<N> {
    /// A role at its NIC, talking through `oob`.
    pub fn new(nic: N, role: Role, testbed: Testbed, oob: Box<dyn OutOfBand>) -> Self {
        Self { nic, role, testbed, rng: Rng::new(testbed.seed), oob }
    }

    /// Whether this is [`Role::Client`].
    pub fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// Skips the scenario at a device that lacks something.
    pub(super) fn needs(&self, capability: Capabilities) -> Verdict {
        const NAMES: [(Capabilities, &str); 12] = [
            (Capabilities::UD, "UD"),
            (Capabilities::DC, "DC"),
            (Capabilities::SRQ, "shared receive queue"),
            (Capabilities::ATOMICS, "atomics"),
            (Capabilities::CQE128, "128-byte CQE"),
            (Capabilities::SCATTER_TO_CQE, "scatter to CQE"),
            (Capabilities::LAST_BYTE_POLL, "ordered placement of a WRITE"),
            (Capabilities::CQ_OVERRUN, "CQ overrun event"),
            (Capabilities::SQD, "state SQD"),
            (Capabilities::CQ_ACCOUNTING, "CQ capacity check"),
            (Capabilities::LOOPBACK, "loopback"),
            (Capabilities::RESPONDER_ERR, "responder error state"),
        ];
        let missing = capability - self.testbed.capabilities;
        match NAMES.iter().find(|(bit, _)| missing.contains(*bit)) {
            Some((_, name)) => Err(Stop::Skipped(name)),
            None => Ok(()),
        }
    }

    /// The end of one wait that starts now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.testbed.deadline)
    }

    /// Sends words to the other role.
    pub(super) fn tell(&mut self, words: &[u64]) -> Verdict {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(self.oob.send(&bytes)?)
    }

    /// The other role's words; for the time when no NIC traffic depends on this side.
    #[track_caller]
    pub(super) fn hear(&mut self) -> Verdict<Vec<u64>> {
        match self.oob.recv(self.testbed.deadline)? {
            Some(message) => words(&message),
            None => Err(Stop::violation("the other role said nothing before the deadline")),
        }
    }

    /// The other role's words, if they are there.
    pub(super) fn glance(&mut self) -> Verdict<Option<Vec<u64>>> {
        self.oob.recv(Duration::ZERO)?.map(|message| words(&message)).transpose()
    }

    /// The other role's words, while `cq` is polled to keep the NIC going. Completions are kept.
    #[track_caller]
    pub(super) fn hear_polling(&mut self, cq: &mut Watched<N>) -> Verdict<Vec<u64>> {
        let deadline = self.deadline();
        while !deadline.has_passed() {
            if let Some(message) = self.oob.recv(GLANCE)? {
                return words(&message);
            }
            cq.gather();
        }
        Err(Stop::violation("the other role said nothing before the deadline"))
    }

    /// Exchanges words while nothing else goes on.
    #[track_caller]
    pub(super) fn swap(&mut self, mine: &[u64]) -> Verdict<Vec<u64>> {
        self.tell(mine)?;
        self.hear()
    }

    /// Exchanges words while `cq` is polled.
    #[track_caller]
    pub(super) fn swap_polling(&mut self, cq: &mut Watched<N>, mine: &[u64]) -> Verdict<Vec<u64>> {
        self.tell(mine)?;
        self.hear_polling(cq)
    }

    /// Both roles reach this point before either goes on.
    #[track_caller]
    pub(super) fn meet(&mut self, cq: &mut Watched<N>) -> Verdict {
        self.swap_polling(cq, &[]).map(drop)
    }

    /// Shows the other role where `buffer` is, and learns where its buffer is.
    #[track_caller]
    pub(super) fn swap_remote(&mut self, buffer: &Buffer<N>) -> Verdict<Remote> {
        let RemoteSlice { addr, rkey } = buffer.remote(0);
        let theirs = self.swap(&[addr, u64::from(rkey.get())])?;
        ensure_eq!(theirs.len(), 2, "words of a buffer");
        Ok(Remote { addr: theirs[0], rkey: Rkey::new(low_u32(theirs[1])) })
    }

    /// A path MTU that both ports have.
    #[track_caller]
    pub(super) fn swap_mtu(&mut self) -> Verdict<Mtu> {
        const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        let mine = self.nic.port().mtu;
        let theirs = self.swap(&[mine.bytes() as u64])?;
        let both =
            |mtu: &Mtu| *mtu <= mine && theirs.first().is_some_and(|&t| mtu.bytes() as u64 <= t);
        ALL.into_iter().rev().find(both).ok_or_else(|| Stop::violation("ports share no MTU"))
    }
}

/// The other role's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) rkey: Rkey,
}

impl Remote {
    /// Its byte `offset`.
    pub(super) fn at(self, offset: usize) -> RemoteSlice {
        RemoteSlice { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey }
    }
}

fn words(message: &[u8]) -> Verdict<Vec<u64>> {
    let (words, rest) = message.as_chunks::<8>();
    ensure!(rest.is_empty(), "a message of {} bytes is not made of words", message.len());
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// The low 32 bits.
pub(super) fn low_u32(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).expect("32 bits remain")
}

/// A length that fits the field it goes into.
pub(super) fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths of the suite are small")
}

/// Number of words of an endpoint.
pub(super) const ENDPOINT_WORDS: usize = 7;

/// An endpoint as words.
pub(super) fn endpoint_to_words(endpoint: &Endpoint) -> [u64; ENDPOINT_WORDS] {
    let qpn = u64::from(endpoint.qpn.get());
    let level = u64::from(endpoint.address.service_level);
    match endpoint.address.route {
        Route::Lid(lid) => [0, qpn, level, u64::from(lid.get()), 0, 0, 0],
        Route::Gid(route) => {
            let gid = u128::from_be_bytes(route.gid.to_bytes());
            let [a, b, c, d, e, f] = route.mac;
            let path = [0, 0, route.hop_limit, route.traffic_class];
            let high = u64::try_from(gid >> 64).expect("64 bits remain");
            let low = u64::try_from(gid & u128::from(u64::MAX)).expect("64 bits remain");
            let path = u64::from(u32::from_be_bytes(path)) << 32 | u64::from(route.flow_label);
            [1, qpn, level, high, low, u64::from_be_bytes([0, 0, a, b, c, d, e, f]), path]
        }
    }
}

/// The inverse of [`endpoint_to_words`].
#[track_caller]
pub(super) fn endpoint_from_words(words: &[u64]) -> Verdict<Endpoint> {
    let Some(&[kind, qpn, level, a, b, c, path]) = words.first_chunk::<ENDPOINT_WORDS>() else {
        return Err(Stop::violation("an endpoint is too short"));
    };
    let route = if kind == 0 {
        Route::Lid(Lid::new(u16::try_from(a).map_err(|_| Stop::violation("LID too large"))?))
    } else {
        let gid = (u128::from(a) << 64 | u128::from(b)).to_be_bytes();
        let [_, _, mac @ ..] = c.to_be_bytes();
        let [_, _, hop_limit, traffic_class, ..] = path.to_be_bytes();
        let flow_label = low_u32(path);
        let gid = Gid::new(gid);
        Route::Gid(GidRoute { gid, mac, hop_limit, traffic_class, flow_label })
    };
    let service_level = u8::try_from(level & 0xf).expect("4 bits remain");
    let address = AddressVector { route, service_level };
    Ok(Endpoint { address, qpn: Qpn::from_low_bits(low_u32(qpn)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_survive_the_channel() {
        let qpn = Qpn::from_low_bits(0x12_3456);
        let gid = GidRoute {
            gid: Gid::new(core::array::from_fn(|i| u8::try_from(i).unwrap())),
            mac: [1, 2, 3, 4, 5, 6],
            hop_limit: 64,
            traffic_class: 106,
            flow_label: 0xf_fff1,
        };
        for route in [Route::Lid(Lid::new(0xbeef)), Route::Gid(gid)] {
            let endpoint = Endpoint { address: AddressVector { route, service_level: 5 }, qpn };
            let back = endpoint_from_words(&endpoint_to_words(&endpoint)).unwrap();
            assert_eq!(back, endpoint);
        }
    }
}
