//! A daemon, or a thread of it, on real clients, a real NIC and real time.

use std::{
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use os::{
    clock::{self, PollClock, duration_ns},
    idle::{Idle, IdleStep, Wait},
};
use rpc::{Config as WorkerConfig, Worker};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, getrlimit},
};
use verbs::{Channel as _, Nic};

use crate::{
    Codec, Daemon, DescriptorShares, IpcPort, Limits, Parts, ServeError, Services, ThreadParts,
    UdpControl,
    client_port::ClientPort as _,
    config::{DaemonConfig, WaitPolicy},
    dispatcher::PollHandler,
    membership::DetectorConfig,
    metrics::Counter,
};
use bootstrap::RankInfo;

/// Longest sleep: what shared memory may have failed to say is found by then.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How a daemon waits between turns that find nothing. A turn takes about as long as a poll of
/// [`Wait::default`] (docs/performance.md, *Time of a turn*).
fn idle_of(policy: WaitPolicy) -> Wait {
    match policy {
        WaitPolicy::Busy => Wait::Busy,
        WaitPolicy::Adaptive => Wait::default(),
        WaitPolicy::Block => Wait::Block,
    }
}

impl IpcPort {
    /// The clients of a daemon of `threads` threads, a share for each. They find it at `socket`, which
    /// is abstract (`@…`) or in a folder that only its user can enter.
    ///
    /// # Errors
    ///
    /// [`ServeError::ClientPort`].
    pub fn bind(
        config: &DaemonConfig,
        socket: &Path,
        threads: usize,
    ) -> Result<Vec<Self>, ServeError> {
        let mut ipc_config = ipc_config(config);
        let limit_bytes = os::cgroup::memory_limit_bytes();
        let fitting = config.clients_that_fit(limit_bytes);
        if fitting < config.clients_max {
            let (limit_bytes, clients_max) = (limit_bytes.unwrap_or(0), config.clients_max);
            tracing::warn!(
                limit_bytes,
                fitting,
                clients_max,
                "memory is limited: fewer clients fit"
            );
            ipc_config.clients_max = fitting;
        }
        let servers = ipc::Server::bind_team(socket, ipc_config, threads)?;
        Ok(servers.into_iter().map(Self::new).collect())
    }
}

fn ipc_config(config: &DaemonConfig) -> ipc::ServerConfig {
    let message_bytes_max = client::message::message_bytes_max(config.message_bytes_max);
    ipc::ServerConfig {
        depth: config.depth,
        request_bytes_max: message_bytes_max,
        response_bytes_max: message_bytes_max,
        clients_max: config.clients_max,
        clients_per_user_max: config.clients_max,
        clients_per_process_max: config.clients_per_process,
        turn_budget: config.turn_budget,
        stall_timeout: config.stall_timeout,
        takes_descriptors: true,
        ..ipc::ServerConfig::default()
    }
}

/// Those of the settings, with as many regions as there are descriptors for.
fn limits(config: &DaemonConfig) -> Limits {
    let limit = getrlimit(Resource::Nofile).current;
    let shares = DescriptorShares::of(config.clients_max.into(), limit);
    let regions = usize::try_from(shares.regions).unwrap_or(usize::MAX);
    Limits { regions: config.limits.regions.min(regions), ..config.limits }
}

fn detector_config(config: &DaemonConfig) -> DetectorConfig {
    DetectorConfig {
        interval_ns: duration_ns(config.heartbeat_interval),
        suspect_after_ns: duration_ns(config.suspect_after),
        dead_after_ns: duration_ns(config.dead_after),
    }
}

impl ThreadParts {
    /// The clients of the thread, and the parts of its loop as `config` says, in real time.
    #[must_use]
    pub fn configured(
        self,
        config: &DaemonConfig,
        rank_info: RankInfo,
        codec: Codec,
        mut services: Services<IpcPort>,
    ) -> (IpcPort, Parts<IpcPort>) {
        services.limit(config.rights.clone());
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let parts = Parts {
            rank_info,
            detector: detector_config(config),
            epoch: duration_ns(epoch),
            codec,
            services,
            thread_handle: self.thread_handle,
            recorder: self.recorder,
            call_timeout: config.call_timeout,
            body_bytes_max: config.message_bytes_max,
            limits: limits(config).shared_by(config.threads),
            sample_every: config.sample_every,
            clock: Box::new(clock::now_ns),
        };
        (self.port, parts)
    }
}

impl<N: Nic> Daemon<N, IpcPort, UdpControl> {
    /// A daemon, or one thread of it, for real clients and real time. `control` knows where the others
    /// listen.
    ///
    /// # Errors
    ///
    /// [`ServeError::Worker`].
    pub fn open(
        nic: N,
        worker: WorkerConfig,
        port: IpcPort,
        control: UdpControl,
        parts: Parts<IpcPort>,
    ) -> Result<Self, ServeError> {
        let worker = Worker::open(nic, worker, clock::now_ns())?;
        Ok(Self::new(worker, port, control, parts, clock::now_ns()))
    }

    /// Serves until `is_over`.
    pub(super) fn run(&mut self, policy: WaitPolicy, is_over: impl Fn(&Self) -> bool) {
        // A turn that finds nothing costs no more than a look at the clock, so few of those look. After
        // work, and after others had the core, the time is right.
        let mut clock = PollClock::new();
        let (mut idle, wait) = (Idle::default(), idle_of(policy));
        while !is_over(self) {
            let now_ns = clock.now_ns();
            if self.step(now_ns) > 0 {
                idle.reset();
            } else if wait != Wait::Block && self.expects_answers(now_ns) && idle.spin() {
                continue;
            } else {
                match idle.step(wait) {
                    IdleStep::Spun => continue,
                    IdleStep::Yielded => {}
                    IdleStep::Sleep => self.wait(SLEEP_MAX),
                }
            }
            clock = PollClock::new();
        }
    }

    /// Sleeps until a client, the NIC, another daemon or another thread has something, or something is
    /// due, at most for `timeout`, and never longer than a tenth of a second. Then step.
    pub fn wait(&mut self, timeout: Duration) {
        if self.may_sleep() {
            self.dispatcher.tally.add(Counter::Sleeps, 1);
            self.dispatcher.tally.publish();
            self.sleep(timeout);
        }
        self.dispatcher.thread_handle.disarm();
        self.port.server.service_now();
    }

    /// Arms all that wakes, and looks once more: what came before is not announced.
    fn may_sleep(&mut self) -> bool {
        // Nobody says when what waits has waited long enough.
        if self.dispatcher.holds_replies() || !self.port.server.arm() || self.worker.arm().is_err()
        {
            return false;
        }
        let Self { worker, dispatcher, port, watch, scratch, .. } = self;
        let (now_ns, replies) = (watch.now_ns(), port.replies());
        let mut handler = PollHandler { dispatcher, replies, watch, scratch, has_posted: false };
        worker.poll(now_ns, &mut handler) == 0 && dispatcher.thread_handle.arm()
    }

    fn sleep(&mut self, timeout: Duration) {
        let due = Duration::from_nanos(self.next_ns().saturating_sub(clock::now_ns()));
        let nic = self.worker.nic().poll_timeout().unwrap_or(SLEEP_MAX);
        let timeout = due.min(nic).min(timeout).min(SLEEP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let Some(channel) = self.worker.channel() else { return };
        let wakeup = self.dispatcher.thread_handle.wakeup().map(|wakeup| wakeup.as_fd());
        let clients = self.port.server.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(clients, PollFlags::IN),
            PollFd::from_borrowed_fd(wakeup.unwrap_or(clients), PollFlags::IN),
        ];
        let fds = &mut fds[..3 + usize::from(wakeup.is_some())];
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
