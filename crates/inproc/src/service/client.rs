//! The asking side.

use core::fmt;

use ids::slots::SlotTable;
use memory::sync::Arc;

use super::{Answer, Ask, Config, ReplyLanes};
use crate::{
    Unanswered,
    mpsc::{self, ConnectError, Polled, Receiver, SendError, Sender},
    spsc::Discipline,
};

/// Makes clients. Clone it for each thread that connects.
pub struct Connector<Q, R, D: Discipline> {
    asks: mpsc::Connector<Ask<Q>, D>,
    reply_lanes: Arc<ReplyLanes<R, D>>,
    config: Config,
}

impl<Q, R, D: Discipline> Connector<Q, R, D> {
    pub(super) fn new(
        asks: mpsc::Connector<Ask<Q>, D>,
        reply_lanes: Arc<ReplyLanes<R, D>>,
        config: Config,
    ) -> Self {
        Self { asks, reply_lanes, config }
    }

    /// Takes a free pair of lanes. `U` is what the client wants back with each response.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect<U>(&self) -> Result<Client<Q, R, U, D>, ConnectError> {
        let asks = self.asks.connect()?;
        let (answers, inlet) = mpsc::channel(self.config.lanes(1));
        // Before the first request, which is when the server looks for it.
        self.reply_lanes.outlets()[asks.lane()] = Some(answers.connect()?);
        Ok(Client { asks, inlet, calls: SlotTable::bounded(self.config.calls_max), is_over: false })
    }
}

impl<Q, R, D: Discipline> Clone for Connector<Q, R, D> {
    fn clone(&self) -> Self {
        Self { asks: self.asks.clone(), reply_lanes: self.reply_lanes.clone(), config: self.config }
    }
}

impl<Q, R, D: Discipline> fmt::Debug for Connector<Q, R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The end of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<R, U> {
    /// As passed to [`Client::call`].
    pub user: U,
    /// The response, or why there is none.
    pub result: Result<R, Unanswered>,
}

/// One client. Belongs to one thread at a time; dropping it abandons its calls.
pub struct Client<Q, R, U, D: Discipline> {
    asks: Sender<Ask<Q>, D>,
    inlet: Receiver<Answer<R>, D>,
    calls: SlotTable<U>,
    /// The server is gone, and all its answers are taken.
    is_over: bool,
}

impl<Q, R, U, D: Discipline> Client<Q, R, U, D> {
    /// Sends `request`; `user` comes back with the response.
    ///
    /// # Errors
    ///
    /// [`SendError`] hands both back. It is full while the server has not taken earlier requests, or
    /// `calls_max` calls are in flight: [`poll`](Self::poll), then retry.
    #[inline]
    pub fn call(&mut self, request: Q, user: U) -> Result<(), SendError<(Q, U)>> {
        if self.asks.is_disconnected() {
            return Err(SendError::Disconnected((request, user)));
        }
        if self.asks.free_items(1) == 0 {
            return Err(SendError::Full((request, user)));
        }
        match self.calls.insert(user) {
            Ok(key) => {
                // If the server leaves just now, the end of its lane ends the call.
                let sent = self.asks.send_anyway(Ask { key, request });
                debug_assert!(sent.is_ok(), "a slot is free");
                Ok(())
            }
            Err(user) => Err(SendError::Full((request, user))),
        }
    }

    /// The next response, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<Response<R, U>> {
        loop {
            if self.is_over {
                let (key, _) = self.calls.iter().next()?;
                let user = self.calls.remove(key)?;
                return Some(Response { user, result: Err(Unanswered::Gone) });
            }
            match self.inlet.poll()? {
                Polled::Item { item: Answer { key, result }, .. } => {
                    if let Some(user) = self.calls.remove(key) {
                        return Some(Response { user, result });
                    }
                }
                Polled::Closed { .. } => self.is_over = true,
            }
        }
    }

    /// Waits until [`poll`](Self::poll) may find something; false if the deadline (in nanoseconds of
    /// `os::clock`) passed or a signal came before.
    pub fn wait(&mut self, deadline_ns: u64) -> bool {
        match self.is_over {
            true => !self.calls.is_empty(),
            false => self.inlet.wait(deadline_ns),
        }
    }

    /// Calls whose responses have not been polled yet.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }
}

impl<Q, R, U, D: Discipline> fmt::Debug for Client<Q, R, U, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("lane", &self.asks.lane()).finish_non_exhaustive()
    }
}
