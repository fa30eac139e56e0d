//! Registrations that take their time.

use core::fmt;

use crate::MemoryError;

/// The end of a registration, once it is there.
type Ended<M> = Option<Result<M, MemoryError>>;

/// A registration of memory that was begun: a kernel pins each page, and tells the adapter of each, so gibibytes take
/// seconds. Dropped before its end, the memory is registered and taken back.
pub struct Registration<M>(Box<dyn FnMut() -> Ended<M>>);

impl<M: 'static> Registration<M> {
    /// A registration that `poll` tells the end of, once: it is not called again after that.
    #[must_use]
    pub fn new(poll: impl FnMut() -> Ended<M> + 'static) -> Self {
        Self(Box::new(poll))
    }

    /// A registration that has ended.
    #[must_use]
    pub fn ended(result: Result<M, MemoryError>) -> Self {
        let mut result = Some(result);
        Self::new(move || result.take())
    }

    /// The memory, or why there is none; `None`: not yet. The end is returned once.
    #[must_use]
    pub fn poll(&mut self) -> Ended<M> {
        (self.0)()
    }

    /// The same registration, of memory of another kind.
    #[must_use]
    pub fn map<T: 'static>(mut self, mut change: impl FnMut(M) -> T + 'static) -> Registration<T> {
        Registration::new(move || self.poll().map(|ended| ended.map(&mut change)))
    }
}

impl<M> fmt::Debug for Registration<M> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Registration")
    }
}
