//! A daemon, or a thread of it, on real clients, a real NIC and real time.

use std::{
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use memory::sync::hint;
use os::{
    clock::{self, PollClock},
    crowd,
};
use rpc::{Config as WorkerConfig, Worker};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Channel as _, Nic};

use crate::{
    bootstrap::Place,
    config::{DaemonConfig, WaitPolicy},
    daemon::{
        Codec, Daemon, IpcFront, Parts, Seat, ServeError, Services, UdpControl,
        office::{Stopwatch, Visit, message_bytes_max},
    },
    membership::DetectorConfig,
    metrics::{Counter, Recorder},
};

/// How long an idle loop polls before it yields: about as long as it takes to be woken up. Not at all
/// where others want the core: what it waits for may have to come from them.
const SPIN_NS: u64 = 40_000;

/// How often it yields before it sleeps.
const YIELDS: u32 = 64;

/// Longest sleep: what shared memory may have failed to say is found by then.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Turns without work.
struct Idle {
    since_ns: u64,
    yields: u32,
    /// Somebody wanted the core when it was offered last.
    is_crowded: bool,
}

impl IpcFront {
    /// The clients of a daemon of `threads` threads, a share for each. They find it at `socket`, which
    /// is abstract (`@…`) or in a folder that only its user can enter.
    ///
    /// # Errors
    ///
    /// [`ServeError::Front`].
    pub fn bind(
        config: &DaemonConfig,
        socket: &Path,
        threads: usize,
    ) -> Result<Vec<Self>, ServeError> {
        let servers = ipc::Server::bind_team(socket, ipc_config(config), threads)?;
        Ok(servers.into_iter().map(Self::new).collect())
    }
}

fn ipc_config(config: &DaemonConfig) -> ipc::ServerConfig {
    let message_bytes_max = message_bytes_max(config.message_bytes_max);
    ipc::ServerConfig {
        depth: config.depth,
        request_bytes_max: message_bytes_max,
        response_bytes_max: message_bytes_max,
        clients_max: config.clients_max,
        clients_per_user_max: config.clients_max,
        turn_budget: config.turn_budget,
        stall_timeout: config.stall_timeout,
        ..ipc::ServerConfig::default()
    }
}

fn detector_config(config: &DaemonConfig) -> DetectorConfig {
    DetectorConfig {
        interval_ns: nanos(config.heartbeat_interval),
        suspect_after_ns: nanos(config.suspect_after),
        dead_after_ns: nanos(config.dead_after),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a daemon is opened with besides its settings, for programs that turn it themselves.
pub struct Opening {
    /// Which of how many.
    pub place: Place,
    /// Its clients.
    pub front: IpcFront,
    /// Its place among the threads of the daemon.
    pub seat: Seat,
    /// Datagrams of the job.
    pub codec: Codec,
    /// What it offers.
    pub services: Services<IpcFront>,
    /// Where it counts.
    pub recorder: Recorder,
    /// How it calls others.
    pub worker: WorkerConfig,
}

impl<N: Nic> Daemon<N, IpcFront, UdpControl> {
    /// A daemon, or one thread of it, for real clients and real time. `control` knows where the others
    /// listen.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn open(
        config: &DaemonConfig,
        nic: N,
        control: UdpControl,
        opening: Opening,
    ) -> Result<Self, ServeError> {
        let Opening { place, front, seat, codec, services, recorder, worker } = opening;
        let worker = Worker::open(nic, worker, clock::now_ns())?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let parts = Parts {
            place,
            detector: detector_config(config),
            epoch: nanos(epoch),
            codec,
            services,
            seat,
            recorder,
            call_timeout: config.call_timeout,
            body_bytes_max: config.message_bytes_max,
            sample_every: config.sample_every,
            clock: clock::now_ns,
        };
        Ok(Self::new(worker, front, control, parts, clock::now_ns()))
    }

    /// Serves until `is_over`.
    pub(super) fn run(&mut self, wait: WaitPolicy, is_over: impl Fn(&Self) -> bool) {
        // A turn that finds nothing costs no more than a look at the clock, so few of those look. After
        // work, and after others had the core, the time is right.
        let mut clock = PollClock::new();
        let mut idle = Idle { since_ns: clock.now_ns(), yields: 0, is_crowded: false };
        while !is_over(self) {
            let now_ns = clock.now_ns();
            if self.step(now_ns) > 0 {
                (idle.since_ns, idle.yields) = (now_ns, 0);
            } else if wait != WaitPolicy::Block
                && (self.expects_answers(now_ns)
                    || !idle.is_crowded && now_ns < idle.since_ns + SPIN_NS)
            {
                hint::spin_loop();
                continue;
            } else if wait == WaitPolicy::Busy {
                idle.is_crowded = crowd::yield_core();
                idle.since_ns = now_ns;
            } else if wait == WaitPolicy::Adaptive && idle.yields < YIELDS {
                idle.is_crowded = crowd::yield_core();
                idle.yields += 1;
            } else {
                self.wait(SLEEP_MAX);
            }
            clock = PollClock::new();
        }
    }

    /// Sleeps until a client, the NIC, another daemon or another thread has something, or something is
    /// due, at most for `timeout`, and never longer than a tenth of a second. Then step.
    pub fn wait(&mut self, timeout: Duration) {
        if self.may_sleep() {
            self.office.tally.add(Counter::Sleeps, 1);
            self.office.tally.publish();
            self.sleep(timeout);
        }
        self.office.seat.disarm();
        self.front.server.service_now();
    }

    /// Arms all that wakes, and looks once more: what came before is not announced.
    fn may_sleep(&mut self) -> bool {
        if !self.front.server.arm() || self.worker.arm().is_err() {
            return false;
        }
        let Self { worker, office, front, clock, .. } = self;
        let mut watch = Stopwatch { lap: None, clock: *clock };
        let mut visit = Visit { office, front, watch: &mut watch, has_posted: false };
        worker.poll(clock(), &mut visit) == 0 && office.seat.arm()
    }

    fn sleep(&mut self, timeout: Duration) {
        let due = Duration::from_nanos(self.next_ns().saturating_sub(clock::now_ns()));
        let nic = self.worker.nic().poll_timeout().unwrap_or(SLEEP_MAX);
        let timeout = due.min(nic).min(timeout).min(SLEEP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let Some(channel) = self.worker.channel() else { return };
        let alarm = self.office.seat.alarm().map(|alarm| alarm.as_fd());
        let clients = self.front.server.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(clients, PollFlags::IN),
            PollFd::from_borrowed_fd(alarm.unwrap_or(clients), PollFlags::IN),
        ];
        let fds = &mut fds[..3 + usize::from(alarm.is_some())];
        // An error is a signal: the loop looks whether it should stop.
        let ready = poll(fds, Some(&timeout)).unwrap_or(0);
        if ready > 0 && !fds[0].revents().is_empty() {
            channel.wait(Duration::ZERO);
        }
        // What came over the socket is heard at once.
        if !fds[1].revents().is_empty() {
            self.control_ns = 0;
        }
    }
}
