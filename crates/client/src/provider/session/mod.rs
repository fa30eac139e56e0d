//! A provider's session: its connection to the daemon, the clients that the daemon introduced, and the requests of both.

mod turns;

use std::{path::Path, sync::Arc};

use ipc::Filler;
use os::idle::Idle;
use proto::Status;

use crate::{
    CallError, ClientConfig,
    message::DETAIL_BYTES_MAX,
    provider::{
        daemon_search::DaemonSearch,
        in_place::InPlace,
        inbound::Inbound,
        link::DaemonLink,
        offer::{Offer, ProvideError, WINDOW},
        outbox::{Answered, Outbox, Work},
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

/// How a turn of a provider that answers where it reads has ended.
enum Turned {
    /// So many requests were answered.
    On(usize),
    /// The service gave no answer: it is to be withdrawn.
    Over,
}

#[derive(Debug)]
pub(super) struct Session {
    search: DaemonSearch,
    link: DaemonLink,
    /// `None`: the daemon introduces no clients.
    reception: Option<Reception>,
    outbox: Arc<Outbox>,
    /// Number of this connection.
    epoch: u64,
    requests: Requests,
    /// Turns of this thread.
    looks: u32,
    made: Made,
    idle: Idle,
}

impl Session {
    pub(super) fn open(
        path: &Path,
        offer: &Offer,
        config: ClientConfig,
    ) -> Result<Self, ProvideError> {
        let outbox =
            Outbox::new().map_err(|error| ProvideError::Os(std::io::Error::other(error)))?;
        let search = DaemonSearch::new(path, offer, config);
        let mut session = Self {
            link: search.connect(&outbox)?,
            epoch: outbox.epoch(),
            outbox: Arc::new(outbox),
            requests: Requests::new(search.window().unwrap_or(WINDOW)),
            reception: None,
            looks: 0,
            made: Made::default(),
            idle: Idle::default(),
            search,
        };
        session.begin();
        Ok(session)
    }

    /// There is a connection, by which the service is offered.
    fn begin(&mut self) {
        self.requests.bound_window(self.link.room());
        self.reception = Reception::open(&mut self.link);
        self.bound_clients();
    }

    fn bound_clients(&mut self) {
        if let Some(reception) = &mut self.reception {
            reception.set_window(self.requests.clients_window());
        }
    }

    /// The daemon is gone: looks for its successor, and offers the service there, or gives up. `turn` does what else is
    /// to be done meanwhile.
    pub(super) fn recover(
        &mut self,
        error: CallError,
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<(), ProvideError> {
        // What the daemon introduced ends with it. Whoever serves may wait for the handlers before this is dropped.
        self.reception = None;
        self.requests.cancel_all();
        if !self.search.may_find(&error) {
            return Err(error.into());
        }
        self.epoch = self.outbox.begin_epoch();
        let Some(mut link) = self.search.find(error, &self.outbox, turn)? else { return Ok(()) };
        if self.link.is_watching() {
            link.begin_watching();
        }
        self.link = link;
        self.begin();
        self.ask()
    }

    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(super) fn stop_handle(&self) -> ProviderStop {
        ProviderStop(Arc::clone(&self.outbox))
    }

    /// For so many threads, unless the offer says how many requests there may be.
    pub(super) fn window_at_least(&mut self, threads: usize) {
        let window = self.search.window().unwrap_or(threads.max(1));
        self.requests.set_window(window.min(self.link.room()));
        self.bound_clients();
    }

    /// From now on, the thread that reads requests of clients answers them, or leaves that to others. A look of the
    /// former finds more, unless the offer says how many requests there may be.
    pub(super) fn take_clients(&mut self, answers: bool) {
        self.requests.take_more_of_clients(answers && self.search.window().is_none());
        self.bound_clients();
    }

    /// Asks for as many requests as may come.
    fn ask(&mut self) -> Result<(), ProvideError> {
        Ok(self.link.ask(self.requests.window())?)
    }

    /// Answers are on their way.
    pub(super) fn flush(&mut self) {
        self.link.flush();
    }

    /// Repeats a turn until the provider was stopped, or it says so.
    fn repeat(
        &mut self,
        mut turn: impl FnMut(&mut Self) -> Result<Turned, CallError>,
    ) -> Result<(), ProvideError> {
        self.ask()?;
        while !self.outbox.is_stopped() {
            match turn(self) {
                Err(error) => self.recover(error, &mut || 0)?,
                Ok(Turned::Over) => break,
                Ok(Turned::On(count)) => self.rest(count > 0),
            }
        }
        self.hand_over();
        Ok(())
    }

    /// See [`Provider::serve`](crate::Provider::serve).
    pub(super) fn serve(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<(), ProvideError> {
        self.repeat(|session| {
            let mut is_over = false;
            let mut made = std::mem::take(&mut session.made);
            session.read(&mut |work, inbound| {
                if is_over {
                    return None;
                }
                let start = made.bytes.len();
                let verdict = if is_late(inbound) {
                    Some(Verdict::TOO_LATE)
                } else {
                    let status = serve(inbound, &mut made.bytes);
                    status.map(|status| Verdict::of_service(status, inbound.context))
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
            session.send_made(&mut made)?;
            if let Some(reception) = session.reception.as_mut().filter(|_| !is_over) {
                count += reception.serve(&mut made.bytes, &mut is_over, &mut serve);
            }
            session.made = made;
            Ok(if is_over { Turned::Over } else { Turned::On(count) })
        })
    }

    /// See [`Provider::serve_in_place`](crate::Provider::serve_in_place).
    pub(super) fn serve_in_place<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>) -> Option<InPlace<F>>,
    ) -> Result<(), ProvideError> {
        // As many as a poll finds, at most.
        let mut made = Vec::with_capacity(self.requests.window());
        self.repeat(|session| {
            // Answers to a daemon that is gone are dropped.
            made.clear();
            let mut is_over = false;
            session.read(&mut |work, inbound| {
                if is_over {
                    return None;
                }
                if is_late(inbound) {
                    made.push((work, Verdict::TOO_LATE, None));
                } else if let Some(answer) = serve(inbound) {
                    let verdict = Verdict::of_service(answer.status, inbound.context);
                    made.push((work, verdict, Some(answer)));
                } else {
                    is_over = true;
                }
                None
            })?;
            if let Some(reception) = session.reception.as_mut().filter(|_| !is_over) {
                reception.look(session.requests.window(), |id, inbound| {
                    let Some(answer) = serve(inbound) else {
                        is_over = true;
                        return false;
                    };
                    let verdict = Verdict::of_service(answer.status, inbound.context);
                    made.push((Work::Client(id), verdict, Some(answer)));
                    true
                });
            }
            let count = made.len();
            for (work, verdict, answer) in made.drain(..) {
                match answer {
                    Some(answer) => session.end_in_place(work, verdict, answer)?,
                    None => session.answer(work, verdict, &[])?,
                }
            }
            session.link.flush();
            Ok(if is_over { Turned::Over } else { Turned::On(count) })
        })
    }

    /// Answers a request in place, and asks for the next.
    fn end_in_place<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        work: Work,
        verdict: Verdict,
        answer: InPlace<F>,
    ) -> Result<(), CallError> {
        let InPlace { len_bytes, fill, detail, .. } = answer;
        let Some(fill) = fill else {
            return self.end_request(work, verdict, &detail);
        };
        if len_bytes > self.link.answer_bytes_max() {
            return self.refuse_long(work, len_bytes);
        }
        let is_filled = match (work, &mut self.reception) {
            (Work::Daemon(number), _) => {
                self.link.answer_in_place(number, verdict, len_bytes, fill)?
            }
            (Work::Client(id), Some(reception)) => reception.answer_in_place(id, len_bytes, fill),
            (Work::Client(_), None) => true,
        };
        if is_filled {
            return Ok(());
        }
        let verdict = Verdict::of_service(Status::Internal, None);
        self.answer(work, verdict, b"the answer was given up while it was filled")
    }

    /// Reads requests that came, and which of them nobody waits for.
    fn read(&mut self, take: &mut Take<'_>) -> Result<(), CallError> {
        let Self { link, requests, .. } = self;
        link.read(|told| requests.told(told, take))
    }

    /// Waits until the daemon has read the last answers.
    fn hand_over(&mut self) {
        self.tell_counts(true);
        self.reception = None;
        self.link.hand_over();
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

impl Drop for Session {
    fn drop(&mut self) {
        // Before the daemon learns of the end: clients are told what was not taken.
        self.reception = None;
        self.requests.cancel_all();
    }
}

/// Whether nobody waits for the answer any more when the request is to be handed to the service.
fn is_late(inbound: &Inbound<'_>) -> bool {
    inbound.context.is_some_and(|context| context.time_left().is_zero())
}

#[cfg(test)]
mod tests;
