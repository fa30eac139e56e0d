//! Packets to be sent.

use ids::slots::Key;
use proto::erpc::{CREDITS, HEADER_BYTES_MAX, Header, PacketKind, Span, WINDOW};
use verbs::Nic;

use super::Endpoint;
use crate::erpc::{
    datagrams::SendError,
    session::{ClientSide, Role, Session},
};

/// The end of a session's turn.
enum Turn {
    /// It has nothing more to send.
    Idle,
    /// It has had its share.
    Again,
    /// The send queue is full.
    Full,
    /// It may send next at this time.
    Wait(u64),
}

impl<N: Nic> Endpoint<N> {
    /// Sends as much as the send queue takes, in turns of the sessions that have packets.
    pub(super) fn transmit(&mut self) {
        if let Some(wheel) = &mut self.wheel {
            while let Some(slot) = wheel.poll(self.now_ns) {
                if let Some(key) = self.sessions.key_at(slot) {
                    self.queue.push_back(key);
                }
            }
        }
        let mut turns = 2 * self.queue.len();
        while turns > 0
            && let Some(key) = self.queue.pop_front()
        {
            turns -= 1;
            match self.turn(key) {
                Turn::Idle => {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.is_queued = false;
                    }
                }
                Turn::Again => self.queue.push_back(key),
                Turn::Full => {
                    self.queue.push_front(key);
                    break;
                }
                Turn::Wait(until_ns) => match &mut self.wheel {
                    Some(wheel) => wheel.insert(key.slot(), until_ns),
                    None => self.queue.push_back(key),
                },
            }
        }
        self.datagrams.ring();
        self.datagrams.reap_early();
    }

    fn turn(&mut self, key: Key) -> Turn {
        let Self { sessions, calls, datagrams, geometry, config, stats, now_ns, .. } = self;
        let link = geometry.link();
        let now_ns = *now_ns;
        let Some(Session { role, remote: Some(remote), .. }) = sessions.get_mut(key) else {
            return Turn::Idle;
        };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let bytes = &mut bytes[..link.header_bytes()];
        for _ in 0..config.burst {
            if !datagrams.has_room() {
                return Turn::Full;
            }
            let (header, data): (Header, &[u8]) = match role {
                Role::Connecting => return Turn::Idle,
                Role::Client(client) => {
                    if let Some(until_ns) = waits(client, now_ns) {
                        return Turn::Wait(until_ns);
                    }
                    let Some(packet) = client.core.poll_transmit(now_ns) else {
                        return Turn::Idle;
                    };
                    let call = Key::from_u64(packet.cookie);
                    let request = call.and_then(|call| calls.get(call));
                    let data = request.map_or(&[][..], |call| part(&call.request, packet.span));
                    let bytes = packet.span.len_bytes + geometry.data_bytes().min(64);
                    note_sent(client, &packet.header, bytes, now_ns);
                    (packet.header, data)
                }
                Role::Server(server) => {
                    let Some(packet) = server.core.poll_transmit() else { return Turn::Idle };
                    let slot = &server.slots[packet.request.slot()];
                    (packet.header, part(&slot.response, packet.span))
                }
            };
            header.encode(link, bytes);
            match datagrams.send(&remote.destination, bytes, data) {
                Ok(()) => stats.packets_out += 1,
                // As if the network had lost it.
                Err(SendError::Lost | SendError::Full) => stats.lost += 1,
            }
        }
        Turn::Again
    }
}

/// Until when a session whose congestion is controlled has to wait.
fn waits(client: &ClientSide, now_ns: u64) -> Option<u64> {
    let control = client.control.as_ref().filter(|_| client.core.is_sending())?;
    control.pace.wait_until_ns(now_ns)
}

/// Notes when a packet left, and its share of the rate.
fn note_sent(client: &mut ClientSide, header: &Header, bytes: u32, now_ns: u64) {
    let Some(control) = &mut client.control else { return };
    let slot = usize::try_from(header.req_num % WINDOW as u64).unwrap_or(0);
    control.sent_ns[slot][usize::from(header.pkt_num) % CREDITS as usize] = now_ns;
    if !control.timely.is_at_link_rate() && header.kind == PacketKind::Request {
        control.pace.sent(bytes, control.timely.rate(), now_ns);
    }
}

/// The bytes of a span; none where there are none.
fn part(bytes: &[u8], span: Span) -> &[u8] {
    let at = span.at_bytes as usize;
    bytes.get(at..at + span.len_bytes as usize).unwrap_or_default()
}
