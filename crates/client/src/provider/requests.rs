//! Requests that handlers have, and how many there may be.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    mem,
    sync::Arc,
};

use crate::provider::{
    cancellation::Cancellation,
    inbound::Inbound,
    link::{DaemonLink, Told},
    offer::WINDOW,
    outbox::Work,
    place::DaemonConnection,
};

/// Is given a request by its number; says how it is told that nobody waits for it, if it can be.
pub(super) type Take<'a> = dyn FnMut(Work, &Inbound<'_>) -> Option<Arc<Cancellation>> + 'a;

/// How each of these requests is told that nobody waits for it.
type Given = HashMap<Work, Arc<Cancellation>, BuildHasherDefault<NumberHasher>>;

/// The requests of a provider.
#[derive(Debug)]
pub(super) struct Requests {
    /// Requests that were given and not answered, if handlers of other threads or tasks have them.
    given: Given,
    /// Requests that the daemon gave while there were as many as there may be.
    backlog: VecDeque<Vec<u8>>,
    /// Requests of the daemon that this process has at a time.
    window: usize,
    /// The same of clients: more than those of the daemon while it answers them where it reads them.
    clients_window: usize,
}

impl Requests {
    pub(super) fn new(window: usize) -> Self {
        Self { given: Given::default(), backlog: VecDeque::new(), window, clients_window: 0 }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn clients_window(&self) -> usize {
        self.clients_window
    }

    /// There are at most so many of the daemon from now on.
    pub(super) fn set_window(&mut self, window: usize) {
        self.window = window;
        self.clients_window = window;
    }

    /// Another connection allows so many.
    pub(super) fn bound_window(&mut self, room: usize) {
        self.window = self.window.min(room);
        self.clients_window = self.clients_window.max(self.window);
    }

    /// From now on, the thread that reads requests of clients answers them, or leaves that to others. A look of the
    /// former finds more: each look costs both sides.
    pub(super) fn take_more_of_clients(&mut self, takes_more: bool) {
        self.clients_window = self.window.max(if takes_more { WINDOW } else { 0 });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Requests of the daemon that are not answered.
    pub(super) fn of_daemon(&self) -> usize {
        let is_of_daemon = |work: &&Work| matches!(work, Work::Daemon(_));
        self.given.keys().filter(is_of_daemon).count() + self.backlog.len()
    }

    /// Requests that are not answered.
    pub(super) fn unanswered(&self) -> usize {
        self.given.len() + self.backlog.len()
    }

    pub(super) fn has_room_for_clients(&self) -> bool {
        self.given.len() < self.clients_window
    }

    /// What the daemon told.
    pub(super) fn told(&mut self, told: Told<'_>, take: &mut Take<'_>) {
        match told {
            // Without cancellation requests are answered before others are read.
            Told::Request { message, .. } if self.given.len() >= self.window => {
                self.backlog.push_back(message.to_vec());
            }
            Told::Request { work, inbound, .. } => self.give(work, take(work, &inbound)),
            Told::Cancelled(work) => {
                if let Some(cancellation) = self.given.get(&work) {
                    cancellation.cancel();
                }
            }
        }
    }

    /// Gives what there was no room for before.
    pub(super) fn give_backlog(
        &mut self,
        link: &DaemonLink<impl DaemonConnection>,
        take: &mut Take<'_>,
    ) {
        while self.given.len() < self.window
            && let Some(message) = self.backlog.pop_front()
        {
            if let Some((work, inbound)) = link.parse(&message) {
                self.give(work, take(work, &inbound));
            }
        }
    }

    /// A request was given, to a handler that is told by `cancellation` that nobody waits for it, if it can be.
    pub(super) fn give(&mut self, work: Work, cancellation: Option<Arc<Cancellation>>) {
        if let Some(cancellation) = cancellation {
            self.given.insert(work, cancellation);
        }
    }

    /// A request is answered.
    pub(super) fn end(&mut self, work: Work) {
        self.given.remove(&work);
    }

    /// Cancels requests of clients for which this holds.
    pub(super) fn cancel_of_clients(&self, mut is_abandoned: impl FnMut(ipc::RequestId) -> bool) {
        for (work, cancellation) in &self.given {
            if let Work::Client(id) = work
                && is_abandoned(*id)
            {
                cancellation.cancel();
            }
        }
    }

    /// Nobody waits for what a connection brought any more.
    pub(super) fn cancel_all(&mut self) {
        self.backlog.clear();
        for cancellation in mem::take(&mut self.given).into_values() {
            cancellation.cancel();
        }
    }
}

/// Hashes names of requests. The daemon and this process count them, so nobody else chooses them.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

/// The golden ratio, as a fraction of 2^64: neighbours differ in the upper bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(GOLDEN);
    }

    // The kind of a name.
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::BuildHasher as _};

    use super::*;

    #[test]
    fn names_in_a_row_have_hashes_that_differ_in_both_ends() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let hashes: Vec<_> = (0..256).map(|number| build.hash_one(Work::Daemon(number))).collect();
        let low: HashSet<_> = hashes.iter().map(|hash| hash & 0xff).collect();
        let high: HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
        assert!(low.len() > 128 && high.len() > 96, "{} and {}", low.len(), high.len());
    }
}
