//! Bodies that a program sends, and where they are written.

use verbs::Nic;

use crate::large::Buffer;

/// Bytes to be sent.
pub(crate) trait Body {
    fn len_bytes(&self) -> usize;

    /// Writes them to private memory of that length.
    fn write(self, to: &mut [u8]);

    /// Writes them to memory that a peer will read.
    fn lend<N: Nic>(self, to: &Buffer<N>);
}

impl Body for &[u8] {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(self);
    }

    fn lend<N: Nic>(self, to: &Buffer<N>) {
        to.write(self);
    }
}

/// A body that the program writes itself.
pub(crate) struct Filled<F> {
    pub(crate) len_bytes: usize,
    pub(crate) fill: F,
}

impl<F: FnOnce(&mut [u8])> Body for Filled<F> {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    #[inline]
    fn write(self, to: &mut [u8]) {
        to.fill(0);
        (self.fill)(to);
    }

    /// Registered memory may be mapped by peers, so no slice is formed over it: one copy more.
    fn lend<N: Nic>(self, to: &Buffer<N>) {
        let mut private = Private { body: vec![0; self.len_bytes], to };
        (self.fill)(&mut private.body);
    }
}

/// Bytes that go to lent memory, also if whoever writes them panics: there are those of an earlier body.
struct Private<'b, N: Nic> {
    body: Vec<u8>,
    to: &'b Buffer<N>,
}

impl<N: Nic> Drop for Private<'_, N> {
    fn drop(&mut self) {
        self.to.write(&self.body);
    }
}
