//! The connections to peers, kept as the failure detector says.
//!
//! Each epoch of a link has its own invitation, queue pair and ring, so what still travels in an
//! epoch that is over reaches nobody.

use bootstrap::Lives;
use memory::sync::Arc;
use rpc::{Invitation, PeerId, Worker};
use verbs::{AddressVector, Nic};

use crate::{
    client_port::ClientPort,
    control::{ANY_DATAGRAM_BYTES, Codec, Control, ControlMessage, Unread},
    dispatcher::Dispatcher,
    membership::{Detector, DetectorConfig, Gone, PeerEvent},
    metrics::Counter,
    unheard::Unheard,
};

/// Datagrams taken per look.
const DATAGRAMS_PER_LOOK: usize = 256;

/// What is known of one peer, and of the connection to it.
#[derive(Default)]
struct Link {
    /// The place that the worker keeps for it in this epoch, and what it must be told.
    invited: Option<(PeerId, Invitation)>,
    /// Its epoch, its time and its invitation, as it told last.
    theirs: Option<((u64, u64), Invitation)>,
    /// Why it is not connected, as it was logged: it is tried again with each epoch.
    complaint: Option<String>,
    /// The version of its heartbeats, if they are not understood: logged once.
    other_version: Option<u16>,
}

impl Link {
    /// Logs why there is no connection, unless that was the last thing logged of it.
    fn complain(&mut self, peer: u32, error: &rpc::ConnectError) {
        // That there is no place was logged when none was found.
        let is_known = matches!(error, rpc::ConnectError::NotInvited) && self.complaint.is_some();
        let reason = error.to_string();
        if !is_known && self.complaint.as_ref() != Some(&reason) {
            tracing::warn!(peer, reason, "cannot connect; it is tried again");
            self.complaint = Some(reason);
        }
    }
}

/// Whether there is no connection for want of memory.
fn is_shortage(error: &rpc::ConnectError) -> bool {
    matches!(error, rpc::ConnectError::Memory(_) | rpc::ConnectError::Create(_))
}

pub(super) struct Links {
    /// Peers of this thread.
    count: usize,
    detector: Detector,
    codec: Codec,
    /// The link to each peer, by rank.
    links: Vec<Link>,
    /// The address that invitations name.
    address: Option<AddressVector>,
    /// Peers without a place in their epoch.
    uninvited: Vec<u32>,
    is_leaving: bool,
    /// When the detector is to be asked next: it looks at each peer to tell that.
    next_ns: Option<u64>,
    /// Peers that were not heard yet.
    unheard: Unheard,
    /// Whoever is to know when peers lived.
    lives: Option<Arc<Lives>>,
}

impl Links {
    pub(super) fn new(
        peers: Vec<u32>,
        config: DetectorConfig,
        codec: Codec,
        epoch: u64,
        now_ns: u64,
    ) -> Self {
        let count = peers.iter().max().map_or(0, |rank| *rank as usize + 1);
        Self {
            detector: Detector::new(config, epoch, peers.iter().copied(), now_ns),
            address: None,
            uninvited: peers.clone(),
            unheard: Unheard::new(peers.clone(), now_ns),
            count: peers.len(),
            codec,
            links: (0..count).map(|_| Link::default()).collect(),
            is_leaving: false,
            next_ns: Some(now_ns),
            lives: None,
        }
    }

    /// Says from now on when peers lived.
    pub(super) fn tell_lives(&mut self, lives: Arc<Lives>) {
        self.lives = Some(lives);
    }

    fn tell_life(&self, peer: u32, lived_ns: Option<u64>) {
        if let Some(lives) = &self.lives {
            lives.set(peer, lived_ns);
        }
    }

    /// Peers, up or not.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Says good-bye.
    pub(super) fn leave(&mut self, control: &mut impl Control, now_ns: u64) {
        self.is_leaving = true;
        self.detector.leave(now_ns);
        self.send(control);
        self.next_ns = self.detector.poll_timeout();
    }

    /// Hears, looks at the clock, connects and disconnects, and speaks.
    pub(super) fn step<N: Nic, P: ClientPort>(
        &mut self,
        worker: &mut Worker<N>,
        dispatcher: &mut Dispatcher<P>,
        replies: &mut P::Replies,
        control: &mut impl Control,
        now_ns: u64,
    ) {
        let mut datagrams = 0;
        let mut buffer = [0; ANY_DATAGRAM_BYTES];
        while datagrams < DATAGRAMS_PER_LOOK
            && let Some((len, from)) = control.recv(&mut buffer)
        {
            datagrams += 1;
            match self.codec.read(&buffer[..len]) {
                Ok(message) => {
                    let ControlMessage { from: peer, heartbeat, .. } = message;
                    if let Some(correction) = self.detector.correction(peer, &heartbeat, now_ns) {
                        control.answer(&from, &self.codec.write(peer, correction, None));
                        dispatcher.tally.add(Counter::Stale, 1);
                    }
                    // Later than all before: a recorded one does not tell where the peer is.
                    let when = (message.heartbeat.epoch, message.heartbeat.sent_ns);
                    if let (Some(link), Some(invitation)) =
                        (self.links.get_mut(message.from as usize), message.invitation)
                        && link.theirs.is_none_or(|(latest, _)| latest < when)
                    {
                        link.theirs = Some((when, invitation));
                        control.learn(message.from, from);
                    }
                    if let Some(link) = self.links.get_mut(peer as usize) {
                        link.other_version = None;
                    }
                    self.unheard.hear(peer);
                    self.detector.handle_heartbeat(peer, message.heartbeat, now_ns);
                    self.apply(worker, dispatcher, replies, now_ns);
                    self.tell_life(peer, self.detector.lived_ns(peer));
                }
                Err(unread) => {
                    dispatcher.tally.add(Counter::Stale, 1);
                    self.tell_of(unread);
                }
            }
        }
        // After the datagrams: the connection of a peer that said good-bye ends in order.
        for (rank, reason) in dispatcher.take_broken() {
            tracing::warn!(peer = rank, %reason, "a connection ended");
            self.detector.handle_failure(rank, now_ns);
        }
        self.detector.handle_timeout(now_ns);
        self.unheard.tell(now_ns);
        self.apply(worker, dispatcher, replies, now_ns);
        self.invite(worker, dispatcher);
        self.readdress(worker.nic().address());
        let sent = self.send(control);
        dispatcher.tally.add(Counter::Heartbeats, sent);
        self.next_ns = self.detector.poll_timeout();
    }

    /// Logs that a peer speaks another version, once in a row.
    fn tell_of(&mut self, unread: Unread) {
        let Unread::Version { from: peer, theirs } = unread else { return };
        self.unheard.hear(peer);
        if let Some(link) = self.links.get_mut(peer as usize)
            && link.other_version.replace(theirs) != Some(theirs)
        {
            tracing::warn!(peer, reason = %unread, "cannot connect");
        }
    }

    /// Does what follows from what happened.
    fn apply<N: Nic, P: ClientPort>(
        &mut self,
        worker: &mut Worker<N>,
        dispatcher: &mut Dispatcher<P>,
        replies: &mut P::Replies,
        now_ns: u64,
    ) {
        while let Some(event) = self.detector.poll_event() {
            match event {
                PeerEvent::Up { peer, epoch, .. } => {
                    let link = &mut self.links[peer as usize];
                    let connected = match (&link.invited, &link.theirs) {
                        (Some((id, _)), Some(((theirs, _), invitation))) if *theirs == epoch => {
                            worker.connect(*id, invitation).map(|()| *id)
                        }
                        // Without invitation there was no place here; it comes with a new epoch.
                        _ => Err(rpc::ConnectError::NotInvited),
                    };
                    match connected {
                        Ok(id) => {
                            link.complaint = None;
                            dispatcher.connect(peer, id);
                            dispatcher.tally.add(Counter::PeersJoined, 1);
                        }
                        Err(error) => {
                            if is_shortage(&error) {
                                dispatcher.lack_memory(peer);
                                dispatcher.tally.add(Counter::NoMemory, 1);
                            }
                            link.complain(peer, &error);
                            self.detector.handle_failure(peer, now_ns);
                        }
                    }
                }
                PeerEvent::Ready { peer } => {
                    tracing::info!(peer, "up");
                    dispatcher.call_from_now_on(peer);
                }
                PeerEvent::Suspected { peer } => {
                    tracing::info!(peer, "silent");
                    dispatcher.tally.add(Counter::Suspicions, 1);
                }
                PeerEvent::Recovered { peer } => tracing::info!(peer, "not silent any more"),
                PeerEvent::Gone { peer, why, .. } => {
                    self.tell_life(peer, None);
                    let link = &mut self.links[peer as usize];
                    if why == Gone::Left {
                        tracing::info!(peer, "left");
                    } else if link.complaint.is_none() {
                        tracing::warn!(peer, ?why, "gone");
                        dispatcher.tally.add(Counter::PeersLost, 1);
                    }
                    dispatcher.disconnect(peer, replies);
                    if let Some((id, _)) = link.invited.take() {
                        worker.close(id);
                        self.uninvited.push(peer);
                    }
                }
            }
        }
    }

    /// Takes a place for each peer that has none in this epoch.
    fn invite<N: Nic, P: ClientPort>(
        &mut self,
        worker: &mut Worker<N>,
        dispatcher: &mut Dispatcher<P>,
    ) {
        if self.is_leaving {
            return;
        }
        self.uninvited.retain(|rank| match worker.invite() {
            Ok(invited) => {
                self.links[*rank as usize].invited = Some(invited);
                false
            }
            Err(error) => {
                if is_shortage(&error) {
                    dispatcher.lack_memory(*rank);
                    dispatcher.tally.add(Counter::NoMemory, 1);
                }
                self.links[*rank as usize].complain(*rank, &error);
                true
            }
        });
    }

    /// Peers that fail to connect by an invitation try again by it, so it names the port as it is now.
    fn readdress(&mut self, address: AddressVector) {
        if self.address.replace(address) == Some(address) {
            return;
        }
        let invited = self.links.iter_mut().filter_map(|link| link.invited.as_mut());
        invited.for_each(|(_, invitation)| *invitation = invitation.readdressed(address));
    }

    fn send(&mut self, control: &mut impl Control) -> u64 {
        let mut sent = 0;
        while let Some((to, heartbeat)) = self.detector.poll_transmit() {
            let invited = self.links[to as usize].invited.as_ref();
            let invitation = invited.map(|(_, invitation)| invitation);
            control.send(to, &self.codec.write(to, heartbeat, invitation));
            sent += 1;
        }
        sent
    }
}
