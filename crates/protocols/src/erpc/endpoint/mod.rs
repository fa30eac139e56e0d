//! The endpoint: one thread's sessions over one queue pair.

mod calls;
mod leaving;
mod manage;
mod receive;
mod transmit;
mod upkeep;

use core::time::Duration;
use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    rc::Rc,
};

use ids::slots::{Key, SlotTable};
use proto::erpc::{Geometry, congestion::Carousel};
use verbs::Nic;

use crate::{
    bodies::BodyMemory,
    erpc::{
        Config, Handler, OpenError, SessionId, SessionState,
        datagrams::Datagrams,
        session::{Numbers, Role, Session},
        socket::{ManagementPort, ManagementSocket},
    },
};
pub use calls::Call;
use upkeep::Clocks;

/// Reach of the wheel: 32 packets of the original at Timely's least rate.
const HORIZON_NS: u64 = 8_192_000;
/// Buffers of ended calls that are kept for later ones.
const SPARE_BUFFERS: usize = 64;
/// Longest one that is kept.
const SPARE_BYTES: usize = 1 << 14;

/// Counts since the endpoint was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that arrived.
    pub packets_in: u64,
    /// Packets that were posted.
    pub packets_out: u64,
    /// Packets of no session, or that no session expected: late, repeated, reordered, malformed.
    pub ignored: u64,
    /// Packets that the NIC did not take.
    pub lost: u64,
    /// Calls whose packets were sent again.
    pub retransmissions: u64,
    /// Requests that were handed to the handler.
    pub requests: u64,
    /// Sessions that failed.
    pub failures: u64,
    /// Management packets that were none.
    pub malformed: u64,
    /// Times that the queue pair was started anew.
    pub restarts: u64,
    /// Bytes of private memory that were cleared before a body was copied there: those that no earlier body had.
    pub cleared_bytes: u64,
}

/// A call that is not known to have ended, or whose bytes are still needed.
struct Pending {
    cookie: u64,
    request: Vec<u8>,
    response: BodyMemory,
    is_told: bool,
}

/// One thread's sessions. See the [crate].
pub struct Endpoint<N: Nic> {
    nic: N,
    config: Config,
    geometry: Geometry,
    datagrams: Datagrams<N>,
    socket: ManagementSocket,
    sessions: SlotTable<Session>,
    numbers: Numbers,
    /// Sessions that have ended here, and whose servers do not know yet.
    leaving: Vec<leaving::Leaving>,
    /// Of sessions that clients made: a session that is asked for twice is made once.
    tokens: HashMap<u64, Key>,
    calls: SlotTable<Pending>,
    /// Sessions that may have packets to send.
    queue: VecDeque<Key>,
    /// Sessions that wait for their turn to send; `None` without congestion control.
    wheel: Option<Carousel>,
    /// Client sessions with calls.
    watched: Vec<Key>,
    clocks: Clocks,
    now_ns: u64,
    spare: Vec<Vec<u8>>,
    spare_responses: Vec<BodyMemory>,
    stats: Stats,
    is_polling: Rc<Cell<bool>>,
}

impl<N: Nic> Endpoint<N> {
    /// Opens an endpoint on a NIC.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(nic: N, config: Config, now_ns: u64) -> Result<Self, OpenError> {
        let socket = ManagementSocket::open(config.management)?;
        Self::with(nic, config, socket, now_ns)
    }

    /// As [`open`](Self::open), with management packets that go by `port` instead of a socket.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_on(
        nic: N,
        config: Config,
        port: Box<dyn ManagementPort>,
        now_ns: u64,
    ) -> Result<Self, OpenError> {
        Self::with(nic, config, ManagementSocket::on(port), now_ns)
    }

    fn with(
        nic: N,
        config: Config,
        socket: ManagementSocket,
        now_ns: u64,
    ) -> Result<Self, OpenError> {
        let geometry = config.geometry(&nic.port())?;
        let packet_bytes = geometry.data_bytes() as usize + geometry.link().header_bytes();
        let datagrams = Datagrams::open(&nic, &config, packet_bytes)?;
        let is_controlled = config.congestion != crate::erpc::Congestion::Off;
        Ok(Self {
            geometry,
            datagrams,
            socket,
            sessions: SlotTable::bounded(config.sessions_max.into()),
            numbers: Numbers::new(config.sessions_max),
            leaving: Vec::new(),
            tokens: HashMap::new(),
            calls: SlotTable::bounded(config.calls_max),
            queue: VecDeque::new(),
            wheel: is_controlled.then(|| Carousel::new(HORIZON_NS, now_ns)),
            watched: Vec::new(),
            clocks: Clocks::new(now_ns),
            now_ns,
            spare: Vec::new(),
            spare_responses: Vec::new(),
            stats: Stats::default(),
            is_polling: Rc::default(),
            nic,
            config,
        })
    }

    /// Where clients reach the endpoint, with [`rpc_id`](Config::rpc_id).
    #[must_use]
    pub fn management_address(&self) -> SocketAddr {
        self.socket.address()
    }

    /// Packet sizes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counts since the endpoint was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let live = self.sessions.iter().filter_map(|(_, session)| match &session.role {
            Role::Client(client) => Some(client.core.counters().retransmissions),
            _ => None,
        });
        let retransmissions = self.stats.retransmissions + live.sum::<u64>();
        Stats { retransmissions, malformed: self.socket.malformed(), ..self.stats }
    }

    /// Sessions of both roles.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Where a session is in its life; `None`: it has ended.
    #[must_use]
    pub fn state(&self, session: SessionId) -> Option<SessionState> {
        Some(match self.sessions.get(session.0)?.role {
            Role::Connecting => SessionState::Connecting,
            _ => SessionState::Connected,
        })
    }

    /// Rate at which a session with congestion control sends, in bytes per second.
    #[must_use]
    pub fn rate(&self, session: SessionId) -> Option<f64> {
        match &self.sessions.get(session.0)?.role {
            Role::Client(client) => client.control.as_ref().map(|control| control.timely.rate()),
            _ => None,
        }
    }

    /// Latest time of a poll.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Takes arrivals, calls back, and sends. Returns how many packets and
    /// management packets there were. From inside a callback it does nothing and returns 0.
    pub fn poll(&mut self, now_ns: u64, handler: &mut impl Handler<N>) -> usize {
        if self.is_polling.replace(true) {
            return 0;
        }
        let _guard = Guard(Rc::clone(&self.is_polling));
        self.now_ns = self.now_ns.max(now_ns);
        let mut work = self.receive_packets(handler);
        work += self.look_after(handler);
        self.transmit();
        self.datagrams.return_receives();
        work
    }

    /// Puts a session in the queue of those that send.
    fn enqueue(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.enqueue(key, &mut self.queue);
        }
    }

    /// A buffer, with bytes of an earlier call.
    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && (1..=SPARE_BYTES).contains(&buffer.capacity()) {
            self.spare.push(buffer);
        }
    }

    /// The memory of an answer waits for the next one.
    fn keep_response(&mut self, response: BodyMemory) {
        let is_kept = (1..=SPARE_BYTES).contains(&response.capacity());
        if self.spare_responses.len() < SPARE_BUFFERS && is_kept {
            self.spare_responses.push(response);
        }
    }
}

/// As in settings, in ns.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A poll has ended, also by a panic of a callback.
struct Guard(Rc<Cell<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
