//! Requests of many clients to one server, with responses.
//!
//! ```text
//! Client 0 ══► requests  ══╗  lanes with ready bits: the server looks at active clients only
//! Client 1 ══► requests  ══╬═► Server
//! Client 0 ◄══ responses ══╝  one lane back to each client
//! ```
//!
//! A client has at most `calls_max` calls in flight, and its response lane has room for as many: a
//! response never fails, in whatever order the server answers. Clients come and go; the lanes of one
//! that left serve the next. A reply that the server still owes to a client that left is dropped when it
//! answers: a lane's *visit* tells two clients of one lane apart.
//!
//! Cost: as two sends of [`crate::mpsc`] per call.

mod client;
mod server;

use ids::slots::Key;
use memory::sync::Arc;

pub use self::{
    client::{Client, Connector, Response},
    server::{Request, Responder, Server},
};
use crate::{
    Unanswered,
    lock::{Mutex, MutexGuard, lock},
    mpsc,
    parker::Waiting,
    spsc::Discipline,
};

/// Bounds of a service.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Clients at a time.
    pub clients_max: usize,
    /// Calls in flight per client.
    pub calls_max: u32,
    /// Replies that the server may have deferred at a time.
    pub tokens_max: u32,
    /// Requests that the server takes from one client before it looks at the next.
    pub budget_items: u32,
    /// The waiting of [`Server::wait`] and [`Client::wait`].
    pub waiting: Waiting,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clients_max: 64,
            calls_max: 64,
            tokens_max: 256,
            budget_items: 32,
            waiting: Waiting::default(),
        }
    }
}

impl Config {
    fn lanes(&self, lanes_max: usize) -> mpsc::Config {
        mpsc::Config {
            lanes_max,
            lane_items: self.calls_max as usize,
            budget_items: self.budget_items,
            waiting: self.waiting,
        }
    }
}

/// A request on its way to the server.
struct Ask<Q> {
    key: Key,
    request: Q,
}

/// A response on its way back.
struct Answer<R> {
    key: Key,
    result: Result<R, Unanswered>,
}

/// Lanes back to clients that the server has not answered yet, by lane of the request.
struct ReplyLanes<R, D: Discipline> {
    outlets: Mutex<Vec<Outlet<R, D>>>,
}

/// `None` once the server has taken it, and on lanes without a client.
type Outlet<R, D> = Option<mpsc::Sender<Answer<R>, D>>;

impl<R, D: Discipline> ReplyLanes<R, D> {
    fn outlets(&self) -> MutexGuard<'_, Vec<Outlet<R, D>>> {
        lock(&self.outlets)
    }
}

/// Creates a service without clients: [`Connector::connect`] makes them.
///
/// # Panics
///
/// If `calls_max` or `budget_items` is zero.
#[must_use]
pub fn service<Q, R, D>(config: Config) -> (Connector<Q, R, D>, Server<Q, R, D>)
where
    Q: Send + 'static,
    R: Send + 'static,
    D: Discipline,
{
    let (asks, inlet, bell) = mpsc::channel_with_bell(config.lanes(config.clients_max));
    let outlets = Mutex::new((0..config.clients_max).map(|_| None).collect());
    let reply_lanes = Arc::new(ReplyLanes { outlets });
    (
        Connector::new(asks, reply_lanes.clone(), config),
        Server::new(inlet, reply_lanes, bell, config),
    )
}
