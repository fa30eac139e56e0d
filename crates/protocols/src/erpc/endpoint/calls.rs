//! Commands of a program to an endpoint: calls, answers, cancellations.

use core::time::Duration;

use ids::slots::Key;
use proto::{Status, erpc::client};
use verbs::Nic;

use super::{Endpoint, Pending, ns};
use crate::erpc::{CallError, Handler, ReplyError, SessionId, Token, session::Role};

/// The arguments of a call, besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Names the handler: 0 to 254.
    pub req_type: u8,
    /// The caller's name of the call: what [`Handler::response`] says.
    pub cookie: u64,
    /// Room for the response. A longer one ends the call with [`Status::OutOfRange`].
    pub response_bytes_max: u32,
    /// From now on.
    pub timeout: Duration,
}

impl Default for Call {
    fn default() -> Self {
        let timeout = Duration::from_secs(1);
        Self { req_type: 0, cookie: 0, response_bytes_max: 1 << 23, timeout }
    }
}

/// Names a call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    session: Key,
    call: Key,
}

impl<N: Nic> Endpoint<N> {
    /// Makes a call, or lets it wait for a slot of the session. Its packets leave by the next poll.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has changed.
    pub fn call(
        &mut self,
        session: SessionId,
        call: &Call,
        body: &[u8],
    ) -> Result<CallId, CallError> {
        let mut request = self.buffer();
        request.clear();
        request.extend_from_slice(body);
        self.call_owned(session, call, request).map_err(|(error, request)| {
            self.keep(request);
            error
        })
    }

    /// Like [`call`](Self::call), without a copy of the body.
    ///
    /// # Errors
    ///
    /// [`CallError`] and the body; nothing has changed.
    pub fn call_owned(
        &mut self,
        session: SessionId,
        call: &Call,
        body: Vec<u8>,
    ) -> Result<CallId, (CallError, Vec<u8>)> {
        let session = session.0;
        let Some(entry) = self.sessions.get_mut(session) else {
            return Err((CallError::NoSession, body));
        };
        let client = match &mut entry.role {
            Role::Client(_) if entry.is_leaving => return Err((CallError::NoSession, body)),
            Role::Client(client) => client,
            Role::Connecting => return Err((CallError::Connecting, body)),
            Role::Server(_) => return Err((CallError::NoSession, body)),
        };
        let request_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        // Bytes of an earlier call are overwritten: see `receive_answer`.
        let response = self.spare_responses.pop().unwrap_or_default();
        let pending = Pending { cookie: call.cookie, request: body, response, is_told: false };
        let key = match self.calls.insert(pending) {
            Ok(key) => key,
            Err(pending) => {
                return Err((CallError::Busy(self.calls.slots_max()), pending.request));
            }
        };
        let core_call = client::Call {
            cookie: key.to_u64(),
            req_type: call.req_type,
            request_bytes,
            response_bytes_max: call.response_bytes_max,
            deadline_ns: self.now_ns.saturating_add(ns(call.timeout)),
        };
        if let Err(error) = client.core.call(core_call, self.now_ns) {
            let body = self.calls.remove(key).map(|pending| pending.request).unwrap_or_default();
            return Err((error.into(), body));
        }
        if !core::mem::replace(&mut client.is_watched, true) {
            self.watched.push(session);
        }
        entry.enqueue(session, &mut self.queue);
        Ok(CallId { session, call: key })
    }

    /// Gives a call up: it ends with [`Status::Cancelled`], by the next poll. The server may execute it
    /// nevertheless. `false`: it has ended.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let Some(session) = self.sessions.get_mut(call.session) else { return false };
        let Role::Client(client) = &mut session.role else { return false };
        client.core.cancel(call.call.to_u64())
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply(&mut self, token: Token, body: &[u8]) -> Result<(), ReplyError> {
        let Token { session: key, request } = token;
        let session = self.sessions.get_mut(key).ok_or(ReplyError::Gone)?;
        let Role::Server(server) = &mut session.role else { return Err(ReplyError::Gone) };
        let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        server.core.respond(request, bytes)?;
        let slot = &mut server.slots[request.slot()];
        slot.response.clear();
        slot.response.extend_from_slice(body);
        session.enqueue(key, &mut self.queue);
        Ok(())
    }

    /// Tells of calls of a session that ended without an answer.
    pub(super) fn tell_ended(&mut self, key: Key, handler: &mut impl Handler<N>) {
        loop {
            let Some(session) = self.sessions.get_mut(key) else { return };
            let Role::Client(client) = &mut session.role else { return };
            let Some(ended) = client.core.poll_ended() else { return };
            let Some(call) = Key::from_u64(ended.cookie) else { continue };
            let is_held = client.core.holds(ended.cookie);
            if is_held {
                client.held.push(call);
            }
            self.end(call, ended.status, ended.was_sent, is_held, handler);
        }
    }

    /// A call has ended without an answer.
    pub(super) fn end(
        &mut self,
        call: Key,
        status: Status,
        was_sent: bool,
        is_held: bool,
        handler: &mut impl Handler<N>,
    ) {
        let Some(pending) = self.calls.get_mut(call) else { return };
        let cookie = pending.cookie;
        pending.is_told = true;
        if !is_held {
            self.forget(call);
        }
        handler.ended(self, cookie, status, was_sent);
    }

    /// The bytes of the call are not needed any more.
    pub(super) fn forget(&mut self, call: Key) {
        if let Some(Pending { request, response, .. }) = self.calls.remove(call) {
            self.keep(request);
            self.keep_response(response);
        }
    }

    /// Forgets calls that have ended and whose slots are free now.
    pub(super) fn release_held(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Role::Client(client) = &mut session.role else { return };
        if client.held.is_empty() {
            return;
        }
        let core = &client.core;
        let free: Vec<_> =
            client.held.iter().filter(|call| !core.holds(call.to_u64())).copied().collect();
        client.held.retain(|call| !free.contains(call));
        free.into_iter().for_each(|call| self.forget(call));
    }
}
