//! The harness of every scenario: roles, verdicts, deadlines, and the channel between the roles.

use std::time::{Duration, Instant};

use verbs::{
    AddressVector, Capabilities, Gid, GidRoute, Lid, Mtu, Nic, PortRoute, QpAddress, Qpn,
    RemoteSlice, Rkey,
};

use crate::{
    data::{Buffer, Rng},
    oob::OutOfBand,
};

/// The role of a [`Side`] in the dialogue.
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

/// The place where a NIC is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPlace {
    /// The role that this end plays.
    pub role: Role,
    /// Unique to this run: a software fabric that is named so is shared with no other test.
    /// Hardware ignores it.
    pub fabric: String,
}

/// The suite's expectations of a device, and its waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testbed {
    /// The capabilities that the NIC does not claim: scenarios that need them are skipped, and all others run.
    pub absent: Capabilities,
    /// Scenarios that this device is known to break, each with the rule that it breaks: they are left out, and
    /// say so. For devices that are not ours to mend.
    pub exceptions: &'static [(&'static str, &'static str)],
    /// Longest wait for one thing to happen: generous, because it only bounds a failure.
    pub deadline: Duration,
    /// Longest time for a whole scenario, after which it is abandoned or killed.
    pub scenario_deadline: Duration,
    /// The time for which "nothing happens" is watched.
    pub quiet: Duration,
    /// Channels are readable also when the NIC only has to be called, which may or may not complete something.
    pub wakes_early: bool,
    /// Also run what takes minutes: 24-bit CQ index wrap. `CONFORMANCE_LONG` sets it.
    pub long: bool,
    /// The number of children that [`peer_death`](super::peer_death) kills.
    pub death_rounds: u32,
    /// Of everything random. Printed with every failure; `CONFORMANCE_SEED` overrides it.
    pub seed: u64,
}

impl Testbed {
    /// A NIC that claims every capability, and deadlines of 10 s.
    pub const FULL: Self = Self {
        absent: Capabilities::empty(),
        exceptions: &[],
        deadline: Duration::from_secs(10),
        scenario_deadline: Duration::from_secs(120),
        quiet: Duration::from_millis(5),
        wakes_early: false,
        long: false,
        death_rounds: 8,
        seed: 0x00c0_ffee,
    };
}

impl Testbed {
    /// Whether scenario `name` is left out; says so.
    pub(super) fn leaves_out(&self, name: &str) -> bool {
        let known = self.exceptions.iter().find(|(scenario, _)| *scenario == name);
        if let Some((_, rule)) = known {
            println!("{name}: left out, as this device breaks a rule: {rule}");
        }
        known.is_some()
    }
}

pub use crate::verdict::{Stop, Verdict};
pub(super) use crate::verdict::{ensure, ensure_eq};

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
    /// The role of this side.
    pub role: Role,
    /// The expectations of the device.
    pub testbed: Testbed,
    /// The same sequence at both sides, as long as both draw from it alike.
    pub rng: Rng,
    pub(super) oob: Box<dyn OutOfBand>,
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

    /// Whether the NIC claims `capabilities`.
    pub(super) fn has(&self, capabilities: Capabilities) -> bool {
        self.nic.attributes().capabilities.contains(capabilities)
    }

    /// Skips the scenario at a NIC that does not claim `capabilities`.
    ///
    /// The testbed says the same, or one of the two is wrong: nothing is skipped because a NIC forgot to
    /// claim it, nor because a testbed was written for a lesser one.
    #[track_caller]
    pub(super) fn needs(&self, capabilities: Capabilities) -> Verdict {
        let missing = capabilities - self.nic.attributes().capabilities;
        let absent = capabilities & self.testbed.absent;
        ensure!(missing == absent, "the NIC lacks {missing:?}, and its testbed says {absent:?}");
        if missing.is_empty() { Ok(()) } else { Err(Stop::Skipped(format!("{missing:?}"))) }
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

    /// Exchanges words while nothing else goes on.
    #[track_caller]
    pub(super) fn swap(&mut self, mine: &[u64]) -> Verdict<Vec<u64>> {
        self.tell(mine)?;
        self.hear()
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

pub(super) fn words(message: &[u8]) -> Verdict<Vec<u64>> {
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
pub(super) const ENDPOINT_WORDS: usize = 6;

/// An endpoint as words.
pub(super) fn endpoint_to_words(endpoint: &QpAddress) -> [u64; ENDPOINT_WORDS] {
    let qpn = u64::from(endpoint.qpn.get());
    let level = u64::from(endpoint.address.service_level);
    match endpoint.address.route {
        PortRoute::Lid(lid) => [0, qpn, level, u64::from(lid.get()), 0, 0],
        PortRoute::Gid(route) | PortRoute::Global(_, route) => {
            let (kind, lid) = match endpoint.address.route {
                PortRoute::Global(lid, _) => (2, lid),
                _ => (1, Lid::new(0)),
            };
            let [lid_high, lid_low] = lid.get().to_be_bytes();
            let gid = u128::from_be_bytes(route.gid.to_bytes());
            let path = [lid_high, lid_low, route.hop_limit, route.traffic_class];
            let high = u64::try_from(gid >> 64).expect("64 bits remain");
            let low = u64::try_from(gid & u128::from(u64::MAX)).expect("64 bits remain");
            let path = u64::from(u32::from_be_bytes(path)) << 32 | u64::from(route.flow_label);
            [kind, qpn, level, high, low, path]
        }
    }
}

/// The inverse of [`endpoint_to_words`].
#[track_caller]
pub(super) fn endpoint_from_words(words: &[u64]) -> Verdict<QpAddress> {
    let Some(&[kind, qpn, level, a, b, path]) = words.first_chunk::<ENDPOINT_WORDS>() else {
        return Err(Stop::violation("an endpoint is too short"));
    };
    let route = if kind == 0 {
        PortRoute::Lid(Lid::new(u16::try_from(a).map_err(|_| Stop::violation("LID too large"))?))
    } else {
        let gid = (u128::from(a) << 64 | u128::from(b)).to_be_bytes();
        let [lid_high, lid_low, hop_limit, traffic_class, ..] = path.to_be_bytes();
        let flow_label = low_u32(path);
        let gid = Gid::new(gid);
        let route = GidRoute { gid, hop_limit, traffic_class, flow_label };
        let lid = Lid::new(u16::from_be_bytes([lid_high, lid_low]));
        if kind == 1 { PortRoute::Gid(route) } else { PortRoute::Global(lid, route) }
    };
    let service_level = u8::try_from(level & 0xf).expect("4 bits remain");
    let address = AddressVector { route, service_level };
    Ok(QpAddress { address, qpn: Qpn::from_low_bits(low_u32(qpn)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_survive_the_channel() {
        let qpn = Qpn::from_low_bits(0x12_3456);
        let gid = GidRoute {
            gid: Gid::new(core::array::from_fn(|i| u8::try_from(i).unwrap())),
            hop_limit: 64,
            traffic_class: 106,
            flow_label: 0xf_fff1,
        };
        let lid = Lid::new(0xbeef);
        for route in [PortRoute::Lid(lid), PortRoute::Gid(gid), PortRoute::Global(lid, gid)] {
            let endpoint = QpAddress { address: AddressVector { route, service_level: 5 }, qpn };
            let back = endpoint_from_words(&endpoint_to_words(&endpoint)).unwrap();
            assert_eq!(back, endpoint);
        }
    }
}
