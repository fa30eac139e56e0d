//! The identifiers of a process, and what commands and messages do to them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{Errno, IoSliceMut, ReadWriteFlags, fcntl_dupfd_cloexec, preadv2},
    net::{RecvFlags, SocketFlags, accept_with, recv},
};

use super::{
    address::Address,
    attributes::{PortIdentity, QKEY},
    event::{self, Event, kind},
    id::{Id, IdOption, PORT_SPACES, Parting, State},
    message::{BYTES_MAX, Message, Side},
    private::MessageKind,
    socket::{ask, is_own, tell},
};
use crate::{descriptors::hide, polls::Polls};

/// How long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long until a request that found no room is sent again.
const AGAIN: Duration = Duration::from_millis(5);

/// How long the end of a connection waits for a program that polls, and how often that is looked at.
const POLLS_LATER: Duration = Duration::from_millis(100);
const POLLS_AGAIN: Duration = Duration::from_millis(1);

/// Empty polls after which a program has seen all completions: each of its queues was among those polled, and the
/// first of them may have begun before the last completion came.
const EMPTY_POLLS: u64 = 16;

/// `enum ib_cm_rej_reason`
pub(super) const REJECT_NO_LISTENER: u8 = 8;
pub(super) const REJECT_BY_PROGRAM: u8 = 28;

/// `enum ib_cm_sidr_status`
const DATAGRAMS_NO_LISTENER: i32 = 1;
const DATAGRAMS_REFUSED: i32 = 2;

/// A channel of events: the program reads the descriptor, which counts what waits.
#[derive(Debug)]
struct Channel {
    counter: OwnedFd,
    events: VecDeque<Event>,
}

/// The identifiers of a process.
#[derive(Debug)]
pub(super) struct Manager {
    pub(super) fabric: String,
    pub(super) port: PortIdentity,
    channels: HashMap<RawFd, Channel>,
    ids: BTreeMap<u32, Id>,
    last: u32,
}

impl Manager {
    pub(super) fn new(fabric: String, port: PortIdentity) -> Self {
        let (channels, ids) = (HashMap::new(), BTreeMap::new());
        Self { fabric, port, channels, ids, last: 0 }
    }

    /// Makes a channel: its descriptor becomes the program's.
    pub(super) fn open(&mut self) -> Result<OwnedFd, Errno> {
        const HIDDEN_FROM: RawFd = 512;
        let reader = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        let counter = fcntl_dupfd_cloexec(&reader, HIDDEN_FROM)?;
        hide(&counter);
        self.channels.insert(reader.as_raw_fd(), Channel { counter, events: VecDeque::new() });
        Ok(reader)
    }

    /// The channel was closed, and so its identifiers end.
    pub(super) fn close(&mut self, channel: RawFd) {
        self.channels.remove(&channel);
        self.ids.retain(|_, id| id.channel != channel);
    }

    pub(super) fn take_event(&mut self, channel: RawFd) -> Option<Event> {
        let event = self.channels.get_mut(&channel)?.events.pop_front()?;
        // A request is an event of the listener.
        let listener = self.ids.get(&event.id).map_or(0, |id| id.listener);
        let of = if event.kind == kind::CONNECT_REQUEST { listener } else { event.id };
        if let Some(id) = self.ids.get_mut(&of) {
            id.reported += 1;
        }
        Some(event)
    }

    pub(super) fn get(&self, handle: u32) -> Result<&Id, Errno> {
        self.ids.get(&handle).ok_or(Errno::NOENT)
    }

    pub(super) fn get_mut(&mut self, handle: u32) -> Result<&mut Id, Errno> {
        self.ids.get_mut(&handle).ok_or(Errno::NOENT)
    }

    fn insert(&mut self, id: Id) -> u32 {
        self.last += 1;
        self.ids.insert(self.last, id);
        self.last
    }

    pub(super) fn raise(&mut self, handle: u32, kind: u32, status: i32, parameters: Vec<u8>) {
        let Some(id) = self.ids.get(&handle) else { return };
        let uid = if kind == kind::CONNECT_REQUEST {
            self.ids.get(&id.listener).map_or(0, |listener| listener.uid)
        } else {
            id.uid
        };
        let Some(channel) = self.channels.get_mut(&id.channel) else { return };
        channel.events.push_back(Event { id: handle, kind, status, uid, parameters });
        // It counts to 2⁶⁴.
        let _ = rustix::io::write(&channel.counter, &1u64.to_ne_bytes());
    }

    /// `None`: there is no such port space.
    pub(super) fn create(
        &mut self,
        channel: RawFd,
        uid: u64,
        port_space: u16,
        qp_type: u8,
    ) -> Option<u32> {
        PORT_SPACES
            .contains(&port_space)
            .then(|| self.insert(Id::new(channel, uid, port_space, qp_type)))
    }

    /// Sets an option of an identifier.
    ///
    /// Source: Linux `drivers/infiniband/core/ucma.c`, `ucma_set_option_id`, and `cma.c`, `rdma_set_ack_timeout`.
    pub(super) fn set_option(&mut self, handle: u32, option: &IdOption) -> Result<(), Errno> {
        let id = self.get_mut(handle)?;
        match *option {
            IdOption::ServiceType(service_type) => id.service_type = service_type,
            IdOption::AckTimeout(_) if id.is_datagram => return Err(Errno::INVAL),
            IdOption::AckTimeout(code) => id.ack_timeout = code & 31,
            IdOption::IsShared => {}
        }
        Ok(())
    }

    /// The program has a name of its own for one that has come to a listener.
    pub(super) fn name(&mut self, handle: u32, uid: u64) -> Result<(), Errno> {
        self.get_mut(handle).map(|id| id.uid = uid)
    }

    /// Says how many events the program has read; the others go.
    pub(super) fn destroy(&mut self, handle: u32) -> Result<u32, Errno> {
        let id = self.ids.remove(&handle).ok_or(Errno::NOENT)?;
        if id.state == State::Requested {
            let no = Message::Reject { reason: REJECT_BY_PROGRAM, private: Vec::new() };
            let _ = id.socket.as_ref().map(|socket| tell(socket, &no));
        }
        self.drop_events(id.channel, handle);
        // Those that have come to a listener, and that the program does not know yet.
        let of_listener = self.ids.iter().filter(|(_, other)| other.listener == handle);
        let (channel, unread) = (id.channel, of_listener.map(|(child, _)| *child));
        let unread: Vec<u32> = unread.collect();
        for child in unread {
            let was_unread = !self.drop_events(channel, child).is_empty();
            let is_arriving = self.ids.get(&child).is_some_and(|id| id.state == State::Arriving);
            if was_unread || is_arriving {
                self.ids.remove(&child);
            }
        }
        Ok(id.reported)
    }

    fn drop_events(&mut self, channel: RawFd, handle: u32) -> VecDeque<Event> {
        let Some(channel) = self.channels.get_mut(&channel) else { return VecDeque::new() };
        let (taken, kept): (VecDeque<_>, _) =
            channel.events.drain(..).partition(|event| event.id == handle);
        channel.events = kept;
        for _ in &taken {
            // Who is about to read one may have the count already, and finds out that there is none.
            let mut count = [0; 8];
            let into = &mut [IoSliceMut::new(&mut count)];
            let _ = preadv2(&channel.counter, into, u64::MAX, ReadWriteFlags::NOWAIT);
        }
        taken
    }

    /// Moves an identifier, and its events, to another channel; says how many the program has read.
    pub(super) fn migrate(&mut self, handle: u32, to: RawFd) -> Result<u32, Errno> {
        if !self.channels.contains_key(&to) {
            return Err(Errno::BADF);
        }
        let id = self.get_mut(handle)?;
        let (from, reported) = (core::mem::replace(&mut id.channel, to), id.reported);
        for event in self.drop_events(from, handle) {
            self.raise(handle, event.kind, event.status, event.parameters);
        }
        Ok(reported)
    }

    /// A number from which a side's packets are counted.
    fn psn(handle: u32) -> u32 {
        handle.wrapping_mul(0x9e37_79b9) & 0xff_ffff
    }

    pub(super) fn connect(&mut self, handle: u32, side: Side) -> Result<(), Errno> {
        let lid = self.port.lid.get();
        let id = self.get_mut(handle)?;
        if id.state != State::Idle || id.destination.is_none() || id.socket.is_none() {
            return Err(Errno::INVAL);
        }
        id.room(MessageKind::Request).check(&side.private)?;
        id.own = Side { lid, psn: Self::psn(handle), ..side };
        self.request(handle, Instant::now() + PATIENCE);
        Ok(())
    }

    /// Sends a request, now or, if the listener has no room, later.
    fn request(&mut self, handle: u32, until: Instant) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        match ask(&self.fabric, id) {
            Ok(()) => id.state = State::Requesting(until),
            Err(Errno::AGAIN) => id.state = State::Waiting(until),
            Err(_) => self.refused(handle, REJECT_NO_LISTENER, Vec::new()),
        }
    }

    /// Sends those requests again that found no room.
    pub(super) fn request_again(&mut self) {
        let waiting = self.ids.iter().filter_map(|(handle, id)| match id.state {
            State::Waiting(until) => Some((*handle, until)),
            _ => None,
        });
        for (handle, until) in waiting.collect::<Vec<_>>() {
            self.request(handle, until);
        }
    }

    /// What was asked for is refused: by nobody, or by a program, with what it says.
    fn refused(&mut self, handle: u32, reason: u8, private: Vec<u8>) {
        let Some(id) = self.ids.get(&handle) else { return };
        let (is_datagram, room) = (id.is_datagram, id.room(MessageKind::Reject));
        self.end(handle);
        let rejection = Side { private: room.padded(&private), ..Side::default() };
        if !is_datagram {
            self.raise(handle, kind::REJECTED, reason.into(), event::connection(&rejection));
            return;
        }
        let status =
            if reason == REJECT_NO_LISTENER { DATAGRAMS_NO_LISTENER } else { DATAGRAMS_REFUSED };
        self.raise(handle, kind::UNREACHABLE, status, event::datagram(&rejection, &[]));
    }

    /// Requests that nobody has answered in time.
    pub(super) fn expire(&mut self, now: Instant) {
        let late = |id: &Id| match id.state {
            State::Requesting(until) | State::Waiting(until) => until <= now,
            _ => false,
        };
        let late: Vec<u32> =
            self.ids.iter().filter(|(_, id)| late(id)).map(|(handle, _)| *handle).collect();
        for handle in late {
            self.end(handle);
            let status = -Errno::TIMEDOUT.raw_os_error();
            self.raise(handle, kind::UNREACHABLE, status, event::nothing());
        }
    }

    /// A request is accepted, with parameters; or, without, the side that has asked is ready.
    pub(super) fn accept(&mut self, handle: u32, side: Option<Side>) -> Result<(), Errno> {
        let lid = self.port.lid.get();
        let id = self.get_mut(handle)?;
        if let Some(side) = &side {
            id.room(MessageKind::Reply).check(&side.private)?;
        }
        let Some(socket) = &id.socket else { return Err(Errno::INVAL) };
        match (id.state, side) {
            (State::Requested, Some(side)) if id.is_datagram => {
                let qkey = if side.qkey == 0 { QKEY } else { side.qkey };
                tell(socket, &Message::Reply(Side { lid, qkey, ..side }))?;
                // There is nothing more to say.
                (id.state, id.socket) = (State::Connected, None);
                Ok(())
            }
            (State::Requested, Some(side)) => {
                id.own = Side { lid, psn: id.own.psn, ..side };
                tell(socket, &Message::Reply(id.own.clone()))?;
                id.state = State::Answered;
                Ok(())
            }
            (State::Answered, None) => {
                tell(socket, &Message::Ready)?;
                id.state = State::Connected;
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn reject(&mut self, handle: u32, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.get_mut(handle)?;
        if !matches!(id.state, State::Requested | State::Answered) {
            return Err(Errno::INVAL);
        }
        id.room(MessageKind::Reject).check(&private)?;
        let socket = id.socket.as_ref().ok_or(Errno::INVAL)?;
        id.state = State::Over;
        tell(socket, &Message::Reject { reason: REJECT_BY_PROGRAM, private })
    }

    pub(super) fn disconnect(&mut self, handle: u32) -> Result<(), Errno> {
        let id = self.get_mut(handle)?;
        match id.state {
            _ if id.is_datagram => Err(Errno::INVAL),
            State::Connected | State::Answered | State::Parting(_) => {
                id.state = State::Over;
                // Who is gone does not want to be told.
                let _ = id.socket.as_ref().map(|socket| tell(socket, &Message::Disconnect));
                self.raise(handle, kind::DISCONNECTED, 0, event::nothing());
                Ok(())
            }
            State::Over => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Descriptors from which something may come, and how long to wait for that.
    pub(super) fn sources(&self) -> (Vec<(u32, RawFd)>, Option<Instant>) {
        let hears = |id: &Id| !matches!(id.state, State::Idle | State::Waiting(_));
        let sources = self.ids.iter().filter(|(_, id)| hears(id));
        let sources =
            sources.filter_map(|(handle, id)| Some((*handle, id.socket.as_ref()?.as_raw_fd())));
        let due = self.ids.values().filter_map(|id| match id.state {
            State::Requesting(until) => Some(until),
            State::Waiting(until) => Some(until.min(Instant::now() + AGAIN)),
            State::Parting(_) => Some(Instant::now() + POLLS_AGAIN),
            _ => None,
        });
        (sources.collect(), due.min())
    }

    /// Does what has come from the socket of an identifier.
    pub(super) fn serve(&mut self, handle: u32) {
        let Some(id) = self.ids.get(&handle) else { return };
        let Some(socket) = &id.socket else { return };
        if id.state == State::Listening {
            return self.accept_all(handle);
        }
        let mut bytes = [0; BYTES_MAX];
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.lose(handle),
            Ok((_, len)) => match Message::decode(bytes.get(..len).unwrap_or_default()) {
                Some(message) => self.take(handle, message),
                None => self.lose(handle),
            },
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.lose(handle),
        }
    }

    fn accept_all(&mut self, listener: u32) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Some(at) = self.ids.get(&listener)
            && let Some(socket) = &at.socket
            && let Ok(socket) = accept_with(socket, flags)
        {
            hide(&socket);
            if !is_own(&socket) {
                continue;
            }
            let mut id =
                Id { is_datagram: at.is_datagram, ..Id::new(at.channel, 0, at.port_space, 0) };
            id.state = State::Arriving;
            id.source = at.source;
            id.listener = listener;
            id.socket = Some(socket);
            self.insert(id);
        }
    }

    fn take_request(&mut self, handle: u32, side: Side, (from, to): (Address, Address)) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let ends = self.port.ends_of(id.source, (from, side.lid), to, id.port_space);
        let (source, destination) = match ends {
            Ok(ends) => ends,
            Err(reason) => {
                let no = Message::Reject { reason, private: Vec::new() };
                let _ = id.socket.as_ref().map(|socket| tell(socket, &no));
                return self.lose(handle);
            }
        };
        // The program moves its queue pair before it answers.
        id.own.psn = Self::psn(handle);
        id.own.responder_resources = side.initiator_depth;
        id.own.initiator_depth = side.responder_resources;
        id.own.retry_count = side.retry_count;
        id.own.rnr_retry = side.rnr_retry;
        (id.source, id.destination) = (Some(source), Some(destination));
        (id.has_device, id.has_route) = (true, true);
        (id.peer, id.state) = (side, State::Requested);
        let parameters = self.parameters(handle, MessageKind::Request);
        self.raise(handle, kind::CONNECT_REQUEST, 0, parameters);
    }

    fn take(&mut self, handle: u32, message: Message) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        match (id.state, message) {
            (State::Arriving, Message::Request { side, port_space, from, to })
                if port_space == id.port_space =>
            {
                self.take_request(handle, side, (from, to));
            }
            (State::Requesting(_), Message::Reply(side)) if id.is_datagram => {
                (id.peer, id.state, id.socket) = (side, State::Connected, None);
                let parameters = self.parameters(handle, MessageKind::Reply);
                self.raise(handle, kind::ESTABLISHED, 0, parameters);
            }
            (State::Requesting(_), Message::Reply(side)) => {
                // It may answer fewer at a time than it was asked for.
                id.own.initiator_depth = id.own.initiator_depth.min(side.responder_resources);
                id.own.responder_resources = id.own.responder_resources.min(side.initiator_depth);
                (id.peer, id.state) = (side, State::Answered);
                let parameters = self.parameters(handle, MessageKind::Reply);
                self.raise(handle, kind::CONNECT_RESPONSE, 0, parameters);
            }
            (State::Requesting(_) | State::Answered, Message::Reject { reason, private }) => {
                self.refused(handle, reason, private);
            }
            (State::Answered, Message::Ready) => {
                id.state = State::Connected;
                // The last message of a connection says nothing.
                self.raise(handle, kind::ESTABLISHED, 0, event::nothing());
            }
            (State::Connected | State::Answered, Message::Disconnect) => self.hear_end(handle),
            (State::Over, _) => {}
            _ => self.lose(handle),
        }
    }

    /// Private data of the peer, as its event carries it.
    fn parameters(&self, handle: u32, kind: MessageKind) -> Vec<u8> {
        let Some(id) = self.ids.get(&handle) else { return event::nothing() };
        let private = id.room(kind).padded(&id.peer.private);
        let peer = Side { private, ..id.peer.clone() };
        if id.is_datagram {
            return event::datagram(&peer, &self.port.ah_attr(peer.lid, id.service_type));
        }
        event::connection(&peer)
    }

    fn end(&mut self, handle: u32) {
        if let Some(id) = self.ids.get_mut(&handle) {
            id.state = State::Over;
            id.socket = None;
        }
    }

    /// The other side wants no connection any more. The program is told by [`Self::part`].
    fn hear_end(&mut self, handle: u32) {
        self.end(handle);
        if let Some(id) = self.ids.get_mut(&handle) {
            id.state = State::Parting(Parting::Heard);
        }
    }

    /// Whether the end of a connection was heard whose last completions may be missing.
    pub(super) fn has_heard_end(&self) -> bool {
        self.ids.values().any(|id| id.state == State::Parting(Parting::Heard))
    }

    /// The completions of all that has arrived are in their queues.
    pub(super) fn completed(&mut self, polls: Polls, now: Instant) {
        let until = if polls.is_recent { now + POLLS_LATER } else { now };
        for id in self.ids.values_mut() {
            if id.state == State::Parting(Parting::Heard) {
                let empty_polls = polls.empty;
                id.state = State::Parting(Parting::Completed { empty_polls, until });
            }
        }
    }

    /// Tells the program of connections that have ended, after what it has received from them.
    ///
    /// A disconnect on a fabric is a message of its own, which both kernels handle: it comes long after the last
    /// completion. Here it could come between a poll that finds nothing and the look at the events that follows it; a
    /// program that destroys its queue pair then loses what it was sent.
    pub(super) fn part(&mut self, polls: Polls, now: Instant) {
        let is_due = |id: &Id| match id.state {
            State::Parting(Parting::Completed { empty_polls, until }) => {
                until <= now || polls.empty.wrapping_sub(empty_polls) >= EMPTY_POLLS
            }
            _ => false,
        };
        let due = self.ids.iter().filter(|(_, id)| is_due(id)).map(|(handle, _)| *handle);
        for handle in due.collect::<Vec<_>>() {
            self.end(handle);
            self.raise(handle, kind::DISCONNECTED, 0, event::nothing());
        }
    }

    /// The other side is gone, or makes no sense.
    fn lose(&mut self, handle: u32) {
        let Some(id) = self.ids.get(&handle) else { return };
        let state = id.state;
        self.end(handle);
        match state {
            State::Arriving => drop(self.ids.remove(&handle)),
            State::Requesting(_) => self.refused(handle, REJECT_NO_LISTENER, Vec::new()),
            State::Connected | State::Answered => self.hear_end(handle),
            State::Requested => {
                let status = -Errno::TIMEDOUT.raw_os_error();
                self.raise(handle, kind::UNREACHABLE, status, event::nothing());
            }
            _ => {}
        }
    }
}
