//! The short way of what nearly all traffic is: WRITEs and SENDs of one piece, on RC and DC, and SENDs on UD.
//!
//! It does what `issue` does with such a request, and declines, before anything is done, whatever is not as
//! it nearly always is: the long way finds out what is wrong, and says so. So the checks here need to be as
//! strict, but have no answers of their own. The WQE is read where it is, nothing is gathered in lists on the
//! way, and the request is never in memory. Its other half, at the destination, is `arrive`.

use verbs::Transport;
use wire::{
    ids::{Lid, Qpn},
    wqe::{self, Av, AvKey, CtrlFlags, PlainKind, PlainPayload, PlainSend, wqebbs},
};

use super::{
    Chunk, Key, Verb,
    issue::{Header, SendAddress, UD_BYTES_MAX, request},
    port::{Carried, Completed, Done, Port, SendQueue},
    requester::{Requester, SendState, complete},
};

/// Transports of queues, which the compiler knows in each loop.
const RC: u8 = 0;
const DCI: u8 = 1;
const UD: u8 = 2;

impl Requester {
    /// Takes plain WQEs, at most `budget`, up to one that has to go the long way or has to wait;
    /// returns how many.
    #[inline(always)]
    pub(super) fn run_plain<Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        budget: usize,
    ) -> usize {
        let (mut taken, mut last) = (0, None);
        // With something in flight there may be READs that this must not overtake, or that hold a DC
        // initiator to another target.
        while self.state == SendState::Running
            && self.inflight.is_empty()
            && taken < budget
            && self.next != posted
        {
            let kind = queue.plain_kind(self.next);
            if kind == last {
                break;
            }
            last = kind;
            let left = budget - taken;
            taken += match (self.transport, kind) {
                (Transport::Rc, Some(PlainKind::Write)) => {
                    self.run_kind::<RC, false, _, _>(posted, queue, port, left)
                }
                (Transport::Rc, Some(PlainKind::Send)) => {
                    self.run_kind::<RC, true, _, _>(posted, queue, port, left)
                }
                (Transport::Dci, Some(PlainKind::Write)) => {
                    self.run_kind::<DCI, false, _, _>(posted, queue, port, left)
                }
                (Transport::Dci, Some(PlainKind::Send)) => {
                    self.run_kind::<DCI, true, _, _>(posted, queue, port, left)
                }
                (Transport::Ud, Some(PlainKind::Send)) => {
                    self.run_kind::<UD, true, _, _>(posted, queue, port, left)
                }
                _ => break,
            };
        }
        taken
    }

    /// [`run_plain`](Self::run_plain) up to a WQE of another kind: a loop that knows what it reads.
    #[inline(never)]
    fn run_kind<const TRANSPORT: u8, const IS_SEND: bool, Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        queue: &Q,
        port: &mut P,
        budget: usize,
    ) -> usize {
        let from = (port.lid(), self.qpn);
        let peer = if TRANSPORT == RC { self.peer } else { None };
        if peer.is_none() && TRANSPORT == RC {
            return 0;
        }
        let mut taken = 0;
        while taken < budget && self.next != posted {
            if !self.take_plain::<TRANSPORT, IS_SEND, _, _>(posted, from, peer, queue, port) {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// `take_one` for a plain WQE. `false`: it has failed; or it is something else, or something is
    /// not as it nearly always is, and nothing was done.
    #[inline(always)]
    fn take_plain<const TRANSPORT: u8, const IS_SEND: bool, Q: SendQueue, P: Port>(
        &mut self,
        posted: u16,
        from: (Lid, Qpn),
        peer: Option<(Lid, Qpn)>,
        queue: &Q,
        port: &mut P,
    ) -> bool {
        let transport = match TRANSPORT {
            DCI => wqe::Transport::Dci,
            UD => wqe::Transport::Ud,
            _ => wqe::Transport::Rc,
        };
        let kind = if IS_SEND { PlainKind::Send } else { PlainKind::Write };
        let counter = self.next;
        let found = queue.plain(counter, transport, kind, from.1);
        let Some((wqe, inline)) = found else { return false };
        let blocks = wqebbs(wqe.octowords);
        if blocks > posted.wrapping_sub(counter) {
            return false;
        }
        match issue_plain(&wqe, inline, from, peer, port) {
            Carried::Done => {}
            Carried::Declined => return false,
            Carried::Refused(syndrome) => {
                self.next = counter.wrapping_add(blocks);
                self.fail(done(&wqe, counter), syndrome, port);
                return false;
            }
        }
        self.next = counter.wrapping_add(blocks);
        if self.has_retried {
            self.refill_retries();
        }
        if wqe.flags.contains(CtrlFlags::CQ_UPDATE) {
            complete(&done(&wqe, counter), port);
        }
        true
    }
}

/// Carries `wqe` of `from` to its destination, or to `peer` if it names none.
#[inline(always)]
fn issue_plain<P: Port>(
    wqe: &PlainSend,
    inline: *const u8,
    from: (Lid, Qpn),
    peer: Option<(Lid, Qpn)>,
    port: &mut P,
) -> Carried {
    let to = match (&wqe.av, peer) {
        (None, Some((lid, qpn))) => SendAddress { lid, qpn, key: Key::Connected },
        (Some(av @ Av { key: AvKey::Dc(key), .. }), _) => {
            SendAddress { lid: port.destination(av), qpn: av.destination, key: Key::Dc(*key) }
        }
        (Some(av @ Av { key: AvKey::Queue(key), .. }), _)
            if wqe.payload.len_bytes() <= UD_BYTES_MAX =>
        {
            SendAddress { lid: port.destination(av), qpn: av.destination, key: Key::Ud(*key) }
        }
        _ => return Carried::Declined,
    };
    let payload = match wqe.payload {
        PlainPayload::Inline { len_bytes } => {
            // Only ever read.
            Chunk { ptr: inline.cast_mut(), len: len_bytes as usize, is_inline: true }
        }
        PlainPayload::Gather(sge) => match port.local(&sge, false) {
            Ok(payload) => payload,
            Err(_) => return Carried::Declined,
        },
    };
    let verb = if wqe.raddr.is_some() { Verb::Write } else { Verb::Send };
    let is_roce = port.is_roce();
    let (av, raddr) = (wqe.av, wqe.raddr);
    let header = Header { from, av, is_roce, raddr, flags: wqe.flags, imm: wqe.imm };
    let request = request(verb, &to, header, wqe.payload.len_bytes());
    port.carry_plain(to.lid, request, payload)
}

/// What is to be said of `wqe` at `counter`.
fn done(wqe: &PlainSend, counter: u16) -> Done {
    let len_bytes = wqe.payload.len_bytes();
    let completed = Completed { opcode: wqe.opcode(), counter, len_bytes, failure: None };
    Done { completed, signaled: wqe.flags.contains(CtrlFlags::CQ_UPDATE) }
}
