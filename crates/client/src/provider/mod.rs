//! A process that answers requests for a service of its node.
//!
//! | | handlers run | for |
//! |---|---|---|
//! | [`Provider::serve`] | on this thread, one after the other | quick answers |
//! | [`Provider::serve_in_place`] | the same; answers are put where the daemon reads them | answers in memory |
//! | [`Provider::serve_on`] | on several threads | handlers that compute or wait |
//! | [`Provider::run`] | wherever the [`Request`] goes; it is answered later, in any order | own queues |
//! | [`Provider::run_async`] | as futures on this thread | handlers that await |

mod asks;
mod cancellation;
mod clock;
mod daemon_search;
mod direct_counts;
mod in_place;
mod inbound;
mod link;
mod offer;
mod os_place;
mod outbox;
mod place;
mod process_clock;
mod reception;
mod request;
mod requests;
mod running;
mod session;
mod stop_sign;
mod tasks;
mod thread_queue;
mod verdict;

use std::{path::Path, sync::Arc};

use ipc::Filler;
use proto::Status;

pub use cancellation::Cancellation;
pub use in_place::InPlace;
pub use inbound::{Context, Inbound};
pub use offer::{Offer, OfferedService, ProvideError};
pub use request::{ProviderStop, Request, RequestContext};

use crate::ClientConfig;
pub use asks::Asks;
pub use clock::DaemonClock;
pub use link::Registering;
pub(crate) use os_place::OsPlace;
pub use place::{DaemonConnection, IntroducedClients, ProviderPlace};
pub use process_clock::ProviderClock;
pub use session::{ProviderSession, Turned};

/// Provides one service.
///
/// The daemon notices when this process dies; requests that it was given end with
/// [`Status::Unavailable`], and those that wait go to another process that offers the service, if there is
/// one.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{ClientConfig, Provider, Runtime, Status};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = Runtime::from_env()?.socket();
/// let provider = Provider::register(&socket, 17, ClientConfig::default())?;
/// provider.serve(|request, answer| {
///     answer.extend_from_slice(request.body);
///     Some(Status::Ok)
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Provider {
    session: ProviderSession<OsPlace>,
}

impl Provider {
    /// Offers `service` at the daemon whose socket is at `path`, alone.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn register(path: &Path, service: u16, config: ClientConfig) -> Result<Self, ProvideError> {
        Self::offer(path, &Offer::new(service), config)
    }

    /// Offers a service at the daemon whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn offer(path: &Path, offer: &Offer, config: ClientConfig) -> Result<Self, ProvideError> {
        Ok(Self { session: ProviderSession::open(path, offer, config)? })
    }

    /// Ends what serves, from another thread or a handler: requests that were taken are answered, others end
    /// with [`Status::Unavailable`].
    #[must_use]
    pub fn stop_handle(&self) -> ProviderStop {
        self.session.stop_handle()
    }

    /// Answers requests on this thread, one after the other, until `serve` gives no answer: that request ends
    /// with [`Status::Unavailable`], and the service is withdrawn. The bytes that `serve` writes are the answer, or, if
    /// the status is no success, its detail. An answer that is longer than the daemon
    /// takes ends its request with [`Status::OutOfRange`]. A request whose deadline has passed is not served.
    /// This thread reads nothing while `serve` runs: [`Inbound::is_cancelled`] tells of the deadline, and of the end of the
    /// session with the daemon or with a caller that calls without it.
    ///
    /// # Errors
    ///
    /// [`ProvideError::Call`] when the daemon is gone, and is not looked for or not found.
    pub fn serve(
        mut self,
        serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<(), ProvideError> {
        self.session.serve(serve)
    }

    /// Like [`serve`](Self::serve), with answers that are put where the daemon reads them, so that they need no
    /// memory of their own. The requests that one look finds are given to `serve` one after the other, and then
    /// their answers are put in the same order: what an answer is made of must not change meanwhile, or be
    /// shared ([`Rc`](std::rc::Rc)) by what `serve` returns. If an answer panics while it is put, so does this,
    /// and the daemon ends unanswered requests with [`Status::Unavailable`].
    ///
    /// ```no_run
    /// # use std::{collections::HashMap, rc::Rc};
    /// # use copyrpc_client::{Filler, InPlace, Provider, ProvideError, Status};
    /// # fn serve(provider: Provider, values: HashMap<Vec<u8>, Rc<[u8]>>) -> Result<(), ProvideError> {
    /// provider.serve_in_place(|request| {
    ///     let value = values.get(request.body).cloned();
    ///     Some(match &value {
    ///         None => InPlace::refused(Status::NotFound),
    ///         Some(found) => InPlace::of(found.len(), move |to: &mut Filler<'_>| {
    ///             // The room is as long as was said.
    ///             let _ = to.put(&value.unwrap_or_default());
    ///         }),
    ///     })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`serve`](Self::serve).
    pub fn serve_in_place<F: FnOnce(&mut Filler<'_>)>(
        mut self,
        serve: impl FnMut(&Inbound<'_>) -> Option<InPlace<F>>,
    ) -> Result<(), ProvideError> {
        self.session.serve_in_place(serve)
    }

    /// Answers requests on `threads` threads, of which this is none: a slow request keeps no other waiting
    /// while a thread is idle, but for a few milliseconds where quick ones came before it. One thread answers
    /// what it reads while handlers are quick, so these cost what they cost with [`serve`](Self::serve). A handler that panics answers [`Status::Internal`]. Ends when the provider is
    /// [stopped](Self::stop_handle).
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn serve_on(
        self,
        threads: usize,
        serve: impl Fn(&Inbound<'_>, &mut Vec<u8>) -> Status + Sync,
    ) -> Result<(), ProvideError> {
        running::serve_on(self.session, threads, &serve)
    }

    /// Hands each request to `take`, which may answer it at once or give it away: to a queue, another
    /// thread, a task of an executor. Ends when the provider is [stopped](Self::stop_handle).
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn run(mut self, mut take: impl FnMut(Request)) -> Result<(), ProvideError> {
        self.session.run(&mut take, &mut || 0)
    }

    /// Hands each request to `start`, and runs the futures that it makes on this thread. They answer
    /// requests by [`Request::reply`]; one that ends without does as [`Request`] says. Ends when the provider
    /// is [stopped](Self::stop_handle); futures that have not ended by then are dropped.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn run_async<F: Future<Output = ()>>(
        mut self,
        mut start: impl FnMut(Request) -> F,
    ) -> Result<(), ProvideError> {
        let tasks = tasks::Tasks::new(Arc::clone(self.session.outbox()));
        self.session.run(&mut |request| tasks.start(start(request)), &mut || tasks.poll())
    }
}
