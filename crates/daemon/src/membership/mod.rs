//! Membership: which peers are there, by heartbeats that prove both directions. No clock, no socket.
//!
//! A heartbeat carries its sender's time and echoes the latest time that it had from its receiver.
//! The proof of a link is the echo of one's *own* time: then the peer heard us, and we heard the peer.
//! So a one-way partition looks the same from both ends, and clocks need not agree.
//!
//! ```text
//!            echo of this epoch                 no echo for suspect_after
//!   Down ──────────────────────────▶ Up ◀──────────────────────────────▶ Suspected
//!    ▲                                │            echo                      │
//!    └─────── no echo for dead_after, a new epoch of the peer, or its leave ─┘
//! ```
//!
//! # Epochs
//!
//! Each side of a link counts its *epochs*: a restart begins a new one, and so does giving the peer
//! up. A peer that was given up comes back only with a later epoch; heartbeats say which epoch of the
//! receiver is over, and seeing a later epoch gives the earlier one up. So both sides agree that an
//! epoch is over, and what still travels in it is recognizable. A daemon whose clock went back between
//! two lives learns from its peers what they remember, and begins after that: they
//! [correct](Detector::correction) what comes from an epoch before the one that they know. Of two
//! daemons that claim one rank, the later has the place; the earlier gets it back when that one is gone.
//!
//! # Bounds
//!
//! With heartbeats every `I`, delays of at most `d`, and at most `k` losses in a row each way:
//!
//! - a peer that died, or that is cut off in either direction, is given up at most `dead_after` later
//!   (and when [`Detector::handle_timeout`] is called, which [`Detector::poll_timeout`] asks for);
//! - no peer is given up that lives, if `2d + 2(k + 1)I < dead_after`; the same with `suspect_after`
//!   for suspicion. The defaults tolerate `k = 6` and `k = 1`.
//!
//! All times are of the daemon that judges, while it runs: a pause of more than `I` between two of its looks counts
//! as `I`. So a daemon that was stopped, or starves on a busy core, blames no peer for what it did not hear itself,
//! and gives a peer up after at most `dead_after / I` looks, and `dead_after` if it runs all the time.

mod heartbeat;
mod link;
mod own_time;

use std::collections::{BTreeMap, VecDeque};

pub use heartbeat::{HEARTBEAT_BYTES, Heartbeat};
use link::Link;
use own_time::OwnTime;

/// Timing of a detector, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorConfig {
    /// Between two heartbeats to a peer.
    pub interval_ns: u64,
    /// Without echo, until a peer is suspected.
    pub suspect_after_ns: u64,
    /// Without echo, until a peer is given up.
    pub dead_after_ns: u64,
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It has sent no echo for the time after which a peer counts as dead.
    Silent,
    /// It began a new epoch: it was restarted, or took this node for dead.
    Replaced,
    /// It said that it leaves.
    Left,
    /// The connection to it broke.
    Broken,
}

/// An event of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// It is up: both sides know each other's epoch.
    Up {
        /// Its rank.
        peer: u32,
        /// Its epoch: later than any in which it was up before.
        epoch: u64,
        /// Ours with it.
        our_epoch: u64,
    },
    /// It is up, too, unless the heartbeat that told it so took as long as suspicion: whatever is sent to it finds the
    /// other end of the connection.
    Ready {
        /// Its rank.
        peer: u32,
    },
    /// It has not echoed for long.
    Suspected {
        /// Its rank.
        peer: u32,
    },
    /// It echoes again.
    Recovered {
        /// Its rank.
        peer: u32,
    },
    /// Its epoch is over; what still comes from it is stale.
    Gone {
        /// Its rank.
        peer: u32,
        /// Its epoch that is over.
        epoch: u64,
        /// Reason that the peer is gone.
        why: Gone,
    },
}

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Never seen, or given up.
    Down,
    /// There.
    Up,
    /// There, but silent.
    Suspected,
}

/// Events that nobody took yet, and how many peers are up after them.
#[derive(Clone, Debug, Default)]
struct Events {
    queue: VecDeque<PeerEvent>,
    up: usize,
}

impl Events {
    fn push(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Up { .. } => self.up += 1,
            PeerEvent::Gone { .. } => self.up -= 1,
            PeerEvent::Ready { .. } | PeerEvent::Suspected { .. } | PeerEvent::Recovered { .. } => {
            }
        }
        self.queue.push_back(event);
    }
}

/// Watches the peers of one daemon.
///
/// - **getters**: [`state`](Self::state), [`epoch`](Self::epoch)
/// - **commands**: [`leave`](Self::leave)
/// - **`handle_*`** report what happened: a heartbeat came, time passed
/// - **`poll_*`** say what to do next: call [`poll_transmit`](Self::poll_transmit) and
///   [`poll_event`](Self::poll_event) until `None`, then [`poll_timeout`](Self::poll_timeout)
///
/// `now_ns` never goes backwards.
#[derive(Clone, Debug)]
pub struct Detector {
    config: DetectorConfig,
    time: OwnTime,
    links: BTreeMap<u32, Link>,
    transmits: VecDeque<(u32, Heartbeat)>,
    events: Events,
    /// Heartbeats of epochs that are over.
    stale: u64,
    is_leaving: bool,
}

impl Detector {
    /// Begins to watch `peers`. `epoch` must be later than in any earlier life of this daemon: the
    /// nanoseconds since 1970 will do, and if they do not, its peers tell.
    ///
    /// All get a heartbeat at once. Those after it are spread over the interval in the order of `peers`, so
    /// that neither they nor the echoes come in bursts: let each daemon begin with another one.
    pub fn new(
        config: DetectorConfig,
        epoch: u64,
        peers: impl IntoIterator<Item = u32>,
        now_ns: u64,
    ) -> Self {
        let peers: Vec<u32> = peers.into_iter().collect();
        let spacing_ns = config.interval_ns / peers.len().max(1) as u64;
        let link = |(behind, peer)| (peer, Link::new(epoch.max(1), now_ns, behind * spacing_ns));
        Self {
            config,
            time: OwnTime::new(config.interval_ns, now_ns),
            links: (0..).zip(peers.into_iter().rev()).map(link).collect(),
            transmits: VecDeque::new(),
            events: Events::default(),
            stale: 0,
            is_leaving: false,
        }
    }

    /// The state of a peer.
    #[must_use]
    pub fn state(&self, peer: u32) -> PeerState {
        self.links.get(&peer).map_or(PeerState::Down, Link::state)
    }

    /// The epoch of a peer that is up.
    #[must_use]
    pub fn epoch(&self, peer: u32) -> Option<u64> {
        let link = self.links.get(&peer)?;
        (link.state() != PeerState::Down).then(|| link.peer_epoch())
    }

    /// Peers that are up, suspected ones included.
    #[must_use]
    pub fn up(&self) -> usize {
        self.events.up
    }

    /// Heartbeats that were ignored because their epoch is over, or their sender is no peer.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Says good-bye to all peers. No heartbeat is sent after that.
    pub fn leave(&mut self, now_ns: u64) {
        self.is_leaving = true;
        let now_ns = self.time.look(now_ns);
        for (peer, link) in &mut self.links {
            let heartbeat = Heartbeat { is_leaving: true, ..link.heartbeat(now_ns) };
            self.transmits.push_back((*peer, heartbeat));
        }
    }

    /// A heartbeat came from `peer`.
    pub fn handle_heartbeat(&mut self, peer: u32, heartbeat: Heartbeat, now_ns: u64) {
        let Some(link) = self.links.get_mut(&peer) else {
            self.stale += 1;
            return;
        };
        let now_ns = self.time.look(now_ns);
        let events = &mut self.events;
        if !link.handle(peer, heartbeat, now_ns, &self.config, &mut |event| events.push(event)) {
            self.stale += 1;
        }
    }

    /// When a peer lived, in our time: it has echoed that. `None`: it is down. What this daemon did not run since then
    /// does not count.
    #[must_use]
    pub fn lived_ns(&self, peer: u32) -> Option<u64> {
        Some(self.time.everyones_ns(self.links.get(&peer)?.lived_ns()?))
    }

    /// The connection to `peer` broke: there is no need to wait for its silence.
    pub fn handle_failure(&mut self, peer: u32, now_ns: u64) {
        let now_ns = self.time.look(now_ns);
        if let Some(link) = self.links.get_mut(&peer) {
            let events = &mut self.events;
            link.fail(peer, now_ns, &mut |event| events.push(event));
        }
    }

    /// The answer to a heartbeat of an earlier epoch than the one that is known of `peer`:
    /// it may be a life that does not know of that one, and that is elsewhere.
    #[must_use]
    pub fn correction(
        &mut self,
        peer: u32,
        heartbeat: &Heartbeat,
        now_ns: u64,
    ) -> Option<Heartbeat> {
        let now_ns = self.time.look(now_ns);
        let link = self.links.get(&peer).filter(|_| !self.is_leaving)?;
        (heartbeat.epoch < link.peer_epoch()).then(|| link.heartbeat(now_ns))
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let now_ns = self.time.look(now_ns);
        for (peer, link) in &mut self.links {
            let events = &mut self.events;
            link.expire(*peer, now_ns, &self.config, &mut |event| events.push(event));
            if !self.is_leaving && link.is_due(now_ns) {
                let heartbeat = link.heartbeat(now_ns);
                link.sent(now_ns, self.config.interval_ns);
                self.transmits.push_back((*peer, heartbeat));
            }
        }
    }

    /// The next heartbeat to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(u32, Heartbeat)> {
        self.transmits.pop_front()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        self.events.queue.pop_front()
    }

    /// The latest time of the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let is_leaving = self.is_leaving;
        let deadlines = self.links.values().map(|link| link.deadline_ns(&self.config, is_leaving));
        Some(self.time.everyones_ns(deadlines.flatten().min()?))
    }
}
