//! How a server is made, and how clients come.

use std::collections::{HashMap, VecDeque};

use proto::scalerpc::{self, server::ClientId};
use verbs::{Access, Capabilities, MemoryRegion as _, Nic, SharedReceiveQueue as _, SrqConfig};

use super::{ENTRY_STRIDE, Peer, Server};
use crate::{
    bodies::BodyMemory,
    scalerpc::{
        ConnectError, Detection, Invitation, OpenError, ServerConfig,
        contact::Contact,
        link::{Link, create_cq, draw_psn},
    },
};

/// Blocks for responses that are too long to go inline, at most.
const STAGING_BLOCKS: usize = 512;
/// Bytes of them all, at most, unless that is less than four blocks.
const STAGING_BYTES: usize = 64 << 20;

impl<N: Nic> Server<N> {
    /// Opens a server on a NIC.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: ServerConfig, now_ns: u64) -> Result<Self, OpenError> {
        let core = config.core()?;
        let needed = Capabilities::ORDERED_PLACEMENT;
        if config.detection == Detection::Polling && !nic.attributes().capabilities.contains(needed)
        {
            return Err(OpenError::Unordered { device: nic.attributes().name.clone() });
        }
        let pd = nic.alloc_pd()?;
        let clients = u32::from(config.clients_max);
        // Per client: a request per slot, an acknowledgement, an announcement.
        let receives = clients * (u32::from(config.slots) + 2);
        let receives = receives.max(64).min(nic.attributes().srq_entries_max);
        let recv_cq = create_cq(&nic, receives.next_power_of_two())?;
        let send_cq = create_cq(&nic, clients * sends(&config).next_power_of_two())?;
        let mut srq = nic.create_srq(&pd, &SrqConfig { entries: receives, sges_max: 1 })?;
        for _ in 0..receives {
            srq.post(&[])?;
        }
        srq.ring();
        let block = config.block_bytes as usize;
        let blocks = 2 * usize::from(core.zones()) * usize::from(config.slots);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let pools = nic.alloc_mr(&pd, blocks * block, access)?;
        let entries = nic.alloc_mr(&pd, clients as usize * ENTRY_STRIDE, access)?;
        let staged = (STAGING_BYTES / block).clamp(4, STAGING_BLOCKS);
        let staging = nic.alloc_mr(&pd, staged * block, Access::LOCAL_WRITE)?;
        Ok(Self {
            core: scalerpc::Server::new(core, now_ns),
            pd,
            send_cq,
            recv_cq,
            srq,
            pools,
            entries,
            staging,
            staging_free: (0..u32::try_from(staged).unwrap_or(4)).rev().collect(),
            peers: (0..config.clients_max).map(|_| None).collect(),
            by_qpn: HashMap::new(),
            waiting: Vec::new(),
            unrung: Vec::new(),
            doomed: Vec::new(),
            unreturned: 0,
            now_ns,
            scratch: BodyMemory::default(),
            cleared_bytes: 0,
            looks: 0,
            is_polling: std::rc::Rc::default(),
            nic,
            config,
        })
    }

    /// Accepts a client, and returns the message for it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing is left behind.
    pub fn accept(&mut self, theirs: &Invitation) -> Result<(ClientId, Invitation), ConnectError> {
        let contact = Contact::peer(theirs, self.config.class)?;
        if contact.block_bytes != self.config.block_bytes || contact.slots != self.config.slots {
            let theirs = contact.block_bytes;
            let max = self.config.block_bytes;
            return Err(ConnectError::Block { theirs, max });
        }
        if self.by_qpn.len() == usize::from(self.config.clients_max) {
            return Err(ConnectError::Full(self.config.clients_max));
        }
        let sizes = (sends(&self.config), 0);
        let cqs = (&self.send_cq, &self.recv_cq);
        let mut link = Link::open(&self.nic, &self.pd, cqs, Some(&self.srq), sizes)?;
        let psn = draw_psn(link.qpn());
        link.start(&self.nic, psn, &contact).map_err(OpenError::from)?;
        let full = ConnectError::Full(self.config.clients_max);
        let client = self.core.connect().ok_or(full)?;
        let index = usize::from(client.index());
        // An earlier client of the place wrote there.
        self.entries.write(index * ENTRY_STRIDE, &[0; ENTRY_STRIDE]);
        let invitation = Contact {
            endpoint: self.nic.endpoint(link.qp()),
            psn,
            mtu: self.nic.port().mtu,
            reads_max: Link::reads_max(&self.nic),
            blocks: self.pools.remote(0),
            entry: self.entries.remote(index * ENTRY_STRIDE),
            block_bytes: self.config.block_bytes,
            zones: self.core.config().zones(),
            slots: self.config.slots,
            is_polling: self.config.detection == Detection::Polling,
        }
        .invitation();
        self.by_qpn.insert(link.qpn(), client);
        let deferred = VecDeque::new();
        let peer = Peer { link, contact, deferred, is_unrung: false };
        self.peers[index] = Some((client, peer));
        Ok((client, invitation))
    }
}

/// Sends of a connection: a response per slot, twice, because a queue tells late; READs; the end of a turn.
fn sends(config: &ServerConfig) -> u32 {
    3 * u32::from(config.slots) + 4
}
