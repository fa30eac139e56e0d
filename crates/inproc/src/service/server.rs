//! The answering side.

use core::fmt;

use ids::slots::Key;
use memory::sync::Arc;

use super::{Answer, Ask, Config, ReplyLanes};
use crate::{
    Unanswered,
    deferred::{Deferred, ForeignToken, Token},
    mpsc::{Bell, Polled, Receiver, Sender},
    spsc::Discipline,
};

/// The server of all clients. Belongs to one thread at a time.
///
/// Dropping it ends all calls with [`Unanswered::Gone`].
pub struct Server<Q, R, D: Discipline> {
    inlet: Receiver<Ask<Q>, D>,
    reply_lanes: Arc<ReplyLanes<R, D>>,
    /// The queues to each client, by lane.
    clients: Vec<ClientLane<R, D>>,
    deferred: Deferred<Origin>,
}

struct ClientLane<R, D: Discipline> {
    /// The lane back to the client, once it asked.
    outlet: Option<Sender<Answer<R>, D>>,
    /// Clients that have left this client.
    visit: u64,
}

/// The address of an answer.
#[derive(Clone, Copy)]
struct Origin {
    lane: usize,
    visit: u64,
    key: Key,
}

impl<Q, R, D: Discipline> Server<Q, R, D> {
    pub(super) fn new(
        inlet: Receiver<Ask<Q>, D>,
        reply_lanes: Arc<ReplyLanes<R, D>>,
        bell: Bell<Ask<Q>, D>,
        config: Config,
    ) -> Self
    where
        Q: Send + 'static,
    {
        let client = |_| ClientLane { outlet: None, visit: 0 };
        let clients = (0..config.clients_max).map(client).collect();
        Self { inlet, reply_lanes, clients, deferred: Deferred::new(config.tokens_max, bell) }
    }

    /// The next request, from each client in turn. None if there is none.
    #[inline]
    pub fn poll(&mut self) -> Option<Request<'_, Q, R, D>> {
        loop {
            if let Some(origin) = self.deferred.next_broken() {
                self.answer(origin, Err(Unanswered::Dropped));
            }
            match self.inlet.poll() {
                Some(Polled::Item { lane, item: Ask { key, request } }) => {
                    let origin = Some(Origin { lane, visit: self.clients[lane].visit, key });
                    return Some(Request {
                        lane,
                        request,
                        reply: Responder { server: self, origin },
                    });
                }
                Some(Polled::Closed { lane }) => self.vacate(lane),
                None => match self.deferred.next_broken() {
                    Some(origin) => self.answer(origin, Err(Unanswered::Dropped)),
                    None => return None,
                },
            }
        }
    }

    /// Waits until [`poll`](Self::poll) may find something; false if the deadline (in nanoseconds of
    /// `os::clock`) passed or a signal came before.
    pub fn wait(&mut self, deadline_ns: u64) -> bool {
        self.inlet.wait(deadline_ns)
    }

    /// Whether no client and no connector is left. Ask *before* the poll that finds nothing.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.inlet.is_disconnected()
    }

    /// Answers the request that `token` was made of.
    ///
    /// # Errors
    ///
    /// [`ForeignToken`] hands both back if another server made the token: answer there.
    pub fn reply(&mut self, token: Token, response: R) -> Result<(), ForeignToken<R>> {
        match self.deferred.redeem(token) {
            Ok(origin) => {
                self.answer(origin, Ok(response));
                Ok(())
            }
            Err(token) => Err(ForeignToken { token, response }),
        }
    }

    /// Never fails: a client has no more calls in flight than its response lane has slots.
    fn answer(&mut self, to: Origin, result: Result<R, Unanswered>) {
        let client = &mut self.clients[to.lane];
        if client.visit != to.visit {
            return; // that client has left
        }
        if client.outlet.is_none() {
            client.outlet = self.reply_lanes.outlets()[to.lane].take();
        }
        let outlet = client.outlet.as_mut().expect("a client leaves its lane before it asks");
        let sent = outlet.send_anyway(Answer { key: to.key, result });
        assert!(sent.is_ok(), "room for each response is kept");
    }

    fn vacate(&mut self, lane: usize) {
        let client = &mut self.clients[lane];
        client.visit += 1;
        client.outlet = None;
        self.reply_lanes.outlets()[lane] = None;
        self.inlet.reuse(lane);
    }
}

impl<Q, R, D: Discipline> Drop for Server<Q, R, D> {
    fn drop(&mut self) {
        // First no more requests, then the end of all lanes back.
        self.inlet.close();
        self.clients.clear();
        self.reply_lanes.outlets().fill_with(|| None);
    }
}

impl<Q, R, D: Discipline> fmt::Debug for Server<Q, R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("inlet", &self.inlet).finish_non_exhaustive()
    }
}

/// A request that [`Server::poll`] found.
pub struct Request<'s, Q, R, D: Discipline> {
    /// The client's lane, until it has left.
    pub lane: usize,
    /// The body that the client sent.
    pub request: Q,
    /// Answers it, now or later.
    pub reply: Responder<'s, Q, R, D>,
}

impl<Q, R, D: Discipline> fmt::Debug for Request<'_, Q, R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("lane", &self.lane).finish_non_exhaustive()
    }
}

/// Obligation to answer one request. Dropping it answers with [`Unanswered::Dropped`].
#[must_use = "dropping a responder answers its request with an error"]
pub struct Responder<'s, Q, R, D: Discipline> {
    server: &'s mut Server<Q, R, D>,
    /// None once answered or deferred.
    origin: Option<Origin>,
}

impl<Q, R, D: Discipline> Responder<'_, Q, R, D> {
    /// Answers now. Never fails, and never waits.
    #[inline]
    pub fn send(mut self, response: R) {
        if let Some(origin) = self.origin.take() {
            self.server.answer(origin, Ok(response));
        }
    }

    /// Promises to answer later, by [`Server::reply`].
    ///
    /// # Errors
    ///
    /// The responder comes back if the server has `tokens_max` tokens out: answer now, or drop it.
    pub fn defer(mut self) -> Result<Token, Self> {
        match self.origin.and_then(|origin| self.server.deferred.defer(origin).ok()) {
            Some(token) => {
                self.origin = None;
                Ok(token)
            }
            None => Err(self),
        }
    }
}

impl<Q, R, D: Discipline> Drop for Responder<'_, Q, R, D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(origin) = self.origin.take() {
            self.server.answer(origin, Err(Unanswered::Dropped));
        }
    }
}

impl<Q, R, D: Discipline> fmt::Debug for Responder<'_, Q, R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").finish_non_exhaustive()
    }
}
