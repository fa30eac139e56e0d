//! Who has how much of what calls to a peer need: slots, and room for answers in the own ring.
//!
//! Both are counted in one unit: a call counts for as much as it takes of the scarcer one. A client gets
//! at most as much as is left for all others, and a service, whoever calls it, at most three times that
//! (dynamic thresholds: Choudhury and Hahne, 1998). So n clients that never let go have n parts of n + 1,
//! and the next one finds the last part. Calls to the daemon itself may take what is set aside for them.

use client::message::DAEMON;
use rpc::Account;

use crate::client_port::ClientTag;

/// All of the slots, or of the room for answers, of a peer.
const WHOLE: u32 = 1 << 20;

/// Set aside for calls to daemons.
const FOR_DAEMONS: u32 = WHOLE / 64;

/// A service gets at most so many times what is left.
const SERVICE_WEIGHT: u32 = 3;

/// Services are told apart by so many remainders of their numbers.
const SERVICES: usize = 256;

/// Bytes of an answer besides its body, at most: headers, and what fills its last line.
const ANSWER_OVERHEAD_BYTES: u64 = 88;

/// While more than this is free, nobody can have too much, so nobody's share is counted.
const AMPLE: u32 = WHOLE / 4 * 3;

/// What a call takes of its peer, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) rank: u32,
    units: u32,
    client: ClientTag,
    service: u16,
    /// Room for the answer.
    answer_bytes: u32,
}

impl Charge {
    /// Whom its bodies are for.
    pub(super) fn account(&self) -> Account {
        Account { caller: Some(self.client.number()), method: Some(self.service) }
    }

    /// The service that it is a call of.
    pub(super) fn service(&self) -> u16 {
        self.service
    }

    /// Room for its answer.
    pub(super) fn answer_bytes(&self) -> usize {
        self.answer_bytes as usize
    }

    /// Whether it is for this client.
    pub(super) fn is_for(&self, client: ClientTag) -> bool {
        self.client == client
    }
}

#[derive(Debug)]
struct Peer {
    free: u32,
    /// What a call takes at least.
    slot_units: u32,
    /// Something became free since it was looked at last.
    is_freed: bool,
    /// The shares of clients and services are counted, from when little is free until all is.
    is_counted: bool,
    /// Calls in flight by the client's number.
    by_client: Vec<u32>,
    by_service: Box<[u32]>,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Granted,
    /// Its client or its service has its share.
    Refused,
    /// It has to be [counted](Shares::count) first who has what.
    Uncounted,
}

/// The shares of all peers.
#[derive(Debug)]
pub(super) struct Shares {
    peers: Vec<Peer>,
    /// Units of a byte of an answer, times 2³².
    byte_units_q32: u64,
}

impl Shares {
    /// For ranks below `size`: how many slots each has, and how many bytes for answers.
    pub(super) fn new(size: u32, slots: impl Fn(u32) -> u32, answer_bytes: usize) -> Self {
        let peer = |rank| Peer {
            free: WHOLE,
            slot_units: WHOLE.div_ceil(slots(rank).max(1)).min(WHOLE - FOR_DAEMONS),
            is_freed: false,
            is_counted: false,
            by_client: Vec::new(),
            by_service: Box::default(),
        };
        Self {
            peers: (0..size).map(peer).collect(),
            byte_units_q32: (u64::from(WHOLE) << 32) / answer_bytes.max(1) as u64,
        }
    }

    /// What a call takes whose answer has at most so many bytes.
    #[inline]
    pub(super) fn charge(
        &self,
        rank: u32,
        client: ClientTag,
        service: u16,
        answer: usize,
    ) -> Charge {
        let bytes = answer as u64 + ANSWER_OVERHEAD_BYTES;
        // At most a quarter: longer answers go by rendezvous.
        let of_bytes = bytes.saturating_mul(self.byte_units_q32) >> 32;
        let of_bytes = u32::try_from(of_bytes).unwrap_or(WHOLE).min(WHOLE / 4);
        let units = self.peers[rank as usize].slot_units.max(of_bytes);
        let answer_bytes = u32::try_from(answer).unwrap_or(u32::MAX);
        Charge { rank, units, client, service, answer_bytes }
    }

    /// Whether so much is free that nobody else could miss what a call takes.
    #[inline]
    pub(super) fn is_ample(&self, charge: &Charge) -> bool {
        let peer = &self.peers[charge.rank as usize];
        !peer.is_counted && peer.free > AMPLE + charge.units
    }

    /// Takes what a call needs, if it may.
    #[inline]
    pub(super) fn admit(&mut self, charge: &Charge) -> Share {
        let is_ample = self.is_ample(charge);
        let peer = &mut self.peers[charge.rank as usize];
        if is_ample {
            peer.free -= charge.units;
            return Share::Granted;
        }
        peer.admit_counted(charge)
    }

    /// Counts who has what of a peer: `charges` are those of all calls.
    #[cold]
    pub(super) fn count<'a>(&mut self, rank: u32, charges: impl Iterator<Item = &'a Charge>) {
        let peer = &mut self.peers[rank as usize];
        peer.is_counted = true;
        peer.by_service = vec![0; SERVICES].into();
        peer.by_client.fill(0);
        for charge in charges.filter(|charge| charge.rank == rank) {
            let (of_client, of_service) = peer.of(charge);
            *of_client += charge.units;
            *of_service += charge.units;
        }
    }

    /// A call ended that was admitted.
    #[inline]
    pub(super) fn release(&mut self, charge: &Charge) {
        let peer = &mut self.peers[charge.rank as usize];
        peer.free += charge.units;
        peer.is_freed = true;
        if peer.is_counted {
            peer.release_counted(charge);
        }
    }

    /// Whether something of a peer became free since the last look.
    pub(super) fn take_freed(&mut self, rank: u32) -> bool {
        core::mem::take(&mut self.peers[rank as usize].is_freed)
    }
}

impl Peer {
    /// What the client and the service of a call have.
    fn of(&mut self, charge: &Charge) -> (&mut u32, &mut u32) {
        let client = charge.client.slot as usize;
        if self.by_client.len() <= client {
            self.by_client.resize(client + 1, 0);
        }
        let service = usize::from(charge.service) % SERVICES;
        (&mut self.by_client[client], &mut self.by_service[service])
    }

    #[inline(never)]
    fn admit_counted(&mut self, charge: &Charge) -> Share {
        if !self.is_counted {
            return Share::Uncounted;
        }
        let aside = if charge.service == DAEMON { 0 } else { FOR_DAEMONS };
        let left = self.free.saturating_sub(aside);
        let units = charge.units;
        let (of_client, of_service) = self.of(charge);
        if *of_client + units > left || *of_service + units > SERVICE_WEIGHT * left {
            return Share::Refused;
        }
        *of_client += units;
        *of_service += units;
        self.free -= units;
        Share::Granted
    }

    #[inline(never)]
    fn release_counted(&mut self, charge: &Charge) {
        let (of_client, of_service) = self.of(charge);
        *of_client -= charge.units;
        *of_service -= charge.units;
        self.is_counted = self.free < WHOLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Calls {
        Calls { shares: Shares::new(2, |_| 1024, 1 << 17), charges: Vec::new() }
    }

    /// Shares, and the calls that have them.
    struct Calls {
        shares: Shares,
        charges: Vec<Charge>,
    }

    /// How many calls are admitted.
    fn take(calls: &mut Calls, client: u32, service: u16, answer: usize) -> usize {
        let Calls { shares, charges } = calls;
        let tag = ClientTag { slot: client, life: 1 };
        for count in 0..5000 {
            let charge = shares.charge(1, tag, service, answer);
            let mut admission = shares.admit(&charge);
            if admission == Share::Uncounted {
                shares.count(1, charges.iter());
                admission = shares.admit(&charge);
            }
            if admission != Share::Granted {
                return count;
            }
            charges.push(charge);
        }
        unreachable!("there is a bound")
    }

    #[test]
    fn fault_i1_clients_that_never_let_go_leave_an_equal_share_to_the_next() {
        let mut shares = shares();
        let mut counts = Vec::new();
        for client in 0..8 {
            // Services differ, so that none has its share first.
            counts.push(take(&mut shares, client, 100 + u16::try_from(client).unwrap(), 32));
        }
        assert_eq!(counts[0], 504, "half of what is not set aside");
        for (count, before) in counts.iter().skip(1).zip(&counts) {
            assert!(count * 2 <= before + 1 && count * 2 + 1 >= *before, "{counts:?}");
        }
    }

    #[test]
    fn fault_i1_large_answers_count_for_what_they_take() {
        let mut shares = shares();
        let large = take(&mut shares, 0, 7, 4096);
        assert!((14..=16).contains(&large), "{large}: half of the room for answers");
        let small = take(&mut shares, 1, 8, 32);
        assert!(small > 200, "{small} small ones find room beside them");
    }

    #[test]
    fn fault_i1_a_silent_service_leaves_a_quarter_and_calls_to_daemons_have_their_own() {
        let mut shares = shares();
        let of_service: usize = (0..64).map(|client| take(&mut shares, client, 7, 32)).sum();
        assert!((700..=768).contains(&of_service), "{of_service}");
        assert!(take(&mut shares, 100, 8, 32) > 60);
        // All that others may have is taken.
        for client in 200..1400 {
            take(&mut shares, client, u16::try_from(client).unwrap(), 32);
        }
        assert_eq!(take(&mut shares, 1500, 8, 32), 0);
        assert!(take(&mut shares, 1500, DAEMON, 32) > 0);
    }

    #[test]
    fn what_is_released_is_free_again_and_not_counted() {
        let mut calls = shares();
        let count = take(&mut calls, 3, 7, 64);
        assert!(!calls.shares.take_freed(1) && calls.shares.peers[1].is_counted);
        for charge in calls.charges.drain(..) {
            calls.shares.release(&charge);
        }
        assert!(calls.shares.take_freed(1) && !calls.shares.take_freed(1));
        assert_eq!((calls.shares.peers[1].free, calls.shares.peers[1].is_counted), (WHOLE, false));
        assert_eq!(take(&mut calls, 4, 7, 64), count);
    }
}
