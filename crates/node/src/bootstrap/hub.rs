//! The rendezvous as a state machine: bytes and time in, bytes out. No socket, clock or thread.
//!
//! What strangers can cost: [`PENDING_MAX`] connections that have not proved anything, each with a
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

use crate::bootstrap::{
    BLOB_BYTES_MAX, JobId, Secret,
    entropy::Nonce,
    error::Ranks,
    frame::{
        self, BadHello, CHALLENGE_BYTES, Challenge, HELLO_BYTES, HeadKind, Hello, JOIN_BYTES, Join,
        VERSION,
    },
    secret::{PROOF_BYTES, Role},
};

/// Most connections that have not finished their handshake.
pub const PENDING_MAX: usize = 128;

/// What a rendezvous is for.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Whose.
    pub job: JobId,
    /// What its ranks know.
    pub secret: Secret,
    /// How many ranks there are.
    pub size: u32,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long ranks may take to come.
    pub exchange_timeout: Duration,
    /// How long latecomers are still told that the others gave up.
    pub linger: Duration,
    /// Blobs of all ranks from an earlier life of the rendezvous: then all have come already, and
    /// whoever joins has been restarted.
    pub roster: Option<Vec<Vec<u8>>>,
}

/// Names a connection.
pub type ConnectionId = u64;

/// What is to be done.
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

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not all have come.
    Waiting,
    /// All came. A rank that joins now has been restarted: it replaces its blob and gets the roster.
    Complete,
    /// Some did not come in time.
    Failed(Ranks),
}

/// What came in so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStats {
    /// Connections.
    pub connections: u64,
    /// Those that spoke another protocol.
    pub garbage: u64,
    /// Those that were too slow, or displaced.
    pub slow: u64,
    /// Those of another version or job.
    pub foreign: u64,
    /// Those without a right proof.
    pub unproved: u64,
    /// Ranks that were there already, or cannot be.
    pub misplaced: u64,
    /// Ranks that joined.
    pub joined: u64,
}

enum Stage {
    Hello,
    Join { hello: Hello, nonce: Nonce },
    Blob { hello: Hello, nonce: Nonce },
    Waiting { rank: u32, hello: Hello, nonce: Nonce },
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
    Silently(fn(&mut HubStats)),
    /// With a reason.
    Refuse(fn(&mut HubStats), String),
}

/// The rendezvous.
///
/// - **getters**: [`outcome`](Self::outcome), [`stats`](Self::stats)
/// - **`handle_*`** report what happened: connections, bytes, time
/// - **`poll_*`** say what to do next; call [`poll_action`](Self::poll_action) until `None`, then
///   [`poll_timeout`](Self::poll_timeout)
pub struct Hub {
    config: HubConfig,
    nonces: Box<dyn FnMut() -> Nonce + Send>,
    peers: BTreeMap<ConnectionId, Peer>,
    /// Those that have not finished their handshake, oldest first, so in order of deadlines.
    pending: BTreeSet<ConnectionId>,
    /// Connection and blob by rank.
    ranks: BTreeMap<u32, (ConnectionId, Vec<u8>)>,
    actions: VecDeque<Action>,
    next: ConnectionId,
    deadline_ns: u64,
    outcome: Outcome,
    stats: HubStats,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("outcome", &self.outcome).field("stats", &self.stats).finish()
    }
}

impl Hub {
    /// A rendezvous that begins to wait now. `nonces` must never repeat itself.
    pub fn new(
        mut config: HubConfig,
        now_ns: u64,
        nonces: impl FnMut() -> Nonce + Send + 'static,
    ) -> Self {
        let deadline_ns = after(now_ns, config.exchange_timeout);
        let size = config.size as usize;
        let roster = config.roster.take().filter(|roster| roster.len() == size);
        let outcome = if roster.is_some() { Outcome::Complete } else { Outcome::Waiting };
        // No connection has this name.
        let known = |blob| (ConnectionId::MAX, blob);
        let ranks = (0..).zip(roster.into_iter().flatten().map(known)).collect();
        Self {
            config,
            nonces: Box::new(nonces),
            peers: BTreeMap::new(),
            pending: BTreeSet::new(),
            ranks,
            actions: VecDeque::new(),
            next: 0,
            deadline_ns,
            outcome,
            stats: HubStats::default(),
        }
    }

    /// How it stands.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// What came in so far.
    #[must_use]
    pub fn stats(&self) -> HubStats {
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
        matches!(self.outcome, Outcome::Failed(_)) && now_ns >= self.deadline_ns
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
            && self.outcome == Outcome::Waiting
        {
            // It died while it waited; another may come in its place.
            self.ranks.remove(&rank);
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&oldest) = self.pending.first()
            && self.peers.get(&oldest).is_none_or(|peer| peer.deadline_ns <= now_ns)
        {
            self.end(oldest, Bad::Silently(|stats| stats.slow += 1));
        }
        if self.outcome == Outcome::Waiting && self.deadline_ns <= now_ns {
            let missing = (0..self.config.size).filter(|rank| !self.ranks.contains_key(rank));
            self.outcome = Outcome::Failed(Ranks(missing.collect()));
            self.deadline_ns = after(now_ns, self.config.linger);
            let reason = self.give_up_reason();
            let waiting: Vec<_> = self.ranks.values().map(|(id, _)| *id).collect();
            for id in waiting {
                self.end(id, Bad::Refuse(|_| (), reason.clone()));
            }
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let oldest = self.pending.first().and_then(|id| self.peers.get(id));
        let exchange = (self.outcome != Outcome::Complete).then_some(self.deadline_ns);
        oldest.map(|peer| peer.deadline_ns).into_iter().chain(exchange).min()
    }

    fn give_up_reason(&self) -> String {
        match &self.outcome {
            Outcome::Failed(missing) => {
                let (size, waited) = (self.config.size, self.config.exchange_timeout);
                format!(
                    "{missing} of {size} did not come within {waited:?}, so the others gave up; look \
                     for their logs, or raise COPYRPC_BOOTSTRAP_TIMEOUT"
                )
            }
            Outcome::Waiting | Outcome::Complete => String::new(),
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
            Stage::Waiting { .. } => Ok(()),
        }
    }

    fn take_hello(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<(), Bad> {
        let foreign: fn(&mut HubStats) = |stats| stats.foreign += 1;
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
        let proof = self.config.secret.prove(Role::Hub, &[hello.as_bytes(), &nonce]);
        let mut frame = frame::head_bytes(HeadKind::Challenge, CHALLENGE_BYTES);
        frame.extend_from_slice(Challenge { nonce, proof }.as_bytes());
        self.actions.push_back(Action::Send(id, frame.into()));
        self.enter(id, Stage::Join { hello, nonce }, JOIN_BYTES);
        Ok(())
    }

    /// Once the others were told to give up, nobody can join them.
    fn check_time(&self) -> Result<(), Bad> {
        match self.outcome {
            Outcome::Failed(_) => {
                Err(Bad::Refuse(|_| (), format!("too late: {}", self.give_up_reason())))
            }
            Outcome::Waiting | Outcome::Complete => Ok(()),
        }
    }

    fn take_join(
        &mut self,
        id: ConnectionId,
        hello: &Hello,
        nonce: Nonce,
        bytes: &[u8],
    ) -> Result<(), Bad> {
        let unproved: fn(&mut HubStats) = |stats| stats.unproved += 1;
        let misplaced: fn(&mut HubStats) = |stats| stats.misplaced += 1;
        let join = Join::read_from_bytes(bytes);
        let join = join.map_err(|_| Bad::Silently(|stats| stats.garbage += 1))?;
        let about = [hello.as_bytes(), &nonce, join.blob_bytes.as_bytes()];
        if !self.config.secret.accepts(Role::Join, &about, &join.proof) {
            return Err(Bad::Refuse(unproved, "the secret is another one".to_owned()));
        }
        let blob_bytes = usize::try_from(join.blob_bytes.get()).unwrap_or(usize::MAX);
        if blob_bytes > BLOB_BYTES_MAX {
            let reason = format!("a blob of {blob_bytes} B exceeds {BLOB_BYTES_MAX} B");
            return Err(Bad::Refuse(misplaced, reason));
        }
        let (rank, size) = (hello.rank(), hello.size());
        if size != self.config.size || rank >= size {
            let reason = format!("the job has {} ranks, not {size}", self.config.size);
            return Err(Bad::Refuse(misplaced, reason));
        }
        self.check_time()?;
        if let (Outcome::Waiting, Some((holder, _))) = (&self.outcome, self.ranks.get(&rank)) {
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
        if !self.config.secret.accepts(Role::Blob, &[hello.as_bytes(), &nonce, &blob], &proof) {
            let reason = "the blob was changed on its way".to_owned();
            return Err(Bad::Refuse(|stats| stats.unproved += 1, reason));
        }
        self.check_time()?;
        let rank = hello.rank();
        if self.outcome == Outcome::Waiting && self.ranks.contains_key(&rank) {
            let reason = format!("rank {rank} came twice at the same time");
            return Err(Bad::Refuse(|stats| stats.misplaced += 1, reason));
        }
        self.stats.joined += 1;
        self.ranks.insert(rank, (id, blob));
        self.pending.remove(&id);
        self.enter(id, Stage::Waiting { rank, hello, nonce }, 0);
        let has_all = self.ranks.len() == usize::try_from(self.config.size).unwrap_or(usize::MAX);
        if has_all || self.outcome == Outcome::Complete {
            self.complete();
        }
        Ok(())
    }

    fn enter(&mut self, id: ConnectionId, stage: Stage, want: usize) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.stage = stage;
            peer.want = want;
        }
    }

    /// Sends the roster to all that wait for it.
    fn complete(&mut self) {
        self.outcome = Outcome::Complete;
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
            let proof = self.config.secret.prove(Role::Roster, &about);
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
            && self.outcome == Outcome::Waiting
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

fn after(now_ns: u64, duration: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Place;

    const S: u64 = 1_000_000_000;

    fn hub(size: u32) -> Hub {
        let config = HubConfig {
            job: JobId::new("job").unwrap(),
            secret: Secret::from_bytes(b"the secret of the job"),
            size,
            handshake_timeout: Duration::from_secs(1),
            exchange_timeout: Duration::from_secs(60),
            linger: Duration::from_secs(2),
            roster: None,
        };
        let mut count = 0;
        Hub::new(config, 0, move || {
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
        fn connect(hub: &mut Hub, rank: u32, size: u32, now_ns: u64) -> Self {
            let id = hub.handle_connection(format!("host-{rank}"), now_ns);
            let place = Place { rank, size };
            let nonce = [0xee; 32];
            let hello = Hello::new(&JobId::new("job").unwrap(), place, nonce);
            let secret = Secret::from_bytes(b"the secret of the job");
            Self { id, hello, secret, sent: Vec::new() }
        }

        fn send(&mut self, hub: &mut Hub, bytes: &[u8]) {
            self.sent.push(bytes.to_vec());
            hub.handle_bytes(self.id, bytes);
        }

        /// Answers the challenge.
        fn join(&mut self, hub: &mut Hub, blob_bytes: u32) -> Nonce {
            let hello = self.hello;
            self.send(hub, hello.as_bytes());
            let challenge = sent_to(hub, self.id);
            let nonce: Nonce = challenge[8..40].try_into().unwrap();
            let proof = challenge[40..72].try_into().unwrap();
            assert!(self.secret.accepts(Role::Hub, &[hello.as_bytes(), &nonce], &proof));
            let about = [hello.as_bytes(), &nonce, &blob_bytes.to_le_bytes()];
            let proof = self.secret.prove(Role::Join, &about);
            let join = Join { blob_bytes: blob_bytes.into(), reserved: 0.into(), proof };
            self.send(hub, join.as_bytes());
            nonce
        }

        fn join_with(&mut self, hub: &mut Hub, blob: &[u8]) {
            let nonce = self.join(hub, u32::try_from(blob.len()).unwrap());
            let proof = self.secret.prove(Role::Blob, &[self.hello.as_bytes(), &nonce, blob]);
            self.send(hub, &[blob, &proof].concat());
        }
    }

    /// All bytes for one connection; actions for others are dropped.
    fn sent_to(hub: &mut Hub, id: ConnectionId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(action) = hub.poll_action() {
            if let Action::Send(to, sent) = action
                && to == id
            {
                bytes.extend_from_slice(&sent);
            }
        }
        bytes
    }

    fn reason(hub: &mut Hub, id: ConnectionId) -> String {
        String::from_utf8(sent_to(hub, id).split_off(frame::HEAD_BYTES)).unwrap()
    }

    #[test]
    fn all_ranks_get_the_blobs_of_all() {
        let mut hub = hub(2);
        let mut one = Rank::connect(&mut hub, 1, 2, 0);
        one.join_with(&mut hub, b"blob of one");
        assert_eq!((hub.outcome(), hub.connections()), (&Outcome::Waiting, 1));
        let mut zero = Rank::connect(&mut hub, 0, 2, 0);
        zero.join_with(&mut hub, b"");
        assert_eq!((hub.outcome(), hub.connections()), (&Outcome::Complete, 0));
        let roster = sent_to(&mut hub, one.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b""[..], b"blob of one"]);
    }

    #[test]
    fn fault_e1_strangers_are_dropped_at_their_first_wrong_byte() {
        let mut hub = hub(2);
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", &[0xff; 4], &[0; 9]] {
            let id = hub.handle_connection("stranger".into(), 0);
            hub.handle_bytes(id, bytes);
            assert_eq!(hub.poll_action(), Some(Action::Drop(id)));
        }
        assert_eq!((hub.connections(), hub.stats().garbage), (0, 4));
    }

    #[test]
    fn fault_e1_a_slow_loris_ends_with_the_handshake_timeout() {
        let mut hub = hub(2);
        let mut loris = Rank::connect(&mut hub, 0, 2, 0);
        let hello = loris.hello;
        for (tick, byte) in (0..).zip(hello.as_bytes().iter().take(99)) {
            let now_ns = tick * S / 100;
            hub.handle_timeout(now_ns);
            loris.send(&mut hub, &[*byte]);
        }
        assert_eq!((hub.connections(), hub.poll_timeout()), (1, Some(S)));
        hub.handle_timeout(S);
        assert_eq!((hub.connections(), hub.stats().slow), (0, 1));
    }

    #[test]
    fn fault_e1_silent_connections_displace_each_other_at_constant_memory() {
        let mut hub = hub(2);
        for _ in 0..100_000 {
            hub.handle_connection("silent".into(), 0);
            while hub.poll_action().is_some() {}
            assert!(hub.connections() <= PENDING_MAX);
        }
        let mut one = Rank::connect(&mut hub, 1, 2, 0);
        one.join_with(&mut hub, b"b");
        assert_eq!(hub.stats().joined, 1, "who is quick comes in all the same");
    }

    #[test]
    fn fault_e1_a_blob_of_4_gib_is_refused_before_a_byte_of_it() {
        let mut hub = hub(2);
        let mut liar = Rank::connect(&mut hub, 0, 2, 0);
        liar.join(&mut hub, u32::MAX);
        assert!(reason(&mut hub, liar.id).contains("exceeds 65536 B"));
        assert_eq!(hub.connections(), 0);
    }

    #[test]
    fn fault_e2_another_job_version_or_secret_is_refused_with_the_reason() {
        let mut hub = hub(2);
        let mut other = Rank::connect(&mut hub, 0, 2, 0);
        other.hello =
            Hello::new(&JobId::new("other").unwrap(), Place { rank: 0, size: 2 }, [1; 32]);
        let hello = other.hello;
        other.send(&mut hub, hello.as_bytes());
        assert_eq!(reason(&mut hub, other.id), "it is the rendezvous of another job");
        let mut old = Rank::connect(&mut hub, 0, 2, 0);
        let mut bytes = old.hello.as_bytes().to_vec();
        bytes[8] = 9;
        old.send(&mut hub, &bytes);
        assert_eq!(reason(&mut hub, old.id), "it speaks version 1 of the protocol, this rank 9");
        let mut guesser = Rank::connect(&mut hub, 0, 2, 0);
        let hello = guesser.hello;
        guesser.send(&mut hub, hello.as_bytes());
        sent_to(&mut hub, guesser.id);
        guesser.send(&mut hub, &[7; JOIN_BYTES]);
        assert_eq!(reason(&mut hub, guesser.id), "the secret is another one");
        assert_eq!((hub.stats().foreign, hub.stats().unproved), (2, 1));
    }

    #[test]
    fn fault_e2_a_recorded_handshake_does_not_work_twice() {
        let mut hub = hub(2);
        let mut honest = Rank::connect(&mut hub, 1, 2, 0);
        honest.join_with(&mut hub, b"blob");
        let recorded = honest.sent.clone();
        hub.handle_closed(honest.id);
        let mut replay = Rank::connect(&mut hub, 1, 2, 0);
        for bytes in &recorded[..2] {
            replay.send(&mut hub, bytes);
        }
        assert!(!hub.ranks.contains_key(&1), "the place is free, and stays so");
        let refused = String::from_utf8_lossy(&sent_to(&mut hub, replay.id)).into_owned();
        assert!(refused.ends_with("the secret is another one"));
    }

    #[test]
    fn fault_e4_missing_ranks_are_named_to_those_that_came() {
        let mut hub = hub(5);
        let mut one = Rank::connect(&mut hub, 1, 5, 0);
        one.join_with(&mut hub, b"b");
        assert_eq!(hub.poll_timeout(), Some(60 * S));
        hub.handle_timeout(60 * S);
        assert_eq!(hub.outcome(), &Outcome::Failed(Ranks(vec![0, 2, 3, 4])));
        let reason = reason(&mut hub, one.id);
        assert!(reason.starts_with("ranks 0, 2-4 of 5 did not come within 60s"), "{reason}");
    }

    #[test]
    fn fault_e4_a_late_rank_is_told_that_the_others_gave_up() {
        let mut hub = hub(2);
        hub.handle_timeout(60 * S);
        assert!(!hub.is_over(61 * S) && hub.is_over(62 * S));
        let mut late = Rank::connect(&mut hub, 1, 2, 61 * S);
        late.join(&mut hub, 0);
        let reason = reason(&mut hub, late.id);
        assert!(reason.starts_with("too late: ranks 0-1 of 2 did not come"), "{reason}");
    }

    /// All ranks have come then, but the others were told that they have not.
    #[test]
    fn fault_e4_a_rank_that_is_late_with_its_blob_is_told_that_the_others_gave_up() {
        let mut hub = hub(2);
        Rank::connect(&mut hub, 0, 2, 0).join_with(&mut hub, b"zero");
        let mut late = Rank::connect(&mut hub, 1, 2, 60 * S - 1);
        let nonce = late.join(&mut hub, 3);
        hub.handle_timeout(60 * S);
        let proof = late.secret.prove(Role::Blob, &[late.hello.as_bytes(), &nonce, b"one"]);
        late.send(&mut hub, &[&b"one"[..], &proof].concat());
        assert_eq!(hub.outcome(), &Outcome::Failed(Ranks(vec![1])));
        let reason = reason(&mut hub, late.id);
        assert!(reason.starts_with("too late: rank 1 of 2 did not come"), "{reason}");
        assert_eq!(hub.connections(), 0);
    }

    #[test]
    fn fault_e4_a_duplicate_rank_is_told_who_has_its_place() {
        let mut hub = hub(2);
        Rank::connect(&mut hub, 1, 2, 0).join_with(&mut hub, b"first");
        let mut second = Rank::connect(&mut hub, 1, 2, 0);
        second.join(&mut hub, 0);
        let reason = reason(&mut hub, second.id);
        assert_eq!(reason, "rank 1 is already taken by host-1; is it started twice?");
        let mut wrong = Rank::connect(&mut hub, 1, 3, 0);
        wrong.join(&mut hub, 0);
        assert!(sent_to(&mut hub, wrong.id).ends_with(b"the job has 2 ranks, not 3"));
        assert_eq!(hub.stats().misplaced, 2);
    }

    #[test]
    fn a_rank_that_died_while_waiting_can_come_again_and_one_that_was_restarted_too() {
        let mut hub = hub(2);
        let mut one = Rank::connect(&mut hub, 1, 2, 0);
        one.join_with(&mut hub, b"old");
        hub.handle_closed(one.id);
        Rank::connect(&mut hub, 1, 2, 0).join_with(&mut hub, b"new");
        Rank::connect(&mut hub, 0, 2, 0).join_with(&mut hub, b"zero");
        assert_eq!(hub.outcome(), &Outcome::Complete);
        while hub.poll_action().is_some() {}
        let mut again = Rank::connect(&mut hub, 1, 2, 100 * S);
        again.join_with(&mut hub, b"newest");
        let roster = sent_to(&mut hub, again.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero"[..], b"newest"]);
        assert_eq!(hub.poll_timeout(), None, "nothing is left to wait for");
    }

    #[test]
    fn fault_a6_a_rendezvous_that_was_restarted_knows_who_had_come() {
        let mut config = hub(2).config;
        config.roster = Some(vec![b"zero".to_vec(), b"one".to_vec()]);
        let mut hub = Hub::new(config, 0, || [9; 32]);
        let mut zero = Rank::connect(&mut hub, 0, 2, 0);
        zero.join_with(&mut hub, b"zero again");
        let roster = sent_to(&mut hub, zero.id);
        let body = &roster[frame::HEAD_BYTES..roster.len() - PROOF_BYTES];
        assert_eq!(frame::read_roster(body, 2).unwrap(), [&b"zero again"[..], b"one"]);
    }
}
