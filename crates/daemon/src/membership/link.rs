//! One peer, as seen from here.

use crate::membership::{DetectorConfig, Gone, Heartbeat, PeerEvent, PeerState};

#[derive(Clone, Debug)]
pub(super) struct Link {
    state: PeerState,
    /// The peer was up, so it has heard of this life of ours.
    was_up: bool,
    /// Our epoch with this peer.
    epoch: u64,
    /// The start of the epoch, in our time: an echo of anything earlier is not of this epoch.
    epoch_began_ns: u64,
    /// The latest epoch of the peer that we know; 0 if none.
    peer_epoch: u64,
    /// The latest epoch of the peer that is over.
    peer_epoch_over: u64,
    /// The latest `sent_ns` of the peer in its epoch.
    heard_ns: u64,
    /// Our latest time that the peer has echoed in this epoch.
    proven_ns: u64,
    next_send_ns: u64,
    /// The peer is up since it was heard, and comes up itself with our next heartbeat, which is due now: meanwhile the
    /// connection has one end, and may break for want of the other.
    is_awaited: bool,
    /// By how much the second heartbeat comes earlier than an interval after the first.
    lead_ns: u64,
    /// The first heartbeat that proves the link to the peer, in the present epochs of both: whoever echoes it is up.
    told_ns: Option<u64>,
    /// Both ends are up.
    is_ready: bool,
}

impl Link {
    pub(super) fn new(epoch: u64, now_ns: u64, lead_ns: u64) -> Self {
        Self {
            state: PeerState::Down,
            was_up: false,
            epoch,
            epoch_began_ns: now_ns,
            peer_epoch: 0,
            peer_epoch_over: 0,
            heard_ns: 0,
            proven_ns: 0,
            next_send_ns: now_ns,
            is_awaited: false,
            lead_ns,
            told_ns: None,
            is_ready: false,
        }
    }

    pub(super) fn state(&self) -> PeerState {
        self.state
    }

    /// Our latest time that the peer has echoed; `None`: it is down.
    pub(super) fn lived_ns(&self) -> Option<u64> {
        (self.state != PeerState::Down).then_some(self.proven_ns)
    }

    pub(super) fn peer_epoch(&self) -> u64 {
        self.peer_epoch
    }

    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.is_awaited || self.next_send_ns <= now_ns
    }

    pub(super) fn sent(&mut self, now_ns: u64, interval_ns: u64) {
        self.is_awaited = false;
        if self.peer_epoch > self.peer_epoch_over {
            self.told_ns.get_or_insert(now_ns);
        }
        if now_ns < self.next_send_ns {
            // One more than the interval asks for: the others stay spread over it.
            return;
        }
        let lead_ns = core::mem::take(&mut self.lead_ns);
        self.next_send_ns = now_ns.saturating_add(interval_ns - lead_ns);
    }

    pub(super) fn heartbeat(&self, now_ns: u64) -> Heartbeat {
        Heartbeat {
            epoch: self.epoch,
            peer_epoch: self.peer_epoch,
            peer_epoch_over: self.peer_epoch_over,
            sent_ns: now_ns,
            echo_ns: self.heard_ns,
            is_leaving: false,
        }
    }

    /// The time of the next work.
    pub(super) fn deadline_ns(&self, config: &DetectorConfig, is_leaving: bool) -> Option<u64> {
        let silence_ns = match self.state {
            PeerState::Down => None,
            PeerState::Up => Some(config.suspect_after_ns),
            PeerState::Suspected => Some(config.dead_after_ns),
        };
        let expiry = silence_ns.map(|silence_ns| self.proven_ns.saturating_add(silence_ns));
        let next_send_ns = if self.is_awaited { 0 } else { self.next_send_ns };
        let send = (!is_leaving).then_some(next_send_ns);
        expiry.into_iter().chain(send).min()
    }

    /// Takes a heartbeat; `false` if its epoch is over.
    pub(super) fn handle(
        &mut self,
        peer: u32,
        heartbeat: Heartbeat,
        now_ns: u64,
        config: &DetectorConfig,
        event: &mut impl FnMut(PeerEvent),
    ) -> bool {
        // Either the peer gave us up, or it knows a later life of ours: one that began before the clock
        // went back, or, if it was us that it knew before, a daemon that has our place while it lives.
        let (over, known) = (heartbeat.peer_epoch_over, heartbeat.peer_epoch);
        if over >= self.epoch || known > self.epoch {
            self.give_up(peer, Gone::Replaced, now_ns, event);
            let latest = if self.was_up { over } else { over.max(known) };
            self.epoch = self.epoch.max(latest.saturating_add(1));
            self.epoch_began_ns = now_ns;
            self.told_ns = None;
        }
        if heartbeat.epoch < self.peer_epoch || heartbeat.epoch <= self.peer_epoch_over {
            return false;
        }
        if heartbeat.epoch > self.peer_epoch {
            self.give_up(peer, Gone::Replaced, now_ns, event);
            self.peer_epoch = heartbeat.epoch;
            self.heard_ns = heartbeat.sent_ns;
            self.told_ns = None;
        }
        // Heartbeats may overtake each other.
        self.heard_ns = self.heard_ns.max(heartbeat.sent_ns);
        if heartbeat.is_leaving {
            self.give_up(peer, Gone::Left, now_ns, event);
            self.peer_epoch_over = self.peer_epoch;
            return true;
        }
        let is_proof = heartbeat.peer_epoch == self.epoch
            && (self.epoch_began_ns.max(1)..=now_ns).contains(&heartbeat.echo_ns);
        if is_proof {
            self.proven_ns = self.proven_ns.max(heartbeat.echo_ns);
            self.revive(peer, now_ns, config, event);
            // The peer came up before it sent this: the connection has both ends.
            let is_told = self.told_ns.is_some_and(|told_ns| told_ns <= heartbeat.echo_ns);
            if is_told && self.state != PeerState::Down && !self.is_ready {
                self.is_ready = true;
                event(PeerEvent::Ready { peer });
            }
        }
        true
    }

    /// The link was proven at `proven_ns`.
    fn revive(
        &mut self,
        peer: u32,
        now_ns: u64,
        config: &DetectorConfig,
        event: &mut impl FnMut(PeerEvent),
    ) {
        if now_ns - self.proven_ns >= config.suspect_after_ns {
            return;
        }
        match core::mem::replace(&mut self.state, PeerState::Up) {
            PeerState::Up => {}
            PeerState::Suspected => event(PeerEvent::Recovered { peer }),
            PeerState::Down => {
                self.was_up = true;
                self.is_awaited = true;
                event(PeerEvent::Up { peer, epoch: self.peer_epoch, our_epoch: self.epoch });
            }
        }
    }

    /// Time passed.
    pub(super) fn expire(
        &mut self,
        peer: u32,
        now_ns: u64,
        config: &DetectorConfig,
        event: &mut impl FnMut(PeerEvent),
    ) {
        let silence_ns = now_ns.saturating_sub(self.proven_ns);
        if self.state == PeerState::Up && silence_ns >= config.suspect_after_ns {
            self.state = PeerState::Suspected;
            event(PeerEvent::Suspected { peer });
        }
        if self.state == PeerState::Suspected && silence_ns >= config.dead_after_ns {
            self.give_up(peer, Gone::Silent, now_ns, event);
        }
    }

    /// Something else than a heartbeat told that the peer's epoch is over.
    pub(super) fn fail(&mut self, peer: u32, now_ns: u64, event: &mut impl FnMut(PeerEvent)) {
        self.give_up(peer, Gone::Broken, now_ns, event);
    }

    /// Ends the peer's epoch and ours, if the peer is up.
    fn give_up(&mut self, peer: u32, why: Gone, now_ns: u64, event: &mut impl FnMut(PeerEvent)) {
        if self.state == PeerState::Down {
            return;
        }
        self.state = PeerState::Down;
        self.peer_epoch_over = self.peer_epoch;
        self.epoch = self.epoch.saturating_add(1);
        self.epoch_began_ns = now_ns;
        self.proven_ns = 0;
        // The peer should not wait to hear of the new epoch.
        self.next_send_ns = now_ns;
        self.is_awaited = false;
        self.told_ns = None;
        self.is_ready = false;
        event(PeerEvent::Gone { peer, epoch: self.peer_epoch, why });
    }
}
