//! Promises to reply later, kept or broken, each exactly once.
//!
//! A [`Token`] may travel to any thread. Kept, it comes back to the node that made it; dropped, it
//! leaves a bit there, and the node answers for it with an error.

use core::fmt;

use ids::slots::{Key, SlotTable};
use memory::sync::{Arc, AtomicU64, Ordering};

use crate::{mpsc::Bell, spsc::Discipline};

const BITS: u32 = u64::BITS;

/// Why a call that was accepted brought no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The other side dropped the request, or the token it had made of it.
    #[error("the request was dropped without an answer")]
    Dropped,
    /// The other side left with the request, answered or not.
    #[error("the other side is gone")]
    Gone,
}

/// Tells the owner that there are bits to look at. A trait, because a token does not know what its
/// owner receives.
pub(crate) trait Ring: Send + Sync {
    fn ring(&self);
}

impl<T: Send, D: Discipline> Ring for Bell<T, D> {
    fn ring(&self) {
        self.ring();
    }
}

/// Obligation to answer one request, which the requester waits for. Give it back with the response;
/// dropping it answers with an error.
#[must_use = "dropping a token answers its request with an error"]
pub struct Token {
    key: Key,
    /// None once the owner has it back.
    broken: Option<Arc<Broken>>,
}

/// Bits of the tokens that were dropped, by slot.
struct Broken {
    words: Box<[AtomicU64]>,
    bell: Box<dyn Ring>,
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(broken) = self.broken.take() {
            let word = &broken.words[(self.key.slot() / BITS) as usize];
            // No data goes with the bit; the bell has its own barrier.
            word.fetch_or(1 << (self.key.slot() % BITS), Ordering::Relaxed);
            broken.bell.ring();
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The token was made by another party. Hands it back, with the response.
#[derive(thiserror::Error)]
#[error("the token was made elsewhere: reply where the request was polled")]
pub struct ForeignToken<R> {
    /// As passed.
    pub token: Token,
    /// As passed.
    pub response: R,
}

impl<R> fmt::Debug for ForeignToken<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignToken").field("token", &self.token).finish_non_exhaustive()
    }
}

/// The tokens that one node gave out, and for what.
pub(crate) struct Deferred<V> {
    table: SlotTable<V>,
    broken: Arc<Broken>,
}

impl<V> Deferred<V> {
    pub(crate) fn new(tokens_max: u32, bell: impl Ring + 'static) -> Self {
        let words = (0..tokens_max.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        let broken = Arc::new(Broken { words, bell: Box::new(bell) });
        Self { table: SlotTable::bounded(tokens_max), broken }
    }

    /// Makes a token for `value`, which comes back if there are as many tokens as allowed.
    pub(crate) fn defer(&mut self, value: V) -> Result<Token, V> {
        let key = self.table.insert(value)?;
        Ok(Token { key, broken: Some(self.broken.clone()) })
    }

    /// The value that `token` was made for; the token comes back if another node made it.
    pub(crate) fn redeem(&mut self, mut token: Token) -> Result<V, Token> {
        if !token.broken.as_ref().is_some_and(|broken| Arc::ptr_eq(broken, &self.broken)) {
            return Err(token);
        }
        let value = self.table.remove(token.key).ok_or(token.key);
        token.broken = None;
        Ok(value.expect("a token is redeemed once: it cannot be cloned"))
    }

    /// The value of a token that was dropped.
    #[inline]
    pub(crate) fn next_broken(&mut self) -> Option<V> {
        if self.table.is_empty() {
            return None;
        }
        self.find_broken()
    }

    fn find_broken(&mut self) -> Option<V> {
        for (base, word) in (0..).step_by(BITS as usize).zip(&self.broken.words) {
            let set = word.load(Ordering::Relaxed);
            if set != 0 {
                let index = set.trailing_zeros();
                word.fetch_and(!(1 << index), Ordering::Relaxed);
                return self.table.key_at(base + index).and_then(|key| self.table.remove(key));
            }
        }
        None
    }
}
