//! What threads of the daemon do for each other.

use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    daemon::{
        crew::{Asked, Errand, Heard},
        front::Front,
        office::{Asker, Caller, Office, Outgoing},
        services::{Inbound, Job, QUEUE_MAX, Served},
    },
    metrics::Counter,
};

/// Errands and outcomes taken per turn.
const PER_TURN: usize = 256;

impl<F: Front> Office<F> {
    /// Does what other threads ask, and ends what they have done; returns how many.
    #[inline]
    pub(in crate::daemon) fn hear<N: Nic>(
        &mut self,
        front: &mut F,
        worker: &mut Worker<N>,
    ) -> usize {
        if self.seat.is_alone() { 0 } else { self.hear_all(front, worker) }
    }

    #[inline(never)]
    fn hear_all<N: Nic>(&mut self, front: &mut F, worker: &mut Worker<N>) -> usize {
        let mut heard = 0;
        while heard < PER_TURN
            && let Some(what) = self.seat.hear()
        {
            heard += 1;
            match what {
                Heard::Errand(Errand::Call { rank, call, body }, token) => {
                    match self.route(worker, rank, call, &body) {
                        Ok(claim) => self.settle(claim, Asker::Thread(token), call.taken_ns),
                        Err(refused) => self.seat.answer(token, refused, &[]),
                    }
                    self.seat.keep(body);
                }
                Heard::Errand(
                    Errand::Serve { service, rank, method, deadline_ns, body },
                    token,
                ) => {
                    let inbound = Inbound { rank, method, body: &body };
                    self.serve_thread(token, service, &inbound, deadline_ns);
                    self.seat.keep(body);
                }
                Heard::Outcome { asked, status, body } => {
                    self.finish_errand(front, worker, asked, status, &body);
                    self.seat.keep(body);
                }
            }
        }
        heard
    }

    /// Asks the thread that owns it to call a node. [`Status::ResourceExhausted`]: it has no room
    /// now.
    #[inline(never)]
    pub(super) fn call_by(
        &mut self,
        thread: usize,
        rank: u32,
        call: &Outgoing,
        payload: &[u8],
    ) -> Result<(), Status> {
        let name = self.pending.next_name();
        match self.seat.ask_call(thread, (name, rank), *call, payload) {
            Ok(()) => {
                self.tally.add(Counter::Errands, 1);
                Ok(())
            }
            Err(refused) => {
                self.count_refusal(refused);
                Err(refused)
            }
        }
    }

    /// Queues a request for a service that another thread offers; `false` if too many wait.
    pub(super) fn enqueue_abroad(&mut self, service: u16, job: Job) -> bool {
        let queue = self.abroad.entry(service).or_default();
        let has_room = queue.len() < QUEUE_MAX;
        if has_room {
            queue.push_back(job);
        }
        has_room
    }

    /// Asks the thread that offers a service to answer what waits for it, as far as it has room.
    pub(super) fn hand_on<N: Nic>(&mut self, worker: &mut Worker<N>, service: u16) {
        if self.abroad.is_empty() {
            return;
        }
        let Some(mut queue) = self.abroad.remove(&service) else { return };
        while let Some(Job { work: name, rank, method, body }) = queue.pop_front() {
            // Its caller may have given up.
            let Some(work) = self.work.get(name) else { continue };
            let deadline_ns = work.deadline_ns;
            let Some(thread) = self.services.elsewhere(service) else {
                self.finish_work(worker, name, Status::Unavailable, &[]);
                continue;
            };
            let errand = Errand::Serve { service, rank, method, deadline_ns, body };
            match self.seat.ask_serve(thread, Asked::Work(name, service), errand) {
                Ok(()) => self.tally.add(Counter::Errands, 1),
                Err((Errand::Serve { body, .. }, status @ Status::ResourceExhausted)) => {
                    self.count_refusal(status);
                    queue.push_front(Job { work: name, rank, method, body });
                    self.abroad.insert(service, queue);
                    if !self.ready.contains(&service) {
                        self.ready.push(service);
                    }
                    return;
                }
                Err((_, status)) => self.finish_work(worker, name, status, &[]),
            }
        }
    }

    fn count_refusal(&mut self, status: Status) {
        if status == Status::ResourceExhausted {
            self.tally.add(Counter::LaneFull, 1);
        }
    }

    /// A request that another thread took, for a service of this one.
    fn serve_thread(
        &mut self,
        token: inproc::Token,
        service: u16,
        inbound: &Inbound<'_>,
        deadline_ns: u64,
    ) {
        let mut answer = std::mem::take(&mut self.body);
        answer.clear();
        match self.services.serve(service, inbound, &mut answer) {
            Some(Served::Answered(status)) => {
                self.count_status(status);
                self.seat.answer(token, status, &answer);
            }
            Some(served @ Served::Provided) => {
                let timeout_ns = deadline_ns.saturating_sub(self.now_ns);
                let caller = Caller::Inside(Asker::Thread(token));
                let handed = self.hand_over(service, inbound, caller, timeout_ns, served);
                if let Err((status, Caller::Inside(Asker::Thread(token)))) = handed {
                    self.seat.answer(token, status, &[]);
                }
            }
            // Its provider is gone. That another thread offers it by now is no reason to send the
            // request around.
            Some(Served::Elsewhere) | None => self.seat.answer(token, Status::Unavailable, &[]),
        }
        self.body = answer;
    }

    /// Another thread has done, or refused, what it was asked.
    fn finish_errand<N: Nic>(
        &mut self,
        front: &mut F,
        worker: &mut Worker<N>,
        asked: Asked,
        status: Status,
        body: &[u8],
    ) {
        match asked {
            Asked::Call(name, _) => {
                if let Some(pending) = self.pending.remove(name) {
                    self.answer(front, pending.asker, status, body, pending.taken_ns);
                }
            }
            // This thread may have met the deadline first.
            Asked::Work(name, _) => self.finish_work(worker, name, status, body),
        }
    }
}
