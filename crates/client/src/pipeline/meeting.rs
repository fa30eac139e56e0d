//! The sessions of a pipeline with providers of its node: how they begin, are polled, and end.

use std::os::fd::AsFd as _;

use zerocopy::IntoBytes as _;

use crate::{
    CallError, HERE, Status, To, call_head,
    direct::{CallWay, News, direct_error, is_session_over, over_error},
    message::{DAEMON, method},
    patience,
    pipeline::{GivenUp, Ipc, Pipeline, Sent, TO_DAEMON},
};

/// How a message about introductions ended.
pub(super) struct Met {
    place: usize,
    is_asking: bool,
    outcome: Result<(), CallError>,
}

/// A call whose session was over, and what ended that.
type Over<C> = (C, ipc::CallError);

impl<C> Pipeline<C> {
    /// Reports calls whose session was over before they were answered.
    #[inline]
    pub(super) fn report_over(&mut self, over: Vec<Over<C>>, done: impl FnMut(C, CallError)) {
        if !over.is_empty() {
            self.report_some_over(over, done);
        }
    }

    #[cold]
    fn report_some_over(&mut self, over: Vec<Over<C>>, mut done: impl FnMut(C, CallError)) {
        self.ipc.look();
        let daemon = self.ipc.gone();
        over.into_iter().for_each(|(context, error)| done(context, over_error(error, daemon)));
    }

    /// The place of the session for a call, if it is to go without the daemon.
    #[inline]
    pub(super) fn session_for(&mut self, to: To) -> Option<usize> {
        let way = self.direct.way(to);
        if self.direct.has_news() {
            self.take_news();
        }
        match way {
            CallWay::Daemon => None,
            CallWay::Session(at) => Some(at),
            CallWay::Meet(place) => {
                self.ask_to_meet(place, Sent::MayMeet(place));
                None
            }
        }
    }

    /// Asks the daemon about an introduction.
    #[cold]
    fn ask_to_meet(&mut self, place: usize, sent: Sent<C>) {
        let of_method = match sent {
            Sent::MayMeet(_) => method::MAY_MEET,
            _ => method::MEET,
        };
        let head = To { rank: HERE, service: DAEMON, method: of_method };
        let head = call_head(head, self.config.timeout, 0, 0);
        let wanted = self.direct.wanted(place);
        let parts = [head.as_bytes(), wanted.as_bytes()];
        // A call of the program has the last place.
        let refused = ipc::CallError::Full { depth: self.ipc.depth() };
        let submitted = match self.ipc.free() {
            0 | 1 => Err(refused),
            _ => self
                .ipc
                .submit_parts_within(&parts, patience(self.config.timeout), sent)
                .map_err(|refused| refused.error),
        };
        match submitted {
            Ok(_) => self.meeting += 1,
            Err(error) => self.direct.asked(place, Err(CallError::not_sent(error))),
        }
    }

    /// The daemon has said something about an introduction.
    #[cold]
    pub(super) fn met(&mut self, Met { place, is_asking, outcome }: Met) {
        self.meeting = self.meeting.saturating_sub(1);
        match outcome {
            Err(error) => {
                if !is_asking {
                    self.newcomer = None;
                }
                self.direct.asked(place, Err(error));
            }
            // The daemon takes the next descriptor for a region; or there is no room to say what it is.
            Ok(()) if is_asking && (self.is_registering || self.ipc.free() < 2) => {
                let later = CallError::Refused(Status::ResourceExhausted);
                self.direct.asked(place, Err(later));
            }
            Ok(()) if is_asking => match self.send_newcomer() {
                Ok(()) => self.ask_to_meet(place, Sent::Meet(place)),
                Err(error) => self.direct.asked(place, Err(error)),
            },
            Ok(()) => {
                let gone = CallError::Refused(Status::Unavailable);
                self.direct.asked(place, self.newcomer.take().ok_or(gone));
            }
        }
    }

    fn send_newcomer(&mut self) -> Result<(), CallError> {
        // One at a time.
        if self.newcomer.is_some() {
            return Err(CallError::Refused(Status::ResourceExhausted));
        }
        let made = ipc::Newcomer::new().map_err(|_| CallError::Refused(Status::ResourceExhausted));
        let (newcomer, socket) = made?;
        self.ipc.send_descriptor(socket.as_fd())?;
        self.newcomer = Some(newcomer);
        Ok(())
    }

    /// Polls the sessions, and does what else is to be done about them.
    #[inline]
    pub(super) fn poll_sessions(
        &mut self,
        met: Vec<Met>,
        mut poll: impl FnMut(&mut Ipc<C>) -> usize,
    ) -> usize {
        for met in met {
            self.met(met);
        }
        if self.direct.is_empty() {
            return 0;
        }
        if self.ipc.take_other() {
            self.direct.sessions().for_each(ipc::PipelinedClient::look);
        }
        let (mut ended, mut is_gone) = (0, false);
        for session in self.direct.sessions() {
            if session.free() < session.depth() {
                ended += poll(session);
            }
            is_gone |= session.gone().is_some();
        }
        if ended > 0 {
            self.ipc.reset_idle();
        }
        if is_gone {
            self.direct.close_gone();
            self.take_news();
        }
        ended
    }

    /// The descriptor is to be readable when a session has something to say.
    #[cold]
    fn take_news(&mut self) {
        for news in self.direct.take_news() {
            match news {
                News::Over(session) => self.ipc.unwatch(&session),
                News::Opened(at) => {
                    let watched = self.direct.session(at).map(|session| self.ipc.watch(session));
                    if watched.is_some_and(|watched| watched.is_err()) {
                        // It would wake nobody that sleeps.
                        self.direct.close(at);
                    }
                }
            }
        }
    }
}

/// Ends a message to the daemon; returns 1 if it was no call of the program, else 0. A body is a copy, or lent.
#[inline]
pub(super) fn end_by_daemon<C, B>(
    sent: Sent<C>,
    outcome: Result<B, ipc::Failed<'_>>,
    given_up: &mut GivenUp,
    met: &mut Vec<Met>,
    done: &mut impl FnMut(C, Result<B, CallError>),
) -> usize {
    match sent {
        Sent::Call(to, context) => {
            done(context, outcome.map_err(|failed| CallError::of(failed, to)));
            0
        }
        sent => {
            note(given_up, met, sent, outcome.map(drop));
            1
        }
    }
}

/// Ends a call of a session. If the session is over, the call is noted in `over`.
#[inline]
pub(super) fn end_in_session<C, B>(
    sent: Sent<C>,
    outcome: Result<B, ipc::Failed<'_>>,
    over: &mut Vec<Over<C>>,
    done: &mut impl FnMut(C, Result<B, CallError>),
) {
    match (sent, outcome) {
        (Sent::Call(_, context), Err(failed)) if is_session_over(failed.error) => {
            over.push((context, failed.error));
        }
        (Sent::Call(to, context), outcome) => {
            done(context, outcome.map_err(|failed| direct_error(failed, to)));
        }
        _ => {}
    }
}

/// Notes how a message ended that is no call.
#[cold]
fn note<C>(
    given_up: &mut GivenUp,
    met: &mut Vec<Met>,
    sent: Sent<C>,
    outcome: Result<(), ipc::Failed<'_>>,
) {
    let (place, is_asking) = match sent {
        Sent::MayMeet(place) => (place, true),
        Sent::Meet(place) => (place, false),
        _ => return given_up.told(&outcome),
    };
    let outcome = outcome.map_err(|failed| CallError::of(failed, TO_DAEMON));
    met.push(Met { place, is_asking, outcome });
}
