//! Calls that went without the daemon, which is told of them at intervals.

use std::time::Duration;

use ipc::ClientId;
use os::clock;
use proto::Status;

use crate::{
    message::{DirectRecord, report},
    provider::{process_clock::ProviderClock, verdict::Verdict},
};

/// Statuses, as the service's word and as that of nobody.
const KINDS: usize = 2 * Status::ALL.len();

/// Answers to one client.
#[derive(Debug)]
struct Counts {
    client: ClientId,
    /// Name of its introduction.
    tag: u64,
    by_kind: [u32; KINDS],
}

impl Counts {
    fn records(&mut self) -> impl Iterator<Item = DirectRecord> {
        let (tag, by_kind) = (self.tag, std::mem::replace(&mut self.by_kind, [0; KINDS]));
        (0_u8..).zip(by_kind).filter(|(_, count)| *count > 0).map(move |(kind, count)| {
            DirectRecord {
                tag: tag.into(),
                count: count.into(),
                status: kind / 2,
                is_of_service: kind % 2,
                reserved: [0; 2],
            }
        })
    }
}

/// Answers of one provider that its daemon does not know of.
#[derive(Debug)]
pub(super) struct DirectCounts {
    /// Time between two messages to the daemon.
    interval: Duration,
    /// By slot of the client.
    clients: Vec<Option<Counts>>,
    /// Of clients that are gone.
    untold: Vec<DirectRecord>,
    has_some: bool,
    tell_ns: u64,
}

impl DirectCounts {
    pub(super) fn new(interval: Duration) -> Self {
        let (clients, untold) = (Vec::new(), Vec::new());
        Self { interval, clients, untold, has_some: false, tell_ns: 0 }
    }

    /// A client of this introduction got an answer.
    #[inline]
    pub(super) fn add(&mut self, client: ClientId, verdict: Verdict, tag: impl FnOnce() -> u64) {
        let slot = usize::from(client.slot());
        let kind = 2 * usize::from(verdict.status.code()) + usize::from(verdict.is_of_service());
        self.has_some = true;
        if let Some(Some(counts)) = self.clients.get_mut(slot)
            && counts.client == client
        {
            counts.by_kind[kind] += 1;
            return;
        }
        self.begin(slot, client, tag()).by_kind[kind] = 1;
    }

    #[cold]
    fn begin(&mut self, slot: usize, client: ClientId, tag: u64) -> &mut Counts {
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        let place = &mut self.clients[slot];
        self.untold.extend(place.iter_mut().flat_map(Counts::records));
        place.insert(Counts { client, tag, by_kind: [0; KINDS] })
    }

    /// What the daemon is to be told, if it is time to, or at once.
    pub(super) fn take(&mut self, clock: &impl ProviderClock, at_once: bool) -> Vec<DirectRecord> {
        if !self.has_some {
            return Vec::new();
        }
        let now_ns = clock.now_ns();
        if now_ns < self.tell_ns && !at_once {
            return Vec::new();
        }
        self.tell_ns = now_ns.saturating_add(clock::duration_ns(self.interval));
        self.untold.extend(self.clients.iter_mut().flatten().flat_map(Counts::records));
        let rest = self.untold.split_off(self.untold.len().min(report::RECORDS_MAX / 8));
        let told = std::mem::replace(&mut self.untold, rest);
        self.has_some = !self.untold.is_empty();
        told
    }

    /// How long the daemon may be told nothing.
    pub(super) fn wait_max(&self, clock: &impl ProviderClock) -> Option<Duration> {
        let left = || Duration::from_nanos(self.tell_ns.saturating_sub(clock.now_ns()));
        self.has_some.then(left)
    }
}
