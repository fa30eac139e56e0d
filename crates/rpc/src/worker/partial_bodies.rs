//! Bodies of calls and of answers that a program writes part by part, to memory that the peer reads.

use memory::LentBytes;
use proto::copyrpc::{CallId, RequestId};
use verbs::Nic;

use super::{Call, Worker, commands::core_call};
use crate::{
    Account, CallError, PeerId, ReplyError, Token,
    large::large,
    partial_calls::PartialCall,
    pool::{Buffer, Purchase},
    token::Answering,
};

impl<N: Nic> Worker<N> {
    /// Takes memory for the body of a call, of `len_bytes`: the program [puts](Self::put_call) it there in parts, and
    /// [makes the call](Self::finish_call) when all are there. Of `call`, only the method and the caller count now.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed.
    pub fn begin_call(
        &mut self,
        peer: PeerId,
        call: &Call,
        len_bytes: usize,
    ) -> Result<PartialCall, CallError> {
        self.forget_ended_calls();
        let account = Account { caller: call.caller, method: Some(call.method) };
        let buffer = self.take_for_call(peer, account, len_bytes)?;
        let live = self.live(peer).ok_or(CallError::NotConnected)?;
        let number = live.bodies.begin_request(buffer);
        Ok(PartialCall { peer, number, ended: self.begun_calls.clone() })
    }

    /// Puts a part of the body of a call that was begun. Others may write the part meanwhile.
    ///
    /// # Errors
    ///
    /// [`CallError::NotConnected`]: the connection has ended, or the call was made.
    ///
    /// # Panics
    ///
    /// If the part is not inside the body.
    pub fn put_call<'p>(
        &mut self,
        begun: &PartialCall,
        offset_bytes: usize,
        part: impl Into<LentBytes<'p>>,
    ) -> Result<(), CallError> {
        let part = part.into();
        let live = self.live(begun.peer).ok_or(CallError::NotConnected)?;
        let body = live.bodies.begun_request(begun.number).ok_or(CallError::NotConnected)?;
        body.write_lent(offset_bytes, part);
        self.transfers.stats.copied_bytes += part.len() as u64;
        Ok(())
    }

    /// Makes a call with what was put. Parts that were not put are what this peer was sent before.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has changed, and the body is still there unless the connection has ended or the call
    /// was made.
    pub fn finish_call(&mut self, begun: &PartialCall, call: &Call) -> Result<CallId, CallError> {
        let now_ns = self.now_ns();
        let live = self.peers.live_dirty(begun.peer).ok_or(CallError::NotConnected)?;
        let body = live.bodies.begun_request(begun.number).ok_or(CallError::NotConnected)?;
        let id = live.connection.call_large(&core_call(call, now_ns), large(body), now_ns)?;
        live.bodies.lend_begun(begun.number, id);
        Ok(id)
    }

    /// Gives back the memory of calls that were begun and not made.
    #[inline]
    pub(super) fn forget_ended_calls(&mut self) {
        if !self.begun_calls.is_empty() {
            for (peer, number) in self.begun_calls.take() {
                if let Some(live) = self.live(peer) {
                    live.bodies.forget_begun(number);
                }
            }
        }
    }

    /// Takes memory for a successful answer of `len_bytes`, more than
    /// [`answer_bytes_max`](Self::answer_bytes_max): the program [puts](Self::put_answer) it there in parts, and
    /// [answers](Self::finish_answer) when all are there. Until then the caller knows of nothing. A request that is
    /// answered in any other way, or whose token is dropped, gives the memory back.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request is still to be answered.
    pub fn begin_answer(&mut self, token: &mut Token, len_bytes: usize) -> Result<(), ReplyError> {
        debug_assert!(token.is_of(&self.tokens), "a token is answered by the worker that gave it");
        let Answering { peer, request, method, .. } = token.answering;
        let buffer = self.take_for_answer(peer, method, len_bytes)?;
        let live = self.live(peer).ok_or(ReplyError::Gone)?;
        live.bodies.begin_response(request, buffer);
        token.answering.is_begun = true;
        Ok(())
    }

    /// Puts a part of an answer that [was begun](Self::begin_answer). Others may write the part meanwhile.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Gone`]: the connection has ended, or the answer was not begun.
    ///
    /// # Panics
    ///
    /// If the part is not inside the answer.
    pub fn put_answer<'p>(
        &mut self,
        token: &Token,
        offset_bytes: usize,
        part: impl Into<LentBytes<'p>>,
    ) -> Result<(), ReplyError> {
        let part = part.into();
        let Answering { peer, request, .. } = token.answering;
        let live = self.live(peer).ok_or(ReplyError::Gone)?;
        live.bodies.begun(request).ok_or(ReplyError::Gone)?.write_lent(offset_bytes, part);
        self.transfers.stats.copied_bytes += part.len() as u64;
        Ok(())
    }

    /// Answers with [`Status::Ok`](crate::Status::Ok) and what was put. Parts that were not put are what this
    /// caller was sent before.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Gone`]; the request counts as answered.
    pub fn finish_answer(&mut self, token: Token) -> Result<(), ReplyError> {
        let Answering { peer, request, lease, .. } = token.redeem();
        self.end_lease(peer, lease);
        let now_ns = self.now_ns();
        let live = self.peers.live_dirty(peer).ok_or(ReplyError::Gone)?;
        let buffer = live.bodies.take_begun(request).ok_or(ReplyError::Gone)?;
        live.connection.reply_large(request, large(&buffer), now_ns)?;
        live.bodies.lend_response(request, buffer, |_, _| {});
        Ok(())
    }

    /// Memory for an answer that the caller fetches.
    pub(super) fn take_for_answer(
        &mut self,
        peer: PeerId,
        method: u16,
        len_bytes: usize,
    ) -> Result<Buffer<N>, ReplyError> {
        let live = self.live(peer).ok_or(ReplyError::Gone)?;
        let max_bytes = live.connection.config().peer.large_bytes_max as usize;
        if len_bytes > max_bytes {
            return Err(ReplyError::TooLong { len_bytes, max_bytes });
        }
        let account = Account { caller: None, method: Some(method) };
        let purchase = Purchase { peer, account, len_bytes };
        self.take_lent(&purchase).map_err(|_| ReplyError::NoMemory { len_bytes })
    }

    /// An answer that was being written is not given.
    #[cold]
    pub(super) fn forget_begun(&mut self, peer: PeerId, request: RequestId) {
        if let Some(live) = self.live(peer) {
            live.bodies.take_begun(request);
        }
    }
}
