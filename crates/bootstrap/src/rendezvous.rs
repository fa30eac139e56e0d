//! The rendezvous as a state machine: bytes and time in, bytes out. No socket, clock or thread.
//!
//! The cost of strangers is bounded: [`PENDING_MAX`] connections that have not proved anything, each with a
//! buffer of one hello and one handshake timeout. A newer one displaces the oldest, so that silent
//! ones cannot keep others out. A blob is allocated only after a proof.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    BLOB_BYTES_MAX, JobId, Secret,
    entropy::Nonce,
    error::Ranks,
    frame::{
        self, BadHello, CHALLENGE_BYTES, Challenge, HELLO_BYTES, HeadKind, Hello, JOIN_BYTES, Join,
        VERSION,
    },
    secret::{PROOF_BYTES, ProofPurpose},
};

/// Most connections that have not finished their handshake.
pub const PENDING_MAX: usize = 128;

/// The parameters of a rendezvous.
#[derive(Clone, Debug)]
pub struct RendezvousConfig {
    /// Whose.
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

/// Names a connection.
pub type ConnectionId = u64;

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(ConnectionId, Arc<[u8]>),
    /// Close once everything is sent; nothing is expected any more.
    Finish(ConnectionId),
    /// Close now: it deserves no answer.
    Drop(ConnectionId),
    /// Keep this roster, in case the rendezvous is restarted.
    Remember(Arc<[u8]>),
}

/// The state of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeState {
    /// Not all have come.
    Waiting,
    /// All came. A rank that joins now has been restarted: it replaces its blob and gets the roster.
    Complete,
    /// Some did not come in time.
    Failed(Ranks),
}

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousStats {
    /// Connections.
    pub connections: u64,
    /// Connections that spoke another protocol.
    pub garbage: u64,
    /// Connections that were too slow, or displaced.
    pub slow: u64,
    /// Connections of another version or job.
    pub foreign: u64,
    /// Connections without a valid proof.
    pub unproved: u64,
    /// Ranks that were there already, or cannot be.
    pub misplaced: u64,
    /// Ranks that joined.
    pub joined: u64,
}

enum Stage {
    Hello,
    Join {
        hello: Hello,
        nonce: Nonce,
    },
    Blob {
        hello: Hello,
        nonce: Nonce,
    },
    /// Another one may live in its place.
    Contested {
        hello: Hello,
        nonce: Nonce,
        blob: Vec<u8>,
        since_ns: u64,
    },
    Waiting {
        rank: u32,
        hello: Hello,
        nonce: Nonce,
    },
}

struct Peer {
    label: String,
    deadline_ns: u64,
    stage: Stage,
    /// Bytes of this stage so far.
    buffer: Vec<u8>,
    /// Bytes that complete it.
    want: usize,
}

/// Why a connection ends.
enum Bad {
    /// Without a word.
    Silently(fn(&mut RendezvousStats)),
    /// With a reason.
    Refuse(fn(&mut RendezvousStats), String),
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
    peers: BTreeMap<ConnectionId, Peer>,
    /// Connections that have not finished their handshake, oldest first, so in order of deadlines.
    pending: BTreeSet<ConnectionId>,
    /// Connection and blob by rank.
    ranks: BTreeMap<u32, (ConnectionId, Vec<u8>)>,
    /// Connections of ranks whose places others may hold, about in order of their deadlines.
    contested: VecDeque<ConnectionId>,
    actions: VecDeque<Action>,
    next: ConnectionId,
    deadline_ns: u64,
    outcome: ExchangeState,
    stats: RendezvousStats,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous")
            .field("outcome", &self.outcome)
            .field("stats", &self.stats)
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
        let size = config.size as usize;
        let roster = config.roster.take().filter(|roster| roster.len() == size);
        let outcome =
            if roster.is_some() { ExchangeState::Complete } else { ExchangeState::Waiting };
        // No connection has this name.
        let known = |blob| (ConnectionId::MAX, blob);
        let ranks = (0..).zip(roster.into_iter().flatten().map(known)).collect();
        Self {
            config,
            nonces: Box::new(nonces),
            peers: BTreeMap::new(),
            pending: BTreeSet::new(),
            ranks,
            contested: VecDeque::new(),
            actions: VecDeque::new(),
            next: 0,
            deadline_ns,
            outcome,
            stats: RendezvousStats::default(),
        }
    }

    /// The state of the exchange.
    #[must_use]
    pub fn outcome(&self) -> &ExchangeState {
        &self.outcome
    }

    /// Counters of connections.
    #[must_use]
    pub fn stats(&self) -> RendezvousStats {
        self.stats
    }

    /// Connections that cost anything.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    /// Whether nothing will happen any more.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        matches!(self.outcome, ExchangeState::Failed(_)) && now_ns >= self.deadline_ns
    }

    /// Somebody connected; `label` says who, for people.
    pub fn handle_connection(&mut self, label: String, now_ns: u64) -> ConnectionId {
        self.stats.connections += 1;
        if self.pending.len() == PENDING_MAX
            && let Some(&oldest) = self.pending.first()
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        let id = self.next;
        self.next += 1;
        let deadline_ns = after(now_ns, self.config.handshake_timeout);
        let peer =
            Peer { label, deadline_ns, stage: Stage::Hello, buffer: Vec::new(), want: HELLO_BYTES };
        self.peers.insert(id, peer);
        self.pending.insert(id);
        id
    }

    /// Somebody sent bytes.
    pub fn handle_bytes(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            let (now, later) = bytes.split_at(bytes.len().min(peer.want - peer.buffer.len()));
            peer.buffer.extend_from_slice(now);
            bytes = later;
            let is_garbage =
                matches!(peer.stage, Stage::Hello) && !frame::may_be_hello(&peer.buffer);
            // A rank that waits has nothing to say; and nobody can know what to say before a
            // challenge.
            if is_garbage || now.is_empty() {
                return self.end(id, Bad::Silently(|stats| stats.garbage += 1));
            }
            if peer.buffer.len() == peer.want
                && let Err(bad) = self.advance(id)
            {
                return self.end(id, bad);
            }
        }
    }

    /// Somebody closed the connection.
    pub fn handle_closed(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.pending.remove(&id);
        if let Stage::Waiting { rank, .. } = peer.stage
            && self.outcome == ExchangeState::Waiting
        {
            // It died while it waited; another may come in its place.
            self.ranks.remove(&rank);
        }
    }

    /// The ranks that came after all had come: who drives this is to say which of them live already.
    #[must_use]
    pub fn contested(&self) -> Vec<u32> {
        let stages = self.contested.iter().filter_map(|id| Some(&self.peers.get(id)?.stage));
        let ranks = stages.filter_map(|stage| match stage {
            Stage::Contested { hello, .. } => Some(hello.rank()),
            _ => None,
        });
        ranks.collect()
    }

    /// What the failure detector of whoever drives this knows of a rank: that it lived at that time, or, `None`,
    /// that it is gone or was never there. The place of one that is gone is taken; one that lived after another
    /// came in its name keeps it.
    pub fn handle_life(&mut self, rank: u32, lived_ns: Option<u64>) {
        for id in std::mem::take(&mut self.contested) {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            match (&mut peer.stage, lived_ns) {
                (Stage::Contested { hello, nonce, blob, .. }, None) if hello.rank() == rank => {
                    let (hello, nonce, blob) = (*hello, *nonce, std::mem::take(blob));
                    self.take_place(id, hello, nonce, blob);
                }
                (Stage::Contested { hello, since_ns, .. }, Some(lived_ns))
                    if hello.rank() == rank && lived_ns > *since_ns =>
                {
                    self.end(id, lives(rank));
                }
                (Stage::Contested { .. }, _) => self.contested.push_back(id),
                _ => {}
            }
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&first) = self.contested.front()
            && self.peers.get(&first).is_none_or(|peer| peer.deadline_ns <= now_ns)
        {
            self.contested.pop_front();
            let Some(peer) = self.peers.get(&first) else { continue };
            let Stage::Contested { hello, .. } = peer.stage else { continue };
            let rank = hello.rank();
            self.end(first, lives(rank));
        }
        while let Some(&oldest) = self.pending.first()
            && self.peers.get(&oldest).is_none_or(|peer| peer.deadline_ns <= now_ns)
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        if self.outcome == ExchangeState::Waiting && self.deadline_ns <= now_ns {
            let missing = (0..self.config.size).filter(|rank| !self.ranks.contains_key(rank));
            self.outcome = ExchangeState::Failed(Ranks(missing.collect()));
            self.deadline_ns = after(now_ns, self.config.linger);
            let reason = self.give_up_reason();
            let waiting: Vec<_> = self.ranks.values().map(|(id, _)| *id).collect();
            for id in waiting {
                self.end(id, Bad::Refuse(|_| (), reason.clone()));
            }
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The latest time of the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let oldest = self.pending.first().and_then(|id| self.peers.get(id));
        let contested = self.contested.front().and_then(|id| self.peers.get(id));
        let exchange = (self.outcome != ExchangeState::Complete).then_some(self.deadline_ns);
        let peers = oldest.into_iter().chain(contested).map(|peer| peer.deadline_ns);
        peers.chain(exchange).min()
    }

    fn give_up_reason(&self) -> String {
        match &self.outcome {
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
    fn advance(&mut self, id: ConnectionId) -> Result<(), Bad> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        let bytes = std::mem::take(&mut peer.buffer);
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
        self.actions.push_back(Action::Send(id, frame.into()));
        self.enter(id, Stage::Join { hello, nonce }, JOIN_BYTES);
        Ok(())
    }

    /// Once the others were told to give up, nobody can join them.
    fn check_time(&self) -> Result<(), Bad> {
        match self.outcome {
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
        if let (ExchangeState::Waiting, Some((holder, _))) = (&self.outcome, self.ranks.get(&rank))
        {
            let holder = self.peers.get(holder).map_or("?", |peer| &peer.label);
            let reason = format!("rank {rank} is already taken by {holder}; is it started twice?");
            return Err(Bad::Refuse(misplaced, reason));
        }
        self.enter(id, Stage::Blob { hello: *hello, nonce }, blob_bytes + PROOF_BYTES);
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
        if self.outcome == ExchangeState::Waiting && self.ranks.contains_key(&rank) {
            let reason = format!("rank {rank} came twice at the same time");
            return Err(Bad::Refuse(|stats| stats.misplaced += 1, reason));
        }
        match self.outcome {
            ExchangeState::Complete => self.contest(id, hello, nonce, blob),
            _ => self.take_place(id, hello, nonce, blob),
        }
        Ok(())
    }

    /// All had come already: the newcomer waits until it is known whether another one lives in its place.
    fn contest(&mut self, id: ConnectionId, hello: Hello, nonce: Nonce, blob: Vec<u8>) {
        self.pending.remove(&id);
        // Each holds a blob: there are no more than ranks.
        if self.contested.len() >= self.config.size as usize
            && let Some(oldest) = self.contested.pop_front()
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            // When it connected: what time it is is not told here.
            let since_ns = peer.deadline_ns.saturating_sub(nanos(self.config.handshake_timeout));
            peer.deadline_ns = after(since_ns, self.config.contest_timeout);
            self.enter(id, Stage::Contested { hello, nonce, blob, since_ns }, 0);
            self.contested.push_back(id);
        }
    }

    /// A rank is where it belongs.
    fn take_place(&mut self, id: ConnectionId, hello: Hello, nonce: Nonce, blob: Vec<u8>) {
        let rank = hello.rank();
        self.stats.joined += 1;
        self.ranks.insert(rank, (id, blob));
        self.pending.remove(&id);
        self.enter(id, Stage::Waiting { rank, hello, nonce }, 0);
        let has_all = self.ranks.len() == usize::try_from(self.config.size).unwrap_or(usize::MAX);
        if has_all || self.outcome == ExchangeState::Complete {
            self.complete();
        }
    }

    fn enter(&mut self, id: ConnectionId, stage: Stage, want: usize) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.stage = stage;
            peer.want = want;
        }
    }

    /// Sends the roster to all that wait for it.
    fn complete(&mut self) {
        self.outcome = ExchangeState::Complete;
        let blobs: Vec<_> = self.ranks.values().map(|(_, blob)| blob.clone()).collect();
        let roster: Arc<[u8]> = frame::write_roster(&blobs).into();
        self.actions.push_back(Action::Remember(Arc::clone(&roster)));
        // One digest for all, so that each rank's proof costs no pass over the roster.
        let digest = Sha256::digest(&roster);
        let head: Arc<[u8]> =
            frame::head_bytes(HeadKind::Roster, roster.len() + PROOF_BYTES).into();
        let waiting = self.peers.iter().filter_map(|(id, peer)| match peer.stage {
            Stage::Waiting { hello, nonce, .. } => Some((*id, hello, nonce)),
            _ => None,
        });
        for (id, hello, nonce) in waiting.collect::<Vec<_>>() {
            let about = [hello.as_bytes(), &nonce[..], &digest];
            let proof = self.config.secret.sign(ProofPurpose::Roster, &about);
            self.actions.push_back(Action::Send(id, Arc::clone(&head)));
            self.actions.push_back(Action::Send(id, Arc::clone(&roster)));
            self.actions.push_back(Action::Send(id, proof[..].into()));
            self.actions.push_back(Action::Finish(id));
            self.peers.remove(&id);
        }
    }

    fn end(&mut self, id: ConnectionId, bad: Bad) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.pending.remove(&id);
        if let Stage::Waiting { rank, .. } = peer.stage
            && self.outcome == ExchangeState::Waiting
        {
            self.ranks.remove(&rank);
        }
        match bad {
            Bad::Silently(count) => {
                count(&mut self.stats);
                self.actions.push_back(Action::Drop(id));
            }
            Bad::Refuse(count, reason) => {
                count(&mut self.stats);
                self.actions.push_back(Action::Send(id, frame::refusal(&reason).into()));
                self.actions.push_back(Action::Finish(id));
            }
        }
    }
}

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
mod tests {
    use super::*;
    use crate::RankInfo;

    const S: u64 = 1_000_000_000;

    fn rendezvous(size: u32) -> Rendezvous {
        let config = RendezvousConfig {
            job: JobId::new("job").unwrap(),
            secret: Secret::from_bytes(b"the secret of the job"),
            size,
            handshake_timeout: Duration::from_secs(1),
            exchange_timeout: Duration::from_secs(60),
            linger: Duration::from_secs(2),
            contest_timeout: Duration::from_secs(5),
            roster: None,
        };
        let mut count = 0;
        Rendezvous::new(config, 0, move || {
            count += 1;
            [count; 32]
        })
    }

    /// A rank, as far as the rendezvous can tell.
    struct Rank {
        id: ConnectionId,
        hello: Hello,
        secret: Secret,
        sent: Vec<Vec<u8>>,
    }

    impl Rank {
        fn connect(rendezvous: &mut Rendezvous, rank: u32, size: u32, now_ns: u64) -> Self {
            let id = rendezvous.handle_connection(format!("host-{rank}"), now_ns);
            let rank_info = RankInfo { rank, size };
            let nonce = [0xee; 32];
            let hello = Hello::new(&JobId::new("job").unwrap(), rank_info, nonce);
            let secret = Secret::from_bytes(b"the secret of the job");
            Self { id, hello, secret, sent: Vec::new() }
        }

        fn send(&mut self, rendezvous: &mut Rendezvous, bytes: &[u8]) {
            self.sent.push(bytes.to_vec());
            rendezvous.handle_bytes(self.id, bytes);
        }

        /// Answers the challenge.
        fn join(&mut self, rendezvous: &mut Rendezvous, blob_bytes: u32) -> Nonce {
            let hello = self.hello;
            self.send(rendezvous, hello.as_bytes());
            let challenge = sent_to(rendezvous, self.id);
            let nonce: Nonce = challenge[8..40].try_into().unwrap();
            let proof = challenge[40..72].try_into().unwrap();
            assert!(self.secret.verify(
                ProofPurpose::Rendezvous,
                &[hello.as_bytes(), &nonce],
                &proof
            ));
            let about = [hello.as_bytes(), &nonce, &blob_bytes.to_le_bytes()];
            let proof = self.secret.sign(ProofPurpose::Join, &about);
            let join = Join { blob_bytes: blob_bytes.into(), reserved: 0.into(), proof };
            self.send(rendezvous, join.as_bytes());
            nonce
        }

        fn join_with(&mut self, rendezvous: &mut Rendezvous, blob: &[u8]) {
            let nonce = self.join(rendezvous, u32::try_from(blob.len()).unwrap());
            let proof =
                self.secret.sign(ProofPurpose::Blob, &[self.hello.as_bytes(), &nonce, blob]);
            self.send(rendezvous, &[blob, &proof].concat());
        }
    }

    /// All bytes for one connection; actions for others are dropped.
    fn sent_to(rendezvous: &mut Rendezvous, id: ConnectionId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(action) = rendezvous.poll_action() {
            if let Action::Send(to, sent) = action
                && to == id
            {
                bytes.extend_from_slice(&sent);
            }
        }
        bytes
    }

    fn reason(rendezvous: &mut Rendezvous, id: ConnectionId) -> String {
        String::from_utf8(sent_to(rendezvous, id).split_off(frame::HEAD_BYTES)).unwrap()
    }

    #[test]
    fn all_ranks_get_the_blobs_of_all() {
        let mut rendezvous = rendezvous(2);
        let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
        one.join_with(&mut rendezvous, b"blob of one");
        assert_eq!((rendezvous.outcome(), rendezvous.connections()), (&ExchangeState::Waiting, 1));
        let mut zero = Rank::connect(&mut rendezvous, 0, 2, 0);
        zero.join_with(&mut rendezvous, b"");
        assert_eq!((rendezvous.outcome(), rendezvous.connections()), (&ExchangeState::Complete, 0));
        let roster = sent_to(&mut rendezvous, one.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b""[..], b"blob of one"]);
    }

    #[test]
    fn fault_e1_strangers_are_dropped_at_their_first_wrong_byte() {
        let mut rendezvous = rendezvous(2);
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", &[0xff; 4], &[0; 9]] {
            let id = rendezvous.handle_connection("stranger".into(), 0);
            rendezvous.handle_bytes(id, bytes);
            assert_eq!(rendezvous.poll_action(), Some(Action::Drop(id)));
        }
        assert_eq!((rendezvous.connections(), rendezvous.stats().garbage), (0, 4));
    }

    #[test]
    fn fault_e1_a_slow_loris_ends_with_the_handshake_timeout() {
        let mut rendezvous = rendezvous(2);
        let mut loris = Rank::connect(&mut rendezvous, 0, 2, 0);
        let hello = loris.hello;
        for (tick, byte) in (0..).zip(hello.as_bytes().iter().take(99)) {
            let now_ns = tick * S / 100;
            rendezvous.handle_timeout(now_ns);
            loris.send(&mut rendezvous, &[*byte]);
        }
        assert_eq!((rendezvous.connections(), rendezvous.poll_timeout()), (1, Some(S)));
        rendezvous.handle_timeout(S);
        assert_eq!((rendezvous.connections(), rendezvous.stats().slow), (0, 1));
    }

    #[test]
    fn fault_e1_silent_connections_displace_each_other_at_constant_memory() {
        let mut rendezvous = rendezvous(2);
        for _ in 0..100_000 {
            rendezvous.handle_connection("silent".into(), 0);
            while rendezvous.poll_action().is_some() {}
            assert!(rendezvous.connections() <= PENDING_MAX);
        }
        let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
        one.join_with(&mut rendezvous, b"b");
        assert_eq!(rendezvous.stats().joined, 1, "who is quick comes in all the same");
    }

    #[test]
    fn fault_e1_a_blob_of_4_gib_is_refused_before_a_byte_of_it() {
        let mut rendezvous = rendezvous(2);
        let mut liar = Rank::connect(&mut rendezvous, 0, 2, 0);
        liar.join(&mut rendezvous, u32::MAX);
        assert!(reason(&mut rendezvous, liar.id).contains("exceeds 65536 B"));
        assert_eq!(rendezvous.connections(), 0);
    }

    #[test]
    fn fault_e2_another_job_version_or_secret_is_refused_with_the_reason() {
        let mut rendezvous = rendezvous(2);
        let mut other = Rank::connect(&mut rendezvous, 0, 2, 0);
        other.hello =
            Hello::new(&JobId::new("other").unwrap(), RankInfo { rank: 0, size: 2 }, [1; 32]);
        let hello = other.hello;
        other.send(&mut rendezvous, hello.as_bytes());
        assert_eq!(reason(&mut rendezvous, other.id), "it is the rendezvous of another job");
        let mut old = Rank::connect(&mut rendezvous, 0, 2, 0);
        let mut bytes = old.hello.as_bytes().to_vec();
        bytes[8] = 9;
        old.send(&mut rendezvous, &bytes);
        assert_eq!(
            reason(&mut rendezvous, old.id),
            "it speaks version 1 of the protocol, this rank 9"
        );
        let mut guesser = Rank::connect(&mut rendezvous, 0, 2, 0);
        let hello = guesser.hello;
        guesser.send(&mut rendezvous, hello.as_bytes());
        sent_to(&mut rendezvous, guesser.id);
        guesser.send(&mut rendezvous, &[7; JOIN_BYTES]);
        assert_eq!(reason(&mut rendezvous, guesser.id), "the secret is another one");
        assert_eq!((rendezvous.stats().foreign, rendezvous.stats().unproved), (2, 1));
    }

    #[test]
    fn fault_e2_a_recorded_handshake_does_not_work_twice() {
        let mut rendezvous = rendezvous(2);
        let mut honest = Rank::connect(&mut rendezvous, 1, 2, 0);
        honest.join_with(&mut rendezvous, b"blob");
        let recorded = honest.sent.clone();
        rendezvous.handle_closed(honest.id);
        let mut replay = Rank::connect(&mut rendezvous, 1, 2, 0);
        for bytes in &recorded[..2] {
            replay.send(&mut rendezvous, bytes);
        }
        assert!(!rendezvous.ranks.contains_key(&1), "the rank is free, and stays so");
        let refused = String::from_utf8_lossy(&sent_to(&mut rendezvous, replay.id)).into_owned();
        assert!(refused.ends_with("the secret is another one"));
    }

    #[test]
    fn fault_e4_missing_ranks_are_named_to_those_that_came() {
        let mut rendezvous = rendezvous(5);
        let mut one = Rank::connect(&mut rendezvous, 1, 5, 0);
        one.join_with(&mut rendezvous, b"b");
        assert_eq!(rendezvous.poll_timeout(), Some(60 * S));
        rendezvous.handle_timeout(60 * S);
        assert_eq!(rendezvous.outcome(), &ExchangeState::Failed(Ranks(vec![0, 2, 3, 4])));
        let reason = reason(&mut rendezvous, one.id);
        assert!(reason.starts_with("ranks 0, 2-4 of 5 did not come within 60s"), "{reason}");
    }

    #[test]
    fn fault_e4_a_late_rank_is_told_that_the_others_gave_up() {
        let mut rendezvous = rendezvous(2);
        rendezvous.handle_timeout(60 * S);
        assert!(!rendezvous.is_over(61 * S) && rendezvous.is_over(62 * S));
        let mut late = Rank::connect(&mut rendezvous, 1, 2, 61 * S);
        late.join(&mut rendezvous, 0);
        let reason = reason(&mut rendezvous, late.id);
        assert!(reason.starts_with("too late: ranks 0-1 of 2 did not come"), "{reason}");
    }

    /// All ranks have come then, but the others were told that they have not.
    #[test]
    fn fault_e4_a_rank_that_is_late_with_its_blob_is_told_that_the_others_gave_up() {
        let mut rendezvous = rendezvous(2);
        Rank::connect(&mut rendezvous, 0, 2, 0).join_with(&mut rendezvous, b"zero");
        let mut late = Rank::connect(&mut rendezvous, 1, 2, 60 * S - 1);
        let nonce = late.join(&mut rendezvous, 3);
        rendezvous.handle_timeout(60 * S);
        let proof = late.secret.sign(ProofPurpose::Blob, &[late.hello.as_bytes(), &nonce, b"one"]);
        late.send(&mut rendezvous, &[&b"one"[..], &proof].concat());
        assert_eq!(rendezvous.outcome(), &ExchangeState::Failed(Ranks(vec![1])));
        let reason = reason(&mut rendezvous, late.id);
        assert!(reason.starts_with("too late: rank 1 of 2 did not come"), "{reason}");
        assert_eq!(rendezvous.connections(), 0);
    }

    #[test]
    fn fault_e4_a_duplicate_rank_is_told_who_has_its_place() {
        let mut rendezvous = rendezvous(2);
        Rank::connect(&mut rendezvous, 1, 2, 0).join_with(&mut rendezvous, b"first");
        let mut second = Rank::connect(&mut rendezvous, 1, 2, 0);
        second.join(&mut rendezvous, 0);
        let reason = reason(&mut rendezvous, second.id);
        assert_eq!(reason, "rank 1 is already taken by host-1; is it started twice?");
        let mut wrong = Rank::connect(&mut rendezvous, 1, 3, 0);
        wrong.join(&mut rendezvous, 0);
        assert!(sent_to(&mut rendezvous, wrong.id).ends_with(b"the job has 2 ranks, not 3"));
        let mut beyond = Rank::connect(&mut rendezvous, 7, 2, 0);
        beyond.join(&mut rendezvous, 0);
        let said = sent_to(&mut rendezvous, beyond.id);
        assert!(said.ends_with(b"there is no rank 7: the job has ranks 0 to 1"));
        assert_eq!(rendezvous.stats().misplaced, 3);
    }

    #[test]
    fn the_place_of_a_rank_that_lives_is_not_taken_and_that_of_a_dead_one_is() {
        let mut rendezvous = rendezvous(2);
        for rank in 0..2 {
            Rank::connect(&mut rendezvous, rank, 2, 0).join_with(&mut rendezvous, b"first");
        }
        assert_eq!(*rendezvous.outcome(), ExchangeState::Complete);
        while rendezvous.poll_action().is_some() {}
        let mut thief = Rank::connect(&mut rendezvous, 1, 2, 10 * S);
        thief.join_with(&mut rendezvous, b"thief");
        assert_eq!(rendezvous.contested(), [1]);
        // It lived before; whether it does now nobody knows.
        rendezvous.handle_life(1, Some(10 * S));
        rendezvous.handle_life(0, None);
        assert_eq!(rendezvous.poll_action(), None, "it waits, and the roster is as it was");
        rendezvous.handle_life(1, Some(10 * S + 1));
        let reason = reason(&mut rendezvous, thief.id);
        assert!(reason.starts_with("rank 1 has a daemon that lives; stop that one"), "{reason}");
        assert_eq!((rendezvous.connections(), rendezvous.stats().misplaced), (0, 1));
        // One that was killed is found dead before its next life gives up.
        let mut next = Rank::connect(&mut rendezvous, 1, 2, 20 * S);
        next.join_with(&mut rendezvous, b"next life");
        rendezvous.handle_life(1, Some(19 * S));
        assert_eq!(rendezvous.poll_timeout(), Some(25 * S));
        rendezvous.handle_timeout(24 * S);
        assert_eq!(rendezvous.poll_action(), None);
        rendezvous.handle_life(1, None);
        let sent = sent_to(&mut rendezvous, next.id);
        assert!(sent.windows(9).any(|bytes| bytes == b"next life"), "{sent:?}");
        assert_eq!((rendezvous.poll_timeout(), rendezvous.contested().len()), (None, 0));
        // Nobody learns anything of the one that is there.
        let mut late = Rank::connect(&mut rendezvous, 1, 2, 30 * S);
        late.join_with(&mut rendezvous, b"late");
        rendezvous.handle_timeout(35 * S);
        assert!(!sent_to(&mut rendezvous, late.id).is_empty());
        assert_eq!(rendezvous.connections(), 0);
    }

    #[test]
    fn those_that_wait_for_the_end_of_a_rank_are_bounded() {
        let mut rendezvous = rendezvous(1);
        Rank::connect(&mut rendezvous, 0, 1, 0).join_with(&mut rendezvous, b"first");
        let mut ids = Vec::new();
        for _ in 0..10 {
            let mut thief = Rank::connect(&mut rendezvous, 0, 1, S);
            thief.join_with(&mut rendezvous, b"thief");
            ids.push(thief.id);
        }
        assert_eq!((rendezvous.connections(), rendezvous.contested().len()), (1, 1));
        rendezvous.handle_closed(ids[9]);
        rendezvous.handle_life(0, None);
        assert_eq!((rendezvous.connections(), rendezvous.contested().len()), (0, 0));
    }

    #[test]
    fn a_rank_that_died_while_waiting_can_come_again_and_one_that_was_restarted_too() {
        let mut rendezvous = rendezvous(2);
        let mut one = Rank::connect(&mut rendezvous, 1, 2, 0);
        one.join_with(&mut rendezvous, b"old");
        rendezvous.handle_closed(one.id);
        Rank::connect(&mut rendezvous, 1, 2, 0).join_with(&mut rendezvous, b"new");
        Rank::connect(&mut rendezvous, 0, 2, 0).join_with(&mut rendezvous, b"zero");
        assert_eq!(rendezvous.outcome(), &ExchangeState::Complete);
        while rendezvous.poll_action().is_some() {}
        let mut again = Rank::connect(&mut rendezvous, 1, 2, 100 * S);
        again.join_with(&mut rendezvous, b"newest");
        rendezvous.handle_life(1, None);
        let roster = sent_to(&mut rendezvous, again.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero"[..], b"newest"]);
        assert_eq!(rendezvous.poll_timeout(), None, "nothing is left to wait for");
    }

    #[test]
    fn fault_a6_a_rendezvous_that_was_restarted_knows_who_had_come() {
        let mut config = rendezvous(2).config;
        config.roster = Some(vec![b"zero".to_vec(), b"one".to_vec()]);
        let mut rendezvous = Rendezvous::new(config, 0, || [9; 32]);
        let mut zero = Rank::connect(&mut rendezvous, 0, 2, 0);
        zero.join_with(&mut rendezvous, b"zero again");
        rendezvous.handle_life(0, None);
        let roster = sent_to(&mut rendezvous, zero.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero again"[..], b"one"]);
    }
}
