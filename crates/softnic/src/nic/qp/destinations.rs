//! Where a queue pair sends to: peers' cards and queue pairs, resolved once and then compared.

use std::collections::HashMap;

use memory::sync::Arc;
use verbs::{Lid, Qpn, Transport};

use super::{QpShared, wake_own};
use crate::nic::{
    card::{layout::address_word, target::Target},
    engine::Reply,
    fabric::Peer,
    memory::MrCache,
    port_state::PortState,
};

/// Destinations that a UD or DC queue pair remembers.
const DESTINATIONS_MAX: usize = 4096;

/// A completion queue with a channel that got something.
#[derive(Debug)]
pub(super) enum Wake {
    Own(Arc<crate::nic::objects::CqShared>, bool),
    /// That of a destination, which says the rest.
    Peer(DestinationKey),
    /// That of one that is no destination any more, and whether it got something solicited.
    Former(Box<Destination>, bool),
}

impl Wake {
    #[inline]
    pub(super) fn signal(self, destinations: &mut Destinations, port: &PortState) {
        match self {
            Self::Own(cq, solicited) => wake_own(&cq, solicited),
            Self::Peer(key) => {
                let Some(destination) = destinations.get_mut(key) else { return };
                if let Some(solicited) = destination.due.take() {
                    destination.signal(solicited, port);
                }
            }
            Self::Former(destination, solicited) => destination.signal(solicited, port),
        }
    }
}

/// A queue pair that was sent to, ready for more.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) peer: Arc<Peer>,
    pub(super) target: Target,
    pub(super) remote: MrCache,
    /// Its completion queue has a channel, and got something; whether that was solicited.
    due: Option<bool>,
}

impl Destination {
    /// Notes that its completion queue got something; `key` is its own.
    #[inline(always)]
    pub(super) fn note(&mut self, solicited: bool, key: DestinationKey, wakes: &mut Vec<Wake>) {
        if self.target.cq.channel == 0 {
            return;
        }
        if self.due.is_none() {
            wakes.push(Wake::Peer(key));
        }
        self.due = Some(solicited || self.due == Some(true));
    }

    /// What is due, of one that is forgotten.
    pub(super) fn wake(mut self: Box<Self>) -> Option<Wake> {
        self.due.take().map(|solicited| Wake::Former(self, solicited))
    }

    #[inline]
    pub(super) fn signal(&self, solicited: bool, port: &PortState) {
        let cq = &self.target.cq;
        if cq.armed().fires(solicited) && !self.peer.signal(cq.channel) {
            self.signal_late(port);
        }
    }

    /// A channel is shown before its queue is: it is in the socket.
    #[cold]
    pub(super) fn signal_late(&self, port: &PortState) {
        port.fetch();
        let cq = &self.target.cq;
        if !self.peer.signal(cq.channel) {
            // Its owner is gone, or has not found room in the socket: stay armed, so that the next
            // completion tries again.
            cq.armed().arm(crate::shared::arm::NEXT);
        }
    }
}

/// Places of a queue pair that sends to many, a power of two.
const NEAR_COUNT: usize = 64;

/// Port and queue pair that a message goes to, as one word: [`address_word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DestinationKey(u64);

impl DestinationKey {
    #[inline(always)]
    pub(super) fn new(port: Lid, qpn: Qpn) -> Self {
        Self(address_word(port, qpn))
    }

    pub(super) fn lid(self) -> u16 {
        u16::try_from(self.0 >> 32).unwrap_or(0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(super) fn qpn(self) -> Option<Qpn> {
        Qpn::new(self.0 as u32)
    }
}

/// The last destination of a place.
type Near = Option<(DestinationKey, Box<Destination>)>;

/// Destinations: the last one of each place without a look-up.
#[derive(Debug)]
pub(super) struct Destinations {
    /// As many as a power of two; a single one where there is only one peer.
    near: Box<[Near]>,
    others: HashMap<DestinationKey, Box<Destination>>,
}

impl Destinations {
    pub(super) fn new(transport: Transport) -> Self {
        let count = if transport == Transport::Rc { 1 } else { NEAR_COUNT };
        Self { near: (0..count).map(|_| None).collect(), others: HashMap::new() }
    }

    /// Ports give the same numbers to their queue pairs: spread both.
    #[inline(always)]
    pub(super) fn place(&self, key: DestinationKey) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of places")]
        let spread = (key.0 + 5 * (key.0 >> 32)) as usize;
        spread & (self.near.len() - 1)
    }

    /// The destination, resolved again if it has changed. What is due to those that are forgotten for it
    /// goes to `wakes`.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        key: DestinationKey,
        qp: &QpShared,
        wakes: &mut Vec<Wake>,
    ) -> Result<&mut Destination, Reply> {
        if self.current(key).is_none() {
            self.look_up(key, qp, wakes)?;
        }
        let place = self.place(key);
        self.near[place].as_mut().map(|(_, destination)| &mut **destination).ok_or(Reply::Silence)
    }

    /// The destination, if it was the last one of its place and has not changed.
    #[inline(always)]
    pub(super) fn current(&mut self, key: DestinationKey) -> Option<&mut Destination> {
        let place = self.place(key);
        Self::checked(self.near.get_mut(place)?, key)
    }

    /// [`current`](Self::current) where there is only one place.
    #[inline(always)]
    pub(super) fn only(&mut self, key: DestinationKey) -> Option<&mut Destination> {
        Self::checked(self.near.first_mut()?, key)
    }

    #[inline(always)]
    pub(super) fn checked(near: &mut Near, key: DestinationKey) -> Option<&mut Destination> {
        let (last, destination) = near.as_mut()?;
        let hit =
            *last == key && !destination.peer.is_marked_dead() && destination.target.is_current();
        hit.then_some(&mut **destination)
    }

    /// The destination, changed or not.
    #[inline]
    pub(super) fn get_mut(&mut self, key: DestinationKey) -> Option<&mut Destination> {
        let place = self.place(key);
        match self.near.get_mut(place) {
            Some(Some((last, destination))) if *last == key => Some(destination),
            _ => self.others.get_mut(&key).map(|destination| &mut **destination),
        }
    }

    /// Whoever comes and goes leaves nothing mapped but the last one.
    pub(super) fn forget_dead(&mut self) {
        self.others.retain(|_, destination| !destination.peer.is_marked_dead());
        for near in &mut self.near {
            near.take_if(|(_, destination)| destination.peer.is_marked_dead());
        }
    }

    /// Forgets the regions of peers that are no longer registered, or whose port is dead.
    pub(super) fn forget_stale_regions(&mut self) {
        let near = self.near.iter_mut().flatten().map(|(_, destination)| destination);
        for destination in near.chain(self.others.values_mut()) {
            if destination.peer.is_marked_dead() {
                destination.remote.clear();
            } else {
                destination.remote.forget_stale();
            }
        }
    }

    #[cold]
    pub(super) fn look_up(
        &mut self,
        key: DestinationKey,
        qp: &QpShared,
        wakes: &mut Vec<Wake>,
    ) -> Result<(), Reply> {
        let place = self.place(key);
        if let Some((last, destination)) = self.near[place].take() {
            if self.others.len() >= DESTINATIONS_MAX {
                wakes.extend(self.others.drain().filter_map(|(_, former)| former.wake()));
            }
            self.others.insert(last, destination);
        }
        let mut found = self.others.remove(&key);
        if let Some(destination) = found.take_if(|destination| destination.peer.is_marked_dead()) {
            drop(destination);
            return Err(Reply::Dead);
        }
        let destination = match found {
            Some(destination) if destination.target.is_current() => destination,
            stale => {
                let peer = match stale {
                    Some(stale) => {
                        let peer = stale.peer.clone();
                        wakes.extend(stale.wake());
                        peer
                    }
                    None => {
                        self.forget_dead();
                        qp.port.import(key.lid()).map_err(|connecting| {
                            if connecting { Reply::Connecting } else { Reply::Silence }
                        })?
                    }
                };
                let target = key.qpn().and_then(|qpn| Target::resolve(&peer.card, qpn));
                let target = target.ok_or(Reply::Silence)?;
                Box::new(Destination { peer, target, remote: MrCache::default(), due: None })
            }
        };
        self.near[place] = Some((key, destination));
        Ok(())
    }
}
