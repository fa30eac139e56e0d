//! Streams between the ports of processes: unix sockets with abstract names.
//!
//! Each ordered pair of ports has one stream, which the sender opens when it has something to send. A frame is
//! its length in four bytes, its kind in one, and the bytes of a packet or an answer. A stream that ends tells
//! that the other process is gone, in good order if its last frame is a goodbye.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use os::unix::is_own_user;
use rustix::process::geteuid;
use softnic::{Packet, ReplyPacket};
use verbs::Lid;

use crate::descriptors::hide;

/// LIDs that ports try.
const LIDS: core::ops::Range<u16> = 1..512;

/// Bytes that one read takes.
const READ_BYTES: usize = 256 << 10;

/// How often a port that polls looks for new streams, which are rare.
const ACCEPT_NS: u64 = 20_000;

/// Bytes that may wait for all peers together before queue pairs wait.
pub(crate) const BACKLOG_BYTES_MAX: usize = 4 << 20;

/// Longest frame: a message of the greatest length, and its head.
const FRAME_BYTES_MAX: usize = (1 << 31) + 4096;

const HEAD_BYTES: usize = 5;
const HELLO: u8 = 0;
const PACKET: u8 = 1;
const ANSWER: u8 = 2;
const GOODBYE: u8 = 3;

/// A frame that a peer sent.
#[derive(Debug)]
pub(crate) enum Frame {
    Packet(Packet),
    /// One that has overtaken others, and comes again in its turn.
    Early(Packet),
    Answer(ReplyPacket),
}

/// A stream that this port has opened.
#[derive(Debug)]
struct Outgoing {
    stream: UnixStream,
    waiting: VecDeque<Vec<u8>>,
    /// Of the first frame that waits.
    written: usize,
}

/// A stream that another port has opened.
#[derive(Debug)]
struct Incoming {
    stream: UnixStream,
    /// Who it is, once it has said so.
    peer: Option<Lid>,
    bytes: Vec<u8>,
    /// What of `bytes` has been taken.
    taken: usize,
    has_said_goodbye: bool,
}

/// A port that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) lid: Lid,
    /// Its process was killed, or as good as that.
    pub(crate) is_lost: bool,
}

/// The streams of one port.
#[derive(Debug)]
pub(crate) struct Fabric {
    name: String,
    pub(crate) lid: Lid,
    listener: UnixListener,
    outgoing: HashMap<u16, Outgoing>,
    incoming: Vec<Incoming>,
    backlog_bytes: usize,
    /// When it looks for new streams again.
    accepts_at_ns: u64,
    gone: Vec<Gone>,
    buffer: Vec<u8>,
}

fn address(fabric: &str, lid: Lid) -> io::Result<SocketAddr> {
    let uid = geteuid().as_raw();
    SocketAddr::from_abstract_name(format!("copyrpc-uverbs-{uid}-{fabric}-{}", lid.get()))
}

/// Whether the other end belongs to this user: anybody may claim an abstract name.
fn is_own(stream: &UnixStream) -> bool {
    is_own_user(stream)
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.push(kind);
    bytes.extend(body);
    bytes
}

impl Fabric {
    /// Takes the first LID that is free.
    pub(crate) fn join(name: &str) -> io::Result<Self> {
        for lid in LIDS.map(Lid::new) {
            let listener = match UnixListener::bind_addr(&address(name, lid)?) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
                bound => bound?,
            };
            listener.set_nonblocking(true)?;
            hide(&listener);
            return Ok(Self {
                name: name.to_owned(),
                lid,
                listener,
                outgoing: HashMap::new(),
                incoming: Vec::new(),
                backlog_bytes: 0,
                accepts_at_ns: 0,
                gone: Vec::new(),
                buffer: vec![0; READ_BYTES],
            });
        }
        Err(io::Error::new(ErrorKind::AddrInUse, "all LIDs of the fabric are taken"))
    }

    /// Descriptors that become readable when something arrives.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = self.incoming.iter().map(|incoming| incoming.stream.as_fd());
        core::iter::once(self.listener.as_fd()).chain(streams)
    }

    /// Whether so much waits that no more should be made.
    pub(crate) fn is_full(&self) -> bool {
        self.backlog_bytes > BACKLOG_BYTES_MAX
    }

    /// Ports that are gone since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<Gone> {
        core::mem::take(&mut self.gone)
    }

    /// Tells all peers that this port ends in good order.
    pub(crate) fn say_goodbye(&mut self) {
        let heard = self.incoming.iter().filter_map(|incoming| incoming.peer.map(Lid::get));
        let mut peers: Vec<u16> = heard.chain(self.outgoing.keys().copied()).collect();
        peers.sort_unstable();
        peers.dedup();
        for lid in peers {
            self.send(Lid::new(lid), frame(GOODBYE, &[]));
        }
    }

    /// Sends a packet; `false`: nobody is there.
    pub(crate) fn send_packet(&mut self, packet: &Packet) -> bool {
        self.send(packet.destination().0, frame(PACKET, &packet.encode()))
    }

    /// Sends an answer; who is gone does not want it.
    pub(crate) fn send_answer(&mut self, answer: &ReplyPacket) {
        self.send(answer.destination().0, frame(ANSWER, &answer.encode()));
    }

    fn send(&mut self, to: Lid, frame: Vec<u8>) -> bool {
        if !self.open(to) {
            return false;
        }
        let Some(outgoing) = self.outgoing.get_mut(&to.get()) else { return false };
        self.backlog_bytes += frame.len();
        outgoing.waiting.push_back(frame);
        if outgoing.waiting.len() == 1 {
            self.flush_one(to);
        }
        true
    }

    /// Opens the stream to a port if it is not open; `false`: nobody is there.
    fn open(&mut self, to: Lid) -> bool {
        if !self.outgoing.contains_key(&to.get()) {
            let Some(stream) = self.connect(to) else { return false };
            self.backlog_bytes += stream.waiting.iter().map(Vec::len).sum::<usize>();
            self.outgoing.insert(to.get(), stream);
        }
        true
    }

    fn connect(&self, to: Lid) -> Option<Outgoing> {
        let stream = UnixStream::connect_addr(&address(&self.name, to).ok()?).ok()?;
        hide(&stream);
        stream.set_nonblocking(true).ok().filter(|()| is_own(&stream))?;
        let hello = frame(HELLO, &self.lid.get().to_le_bytes());
        Some(Outgoing { stream, waiting: VecDeque::from([hello]), written: 0 })
    }

    /// Writes what waits; whether anything was written.
    pub(crate) fn flush(&mut self) -> bool {
        if self.backlog_bytes == 0 {
            return false;
        }
        let lids: Vec<u16> = self.outgoing.keys().copied().collect();
        let before = self.backlog_bytes;
        lids.into_iter().for_each(|lid| self.flush_one(Lid::new(lid)));
        self.backlog_bytes < before
    }

    fn flush_one(&mut self, to: Lid) {
        let Some(outgoing) = self.outgoing.get_mut(&to.get()) else { return };
        while let Some(first) = outgoing.waiting.front() {
            match outgoing.stream.write(&first[outgoing.written..]) {
                Ok(count) => {
                    outgoing.written += count;
                    self.backlog_bytes -= count;
                    if outgoing.written == first.len() {
                        outgoing.waiting.pop_front();
                        outgoing.written = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.forget(to);
                    // Its own stream tells how it ended, where it has one.
                    if !self.incoming.iter().any(|incoming| incoming.peer == Some(to)) {
                        self.gone.push(Gone { lid: to, is_lost: true });
                    }
                    return;
                }
            }
        }
    }

    fn forget(&mut self, lid: Lid) {
        if let Some(outgoing) = self.outgoing.remove(&lid.get()) {
            let waiting: usize = outgoing.waiting.iter().map(Vec::len).sum();
            self.backlog_bytes -= waiting - outgoing.written;
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            hide(&stream);
            if is_own(&stream) && stream.set_nonblocking(true).is_ok() {
                self.incoming.push(Incoming::new(stream));
            }
        }
    }

    /// Takes what has arrived.
    pub(crate) fn receive(&mut self) -> Vec<Frame> {
        let now_ns = os::clock::now_ns();
        if now_ns >= self.accepts_at_ns {
            self.accepts_at_ns = now_ns + ACCEPT_NS;
            self.accept();
        }
        let mut frames = Vec::new();
        let mut at = 0;
        while let Some(incoming) = self.incoming.get_mut(at) {
            if incoming.read(&mut self.buffer, &mut frames) {
                at += 1;
                continue;
            }
            let gone = self.incoming.swap_remove(at);
            if let Some(lid) = gone.peer {
                self.forget(lid);
                self.gone.push(Gone { lid, is_lost: !gone.has_said_goodbye });
            }
        }
        frames
    }
}

impl Incoming {
    fn new(stream: UnixStream) -> Self {
        Self { stream, peer: None, bytes: Vec::new(), taken: 0, has_said_goodbye: false }
    }

    /// Reads once, and takes whole frames; `false`: the stream has ended, or makes no sense.
    fn read(&mut self, buffer: &mut [u8], frames: &mut Vec<Frame>) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => return false,
            Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
            Err(error) => {
                return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        }
        loop {
            let rest = &self.bytes[self.taken..];
            let Some((head, body)) = rest.split_at_checked(HEAD_BYTES) else { break };
            let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if len > FRAME_BYTES_MAX {
                return false;
            }
            let (kind, Some(body)) = (head[4], body.get(..len)) else { break };
            match (kind, self.peer) {
                (HELLO, None) => {
                    let Ok(lid) = body.try_into() else { return false };
                    self.peer = Some(Lid::new(u16::from_le_bytes(lid)));
                }
                (PACKET, Some(peer)) => match Packet::decode(body) {
                    Ok(packet) if packet.source().0 == peer => frames.push(Frame::Packet(packet)),
                    _ => return false,
                },
                (ANSWER, Some(_)) => match ReplyPacket::decode(body) {
                    Ok(answer) => frames.push(Frame::Answer(answer)),
                    Err(_) => return false,
                },
                (GOODBYE, Some(_)) => self.has_said_goodbye = true,
                _ => return false,
            }
            self.taken += HEAD_BYTES + len;
        }
        self.bytes.drain(..self.taken);
        self.taken = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(name: &str) -> String {
        format!("{name}-{}", std::process::id())
    }

    /// Receives until something is known to be gone.
    fn gone(fabric: &mut Fabric) -> Vec<Gone> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            fabric.receive();
            let gone = fabric.take_gone();
            if !gone.is_empty() || std::time::Instant::now() > deadline {
                return gone;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_goodbye_tells_a_good_end_from_a_lost_port() {
        let name = fabric("goodbye");
        let mut stays = Fabric::join(&name).unwrap();
        for is_lost in [false, true] {
            let mut other = Fabric::join(&name).unwrap();
            assert!(other.open(stays.lid));
            other.flush();
            if !is_lost {
                other.say_goodbye();
            }
            let lid = other.lid;
            drop(other);
            assert_eq!(gone(&mut stays), [Gone { lid, is_lost }]);
        }
    }

    #[test]
    fn who_cannot_be_written_to_is_gone_as_its_own_stream_says() {
        let name = fabric("unwritable");
        let [mut stays, mut leaves] = [(); 2].map(|()| Fabric::join(&name).unwrap());
        let lid = leaves.lid;
        assert!(stays.open(lid) && leaves.open(stays.lid));
        assert!(stays.flush() && leaves.flush());
        assert!(stays.receive().is_empty() && leaves.receive().is_empty());
        leaves.say_goodbye();
        drop(leaves);
        // It is not there any more, but what it has sent before is.
        assert!(stays.send(lid, frame(GOODBYE, &[])));
        assert_eq!(stays.take_gone(), []);
        assert_eq!(gone(&mut stays), [Gone { lid, is_lost: false }]);
        assert_eq!(stays.backlog_bytes, 0);
    }
}
