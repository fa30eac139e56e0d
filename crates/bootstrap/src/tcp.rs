//! Meeting at the address of rank 0.

use std::{
    io::{self, ErrorKind, Read, Write as _},
    net::{TcpListener, TcpStream, ToSocketAddrs as _},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use os::{clock, plain_file};
use sha2::{Digest as _, Sha256};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    BLOB_BYTES_MAX, Bootstrap, BootstrapError, JobId, Lives, RankInfo, RendezvousServer,
    RendezvousStats, Secret, entropy, error,
    frame::{
        self, CHALLENGE_BYTES, Challenge, HEAD_BYTES, Head, HeadKind, Hello, Join, REASON_BYTES_MAX,
    },
    rendezvous::RendezvousConfig,
    secret::{PROOF_BYTES, ProofPurpose},
};

/// Pauses between two attempts to connect: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// The interval at which a waiting rank checks for its stop flag, and its longest wait for one connection.
const LOOK: Duration = Duration::from_millis(100);
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The time that a rank waits longer than the rendezvous, which knows the missing ranks.
const GRACE: Duration = Duration::from_secs(5);

/// The time for which latecomers are still told that the others gave up.
const LINGER: Duration = Duration::from_secs(2);

/// Longest waits of a rendezvous.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For all ranks.
    pub exchange: Duration,
    /// For a handshake.
    pub handshake: Duration,
    /// Of a rank whose place another one may hold: longer than it takes to find a dead one dead.
    pub contest: Duration,
}

/// The bytes of a roster of so many ranks; `None`: there is none, or something else lies there.
fn read_roster_file(path: &Path, size: u32) -> Option<Vec<u8>> {
    let bytes_max = u64::from(size) * (BLOB_BYTES_MAX as u64 + 4);
    let mut bytes = Vec::new();
    plain_file::open(path).ok()?.take(bytes_max + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Meets at the address of rank 0, which serves it until this is dropped: a rank that was restarted
/// can come again and gets the blobs of all.
#[derive(Debug)]
pub struct Tcp {
    address: String,
    job: JobId,
    secret: Secret,
    rank_info: RankInfo,
    timeout: Duration,
    rendezvous: Option<RendezvousServer>,
    lives: Arc<Lives>,
}

impl Tcp {
    /// Begins to listen at `address`, `HOST:PORT`, if this is rank 0, which keeps the blobs of all in
    /// the file `remember`: if it finds them there, it was restarted.
    ///
    /// # Errors
    ///
    /// [`BootstrapError::Listen`].
    pub fn new(
        address: &str,
        job: JobId,
        secret: Secret,
        rank_info: RankInfo,
        timeouts: Timeouts,
        remember: Option<&Path>,
    ) -> Result<Self, BootstrapError> {
        let timeout = timeouts.exchange;
        let mut tcp = Self::joining(address, job, secret, rank_info, timeout);
        if rank_info.rank() == 0 {
            let config = RendezvousConfig {
                job: tcp.job.clone(),
                secret: tcp.secret.clone(),
                size: rank_info.size(),
                handshake_timeout: timeouts.handshake,
                exchange_timeout: timeout,
                linger: LINGER,
                contest_timeout: timeouts.contest,
                roster: remember.and_then(|path| {
                    frame::read_roster(&read_roster_file(path, rank_info.size())?, rank_info.size())
                }),
            };
            let (remember, lives) = (remember.map(Path::to_owned), Arc::clone(&tcp.lives));
            let rendezvous = TcpListener::bind(address)
                .and_then(|l| RendezvousServer::start(l, config, remember, lives));
            let rendezvous = rendezvous
                .map_err(|source| BootstrapError::Listen { address: address.to_owned(), source })?;
            // With port 0 the kernel chose one.
            tcp.address = rendezvous.address().to_string();
            tcp.rendezvous = Some(rendezvous);
        }
        Ok(tcp)
    }

    /// Meets at a rendezvous that somebody else serves, such as the parent of all ranks.
    #[must_use]
    pub fn joining(
        address: &str,
        job: JobId,
        secret: Secret,
        rank_info: RankInfo,
        timeout: Duration,
    ) -> Self {
        let lives = Arc::new(Lives::new(rank_info.size()));
        let address = address.to_owned();
        Self { address, job, secret, rank_info, timeout, rendezvous: None, lives }
    }

    /// What the rendezvous, if this rank serves it, is to be told of the lives of ranks: the place of one
    /// that lives is refused to others.
    #[must_use]
    pub fn lives(&self) -> Arc<Lives> {
        Arc::clone(&self.lives)
    }

    /// The address of the rendezvous.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The counters of the rendezvous, if this rank serves it.
    #[must_use]
    pub fn rendezvous_stats(&self) -> Option<RendezvousStats> {
        self.rendezvous.as_ref().map(RendezvousServer::stats)
    }

    /// Connects, once.
    fn connect<'a>(
        &self,
        deadline_ns: u64,
        is_to_stop: &'a dyn Fn() -> bool,
    ) -> Result<Timed<'a>, BootstrapError> {
        let stream = connect_once(&self.address, deadline_ns).map_err(|source| {
            let (rank_info, address) = (self.rank_info, self.address.clone());
            BootstrapError::Unreachable { rank_info, address, waited: self.timeout, source }
        })?;
        Ok(Timed { stream, deadline_ns, is_to_stop })
    }

    fn lost(&self) -> impl Fn(io::Error) -> BootstrapError + '_ {
        |source| BootstrapError::Lost {
            rank_info: self.rank_info,
            address: self.address.clone(),
            source,
        }
    }

    fn foreign(&self, why: &'static str) -> BootstrapError {
        BootstrapError::Foreign { address: self.address.clone(), job: self.job.to_string(), why }
    }

    /// Reads a head of the kind that is due; a refusal becomes an error.
    fn head(&self, stream: &mut Timed<'_>, due: HeadKind) -> Result<Head, BootstrapError> {
        let mut bytes = [0; HEAD_BYTES];
        stream.read_exact(&mut bytes).map_err(self.lost())?;
        let head = Head::read_from_bytes(&bytes).map_err(|_| self.foreign("it sends no head"))?;
        match head.kind() {
            Some(HeadKind::Refusal) => {
                let len = (head.len_bytes.get() as usize).min(REASON_BYTES_MAX);
                let mut reason = vec![0; len];
                stream.read_exact(&mut reason).map_err(self.lost())?;
                if let Some(rendezvous) = &self.rendezvous {
                    let reason = frame::printable(&reason);
                    let unproved = rendezvous.stats().unproved;
                    return Err(BootstrapError::GaveUp { reason, unproved });
                }
                Err(BootstrapError::Refused {
                    address: self.address.clone(),
                    rank_info: self.rank_info,
                    reason: frame::printable(&reason),
                })
            }
            Some(kind) if kind == due => Ok(head),
            _ => Err(self.foreign("it speaks another protocol")),
        }
    }

    fn join(
        &self,
        blob: &[u8],
        deadline_ns: u64,
        is_to_stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut stream = self.connect(deadline_ns, is_to_stop)?;
        let hello = Hello::new(&self.job, self.rank_info, entropy::nonce());
        stream.write_all(hello.as_bytes()).map_err(self.lost())?;
        let head = self.head(&mut stream, HeadKind::Challenge).map_err(|error| match error {
            BootstrapError::Lost { source, .. } if source.kind() == ErrorKind::TimedOut => {
                self.foreign("it takes connections and says nothing")
            }
            error => error,
        })?;
        if head.len_bytes.get() as usize != CHALLENGE_BYTES {
            return Err(self.foreign("its challenge has another length"));
        }
        let mut bytes = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut bytes).map_err(self.lost())?;
        let Challenge { nonce, proof } = Challenge::read_from_bytes(&bytes)
            .map_err(|_| self.foreign("its challenge has another length"))?;
        if !self.secret.verify(ProofPurpose::Rendezvous, &[hello.as_bytes(), &nonce], &proof) {
            return Err(self.foreign("it does not know the secret of this job"));
        }
        // It is the rendezvous, and knows better who is missing.
        stream.deadline_ns = deadline_ns.saturating_add(nanos(GRACE));
        let len = u32::try_from(blob.len()).unwrap_or(u32::MAX);
        let about = [hello.as_bytes(), &nonce, &len.to_le_bytes()];
        let proof = self.secret.sign(ProofPurpose::Join, &about);
        let mut message =
            Join { blob_bytes: len.into(), reserved: 0.into(), proof }.as_bytes().to_vec();
        message.extend_from_slice(blob);
        message.extend_from_slice(
            &self.secret.sign(ProofPurpose::Blob, &[hello.as_bytes(), &nonce, blob]),
        );
        // A rendezvous that refuses may close before it has read all; its reason can be read still.
        let sent = stream.write_all(&message).map_err(self.lost());
        let head = match (sent, self.head(&mut stream, HeadKind::Roster)) {
            (Err(lost), Err(BootstrapError::Lost { .. })) => return Err(lost),
            (_, head) => head?,
        };
        self.take_roster(&mut stream, head.len_bytes.get(), &[hello.as_bytes(), &nonce])
    }

    fn take_roster(
        &self,
        stream: &mut Timed<'_>,
        len_bytes: u32,
        about: &[&[u8]; 2],
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let len_max =
            u64::from(self.rank_info.size()) * (BLOB_BYTES_MAX as u64 + 4) + PROOF_BYTES as u64;
        if u64::from(len_bytes) > len_max {
            return Err(self.foreign("its roster is too long for the job"));
        }
        // It grows with what comes, not with what is announced.
        let mut body = Vec::new();
        stream.take(len_bytes.into()).read_to_end(&mut body).map_err(self.lost())?;
        let changed = || self.foreign("its roster was changed on its way");
        let start = body.len().checked_sub(PROOF_BYTES).ok_or_else(changed)?;
        let proof = body[start..].try_into().map_err(|_| changed())?;
        body.truncate(start);
        let digest = Sha256::digest(&body);
        if !self.secret.verify(ProofPurpose::Roster, &[about[0], about[1], &digest], &proof) {
            return Err(changed());
        }
        frame::read_roster(&body, self.rank_info.size()).ok_or_else(changed)
    }
}

impl Bootstrap for Tcp {
    fn exchange_unless(
        &mut self,
        blob: &[u8],
        is_to_stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        error::check_length(blob)?;
        let deadline_ns = clock::deadline_ns(self.timeout);
        let mut pause = RETRY_MIN;
        loop {
            let done = self.join(blob, deadline_ns, is_to_stop);
            // Rank 0 does not listen yet, or was overrun by strangers.
            let is_passing = matches!(
                done,
                Err(BootstrapError::Unreachable { .. } | BootstrapError::Lost { .. })
            );
            if is_passing && is_to_stop() {
                return Err(BootstrapError::Stopped);
            }
            if !is_passing || clock::now_ns().saturating_add(nanos(pause)) >= deadline_ns {
                return done;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(RETRY_MAX);
        }
    }
}

fn connect_once(address: &str, deadline_ns: u64) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        let left = left(deadline_ns).clamp(RETRY_MIN, CONNECT_MAX);
        match TcpStream::connect_timeout(&candidate, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(deadline_ns: u64) -> Duration {
    Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A stream on which everything together ends at a deadline, or when it is to stop.
struct Timed<'a> {
    stream: TcpStream,
    deadline_ns: u64,
    is_to_stop: &'a dyn Fn() -> bool,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = left(self.deadline_ns);
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(bytes)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.left()?.min(LOOK)))?;
            match self.stream.read(buffer) {
                // A read timeout comes as this.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if (self.is_to_stop)() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}
