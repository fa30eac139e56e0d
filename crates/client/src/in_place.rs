//! Calls whose body is put, and whose answer is read, where the daemon reads and puts them.

use std::time::Duration;

use ipc::{Failed, Filled, Filler, LentBytes};
use zerocopy::IntoBytes as _;

use crate::{
    CallError, Client, To, call_head,
    direct::{CallWay, DirectHeads, direct_error, is_session_over},
    message::CallExtra,
    patience,
};

impl Client {
    /// Like [`call`](Self::call), with an answer that is lent where the daemon put it, until the next call:
    /// a program that copies it elsewhere makes one copy of it instead of two.
    ///
    /// The call is made once, whatever [`ClientConfig::retry`](crate::ClientConfig::retry) says.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_lent(&mut self, to: To, body: &[u8]) -> Result<LentBytes<'_>, CallError> {
        self.call_behind(to, body, (0, |_: &mut Filler<'_>| {}), self.config.timeout)
    }

    /// Like [`call_lent`](Self::call_lent), with a body of `len_bytes` bytes that `fill` puts where the daemon
    /// reads them. Other bytes are zeros. If it panics or [gives up](Filler::give_up), no call is made.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_in_place(
        &mut self,
        to: To,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<LentBytes<'_>, CallError> {
        self.call_in_place_within(to, len_bytes, self.config.timeout, fill)
    }

    /// Like [`call_in_place`](Self::call_in_place), with a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_in_place_within(
        &mut self,
        to: To,
        len_bytes: usize,
        timeout: Duration,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<LentBytes<'_>, CallError> {
        self.call_behind(to, &[], (len_bytes, fill), timeout)
    }

    /// The lent answer to the latest call.
    fn lent_answer(&self) -> LentBytes<'_> {
        let session = self.latest.and_then(|at| self.direct.all().nth(at));
        session.unwrap_or(&self.ipc).lent()
    }

    /// Calls with a body that begins with `body`, behind which `fill` puts the rest.
    fn call_behind(
        &mut self,
        to: To,
        body: &[u8],
        (rest_bytes, fill): (usize, impl FnOnce(&mut Filler<'_>)),
        mut timeout: Duration,
    ) -> Result<LentBytes<'_>, CallError> {
        self.latest = None;
        match self.direct.way(to) {
            CallWay::Daemon => {}
            CallWay::Meet(place) => timeout = self.meet(place, timeout),
            CallWay::Session(place) => {
                let heads = DirectHeads::new(to.method, timeout, self.trace);
                let [head, extra] = heads.parts();
                let head_bytes = head.len() + extra.len() + body.len();
                let session = self.direct.session(place);
                // What fills the rest does so once: from here on there is no other way.
                if let Some(session) = session.filter(|it| it.has_room(head_bytes + rest_bytes)) {
                    let head = [head, extra, body];
                    let request = Filled::behind(&head, rest_bytes, fill);
                    let ended = session.call_in_place_within(&request, timeout).map(drop);
                    if let Err(error) = ended {
                        if is_session_over(error) {
                            return Err(self.over_error(error));
                        }
                        let failed = Failed { error, detail: session.detail() };
                        return Err(match session.was_sent() {
                            true => direct_error(failed, to),
                            false => CallError::not_sent(error),
                        });
                    }
                    self.latest = Some(place);
                    return Ok(self.lent_answer());
                }
            }
        }
        let head = call_head(to, timeout, self.config.response_bytes, self.trace);
        let extra = CallExtra { trace: self.trace.into() };
        let extra = if self.trace == 0 { &[][..] } else { extra.as_bytes() };
        let head = [head.as_bytes(), extra, body];
        let request = Filled::behind(&head, rest_bytes, fill);
        let ended = self.ipc.call_in_place_within(&request, patience(timeout)).map(drop);
        match ended {
            Ok(()) => Ok(self.lent_answer()),
            Err(error) if !self.ipc.was_sent() => Err(CallError::not_sent_in_time(error)),
            Err(error) => Err(CallError::of(Failed { error, detail: self.ipc.detail() }, to)),
        }
    }
}
