//! Requests for this node: for functions of the embedding program, for processes that provide a
//! service, and for the daemon itself.

use rpc::{Request, Status, Token, Worker};
use verbs::Nic;
use zerocopy::FromBytes as _;

use crate::{
    daemon::{
        copy::copied,
        front::{Answer, Front},
        office::{Asker, Caller, Claim, Office, Server, Work},
        services::{Inbound, Job, Served},
        wire::{CallHead, DAEMON, PeerHead, ServeHead, method},
    },
    metrics::{Counter, Timing},
};

impl<F: Front> Office<F> {
    /// A request for a service of this node, by a client of this node: no NIC is involved.
    pub(super) fn serve_local(
        &mut self,
        head: &CallHead,
        payload: &[u8],
        body: &mut Vec<u8>,
    ) -> Answer<Claim> {
        let service = head.service.get();
        let inbound = Inbound { rank: self.place.rank(), method: head.method.get(), body: payload };
        match self.services.serve(service, &inbound, body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Answer::Now(status)
            }
            Some(served) => {
                let timeout_ns = self.timeout_ns(head.timeout_us.get());
                let caller = Caller::Inside(Asker::Client(None));
                match self.hand_over(service, &inbound, caller, timeout_ns, served) {
                    Ok(name) => Answer::Later(Claim::Work(name)),
                    Err((status, _)) => Answer::Now(status),
                }
            }
            None => {
                self.tally.add(Counter::NoService, 1);
                Answer::Now(Status::Unimplemented)
            }
        }
    }

    /// A request of another node: answered now with what is in `body` then, or by a provider or
    /// another thread.
    #[inline]
    pub(super) fn serve_peer<'a>(
        &mut self,
        request: &Request<'a>,
    ) -> Answer<(Inbound<'a>, Served)> {
        self.body.clear();
        let Ok((head, payload)) = PeerHead::read_from_prefix(request.body) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let Some(rank) = self.rank_of(request.token.peer()) else {
            return Answer::Now(Status::Unavailable);
        };
        let inbound = Inbound { rank, method: head.method.get(), body: payload };
        if request.method == DAEMON {
            return Answer::Now(self.serve_peer_daemon(&inbound));
        }
        if self.is_draining {
            return Answer::Now(Status::Unavailable);
        }
        match self.services.serve(request.method, &inbound, &mut self.body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Answer::Now(status)
            }
            Some(served) => Answer::Later((inbound, served)),
            None => {
                self.tally.add(Counter::NoService, 1);
                Answer::Now(Status::Unimplemented)
            }
        }
    }

    /// A request of another node for the daemon itself.
    fn serve_peer_daemon(&mut self, inbound: &Inbound<'_>) -> Status {
        if inbound.method != method::PING {
            return Status::PermissionDenied;
        }
        self.body.extend_from_slice(inbound.body);
        Status::Ok
    }

    /// Hands a request of another node over, or says why not.
    pub(super) fn hand_over_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        request: Request<'_>,
        inbound: &Inbound<'_>,
        served: Served,
    ) {
        let Request { token, method: service, timeout_us, .. } = request;
        let timeout_ns = self.timeout_ns(timeout_us);
        let handed = self.hand_over(service, inbound, Caller::Peer(token), timeout_ns, served);
        if let Err((status, Caller::Peer(token))) = handed {
            self.reply_peer(worker, token, status);
        }
    }

    /// Answers a request of another node that came just now.
    #[inline]
    pub(super) fn reply_peer<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        token: Token,
        status: Status,
    ) {
        self.tally.record(Timing::Turnaround, 0);
        self.tally.add(Counter::BytesOut, self.body.len() as u64);
        // A caller that is gone needs no answer; one that expected less is told so.
        let _ = worker.reply(token, status, &self.body);
    }

    pub(super) fn count_status(&mut self, status: Status) {
        if status != Status::Ok {
            self.tally.add(Counter::HandlerErrors, 1);
        }
    }

    /// A request for the daemon itself.
    pub(super) fn serve_daemon<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        what: u16,
        payload: &[u8],
        body: &mut Vec<u8>,
    ) -> Answer<Claim> {
        Answer::Now(match what {
            method::PING => {
                body.extend_from_slice(payload);
                Status::Ok
            }
            method::WHO => {
                body.extend_from_slice(&self.place.rank().to_le_bytes());
                body.extend_from_slice(&self.place.size().to_le_bytes());
                Status::Ok
            }
            method::REGISTER => match payload.try_into().map(u16::from_le_bytes) {
                Ok(service) => match self.services.provide(service, client) {
                    Ok(()) => Status::Ok,
                    Err(_) => Status::AlreadyExists,
                },
                Err(_) => Status::InvalidArgument,
            },
            method::SERVE => return self.serve_provider(worker, client, payload),
            _ => Status::Unimplemented,
        })
    }

    /// A provider answers, and asks for the next request.
    fn serve_provider<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        payload: &[u8],
    ) -> Answer<Claim> {
        let Ok((head, answer)) = ServeHead::read_from_prefix(payload) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let service = head.service.get();
        let is_its_own =
            self.services.provider(service).is_some_and(|provider| provider.client == client);
        if !is_its_own {
            return Answer::Now(Status::FailedPrecondition);
        }
        let name = head.work.get();
        // Only what this very client was given, and once.
        if self.work.get(name).is_some_and(|work| work.server == Server::Client(client)) {
            let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
            self.count_status(status);
            self.finish_work(worker, name, status, answer);
        } else if name != 0 {
            self.tally.add(Counter::Stale, 1);
        }
        Answer::Later(Claim::Take(service))
    }

    /// Answers whoever waits for a provider.
    pub(super) fn finish_work<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        name: u64,
        status: Status,
        body: &[u8],
    ) {
        let Some(work) = self.work.remove(name) else { return };
        let took_ns = self.now_ns.saturating_sub(work.came_ns);
        match work.caller {
            Caller::Inside(Asker::Client(Some(token))) => {
                self.tally.add(Counter::Replies, 1);
                self.tally.record(Timing::Call, took_ns);
                self.answers.push(match copied(body) {
                    Some(body) => (token, status, body),
                    // It was executed, so it is not for want of room that it was not.
                    None => (token, Status::Unavailable, Vec::new()),
                });
            }
            Caller::Inside(Asker::Client(None)) => {}
            Caller::Inside(Asker::Thread(token)) => self.seat.answer(token, status, body),
            Caller::Peer(token) => {
                self.tally.record(Timing::Turnaround, took_ns);
                self.tally.add(Counter::BytesOut, body.len() as u64);
                // A caller that is gone needs no answer; one that expected less is told so.
                let _ = worker.reply(token, status, body);
            }
        }
    }

    /// Gives a request to the process that provides the service, as soon as it asks for one, or to
    /// the thread that offers it, as soon as that has room.
    pub(super) fn hand_over(
        &mut self,
        service: u16,
        inbound: &Inbound<'_>,
        caller: Caller<F>,
        timeout_ns: u64,
        to: Served,
    ) -> Result<u64, (Status, Caller<F>)> {
        if inbound.body.len() > self.body_bytes_max {
            return Err((Status::OutOfRange, caller));
        }
        let provider = self.services.provider(service).map(|provider| provider.client);
        let server = match (to, provider) {
            (Served::Elsewhere, _) => Server::Thread,
            (_, Some(client)) => Server::Client(client),
            (_, None) => return Err((Status::Unimplemented, caller)),
        };
        let &Inbound { rank, method, body } = inbound;
        let Some(body) = copied(body) else {
            self.tally.add(Counter::Exhausted, 1);
            return Err((Status::ResourceExhausted, caller));
        };
        let deadline_ns = self.now_ns.saturating_add(timeout_ns);
        let name = self.work.insert(Work { caller, server, deadline_ns, came_ns: self.now_ns });
        let job = Job { work: name, rank, method, body };
        let is_queued = match server {
            Server::Client(_) => self.services.enqueue(service, job),
            Server::Thread => self.enqueue_abroad(service, job),
        };
        if is_queued {
            self.ready.push(service);
            return Ok(name);
        }
        self.tally.add(Counter::Exhausted, 1);
        match self.work.remove(name) {
            Some(work) => Err((Status::ResourceExhausted, work.caller)),
            None => unreachable!("it was inserted just now"),
        }
    }
}
