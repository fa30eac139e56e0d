//! Services that not everybody may call.

use client::message::CallHead;
use rpc::{Status, Worker};
use verbs::Nic;

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{Answer, Dispatcher},
    rights::Act,
};

impl<P: ClientPort> Dispatcher<P> {
    /// A client's request for such a service.
    #[cold]
    pub(super) fn serve_limited<N: Nic>(
        &mut self,
        worker: &mut Worker<N>,
        client: P::Client,
        (rank, reply_to): (u32, P::ReplyTo),
        head: &CallHead,
        payload: &[u8],
        replies: &mut P::Replies,
    ) -> Answer {
        let process = replies.process_of(reply_to);
        if !self.services.rights().allows(Act::Call, head.service.get(), process) {
            return self.refuse(Status::PermissionDenied);
        }
        if rank >= self.rank_info.size() {
            return Answer::Now(Status::NotFound);
        }
        if self.is_draining {
            return self.refuse(Status::Unavailable);
        }
        if rank == self.rank_info.rank() {
            return self.serve_local(reply_to, head, payload, replies);
        }
        self.forward(worker, rank, (client, reply_to), head, payload)
    }

    /// Whether the request of another node that is being handled may go to a service.
    pub(super) fn may_come(&self, service: u16) -> bool {
        let rights = self.services.rights();
        let is_known = self.who.pid.get() != 0;
        !rights.is_limited(Act::Call, service)
            || is_known && rights.may_allow(service, self.who.uid.get())
    }
}
