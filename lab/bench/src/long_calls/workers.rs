//! Two workers: one calls, one echoes.

use os::clock;
use rpc::{
    Body, Call, CallEnd, CloseReason, Handler, Invitation, PeerId, ReplyError, Request, Status,
    Worker,
};
use verbs::Nic;

use super::{LongCaller, MakeEcho, Spent, Stepped, config, late, right};
use crate::{calls::NumberedMessage, error::Error, shared_words::PATIENCE};

/// A worker that calls.
pub(super) struct WorkerCaller<N: Nic> {
    worker: Worker<N>,
    peer: Option<PeerId>,
    answers: Answers,
}

#[derive(Default)]
struct Answers {
    body: Vec<u8>,
    status: Option<Status>,
    closed: Option<CloseReason>,
}

impl<N: Nic> WorkerCaller<N> {
    pub(super) fn new(nic: N) -> Result<Self, Error> {
        let worker = Worker::open(nic, config(), clock::now_ns())?;
        Ok(Self { worker, peer: None, answers: Answers::default() })
    }
}

impl<N: Nic> Stepped for WorkerCaller<N> {
    fn step(&mut self) -> Result<(), Error> {
        self.worker.poll(clock::now_ns(), &mut self.answers);
        match self.answers.closed {
            Some(reason) => Err(Error::OutOfTurn(format!("a connection ended: {reason}"))),
            None => Ok(()),
        }
    }

    fn spent(&self) -> Spent {
        Spent::of(&self.worker.stats(), 0)
    }
}

impl<N: Nic> Handler<N> for Answers {
    #[inline(always)]
    fn request(&mut self, _: &mut Worker<N>, request: Request, _: Body<'_, N>) {
        drop(request); // the other side makes no calls
    }

    /// A fetched answer stays in the memory that it came in.
    #[inline(always)]
    fn ended(&mut self, worker: &mut Worker<N>, _: u64, end: CallEnd<'_, N>) {
        self.status = Some(end.status());
        if let CallEnd::Answered(_, Body::Owned(memory)) = end {
            worker.keep_memory(std::mem::replace(&mut self.body, std::mem::take(memory)));
        } else {
            self.body.clear();
            self.body.extend_from_slice(&end.bytes());
        }
    }

    fn closed(&mut self, _: &mut Worker<N>, _: PeerId, reason: CloseReason) {
        self.closed = Some(reason);
    }
}

impl<N: Nic> LongCaller for WorkerCaller<N> {
    fn contact(&mut self) -> Vec<u8> {
        let Ok((peer, invitation)) = self.worker.invite() else { return Vec::new() };
        self.peer = Some(peer);
        invitation.as_bytes().to_vec()
    }

    fn meet(&mut self, contact: &[u8]) -> Result<(), Error> {
        let peer = self.peer.ok_or_else(late)?;
        self.worker.connect(peer, &Invitation::from_bytes(contact)?)?;
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn begin(&mut self, body: &[u8]) -> Result<(), Error> {
        let peer = self.peer.ok_or_else(late)?;
        // As a caller that knows what it will get.
        let call =
            Call { response_bytes: body.len().min(16 << 10), timeout: PATIENCE, ..Call::default() };
        self.worker.call(peer, &call, body)?;
        Ok(())
    }

    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error> {
        let Some(status) = self.answers.status.take() else { return Ok(false) };
        right(number, message, status == Status::Ok, &self.answers.body)
    }
}

/// A worker that answers each request with its body.
pub(super) struct WorkerEcho<F>(pub(super) F);

struct Echoing<N: Nic> {
    worker: Worker<N>,
    echo: Echo,
}

#[derive(Default)]
struct Echo {
    failed: Option<ReplyError>,
}

impl<N: Nic> Handler<N> for Echo {
    #[inline(always)]
    fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
        let Request { token, .. } = request;
        self.failed = worker.reply(token, Status::Ok, &body.bytes()).err().or(self.failed.take());
    }

    #[inline(always)]
    fn ended(&mut self, _: &mut Worker<N>, _: u64, _: CallEnd<'_, N>) {}
}

impl<N: Nic> Stepped for Echoing<N> {
    fn step(&mut self) -> Result<(), Error> {
        self.worker.poll(clock::now_ns(), &mut self.echo);
        self.echo.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn spent(&self) -> Spent {
        Spent::of(&self.worker.stats(), 0)
    }
}

impl<N: Nic + 'static, F: Fn() -> Result<N, Error> + Send> MakeEcho for WorkerEcho<F> {
    fn make(self, contact: &[u8]) -> Result<(Box<dyn Stepped>, Vec<u8>), Error> {
        let mut worker = Worker::open((self.0)()?, config(), clock::now_ns())?;
        let (peer, invitation) = worker.invite()?;
        worker.connect(peer, &Invitation::from_bytes(contact)?)?;
        let told = invitation.as_bytes().to_vec();
        Ok((Box::new(Echoing { worker, echo: Echo::default() }), told))
    }
}
