//! The receiving half of a queue pair: checks a request, moves its bytes, reports its arrival.

use memory::sync::AtomicU64;
use verbs::{Access, Transport};
use wire::{
    cqe::{self, CqeView, ResponderCqe, ResponderKind, Scatter, Source, Syndrome},
    wqe::{RecvWqe, Sge},
};

use super::{
    Chunk, Extent, Key, Order, Reply, Request, Verb, atomic, chunk,
    global_route::{GRH_BYTES, GlobalRoute},
};
use crate::{
    nic::card::{
        target::Target,
        views::{RECV_WQE_BYTES_MAX, RqView, Taken, scatter_for},
    },
    shared::{Holder, claims::TakeError, port_lock::PortLock},
};

/// Pauses between the read and the write of an atomic that is one among NICs only.
const BETWEEN: u32 = 64;

/// Scatter entries of one receive.
const RECV_SGES_MAX: usize = RECV_WQE_BYTES_MAX / 16;

/// Memory of the port that a request has reached.
pub(crate) trait Memory {
    /// Where `len` bytes at `addr` of the region with `key` are mapped here.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`].
    fn locate(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> Result<Chunk, MemoryFault>;

    /// [`locate`](Self::locate), but only where a region was used lately, and without any effect.
    /// `None`: `locate` will tell why.
    fn locate_known(&self, key: u32, addr: u64, len: u64, need: Access, pd: u32) -> Option<Chunk>;

    /// Whether every region that the port shows has arrived here, and so that of each receive that is
    /// posted.
    fn is_complete(&self) -> bool;

    /// Looks for what has not, and tells the same.
    fn complete(&mut self) -> bool;

    /// Who is inside an atomic, where those are atomic among NICs only.
    fn atomics_lock(&self) -> Option<PortLock<'_>> {
        None
    }
}

impl<M: Memory> Memory for &mut M {
    #[inline(always)]
    fn locate(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> Result<Chunk, MemoryFault> {
        (**self).locate(key, addr, len, need, pd)
    }

    #[inline(always)]
    fn locate_known(&self, key: u32, addr: u64, len: u64, need: Access, pd: u32) -> Option<Chunk> {
        (**self).locate_known(key, addr, len, need, pd)
    }

    #[inline(always)]
    fn is_complete(&self) -> bool {
        (**self).is_complete()
    }

    fn complete(&mut self) -> bool {
        (**self).complete()
    }

    fn atomics_lock(&self) -> Option<PortLock<'_>> {
        (**self).atomics_lock()
    }
}

/// Why memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFault {
    /// Wrong key, domain, bounds or rights.
    Denied,
    /// The region exists, but its memory has not arrived here yet.
    Absent,
}

/// A request at its destination.
#[derive(Debug)]
pub(crate) struct Arrival<'a, M> {
    pub(crate) request: &'a Request,
    /// Payload, or for READs the memory that takes it.
    pub(crate) local: &'a [Chunk],
    pub(crate) target: &'a Target,
    pub(crate) memory: M,
    pub(crate) order: Order,
}

/// Outcome of an arrival: the reply and what it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    /// A completion was written to the target's receive CQ; whether it counts as solicited.
    pub(crate) arrived: Option<bool>,
}

impl From<Reply> for Answered {
    fn from(reply: Reply) -> Self {
        Self { reply, arrived: None }
    }
}

/// Runs a request.
#[inline(always)]
pub(crate) fn respond<M: Memory>(mut arrival: Arrival<'_, M>) -> Answered {
    match arrival.admit() {
        Ok(()) => {}
        Err(reply) => return reply.into(),
    }
    match arrival.request.verb {
        // Once a receive is taken, its region has to be there.
        Verb::Send if !arrival.memory.is_complete() && !arrival.memory.complete() => {
            Reply::Connecting.into()
        }
        Verb::Send => arrival.receive(None),
        Verb::Write => match arrival.locate_write() {
            Err(reply) => reply.into(),
            Ok(remote) if arrival.request.imm.is_some() => arrival.receive(remote),
            Ok(remote) => {
                arrival.write_located(remote);
                Reply::Ack.into()
            }
        },
        Verb::Read => arrival.read().into(),
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => arrival.atomic().into(),
    }
}

impl<M: Memory> Arrival<'_, M> {
    /// Whether this sender may be heard at all.
    #[inline(always)]
    fn admit(&self) -> Result<(), Reply> {
        let (target, request) = (self.target, self.request);
        match (target.transport, request.key) {
            (Transport::Rc, Key::Connected) if target.is_peer(request.from) => Ok(()),
            (Transport::Ud, Key::Ud(key)) if target.key == u64::from(key.get()) => Ok(()),
            (Transport::Dct, Key::Dc(key)) if target.key == key.get() => Ok(()),
            (Transport::Dct, Key::Dc(_)) => Err(Reply::Refused(Syndrome::RemoteAccess)),
            _ => Err(Reply::Silence),
        }
    }

    /// Refuses; an RC queue pair breaks down by it, a DC target serves others on.
    fn refuse(&self, theirs: Syndrome, ours: Syndrome) -> Reply {
        if self.target.transport != Transport::Dct && !self.target.is_unreliable {
            self.target.break_down(ours);
        }
        if self.target.transport == Transport::Ud { Reply::Silence } else { Reply::Refused(theirs) }
    }

    /// The remote memory that the request names.
    #[inline(always)]
    fn remote(&mut self, need: Access) -> Result<Chunk, Reply> {
        let request = self.request;
        if !self.target.access.contains(need) {
            return Err(self.refuse(Syndrome::RemoteAccess, Syndrome::LocalAccess));
        }
        let (key, len) = (request.rkey.get(), u64::from(request.len_bytes));
        match self.memory.locate(key, request.addr, len, need, self.target.pd) {
            Ok(chunk) => Ok(chunk),
            Err(MemoryFault::Absent) => Err(Reply::Connecting),
            Err(MemoryFault::Denied) => {
                Err(self.refuse(Syndrome::RemoteAccess, Syndrome::LocalAccess))
            }
        }
    }

    /// Where a WRITE goes; `None` if it has no bytes.
    #[inline(always)]
    fn locate_write(&mut self) -> Result<Option<Chunk>, Reply> {
        // IBTA 9.7.5.1.1: a request of zero bytes is not checked against a key.
        if self.request.len_bytes == 0 {
            return Ok(None);
        }
        self.remote(Access::REMOTE_WRITE).map(Some)
    }

    #[inline(always)]
    fn write_located(&self, to: Option<Chunk>) {
        if let Some(to) = to {
            // SAFETY: `locate` checked `to` for writing, `gather` checked `local`; the sender's
            // presence keeps both mapped.
            unsafe { chunk::copy(&[to], self.local, self.order) };
        }
    }

    /// Whether the peer may run one more READ or atomic here.
    fn admit_read(&self) -> Result<(), Reply> {
        let outstanding = match self.request.extent {
            Extent::Whole => 1,
            Extent::Checks { outstanding } => outstanding,
        };
        match usize::from(self.target.reads_in_max) {
            // The right to them is gone: Linux `drivers/infiniband/hw/mlx5/qp.c`, `set_qpc_atomic_flags`.
            0 => Err(self.refuse(Syndrome::RemoteAccess, Syndrome::LocalAccess)),
            // IBTA 9.7.5.1.3: more than the responder has resources for.
            max if outstanding > max => {
                Err(self.refuse(Syndrome::RemoteInvalidRequest, Syndrome::LocalQpOperation))
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self) -> Reply {
        if let Err(reply) = self.admit_read() {
            return reply;
        }
        if self.request.len_bytes == 0 {
            return Reply::Ack;
        }
        match self.remote(Access::REMOTE_READ) {
            Err(reply) => reply,
            Ok(_) if self.request.extent != Extent::Whole => Reply::Ack,
            Ok(from) => {
                // SAFETY: `gather` checked `local` for writing, `locate` checked `from`; the
                // sender's presence keeps both mapped.
                unsafe { chunk::copy(self.local, &[from], self.order) };
                Reply::Ack
            }
        }
    }

    fn atomic(&mut self) -> Reply {
        if let Err(reply) = self.admit_read() {
            return reply;
        }
        if !self.request.addr.is_multiple_of(8) {
            return self.refuse(Syndrome::RemoteInvalidRequest, Syndrome::LocalQpOperation);
        }
        let word = match self.remote(Access::REMOTE_ATOMIC) {
            Ok(chunk) if chunk.ptr.cast::<AtomicU64>().is_aligned() => chunk.ptr.cast::<u64>(),
            Ok(_) => {
                return self.refuse(Syndrome::RemoteInvalidRequest, Syndrome::LocalQpOperation);
            }
            Err(reply) => return reply,
        };
        if self.request.extent != Extent::Whole {
            return Reply::Ack;
        }
        // SAFETY: 8 aligned bytes that `locate` checked; the sender's presence keeps them mapped,
        // and everybody accesses them as atomics or through `memory::copy`.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let (verb, holder) = (self.request.verb, self.request.from.0.get());
        match self.memory.atomics_lock() {
            None => Reply::Value(atomic::with_all(word, verb)),
            Some(lock) => atomic::among_nics(word, verb, (lock, holder), || {
                (0..BETWEEN).for_each(|_| core::hint::spin_loop());
            }),
        }
    }

    /// Takes a receive, moves the bytes (into it, or for WRITE to `remote`) and reports the arrival.
    #[inline(always)]
    fn receive(&mut self, remote: Option<Chunk>) -> Answered {
        let Some(rq) = &self.target.rq else {
            return self.refuse(Syndrome::RemoteInvalidRequest, Syndrome::LocalQpOperation).into();
        };
        let holder = self.request.from.0.get();
        let (taken, position) = match self.target.take(rq, holder, rq.is_exclusive()) {
            Ok(both) => both,
            Err(TakeError::Empty | TakeError::Contended) => {
                return Reply::NotReady { wait_ns: self.target.rnr_wait_ns }.into();
            }
            Err(TakeError::Broken) => {
                let ours = Syndrome::LocalQpOperation;
                return self.refuse(Syndrome::RemoteOperation, ours).into();
            }
        };
        let Ok(position) = position else {
            return lose(self.target, rq, taken, holder);
        };
        if self.request.verb == Verb::Write {
            self.write_located(remote);
            return self.report(rq, taken, position, Placed::Memory, &[]);
        }
        self.deliver(rq, taken, position)
    }

    /// Moves a SEND's bytes into the receive that was taken for it, and reports it in the completion
    /// at `position`.
    #[inline(always)]
    pub(super) fn deliver(&mut self, rq: &RqView, taken: Taken, position: u64) -> Answered {
        let mut inline = [0; cqe::INLINE_64_BYTES];
        match self.place(rq, taken.index, &mut inline) {
            Ok(placed) => self.report(rq, taken, position, placed, &inline),
            Err((theirs, ours)) => self.report_failure(rq, taken, position, theirs, ours),
        }
    }

    /// Moves a SEND's bytes into receive `index`, or into `inline` if they may travel in the CQE.
    fn place(
        &mut self,
        rq: &RqView,
        index: u16,
        inline: &mut [u8; cqe::INLINE_64_BYTES],
    ) -> Result<Placed, (Syndrome, Syndrome)> {
        let len = self.request.len_bytes as usize;
        let is_ud = self.target.transport == Transport::Ud;
        let mut bytes = [0; RECV_WQE_BYTES_MAX];
        let raw = rq.read_wqe(index, &mut bytes);
        let wqe = if rq.srqn.is_some() { RecvWqe::parse_srq(raw) } else { RecvWqe::parse_rq(raw) };
        let wqe = wqe.map_err(|_| (Syndrome::RemoteOperation, Syndrome::LocalQpOperation))?;
        let room = wqe.capacity_bytes();
        let header = if is_ud { GRH_BYTES } else { 0 };
        if room < u64::from(self.request.len_bytes) + u64::from(header) {
            return Err((Syndrome::RemoteInvalidRequest, Syndrome::LocalLength));
        }
        if self.target.scatter_to_cqe
            && !is_ud
            && (1..=self.target.cq.scatter_room()).contains(&len)
        {
            // SAFETY: `gather` checked `local`; the sender's presence keeps it mapped.
            let copied = unsafe { chunk::copy_out_of(self.local, &mut inline[..len]) };
            debug_assert_eq!(copied, len);
            return Ok(Placed::InCqe);
        }
        let mut scatter =
            [Chunk { ptr: core::ptr::null_mut(), len: 0, is_inline: false }; RECV_SGES_MAX];
        let mut count = 0;
        // As an adapter does: what no byte of the message goes to is not looked at.
        let mut left = self.request.len_bytes + header;
        for (sge, chunk) in wqe.sges().zip(&mut scatter) {
            if left == 0 {
                break;
            }
            let touched = Sge { len_bytes: sge.len_bytes.min(left), ..sge };
            *chunk = self.scatter_entry(&touched, rq.pd)?;
            left -= touched.len_bytes;
            count += 1;
        }
        if is_ud {
            self.scribble_header(&scatter[..count]);
            self.place_header(&scatter[..count]);
        }
        let scatter =
            if is_ud { skip(&mut scatter[..count], GRH_BYTES as usize) } else { &scatter[..count] };
        // SAFETY: `locate` checked `scatter` for writing, `gather` checked `local`; the sender's
        // presence keeps both mapped.
        unsafe { chunk::copy(scatter, self.local, self.order) };
        Ok(Placed::Memory)
    }

    /// Writes the global route header that came, and that lies before a datagram.
    fn place_header(&self, scatter: &[Chunk]) {
        if !self.request.has_grh {
            return;
        }
        let route = GlobalRoute::of_word(self.request.addr);
        let mut header = route.header(self.request.from.0, self.request.len_bytes);
        let from = Chunk { ptr: header.as_mut_ptr(), len: header.len(), is_inline: false };
        // SAFETY: as in `scribble_header`.
        unsafe { chunk::copy(scatter, &[from], Order::Ascending) };
    }

    /// Strict mode: the place of a global route header holds anything where none came.
    fn scribble_header(&self, scatter: &[Chunk]) {
        let Order::Shuffled(seed) = self.order else { return };
        let mut random = crate::nic::strict::Random::new(seed);
        let mut header: [u8; GRH_BYTES as usize] =
            core::array::from_fn(|_| random.next().to_le_bytes()[0]);
        let from = Chunk { ptr: header.as_mut_ptr(), len: header.len(), is_inline: false };
        // SAFETY: `locate` checked `scatter` for writing, and the sender's presence keeps it mapped; `header`
        // is this function's.
        unsafe { chunk::copy(scatter, &[from], Order::Ascending) };
    }

    fn scatter_entry(&mut self, sge: &Sge, pd: u32) -> Result<Chunk, (Syndrome, Syndrome)> {
        let (key, len) = (sge.lkey.get(), u64::from(sge.len_bytes));
        let found = self.memory.locate(key, sge.addr, len, Access::LOCAL_WRITE, pd);
        found.map_err(|_| (Syndrome::RemoteOperation, Syndrome::LocalProtection))
    }

    #[inline(always)]
    fn release(&self, rq: &RqView, taken: Taken) {
        release(rq, taken, self.request.from.0.get(), rq.is_exclusive());
    }

    /// Writes the completion of receive `index`.
    #[inline(always)]
    fn report(
        &self,
        rq: &RqView,
        taken: Taken,
        position: u64,
        placed: Placed,
        inline: &[u8],
    ) -> Answered {
        let request = self.request;
        let kind = match (request.verb, request.imm) {
            (Verb::Send, None) => ResponderKind::Send,
            (Verb::Send, Some(imm)) => ResponderKind::SendImm(imm),
            (_, imm) => ResponderKind::WriteImm(imm.unwrap_or(0)),
        };
        let is_ud = self.target.transport == Transport::Ud;
        let byte_cnt = request.len_bytes + if is_ud { GRH_BYTES } else { 0 };
        let payload = &inline[..inline.len().min(request.len_bytes as usize)];
        let scattered = match placed {
            Placed::InCqe => scatter_for(self.target.cq.scatter_room(), payload),
            Placed::Memory => None,
        };
        let (scatter, beside) = scattered.unwrap_or((Scatter::Memory, &[]));
        let source = (self.target.transport != Transport::Rc).then(|| source_of(request));
        let cqe = CqeView::Responder(ResponderCqe {
            kind,
            qpn: self.target.qpn,
            wqe_counter: taken.counter,
            user_index: self.target.user_index,
            byte_cnt,
            scatter,
            source: Some(source.unwrap_or_default()),
            solicited: request.solicited,
            timestamp: 0,
        });
        self.target.cq.publish_at(position, &cqe, beside, || self.release(rq, taken));
        Answered { reply: Reply::Ack, arrived: Some(request.solicited) }
    }

    fn report_failure(
        &self,
        rq: &RqView,
        taken: Taken,
        position: u64,
        theirs: Syndrome,
        ours: Syndrome,
    ) -> Answered {
        let cqe = receive_error(self.target, taken.counter, ours);
        self.target.cq.publish_at(position, &cqe, &[], || self.release(rq, taken));
        Answered { reply: self.refuse(theirs, ours), arrived: Some(true) }
    }
}

/// The completion of a receive is published. `is_alone`: the queue is exclusive, whether or not it was
/// when the receive was taken, since no other sender is inside before this one has left.
#[inline(always)]
pub(super) fn release(rq: &RqView, taken: Taken, holder: Holder, is_alone: bool) {
    if is_alone {
        rq.release_alone(taken);
    } else {
        rq.release(taken, holder);
    }
}

/// The completion of a consumed receive could not be written: the CQ is dead.
#[cold]
pub(super) fn lose(target: &Target, rq: &RqView, taken: Taken, holder: Holder) -> Answered {
    // Whoever is alone holds its claim too, so it may release it as others do.
    release(rq, taken, holder, false);
    target.break_down(Syndrome::LocalQpOperation);
    Reply::Refused(Syndrome::RemoteOperation).into()
}

/// Where a SEND's payload went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    Memory,
    InCqe,
}

/// Who sent it, as its completion says.
pub(super) fn source_of(request: &Request) -> Source {
    let (lid, qpn) = request.from;
    let is_datagram = request.has_grh && matches!(request.key, Key::Ud(_));
    let kind = if is_datagram { GlobalRoute::of_word(request.addr).kind() } else { 0 };
    Source {
        qpn,
        service_level: if kind == 0 { request.service_level } else { kind },
        grh: u8::from(request.has_grh),
        slid: lid,
        ml_path: 0,
    }
}

/// A receive that fails.
fn receive_error(target: &Target, counter: u16, syndrome: Syndrome) -> CqeView<'static> {
    CqeView::Error(cqe::ErrorCqe {
        is_requester: false,
        qpn: target.qpn,
        wqe_counter: counter,
        user_index: target.user_index,
        send_opcode: 0,
        syndrome,
        vendor_syndrome: 0,
    })
}

/// Leaves the first `len` bytes of a scatter list out.
fn skip(list: &mut [Chunk], mut len: usize) -> &[Chunk] {
    for chunk in list.iter_mut() {
        let part = len.min(chunk.len);
        chunk.ptr = chunk.ptr.wrapping_add(part);
        chunk.len -= part;
        len -= part;
    }
    list
}
