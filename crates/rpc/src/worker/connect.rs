//! Becoming peers, and ceasing to be.

use proto::copyrpc::{Config as ConnectionConfig, Connection, Hello, Imm};
use verbs::{
    Access, CreateError, Destination, MemoryRegion as _, ModifyError, Nic, PortRoute, Psn,
};

use super::Worker;
use crate::{
    CloseReason, ConnectError, ContactError, Invitation, PeerId, TransportKind,
    contact::Contact,
    early::Early,
    large::LargeBodies,
    peer::{Live, Peer, PeerState, Probe, RemoteRing},
};

impl<N: Nic> Worker<N> {
    /// Takes a slot for a peer and returns what it must be told. Complete it by
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing is left behind.
    pub fn invite(&mut self) -> Result<(PeerId, Invitation), ConnectError> {
        let max = self.config().peers_max;
        if self.peers.is_full() {
            return Err(ConnectError::Full { max });
        }
        // The slot is known when the peer is in the table, after all that may fail.
        let hello = self.resources.draw_hello(0);
        let psn = self.resources.draw_psn();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = self.resources.register(Peer::<N>::ring_bytes(&hello), access)?;
        let own_queue = if self.resources.is_dc() {
            None
        } else {
            let mut queue = self.resources.create_queue(&self.send, &self.receive)?;
            self.resources.init(&mut queue)?;
            queue.fill_receives()?;
            Some(queue)
        };
        let nic = self.resources.nic();
        let endpoint = match (self.receive.target(), &own_queue) {
            (Some(target), _) => nic.endpoint(target),
            (None, Some(queue)) => nic.endpoint(queue.qp()),
            (None, None) => return Err(ConnectError::NotInvited),
        };
        let contact = Contact {
            transport: self.config().transport,
            endpoint,
            psn,
            key: self.resources.key(),
            ring: ring.remote(0),
            limits: self.resources.limits(),
        };
        let state = PeerState::Invited { early: Early::default() };
        let peer = Peer { state, hello, psn, ring, queue: 0 };
        let id = self.peers.insert(peer).ok_or(ConnectError::Full { max })?;
        let slot = id.slot();
        let queue = if self.resources.is_dc() { slot % self.config().dcis } else { slot };
        if let Some(own) = own_queue {
            self.send.put(queue, own);
        }
        let hello = Hello { slot, ..hello };
        if let Some(peer) = self.peer(id) {
            (peer.hello, peer.queue) = (hello, queue);
        }
        Ok((id, Invitation::new(&contact, &hello)))
    }

    /// Connects an invited peer. From now on calls can be made; they arrive once the peer has
    /// connected too.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the peer stays invited.
    pub fn connect(&mut self, id: PeerId, theirs: &Invitation) -> Result<(), ConnectError> {
        let (mut contact, hello) = theirs.parse()?;
        let hello = hello?;
        self.config().classify(&mut contact.endpoint.address);
        self.check(&contact, &hello)?;
        let Self { mirrors, resources, .. } = self;
        let mirror_bytes = hello.geometry.ring_bytes();
        let mirror = mirrors.take(mirror_bytes, |len, access| resources.register(len, access))?;
        let peer = self.peer(id).ok_or(ConnectError::NotInvited)?;
        let PeerState::Invited { .. } = peer.state else { return Err(ConnectError::NotInvited) };
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
        let config = self.config();
        let connection = Connection::new(ConnectionConfig {
            own,
            peer: hello,
            flush: config.flush,
            signal_interval: config.signal_interval,
            credit_delay_ns: config.credit_delay_ns(),
        });
        let lid = match contact.endpoint.address.route {
            PortRoute::Lid(lid) | PortRoute::Global(lid, _) => Some(lid),
            PortRoute::Gid(_) => None,
        };
        let inline_bytes_max = config.inline_bytes_max(self.nic().attributes()).into();
        let live = Live {
            connection,
            remote: RemoteRing::new(contact.ring, mirror, inline_bytes_max, destination),
            lid,
            bodies: LargeBodies::new(self.config(), &self.budget),
            probe: Probe::default(),
        };
        let Some(peer) = self.peer(id) else { return Err(ConnectError::NotInvited) };
        let before = core::mem::replace(&mut peer.state, PeerState::Live(Box::new(live)));
        if let PeerState::Invited { early } = before {
            let (imms, surplus) = early.in_order(&peer.hello, &peer.ring);
            self.receive.add_early(imms);
            self.stats.unknown_imms += surplus;
        }
        Ok(())
    }

    /// Whether this side can work with a peer's invitation.
    fn check(&self, contact: &Contact, hello: &Hello) -> Result<(), ConnectError> {
        let config = self.config();
        if contact.transport != config.transport {
            let (theirs, ours) = (contact.transport.name(), config.transport.name());
            return Err(ConnectError::Transport { theirs, ours });
        }
        let room = Peer::<N>::ring_bytes(hello) as u64;
        if contact.ring.addr.checked_add(room).is_none() {
            return Err(ContactError::Field("ring address").into());
        }
        let (theirs, max) = (hello.geometry.ring_bytes(), config.peer_ring_bytes_max);
        if theirs > max {
            return Err(ConnectError::Ring { theirs, max });
        }
        // An initiator serves all peers alike, so it cannot go down to what one of them takes.
        let (theirs, ours) = (contact.limits, self.resources.limits());
        if self.resources.is_dc() && ours.min(theirs) != ours {
            let (theirs, ours) = (theirs.to_string(), ours.to_string());
            return Err(ConnectError::Path { theirs, ours });
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
        let Some(mut peer) = self.peers.remove(id) else { return };
        // What came before its invitation is nobody else's.
        self.receive.forget_early(id.slot());
        if let Some(live) = peer.live() {
            let is_unused = live.connection.batches_in() == 0;
            let status = match reason {
                // The peer was never reached, or would have been heard of: nothing was executed.
                CloseReason::NoMemory(_) if is_unused => proto::Status::ResourceExhausted,
                reason => reason.status(),
            };
            let notices = &mut self.notices;
            live.connection.drain(|cookie| notices.call_ended(cookie, status));
            notices.peer_closed(id, reason);
        }
        if !self.resources.is_dc() {
            // The queue pair goes before the memory that its requests use.
            if let Some(queue) = self.send.take(peer.queue) {
                self.forget_arrival(queue.qpn());
            }
            self.abandon_all(id);
            self.timers.look_soon(); // receives that others need go back then
        } else if self.send.has_work(peer.queue, id) {
            // The initiator may still read what was staged. The peer loses its access now.
            self.send.retire(id, peer.queue, peer.state);
        }
        match reason {
            CloseReason::Closed => {}
            CloseReason::Violation(_) => self.stats.violations += 1,
            _ => self.stats.failures += 1,
        }
        tracing::debug!(peer = id.slot(), %reason, "connection ended");
    }

    /// Keeps an announcement that came before the peer's invitation.
    pub(super) fn keep_early(&mut self, id: PeerId, imm: Imm) {
        let is_kept = match self.peer(id) {
            Some(Peer { state: PeerState::Invited { early }, hello, .. }) => early.keep(imm, hello),
            _ => false,
        };
        self.stats.unknown_imms += u64::from(!is_kept);
    }

    fn start_rc(&mut self, queue: u16, contact: &Contact, psn: Psn) -> Result<(), ModifyError> {
        let Self { send, resources, .. } = self;
        let Some(queue) = send.queue(queue) else { return Ok(()) };
        resources.start_rc(queue, contact, psn)
    }

    /// Makes an initiator, unless it is there: one that failed for good is not.
    pub(super) fn open_initiator<E>(&mut self, index: u16) -> Result<(), E>
    where
        E: From<CreateError> + From<ModifyError>,
    {
        if self.send.peek(index).is_none() {
            let mut queue = self.resources.create_queue(&self.send, &self.receive)?;
            self.resources.start_initiator(&mut queue)?;
            self.send.put(index, queue);
        }
        Ok(())
    }
}
