//! Calls to other nodes and to other threads that were made and have not ended. Each has what it takes of its peer, from
//! its beginning to its end.

use ids::slots::{Key, SlotTable};
use rpc::Status;

use crate::{
    client_port::ClientPort,
    dispatcher::{
        ReplyTo, Returned,
        answer_room::AnswerRooms,
        shares::{Charge, Share, Shares},
    },
    request_head::{Outgoing, RequestHead},
};

/// A call to another node.
pub(super) struct PendingCall<P: ClientPort> {
    pub(super) reply_to: ReplyTo<P>,
    pub(super) charge: Charge,
    pub(super) taken_ns: u64,
    pub(super) called_ns: u64,
    /// A part of its answer could not be put where its client reads it.
    pub(super) is_torn: bool,
}

/// The calls, by their cookies, the shares of peers that they have, and what their answers need.
pub(super) struct PendingCalls<P: ClientPort> {
    calls: SlotTable<PendingCall<P>>,
    shares: Shares,
    rooms: AnswerRooms,
}

impl<P: ClientPort> PendingCalls<P> {
    /// No calls, to peers that have these shares for them; the ring takes answers of up to `answer_bytes_max`.
    pub(super) fn new(shares: Shares, answer_bytes_max: usize) -> Self {
        Self { calls: SlotTable::default(), shares, rooms: AnswerRooms::new(answer_bytes_max) }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// What a call takes of its peer. While there is plenty, its answer gets as much room as such answers needed lately.
    #[inline]
    pub(super) fn charge(&self, call: &Outgoing) -> Charge {
        let RequestHead { rank, service, response_bytes, .. } = call.head;
        let charge = |answer| self.shares.charge(rank, call.client, service, answer);
        let needed = self.rooms.of(service);
        if needed > response_bytes {
            let ample = charge(needed);
            if self.shares.is_ample(&ample) {
                return ample;
            }
        }
        charge(response_bytes)
    }

    /// A call was answered with success.
    #[inline]
    pub(super) fn learn(&mut self, charge: &Charge, len_bytes: usize) {
        self.rooms.learn(charge.service(), charge.answer_bytes(), len_bytes);
    }

    /// Takes what a call needs, unless its client or its service has its share of the peer. Then the call
    /// [begins](Self::begin).
    #[inline]
    pub(super) fn takes_share(&mut self, charge: &Charge) -> bool {
        match self.shares.admit(charge) {
            Share::Granted => true,
            Share::Refused => false,
            Share::Uncounted => {
                let charges = self.calls.iter().map(|(_, call)| &call.charge);
                self.shares.count(charge.rank, charges);
                self.shares.admit(charge) == Share::Granted
            }
        }
    }

    /// Stores a call that took its share, before it is made.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        charge: Charge,
        reply_to: ReplyTo<P>,
        (taken_ns, called_ns): (u64, u64),
    ) -> Result<Key, Returned<ReplyTo<P>>> {
        let pending = PendingCall { reply_to, charge, taken_ns, called_ns, is_torn: false };
        self.calls.insert(pending).map_err(|PendingCall { reply_to, .. }| {
            self.shares.release(&charge);
            Returned { status: Status::ResourceExhausted, reply_to }
        })
    }

    /// A call has ended, or was not made: its share is free. `None`: it ended before.
    #[inline]
    pub(super) fn end(&mut self, key: Key) -> Option<PendingCall<P>> {
        let call = self.calls.remove(key)?;
        self.shares.release(&call.charge);
        Some(call)
    }

    /// The call of a cookie.
    #[inline]
    pub(super) fn get(&self, cookie: u64) -> Option<&PendingCall<P>> {
        Key::from_u64(cookie).and_then(|key| self.calls.get(key))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, cookie: u64) -> Option<&mut PendingCall<P>> {
        Key::from_u64(cookie).and_then(|key| self.calls.get_mut(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingCall<P>> {
        self.calls.iter().map(|(_, call)| call)
    }

    /// Nobody waits any more for the calls of clients of which `is_over` holds: `each` is told of them.
    pub(super) fn orphan(
        &mut self,
        is_over: impl Fn(P::ReplyTo) -> bool,
        mut each: impl FnMut(P::ReplyTo, &PendingCall<P>),
    ) {
        for (_, call) in self.calls.iter_mut() {
            if let ReplyTo::Client(to) = call.reply_to
                && is_over(to)
            {
                call.reply_to = ReplyTo::Nobody;
                each(to, call);
            }
        }
    }

    /// Whether something of a peer became free since the last look.
    pub(super) fn take_freed(&mut self, rank: u32) -> bool {
        self.shares.take_freed(rank)
    }
}

#[cfg(test)]
mod tests {
    use client::message::CallerHead;

    use super::*;
    use crate::{ClientTag, IpcPort, limits::CallerId};

    type Calls = PendingCalls<IpcPort>;

    fn outgoing(client: u32, service: u16) -> Outgoing {
        let client = ClientTag { slot: client, life: 1 };
        let head = RequestHead {
            caller_id: CallerId::Client(client),
            caller: CallerHead::default(),
            from_rank: 0,
            rank: 1,
            service,
            method: 0,
            deadline_ns: 2,
            response_bytes: 32,
        };
        Outgoing { head, client, taken_ns: 1 }
    }

    /// Calls a peer for a client until that has its share.
    fn begin_all(calls: &mut Calls, client: u32) -> Vec<Key> {
        let mut keys = Vec::new();
        let charge = calls.charge(&outgoing(client, 7));
        while calls.takes_share(&charge) {
            keys.push(calls.begin(charge, ReplyTo::Nobody, (3, 4)).ok().unwrap());
        }
        keys
    }

    #[test]
    fn a_call_has_its_share_until_it_ends_and_ends_once() {
        let mut calls = Calls::new(Shares::new(2, |_| 64, 1 << 17), 16_000);
        let keys = begin_all(&mut calls, 0);
        assert!((16..64).contains(&keys.len()), "{}", keys.len());
        assert_eq!((calls.len(), calls.iter().count()), (keys.len(), keys.len()));
        assert!(!calls.take_freed(1));
        let ended = calls.end(keys[0]).unwrap();
        assert_eq!((ended.taken_ns, ended.called_ns, ended.charge.rank), (3, 4, 1));
        assert!(calls.end(keys[0]).is_none() && calls.get(keys[0].to_u64()).is_none());
        assert!(calls.take_freed(1) && !calls.take_freed(1));
        assert_eq!(begin_all(&mut calls, 0).len(), 1, "what became free");
        for key in keys.into_iter().skip(1) {
            assert!(calls.get(key.to_u64()).is_some());
            calls.end(key).unwrap();
        }
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn a_client_that_has_its_share_leaves_as_much_to_the_next() {
        let mut calls = Calls::new(Shares::new(2, |_| 1024, 1 << 17), 16_000);
        let first = begin_all(&mut calls, 0);
        let charge = calls.charge(&outgoing(1, 8));
        assert!(calls.takes_share(&charge), "another client and service");
        calls.begin(charge, ReplyTo::Nobody, (0, 0)).ok().unwrap();
        assert_eq!(calls.len(), first.len() + 1);
    }

    /// Answers that are longer than their callers say come ahead while there is plenty of room, and take none that
    /// others asked for.
    #[test]
    fn fault_i1_answers_get_the_room_that_they_needed_lately_only_while_there_is_plenty() {
        let mut calls = Calls::new(Shares::new(2, |_| 1024, 1 << 17), 16_000);
        let first = calls.charge(&outgoing(0, 7));
        assert_eq!(first.answer_bytes(), 32);
        calls.learn(&first, 4096);
        assert_eq!(calls.charge(&outgoing(0, 8)).answer_bytes(), 32);
        let mut rooms = Vec::new();
        for client in 0..100 {
            let charge = calls.charge(&outgoing(client, 7));
            assert!(calls.takes_share(&charge));
            calls.begin(charge, ReplyTo::Nobody, (0, 0)).ok().unwrap();
            rooms.push(charge.answer_bytes());
        }
        let ahead = rooms.iter().filter(|room| **room == 4096).count();
        assert!((6..=8).contains(&ahead), "a quarter of all room: {ahead}");
        assert!(
            rooms[ahead..].iter().all(|room| *room == 32),
            "the rest is whose callers ask for it"
        );
    }
}
