//! Calls between nodes, by backends of crate `kv` whose service echoes: over endpoints of the software NIC, and
//! by way of daemons.
//!
//! ```text
//! initiator's core                         responder's core
//!   client ── endpoint ══════════════════▶ server             rpc
//!   client ── shared memory ─────────────▶ daemon 0           delegation, local
//!   client ── shared memory ──▶ daemon 0 ══▶ daemon 1         delegation, remote
//! ```

use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use copyrpc_bench::calls::NumberedMessage;
use copyrpc_memory::sync::{AtomicBool, Ordering};
use copyrpc_os::clock;
use kv::{
    backend::{
        Backend, CallToken, Client, Contact, Event, JobSetup, Kind, Roster, Server, Service,
        SubmitError, Switches, ThreadIdle, Wait, delegation::Delegation, direct::Direct,
    },
    place::{ClientId, Shard, Topology},
};
use measure::shared_words::PATIENCE;
use nics::{Opener, Selection, Visitor};

use super::{Ground, Listening, NUMBER_BYTES, Peer, is_right, timed};
use crate::Fallible;

pub const PEERS: [Peer; 3] = [
    Peer {
        name: "copyrpc rpc",
        serve: |ground, ready| Way::Rpc.serve(ground, ready),
        call: |ground, _| Way::Rpc.call(ground),
        lacks: |_| None,
    },
    Peer {
        name: "copyrpc delegation, local",
        serve: |ground, ready| Way::Local.serve(ground, ready),
        call: |ground, _| Way::Local.call(ground),
        lacks: |work| (work.len_bytes > DAEMON_BYTES_MAX).then_some(LONGER),
    },
    Peer {
        name: "copyrpc delegation, remote",
        serve: |ground, ready| Way::Remote.serve(ground, ready),
        call: |ground, _| Way::Remote.call(ground),
        lacks: |work| (work.len_bytes > DAEMON_BYTES_MAX).then_some(LONGER),
    },
];

/// What an ordinary call by way of a daemon carries at most.
const DAEMON_BYTES_MAX: usize = 15 << 20;
const LONGER: &str =
    "an ordinary call carries 15 MiB at most; more is what calls that lend memory are for";

/// Longest sleep, so that the end is noticed.
const NAP: Duration = Duration::from_millis(2);
/// Calls per reading of the clock.
const BATCH: usize = 64;

/// A way to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rpc,
    Local,
    Remote,
}

/// A side of a sample, once the NIC is known.
struct Side<'a, 'b> {
    way: Way,
    ground: &'a Ground<'b>,
    /// Of the server's side.
    ready: Option<Listening<'a>>,
}

impl Way {
    fn serve(self, ground: &Ground<'_>, ready: Listening<'_>) -> Fallible<()> {
        Side { way: self, ground, ready: Some(ready) }.run().map(drop)
    }

    fn call(self, ground: &Ground<'_>) -> Fallible<f64> {
        Side { way: self, ground, ready: None }.run()
    }

    fn ranks(self) -> u16 {
        if self == Self::Remote { 2 } else { 1 }
    }

    fn setup(self, ground: &Ground<'_>) -> Fallible<JobSetup> {
        let kind = if self == Self::Rpc { Kind::Direct } else { Kind::Delegation };
        let ranks = self.ranks();
        Ok(JobSetup {
            topology: Topology { ranks, daemon_threads: 1, clients_per_rank: 1, keys: 2 },
            queue_depth: ground.work.in_flight as u32,
            message_bytes_max: ground.work.len_bytes.max(NUMBER_BYTES),
            timeout_ns: PATIENCE.as_nanos() as u64,
            wait: self.wait(),
            switches: Switches::resolve(kind.name(), kind.switches(), &Default::default())?,
            times_turns: false,
            address: kv::backend::loopback(),
        })
    }

    /// Whoever has a core polls, as all peers do; a daemon beside its client takes turns with it.
    fn wait(self) -> Wait {
        if self == Self::Remote { Wait::Adaptive } else { Wait::Spin }
    }
}

impl Visitor for Side<'_, '_> {
    type Output = Fallible<f64>;

    fn visit<O: Opener>(self, opener: O) -> Fallible<f64> {
        let setup = self.way.setup(self.ground)?;
        self.over(&|_| Direct::new(setup.clone(), opener.clone()))
    }
}

impl Side<'_, '_> {
    fn run(self) -> Fallible<f64> {
        let nic = Selection::with_settings("soft", Default::default());
        if self.way == Way::Rpc {
            return nic.with(self).map_err(|error| error.to_string())?;
        }
        let setup = self.way.setup(self.ground)?;
        self.over(&|rank| Delegation::new(setup.clone(), nic.clone(), rank))
    }

    /// Over the backend that `open` makes for a process of a rank.
    fn over<B: Backend>(self, open: &(dyn Fn(u16) -> B + Sync)) -> Fallible<f64> {
        let Self { way, ground, ready } = self;
        let meeting = Meeting::of(ground, way);
        match ready {
            Some(ready) => {
                let rank = way.ranks() - 1;
                serve(&open(rank), rank, &meeting, (ground, way.wait()), ready)?;
                Ok(0.0)
            }
            None if way == Way::Remote => {
                // The daemon beside the client, as a thread that has its core.
                let is_over = Arc::new(AtomicBool::new(false));
                thread::scope(|scope| {
                    let daemon = scope.spawn(|| relay(&open(0), &meeting, &is_over));
                    let result = call(&open(0), &meeting, ground, way.wait());
                    // Relaxed: the flag is all there is to see.
                    is_over.store(true, Ordering::Relaxed);
                    let served = daemon.join().map_err(|_| "the daemon's thread panicked")?;
                    served?;
                    result
                })
            }
            None => call(&open(0), &meeting, ground, way.wait()),
        }
    }
}

/// Where both sides of a sample leave their contacts.
struct Meeting {
    folder: PathBuf,
    number: u64,
    ranks: u16,
}

impl Meeting {
    fn of(ground: &Ground<'_>, way: Way) -> Self {
        let (folder, number) = (ground.sample.folder.clone(), ground.sample.number);
        Self { folder, number, ranks: way.ranks() }
    }

    fn path(&self, who: &str) -> PathBuf {
        self.folder.join(format!("contact-{}-{who}", self.number))
    }

    fn leave(&self, who: &str, contact: &Contact) -> Fallible<()> {
        fs::create_dir_all(&self.folder)?;
        let partial = self.path(&format!("{who}.part"));
        fs::write(&partial, &contact.0)?;
        Ok(fs::rename(&partial, self.path(who))?)
    }

    fn find(&self, who: &str) -> Fallible<Contact> {
        let begin = Instant::now();
        loop {
            match fs::read_to_string(self.path(who)) {
                Ok(contact) => return Ok(Contact(contact)),
                Err(_) if begin.elapsed() < PATIENCE => thread::sleep(Duration::from_micros(200)),
                Err(error) => return Err(format!("no contact of {who}: {error}").into()),
            }
        }
    }

    /// Everybody's contact: of servers by rank, and of the one client. Where there are two ranks each has a
    /// place for a client, and nobody is in the second.
    fn roster(&self) -> Fallible<Roster> {
        let servers = (0..self.ranks).map(|rank| self.find(&format!("server-{rank}")));
        let clients = vec![self.find("client")?; usize::from(self.ranks)];
        Ok(Roster { servers: servers.collect::<Fallible<_>>()?, clients })
    }
}

/// What answers: the request, or its number; says if a request was wrong.
fn echo(ground: &Ground<'_>, is_wrong: Rc<Cell<bool>>) -> Service {
    let (work, message) = (ground.work, NumberedMessage::new(ground.work.len_bytes));
    let mut compared = 0;
    Box::new(move |request: &[u8], answer: &mut Vec<u8>| {
        if work.is_one_way && !is_right(&message, request, compared) {
            is_wrong.set(true);
        }
        compared += 1;
        answer.extend_from_slice(&request[..request.len().min(work.answer_bytes())]);
    })
}

/// The server of the last rank.
fn serve(
    backend: &impl Backend,
    rank: u16,
    meeting: &Meeting,
    (ground, wait): (&Ground<'_>, Wait),
    ready: Listening<'_>,
) -> Fallible<()> {
    let is_wrong = Rc::new(Cell::new(false));
    let server = backend.server(Shard(rank), echo(ground, Rc::clone(&is_wrong)))?;
    meeting.leave(&format!("server-{rank}"), &server.contact())?;
    ready(0)?;
    take_turns(server, (rank, meeting), wait, || is_wrong.get() || ground.is_over())?;
    if is_wrong.get() { Err("a request is wrong".into()) } else { Ok(()) }
}

/// The daemon beside the client, which has no call for itself.
fn relay(backend: &impl Backend, meeting: &Meeting, is_over: &AtomicBool) -> Result<(), String> {
    let run = || -> Fallible<()> {
        let server = backend.server(Shard(0), Box::new(|_: &[u8], _: &mut Vec<u8>| {}))?;
        meeting.leave("server-0", &server.contact())?;
        take_turns(server, (0, meeting), Wait::Adaptive, || is_over.load(Ordering::Relaxed))
    };
    run().map_err(|error| error.to_string())
}

fn take_turns(
    mut server: impl Server,
    (rank, meeting): (u16, &Meeting),
    wait: Wait,
    is_over: impl Fn() -> bool,
) -> Fallible<()> {
    server.join(&meeting.roster()?, clock::deadline_ns(PATIENCE))?;
    meeting.leave(&format!("joined-{rank}"), &Contact::default())?;
    let mut idle = ThreadIdle::new(wait);
    while !is_over() {
        if server.turn(BATCH)?.handled > 0 {
            idle.reset();
        } else if !(idle.is_adaptive() && server.is_expecting()) && idle.is_to_sleep() {
            server.wait(clock::deadline_ns(NAP))?;
        }
    }
    Ok(())
}

/// The client: a window of calls slides.
fn call(
    backend: &impl Backend,
    meeting: &Meeting,
    ground: &Ground<'_>,
    wait: Wait,
) -> Fallible<f64> {
    let mut client = backend.client(ClientId(0))?;
    meeting.leave("client", &client.contact())?;
    client.join(&meeting.roster()?, clock::deadline_ns(PATIENCE))?;
    for rank in 0..meeting.ranks {
        meeting.find(&format!("joined-{rank}"))?;
    }
    let mut window = Window {
        client,
        idle: ThreadIdle::new(wait),
        to: Shard(meeting.ranks - 1),
        depth: ground.work.in_flight as u64,
        message: NumberedMessage::new(ground.work.len_bytes),
        expected: NumberedMessage::new(ground.work.answer_bytes()),
        sent: 0,
        answered: 0,
    };
    let batch = ground.work.batch(BATCH);
    let value = timed(ground.work, batch, || window.run(batch as u64))?;
    window.run_to(window.sent)?;
    Ok(value)
}

struct Window<C> {
    client: C,
    idle: ThreadIdle,
    to: Shard,
    depth: u64,
    message: NumberedMessage,
    expected: NumberedMessage,
    sent: u64,
    answered: u64,
}

impl<C: Client> Window<C> {
    /// Until so many more calls are answered, with a whole window in flight.
    fn run(&mut self, calls: u64) -> Fallible<()> {
        let until = self.answered + calls;
        while self.answered < until {
            while self.sent - self.answered < self.depth {
                let number = self.sent + 1;
                let request = self.message.stamp(number);
                match self.client.submit(self.to, CallToken(number), request) {
                    Ok(()) => self.sent = number,
                    // Connections come to be while the first calls wait.
                    Err(SubmitError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.poll()?;
        }
        Ok(())
    }

    /// Until that call and all before it are answered.
    fn run_to(&mut self, call: u64) -> Fallible<()> {
        while self.answered < call {
            self.poll()?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Fallible<()> {
        let Self { client, expected, answered, .. } = self;
        let mut wrong = None;
        let found = client.poll(BATCH, &mut |event| match event {
            Event::Answer { token, bytes } if expected.is(token.0, bytes) => *answered += 1,
            Event::Answer { token, .. } => wrong = Some(format!("answer {} is wrong", token.0)),
            Event::Failed { .. } | Event::Lost { .. } => wrong = Some(format!("{event:?}")),
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
        if found > 0 {
            self.idle.reset();
        } else if self.idle.is_to_sleep() {
            self.client.wait(clock::deadline_ns(NAP))?;
        }
        Ok(())
    }
}
