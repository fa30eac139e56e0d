//! The owner of time of drive *virtual*, and what it is told.
//!
//! The drive is for simulators. Cards and regions lie on the heap; there are no sockets, threads or clock. The
//! program uses an ordinary `Nic`. The owner of time implements `Timeline`: `now_ns`, `runnable` (a doorbell, with
//! the blocks of a BlueFlame write, or a change of state), `idle` (an empty poll). It drives the port by
//! `VirtualPort`: `peek` shows the next WQE, `issue` executes one, `respond` runs a request that has arrived,
//! `settle` takes an answer. On one thread the same calls have the same effect each time: regions have invented
//! addresses with the LID in them, and tables of objects are ordered. `quiesce` with several threads waits for the
//! thread inside `respond`, through presence word 0 of the card.

use core::{fmt::Debug, time::Duration};
use std::os::fd::BorrowedFd;

use verbs::{AddressVector, Lid, NicAttributes, PortRoute, Qpn, Transport};
use wire::wqe::{self, Ctrl, CtrlFlags, Opcode, Segment, SendWqe, wqebbs};

use crate::nic::engine::Packet;

/// Why a queue pair has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its doorbell was rung: the NIC reads doorbell record and WQEs from memory.
    Doorbell,
    /// A WQE was written to its BlueFlame register.
    BlueFlame {
        /// Length in blocks of 64 bytes.
        blocks: usize,
    },
    /// The port itself: a change of state, or a failure.
    Port,
}

/// The owner of time, which a virtual port asks and tells.
///
/// It is called on the threads of programs and inside calls of [`VirtualPort`](crate::VirtualPort): it must not call a port
/// with a lock held that these methods take.
pub trait Timeline: Debug + Send + Sync {
    /// Now.
    fn now_ns(&self) -> u64;

    /// The queue pair has something to do: [`VirtualPort::issue`](crate::VirtualPort::issue) is to be called, at a time of the owner's
    /// choice.
    fn runnable(&self, port: Lid, qp: Qpn, cause: Cause);

    /// A program has found nothing, in a poll of one of the port's completion queues or in a wait. Says whether
    /// something happened in the call, after which it looks again.
    fn idle(&self, port: Lid) -> bool;

    /// How peers address the port, if not by its LID.
    fn address(&self) -> Option<AddressVector> {
        None
    }

    /// The LID that stands for whom `route` leads to in this port's packets; `None`: the one that it names.
    fn lid_of(&self, route: &PortRoute) -> Option<Lid> {
        let _ = route;
        None
    }

    /// The LID and the [instance](crate::Membership::join) of the port that `route` leads to, if that has joined a
    /// fabric; somewhere, not necessarily here. For ports that have joined one themselves.
    fn instance_of(&self, route: &PortRoute) -> Option<(Lid, u64)> {
        let _ = route;
        None
    }

    /// Whether nothing is lost on the way: each packet gets an answer, at least that it was
    /// [dropped](crate::VirtualPort::dropped), or its destination is [lost](crate::VirtualPort::lose_peer). Then a
    /// requester sends again only what was dropped.
    fn is_reliable(&self) -> bool {
        false
    }

    /// Whether the card is mapped, so that it takes memory as it is used, instead of lying on the heap.
    fn maps_card(&self) -> bool {
        false
    }

    /// Changes what the port says of itself.
    fn describe(&self, attributes: &mut NicAttributes) {
        let _ = attributes;
    }

    /// How long a program may sleep without calling in.
    fn poll_timeout(&self) -> Duration {
        Duration::from_micros(50)
    }

    /// Readable when [`idle`](Self::idle) is to be called: completion channels become readable with it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Outcome of [`VirtualPort::issue`](crate::VirtualPort::issue).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issued {
    /// This request leaves the port.
    Packet(Packet),
    /// A WQE was completed, or flushed, without one. There may be more to do.
    Done,
    /// Nothing can be done before this time, or before an answer comes.
    WaitUntil(u64),
    /// Nothing is to be done.
    Idle,
}

/// A WQE before it is executed, for who prices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextWqe {
    /// Its opcode, as `wire` numbers it.
    pub opcode: u8,
    /// Blocks of 64 bytes.
    pub blocks: u16,
    /// Bytes of its payload, or that it reads.
    pub len_bytes: u64,
    /// Whether its payload is inside it.
    pub is_inline: bool,
    /// Entries of its gather or scatter list.
    pub entries: usize,
    /// Whether it asks for a completion.
    pub is_signaled: bool,
    /// UD and DC: LID and queue pair that it names.
    pub target: Option<(Lid, Qpn)>,
}

impl NextWqe {
    /// Bytes that make no sense count as a NOP.
    pub(crate) fn parse(bytes: &[u8], ctrl: &Ctrl, transport: Transport) -> Self {
        let transport = match transport {
            Transport::Ud => wqe::Transport::Ud,
            Transport::Dci => wqe::Transport::Dci,
            Transport::Rc | Transport::Dct => wqe::Transport::Rc,
        };
        let mut next = Self {
            opcode: Opcode::Nop.code(),
            blocks: wqebbs(ctrl.octowords),
            len_bytes: 0,
            is_inline: false,
            entries: 0,
            is_signaled: ctrl.flags.contains(CtrlFlags::CQ_UPDATE),
            target: None,
        };
        let Ok(wqe) = SendWqe::parse(bytes, transport) else { return next };
        next.opcode = wqe.opcode.code();
        next.target = wqe.av().map(|av| (Lid::new(av.rlid), av.destination));
        for segment in wqe.segments() {
            next.len_bytes += segment.len_bytes();
            match segment {
                Segment::Inline(_) => next.is_inline = true,
                Segment::Sge(_) => next.entries += 1,
            }
        }
        next
    }
}
