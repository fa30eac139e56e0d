//! A request as one value: what the [door](crate::admission) judges, and what is handed on behind it.

use client::{
    Context, Inbound, LentBytes,
    bulk::message::BODY_BYTES_MAX,
    message::{CALL_HEAD_BYTES, CallExtra, CallHead, CallerHead, HAS_EXTRA, Known},
};
use zerocopy::FromBytes as _;

use crate::{
    client_port::ClientPort, request_head::RequestHead, source::Source, thread_messages::AskedBy,
};

/// The address of the answer to a request.
pub(crate) enum Caller<P: ClientPort> {
    /// A client of this thread.
    Client(P::ReplyTo),
    /// Another thread, which names the request so.
    Thread(inproc::Token, AskedBy),
    /// Another node.
    Peer(rpc::Token),
}

/// A request for a service of this node or of another one.
pub(crate) struct Request<'a, P: ClientPort> {
    /// The address of the answer.
    pub(crate) reply_to: Caller<P>,
    pub(crate) head: RequestHead,
    pub(crate) body: Body<'a, P>,
}

/// The body of a request, by what carries it.
pub(crate) enum Body<'a, P: ClientPort> {
    /// A private copy.
    Private(&'a [u8]),
    /// Memory of a client of this node, which may change it meanwhile.
    Lent(LentBytes<'a>),
    /// It goes on in pieces: from where its client put it, or from the private memory in which it came.
    Long(Source<P>),
    /// What comes beside slices of memory that the call lends.
    WithSlices(&'a [u8]),
}

impl<'a, P: ClientPort> Body<'a, P> {
    /// The bytes, if they are a private copy.
    #[inline]
    pub(crate) fn private(&self) -> &'a [u8] {
        match self {
            Self::Private(bytes) | Self::WithSlices(bytes) => bytes,
            Self::Lent(_) | Self::Long(_) => &[],
        }
    }

    /// Length of the longest body that is carried like this, where bodies have at most so many bytes.
    #[inline]
    pub(crate) fn longest(&self, body_bytes_max: usize) -> usize {
        match self {
            Self::Private(_) | Self::Lent(_) | Self::Long(_) => body_bytes_max,
            Self::WithSlices(_) => body_bytes_max.min(BODY_BYTES_MAX),
        }
    }

    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Private(bytes) | Self::WithSlices(bytes) => bytes.len(),
            Self::Lent(bytes) => bytes.len(),
            Self::Long(source) => source.len_bytes(),
        }
    }
}

impl<'a, P: ClientPort> Request<'a, P> {
    /// The request of a client with a private copy of its body, to be kept.
    pub(crate) fn of_client(&self, reply_to: P::ReplyTo) -> Self {
        let body = Body::Private(self.body.private());
        Self { reply_to: Caller::Client(reply_to), head: self.head, body }
    }
}

impl<P: ClientPort> Request<'_, P> {
    /// The request with an empty body, for when that is somewhere else.
    pub(crate) fn without_body(self) -> Request<'static, P> {
        let Self { reply_to, head, .. } = self;
        Request { reply_to, head, body: Body::Private(&[]) }
    }

    /// What a function is given, which gets `body` as a whole.
    #[inline]
    pub(crate) fn inbound<'b>(&self, body: &'b [u8]) -> Inbound<'b> {
        let RequestHead { from_rank: rank, method, .. } = self.head;
        let context = context_of(&self.head.caller);
        Inbound { rank, method, body, context, cancellation: None }
    }
}

/// The heads of a client's request.
#[derive(Clone, Copy)]
pub(crate) struct CallHeads {
    pub(crate) head: CallHead,
    pub(crate) trace: u64,
    pub(crate) len_bytes: usize,
}

impl CallHeads {
    /// Reads the heads of a message; `None`: it is too short.
    #[inline]
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let (head, rest) = CallHead::read_from_prefix(message).ok()?;
        if head.response_bytes.get() & HAS_EXTRA != 0 {
            return Self::read_extra(head, rest);
        }
        Some(Self { head, trace: 0, len_bytes: CALL_HEAD_BYTES })
    }

    /// The caller has a trace.
    #[cold]
    fn read_extra(mut head: CallHead, rest: &[u8]) -> Option<Self> {
        let (extra, _) = CallExtra::read_from_prefix(rest).ok()?;
        head.response_bytes = (head.response_bytes.get() & !HAS_EXTRA).into();
        let len_bytes = CALL_HEAD_BYTES + size_of::<CallExtra>();
        Some(Self { head, trace: extra.trace.get(), len_bytes })
    }
}

/// A client as the kernel knows it, and its trace.
#[inline]
pub(crate) fn caller_head(process: Option<ipc::ClientProcess>, trace: u64) -> CallerHead {
    match process {
        Some(process) => CallerHead::of(process.uid, process.pid, trace),
        None => CallerHead { trace: trace.into(), ..CallerHead::default() },
    }
}

/// The process of a caller; `None` if that is not known.
pub(crate) fn process_of(caller: &CallerHead) -> Option<ipc::ClientProcess> {
    let Known { uid, pid } = caller.known();
    // A process that the daemon of its node does not see has a user all the same.
    uid.map(|uid| ipc::ClientProcess { uid, pid: pid.unwrap_or(0) })
}

/// What a function of this program is told of a caller.
#[inline]
fn context_of(caller: &CallerHead) -> Option<Context> {
    if caller.pid.get() == 0 && caller.trace.get() == 0 {
        return None;
    }
    let Known { uid, pid } = caller.known();
    Some(Context { deadline_ns: u64::MAX, uid, pid, trace: caller.trace.get() })
}
