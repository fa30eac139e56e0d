//! The way back to the clients: answers by request id.

use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use memory::{
    Filler, LentBytes,
    sync::{AtomicUsize, Ordering},
};

use crate::{
    endpoint::{
        half::HalfShape,
        lifeline::Lifeline,
        server::{
            call_table::{Stored, Unanswerable},
            id::{ClientCensus, ClientId, ClientProcess, RequestId},
            session_table::SessionTable,
            stats::Stats,
        },
        status::ResponseKind,
    },
    ring::{Filled, MessageBytes},
};

/// Why a response did not reach its client. The request counts as answered in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The response is too long; the client was told so.
    #[error("a response of {len_bytes} B exceeds {max_bytes} B; raise `response_bytes_max`")]
    TooLarge {
        /// Length of the response.
        len_bytes: usize,
        /// Longest response.
        max_bytes: usize,
    },
    /// There is no memory for so long a response now; the client was told so.
    #[error("no memory for a response of {len_bytes} B")]
    NoMemory {
        /// Length of the response.
        len_bytes: usize,
    },
    /// The program gave the response up while it filled it; the client was told that there is none.
    #[error("the response was given up while it was filled")]
    GivenUp,
    /// The client died, left or was evicted meanwhile, or the request was answered before.
    #[error("the client is gone, or the request was answered before")]
    ClientGone,
}

/// Requests whose tokens were dropped, by any thread.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    count: AtomicUsize,
    ids: Mutex<Vec<RequestId>>,
}

impl Dropped {
    pub(crate) fn push(&self, id: RequestId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        // A hint, without order: a server that misses it looks again a turn later.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn take(&self) -> Vec<RequestId> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_sub(ids.len(), Ordering::Relaxed);
        core::mem::take(&mut ids)
    }
}

/// Answers requests by their ids. Lent by a server, also while it lends the payload of a request, so
/// that other requests can be answered meanwhile.
///
/// An answer never waits: the slot of the response was reserved with the request.
#[derive(Debug)]
pub struct Replies {
    pub(crate) table: SessionTable,
    /// Slots of the clients with responses that were not announced to them.
    pub(crate) unannounced: Vec<u16>,
    pub(crate) stats: Stats,
    pub(crate) dropped: Arc<Dropped>,
}

impl Replies {
    pub(crate) fn new(table: SessionTable) -> Self {
        let unannounced = Vec::with_capacity(usize::from(table.config().clients_max));
        Self { table, unannounced, stats: Stats::default(), dropped: Arc::default() }
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply(&mut self, id: RequestId, response: &[u8]) -> Result<(), ReplyError> {
        self.respond(id, response)
    }

    /// Answers a request with the parts of a response, which are gathered in the client's memory.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply_parts(&mut self, id: RequestId, response: &[&[u8]]) -> Result<(), ReplyError> {
        self.respond(id, response)
    }

    /// Answers a request with a response of `len_bytes` bytes that `fill` puts where the client reads it. If
    /// `fill` panics, the request is not answered.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]. Then nothing was filled.
    pub fn reply_with(
        &mut self,
        id: RequestId,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), ReplyError> {
        self.respond(id, &Filled::behind(&[], len_bytes, fill))
    }

    /// Like [`reply_with`](Self::reply_with), of a program that answers otherwise if `fill` gives up: then the request
    /// is still to be answered.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    pub fn reply_unless_given_up(
        &mut self,
        id: RequestId,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), ReplyError> {
        let message = Filled::behind(&[], len_bytes, fill);
        let max_bytes = self.table.config().response_bytes_max as usize;
        if len_bytes > max_bytes {
            return self.respond(id, &message);
        }
        let session = self.table.session(id.client).ok_or(ReplyError::ClientGone)?;
        match session.calls.answer(id.call, id.serial, ResponseKind::Ok, &message) {
            Ok(()) => {}
            Err(Unanswerable::NotPending) => return Err(ReplyError::ClientGone),
            Err(Unanswerable::GivenUp) => return Err(ReplyError::GivenUp),
            Err(lost) => return self.answer_without(id, lost, len_bytes),
        }
        session.mark_unannounced(id.client.slot, &mut self.unannounced);
        self.stats.responses += 1;
        Ok(())
    }

    /// Whether a response of this length may be [put in parts](Self::put_part): a large one that is not too long.
    #[must_use]
    pub fn takes_parts(&self, len_bytes: usize) -> bool {
        let max_bytes = self.table.config().response_bytes_max as usize;
        HalfShape::is_large(len_bytes) && len_bytes <= max_bytes
    }

    /// Puts a part of a response of `len_bytes` bytes, which [takes parts](Self::takes_parts), where the client
    /// reads it once the request is answered: by [`reply_stored`](Self::reply_stored) when all parts are there,
    /// or in any other way, as if nothing had been put.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: nothing was filled, and a request that was there is still to be answered.
    ///
    /// # Panics
    ///
    /// If the part is not one of such a response.
    pub fn put_part(
        &mut self,
        id: RequestId,
        len_bytes: usize,
        part: Range<usize>,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), ReplyError> {
        assert!(self.takes_parts(len_bytes) && part.end <= len_bytes, "a part of a large response");
        let session = self.table.session(id.client).ok_or(ReplyError::ClientGone)?;
        let put = session.calls.fill_part((id.call, id.serial), len_bytes, part, fill);
        put.map_err(|unanswerable| match unanswerable {
            Unanswerable::NotPending => ReplyError::ClientGone,
            Unanswerable::NoMemory => ReplyError::NoMemory { len_bytes },
            Unanswerable::GivenUp => ReplyError::GivenUp,
        })
    }

    /// Answers a request with a response of `len_bytes` bytes all of whose parts were put.
    ///
    /// # Errors
    ///
    /// [`ReplyError`].
    ///
    /// # Panics
    ///
    /// If a response of that length takes no parts.
    pub fn reply_stored(&mut self, id: RequestId, len_bytes: usize) -> Result<(), ReplyError> {
        assert!(self.takes_parts(len_bytes), "a large response");
        self.respond(id, &Stored { len_bytes })
    }

    /// Appends a copy of a part of a request that [was left](crate::Server::leave_large) where its client put it,
    /// and may change it at any time.
    ///
    /// # Errors
    ///
    /// [`ReplyError::ClientGone`]: the request was answered, or its client is gone.
    ///
    /// # Panics
    ///
    /// If the part ends behind the longest request.
    pub fn read_left(
        &mut self,
        id: RequestId,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), ReplyError> {
        let session = self.table.session(id.client).ok_or(ReplyError::ClientGone)?;
        let read = session.calls.read_left((id.call, id.serial), part, to);
        read.map_err(|_| ReplyError::ClientGone)
    }

    /// Lends a part of such a request; `None`: it cannot be [read](Self::read_left), or only by a copy.
    ///
    /// # Panics
    ///
    /// As for [`read_left`](Self::read_left).
    pub fn lend_left(&mut self, id: RequestId, part: Range<usize>) -> Option<LentBytes<'_>> {
        let session = self.table.session(id.client)?;
        session.calls.lend_left((id.call, id.serial), part)
    }

    /// Answers a request with an error code of the application.
    ///
    /// # Errors
    ///
    /// [`ReplyError::ClientGone`].
    pub fn reply_error(&mut self, id: RequestId, code: u32) -> Result<(), ReplyError> {
        self.answer(id, ResponseKind::HandlerError, code.to_le_bytes().as_slice())
    }

    /// Answers a request with an error code of the application, and what is to be said about it. What does
    /// not fit a response is cut off.
    ///
    /// # Errors
    ///
    /// [`ReplyError::ClientGone`].
    pub fn reply_error_detail(
        &mut self,
        id: RequestId,
        code: u32,
        detail: &[u8],
    ) -> Result<(), ReplyError> {
        let code = code.to_le_bytes();
        let max_bytes = self.table.config().response_bytes_max as usize;
        let detail = &detail[..detail.len().min(max_bytes.saturating_sub(code.len()))];
        self.answer(id, ResponseKind::HandlerError, [code.as_slice(), detail].as_slice())
    }

    /// The clients that are connected.
    pub fn clients(&self) -> impl Iterator<Item = ClientCensus> {
        let sessions = (0..).zip(&self.table.sessions);
        sessions.filter_map(|(slot, session)| {
            let session = session.as_ref()?;
            let client = ClientId { slot, generation: session.generation };
            let (requests, in_flight) = (session.calls.taken(), session.calls.unanswered());
            let (process, tag) = (session.process, session.tag);
            Some(ClientCensus { client, process, tag, requests, in_flight })
        })
    }

    /// Which process made a request, and its user, as the kernel says; `None` if the client is gone.
    #[must_use]
    pub fn process_of(&self, id: RequestId) -> Option<ClientProcess> {
        let session = self.table.sessions.get(usize::from(id.client.slot))?.as_ref()?;
        (session.generation == id.client.generation).then_some(session.process).flatten()
    }

    /// Tells other threads of the end of the client that made a request; `None`: it is gone.
    #[must_use]
    pub fn lifeline_of(&self, id: RequestId) -> Option<&Lifeline> {
        let session = self.table.sessions.get(usize::from(id.client.slot))?.as_ref()?;
        (session.generation == id.client.generation).then_some(session.lifeline.as_ref()).flatten()
    }

    /// Whether nobody waits for the answer to a request that was taken: its client has given it up, or is gone.
    #[inline]
    #[must_use]
    pub fn is_abandoned(&self, id: RequestId) -> bool {
        let session = self.table.sessions.get(usize::from(id.client.slot));
        let session = session.and_then(Option::as_ref);
        let session = session.filter(|session| session.generation == id.client.generation);
        session.is_none_or(|session| session.calls.is_abandoned(id.call))
    }

    /// The name by which a client was introduced, if it is there.
    #[must_use]
    pub fn tag_of(&self, client: ClientId) -> Option<u64> {
        let session = self.table.sessions.get(usize::from(client.slot))?.as_ref()?;
        (session.generation == client.generation).then_some(session.tag).flatten()
    }

    /// The request of the client that made `id` which has the [entry](crate::CallId::call) `call` and is not
    /// answered.
    #[must_use]
    pub fn pending_of(&self, id: RequestId, call: u16) -> Option<RequestId> {
        let session = self.table.sessions.get(usize::from(id.client.slot))?.as_ref()?;
        let is_its_own = session.generation == id.client.generation;
        let serial = session.calls.pending(call).filter(|_| is_its_own)?;
        Some(RequestId { client: id.client, call, serial })
    }

    /// Answers that there are no resources for the request now, so that the client tries later.
    ///
    /// # Errors
    ///
    /// [`ReplyError::ClientGone`].
    pub fn reply_exhausted(&mut self, id: RequestId) -> Result<(), ReplyError> {
        self.answer(id, ResponseKind::ResourceExhausted, b"".as_slice())
    }

    /// Whether a client is still connected.
    #[must_use]
    pub fn is_connected(&self, client: ClientId) -> bool {
        self.table.generation_of(client.slot) == Some(client.generation)
    }

    #[inline]
    pub(crate) fn respond<M: MessageBytes + ?Sized>(
        &mut self,
        id: RequestId,
        response: &M,
    ) -> Result<(), ReplyError> {
        let max_bytes = self.table.config().response_bytes_max as usize;
        let len_bytes = response.len_bytes();
        if len_bytes > max_bytes {
            self.answer(id, ResponseKind::TooLarge, b"".as_slice())?;
            return Err(ReplyError::TooLarge { len_bytes, max_bytes });
        }
        self.answer(id, ResponseKind::Ok, response)
    }

    #[inline]
    pub(crate) fn answer<M: MessageBytes + ?Sized>(
        &mut self,
        id: RequestId,
        kind: ResponseKind,
        message: &M,
    ) -> Result<(), ReplyError> {
        let session = self.table.session(id.client).ok_or(ReplyError::ClientGone)?;
        match session.calls.answer(id.call, id.serial, kind, message) {
            Ok(()) => {}
            Err(Unanswerable::NotPending) => return Err(ReplyError::ClientGone),
            Err(unanswerable) => return self.answer_without(id, unanswerable, message.len_bytes()),
        }
        session.mark_unannounced(id.client.slot, &mut self.unannounced);
        self.stats.responses += 1;
        Ok(())
    }

    /// The request was served, which [`ResponseKind::ResourceExhausted`] would deny, and its response is not there.
    #[cold]
    pub(crate) fn answer_without(
        &mut self,
        id: RequestId,
        unanswerable: Unanswerable,
        len_bytes: usize,
    ) -> Result<(), ReplyError> {
        self.answer(id, ResponseKind::NotAnswered, b"".as_slice())?;
        Err(match unanswerable {
            Unanswerable::NotPending => ReplyError::ClientGone,
            Unanswerable::NoMemory => ReplyError::NoMemory { len_bytes },
            Unanswerable::GivenUp => ReplyError::GivenUp,
        })
    }

    /// Answers a request that this server took just now, and whose client is therefore there;
    /// `false` if it was answered before, by its id.
    #[inline(always)]
    pub(crate) fn answer_taken<M: MessageBytes + ?Sized>(
        &mut self,
        id: RequestId,
        kind: ResponseKind,
        message: &M,
    ) -> bool {
        let session = self.table.sessions[usize::from(id.client.slot)].as_deref_mut();
        let Some(session) = session else { return false };
        let answered = session.calls.answer(id.call, id.serial, kind, message);
        if let Err(lost @ (Unanswerable::NoMemory | Unanswerable::GivenUp)) = answered {
            return self.answer_without(id, lost, message.len_bytes())
                != Err(ReplyError::ClientGone);
        }
        let is_first = answered.is_ok();
        if is_first {
            session.mark_unannounced(id.client.slot, &mut self.unannounced);
            self.stats.responses += 1;
        }
        is_first
    }

    /// [`answer_taken`](Self::answer_taken) without a response of the application: one copy of its code for
    /// all answers that are rare.
    #[cold]
    pub(crate) fn fail_taken(&mut self, id: RequestId, kind: ResponseKind, message: &[u8]) -> bool {
        self.answer_taken(id, kind, message)
    }

    /// Answers requests whose tokens were dropped.
    pub(crate) fn answer_dropped(&mut self) {
        for id in self.dropped.take() {
            self.stats.unanswered += 1;
            // Clients that are gone need no answer.
            let _ = self.answer(id, ResponseKind::NotAnswered, b"".as_slice());
        }
    }
}
