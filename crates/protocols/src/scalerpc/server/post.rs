//! Posts to clients.

use proto::scalerpc::{
    HEADER_BYTES, Imm, Trailer,
    server::{Action, ClientId, ZoneLease},
};
use verbs::{Completion, CompletionQueue as _, MemoryRegion as _, Nic, PostSendError, RemoteSlice};

use super::{Deferred, Handler, Server};
use crate::scalerpc::{
    CloseReason,
    link::{INLINE_BYTES, Work},
};

/// Whether something was posted.
enum Posted {
    Yes,
    Later,
    Failed(PostSendError),
}

impl From<Result<(), PostSendError>> for Posted {
    fn from(result: Result<(), PostSendError>) -> Self {
        match result {
            Ok(()) => Self::Yes,
            Err(PostSendError::QueueFull { .. }) => Self::Later,
            Err(error) => Self::Failed(error),
        }
    }
}

impl<N: Nic> Server<N> {
    /// Posts a response, or keeps it until there is room.
    pub(super) fn respond(&mut self, client: ClientId, slot: u8, header: Trailer, body: &[u8]) {
        let is_first = self.peer(client).is_some_and(|peer| peer.deferred.is_empty());
        let posted = match is_first {
            true => self.post_response(client, slot, &header, body),
            false => Posted::Later,
        };
        let deferred = || Deferred::Respond { slot, header, body: body.to_vec() };
        self.settle(client, posted, deferred);
    }

    /// Posts what the core asks for, or keeps it until there is room.
    pub(super) fn post_action(&mut self, client: ClientId, action: Action) {
        let is_first = self.peer(client).is_some_and(|peer| peer.deferred.is_empty());
        let posted = if is_first { self.try_action(&action) } else { Posted::Later };
        self.settle(client, posted, || Deferred::Act(action));
    }

    fn settle(&mut self, client: ClientId, posted: Posted, deferred: impl FnOnce() -> Deferred) {
        let Some(peer) = self.peer(client) else { return };
        match posted {
            Posted::Yes => {
                if !core::mem::replace(&mut peer.is_unrung, true) {
                    self.unrung.push(client);
                }
            }
            // Bounded: by the slots, their READs, and the end of a turn.
            Posted::Later => {
                peer.deferred.push_back(deferred());
                if peer.deferred.len() == 1 {
                    self.waiting.push(client);
                }
            }
            Posted::Failed(error) => self.doomed.push((client, CloseReason::Refused(error))),
        }
    }

    fn post_response(
        &mut self,
        client: ClientId,
        slot: u8,
        header: &Trailer,
        body: &[u8],
    ) -> Posted {
        let index = usize::from(client.index());
        let Some(Some((_, peer))) = self.peers.get_mut(index) else { return Posted::Yes };
        let len = body.len() + HEADER_BYTES;
        let block = self.config.block_bytes as usize;
        let end = (usize::from(self.config.slots) + usize::from(slot) + 1) * block;
        let blocks = peer.contact.blocks;
        let remote = RemoteSlice { addr: blocks.addr + (end - len) as u64, rkey: blocks.rkey };
        let imm = Some(Imm::Response(slot));
        if len <= INLINE_BYTES {
            return peer.link.write_inline(remote, &[body, &header.encode()], imm).into();
        }
        let Some(staged) = self.staging_free.pop() else { return Posted::Later };
        let at = staged as usize * block;
        self.staging.write(at, body);
        self.staging.write(at + body.len(), &header.encode());
        let from = self.staging.sge(at, len);
        let posted = peer.link.write(remote, from, imm, Work::Staged(staged));
        if posted.is_err() {
            self.staging_free.push(staged);
        }
        posted.into()
    }

    fn try_action(&mut self, action: &Action) -> Posted {
        match *action {
            Action::Event { client, generation } => {
                let Some(peer) = self.peer(client) else { return Posted::Yes };
                let remote = peer.contact.blocks;
                peer.link.write_inline(remote, &[&[]], Some(Imm::Event(generation))).into()
            }
            Action::Read { client, mask, place } => self.read(client, mask, place),
            Action::Take { .. } | Action::Drop(_) => Posted::Yes,
        }
    }

    /// Reads announced blocks, neighbours together.
    fn read(&mut self, client: ClientId, mask: u64, place: ZoneLease) -> Posted {
        let block = self.config.block_bytes as usize;
        let zone = self.block_end(place.mapping, 0) - block;
        let mut runs = Vec::new();
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros();
            let count = (rest >> first).trailing_ones();
            runs.push((first as usize, count as usize));
            let covered = if count == 64 { u64::MAX } else { ((1 << count) - 1) << first };
            rest &= !covered;
        }
        let Some(Some((_, peer))) = self.peers.get_mut(usize::from(client.index())) else {
            return Posted::Yes;
        };
        if usize::from(verbs::QueuePair::send_free(peer.link.qp())) < runs.len() {
            return Posted::Later;
        }
        for (nth, (first, count)) in runs.iter().copied().enumerate() {
            let is_last = nth + 1 == runs.len();
            let blocks = peer.contact.blocks;
            let addr = blocks.addr + (first * block) as u64;
            let into = self.pools.sge(zone + first * block, count * block);
            let work = if is_last { Work::Read } else { Work::Done };
            let posted = peer.link.read(RemoteSlice { addr, ..blocks }, into, work);
            if let Err(error) = posted {
                return Posted::Failed(error);
            }
        }
        Posted::Yes
    }

    /// Takes completions of posts.
    pub(super) fn reap(&mut self, handler: &mut impl Handler<N>) -> usize {
        let mut work = 0;
        for _ in 0..self.config.burst {
            let Some(completion) = self.send_cq.poll() else { break };
            work += 1;
            self.finish(&completion, handler);
        }
        work
    }

    fn finish(&mut self, completion: &Completion, handler: &mut impl Handler<N>) {
        let Some(client) = self.by_qpn.get(&completion.qpn).copied() else { return };
        let Some(Some((_, peer))) = self.peers.get_mut(usize::from(client.index())) else { return };
        let free = &mut self.staging_free;
        let mut is_read = false;
        peer.link.finish(completion, |work| match work {
            Work::Done => {}
            Work::Staged(block) => free.push(block),
            Work::Read => is_read = true,
        });
        if let Some(failure) = completion.failure {
            self.doomed.push((client, CloseReason::Failed(failure)));
        } else if is_read {
            self.core.handle_read(client);
            self.act(handler);
        }
    }

    /// Posts what found no room before.
    pub(super) fn retry(&mut self) {
        for client in core::mem::take(&mut self.waiting) {
            while let Some(deferred) = self.peer(client).and_then(|peer| peer.deferred.pop_front())
            {
                let posted = match &deferred {
                    Deferred::Act(action) => self.try_action(action),
                    Deferred::Respond { slot, header, body } => {
                        self.post_response(client, *slot, header, body)
                    }
                };
                let Some(peer) = self.peer(client) else { break };
                match posted {
                    Posted::Yes => {
                        if !core::mem::replace(&mut peer.is_unrung, true) {
                            self.unrung.push(client);
                        }
                    }
                    Posted::Later => {
                        peer.deferred.push_front(deferred);
                        self.waiting.push(client);
                        break;
                    }
                    Posted::Failed(error) => {
                        self.doomed.push((client, CloseReason::Refused(error)));
                        break;
                    }
                }
            }
        }
    }

    /// One doorbell per client.
    pub(super) fn ring(&mut self) {
        for client in core::mem::take(&mut self.unrung) {
            if let Some(peer) = self.peer(client) {
                peer.is_unrung = false;
                peer.link.ring();
            }
        }
    }
}
