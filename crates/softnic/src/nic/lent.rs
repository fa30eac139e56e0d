//! Queues and memory that a program has made by itself, as one does whose driver is not this crate's: rings and
//! doorbell records at addresses of its own, regions anywhere.
//!
//! Only ports that no other process reaches have them ([`open_virtual`](crate::open_virtual), on the heap): what
//! peers send arrives as packets, and is run here. Slots, claims and presence stay on the card.

use core::ptr::NonNull;

use memory::{Region, sync::Arc};
use verbs::{Access, Cqn, CreateError, DcKey, Gid, LinkLayer, MemoryError, Qpn, Srqn, Transport};
use wire::ids::UserIndex;

use crate::{
    Channel, Cq, Device, Mr, Pd, Qp, Srq, Violation,
    nic::{
        card::views::RqView,
        gid::{gid_of, ipv4_gid_of},
        objects::{CqShared, Place, RqShared},
        qp::{Amendment, Lent, QpQueues, QpShared},
    },
};

/// A ring that a program has made, and its doorbell record.
#[derive(Clone, Copy, Debug)]
pub struct LentQueue {
    /// Address of the first entry.
    pub ring: u64,
    /// Address of the record's words that belong to this queue.
    pub dbrec: u64,
    /// Base-2 logarithm of the number of entries; of send queues, of 64-byte blocks.
    pub log_entries: u8,
    /// Base-2 logarithm of the bytes of an entry.
    pub log_stride: u8,
}

/// A queue pair whose rings a program has made.
#[derive(Clone, Copy, Debug)]
pub struct LentQp<'a> {
    /// Service type; of an unreliable connection, RC.
    pub transport: Transport,
    /// A connection without answers: nothing is sent again, and a message that finds no receive is lost.
    pub is_unreliable: bool,
    /// Queue of the completions of sends.
    pub send_cq: &'a Cq,
    /// Queue of the completions of receives.
    pub recv_cq: &'a Cq,
    /// Shared receive queue.
    pub srq: Option<&'a Srq>,
    /// Send queue.
    pub send: Option<LentQueue>,
    /// Receive queue.
    pub recv: Option<LentQueue>,
    /// Short payloads go into completion entries.
    pub scatter_to_cqe: bool,
    /// Of a DC target.
    pub access_key: DcKey,
    /// What completions call it.
    pub user_index: u32,
}

impl LentQueue {
    fn place(&self, object: &'static str) -> Result<Place, CreateError> {
        let at = |address: u64, align: usize| {
            let address = usize::try_from(address).ok().filter(|at| at.is_multiple_of(align));
            NonNull::new(core::ptr::with_exposed_provenance_mut(address?))
        };
        let (ring, dbrec) = (at(self.ring, RING_ALIGN), at(self.dbrec, DBREC_ALIGN));
        let (ring, dbrec) = ring.zip(dbrec).ok_or_else(|| CreateError::System {
            object,
            cause: format!("no ring at {:#x} and {:#x}", self.ring, self.dbrec),
        })?;
        Ok(Place { ring, dbrec })
    }
}

const RING_ALIGN: usize = 64;
const DBREC_ALIGN: usize = 4;

impl Device {
    /// Uses a completion queue that a program has made; `entry_bytes` are 64 or 128.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    ///
    /// # Safety
    ///
    /// Ring and record are mapped, and shared with nothing but the program's driver, until the handle and all queue
    /// pairs that use it are gone. The port is on the heap.
    pub unsafe fn lend_cq(
        &self,
        queue: &LentQueue,
        channel: Option<&Channel>,
    ) -> Result<Cq, CreateError> {
        let channel = channel.map(|channel| channel.shared.clone());
        let place = queue.place("completion queue")?;
        let cqe_bytes = 1usize << queue.log_stride;
        let port = &self.0.port;
        let shared =
            Arc::new(CqShared::create(port, queue.log_entries, cqe_bytes, channel, Some(place))?);
        self.0.add_cq(&shared);
        Ok(Cq::new(self, shared))
    }

    /// Rows of the port's GID table. On Ethernet each GID has two: RoCE v1, and behind that v2.
    #[must_use]
    pub fn gid_table(&self) -> Vec<Gid> {
        let port = &self.0.port;
        match port.config.link {
            LinkLayer::InfiniBand => vec![gid_of(port.lid)],
            LinkLayer::Ethernet => {
                let gids = [gid_of(port.lid), ipv4_gid_of(port.lid)];
                gids.into_iter().flat_map(|gid| [gid; 2]).collect()
            }
        }
    }

    /// Uses a shared receive queue that a program has made.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    ///
    /// # Safety
    ///
    /// As for [`lend_cq`](Self::lend_cq).
    pub unsafe fn lend_srq(&self, pd: &Pd, queue: &LentQueue) -> Result<Srq, CreateError> {
        let place = queue.place("shared receive queue")?;
        let LentQueue { log_entries, log_stride, .. } = *queue;
        let port = &self.0.port;
        let shared = RqShared::create(port, pd.0, log_entries, log_stride, true, Some(place))?;
        let shared = Arc::new(shared);
        self.0.add_rq(&shared);
        Ok(Srq::new(self, shared))
    }

    /// Uses a queue pair that a program has made.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    ///
    /// # Safety
    ///
    /// As for [`lend_cq`](Self::lend_cq), of each ring and record.
    pub unsafe fn lend_qp(&self, pd: &Pd, lent: &LentQp<'_>) -> Result<Qp, CreateError> {
        let place =
            |queue: Option<LentQueue>| queue.map(|queue| queue.place("queue pair")).transpose();
        let may_scatter =
            lent.transport != Transport::Dct || lent.recv_cq.shared.view.has_payload_half();
        let queues = QpQueues {
            transport: lent.transport,
            send_cq: lent.send_cq.shared.clone(),
            recv_cq: lent.recv_cq.shared.clone(),
            srq: lent.srq.map(|srq| srq.shared.clone()),
            log_send_blocks: lent.send.map(|queue| queue.log_entries),
            recv: lent.recv.map(|queue| [queue.log_entries, queue.log_stride]),
            scatter_to_cqe: lent.scatter_to_cqe && may_scatter,
            access_key: lent.access_key.get(),
            lent: Some(Lent {
                send: place(lent.send)?,
                recv: place(lent.recv)?,
                user_index: UserIndex::from_low_bits(lent.user_index),
                is_unreliable: lent.is_unreliable,
            }),
        };
        let shared = QpShared::create(&self.0.port, pd.0, queues)?;
        self.0.add_qp(&shared);
        Ok(Qp::new(self, shared))
    }

    /// Registers memory that a program has made, at `addr`; requests name its first byte as `iova`. Memory that
    /// the program unmaps is refused when it is accessed.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    ///
    /// # Safety
    ///
    /// As for [`Region::lent`].
    pub unsafe fn lend_memory(
        &self,
        pd: &Pd,
        (addr, len_bytes): (u64, u64),
        iova: u64,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        let refused = || MemoryError::Unfit { cause: "the range is empty, or wraps".to_owned() };
        let (addr, len) =
            usize::try_from(addr).ok().zip(usize::try_from(len_bytes).ok()).ok_or_else(refused)?;
        let base =
            NonNull::new(core::ptr::with_exposed_provenance_mut(addr)).ok_or_else(refused)?;
        // SAFETY: by contract.
        let region = unsafe { Region::lent(base, len) }.ok_or_else(refused)?;
        Mr::lend(&self.0.port, &self.1, pd.0, region, iova, access)
    }
}

impl Cq {
    /// The number that completions and doorbells name.
    #[must_use]
    pub fn number(&self) -> Cqn {
        Cqn::from_low_bits(self.shared.index())
    }

    /// Whether an event is asked for, and has not been raised.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.shared.view.armed().is_armed()
    }

    /// What hardware would not take: only where nobody completes meanwhile.
    #[must_use]
    pub fn check(&self) -> Option<Violation> {
        let (view, reserved) = (&self.shared.view, self.shared.view.slots().reserved());
        let ahead = view.consumer_position().checked_sub(reserved).filter(|ahead| *ahead > 0)?;
        Some(Violation::ConsumerAhead { cqn: self.shared.index(), ahead })
    }

    /// The program is about to get an event. It may ask for the next one before it has polled what this one tells:
    /// entries that are there now raise no other.
    pub fn note_event(&self) {
        self.shared.note_told();
    }
}

/// Receives that are posted and not taken.
#[expect(clippy::cast_possible_truncation, reason = "records count modulo 2^16")]
fn receives_waiting(view: &RqView) -> u16 {
    view.posted().wrapping_sub(view.claims().taken() as u16)
}

fn receive_overrun(queue: &'static str, number: u32, view: &RqView) -> Option<Violation> {
    let (ahead, entries) = (receives_waiting(view), 1 << view.log_entries);
    let found = Violation::ReceiveOverrun { queue, number, ahead, entries };
    (u32::from(ahead) > entries).then_some(found)
}

impl Srq {
    /// The number that completions name.
    #[must_use]
    pub fn number(&self) -> Srqn {
        Srqn::from_low_bits(self.shared.index())
    }

    /// Receives that are posted and not taken.
    #[must_use]
    pub fn waiting(&self) -> u16 {
        receives_waiting(&self.shared.view)
    }

    /// What hardware would not take.
    #[must_use]
    pub fn check(&self) -> Option<Violation> {
        receive_overrun("SRQ", self.shared.index(), &self.shared.view)
    }
}

impl Qp {
    /// Changes what counts from the next request of a peer on.
    pub fn amend(&self, amendment: &Amendment) {
        self.shared.amend(amendment);
    }

    /// Rights, key and timer that count for the next request of a peer.
    #[must_use]
    pub fn amended(&self) -> Amendment {
        self.shared.amended()
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.shared.qpn
    }

    /// Its service type.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.shared.transport
    }

    /// Whether the doorbell record is ahead of what was executed.
    #[must_use]
    pub fn is_posted(&self) -> bool {
        self.shared.is_posted()
    }

    /// What hardware would not take of a queue pair that sends and receives: only where nobody executes it
    /// meanwhile.
    #[must_use]
    pub fn check(&self) -> Option<Violation> {
        let qpn = self.shared.qpn.get();
        if let Some((ahead, Some(blocks))) = self.shared.send_ring().map(|ring| ring.waiting()) {
            return Some(Violation::SendOverrun { qpn, ahead, blocks });
        }
        let own = self.shared.rq.as_ref().filter(|rq| rq.view.srqn.is_none())?;
        receive_overrun("QP", qpn, &own.view)
    }

    /// The send counter of the doorbell record; `None`: it sends nothing.
    #[must_use]
    pub fn posted(&self) -> Option<u16> {
        self.shared.send_ring().map(|ring| ring.posted())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use mlx5::device::{Device as _, DeviceCq as _};
    use verbs::{Lid, MemoryRegion as _};
    use wire::cqe::{CqeView, ErrorCqe, Syndrome};

    use super::*;
    use crate::{
        Cause, Config, Timeline,
        nic::{
            engine::{Memory as _, MemoryFault},
            memory::{MrCache, PortMemory},
        },
        open_virtual,
    };

    #[derive(Debug)]
    struct Clock;

    impl Timeline for Clock {
        fn now_ns(&self) -> u64 {
            0
        }

        fn runnable(&self, _: Lid, _: Qpn, _: Cause) {}

        fn idle(&self, _: Lid) -> bool {
            false
        }
    }

    /// Nothing keeps it mapped.
    #[test]
    fn memory_that_its_program_has_unmapped_is_refused() {
        const IOVA: u64 = 1 << 40;
        let config = Config { card_mib: 1, ..Config::default() };
        let (nic, _port) = open_virtual(&config, Lid::new(1), Arc::new(Clock)).unwrap();
        let (device, port) = (nic.device(), &nic.device().0.port);
        let pd = device.alloc_pd().unwrap();
        let mapped = Region::memfd("lent", 8192).unwrap();
        let addr = mapped.as_ptr().as_ptr().expose_provenance() as u64;
        // SAFETY: a mapping of this test, which nothing refers to.
        let mr = unsafe { device.lend_memory(&pd, (addr, 8192), IOVA, Access::LOCAL_WRITE) };
        let key = mr.as_ref().unwrap().rkey().get();
        let mut cache = MrCache::default();
        let mut locate = |at: u64, len| {
            let (card, segments) = (&port.owner.card, &port.segments);
            let mut memory = PortMemory { cache: &mut cache, card, segments, port };
            let found = memory.locate(key, IOVA + at, len, Access::LOCAL_WRITE, pd.0);
            found.map(|chunk| chunk.ptr.addr() as u64)
        };
        assert_eq!(locate(4096, 64), Ok(addr + 4096));
        assert_eq!(locate(8192 - 63, 64), Err(MemoryFault::Denied));
        drop(mapped);
        assert_eq!(locate(4096, 64), Err(MemoryFault::Denied));
    }

    /// As perftest does: it asks for the next event, and then polls what this one tells.
    #[test]
    fn entries_that_an_event_has_told_raise_no_other() {
        let config = Config { card_mib: 1, ..Config::default() };
        let (nic, _port) = open_virtual(&config, Lid::new(1), Arc::new(Clock)).unwrap();
        let device = nic.device();
        let memory = Region::memfd("lent", 4096).unwrap();
        let ring = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let queue = LentQueue { ring, dbrec: ring + 2048, log_entries: 4, log_stride: 6 };
        // As drivers do: no entry is written.
        for entry in 0..16 {
            let op_own = memory.as_ptr().as_ptr().wrapping_add(entry * 64 + 63);
            // SAFETY: in the mapping, which this test owns.
            unsafe { memory::copy::copy_out(op_own, &[0xf0]) };
        }
        let channel = device.create_channel().unwrap();
        // SAFETY: a mapping of this test, which outlives the queue.
        let mut cq = unsafe { device.lend_cq(&queue, Some(&channel)) }.unwrap();
        let publish = |shared: &CqShared| {
            let entry = CqeView::Error(ErrorCqe {
                is_requester: false,
                qpn: Qpn::from_low_bits(1),
                wqe_counter: 0,
                user_index: UserIndex::from_low_bits(1),
                send_opcode: 0,
                syndrome: Syndrome::LocalProtection,
                vendor_syndrome: 0,
            });
            shared.view.publish(1, &entry, || {}).unwrap();
        };
        publish(&cq.shared);
        cq.arm(0);
        assert!(!cq.is_armed(), "it was there, and nobody has told of it");
        cq.note_event();
        cq.arm(0);
        assert!(cq.is_armed(), "it is told, though not polled");
        publish(&cq.shared);
        cq.arm(0);
        assert!(!cq.is_armed(), "the second one is not told");
    }

    #[test]
    fn records_that_cannot_be_right_are_found() {
        let config = Config { card_mib: 1, ..Config::default() };
        let (nic, _port) = open_virtual(&config, Lid::new(1), Arc::new(Clock)).unwrap();
        let device = nic.device();
        let pd = device.alloc_pd().unwrap();
        let memory = Region::memfd("lent", 8192).unwrap();
        let at = |offset: usize| memory.as_ptr().as_ptr().wrapping_add(offset);
        let record = |offset: usize, value: u32| {
            // SAFETY: in the mapping, which this test owns.
            unsafe { memory::copy::copy_out(at(offset), &value.to_be_bytes()) };
        };
        let ring = at(0).expose_provenance() as u64;
        let queue = |dbrec, log_stride| LentQueue { ring, dbrec, log_entries: 3, log_stride };
        // SAFETY: a mapping of this test, which outlives the queues.
        let cq = unsafe { device.lend_cq(&queue(ring + 4096, 6), None) }.unwrap();
        // SAFETY: as above.
        let srq = unsafe { device.lend_srq(&pd, &queue(ring + 4160, 5)) }.unwrap();
        let lent = LentQp {
            transport: Transport::Rc,
            is_unreliable: false,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            send: Some(queue(ring + 4228, 6)),
            recv: Some(queue(ring + 4224, 5)),
            scatter_to_cqe: false,
            access_key: DcKey::new(0),
            user_index: 0,
        };
        // SAFETY: as above.
        let qp = unsafe { device.lend_qp(&pd, &lent) }.unwrap();
        let number = srq.number().get();
        for (count, is_wrong) in [(8, false), (9, true), (0, false), (0xffff, true)] {
            record(4160, count);
            assert_eq!(srq.check().is_some(), is_wrong, "{count}");
            assert_eq!(qp.check(), None);
            for offset in [4224, 4228] {
                record(offset, count);
                assert_eq!(qp.check().is_some(), is_wrong, "{offset}: {count}");
                record(offset, 0);
            }
        }
        record(4160, 20);
        let (queue, ahead) = ("SRQ", 20);
        let found = Violation::ReceiveOverrun { queue, number, ahead, entries: 8 };
        assert_eq!(srq.check(), Some(found));
        assert_eq!(cq.check(), None);
        record(4096, 2);
        assert_eq!(cq.check(), Some(Violation::ConsumerAhead { cqn: cq.number().get(), ahead: 2 }));
    }

    #[test]
    fn a_ring_that_is_nowhere_or_between_words_is_refused() {
        let config = Config { card_mib: 1, ..Config::default() };
        let (nic, _port) = open_virtual(&config, Lid::new(1), Arc::new(Clock)).unwrap();
        for (ring, dbrec) in [(0, 64), (64, 0), (65, 64), (64, 66)] {
            let queue = LentQueue { ring, dbrec, log_entries: 1, log_stride: 6 };
            // SAFETY: it is refused.
            assert!(unsafe { nic.device().lend_cq(&queue, None) }.is_err(), "{ring} {dbrec}");
        }
    }
}
