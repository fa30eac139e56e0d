//! The session of a provider that is a process: its daemon is waited for, looked for again, and left.

use std::{os::fd::AsFd, path::Path};

use ipc::Filler;
use os::idle::IdleStep;
use proto::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    CallError, ClientConfig,
    provider::{
        daemon_search::DaemonSearch,
        in_place::InPlace,
        inbound::Inbound,
        offer::{Offer, ProvideError},
        os_place::OsPlace,
        outbox::{Outbox, Work},
        place::ProviderPlace as _,
        request::Request,
        session::{ProviderSession, Turned, is_late},
        verdict::Verdict,
    },
};

impl ProviderSession<OsPlace> {
    pub(in crate::provider) fn open(
        path: &Path,
        offer: &Offer,
        config: ClientConfig,
    ) -> Result<Self, ProvideError> {
        let outbox = Outbox::open()?;
        let search = DaemonSearch::new(path, offer, config);
        let link = search.connect(&outbox)?;
        let mut session = Self::of_link(OsPlace::new(search), outbox, link, offer.window);
        session.begin_here();
        Ok(session)
    }

    /// There is a connection, by which the service is offered: waits until the daemon has said whether it introduces
    /// clients.
    fn begin_here(&mut self) {
        self.begin();
        while !self.has_begun() {
            self.link.rest();
        }
    }

    /// The daemon is gone: looks for its successor, and offers the service there, or gives up. `turn` does what else is
    /// to be done meanwhile.
    pub(in crate::provider) fn recover(
        &mut self,
        error: CallError,
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<(), ProvideError> {
        // What the daemon introduced ends with it. Whoever serves may wait for the handlers before this is dropped.
        self.reception = None;
        self.requests.cancel_all();
        if !self.place.search.may_find(&error) {
            return Err(error.into());
        }
        self.epoch = self.outbox.begin_epoch();
        let Some(mut link) = self.place.search.find(error, &self.outbox, turn)? else {
            return Ok(());
        };
        if self.link.is_watching() {
            link.begin_watching();
        }
        self.link = link;
        self.begin_here();
        Ok(self.ask()?)
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
    pub(in crate::provider) fn serve(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<(), ProvideError> {
        self.repeat(|session| session.serve_step(&mut serve))
    }

    /// See [`Provider::serve_in_place`](crate::Provider::serve_in_place).
    pub(in crate::provider) fn serve_in_place<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>) -> Option<InPlace<F>>,
    ) -> Result<(), ProvideError> {
        // As many as a poll finds, at most.
        let mut made = Vec::with_capacity(self.requests.window());
        let clock = *self.place.clock();
        self.repeat(|session| {
            // Answers to a daemon that is gone are dropped.
            made.clear();
            let mut is_over = false;
            session.read(&mut |work, inbound| {
                if is_over {
                    return None;
                }
                if is_late(inbound, &clock) {
                    made.push((work, Verdict::TOO_LATE, None));
                } else if let Some(answer) = serve(inbound) {
                    let verdict = Verdict::of_service(answer.status, inbound.context, &clock);
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
                    let verdict = Verdict::of_service(answer.status, inbound.context, &clock);
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
        let verdict = Verdict::of_service(Status::Internal, None, self.place.clock());
        self.answer(work, verdict, b"the answer was given up while it was filled")
    }

    /// See [`Provider::run`](crate::Provider::run); `turn` does what else is to be done, and says how much.
    pub(in crate::provider) fn run(
        &mut self,
        take: &mut dyn FnMut(Request),
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<(), ProvideError> {
        self.begin_run()?;
        let clock = *self.place.clock();
        let take = &mut |request: Request| {
            if let Some(request) = request.end_if_cancelled(&clock) {
                take(request);
            }
        };
        while !self.run_turn(take, turn)? {}
        Ok(())
    }

    /// A turn of a provider whose requests others answer, and a rest. Returns whether it is over.
    pub(in crate::provider) fn run_turn(
        &mut self,
        take: &mut dyn FnMut(Request),
        turn: &mut dyn FnMut() -> usize,
    ) -> Result<bool, ProvideError> {
        match self.run_step(take, turn) {
            Ok(Turned::Over) => {
                self.hand_over();
                self.requests.cancel_all();
                return Ok(true);
            }
            Ok(Turned::On(count)) => self.rest(count > 0),
            Err(error) => self.recover(error, turn)?,
        }
        Ok(false)
    }

    /// Waits until the daemon has read the last answers.
    fn hand_over(&mut self) {
        self.tell(true);
        self.reception = None;
        self.link.hand_over();
    }

    /// After a turn: looks again at once if it did something, else spins, yields or sleeps as configured.
    pub(in crate::provider) fn rest(&mut self, has_worked: bool) {
        if has_worked {
            self.place.idle.reset();
            return self.tell_counts();
        }
        let wait = self.place.search.wait();
        if let IdleStep::Sleep = self.place.idle.step(wait) {
            if let Some(sleep_max) = self.doze() {
                let timeout = Timespec {
                    tv_sec: sleep_max.as_secs().cast_signed(),
                    tv_nsec: sleep_max.subsec_nanos().into(),
                };
                let Self { outbox, link, reception, .. } = self;
                let ours: [&dyn AsFd; 2] = [link, outbox.event()];
                let clients = reception.as_ref().map(|reception| reception as &dyn AsFd);
                let fds = ours.into_iter().chain(clients);
                let mut fds: Vec<_> =
                    fds.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
                // An error is a signal: the loop looks whether it should stop.
                let _ = poll(&mut fds, Some(&timeout));
            }
            self.awake();
        }
    }
}
