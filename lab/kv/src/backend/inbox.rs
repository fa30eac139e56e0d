//! Messages that arrived inside a callback and are handed out after it. Memory is used again.

use std::collections::VecDeque;

#[derive(Debug)]
pub(in crate::backend) struct Inbox<T> {
    bytes: Vec<u8>,
    /// What a message belongs to, and where its bytes end; they begin where those before end.
    entries: VecDeque<(T, usize)>,
    begin: usize,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { bytes: Vec::new(), entries: VecDeque::new(), begin: 0 }
    }
}

impl<T> Inbox<T> {
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(in crate::backend) fn push(&mut self, tag: T, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.entries.push_back((tag, self.bytes.len()));
    }

    pub(in crate::backend) fn pop(&mut self) -> Option<(T, &[u8])> {
        let Some((tag, end)) = self.entries.pop_front() else {
            self.bytes.clear();
            self.begin = 0;
            return None;
        };
        let begin = std::mem::replace(&mut self.begin, end);
        Some((tag, &self.bytes[begin..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut inbox = Inbox::default();
        for round in 0..3 {
            inbox.push(round, b"one");
            inbox.push(round + 10, b"");
            assert_eq!(inbox.pop(), Some((round, &b"one"[..])));
            inbox.push(round + 20, b"three");
            assert_eq!(inbox.pop(), Some((round + 10, &b""[..])));
            assert_eq!(inbox.pop(), Some((round + 20, &b"three"[..])));
            assert!(inbox.is_empty() && inbox.pop().is_none());
        }
        assert!(inbox.bytes.is_empty(), "memory is used again");
    }
}
