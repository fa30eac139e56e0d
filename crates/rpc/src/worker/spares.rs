//! Memory for private copies of bodies, warm from those before.

/// Memory that is kept, in all: four of the longest messages. A body may be longer. Fresh memory costs a page fault per page:
/// `bench rpc --cell rpc/one-way/16MiB` has less than half of the bandwidth with it.
const SPARE_BYTES_MAX: usize = 1 << 26;

/// Kept until nobody has used memory for bodies for a while.
#[derive(Default)]
pub(super) struct Spares {
    bodies: Vec<Vec<u8>>,
    bytes: usize,
}

impl Spares {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Memory for a private copy, of any length.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let body = self.bodies.pop().unwrap_or_default();
        self.bytes -= body.capacity();
        body
    }

    /// Keeps the memory of a private copy for the next one, unless enough is kept.
    pub(super) fn keep(&mut self, body: Vec<u8>) {
        let bytes = self.bytes + body.capacity();
        if body.capacity() > 0 && (bytes <= SPARE_BYTES_MAX || self.bodies.is_empty()) {
            self.bytes = bytes;
            self.bodies.push(body);
        }
    }

    /// Gives the memory of one copy back; `false`: there is none. Each costs the loop as long as the system takes for
    /// its pages.
    pub(super) fn forget_one(&mut self) -> bool {
        let is_there = !self.bodies.is_empty();
        drop(self.take());
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Vec<u8> {
        Vec::with_capacity(bytes)
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_one_by_one() {
        let mut spares = Spares::default();
        (0..5).for_each(|_| spares.keep(body(SPARE_BYTES_MAX / 4)));
        spares.keep(body(0));
        let gone = (0..10).filter(|_| spares.forget_one()).count();
        assert_eq!((gone, spares.bytes), (4, 0));
        assert_eq!(spares.take().capacity(), 0);
    }

    #[test]
    fn one_that_is_longer_than_all_may_be_kept_alone() {
        let mut spares = Spares::default();
        spares.keep(body(SPARE_BYTES_MAX + 1));
        spares.keep(body(1));
        assert!(spares.take().capacity() > SPARE_BYTES_MAX);
        assert_eq!((spares.bodies.len(), spares.bytes), (0, 0));
    }
}
