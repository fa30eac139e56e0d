//! Requests for this node: for functions of the embedding program, for processes that provide a
//! service, and for the daemon itself.

use rpc::{Status, Token, Worker};
use verbs::Nic;
use zerocopy::FromBytes as _;

use crate::{
    daemon::{
        copy::copied,
        front::Front,
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
    ) -> Option<Status> {
        let service = head.service.get();
        let inbound = Inbound { rank: self.place.rank(), method: head.method.get(), body: payload };
        match self.services.serve(service, &inbound, body) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Some(status)
            }
            Some(served) => {
                let timeout_ns = self.timeout_ns(head.timeout_us.get());
                let caller = Caller::Inside(Asker::Client(None));
                match self.hand_over(service, &inbound, caller, timeout_ns, served) {
                    Ok(name) => {
                        self.claim = Some(Claim::Work(name));
                        None
                    }
                    Err((status, _)) => Some(status),
                }
            }
            None => {
                self.recorder.add(Counter::NoService, 1);
                Some(Status::Unimplemented)
            }
        }
    }

    /// A request of another node: answered now, or `None` if a provider will.
    pub(super) fn serve_peer(
        &mut self,
        token: Token,
        service: u16,
        timeout_us: u32,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Option<(Token, Status)> {
        let Ok((head, payload)) = PeerHead::read_from_prefix(body) else {
            return Some((token, Status::InvalidArgument));
        };
        let Some(rank) = self.rank_of(token.peer()) else {
            return Some((token, Status::Unavailable));
        };
        if service == DAEMON {
            let is_ping = head.method.get() == method::PING;
            answer.extend_from_slice(if is_ping { payload } else { &[] });
            return Some((token, if is_ping { Status::Ok } else { Status::PermissionDenied }));
        }
        if self.is_draining {
            return Some((token, Status::Unavailable));
        }
        let inbound = Inbound { rank, method: head.method.get(), body: payload };
        match self.services.serve(service, &inbound, answer) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                Some((token, status))
            }
            Some(served) => {
                let timeout_ns = self.timeout_ns(timeout_us);
                match self.hand_over(service, &inbound, Caller::Peer(token), timeout_ns, served) {
                    Err((status, Caller::Peer(token))) => Some((token, status)),
                    Ok(_) | Err(_) => None,
                }
            }
            None => {
                self.recorder.add(Counter::NoService, 1);
                Some((token, Status::Unimplemented))
            }
        }
    }

    pub(super) fn count_status(&mut self, status: Status) {
        if status != Status::Ok {
            self.recorder.add(Counter::HandlerErrors, 1);
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
    ) -> Option<Status> {
        match what {
            method::PING => {
                body.extend_from_slice(payload);
                Some(Status::Ok)
            }
            method::WHO => {
                body.extend_from_slice(&self.place.rank().to_le_bytes());
                body.extend_from_slice(&self.place.size().to_le_bytes());
                Some(Status::Ok)
            }
            method::REGISTER => Some(match payload.try_into().map(u16::from_le_bytes) {
                Ok(service) => match self.services.provide(service, client) {
                    Ok(()) => Status::Ok,
                    Err(_) => Status::AlreadyExists,
                },
                Err(_) => Status::InvalidArgument,
            }),
            method::SERVE => self.serve_provider(worker, client, payload),
            _ => Some(Status::Unimplemented),
        }
    }

    /// A provider answers, and asks for the next request.
    fn serve_provider<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: F::Client,
        payload: &[u8],
    ) -> Option<Status> {
        let Ok((head, answer)) = ServeHead::read_from_prefix(payload) else {
            return Some(Status::InvalidArgument);
        };
        let service = head.service.get();
        let is_its_own =
            self.services.provider(service).is_some_and(|provider| provider.client == client);
        if !is_its_own {
            return Some(Status::FailedPrecondition);
        }
        let name = head.work.get();
        // Only what this very client was given, and once.
        if self.work.get(name).is_some_and(|work| work.server == Server::Client(client)) {
            let status = Status::from_code(head.status).unwrap_or(Status::Unknown);
            self.count_status(status);
            self.finish_work(worker, name, status, answer);
        } else if name != 0 {
            self.recorder.add(Counter::Stale, 1);
        }
        self.claim = Some(Claim::Take(service));
        None
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
                self.recorder.add(Counter::Replies, 1);
                self.recorder.record(Timing::Call, took_ns);
                self.answers.push(match copied(body) {
                    Some(body) => (token, status, body),
                    // It was executed, so it is not for want of room that it was not.
                    None => (token, Status::Unavailable, Vec::new()),
                });
            }
            Caller::Inside(Asker::Client(None)) => {}
            Caller::Inside(Asker::Thread(token)) => self.seat.answer(token, status, body),
            Caller::Peer(token) => {
                self.recorder.record(Timing::Turnaround, took_ns);
                self.recorder.add(Counter::BytesOut, body.len() as u64);
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
            self.recorder.add(Counter::Exhausted, 1);
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
        self.recorder.add(Counter::Exhausted, 1);
        match self.work.remove(name) {
            Some(work) => Err((Status::ResourceExhausted, work.caller)),
            None => unreachable!("it was inserted just now"),
        }
    }
}
