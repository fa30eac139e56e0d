//! What the sending half works on: the ring that it reads, and the port that the drive gives it.

use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
    wqe::{self, Ctrl, Opcode, PlainKind, PlainSend, Sge},
};

use super::{Chunk, Reply, Request, Sequence};

/// Longest send WQE.
pub(crate) const WQE_BYTES_MAX: usize = wqe::OCTOWORDS_MAX as usize * wqe::OCTOWORD_BYTES;

/// The ring that WQEs are fetched from.
pub(crate) trait SendQueue {
    /// Copies the WQE at `counter` to the start of `into`; returns its control segment, and its
    /// length in bytes as that states it.
    fn fetch(&self, counter: u16, into: &mut [u8; WQE_BYTES_MAX]) -> (Ctrl, usize);

    /// What the WQE at `counter` is, if it is plain.
    fn plain_kind(&self, counter: u16) -> Option<PlainKind>;

    /// The WQE at `counter` where it is, if it is of this plain kind and does not wrap; and where its
    /// inline payload is, if it has one.
    fn plain(
        &self,
        counter: u16,
        transport: wqe::Transport,
        kind: PlainKind,
        qpn: Qpn,
    ) -> Option<(PlainSend, *const u8)>;
}

/// A send completion, for the send CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) opcode: Opcode,
    pub(crate) counter: u16,
    pub(crate) len_bytes: u32,
    pub(crate) failure: Option<Syndrome>,
}

/// What the drive offers to the sending half.
pub(crate) trait Port {
    /// This port.
    fn lid(&self) -> Lid;

    /// Checks a local entry; `write` if the NIC is going to store there.
    ///
    /// # Errors
    ///
    /// The syndrome to report.
    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome>;

    /// Whether the port is on Ethernet.
    fn is_roce(&self) -> bool {
        false
    }

    /// The port that an address vector leads to.
    fn destination(&self, av: &wqe::Av) -> Lid;

    /// Carries a request and its payload (or, for READs, the memory for it) to port `to`.
    fn carry(&mut self, to: Lid, request: &Request, local: &[Chunk]) -> Reply;

    /// Whether requests leave as packets, and their answers come later: then [`send`](Self::send) is called
    /// instead of `carry`, and nothing is plain.
    fn answers_later(&self) -> bool;

    /// Whether each packet is answered, at least by silence, or its destination is lost.
    fn is_reliable(&self) -> bool {
        false
    }

    /// Makes a packet of a request and its payload. Its answer goes to the requester's `settle`.
    fn send(&mut self, to: Lid, request: &Request, sequence: Sequence, payload: &[Chunk]);

    /// A number for a connection of a DC initiator: greater than all that this port gave out before.
    fn new_connection(&mut self) -> u32;

    /// [`carry`](Self::carry) of a plain WQE, whose payload is not empty.
    fn carry_plain(&mut self, to: Lid, request: Request, payload: Chunk) -> Carried;

    /// Writes a completion. On failure of the CQ itself the queue pair is moved to ERR.
    fn complete(&mut self, completed: &Completed);

    /// The queue pair fell to ERR (SQE for UD) by an error of its own.
    fn fell(&mut self);

    /// Strict mode: whether to let later requests overtake this READ, atomic or datagram.
    fn defers(&mut self) -> bool;

    /// Whether requests are carried whole and in order: not so in strict mode.
    fn is_plain(&self) -> bool;

    /// Strict mode: whether a deferred request runs now.
    fn resumes(&mut self) -> bool;

    /// A malformed WQE was found.
    fn malformed(&mut self, counter: u16, cause: &'static str);

    /// Now.
    fn now_ns(&mut self) -> u64;
}

/// What became of a plain WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// It was acknowledged.
    Done,
    /// It is something else, or something is not as it nearly always is. Nothing was done: the long
    /// way will tell why.
    Declined,
    /// It was refused.
    Refused(Syndrome),
}

/// A completion, and whether it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) completed: Completed,
    pub(super) signaled: bool,
}
