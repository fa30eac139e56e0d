//! The state of another port: the stream to it, and messages on their way in both directions.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use os::ready_set::ReadySet;
use softnic::{Packet, ReplyPacket, VirtualPort};
use verbs::{Lid, Qpn};

use crate::{
    frame::{Assembler, FrameError, FrameKind, TcpMessage},
    handshake::{ANSWER_BYTES, Dialer},
    outbox::Outbox,
    shared::Ready,
    stream::{Came, Stream},
    window::Window,
};

/// Reads of one stream before others have their turn.
const READS_MAX: usize = 4;
/// Answers that wait for the socket before READs wait for it to be drained.
const BACKLOG_BYTES: usize = 8 << 20;
/// Requests that run before an acknowledgement is due.
const UNREPORTED_MAX: u64 = 64;

/// The stream to a port.
#[derive(Debug)]
pub(crate) enum State {
    Closed,
    Dialing(Box<Dialing>),
    Live(Stream),
}

/// A stream of ours on which the handshake is under way.
#[derive(Debug)]
pub(crate) struct Dialing {
    pub(crate) socket: TcpStream,
    pub(crate) dialer: Dialer,
    pub(crate) hello: Vec<u8>,
    pub(crate) is_sent: bool,
    pub(crate) answer: [u8; ANSWER_BYTES],
    pub(crate) filled: usize,
}

/// Another port.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) lid: Lid,
    pub(crate) state: State,
    /// The time since which a queue pair waits for a stream.
    pub(crate) dialing_since_ns: u64,
    /// When to dial next, and how often that was done.
    pub(crate) redial_at_ns: u64,
    pub(crate) attempts: u32,
    /// Requests that wait for the stream.
    pub(crate) unsent: VecDeque<Packet>,
    outbox: Outbox,
    assembler: Assembler,
    pub(crate) window: Window,
    /// Queue pairs that wait for the window.
    pub(crate) parked: Vec<Qpn>,
    /// Requests of the port that wait until answers have left.
    requests: VecDeque<Packet>,
    /// Requests of the port that were run, and how many of them were acknowledged.
    taken: u64,
    reported: u64,
    /// The last acknowledgement, which the next one of its queue pair replaces.
    acknowledgement: Option<ReplyPacket>,
    pub(crate) heard_ns: u64,
}

/// A stream is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It has ended.
    Ended,
    /// The port has sent what no port sends.
    Garbage,
}

impl From<FrameError> for Lost {
    fn from(_: FrameError) -> Self {
        Self::Garbage
    }
}

impl Link {
    pub(crate) fn new(lid: Lid) -> Self {
        Self {
            lid,
            state: State::Closed,
            dialing_since_ns: 0,
            redial_at_ns: 0,
            attempts: 0,
            unsent: VecDeque::new(),
            outbox: Outbox::default(),
            assembler: Assembler::default(),
            window: Window::default(),
            parked: Vec::new(),
            requests: VecDeque::new(),
            taken: 0,
            reported: 0,
            acknowledgement: None,
            heard_ns: 0,
        }
    }

    /// Whether there is anything to remember of it.
    pub(crate) fn is_wanted(&self, now_ns: u64) -> bool {
        !matches!(self.state, State::Closed)
            || self.redial_at_ns > now_ns
            || !self.unsent.is_empty()
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Takes a stream over, and sends the messages that waited for it.
    pub(crate) fn begin(&mut self, socket: TcpStream, now_ns: u64) {
        self.state = State::Live(Stream::new(socket));
        self.heard_ns = now_ns;
        for packet in core::mem::take(&mut self.unsent) {
            self.send(packet, now_ns);
        }
    }

    pub(crate) fn send(&mut self, mut packet: Packet, now_ns: u64) {
        let channel = packet.source().1.get();
        let payload = packet.take_payload();
        self.window.send(payload.len(), now_ns);
        self.outbox.push(FrameKind::Request, channel, packet.encode(), payload, self.taken);
    }

    /// Reads and handles arrivals; returns whether there were any.
    pub(crate) fn read(
        &mut self,
        own: &VirtualPort,
        ready: &Ready,
        now_ns: u64,
    ) -> Result<bool, Lost> {
        let mut happened = self.run_waiting(own);
        for _ in 0..READS_MAX {
            let State::Live(stream) = &mut self.state else { break };
            match stream.read() {
                Came::Nothing => break,
                Came::End => return Err(Lost::Ended),
                Came::Bytes => {}
            }
            (happened, self.heard_ns) = (true, now_ns);
            self.take_frames(own, ready, now_ns)?;
        }
        Ok(happened)
    }

    fn take_frames(&mut self, own: &VirtualPort, ready: &Ready, now_ns: u64) -> Result<(), Lost> {
        loop {
            let State::Live(stream) = &mut self.state else { return Ok(()) };
            let Some((header, rest)) = stream.next()? else { return Ok(()) };
            if !self.window.take(header.taken, now_ns) {
                return Err(Lost::Garbage);
            }
            if !self.parked.is_empty() && self.window.is_open() {
                self.parked.drain(..).for_each(|qp| ready.push(qp));
            }
            let State::Live(stream) = &self.state else { return Ok(()) };
            match self.assembler.take(&header, stream.bytes(rest))? {
                Some(TcpMessage::Request(packet)) => {
                    let packet = packet.between(self.lid, own.lid());
                    if self.requests.is_empty() && self.may_run(&packet) {
                        self.run(own, &packet);
                    } else {
                        self.requests.push_back(packet);
                    }
                }
                Some(TcpMessage::Answer(answer)) => {
                    let answer = answer.between(self.lid, own.lid());
                    own.settle(&answer);
                    ready.push(answer.destination().1);
                }
                None => {}
            }
        }
    }

    /// Whether its answer would not add to too many that wait.
    fn may_run(&self, packet: &Packet) -> bool {
        packet.answer_bytes_max() == 0 || self.outbox.bytes() < BACKLOG_BYTES
    }

    fn run_waiting(&mut self, own: &VirtualPort) -> bool {
        let mut happened = false;
        while self.requests.front().is_some_and(|packet| self.may_run(packet)) {
            if let Some(packet) = self.requests.pop_front() {
                self.run(own, &packet);
                happened = true;
            }
        }
        happened
    }

    fn run(&mut self, own: &VirtualPort, packet: &Packet) {
        let answer = own.respond(packet);
        self.taken += 1;
        let answer = match answer {
            Some(answer) => answer,
            None if packet.is_datagram() => return,
            None => VirtualPort::dropped(packet),
        };
        let follows = |held: &ReplyPacket| {
            (held.destination(), held.source()) == (answer.destination(), answer.source())
        };
        if !self.acknowledgement.as_ref().is_some_and(follows) {
            self.push_acknowledgement();
        }
        if packet.is_acknowledged_by_later() && answer.is_plain_acknowledgement() {
            self.acknowledgement = Some(answer);
        } else {
            self.push_acknowledgement();
            self.push_answer(answer);
        }
    }

    fn push_acknowledgement(&mut self) {
        if let Some(answer) = self.acknowledgement.take() {
            self.push_answer(answer);
        }
    }

    fn push_answer(&mut self, mut answer: ReplyPacket) {
        let channel = answer.destination().1.get();
        let data = answer.take_payload();
        self.outbox.push(FrameKind::Answer, channel, answer.encode(), data, self.taken);
        self.reported = self.taken;
    }

    /// Whether an acknowledgement is due that no other message carries.
    pub(crate) fn has_unreported(&self) -> bool {
        self.acknowledgement.is_some() || self.taken != self.reported
    }

    /// Whether a write is due: there is something to write, and `may_wait` is not enough to put it off.
    fn is_due(&self, may_wait: bool) -> bool {
        !self.outbox.is_empty()
            || self.has_unreported() && (!may_wait || self.taken - self.reported >= UNREPORTED_MAX)
    }

    /// Writes what the socket takes. `may_wait`: what only acknowledges may be sent along with something else
    /// later.
    pub(crate) fn flush(&mut self, may_wait: bool, set: &ReadySet) -> Result<(), Lost> {
        if !self.is_due(may_wait) {
            return Ok(());
        }
        self.push_acknowledgement();
        let State::Live(stream) = &mut self.state else { return Ok(()) };
        if self.outbox.is_empty() {
            self.outbox.push_taken(self.taken);
        }
        self.reported = self.taken;
        if stream.is_broken {
            return Ok(());
        }
        match self.outbox.write(&mut stream.socket, self.taken) {
            Ok(is_done) => {
                if stream.is_watched == is_done {
                    stream.is_watched = !is_done;
                    let watched = set.set_writable(&stream.socket, !is_done);
                    return watched.map_err(|_| Lost::Ended);
                }
            }
            // Earlier arrivals are still to be read.
            Err(_) => stream.is_broken = true,
        }
        Ok(())
    }

    /// Sends the acknowledgements that are possible now, and closes the stream so that the port reads them.
    pub(crate) fn close(&mut self, set: &ReadySet) {
        let _ = self.flush(false, set);
        if let State::Live(stream) = &mut self.state {
            let _ = stream.socket.shutdown(Shutdown::Write);
            // Unread bytes would make the kernel cut the stream off at once.
            while stream.socket.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        }
        self.state = State::Closed;
    }
}

impl Dialing {
    /// Goes on with the handshake. `Some`: it is over; the port's epoch.
    pub(crate) fn advance(&mut self, key: &crate::Secret) -> Result<Option<u32>, DialError> {
        if !self.is_sent {
            match self.socket.write(&self.hello) {
                Ok(count) if count == self.hello.len() => self.is_sent = true,
                Ok(_) => return Err(DialError::Ended),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(DialError::Unreachable),
            }
        }
        while self.filled < ANSWER_BYTES {
            match self.socket.read(&mut self.answer[self.filled..]) {
                Ok(0) => return Err(DialError::Ended),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(DialError::Ended),
            }
        }
        let (proof, epoch) =
            self.dialer.answer(key, &self.answer).map_err(|_| DialError::Refused)?;
        match self.socket.write(&proof) {
            Ok(count) if count == proof.len() => Ok(Some(epoch)),
            _ => Err(DialError::Ended),
        }
    }
}

/// Why a stream did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// No port listens there.
    Unreachable,
    /// The listener has hung up: it may be dialing itself.
    Ended,
    /// It is not the port that was meant, or does not know the secret.
    Refused,
}
