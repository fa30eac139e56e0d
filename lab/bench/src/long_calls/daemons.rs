//! Two daemons: a client of one calls a function of the other, or a process there.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::mpsc,
    thread,
    time::Instant,
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{ClientConfig, Pipeline, Provider, To};
use daemon::{
    Codec, Inbound, IpcPort, SelectedDaemon, Services, Status, UdpControl,
    config::{DaemonConfig, KNOBS, Layers},
    metrics::MetricsFile,
    open_selected, open_threads,
};
use nics::Selection;
use os::clock;

use super::{LongCaller, MakeEcho, Spent, Stepped, config, late, right};
use crate::{
    calls::NumberedMessage, delegated::ANSWER_BYTES_MAX, error::Error, shared_words::PATIENCE,
};

const ECHO: u16 = 1;
/// Of a process.
const ECHO_OF_PROCESS: u16 = 2;

/// Who answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Echo {
    Function,
    /// Of this process, on a thread of its own, which calls the daemon as any other process does.
    Process,
}

impl Echo {
    fn service(self) -> u16 {
        match self {
            Self::Function => ECHO,
            Self::Process => ECHO_OF_PROCESS,
        }
    }
}

/// A daemon.
struct Node {
    daemon: Box<dyn SelectedDaemon>,
    socket: PathBuf,
    /// Its counters are there.
    _metrics: MetricsFile,
}

impl Node {
    fn open(nic: &Selection, rank: u32, control: UdpControl, name: &str) -> Result<Self, Error> {
        let refused = |what| move |cause: String| Error::refused(what)(cause);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut settings = DaemonConfig::from_settings(&Layers::new(KNOBS.to_vec()).finish())
            .map_err(|causes| Error::OutOfTurn(format!("{causes:?}")))?;
        settings.message_bytes_max = u32::try_from(ANSWER_BYTES_MAX).unwrap_or(u32::MAX);
        let no_rank = refused("no rank");
        let rank_info = RankInfo::new(rank, 2).map_err(|error| no_rank(text(&error)))?;
        let no_file = refused("no counters");
        let (metrics, recorders) = MetricsFile::unnamed("bench", rank_info, 1, 0)
            .map_err(|error| no_file(text(&error)))?;
        let socket = PathBuf::from(format!("@copyrpc-long/{name}/{rank}"));
        let no_daemon = refused("no daemon");
        let threads = open_threads(&settings, &socket, recorders);
        let thread = threads.map_err(|error| no_daemon(text(&error)))?.pop().ok_or_else(late)?;
        let job = JobId::new("bench").map_err(Error::refused("no job"))?;
        let codec = Codec::new(job, Secret::from_bytes(b"the secret of a benchmark"), rank);
        let mut services = Services::<IpcPort>::default();
        let echo = |inbound: &Inbound<'_>, answer: &mut Vec<u8>| {
            answer.extend_from_slice(inbound.body);
            Status::Ok
        };
        services.offer(ECHO, Box::new(echo)).map_err(Error::refused("no service"))?;
        let (port, parts) = thread.configured(&settings, rank_info, codec, services);
        let daemon = open_selected(nic, config(), port, control, parts);
        let daemon = daemon.map_err(|error| no_daemon(text(&error)))?;
        let daemon = daemon.map_err(|error| no_daemon(text(&error)))?;
        Ok(Self { daemon, socket, _metrics: metrics })
    }
}

impl Stepped for Node {
    fn step(&mut self) -> Result<(), Error> {
        self.daemon.step(clock::now_ns());
        Ok(())
    }

    fn spent(&self) -> Spent {
        Spent::of(&self.daemon.worker_stats(), self.daemon.copied_bytes())
    }
}

/// A client and its daemon, on one thread.
pub(super) struct DaemonCaller {
    node: Node,
    /// It connects on a thread of its own, while this one steps the daemon.
    connecting: Option<thread::JoinHandle<Result<Pipeline<u64>, Error>>>,
    pipeline: Option<Pipeline<u64>>,
    /// The service that it calls.
    service: u16,
}

/// The other daemon, before it is made.
pub(super) struct MakeNode<'a> {
    answers: Echo,
    nic: &'a Selection,
    control: UdpControl,
    name: String,
}

impl MakeEcho for MakeNode<'_> {
    fn make(self, _: &[u8]) -> Result<(Box<dyn Stepped>, Vec<u8>), Error> {
        let mut node = Node::open(self.nic, 1, self.control, &self.name)?;
        if self.answers == Echo::Process {
            start_process(&mut node)?;
        }
        Ok((Box::new(node), Vec::new()))
    }
}

/// Starts a process that echoes, and serves until it has offered its service. It ends with the daemon.
fn start_process(node: &mut Node) -> Result<(), Error> {
    let socket = node.socket.clone();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
        let offered = Provider::register(&socket, ECHO_OF_PROCESS, config);
        // Who waits for it waits as long as this.
        let _ = tell.send(offered.as_ref().map(drop).map_err(ToString::to_string));
        let Ok(provider) = offered else { return };
        // It ends with the daemon, which is no failure.
        let _ = provider.serve(|inbound, answer| {
            answer.extend_from_slice(inbound.body);
            Some(Status::Ok)
        });
    });
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        node.step()?;
        if let Ok(offered) = told.try_recv() {
            offered.map_err(Error::refused("no service"))?;
            return Ok(());
        }
    }
    Err(late())
}

impl DaemonCaller {
    pub(super) fn pair(nic: &Selection, answers: Echo) -> Result<(Self, MakeNode<'_>), Error> {
        let name = format!("{}-{:x}", std::process::id(), clock::now_ns());
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let bind = || UdpControl::bind(at, 2).map_err(Error::refused("no socket for a daemon"));
        let (mut zero, mut one) = (bind()?, bind()?);
        let address = |of: &UdpControl| of.address().map_err(Error::refused("no address"));
        let (first, second) = (address(&zero)?, address(&one)?);
        zero.set(1, second);
        one.set(0, first);
        let node = Node::open(nic, 0, zero, &name)?;
        let caller = Self { node, connecting: None, pipeline: None, service: answers.service() };
        Ok((caller, MakeNode { answers, nic, control: one, name }))
    }
}

impl Stepped for DaemonCaller {
    fn step(&mut self) -> Result<(), Error> {
        self.node.step()
    }

    fn spent(&self) -> Spent {
        self.node.spent()
    }
}

impl LongCaller for DaemonCaller {
    fn contact(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn meet(&mut self, _: &[u8]) -> Result<(), Error> {
        let socket = self.node.socket.clone();
        self.connecting = Some(thread::spawn(move || {
            let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
            Pipeline::connect(&socket, config).map_err(Error::refused("no daemon"))
        }));
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        if let Some(connecting) = self.connecting.take_if(|thread| thread.is_finished()) {
            let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
            self.pipeline = Some(connecting.join().unwrap_or_else(panicked)?);
        }
        Ok(self.pipeline.is_some() && self.node.daemon.peers_up() == 1)
    }

    fn begin(&mut self, body: &[u8]) -> Result<(), Error> {
        let pipeline = self.pipeline.as_mut().ok_or_else(late)?;
        let to = To { rank: 1, service: self.service, method: 0 };
        let submitted = pipeline.submit(to, body, 0);
        submitted.map_err(|refused| Error::refused("a call")(refused.error))?;
        pipeline.flush();
        Ok(())
    }

    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error> {
        let pipeline = self.pipeline.as_mut().ok_or_else(late)?;
        let mut found = Ok(false);
        pipeline.poll(|_, answer| {
            found = match answer {
                Ok(answer) => right(number, message, true, answer),
                Err(error) => Err(Error::Call { index: number, what: error.to_string() }),
            };
        });
        found
    }
}
