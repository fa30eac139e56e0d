//! The rendezvous as a state machine: bytes and time in, bytes out. No socket, clock or thread.
//!
//! The cost of strangers is bounded: [`PENDING_MAX`] connections that have not proved anything, each with a
//! buffer of one hello and one handshake timeout. A newer one displaces the oldest, so that silent
//! ones cannot keep others out. A blob is allocated only after a proof.

mod connections;
mod places;

use std::{fmt, sync::Arc, time::Duration};

use sha2::{Digest as _, Sha256};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    BLOB_BYTES_MAX, JobId, Secret,
    entropy::Nonce,
    frame::{
        self, BadHello, CHALLENGE_BYTES, Challenge, HeadKind, Hello, JOIN_BYTES, Join, VERSION,
    },
    secret::{PROOF_BYTES, ProofPurpose},
};
pub use connections::{Action, ConnectionId, PENDING_MAX, RendezvousStats};
use connections::{Bad, Connections, Peer, Stage};
pub use places::ExchangeState;
use places::Places;

/// The parameters of a rendezvous.
#[derive(Clone, Debug)]
pub struct RendezvousConfig {
    /// The job that meets.
    pub job: JobId,
    /// The secret of the job.
    pub secret: Secret,
    /// The number of ranks.
    pub size: u32,
    /// The longest handshake.
    pub handshake_timeout: Duration,
    /// The longest wait for all ranks.
    pub exchange_timeout: Duration,
    /// The time for which latecomers are still told that the others gave up.
    pub linger: Duration,
    /// The longest wait of a rank whose place another one may hold, until [that](Rendezvous::handle_life) is
    /// known.
    pub contest_timeout: Duration,
    /// Blobs of all ranks from an earlier life of the rendezvous: then all have come already, and
    /// whoever joins has been restarted.
    pub roster: Option<Vec<Vec<u8>>>,
}

/// The rendezvous.
///
/// - **getters**: [`outcome`](Self::outcome), [`stats`](Self::stats)
/// - **`handle_*`** report what happened: connections, bytes, time
/// - **`poll_*`** say what to do next; call [`poll_action`](Self::poll_action) until `None`, then
///   [`poll_timeout`](Self::poll_timeout)
pub struct Rendezvous {
    config: RendezvousConfig,
    nonces: Box<dyn FnMut() -> Nonce + Send>,
    connections: Connections,
    places: Places,
    /// The end of the exchange; of the linger, once it has failed.
    deadline_ns: u64,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous")
            .field("outcome", &self.places.outcome)
            .field("stats", &self.connections.stats)
            .finish()
    }
}

impl Rendezvous {
    /// A rendezvous that begins to wait now. `nonces` must never repeat itself.
    pub fn new(
        mut config: RendezvousConfig,
        now_ns: u64,
        nonces: impl FnMut() -> Nonce + Send + 'static,
    ) -> Self {
        let deadline_ns = after(now_ns, config.exchange_timeout);
        let places = Places::new(config.size, config.roster.take());
        Self {
            config,
            nonces: Box::new(nonces),
            connections: Connections::default(),
            places,
            deadline_ns,
        }
    }

    /// The state of the exchange.
    #[must_use]
    pub fn outcome(&self) -> &ExchangeState {
        &self.places.outcome
    }

    /// Counters of connections.
    #[must_use]
    pub fn stats(&self) -> RendezvousStats {
        self.connections.stats
    }

    /// Connections that cost anything.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether nothing will happen any more.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        matches!(self.places.outcome, ExchangeState::Failed(_)) && now_ns >= self.deadline_ns
    }

    /// Somebody connected; `label` says who, for people.
    pub fn handle_connection(&mut self, label: String, now_ns: u64) -> ConnectionId {
        self.connections.open(label, after(now_ns, self.config.handshake_timeout))
    }

    /// Somebody sent bytes.
    pub fn handle_bytes(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.connections.get(id).is_some() {
            let advanced = match self.connections.take(id, &mut bytes) {
                Ok(None) => Ok(()),
                Ok(Some(stage)) => self.advance(id, stage),
                Err(bad) => Err(bad),
            };
            if let Err(bad) = advanced {
                self.end(id, bad);
            }
        }
    }

    /// Somebody closed the connection.
    pub fn handle_closed(&mut self, id: ConnectionId) {
        let peer = self.connections.remove(id);
        self.leave(peer);
    }

    /// The ranks that came after all had come: who drives this is to say which of them live already.
    #[must_use]
    pub fn contested(&self) -> Vec<u32> {
        let contested = self.places.contested.iter();
        let stages = contested.filter_map(|id| Some(&self.connections.get(*id)?.stage));
        let ranks = stages.filter_map(|stage| match stage {
            Stage::Contested { hello, .. } => Some(hello.rank()),
            _ => None,
        });
        ranks.collect()
    }

    /// What the failure detector of whoever drives this knows of a rank: that it lived at that time, or, `None`,
    /// that it is gone or was never there. The place of one that is gone is taken; one that lived a while after another
    /// came in its name keeps it: a sign of life from before may be read late.
    pub fn handle_life(&mut self, rank: u32, lived_ns: Option<u64>) {
        let late = self.config.contest_timeout / LATE_PARTS;
        for id in std::mem::take(&mut self.places.contested) {
            let Some(peer) = self.connections.get_mut(id) else { continue };
            match (&mut peer.stage, lived_ns) {
                (Stage::Contested { hello, nonce, blob, .. }, None) if hello.rank() == rank => {
                    let (hello, nonce, blob) = (*hello, *nonce, std::mem::take(blob));
                    self.take_place(id, hello, nonce, blob);
                }
                (Stage::Contested { hello, since_ns, .. }, Some(lived_ns))
                    if hello.rank() == rank && lived_ns > after(*since_ns, late) =>
                {
                    self.end(id, lives(rank));
                }
                (Stage::Contested { .. }, _) => self.places.contested.push_back(id),
                _ => {}
            }
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&first) = self.places.contested.front()
            && self.connections.get(first).is_none_or(|peer| peer.deadline_ns <= now_ns)
        {
            self.places.contested.pop_front();
            let Some(peer) = self.connections.get(first) else { continue };
            let Stage::Contested { hello, .. } = peer.stage else { continue };
            let rank = hello.rank();
            self.end(first, lives(rank));
        }
        self.connections.expire(now_ns);
        if self.places.outcome == ExchangeState::Waiting && self.deadline_ns <= now_ns {
            let waiting = self.places.give_up();
            self.deadline_ns = after(now_ns, self.config.linger);
            let reason = self.give_up_reason();
            for id in waiting {
                self.end(id, Bad::Refuse(|_| (), reason.clone()));
            }
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.connections.poll_action()
    }

    /// The latest time of the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let contested = self
            .places
            .contested
            .front()
            .and_then(|id| self.connections.get(*id))
            .map(|peer| peer.deadline_ns);
        let exchange = (self.places.outcome != ExchangeState::Complete).then_some(self.deadline_ns);
        [self.connections.deadline_ns(), contested, exchange].into_iter().flatten().min()
    }

    fn give_up_reason(&self) -> String {
        match &self.places.outcome {
            ExchangeState::Failed(missing) => {
                let (size, waited) = (self.config.size, self.config.exchange_timeout);
                format!(
                    "{missing} of {size} did not come within {waited:?}, so the others gave up; look \
                     for their logs, or raise COPYRPC_BOOTSTRAP_TIMEOUT"
                )
            }
            ExchangeState::Waiting | ExchangeState::Complete => String::new(),
        }
    }

    /// A connection completed a stage.
    fn advance(&mut self, id: ConnectionId, bytes: Vec<u8>) -> Result<(), Bad> {
        let Some(peer) = self.connections.get(id) else { return Ok(()) };
        match peer.stage {
            Stage::Hello => self.take_hello(id, &bytes),
            Stage::Join { hello, nonce } => self.take_join(id, &hello, nonce, &bytes),
            Stage::Blob { hello, nonce } => self.take_blob(id, hello, nonce, bytes),
            Stage::Contested { .. } | Stage::Waiting { .. } => Ok(()),
        }
    }

    fn take_hello(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<(), Bad> {
        let foreign: fn(&mut RendezvousStats) = |stats| stats.foreign += 1;
        let hello = Hello::read_from_bytes(bytes);
        let hello = hello.map_err(|_| Bad::Silently(|stats| stats.garbage += 1))?;
        hello.check(&self.config.job).map_err(|bad| {
            let reason = match bad {
                BadHello::Version(theirs) => {
                    format!("it speaks version {VERSION} of the protocol, this rank {theirs}")
                }
                BadHello::Job => "it is the rendezvous of another job".to_owned(),
            };
            Bad::Refuse(foreign, reason)
        })?;
        let nonce = (self.nonces)();
        let proof = self.config.secret.sign(ProofPurpose::Rendezvous, &[hello.as_bytes(), &nonce]);
        let mut frame = frame::head_bytes(HeadKind::Challenge, CHALLENGE_BYTES);
        frame.extend_from_slice(Challenge { nonce, proof }.as_bytes());
        self.connections.act(Action::Send(id, frame.into()));
        self.connections.enter(id, Stage::Join { hello, nonce }, JOIN_BYTES);
        Ok(())
    }

    /// Once the others were told to give up, nobody can join them.
    fn check_time(&self) -> Result<(), Bad> {
        match self.places.outcome {
            ExchangeState::Failed(_) => {
                Err(Bad::Refuse(|_| (), format!("too late: {}", self.give_up_reason())))
            }
            ExchangeState::Waiting | ExchangeState::Complete => Ok(()),
        }
    }

    fn take_join(
        &mut self,
        id: ConnectionId,
        hello: &Hello,
        nonce: Nonce,
        bytes: &[u8],
    ) -> Result<(), Bad> {
        let unproved: fn(&mut RendezvousStats) = |stats| stats.unproved += 1;
        let misplaced: fn(&mut RendezvousStats) = |stats| stats.misplaced += 1;
        let join = Join::read_from_bytes(bytes);
        let join = join.map_err(|_| Bad::Silently(|stats| stats.garbage += 1))?;
        let about = [hello.as_bytes(), &nonce, join.blob_bytes.as_bytes()];
        if !self.config.secret.verify(ProofPurpose::Join, &about, &join.proof) {
            return Err(Bad::Refuse(unproved, "the secret is another one".to_owned()));
        }
        let blob_bytes = usize::try_from(join.blob_bytes.get()).unwrap_or(usize::MAX);
        if blob_bytes > BLOB_BYTES_MAX {
            let reason = format!("a blob of {blob_bytes} B exceeds {BLOB_BYTES_MAX} B");
            return Err(Bad::Refuse(misplaced, reason));
        }
        let (rank, size) = (hello.rank(), hello.size());
        if size != self.config.size {
            let reason = format!("the job has {} ranks, not {size}", self.config.size);
            return Err(Bad::Refuse(misplaced, reason));
        }
        if rank >= size {
            let last = size - 1;
            let reason = format!("there is no rank {rank}: the job has ranks 0 to {last}");
            return Err(Bad::Refuse(misplaced, reason));
        }
        self.check_time()?;
        if let Some(holder) = self.places.holder(rank) {
            let holder = self.connections.get(holder).map_or("?", |peer| &peer.label);
            let reason = format!("rank {rank} is already taken by {holder}; is it started twice?");
            return Err(Bad::Refuse(misplaced, reason));
        }
        self.connections.enter(id, Stage::Blob { hello: *hello, nonce }, blob_bytes + PROOF_BYTES);
        Ok(())
    }

    fn take_blob(
        &mut self,
        id: ConnectionId,
        hello: Hello,
        nonce: Nonce,
        mut blob: Vec<u8>,
    ) -> Result<(), Bad> {
        let Some(start) = blob.len().checked_sub(PROOF_BYTES) else { return Ok(()) };
        let proof = blob[start..].try_into().unwrap_or([0; PROOF_BYTES]);
        blob.truncate(start);
        if !self.config.secret.verify(
            ProofPurpose::Blob,
            &[hello.as_bytes(), &nonce, &blob],
            &proof,
        ) {
            let reason = "the blob was changed on its way".to_owned();
            return Err(Bad::Refuse(|stats| stats.unproved += 1, reason));
        }
        self.check_time()?;
        let rank = hello.rank();
        if self.places.holder(rank).is_some() {
            let reason = format!("rank {rank} came twice at the same time");
            return Err(Bad::Refuse(|stats| stats.misplaced += 1, reason));
        }
        match self.places.outcome {
            ExchangeState::Complete => self.contest(id, hello, nonce, blob),
            _ => self.take_place(id, hello, nonce, blob),
        }
        Ok(())
    }

    /// All had come already: the newcomer waits until it is known whether another one lives in its place.
    fn contest(&mut self, id: ConnectionId, hello: Hello, nonce: Nonce, blob: Vec<u8>) {
        self.connections.settle(id);
        if self.places.contested.len() >= self.config.size as usize
            && let Some(oldest) = self.places.contested.pop_front()
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        if let Some(peer) = self.connections.get_mut(id) {
            // When it connected: what time it is is not told here.
            let since_ns = peer.deadline_ns.saturating_sub(nanos(self.config.handshake_timeout));
            peer.deadline_ns = after(since_ns, self.config.contest_timeout);
            self.connections.enter(id, Stage::Contested { hello, nonce, blob, since_ns }, 0);
            self.places.contested.push_back(id);
        }
    }

    /// A rank is where it belongs.
    fn take_place(&mut self, id: ConnectionId, hello: Hello, nonce: Nonce, blob: Vec<u8>) {
        let rank = hello.rank();
        self.connections.stats.joined += 1;
        self.connections.settle(id);
        self.connections.enter(id, Stage::Waiting { rank, hello, nonce }, 0);
        if self.places.take(rank, id, blob) {
            self.send_roster();
        }
    }

    /// Sends the roster to all that wait for it.
    fn send_roster(&mut self) {
        let roster: Arc<[u8]> = frame::write_roster(&self.places.blobs()).into();
        self.connections.act(Action::Remember(Arc::clone(&roster)));
        // One digest for all, so that each rank's proof costs no pass over the roster.
        let digest = Sha256::digest(&roster);
        let head: Arc<[u8]> =
            frame::head_bytes(HeadKind::Roster, roster.len() + PROOF_BYTES).into();
        let waiting = self.connections.iter().filter_map(|(id, peer)| match peer.stage {
            Stage::Waiting { hello, nonce, .. } => Some((id, hello, nonce)),
            _ => None,
        });
        for (id, hello, nonce) in waiting.collect::<Vec<_>>() {
            let about = [hello.as_bytes(), &nonce[..], &digest];
            let proof = self.config.secret.sign(ProofPurpose::Roster, &about);
            self.connections.act(Action::Send(id, Arc::clone(&head)));
            self.connections.act(Action::Send(id, Arc::clone(&roster)));
            self.connections.act(Action::Send(id, proof[..].into()));
            self.connections.act(Action::Finish(id));
            self.connections.remove(id);
        }
    }

    fn end(&mut self, id: ConnectionId, bad: Bad) {
        let peer = self.connections.end(id, bad);
        self.leave(peer);
    }

    /// A connection is gone, and the place with it that it has waited in.
    fn leave(&mut self, peer: Option<Peer>) {
        if let Some(Peer { stage: Stage::Waiting { rank, .. }, .. }) = peer {
            self.places.leave(rank);
        }
    }
}

/// The part of [`RendezvousConfig::contest_timeout`] by which a sign of life may be read late: half of the time after which
/// a daemon is found dead.
const LATE_PARTS: u32 = 20;

/// A rank has its place already.
fn lives(rank: u32) -> Bad {
    let reason = format!(
        "rank {rank} has a daemon that lives; stop that one first, or start this one as another rank"
    );
    Bad::Refuse(|stats| stats.misplaced += 1, reason)
}

fn after(now_ns: u64, duration: Duration) -> u64 {
    now_ns.saturating_add(nanos(duration))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
