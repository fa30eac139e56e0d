//! Streams of a port: dialing, admission, arrivals and departures.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use memory::sync::Ordering;
use os::{clock, ready_set::ReadySet};
use rustix::net::{self, sockopt};
use softnic::{Issued, Packet, VirtualPort};
use verbs::{Lid, Qpn};

use crate::{
    PortName,
    handshake::{Acceptor, Dialer, HELLO_BYTES, Hello, PROOF_BYTES},
    link::{DialError, Dialing, Link, Lost, State},
    secret::random,
    shared::Shared,
};

/// Streams on which a handshake is under way, and how long one may take.
const INCOMING_MAX: usize = 64;
const HANDSHAKE_NS: u64 = 5_000_000_000;
/// How long a port is dialed.
const DIAL_NS: u64 = 1_000_000_000;
/// Between looks at what comes by time.
const LOOK_NS: u64 = 1_000_000;
/// Longest sleep of a program.
const SLEEP_NS: u64 = 100_000_000;
/// Requests that wait for a stream.
const UNSENT_MAX: usize = 4096;
/// WQEs of one queue pair before others have their turn, and of all before the streams have.
const TURN_MAX: usize = 32;
const ISSUED_MAX: usize = 512;

/// Events of a port's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams whose handshake has succeeded.
    pub begun: u64,
    /// Strangers, and peers that did not finish a handshake.
    pub refused: u64,
    /// Streams that have ended, by either side.
    pub lost: u64,
    /// Of these, streams that brought what no port sends.
    pub garbage: u64,
    /// Of these, streams that were silent for too long.
    pub silent: u64,
}

/// A peer that has connected, and has not proven its identity.
#[derive(Debug)]
struct Incoming {
    socket: TcpStream,
    since_ns: u64,
    bytes: [u8; HELLO_BYTES],
    filled: usize,
    acceptor: Option<Acceptor>,
}

/// Listener, streams, and what comes by time.
#[derive(Debug)]
pub(crate) struct Network {
    listener: TcpListener,
    incoming: Vec<Incoming>,
    links: BTreeMap<Lid, Link>,
    /// Streams that were lost, by port.
    epochs: HashMap<Lid, u32>,
    timers: BTreeSet<(u64, Qpn)>,
    /// Where each queue pair has sent last.
    targets: HashMap<Qpn, Lid>,
    pub(crate) counts: Counts,
    look_at_ns: u64,
    worked_ns: u64,
}

impl Network {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            incoming: Vec::new(),
            links: BTreeMap::new(),
            epochs: HashMap::new(),
            timers: BTreeSet::new(),
            targets: HashMap::new(),
            counts: Counts::default(),
            look_at_ns: 0,
            worked_ns: 0,
        }
    }

    /// Does what there is to do; says whether there was anything.
    pub(crate) fn work(&mut self, shared: &Shared, own: &VirtualPort, is_poll: bool) -> bool {
        let now_ns = clock::now_ns();
        let mut happened = false;
        if is_poll {
            happened |= self.read(shared, own, now_ns);
            if now_ns >= self.look_at_ns || self.is_meeting() {
                self.look_at_ns = now_ns + LOOK_NS;
                self.meet(shared, own, now_ns);
                self.lose_silent(shared, own, now_ns);
            }
            self.worked_ns = now_ns;
        }
        while let Some(&(at_ns, qp)) = self.timers.first()
            && at_ns <= now_ns
        {
            self.timers.pop_first();
            shared.ready.push(qp);
        }
        let may_wait = happened;
        happened |= self.issue(shared, own, now_ns);
        self.flush(shared, own, is_poll && may_wait);
        self.say_when_next(shared, now_ns);
        happened
    }

    fn read(&mut self, shared: &Shared, own: &VirtualPort, now_ns: u64) -> bool {
        let mut happened = false;
        let mut lost = Vec::new();
        for link in self.links.values_mut().filter(|link| link.is_live()) {
            match link.read(own, &shared.ready, now_ns) {
                Ok(read) => happened |= read,
                Err(cause) => lost.push((link.lid, cause)),
            }
        }
        happened |= !lost.is_empty();
        lost.into_iter().for_each(|(lid, cause)| self.lose(shared, own, lid, cause));
        happened
    }

    /// A stream has ended: so has all that was on its way.
    fn lose(&mut self, shared: &Shared, own: &VirtualPort, lid: Lid, cause: Lost) {
        self.counts.lost += 1;
        self.counts.garbage += u64::from(cause == Lost::Garbage);
        if let Some(mut link) = self.links.remove(&lid) {
            link.state = State::Closed;
            link.parked.into_iter().for_each(|qp| shared.ready.push(qp));
        }
        *self.epochs.entry(lid).or_default() += 1;
        own.lose_peer(lid);
    }

    /// Ports that owe answers and say nothing. A program that was away itself does not judge others.
    fn lose_silent(&mut self, shared: &Shared, own: &VirtualPort, now_ns: u64) {
        let was_away = now_ns.saturating_sub(self.worked_ns) > shared.timeout_ns / 2;
        let mut lost = Vec::new();
        for link in self.links.values_mut().filter(|link| link.is_live()) {
            if was_away || link.window.is_empty() {
                link.window.waiting_since_ns = now_ns;
            } else if now_ns.saturating_sub(link.window.waiting_since_ns.max(link.heard_ns))
                > shared.timeout_ns
            {
                lost.push(link.lid);
            }
        }
        self.counts.silent += lost.len() as u64;
        lost.into_iter().for_each(|lid| self.lose(shared, own, lid, Lost::Ended));
    }

    /// Executes queue pairs that have something to do.
    fn issue(&mut self, shared: &Shared, own: &VirtualPort, now_ns: u64) -> bool {
        let mut issued = 0;
        while issued < ISSUED_MAX {
            let Some(qp) = shared.ready.pop() else { break };
            for turn in 0.. {
                if let Some(link) = self.targets.get(&qp).and_then(|lid| self.links.get_mut(lid))
                    && !link.window.is_open()
                {
                    link.parked.push(qp);
                    break;
                }
                if turn == TURN_MAX {
                    shared.ready.push(qp);
                    break;
                }
                match own.issue(qp) {
                    Issued::Packet(packet) => self.send(shared, own, packet, now_ns),
                    Issued::Done => {}
                    Issued::WaitUntil(at_ns) => {
                        self.timers.insert((at_ns, qp));
                        break;
                    }
                    Issued::Idle => break,
                }
                issued += 1;
            }
        }
        issued > 0
    }

    fn send(&mut self, shared: &Shared, own: &VirtualPort, packet: Packet, now_ns: u64) {
        let (_, qp) = packet.source();
        let (lid, _) = packet.destination();
        if lid == own.lid() {
            let answer = own.respond(&packet);
            if answer.is_some() || !packet.is_datagram() {
                own.settle(&answer.unwrap_or_else(|| VirtualPort::dropped(&packet)));
                shared.ready.push(qp);
            }
            return;
        }
        self.targets.insert(qp, lid);
        let Some(name) = shared.aliases.name(lid) else { return drop_packet(shared, own, &packet) };
        let is_promised = promised(&self.incoming, name);
        let link = self.links.entry(lid).or_insert_with(|| Link::new(lid));
        if link.is_live() {
            return link.send(packet, now_ns);
        }
        if link.unsent.len() == UNSENT_MAX
            || matches!(link.state, State::Closed) && now_ns < link.redial_at_ns
        {
            return drop_packet(shared, own, &packet);
        }
        if link.unsent.is_empty() {
            (link.dialing_since_ns, link.attempts) = (now_ns, 0);
        }
        link.unsent.push_back(packet);
        if matches!(link.state, State::Closed) && !is_promised {
            let hello = own_hello(shared, name, self.epochs.get(&lid));
            dial(link, shared, own, hello, now_ns);
        }
    }

    fn flush(&mut self, shared: &Shared, own: &VirtualPort, may_wait: bool) {
        let mut lost = Vec::new();
        for link in self.links.values_mut().filter(|link| link.is_live()) {
            if let Err(cause) = link.flush(may_wait, &shared.set) {
                lost.push((link.lid, cause));
            }
        }
        lost.into_iter().for_each(|(lid, cause)| self.lose(shared, own, lid, cause));
    }

    fn is_meeting(&self) -> bool {
        let is_wanted = |link: &Link| !link.is_live() && !link.unsent.is_empty();
        !self.incoming.is_empty() || self.links.values().any(is_wanted)
    }

    fn say_when_next(&self, shared: &Shared, now_ns: u64) {
        let pause = if self.is_meeting() { LOOK_NS } else { SLEEP_NS };
        let has_unreported =
            self.links.values().any(|link| link.is_live() && link.has_unreported());
        let timer_ns = self.timers.first().map_or(u64::MAX, |&(at_ns, _)| at_ns);
        let next_ns = if has_unreported { now_ns } else { timer_ns.min(now_ns + pause) };
        shared.next_ns.store(next_ns, Ordering::Relaxed);
    }

    /// Lets others in, and goes on with handshakes.
    fn meet(&mut self, shared: &Shared, own: &VirtualPort, now_ns: u64) {
        while let Ok((socket, _)) = self.listener.accept() {
            if self.incoming.len() == INCOMING_MAX || prepare(&socket, shared.timeout_ns).is_err() {
                self.counts.refused += 1;
                continue;
            }
            // Before a handshake is over, it is looked at every millisecond.
            let bytes = [0; HELLO_BYTES];
            self.incoming.push(Incoming {
                socket,
                since_ns: now_ns,
                bytes,
                filled: 0,
                acceptor: None,
            });
        }
        for mut incoming in core::mem::take(&mut self.incoming) {
            let is_late = now_ns.saturating_sub(incoming.since_ns) > HANDSHAKE_NS;
            match self.advance(shared, &mut incoming) {
                Ok(Some(hello)) => self.let_in(shared, own, &hello, incoming.socket, now_ns),
                Ok(None) if !is_late => self.incoming.push(incoming),
                _ => self.counts.refused += 1,
            }
        }
        let mut begun = Vec::new();
        for link in self.links.values_mut().filter(|link| !link.is_live()) {
            let Some(name) = shared.aliases.name(link.lid) else { continue };
            if promised(&self.incoming, name) {
                continue;
            }
            let hello = own_hello(shared, name, self.epochs.get(&link.lid));
            if let Some(epoch) = go_on(link, shared, own, hello, now_ns) {
                begun.push((link.lid, epoch));
            }
        }
        self.counts.begun += begun.len() as u64;
        begun.into_iter().for_each(|(lid, epoch)| self.agree(lid, epoch));
        self.links.retain(|_, link| link.is_wanted(now_ns));
    }

    /// Goes on with a handshake; `Some`: it is over.
    fn advance(&mut self, shared: &Shared, incoming: &mut Incoming) -> Result<Option<Hello>, ()> {
        loop {
            let expected = if incoming.acceptor.is_some() { PROOF_BYTES } else { HELLO_BYTES };
            while incoming.filled < expected {
                match incoming.socket.read(&mut incoming.bytes[incoming.filled..expected]) {
                    Ok(0) => return Err(()),
                    Ok(count) => incoming.filled += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(_) => return Err(()),
                }
            }
            if let Some(acceptor) = &incoming.acceptor {
                let proof = incoming.bytes.first_chunk().ok_or(())?;
                acceptor.finish(&shared.key, proof).map_err(drop)?;
                return Ok(Some(*acceptor.hello()));
            }
            let hello = Hello::from_bytes(&incoming.bytes).map_err(drop)?;
            if self.has_better(shared, &hello) {
                return Err(());
            }
            let epoch = self.epoch(shared.aliases.known(hello.from));
            let key = &shared.key;
            let nonce = random();
            let met = Acceptor::new(key, shared.name, epoch, nonce, &incoming.bytes);
            let (acceptor, answer) = met.map_err(drop)?;
            match incoming.socket.write(&answer) {
                Ok(count) if count == answer.len() => {}
                _ => return Err(()),
            }
            // The dialer takes the answer for a promise: this port does not dial it meanwhile.
            let own_dial =
                shared.aliases.known(hello.from).and_then(|lid| self.links.get_mut(&lid));
            if let Some(link) = own_dial.filter(|link| !link.is_live()) {
                link.state = State::Closed;
            }
            (incoming.acceptor, incoming.filled) = (Some(acceptor), 0);
        }
    }

    fn epoch(&self, lid: Option<Lid>) -> u32 {
        lid.and_then(|lid| self.epochs.get(&lid)).copied().unwrap_or(0)
    }

    /// Whether there is a stream already that the dialer has not lost. Of two that dial each other, the stream
    /// of the lower one counts.
    fn has_better(&self, shared: &Shared, hello: &Hello) -> bool {
        let Some(lid) = shared.aliases.known(hello.from) else { return false };
        match self.links.get(&lid).map(|link| &link.state) {
            Some(State::Live(_)) => hello.epoch <= self.epoch(Some(lid)),
            Some(State::Dialing(_)) => shared.name < hello.from,
            Some(State::Closed) | None => false,
        }
    }

    /// A port has proven who it is. If it had a stream, it has lost that one.
    fn let_in(
        &mut self,
        shared: &Shared,
        own: &VirtualPort,
        hello: &Hello,
        socket: TcpStream,
        now_ns: u64,
    ) {
        let lid = shared.aliases.lid(hello.from);
        let is_live = self.links.get(&lid).is_some_and(Link::is_live);
        if is_live && self.has_better(shared, hello) || shared.set.add_readable(&socket).is_err() {
            self.counts.refused += 1;
            return;
        }
        if is_live {
            self.lose(shared, own, lid, Lost::Ended);
        }
        self.agree(lid, hello.epoch);
        let link = self.links.entry(lid).or_insert_with(|| Link::new(lid));
        link.begin(socket, now_ns);
        self.counts.begun += 1;
    }

    /// One side may have lost a stream that never began for the other.
    fn agree(&mut self, lid: Lid, epoch: u32) {
        let known = self.epochs.entry(lid).or_default();
        *known = epoch.max(*known);
    }

    /// Sends the acknowledgements that are possible now, and ends.
    pub(crate) fn close(&mut self, set: &ReadySet) {
        self.links.values_mut().for_each(|link| link.close(set));
    }
}

fn drop_packet(shared: &Shared, own: &VirtualPort, packet: &Packet) {
    if !packet.is_datagram() {
        own.settle(&VirtualPort::dropped(packet));
        shared.ready.push(packet.source().1);
    }
}

/// The properties of every stream.
fn prepare(socket: &TcpStream, timeout_ns: u64) -> io::Result<()> {
    let timeout = Duration::from_nanos(timeout_ns);
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, timeout.max(Duration::from_secs(1)))?;
    let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, timeout_ms)?)
}

/// Whether a port was answered that is about to prove who it is: then its stream is used.
fn promised(incoming: &[Incoming], name: PortName) -> bool {
    let hello = |incoming: &Incoming| incoming.acceptor.as_ref().map(|a| a.hello().from);
    incoming.iter().any(|incoming| hello(incoming) == Some(name))
}

fn own_hello(shared: &Shared, to: PortName, epoch: Option<&u32>) -> Hello {
    Hello { from: shared.name, to, epoch: epoch.copied().unwrap_or(0), nonce: random() }
}

/// Begins a stream.
fn dial(link: &mut Link, shared: &Shared, own: &VirtualPort, hello: Hello, now_ns: u64) {
    link.attempts += 1;
    match start_dialing(shared, hello) {
        Ok(dialing) => link.state = State::Dialing(Box::new(dialing)),
        Err(_) => fail_dial(link, shared, own, DialError::Unreachable, now_ns),
    }
}

fn start_dialing(shared: &Shared, hello: Hello) -> io::Result<Dialing> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let socket = net::socket_with(net::AddressFamily::INET, net::SocketType::STREAM, flags, None)?;
    let socket = TcpStream::from(socket);
    prepare(&socket, shared.timeout_ns)?;
    match net::connect(&socket, &SocketAddr::V4(hello.to.address)) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    let (dialer, hello) = Dialer::new(hello);
    let hello = hello.to_vec();
    let answer = [0; crate::handshake::ANSWER_BYTES];
    Ok(Dialing { socket, dialer, hello, is_sent: false, answer, filled: 0 })
}

/// Goes on with a stream that is wanted; `Some`: it has begun, and the port's epoch.
fn go_on(
    link: &mut Link,
    shared: &Shared,
    own: &VirtualPort,
    hello: Hello,
    now_ns: u64,
) -> Option<u32> {
    let dialing = match &mut link.state {
        State::Live(_) => return None,
        State::Closed => {
            if !link.unsent.is_empty() && now_ns >= link.redial_at_ns {
                dial(link, shared, own, hello, now_ns);
            }
            return None;
        }
        State::Dialing(dialing) => dialing,
    };
    match dialing.advance(&shared.key) {
        Ok(Some(epoch)) => {
            let State::Dialing(dialing) = core::mem::replace(&mut link.state, State::Closed) else {
                return None;
            };
            if shared.set.add_readable(&dialing.socket).is_ok() {
                link.begin(dialing.socket, now_ns);
                return Some(epoch);
            }
            fail_dial(link, shared, own, DialError::Unreachable, now_ns);
        }
        Ok(None) if now_ns.saturating_sub(link.dialing_since_ns) <= DIAL_NS => {}
        Ok(None) => fail_dial(link, shared, own, DialError::Unreachable, now_ns),
        Err(error) => fail_dial(link, shared, own, error, now_ns),
    }
    None
}

/// A stream has not come about: dials again soon, or returns the messages that waited for it, to be retried.
fn fail_dial(link: &mut Link, shared: &Shared, own: &VirtualPort, error: DialError, now_ns: u64) {
    link.state = State::Closed;
    link.redial_at_ns = now_ns + (LOOK_NS << link.attempts.min(6));
    let is_late = now_ns.saturating_sub(link.dialing_since_ns) > DIAL_NS;
    if error == DialError::Ended && !is_late {
        return;
    }
    for packet in core::mem::take(&mut link.unsent) {
        drop_packet(shared, own, &packet);
    }
}
