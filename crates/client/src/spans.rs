//! Spans of `tracing`, which bear the number of the trace (feature `tracing`): `call` around each call of a
//! [`Client`](crate::Client), and `request` for handlers. Typed services enter the latter by themselves.

#[cfg(feature = "tracing")]
use tracing::{Instrument as _, Span, debug_span, field, info_span};

#[cfg(feature = "tracing")]
use crate::Context;
use crate::{Inbound, RequestContext, To};

#[cfg(feature = "tracing")]
fn request_span(rank: u32, method: u16, context: Option<Context>) -> Span {
    let span = info_span!(
        "request",
        rank,
        method,
        trace = field::Empty,
        uid = field::Empty,
        pid = field::Empty
    );
    if let Some(Context { uid, pid, trace, .. }) = context {
        span.record("trace", (trace != 0).then_some(trace));
        span.record("uid", uid);
        span.record("pid", pid);
    }
    span
}

impl Inbound<'_> {
    /// A span of this request, with rank, method and, where known, trace, user and process of its caller.
    #[cfg(feature = "tracing")]
    #[must_use]
    pub fn span(&self) -> Span {
        request_span(self.rank, self.method, self.context)
    }

    /// Runs a handler in the span of its request, if there are spans.
    #[doc(hidden)]
    pub fn in_span<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return self.span().in_scope(run);
        #[cfg(not(feature = "tracing"))]
        run()
    }
}

impl RequestContext {
    /// A span of the request, as of [`Inbound::span`].
    #[cfg(feature = "tracing")]
    #[must_use]
    pub fn span(&self) -> Span {
        request_span(self.rank, self.method, Some(self.caller))
    }

    /// A handler that is polled in the span of its request, if there are spans.
    #[doc(hidden)]
    pub fn in_span<F: Future>(&self, handler: F) -> impl Future<Output = F::Output> + use<F> {
        #[cfg(feature = "tracing")]
        return handler.instrument(self.span());
        #[cfg(not(feature = "tracing"))]
        handler
    }
}

/// Makes a call in a span of its own, if there are spans.
#[inline]
pub(crate) fn in_call<T>(to: To, trace: u64, call: impl FnOnce() -> T) -> T {
    #[cfg(feature = "tracing")]
    {
        let To { rank, service, method } = to;
        let trace = (trace != 0).then_some(trace);
        debug_span!("call", rank, service, method, trace).in_scope(call)
    }
    #[cfg(not(feature = "tracing"))]
    {
        let _ = (to, trace);
        call()
    }
}
