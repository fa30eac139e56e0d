//! Becoming peers, and ceasing to be.

use core::time::Duration;

use proto::copyrpc::{Config as ConnectionConfig, Connection, Features, Hello, Imm};
use verbs::{
    Access, CreateError, Destination, InitAttr, MemoryRegion as _, ModifyError, Nic, Psn, QKey,
    QpConfig, QueuePair as _, QueueSize, RcPeer, RnrTimer, Route, RtrAttr, RtsAttr, Transition,
    Transport,
};

use super::{Departed, Marks, Worker, random};
use crate::{
    CloseReason, ConnectError, ContactError, Invitation, OpenError, PeerId, TransportKind,
    contact::Contact,
    early::Early,
    large::{Buffers, Lent},
    peer::{Link, Live, Peer},
    queue::Queue,
    receives::Refill,
};

/// What a sender is asked to wait when no receive is posted.
const RNR_WAIT: Duration = Duration::from_micros(20);
/// READs that a peer may have outstanding here.
const READS_IN_MAX: u8 = 16;

impl<N: Nic> Worker<N> {
    /// Takes a place for a peer and returns what it must be told. Complete it by
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing is left behind.
    pub fn invite(&mut self) -> Result<(PeerId, Invitation), ConnectError> {
        let max = self.config.peers_max;
        let slot = self
            .peers
            .iter()
            .position(|place| place.peer.is_none())
            .and_then(|slot| u16::try_from(slot).ok())
            .ok_or(ConnectError::Full { max })?;
        let hello = Hello {
            features: Features::ALL,
            epoch: random_u32().max(1),
            slot,
            calls_max: self.config.calls_max,
            geometry: self.geometry,
            batches_max: self.config.batches_max(),
            large_bytes_max: self.config.large_bytes,
        };
        let psn = Psn::from_low_bits(random_u32());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = self.nic.alloc_mr(&self.pd, Peer::<N>::ring_bytes(&hello), access)?;
        let queue = match self.config.transport {
            TransportKind::Rc => {
                let mut queue = self.create_queue()?;
                self.to_init(&mut queue.qp)?;
                if let Some(refill) = &mut queue.refill {
                    refill.fill_own(&mut queue.qp)?;
                }
                self.put_queue(slot, queue);
                slot
            }
            TransportKind::Dc => slot % self.config.dcis,
        };
        let endpoint = match (&self.dct, &self.queues[usize::from(queue)]) {
            (Some(dct), _) => self.nic.endpoint(dct),
            (None, Some(queue)) => self.nic.endpoint(&queue.qp),
            (None, None) => return Err(ConnectError::NotInvited),
        };
        let contact = Contact {
            transport: self.config.transport,
            endpoint,
            psn,
            key: self.key,
            ring: ring.remote(0),
        };
        let invitation = Invitation::new(&contact, &hello);
        let place = &mut self.peers[usize::from(slot)];
        let link = Link::Invited { early: Early::default() };
        place.peer = Some(Peer { link, hello, psn, ring, queue, marks: Marks::default() });
        Ok((PeerId { slot, generation: place.generation }, invitation))
    }

    /// Connects an invited peer. From now on calls can be made; they arrive once the peer has
    /// connected too.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the peer stays invited.
    pub fn connect(&mut self, id: PeerId, theirs: &Invitation) -> Result<(), ConnectError> {
        let (contact, hello) = theirs.parse()?;
        let hello = hello?;
        if contact.transport != self.config.transport {
            let (theirs, ours) = (name(contact.transport), name(self.config.transport));
            return Err(ConnectError::Transport { theirs, ours });
        }
        let room = Peer::<N>::ring_bytes(&hello) as u64;
        let is_addressable = contact.ring.addr.checked_add(room).is_some();
        if !is_addressable {
            return Err(ContactError::Field("ring address").into());
        }
        let (staging_bytes, max) = (hello.geometry.ring_bytes(), self.config.peer_ring_bytes_max);
        if staging_bytes > max {
            return Err(ConnectError::Ring { theirs: staging_bytes, max });
        }
        let staging = self.nic.alloc_mr(&self.pd, staging_bytes, Access::LOCAL_WRITE)?;
        let peer = self.peer(id).ok_or(ConnectError::NotInvited)?;
        let Link::Invited { .. } = peer.link else { return Err(ConnectError::NotInvited) };
        let (own, psn, queue) = (peer.hello, peer.psn, peer.queue);
        let destination = match contact.transport {
            TransportKind::Rc => {
                self.start_rc(queue, &contact, psn)?;
                None
            }
            TransportKind::Dc => {
                self.open_initiator::<ConnectError>(queue)?;
                Some(Destination::Dc { to: contact.endpoint, key: contact.key })
            }
        };
        let connection = Connection::new(ConnectionConfig {
            own,
            peer: hello,
            flush: self.config.flush,
            signal_interval: self.config.signal_interval,
            credit_delay_ns: self.config.credit_delay_ns(),
        });
        let lid = match contact.endpoint.address.route {
            Route::Lid(lid) => Some(lid),
            Route::Gid(_) => None,
        };
        let live = Live {
            connection,
            inline_bytes_max: self.config.inline_bytes_max(),
            remote: contact.ring,
            staging,
            lid,
            buffers: Buffers::new(self.config.large_memory_bytes),
            lent_requests: Lent::new(),
            lent_responses: Lent::new(),
            destination,
        };
        let Some(peer) = self.peer(id) else { return Err(ConnectError::NotInvited) };
        let before = core::mem::replace(&mut peer.link, Link::Live(Box::new(live)));
        if let Link::Invited { early } = before {
            let (imms, surplus) = early.in_order(&peer.hello, &peer.ring);
            self.early.extend(imms);
            self.stats.unknown_imms += surplus;
        }
        Ok(())
    }

    /// Ends a connection, or an invitation. Its calls end with [`Status::Cancelled`] and its
    /// requests need no answer, by the next poll. The peer learns of it by an error of its NIC.
    ///
    /// [`Status::Cancelled`]: crate::Status::Cancelled
    pub fn close(&mut self, id: PeerId) {
        self.end(id, CloseReason::Closed);
    }

    pub(super) fn end(&mut self, id: PeerId, reason: CloseReason) {
        if self.peer(id).is_none() {
            return;
        }
        let place = &mut self.peers[usize::from(id.slot)];
        place.generation = place.generation.wrapping_add(1);
        let Some(mut peer) = place.peer.take() else { return };
        self.agenda.forget(id);
        // What came before its invitation is nobody else's.
        self.early.retain(|imm| Imm::decode(*imm).slot != id.slot);
        if let Some(live) = peer.live() {
            let status = reason.status();
            live.connection.drain(|cookie| self.ended.push_back((cookie, status)));
            self.closed.push_back((id, reason));
        }
        if self.config.transport == TransportKind::Rc {
            // The queue pair goes before the memory that its requests use.
            if let Some(queue) = self.queues[usize::from(peer.queue)].take() {
                self.queue_of.remove(&queue.qp.qpn());
                self.forget_arrival(queue.qp.qpn());
            }
            self.abandon_all(id);
            self.timers_ns = self.now_ns; // receives that others need go back then
        } else if self.queues[usize::from(peer.queue)].as_ref().is_some_and(|q| q.has_work(id)) {
            // The initiator may still read what was staged. The peer loses its access now.
            self.departed.push(Departed { id, queue: peer.queue, _link: peer.link });
        }
        match reason {
            CloseReason::Closed => {}
            CloseReason::Violation(_) => self.stats.violations += 1,
            _ => self.stats.failures += 1,
        }
        tracing::debug!(peer = id.slot, %reason, "connection ended");
    }

    /// Keeps an announcement that came before the peer's invitation.
    pub(super) fn keep_early(&mut self, id: PeerId, imm: Imm) {
        let is_kept = match self.peer(id) {
            Some(Peer { link: Link::Invited { early }, hello, .. }) => early.keep(imm, hello),
            _ => false,
        };
        self.stats.unknown_imms += u64::from(!is_kept);
    }

    // Queue pairs

    /// The target and the initiators of DC, which need no peer.
    pub(super) fn open_dc(&mut self) -> Result<(), OpenError> {
        if self.config.transport != TransportKind::Dc {
            return Ok(());
        }
        let srq = self.receives.as_ref().map(|receives| &receives.srq);
        let config = QpConfig {
            srq,
            send: QueueSize { entries: 0, sges_max: 0 },
            recv: QueueSize { entries: 0, sges_max: 0 },
            access_key: self.key,
            ..QpConfig::new(Transport::Dct, &self.recv_cq)
        };
        let mut dct = self.nic.create_qp(&self.pd, &config)?;
        self.to_init(&mut dct)?;
        dct.modify(&Transition::Rtr(self.rtr(None)))?;
        self.dct = Some(dct);
        (0..self.config.dcis).try_for_each(|index| self.open_initiator(index))
    }

    /// Makes an initiator, unless it is there: one that failed for good is not.
    fn open_initiator<E>(&mut self, index: u16) -> Result<(), E>
    where
        E: From<CreateError> + From<ModifyError>,
    {
        if self.queues[usize::from(index)].is_none() {
            let mut queue = self.create_queue()?;
            self.start_dci(&mut queue.qp)?;
            self.put_queue(index, queue);
        }
        Ok(())
    }

    pub(super) fn start_dci(&self, qp: &mut N::Qp) -> Result<(), ModifyError> {
        self.to_init(qp)?;
        qp.modify(&Transition::Rtr(self.rtr(None)))?;
        qp.modify(&Transition::Rts(RtsAttr::default()))
    }

    fn create_queue(&self) -> Result<Queue<N>, CreateError> {
        let is_rc = self.config.transport == TransportKind::Rc;
        let has_own = is_rc && self.receives.is_none();
        let entries = if has_own { self.config.receive_entries().into() } else { 0 };
        let srq = self.receives.as_ref().filter(|_| is_rc).map(|receives| &receives.srq);
        let config = QpConfig {
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            srq,
            send: QueueSize { entries: self.config.send_blocks.into(), sges_max: 1 },
            recv: QueueSize { entries, sges_max: 1 },
            ..QpConfig::new(self.transport(), &self.send_cq)
        };
        let qp = self.nic.create_qp(&self.pd, &config)?;
        Ok(Queue::new(qp, has_own.then(|| Refill::new(self.config.receive_entries()))))
    }

    fn put_queue(&mut self, index: u16, queue: Queue<N>) {
        self.queue_of.insert(queue.qp.qpn(), index);
        self.queues[usize::from(index)] = Some(queue);
    }

    fn start_rc(&mut self, queue: u16, peer: &Contact, psn: Psn) -> Result<(), ModifyError> {
        let to =
            RcPeer { qpn: peer.endpoint.qpn, address: peer.endpoint.address, rq_psn: peer.psn };
        let rtr = self.rtr(Some(to));
        let Some(queue) = &mut self.queues[usize::from(queue)] else { return Ok(()) };
        queue.qp.modify(&Transition::Rtr(rtr))?;
        queue.qp.modify(&Transition::Rts(RtsAttr { sq_psn: psn, ..RtsAttr::default() }))
    }

    fn to_init(&self, qp: &mut N::Qp) -> Result<(), ModifyError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() }))
    }

    fn rtr(&self, peer: Option<RcPeer>) -> RtrAttr {
        RtrAttr {
            path_mtu: self.nic.port().mtu,
            peer,
            rnr_timer: RnrTimer::at_least(RNR_WAIT),
            reads_in_max: READS_IN_MAX,
        }
    }
}

fn name(transport: TransportKind) -> &'static str {
    match transport {
        TransportKind::Rc => "RC",
        TransportKind::Dc => "DC",
    }
}

fn random_u32() -> u32 {
    (random() & 0xffff_ffff) as u32
}
