//! Discovery of ports: sockets, the exchange of cards and segments, and the detection of a peer's death.
//!
//! Every port listens at an abstract Unix socket that its LID names; two ports of a user that use
//! the same fabric name can connect. Abstract names vanish with their last descriptor, so a killed
//! process leaves nothing behind. Each side of a connection sends [`Message::Hello`] with its card,
//! then every segment and channel it has and will have; both sides of a connection may start it,
//! and two connections between the same ports do no harm. Nothing here waits: sockets are served
//! when the drive finds time, and a request to a port that has not answered yet is retried.
//!
//! Nobody uses a port's memory before that port has sent [`Message::Welcome`], which it does once it has
//! read the other's hello. So [`PortState::quiesce`](crate::nic::port_state::PortState::quiesce) knows every executor
//! there is. And a port that has the number of a dead one waits outside until what that left half done is
//! finished: in shared memory both have the same name.
//!
//! A port that others reach by packets, too, listens at a name that its life is part of. Who was told of it from
//! far away learns by connecting whether it is here: LIDs of one network namespace say nothing in another one.

#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod join;
mod message;
mod peer;

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
};

use memory::{
    MapError, Protection, Region,
    sync::{Arc, Ordering},
};
use os::{
    clock,
    event::EventFd,
    fdpass::{Datagram, RecvError, SendError},
    unix::{Address, Listener, SocketError, UnixConnection},
};

pub(crate) use join::JoinError;
use message::{BYTES, FDS_MAX, Hello, Message};
pub(crate) use peer::{CHANNELS_MAX, Peer};

use verbs::{Lid, Shortage};

use crate::nic::card::{Card, CardError, layout::Limits};

/// Connections taken, and messages read per connection, in one go.
const BUDGET: usize = 64;

/// Ports that can be connected at once.
const LINKS_MAX: usize = 4096;

/// LIDs of unicast ports end here (IBTA 4.1.3).
const LID_MAX: u16 = 0xbfff;

/// Something that is announced to every peer.
#[derive(Clone, Debug)]
pub(crate) enum Export {
    Segment { id: u32, region: Arc<Region> },
    Channel { id: u32, event: Arc<EventFd> },
    SegmentGone { id: u32 },
    ChannelGone { id: u32 },
}

impl Export {
    /// Whether it shows the segment or channel `id`; no two have the same.
    fn shows(&self, id: u32) -> bool {
        matches!(self, Self::Segment { id: shown, .. } | Self::Channel { id: shown, .. } if *shown == id)
    }
}

/// An entry of the log of exports.
#[derive(Debug)]
struct Logged {
    export: Export,
    /// A "gone" entry: position of the entry that it revokes. A link that was never sent that one skips both.
    takes_back: Option<u64>,
}

/// Peers that a round of [`Fabric::serve`] admitted or lost.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Peers that were admitted.
    pub(crate) joined: Vec<Arc<Peer>>,
    /// Peers that had been admitted and are dead. The caller runs recovery for each, then calls
    /// [`Fabric::forget`].
    pub(crate) left: Vec<Arc<Peer>>,
    /// Memory that was refused, here or at a peer, without which a peer is not reached.
    pub(crate) shortages: Vec<Shortage>,
    /// A peer has taken a segment back.
    pub(crate) has_lost_segments: bool,
}

/// A connection.
#[derive(Debug)]
struct PeerLink {
    connection: UnixConnection,
    /// Port at the other end: known from the start if this side connected, else from its hello.
    lid: Option<u16>,
    /// Its instance: known from the start if this side connected to it by that, else from its hello.
    instance: Option<u64>,
    peer: Option<Arc<Peer>>,
    hello_sent: bool,
    /// Position in the log of exports.
    sent: u64,
    since_ns: u64,
    /// There was no memory for the card of the port at the other end. Nothing is read until then; then it is
    /// closed, and whoever still needs it connects again.
    parked_until_ns: Option<u64>,
}

impl PeerLink {
    fn new(connection: UnixConnection, lid: Option<u16>, instance: Option<u64>) -> Self {
        Self {
            connection,
            lid,
            instance,
            peer: None,
            hello_sent: false,
            sent: 0,
            since_ns: clock::now_ns(),
            parked_until_ns: None,
        }
    }
}

/// How long sockets are looked at often for a port that is connected and sends nothing.
const SILENT_NS_MAX: u64 = 10_000_000_000;

/// Time between two attempts to map the card of a port that there is no memory for.
const PARKED_NS: u64 = 100_000_000;

/// This port's connections, and the log of what they are told.
#[derive(Debug)]
pub(crate) struct Fabric {
    name: String,
    pub(crate) lid: u16,
    instance: u64,
    card: Card,
    /// Dropped before the listener: when the LID is free for the next port, peers can see that this one is gone.
    links: Vec<PeerLink>,
    listener: Listener,
    known: Known,
    /// LIDs of dead ports in [`News::left`], until recovery after them is complete.
    quarantined: Vec<u16>,
    log: BTreeMap<u64, Logged>,
    log_end: u64,
    /// Since the last [`serve`](Self::serve).
    shortages: Vec<Shortage>,
    has_lost_segments: bool,
}

/// How the ports of a fabric are found.
#[derive(Debug)]
enum Known {
    /// By LID.
    ByLid,
    /// By LID and instance.
    ByInstance {
        /// The instance that was last found at each LID, of which there are at most [`LID_MAX`].
        instances: HashMap<u16, u64>,
        /// Keeps the LID: nobody is let in there.
        _lid: Listener,
    },
}

impl Fabric {
    /// Takes a LID. With an `instance` the port is found by those who know that, too, and no one else.
    pub(crate) fn join_as(
        lid: u16,
        name: &str,
        card: Card,
        instance: Option<u64>,
    ) -> Result<Self, SocketError> {
        let first = Listener::bind(&address(name, lid))?;
        let (listener, known) = match instance {
            None => (first, Known::ByLid),
            Some(instance) => {
                let listener = Listener::bind(&address_of(name, lid, instance))?;
                (listener, Known::ByInstance { instances: HashMap::new(), _lid: first })
            }
        };
        Ok(Self {
            name: name.to_owned(),
            lid,
            instance: instance.unwrap_or_else(new_instance),
            card,
            links: Vec::new(),
            listener,
            known,
            quarantined: Vec::new(),
            log: BTreeMap::new(),
            log_end: 0,
            shortages: Vec::new(),
            has_lost_segments: false,
        })
    }

    /// Tells every port, present and future. Segments have to come in the order of their numbers.
    pub(crate) fn export(&mut self, export: Export) {
        let takes_back = match &export {
            Export::Segment { .. } | Export::Channel { .. } => None,
            Export::SegmentGone { id } | Export::ChannelGone { id } => {
                let shown = self.log.iter().find(|(_, logged)| logged.export.shows(*id));
                let Some((&at, _)) = shown else { return };
                self.log.remove(&at);
                Some(at)
            }
        };
        self.log.insert(self.log_end, Logged { export, takes_back });
        self.log_end += 1;
        let newest = self.log.values().rev().find_map(|logged| match logged.export {
            Export::Segment { id, .. } => Some(u64::from(id)),
            _ => None,
        });
        self.card.header().newest_segment.store(newest.unwrap_or(0), Ordering::Relaxed);
        self.push();
    }

    /// Channels that are shown now.
    pub(crate) fn channels(&self) -> u32 {
        let is_channel = |logged: &&Logged| matches!(logged.export, Export::Channel { .. });
        let count = self.log.values().filter(is_channel).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Starts a connection unless there is one. `false`: nobody is there.
    pub(crate) fn connect(&mut self, lid: u16) -> bool {
        if self.links.iter().any(|link| link.lid == Some(lid)) {
            return true;
        }
        if self.links.len() >= LINKS_MAX {
            return false;
        }
        let instance = match &self.known {
            Known::ByLid => None,
            Known::ByInstance { instances, .. } => match instances.get(&lid) {
                None => return false,
                instance => instance.copied(),
            },
        };
        let address = match instance {
            None => address(&self.name, lid),
            Some(instance) => address_of(&self.name, lid, instance),
        };
        let connection = match UnixConnection::connect(&address, clock::NOW) {
            Ok(connection) => connection,
            // So many wait there to be let in that this one has to come again, as it has where this
            // process is out of descriptors.
            Err(SocketError::TimedOut | SocketError::Os { .. }) => return true,
            Err(_) => return false,
        };
        self.links.push(PeerLink::new(connection, Some(lid), instance));
        self.push();
        true
    }

    /// Whether this instance of port `lid` is on this fabric and lets this user in; then it is connected to.
    /// Each of two live ports finds the other, or neither does: who listens where is the same for both.
    ///
    /// # Errors
    ///
    /// [`SocketError::Os`]: that cannot be told.
    pub(crate) fn find(&mut self, lid: u16, instance: u64) -> Result<bool, SocketError> {
        let is_it = |link: &PeerLink| link.lid == Some(lid) && link.instance == Some(instance);
        if self.links.iter().any(is_it) {
            return Ok(true);
        }
        let Known::ByInstance { instances, .. } = &mut self.known else { return Ok(false) };
        match UnixConnection::connect(&address_of(&self.name, lid, instance), clock::NOW) {
            Ok(connection) => {
                instances.insert(lid, instance);
                // Else the connection that there is ends soon: no two ports have the same LID.
                if self.links.len() < LINKS_MAX && !self.links.iter().any(|l| l.lid == Some(lid)) {
                    self.links.push(PeerLink::new(connection, Some(lid), Some(instance)));
                    self.push();
                }
            }
            // So many wait there to be let in that this one has to come again.
            Err(SocketError::TimedOut) => drop(instances.insert(lid, instance)),
            Err(error @ SocketError::Os { .. }) => return Err(error),
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Whether a hello or welcome is outstanding on some link that is younger than [`SILENT_NS_MAX`].
    pub(crate) fn is_connecting(&self) -> bool {
        let is_met = |peer: &Arc<Peer>| peer.is_admitted() && peer.has_admitted();
        let is_parked = |link: &&PeerLink| link.parked_until_ns.is_some();
        let links = self.links.iter().filter(|link| !is_parked(link));
        let mut waiting = links.filter(|link| !link.peer.as_ref().is_some_and(is_met));
        waiting.any(|link| clock::now_ns().saturating_sub(link.since_ns) < SILENT_NS_MAX)
    }

    /// Takes connections, reads and writes what can be read and written now.
    pub(crate) fn serve(&mut self) -> News {
        let mut news = News::default();
        for _ in 0..BUDGET.min(LINKS_MAX - self.links.len()) {
            match self.listener.accept(clock::NOW) {
                Ok(connection) => self.links.push(PeerLink::new(connection, None, None)),
                Err(SocketError::ForeignUser { .. } | SocketError::PeerGone) => {}
                Err(_) => break,
            }
        }
        self.push();
        let mut closed = Vec::new();
        for at in 0..self.links.len() {
            if !self.read(at) {
                closed.push(at);
            }
        }
        for at in closed.into_iter().rev() {
            let link = self.links.swap_remove(at);
            if let Some(peer) = link.peer
                && peer.mark_dead()
                && peer.is_admitted()
            {
                self.quarantined.push(peer.lid);
                news.left.push(peer);
            }
        }
        self.welcome(&mut news);
        news.shortages = core::mem::take(&mut self.shortages);
        news.has_lost_segments = core::mem::take(&mut self.has_lost_segments);
        news
    }

    /// Sends a welcome to every peer whose hello has arrived, unless its LID is in use or in quarantine.
    fn welcome(&mut self, news: &mut News) {
        for link in self.links.iter().filter(|link| link.hello_sent) {
            let Some(peer) = &link.peer else { continue };
            if peer.is_admitted() || peer.is_marked_dead() || self.is_taken(peer.lid) {
                continue;
            }
            if link.connection.send(&Message::Welcome.encode(), &[], clock::NOW).is_ok() {
                peer.admit();
                news.joined.push(peer.clone());
            }
        }
    }

    /// Whether an admitted peer has this LID, or the LID is in quarantine.
    fn is_taken(&self, lid: u16) -> bool {
        let mut peers = self.links.iter().filter_map(|link| link.peer.as_ref());
        self.quarantined.contains(&lid) || peers.any(|peer| peer.lid == lid && peer.is_admitted())
    }

    /// Recovery after the dead port `lid` is complete: the next port with this LID may be admitted.
    pub(crate) fn forget(&mut self, lid: u16) {
        self.quarantined.retain(|&quarantined| quarantined != lid);
    }

    /// Puts LID `lid` into quarantine, as the death of a port does.
    #[cfg(test)]
    pub(crate) fn quarantine(&mut self, lid: u16) {
        self.quarantined.push(lid);
    }

    /// Whether a port `lid` that was let in has hung up, and [`serve`](Self::serve) has not noticed.
    pub(crate) fn has_lost(&self, lid: u16) -> bool {
        let mut links = self.links.iter().filter(|link| {
            link.peer.as_ref().is_some_and(|peer| peer.lid == lid && peer.is_admitted())
        });
        links.any(|link| link.connection.is_closed().unwrap_or(false))
    }

    /// Reads one connection; `false` if it is over.
    fn read(&mut self, at: usize) -> bool {
        let mut buffer = [0; BYTES + 1];
        for _ in 0..BUDGET {
            let link = &self.links[at];
            if let Some(until_ns) = link.parked_until_ns {
                return clock::now_ns() < until_ns;
            }
            match link.connection.recv(&mut buffer, FDS_MAX, clock::NOW) {
                Ok(datagram) => {
                    if !self.handle_message(at, &buffer[..datagram.len_bytes], datagram) {
                        return false;
                    }
                }
                // Without descriptors for what it sends, the peer is not gone: it waits.
                Err(RecvError::TimedOut | RecvError::NoDescriptor) => break,
                Err(_) => return false,
            }
        }
        self.links[at].peer.as_ref().is_none_or(|peer| !peer.is_dead())
    }

    /// Handles one message; `false` closes the connection: the message is not valid here.
    fn handle_message(&mut self, at: usize, bytes: &[u8], datagram: Datagram) -> bool {
        let Ok(message) = Message::decode(bytes) else { return false };
        if datagram.fds.len() != message.fds() {
            return false;
        }
        let mut fds = datagram.fds.into_iter();
        let peer = self.links[at].peer.clone();
        match (message, peer) {
            (Message::Hello(hello), None) => {
                let (Some(ro), Some(rw)) = (fds.next(), fds.next()) else { return false };
                match self.bind_peer(at, &hello, ro, rw) {
                    Err(CardError::Map(MapError::NoMemory { len_bytes })) => {
                        self.park(at, hello.lid, len_bytes as u64);
                        true
                    }
                    bound => bound.is_ok(),
                }
            }
            (Message::NoMemory { len_bytes }, _) => {
                let Some(lid) = self.links[at].lid else { return false };
                let what = "the card of this port in the process";
                self.lack(what, len_bytes, lid);
                true
            }
            (Message::Segment { id, len_bytes }, Some(peer)) => {
                let Ok(len) = usize::try_from(len_bytes) else { return false };
                let Some(fd) = fds.next() else { return false };
                let kept = fd.try_clone().ok();
                match Region::map(fd, len, Protection::ReadWrite) {
                    Ok(region) => {
                        peer.segments.insert(id, Arc::new(region.detach().unmapped_apart()));
                    }
                    // Who reaches for it fails; the peer is there, and may be inside.
                    Err(MapError::NoMemory { .. }) => {
                        let (what, lid) = ("registered memory", Lid::new(peer.lid));
                        peer.segments.refuse(id, kept, Shortage { what, len_bytes, peer: lid });
                    }
                    Err(_) => return false,
                }
                peer.segments.len() <= SEGMENTS_MAX
            }
            (Message::Channel { id }, Some(peer)) => {
                let Some(fd) = fds.next() else { return false };
                EventFd::from_fd(fd).is_ok_and(|event| peer.add_channel(id, event))
            }
            (Message::SegmentGone { id }, Some(peer)) => {
                peer.segments.remove(id);
                self.has_lost_segments = true;
                true
            }
            (Message::ChannelGone { id }, Some(peer)) => {
                peer.remove_channel(id);
                true
            }
            (Message::Welcome, Some(peer)) => {
                peer.welcomes();
                true
            }
            (Message::Hello(_), Some(_)) | (_, None) => false,
        }
    }

    /// There is no memory for the card of the port at the other end, which is told so.
    fn park(&mut self, at: usize, lid: u16, len_bytes: u64) {
        self.lack("the card", len_bytes, lid);
        // Its hello is always first.
        self.push();
        let link = &mut self.links[at];
        let _ = link.connection.send(&Message::NoMemory { len_bytes }.encode(), &[], clock::NOW);
        link.lid = Some(lid);
        link.parked_until_ns = Some(clock::now_ns() + PARKED_NS);
    }

    fn lack(&mut self, what: &'static str, len_bytes: u64, lid: u16) {
        if self.shortages.len() < BUDGET {
            self.shortages.push(Shortage { what, len_bytes, peer: Lid::new(lid) });
        }
    }

    /// Binds a link to the peer that its hello names, unless LID or card is invalid, or there is no memory.
    fn bind_peer(
        &mut self,
        at: usize,
        hello: &Hello,
        ro: OwnedFd,
        rw: OwnedFd,
    ) -> Result<(), CardError> {
        let mut known = self.links.iter().filter_map(|link| link.peer.as_ref());
        let is_same = |peer: &&Arc<Peer>| (peer.lid, peer.instance) == (hello.lid, hello.instance);
        let same = known.find(is_same).cloned();
        let link = &mut self.links[at];
        let is_other = link.instance.is_some_and(|instance| instance != hello.instance);
        if is_other || link.lid.is_some_and(|lid| lid != hello.lid) {
            return Err(CardError::Lid);
        }
        let peer = match same {
            Some(peer) => peer,
            None => {
                let limits = limits(hello).ok_or(CardError::Limits)?;
                Arc::new(Peer::new(hello, limits, ro, rw, &link.connection)?)
            }
        };
        (link.lid, link.instance) = (Some(hello.lid), Some(hello.instance));
        link.peer = Some(peer);
        Ok(())
    }

    /// Sends each link its hello and the exports that it has not got.
    pub(crate) fn push(&mut self) {
        let hello = Message::Hello(Hello {
            lid: self.lid,
            instance: self.instance,
            mrs: self.card.limits.mrs,
            qps: self.card.limits.qps,
            cqs: self.card.limits.cqs,
            rqs: self.card.limits.rqs,
            ro_bytes: self.card.limits.ro_bytes as u64,
            rw_bytes: self.card.limits.rw_bytes as u64,
        });
        let card_fds: Vec<_> = self.card.ro.fd().into_iter().chain(self.card.rw.fd()).collect();
        for link in &mut self.links {
            if !link.hello_sent {
                let sent = link.connection.send(&hello.encode(), &card_fds, clock::NOW);
                link.hello_sent = sent.is_ok();
            }
            if !link.hello_sent {
                continue;
            }
            for (&at, logged) in self.log.range(link.sent..) {
                match send(&link.connection, &logged.export) {
                    Ok(()) => link.sent = at + 1,
                    Err(_) => break,
                }
            }
        }
        self.trim();
    }

    /// Drops "gone" entries from the log that no link still has to be sent.
    fn trim(&mut self) {
        let links = &self.links;
        self.log.retain(|&at, logged| {
            let waits = |from: u64| links.iter().any(|link| from < link.sent && link.sent <= at);
            logged.takes_back.is_none_or(waits)
        });
    }
}

/// Segments that one port can show.
const SEGMENTS_MAX: usize = 1 << 16;

fn address(fabric: &str, lid: u16) -> Address {
    let uid = os::unix::user_id();
    Address::Abstract(format!("copyrpc-soft/{uid}/{fabric}/{lid}"))
}

/// Where one instance of a port listens.
fn address_of(fabric: &str, lid: u16, instance: u64) -> Address {
    let uid = os::unix::user_id();
    Address::Abstract(format!("copyrpc-soft/{uid}/{fabric}/{lid}/{instance:016x}"))
}

/// Differs between ports that have the same LID one after the other.
fn new_instance() -> u64 {
    clock::now_ns() ^ u64::from(std::process::id()) << 40
}

fn send(connection: &UnixConnection, export: &Export) -> Result<(), SendError> {
    match export {
        Export::Segment { id, region } => {
            let message = Message::Segment { id: *id, len_bytes: region.len() as u64 };
            let fd: Vec<_> = region.fd().into_iter().collect();
            connection.send(&message.encode(), &fd, clock::NOW)
        }
        Export::Channel { id, event } => {
            let fd = std::os::fd::AsFd::as_fd(&**event);
            connection.send(&Message::Channel { id: *id }.encode(), &[fd], clock::NOW)
        }
        Export::SegmentGone { id } => {
            connection.send(&Message::SegmentGone { id: *id }.encode(), &[], clock::NOW)
        }
        Export::ChannelGone { id } => {
            connection.send(&Message::ChannelGone { id: *id }.encode(), &[], clock::NOW)
        }
    }
}

/// Of a port that shows nothing.
#[cfg(test)]
pub(crate) fn small_card() -> Card {
    let limits = Limits { mrs: 2, qps: 2, cqs: 2, rqs: 2, ro_bytes: 8 << 10, rw_bytes: 8 << 10 };
    Card::create(limits, false).expect("a small card")
}

fn limits(hello: &Hello) -> Option<Limits> {
    Some(Limits {
        mrs: hello.mrs,
        qps: hello.qps,
        cqs: hello.cqs,
        rqs: hello.rqs,
        ro_bytes: usize::try_from(hello.ro_bytes).ok()?,
        rw_bytes: usize::try_from(hello.rw_bytes).ok()?,
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn join(name: &str) -> Fabric {
        Fabric::join(name, small_card(), None).unwrap()
    }

    #[test]
    fn a_port_that_says_nothing_is_not_waited_for_for_ever() {
        let name = format!("silent-{}", std::process::id());
        let mut fabric = join(&name);
        let silent = UnixConnection::connect(&address(&name, fabric.lid), clock::NOW).unwrap();
        fabric.serve();
        assert!(fabric.is_connecting());
        fabric.links[0].since_ns = 0;
        assert!(!fabric.is_connecting());
        drop(silent);
        fabric.serve();
        assert_eq!(fabric.links.len(), 0);
    }

    fn serve_both(a: &mut Fabric, b: &mut Fabric) -> [News; 2] {
        [a, b].map(Fabric::serve)
    }

    fn meet(a: &mut Fabric, b: &mut Fabric) {
        assert!(a.connect(b.lid));
        while a.is_connecting() || b.is_connecting() {
            serve_both(a, b);
        }
    }

    fn lids(peers: &[Arc<Peer>]) -> Vec<u16> {
        peers.iter().map(|peer| peer.lid).collect()
    }

    /// Ports of other network namespaces have the same LIDs.
    #[test]
    fn a_port_that_has_told_its_instance_is_found_by_it_and_by_nothing_else() {
        let name = format!("instances-{}", std::process::id());
        let join = |instance| Fabric::join(&name, small_card(), Some(instance)).unwrap();
        let [mut fabric, mut other] = [1, 2].map(join);
        let lid = other.lid;
        assert!(!fabric.connect(lid), "its LID alone says nothing");
        for instance in [0, 1, 3] {
            assert!(!fabric.find(lid, instance).unwrap());
        }
        assert!(fabric.find(lid, 2).unwrap() && fabric.find(lid, 2).unwrap());
        while fabric.is_connecting() || other.is_connecting() {
            serve_both(&mut fabric, &mut other);
        }
        assert_eq!(fabric.links.len(), 1);
        // Who has accepted a connection knows whose it is.
        assert!(other.find(fabric.lid, 1).unwrap() && !other.find(fabric.lid, 2).unwrap());
        assert_eq!(other.links.len(), 1);
        let own = fabric.lid;
        assert!(fabric.find(own, 1).unwrap(), "itself");
        drop(other);
        fabric.serve();
        assert!(!fabric.find(lid, 2).unwrap());
    }

    /// It would be taken for another one by all who send there.
    #[test]
    fn a_port_that_calls_itself_by_another_number_is_not_let_in() {
        let name = format!("liar-{}", std::process::id());
        let [mut fabric, mut honest, mut liar] = [(); 3].map(|()| join(&name));
        let numbers = [honest.lid, liar.lid];
        assert!(fabric.connect(honest.lid) && fabric.connect(liar.lid));
        liar.lid = honest.lid;
        let mut joined = Vec::new();
        while fabric.is_connecting() {
            [&mut honest, &mut liar].into_iter().for_each(|port| drop(port.serve()));
            joined.extend(lids(&fabric.serve().joined));
        }
        assert_eq!(joined, numbers[..1]);
        assert_eq!(fabric.links.len(), 1);
    }

    /// In the words that senders leave in queues both have the same name.
    #[test]
    fn a_port_with_the_number_of_a_dead_one_waits_until_that_is_cleaned_up_after() {
        let name = format!("successor-{}", std::process::id());
        let [mut fabric, mut dead] = [(); 2].map(|()| join(&name));
        meet(&mut fabric, &mut dead);
        let (lid, card) = (dead.lid, dead.card.clone());
        assert!(!fabric.has_lost(lid));
        drop(dead);
        assert!(fabric.has_lost(lid));
        let mut successor = Fabric::join_as(lid, &name, card, None).unwrap();
        assert!(successor.connect(fabric.lid));
        let mut left = Vec::new();
        for _ in 0..10 {
            let [here, there] = serve_both(&mut fabric, &mut successor);
            left.extend(lids(&here.left));
            assert!(lids(&here.joined).is_empty());
            assert!(there.left.is_empty(), "it is not sent away");
            let seen = successor.links[0].peer.as_ref();
            assert!(!seen.is_some_and(|peer| peer.has_admitted()), "it is let in too early");
        }
        assert_eq!(left, [lid]);
        assert!(successor.is_connecting(), "it looks again soon");
        fabric.forget(lid);
        assert_eq!(lids(&fabric.serve().joined), [lid]);
        successor.serve();
        assert!(successor.links[0].peer.as_ref().unwrap().has_admitted());
    }

    /// The other side knows nobody whose hello it has not read.
    #[test]
    fn a_port_that_has_not_said_hello_lets_nobody_in() {
        let name = format!("mute-{}", std::process::id());
        let [mut fabric, mut other] = [(); 2].map(|()| join(&name));
        assert!(other.connect(fabric.lid));
        fabric.links.push(PeerLink::new(fabric.listener.accept(clock::NOW).unwrap(), None, None));
        assert!(fabric.read(0), "the hello of the other");
        let mut news = News::default();
        fabric.welcome(&mut news);
        assert!(news.joined.is_empty());
        fabric.push();
        fabric.welcome(&mut news);
        assert_eq!(lids(&news.joined), [other.lid]);
    }

    /// Of its own accord it comes by a number that nobody has checked.
    #[test]
    fn a_port_that_takes_the_number_of_a_live_one_takes_nothing_else() {
        let name = format!("thief-{}", std::process::id());
        let [mut fabric, mut honest, mut thief] = [(); 3].map(|()| join(&name));
        meet(&mut fabric, &mut honest);
        thief.lid = honest.lid;
        assert!(thief.connect(fabric.lid));
        for _ in 0..10 {
            let [here, _] = serve_both(&mut fabric, &mut thief);
            assert!(here.joined.is_empty() && here.left.is_empty());
        }
        drop(thief);
        assert!(fabric.serve().left.is_empty(), "nothing is finished in the name of a live port");
        assert_eq!(fabric.links.len(), 1);
    }

    /// Nothing of it is to be cleaned up, and nobody is to send there.
    #[test]
    fn a_port_that_comes_and_goes_between_two_looks_was_never_there() {
        let name = format!("brief-{}", std::process::id());
        let [mut fabric, mut brief] = [(); 2].map(|()| join(&name));
        assert!(brief.connect(fabric.lid));
        drop(brief);
        let news = fabric.serve();
        assert!(news.joined.is_empty() && news.left.is_empty());
        assert!(fabric.links.is_empty());
    }

    /// Every port of a large job starts at once.
    #[test]
    fn a_port_that_many_wait_to_be_let_into_is_there() {
        let name = format!("crowd-{}", std::process::id());
        let mut fabric = join(&name);
        let lid = fabric.lid % LID_MAX + 1;
        assert!(!fabric.connect(lid), "nobody is there");
        let crowded = address(&name, lid);
        let listener = Listener::bind(&crowded).unwrap();
        let connect = || UnixConnection::connect(&crowded, clock::NOW).ok();
        let crowd: Vec<_> = core::iter::repeat_with(connect).map_while(|waits| waits).collect();
        assert!(fabric.connect(lid), "{} wait", crowd.len());
        drop((listener, crowd));
        assert!(!fabric.connect(lid), "nobody is there any more");
    }

    /// Its socket fills up, since it never reads again.
    #[test]
    fn a_stopped_port_is_not_told_of_what_came_and_went_meanwhile() {
        let name = format!("stopped-{}", std::process::id());
        let [mut fabric, mut stopped, mut live] = [(); 3].map(|()| join(&name));
        assert!(fabric.connect(stopped.lid) && fabric.connect(live.lid));
        while fabric.is_connecting() || stopped.is_connecting() || live.is_connecting() {
            [&mut fabric, &mut stopped, &mut live].into_iter().for_each(|port| drop(port.serve()));
        }
        let region = Arc::new(Region::memfd("segment", 4096).unwrap());
        for id in 1..=2000 {
            fabric.export(Export::Segment { id, region: region.clone() });
            fabric.export(Export::SegmentGone { id });
            assert!(fabric.log.len() <= 2, "{} entries after {id} segments", fabric.log.len());
            live.serve();
        }
        let shown = |port: &Fabric| port.links[0].peer.as_ref().unwrap().segments.len();
        stopped.serve();
        fabric.export(Export::Segment { id: 2001, region });
        for _ in 0..100 {
            fabric.push();
            [&mut stopped, &mut live].into_iter().for_each(|port| drop(port.serve()));
        }
        assert_eq!((shown(&stopped), shown(&live)), (1, 1));
        let peer = live.links[0].peer.as_ref().unwrap();
        let mapped = [peer.card.ro.clone(), peer.card.rw.clone(), peer.segments.get(2001).unwrap()];
        assert!(mapped.iter().all(|region| region.fd().is_none()), "they cost descriptors");
    }
}
