//! A node: the production daemon on its port, its clients' shared memory, and its clock.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bootstrap::{JobId, RankInfo, Secret};
use daemon::{
    ClientPort, ClientRequest, ClientTag, Codec, Control, Daemon, Limits, Parts, Services,
    ThreadHandle,
    metrics::{MetricsFile, Snapshot},
};
use ipc::{
    TakenBytes,
    sans_os::{ClientCore, OpenRequest, ServerCore},
};

use super::{
    ClusterError,
    direct::{Descriptors, own_process},
    history::{HEAD_BYTES, History},
    network::{Network, Phase, Socket},
    plan::{Plan, TIMEOUT_NS},
};
use crate::world::{RandomStream, Time};

/// The service that every daemon answers itself.
pub(super) const EMBEDDED: u16 = 7;
/// The service that a client of every node answers, if there are such.
pub(super) const PROVIDED: u16 = 10;

const MS: u64 = 1_000_000;
/// The clock of a node, which gains.
#[derive(Debug)]
pub(super) struct NodeClock {
    now_ns: Rc<Cell<u64>>,
    /// What it showed when its rate changed, and the world's time of that.
    since_ns: u64,
    since: Time,
    gain_ppm: u64,
}

impl NodeClock {
    fn new(start_ns: u64, since: Time) -> Self {
        Self { now_ns: Rc::new(Cell::new(start_ns)), since_ns: start_ns, since, gain_ppm: 0 }
    }

    /// Reads the clock, which runs at this rate from now on.
    pub(super) fn read(&mut self, now: Time, gain_ppm: u64) -> u64 {
        let passed_ns = now.since(self.since).whole_ns();
        let now_ns = self.since_ns + passed_ns + passed_ns * self.gain_ppm / 1_000_000;
        if gain_ppm != self.gain_ppm {
            (self.since_ns, self.since, self.gain_ppm) = (now_ns, now, gain_ppm);
        }
        self.now_ns.set(now_ns);
        now_ns
    }
}

/// The production server of clients, over memory of this process.
pub(super) struct SimPort {
    pub(super) server: ServerCore,
    pub(super) descriptors: Descriptors,
}

impl ClientPort for SimPort {
    type ReplyTo = ipc::RequestId;
    type Client = ipc::ClientId;
    type Replies = ipc::Replies;

    fn take(&mut self) -> Option<ClientRequest<'_, Self>> {
        let OpenRequest { id, payload, replies } = self.server.take()?;
        Some(ClientRequest {
            client: id.client(),
            reply_to: id,
            payload: TakenBytes::Private(payload),
            replies,
        })
    }

    fn replies(&mut self) -> &mut ipc::Replies {
        self.server.replies()
    }

    fn set_turn_budget(&mut self, requests: u32) {
        self.server.set_turn_budget(requests);
    }

    fn tag(client: ipc::ClientId) -> ClientTag {
        client.into()
    }

    fn client_of(to: ipc::RequestId) -> ipc::ClientId {
        to.client()
    }

    fn take_descriptor(&mut self, client: ipc::ClientId) -> Option<OwnedFd> {
        self.descriptors.take(client)
    }

    fn is_there(&self, client: ipc::ClientId) -> bool {
        self.server.is_served(client)
    }

    fn departures(&self) -> u64 {
        let stats = self.server.stats();
        stats.departed + stats.evicted
    }

    fn census(&self) -> (u64, u64, u64) {
        let stats = self.server.stats();
        (stats.clients as u64, stats.welcomed, stats.evicted)
    }
}

/// Where the daemons of a world are now: what bootstrap would have told.
pub(super) type Directory = Rc<RefCell<BTreeMap<u32, Socket>>>;

/// Datagrams that a daemon has not taken yet.
pub(super) type Inbox = Rc<RefCell<VecDeque<(Socket, Vec<u8>)>>>;

/// Datagrams between the daemons of a world.
pub(super) struct SimControl {
    own: Socket,
    /// By rank, as bootstrap or heartbeats told.
    known: BTreeMap<u32, Socket>,
    /// Threads of each daemon: the peer's thread that this one's daemon belongs to is the other end.
    threads: u32,
    directory: Directory,
    inbox: Inbox,
    network: Arc<Network>,
}

impl Control for SimControl {
    type From = Socket;

    fn send(&mut self, to: u32, datagram: &[u8]) {
        let own = self.own.rank / self.threads;
        if let Some(now) = self.directory.borrow().get(&(to * self.threads + own % self.threads)) {
            let known = *self.known.entry(to).or_insert(*now);
            self.network.send_datagram(self.own, known, datagram);
        }
    }

    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, Socket)> {
        let (from, datagram) = self.inbox.borrow_mut().pop_front()?;
        // As the kernel does: what does not fit is cut off.
        let len = datagram.len().min(into.len());
        into[..len].copy_from_slice(&datagram[..len]);
        Some((len, from))
    }

    fn answer(&mut self, to: &Socket, datagram: &[u8]) {
        self.network.send_datagram(self.own, *to, datagram);
    }

    fn learn(&mut self, rank: u32, from: Socket) {
        self.known.insert(rank, from);
    }
}

/// A client that has come.
pub(super) struct Admitted<C> {
    pub(super) id: ipc::ClientId,
    pub(super) slot: u16,
    pub(super) core: ClientCore<C>,
}

/// One life of a daemon.
pub(super) struct Node {
    pub(super) socket: Socket,
    pub(super) daemon: Daemon<softnic::Nic, SimPort, SimControl>,
    metrics: MetricsFile,
    pub(super) clock: NodeClock,
    pub(super) inbox: Inbox,
    /// The turn that is scheduled, and the phase that it begins with.
    pub(super) turn: u64,
    pub(super) phase: Phase,
    /// When it looks in any case.
    pub(super) timer: Option<Time>,
    pub(super) turn_began: Time,
    /// It waits for something to do.
    pub(super) is_parked: bool,
    /// Something came in the middle of a turn, which may have looked there before.
    pub(super) is_roused: bool,
    pub(super) is_asleep: bool,
    pub(super) is_sleeper: bool,
    pub(super) idle_turns: u32,
    /// Responses that clients were told of.
    pub(super) responses: u64,
    pub(super) random: RandomStream,
}

impl Node {
    pub(super) fn start(
        plan: &Plan,
        (socket, thread_handle): (Socket, ThreadHandle),
        epoch: u64,
        network: &Arc<Network>,
        directory: &Directory,
        history: &Rc<RefCell<History>>,
    ) -> Result<Self, ClusterError> {
        let Socket { rank: thread, life } = socket;
        let rank = thread / plan.threads;
        let mut random = RandomStream::new(plan.seed, &format!("daemon {thread} in life {life}"));
        // Nodes agree on nothing but the pace of time; threads of a node have one clock.
        let first = format!("daemon {} in life {life}", rank * plan.threads);
        let start_ns = MS + RandomStream::new(plan.seed, &first).number(1 << 40);
        random.number(1 << 40);
        let clock = NodeClock::new(start_ns, network.now());
        let now_ns = clock.now_ns.get();
        let rank_info = RankInfo::new(rank, plan.nodes)?;
        let (metrics, mut recorders) = MetricsFile::embedded("sim", rank_info, 1, 0, now_ns)?;
        let recorder = recorders.remove(0);
        let job = JobId::new("sim").expect("a good name");
        let reads_clock = Rc::clone(&clock.now_ns);
        let body_bytes_max = plan.body_bytes_max + u32::try_from(HEAD_BYTES).unwrap_or(0);
        let parts = Parts {
            rank_info,
            detector: plan.detector,
            epoch,
            codec: Codec::new(job, Secret::from_bytes(b"sim"), rank),
            services: services((rank, thread), history)?,
            thread_handle,
            recorder,
            call_timeout: Duration::from_nanos(TIMEOUT_NS),
            body_bytes_max,
            limits: Limits::default(),
            sample_every: 0,
            clock: Box::new(move || reads_clock.get()),
        };
        let nic = network.open(thread, plan.card_mib)?;
        let worker = rpc::Worker::open(nic, plan.worker(socket), now_ns)?;
        let inbox = Inbox::default();
        let control = SimControl {
            own: socket,
            known: BTreeMap::new(),
            threads: plan.threads,
            directory: Rc::clone(directory),
            inbox: Rc::clone(&inbox),
            network: Arc::clone(network),
        };
        directory.borrow_mut().insert(thread, socket);
        let server = ServerCore::on_heap(plan.ipc())?;
        let port = SimPort { server, descriptors: Descriptors::default() };
        Ok(Self {
            socket,
            daemon: Daemon::new(worker, port, control, parts, now_ns),
            metrics,
            clock,
            inbox,
            turn: 0,
            phase: Phase::Take,
            timer: None,
            turn_began: network.now(),
            is_parked: false,
            is_roused: false,
            is_asleep: false,
            is_sleeper: random.happens(plan.sleepy_permille),
            idle_turns: 0,
            responses: 0,
            random,
        })
    }

    /// Lets the daemon run a phase of its turn; returns what the turn has handled, once it is over.
    pub(super) fn run_phase(&mut self, phase: Phase, now: Time, now_ns: u64) -> usize {
        match phase {
            Phase::Take => {
                (self.is_parked, self.is_roused) = (false, false);
                if std::mem::take(&mut self.is_asleep) {
                    self.server().wake_up();
                }
                self.turn_began = now;
                self.daemon.take(now_ns);
                let server = self.server();
                if server.is_clock_due() && server.tick(now_ns) {
                    server.housekeep(now_ns);
                }
            }
            Phase::Poll => self.daemon.poll(now_ns),
            Phase::Control => return self.daemon.control(now_ns),
        }
        0
    }

    pub(super) fn server(&mut self) -> &mut ServerCore {
        &mut self.daemon.port().server
    }

    /// A client comes.
    pub(super) fn admit<C>(&mut self) -> Option<Admitted<C>> {
        let (id, welcome, memory) = self.server().admit_on_heap().ok()??;
        let slot = welcome.slot;
        self.server().set_process(id, own_process());
        Some(Admitted { id, slot, core: ClientCore::new(&welcome, memory, 0) })
    }

    /// All that was counted in this life.
    pub(super) fn counters(&self) -> Snapshot {
        self.metrics.snapshot()
    }
}

fn services(
    who: (u32, u32),
    history: &Rc<RefCell<History>>,
) -> Result<Services<SimPort>, daemon::OfferError> {
    let mut services = Services::default();
    let history = Rc::clone(history);
    services.offer(
        EMBEDDED,
        Box::new(move |inbound, body| history.borrow_mut().execute(who, inbound.body, body)),
    )?;
    Ok(services)
}
