//! A provider's session: its connection to the daemon, the clients that the daemon introduced, and the requests of both.

mod process;
mod turns;

use std::sync::Arc;

use proto::Status;

use crate::{
    CallError,
    message::DETAIL_BYTES_MAX,
    provider::{
        clock::DaemonClock,
        inbound::Inbound,
        link::{DaemonLink, Registering},
        offer::{Offer, ProvideError, WINDOW},
        outbox::{Answered, Outbox, Work},
        place::ProviderPlace,
        process_clock::ProviderClock,
        reception::Reception,
        request::ProviderStop,
        requests::{Requests, Take},
        verdict::{TOO_LONG, Verdict, too_long},
    },
};

/// Answers to requests of the daemon that were made while these were read.
#[derive(Debug, Default)]
struct Made {
    /// Which request, how it went, and where its answer ends in `bytes`.
    ends: Vec<(Work, Verdict, usize)>,
    bytes: Vec<u8>,
}

/// How a turn of a provider has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// So many requests were taken or answered.
    On(usize),
    /// It is over: the service gave no answer, or was stopped and all that was taken is answered.
    Over,
}

/// A provider, from the time at which its daemon has taken its offer.
#[derive(Debug)]
pub struct ProviderSession<P: ProviderPlace> {
    place: P,
    link: DaemonLink<P::Daemon>,
    /// `None`: the daemon introduces no clients.
    reception: Option<Reception<P>>,
    /// What becomes the reception, if the daemon says that it introduces clients.
    asked: Option<Reception<P>>,
    outbox: Arc<Outbox>,
    /// Number of this connection.
    epoch: u64,
    requests: Requests,
    /// Requests that this process has at a time, if the offer says so.
    offered_window: Option<usize>,
    /// Turns of this thread.
    looks: u32,
    made: Made,
}

impl<P: ProviderPlace> ProviderSession<P> {
    /// The session of an offer that the daemon has taken. It begins by asking for clients: see
    /// [`has_begun`](Self::has_begun).
    ///
    /// # Errors
    ///
    /// [`ProvideError::Os`].
    pub fn new(
        place: P,
        (registered, clock): (Registering<P::Daemon>, DaemonClock),
        offer: &Offer,
    ) -> Result<Self, ProvideError> {
        let outbox = Outbox::open()?;
        let link = registered.into_link(clock, outbox.stop_sign());
        let mut session = Self::of_link(place, outbox, link, offer.window);
        session.begin();
        Ok(session)
    }

    fn of_link(
        place: P,
        outbox: Outbox,
        link: DaemonLink<P::Daemon>,
        offered_window: Option<usize>,
    ) -> Self {
        Self {
            place,
            link,
            epoch: outbox.epoch(),
            outbox: Arc::new(outbox),
            requests: Requests::new(offered_window.unwrap_or(WINDOW)),
            reception: None,
            asked: None,
            offered_window,
            looks: 0,
            made: Made::default(),
        }
    }

    /// There is a connection, by which the service is offered.
    fn begin(&mut self) {
        self.requests.bound_window(self.link.room());
        self.asked = Reception::begin(&mut self.place, &mut self.link);
    }

    /// Whether the daemon has said if it introduces clients: before that, no requests are asked for.
    pub fn has_begun(&mut self) -> bool {
        let Some(mut asked) = self.asked.take() else { return true };
        let Some(received) = self.link.poll_received() else {
            self.asked = Some(asked);
            return false;
        };
        if let Some(rank) = received {
            asked.set_rank(rank);
            self.reception = Some(asked);
            self.bound_clients();
        }
        true
    }

    /// Its connection to the daemon.
    pub fn connection(&self) -> &P::Daemon {
        self.link.connection()
    }

    /// The same, for what a place does between two turns.
    pub fn connection_mut(&mut self) -> &mut P::Daemon {
        self.link.connection_mut()
    }

    /// Its server of introduced clients.
    pub fn clients(&mut self) -> Option<&mut P::Clients> {
        self.reception.as_mut().map(Reception::server)
    }

    /// Requests of the daemon that it has at a time.
    pub fn window(&self) -> usize {
        self.requests.window()
    }

    /// Requests that handlers of other threads or tasks have.
    pub fn unanswered(&self) -> usize {
        self.requests.unanswered()
    }

    fn bound_clients(&mut self) {
        if let Some(reception) = &mut self.reception {
            reception.set_window(self.requests.clients_window());
        }
    }

    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(super) fn stop_handle(&self) -> ProviderStop {
        ProviderStop(Arc::clone(&self.outbox))
    }

    /// For so many threads, unless the offer says how many requests there may be.
    pub(super) fn window_at_least(&mut self, threads: usize) {
        let window = self.offered_window.unwrap_or(threads.max(1));
        self.requests.set_window(window.min(self.link.room()));
        self.bound_clients();
    }

    /// From now on, the thread that reads requests of clients answers them, or leaves that to others. A look of the
    /// former finds more, unless the offer says how many requests there may be.
    pub(super) fn take_clients(&mut self, answers: bool) {
        self.requests.take_more_of_clients(answers && self.offered_window.is_none());
        self.bound_clients();
    }

    /// Asks for as many requests as may come.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone.
    pub fn ask(&mut self) -> Result<(), CallError> {
        self.link.ask(self.requests.window())
    }

    /// Answers are on their way.
    pub(super) fn flush(&mut self) {
        self.link.flush();
    }

    /// A turn of a provider that answers where it reads: see [`Provider::serve`](crate::Provider::serve).
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone.
    pub fn serve_step(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<Turned, CallError> {
        let mut is_over = false;
        let mut made = std::mem::take(&mut self.made);
        let clock = self.place.clock().clone();
        self.read(&mut |work, inbound| {
            if is_over {
                return None;
            }
            let start = made.bytes.len();
            let verdict = if is_late(inbound, &clock) {
                Some(Verdict::TOO_LATE)
            } else {
                let status = serve(inbound, &mut made.bytes);
                status.map(|status| Verdict::of_service(status, inbound.context, &clock))
            };
            match verdict {
                Some(verdict) => made.ends.push((work, verdict, made.bytes.len())),
                None => {
                    made.bytes.truncate(start);
                    is_over = true;
                }
            }
            None
        })?;
        let mut count = made.ends.len();
        self.send_made(&mut made)?;
        if let Some(reception) = self.reception.as_mut().filter(|_| !is_over) {
            count += reception.serve(&mut made.bytes, &mut is_over, &mut serve);
        }
        self.made = made;
        Ok(if is_over { Turned::Over } else { Turned::On(count) })
    }

    /// Reads requests that came, and which of them nobody waits for.
    fn read(&mut self, take: &mut Take<'_>) -> Result<(), CallError> {
        let Self { link, requests, .. } = self;
        link.read(|told| requests.told(told, take))
    }

    fn send_made(&mut self, made: &mut Made) -> Result<(), CallError> {
        let mut start = 0;
        let mut sent = Ok(());
        for (work, verdict, end) in made.ends.drain(..) {
            if sent.is_ok() {
                sent = self.end_request(work, verdict, &made.bytes[start..end]);
            }
            start = end;
        }
        made.bytes.clear();
        self.link.flush();
        sent
    }

    /// Sends answers of other threads; returns how many.
    pub(super) fn send_answers(&mut self) -> Result<usize, CallError> {
        let mut count = 0;
        while count < self.requests.window().max(1)
            && let Some(Answered { work, epoch, verdict, body }) = self.outbox.take_answer()
        {
            count += 1;
            // The daemon that gave the request is gone, and this one has others of the same names.
            if epoch == self.epoch {
                self.end_request(work, verdict, &body)?;
            }
        }
        self.link.flush();
        Ok(count)
    }

    pub(super) fn end_request(
        &mut self,
        work: Work,
        verdict: Verdict,
        body: &[u8],
    ) -> Result<(), CallError> {
        self.requests.end(work);
        match verdict.status {
            Status::Ok if body.len() > self.link.answer_bytes_max() => {
                self.refuse_long(work, body.len())
            }
            Status::Ok => self.answer(work, verdict, body),
            _ if !verdict.is_of_service() => self.answer(work, verdict, &[]),
            _ => self.answer(work, verdict, &body[..body.len().min(DETAIL_BYTES_MAX)]),
        }
    }

    /// Answers a request whose answer is longer than a call carries.
    fn refuse_long(&mut self, work: Work, len_bytes: usize) -> Result<(), CallError> {
        let words = too_long(len_bytes, self.link.answer_bytes_max());
        self.answer(work, TOO_LONG, words.as_bytes())
    }

    /// Answers a request, with a body that fits.
    fn answer(&mut self, work: Work, verdict: Verdict, body: &[u8]) -> Result<(), CallError> {
        match work {
            Work::Daemon(work) => self.link.answer(work, verdict, body),
            Work::Client(id) => {
                if let Some(reception) = &mut self.reception {
                    reception.answer(id, verdict, body);
                }
                Ok(())
            }
        }
    }
}

impl<P: ProviderPlace> Drop for ProviderSession<P> {
    fn drop(&mut self) {
        // Before the daemon learns of the end: clients are told what was not taken.
        self.reception = None;
        self.requests.cancel_all();
    }
}

/// Whether nobody waits for the answer any more when the request is to be handed to the service.
fn is_late(inbound: &Inbound<'_>, clock: &impl ProviderClock) -> bool {
    inbound.context.is_some_and(|context| context.is_late(clock))
}

#[cfg(test)]
mod tests;
