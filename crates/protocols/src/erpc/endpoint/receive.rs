//! Packets that arrived.

use ids::slots::Key;
use proto::{
    Status,
    erpc::{
        CREDITS, HEADER_BYTES_MAX, Header, PacketKind, Span, WINDOW,
        client::Received as Answered,
        server::{Received as Asked, RequestId},
    },
};
use verbs::Nic;

use super::Endpoint;
use crate::{
    bodies::BodyMemory,
    erpc::{
        Handler, Request, Token,
        datagrams::Arrived,
        session::{ClientSide, Role},
    },
};

/// Longest request buffer that a slot keeps.
const KEPT_BYTES: usize = 1 << 16;

impl<N: Nic> Endpoint<N> {
    pub(super) fn receive_packets(&mut self, handler: &mut impl Handler<N>) -> usize {
        let mut count = 0;
        while count < self.config.burst as usize {
            let Some(arrived) = self.datagrams.receive() else { break };
            count += 1;
            self.stats.packets_in += 1;
            self.receive_packet(arrived, handler);
        }
        count
    }

    fn receive_packet(&mut self, arrived: Arrived, handler: &mut impl Handler<N>) {
        let link = self.geometry.link();
        let header_bytes = link.header_bytes();
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = arrived.len_bytes.min(header_bytes);
        self.datagrams.read(&arrived, 0, &mut bytes[..len]);
        let found = Header::decode(link, &bytes[..len]).ok();
        let found = found.and_then(|header| Some((header, self.find(&header, &arrived)?)));
        let Some((header, key)) = found else {
            self.stats.ignored += 1;
            self.datagrams.give_back(&arrived);
            return;
        };
        match header.kind {
            PacketKind::Request | PacketKind::RequestForResponse => {
                self.receive_request(key, &header, arrived, handler);
            }
            PacketKind::CreditReturn | PacketKind::Response => {
                self.receive_answer(key, &header, arrived, handler);
            }
        }
    }

    /// The session that a packet is of: it names its number, and comes from its peer.
    fn find(&self, header: &Header, arrived: &Arrived) -> Option<Key> {
        let key = self.sessions.key_at(self.numbers.slot(header.dest_session))?;
        let session = self.sessions.get(key)?;
        let remote = session.remote.as_ref()?;
        let sender = arrived.sender?;
        let is_peer = sender.qpn == remote.qpn && remote.lid.is_none_or(|lid| lid == sender.lid);
        (session.number == header.dest_session && is_peer).then_some(key)
    }

    fn receive_request(
        &mut self,
        key: Key,
        header: &Header,
        arrived: Arrived,
        handler: &mut impl Handler<N>,
    ) {
        let now_ns = self.now_ns;
        let header_bytes = self.geometry.link().header_bytes();
        let data_bytes = data_bytes(&arrived, header_bytes);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Role::Server(server) = &mut session.role else {
            self.stats.ignored += 1;
            return self.datagrams.give_back(&arrived);
        };
        session.heard_ns = now_ns;
        let mut ready = None;
        match server.core.receive(header, data_bytes) {
            Asked::Data { request, req_type, span, is_first, is_last, .. } => {
                let slot = &mut server.slots[request.slot()];
                if is_first {
                    slot.response.clear();
                }
                // Bytes of an earlier request are overwritten: packets come in order.
                let (at, end) = range(span);
                let place = slot.request.place(at..end, &mut self.stats.cleared_bytes);
                self.datagrams.read(&arrived, header_bytes, place);
                ready = is_last.then(|| (request, req_type, core::mem::take(&mut slot.request)));
                if !is_last {
                    session.enqueue(key, &mut self.queue);
                }
            }
            Asked::Asked => session.enqueue(key, &mut self.queue),
            Asked::Ignored(_) => self.stats.ignored += 1,
        }
        self.datagrams.give_back(&arrived);
        if let Some((request, req_type, body)) = ready {
            self.serve(key, request, req_type, body, handler);
        }
    }

    /// The handler runs, once per request.
    fn serve(
        &mut self,
        key: Key,
        request: RequestId,
        req_type: u8,
        body: BodyMemory,
        handler: &mut impl Handler<N>,
    ) {
        self.stats.requests += 1;
        let token = Token { session: key, request };
        handler.request(self, Request { token, req_type, body: body.body() });
        if body.capacity() <= KEPT_BYTES
            && let Some(session) = self.sessions.get_mut(key)
            && let Role::Server(server) = &mut session.role
        {
            let slot = &mut server.slots[request.slot()];
            if slot.request.capacity() == 0 {
                slot.request = body;
            }
        }
    }

    fn receive_answer(
        &mut self,
        key: Key,
        header: &Header,
        arrived: Arrived,
        handler: &mut impl Handler<N>,
    ) {
        let now_ns = self.now_ns;
        let header_bytes = self.geometry.link().header_bytes();
        let data_bytes = data_bytes(&arrived, header_bytes);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Role::Client(client) = &mut session.role else {
            self.stats.ignored += 1;
            return self.datagrams.give_back(&arrived);
        };
        session.heard_ns = now_ns;
        let received = client.core.receive(header, data_bytes, now_ns);
        let mut done = None;
        match received {
            Answered::Data { cookie, span, complete } => {
                measure(client, header, now_ns);
                let call = Key::from_u64(cookie);
                if let Some((call, pending)) =
                    call.and_then(|call| Some((call, self.calls.get_mut(call)?)))
                {
                    // Bytes of an earlier call are overwritten: packets come in order.
                    let (at, end) = range(span);
                    let place = pending.response.place(at..end, &mut self.stats.cleared_bytes);
                    self.datagrams.read(&arrived, header_bytes, place);
                    done = complete.map(|_| call);
                }
            }
            Answered::Credit => measure(client, header, now_ns),
            Answered::Ended => {}
            Answered::Ignored(_) => self.stats.ignored += 1,
        }
        self.datagrams.give_back(&arrived);
        let has_held = !client.held.is_empty();
        session.enqueue(key, &mut self.queue);
        if has_held {
            self.release_held(key);
        }
        if received == Answered::Ended {
            self.tell_ended(key, handler);
        }
        if let Some(pending) = done.and_then(|call| self.calls.remove(call)) {
            handler.response(self, pending.cookie, Status::Ok, pending.response.body());
            self.keep(pending.request);
            self.keep_response(pending.response);
        }
    }
}

/// Bytes behind the header.
fn data_bytes(arrived: &Arrived, header_bytes: usize) -> u32 {
    u32::try_from(arrived.len_bytes.saturating_sub(header_bytes)).unwrap_or(u32::MAX)
}

fn range(span: Span) -> (usize, usize) {
    let at = span.at_bytes as usize;
    (at, at + span.len_bytes as usize)
}

/// An accepted packet tells the round trip of the one that it answers.
fn measure(client: &mut ClientSide, header: &Header, now_ns: u64) {
    if let Some(control) = &mut client.control {
        let slot = usize::try_from(header.req_num % WINDOW as u64).unwrap_or(0);
        let sent_ns = control.sent_ns[slot][usize::from(header.pkt_num) % CREDITS as usize];
        control.timely.update(now_ns.saturating_sub(sent_ns), now_ns);
    }
}
