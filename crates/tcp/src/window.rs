//! How much may be on its way to a port: requests that it has not run yet.

use std::collections::VecDeque;

/// Bytes that may be on their way to a port; one message more if none is.
const WINDOW_BYTES: usize = 4 << 20;
/// The bytes that a request counts beside its payload.
const REQUEST_BYTES: usize = 128;

/// Requests that a port has not said to have run.
#[derive(Debug, Default)]
pub(crate) struct Window {
    costs: VecDeque<usize>,
    bytes: usize,
    taken: u64,
    /// Since when nothing was taken, though there is something to take.
    pub(crate) waiting_since_ns: u64,
}

impl Window {
    /// Whether another request may leave.
    pub(crate) fn is_open(&self) -> bool {
        self.bytes < WINDOW_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.costs.is_empty()
    }

    pub(crate) fn send(&mut self, payload_bytes: usize, now_ns: u64) {
        if self.costs.is_empty() {
            self.waiting_since_ns = now_ns;
        }
        let cost = payload_bytes + REQUEST_BYTES;
        self.costs.push_back(cost);
        self.bytes += cost;
    }

    /// The port has run so many requests in all; `false` if that cannot be.
    pub(crate) fn take(&mut self, taken: u64, now_ns: u64) -> bool {
        let Some(more) = taken.checked_sub(self.taken) else { return false };
        if more > self.costs.len() as u64 {
            return false;
        }
        for _ in 0..more {
            self.bytes -= self.costs.pop_front().unwrap_or(0);
        }
        if more > 0 {
            self.waiting_since_ns = now_ns;
        }
        self.taken = taken;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_closes_and_opens_by_what_is_taken() {
        let mut window = Window::default();
        let mut sent = 0;
        while window.is_open() {
            window.send(64 << 10, 1);
            sent += 1;
        }
        assert!(sent > 32 && !window.is_empty());
        assert!(window.take(sent / 2, 2) && window.is_open());
        assert_eq!(window.waiting_since_ns, 2);
        assert!(!window.take(sent / 2 - 1, 2), "it goes back");
        assert!(!window.take(sent + 1, 2), "more than was sent");
        assert!(window.take(sent, 3) && window.is_empty());
        window.send(0, 9);
        assert_eq!(window.waiting_since_ns, 9);
    }

    #[test]
    fn a_message_longer_than_the_window_passes_alone() {
        let mut window = Window::default();
        assert!(window.is_open());
        window.send(1 << 30, 0);
        assert!(!window.is_open());
        assert!(window.take(1, 0) && window.is_open());
    }
}
