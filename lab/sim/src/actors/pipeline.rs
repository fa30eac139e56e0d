//! A program that keeps work in flight, and the other end of it: raw entries, which a NIC answers alone, or calls
//! over some endpoints, which travel in batches and which another program answers.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    machine::LoopbackProfile,
    world::{Time, World},
};

/// What is kept in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Entries of one queue.
    Entries {
        /// So many.
        depth: u32,
        /// The queue goes on after so many ns.
        queue_ns: f64,
        /// The program takes so many ns for each.
        post_ns: f64,
    },
    /// Calls.
    Calls {
        /// Over so many endpoints.
        endpoints: usize,
        /// So many over each.
        depth: u32,
    },
}

/// A batch that has arrived: when, in ps, its number, endpoint and messages.
type Arrival = Reverse<(u64, u64, usize, u32)>;

#[derive(Debug, Default)]
struct End {
    arrivals: BinaryHeap<Arrival>,
    /// Messages by endpoint that wait for the end of the turn.
    pending: Vec<u32>,
    /// When the queue of each endpoint is free, in ns.
    queues: Vec<f64>,
}

struct Pipeline<'a> {
    profile: &'a LoopbackProfile,
    work: Work,
    ends: [End; 2],
    sent: u64,
    done: u64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of some ms, in ps"
)]
const fn ps(ns: f64) -> u64 {
    (ns * 1000.0) as u64
}

/// Runs for `length_us`, of which the first fifth is not counted. Returns the time per operation, in ns, and a
/// hash of all turns.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
pub fn run(profile: &LoopbackProfile, work: Work, length_us: u32) -> (f64, u64) {
    let mut pipeline = Pipeline::new(profile, work);
    let mut world = World::default();
    let length = Time::from_ns(u64::from(length_us) * 1000);
    let warm = Time::from_ns(u64::from(length_us) * 200);
    let ends = if matches!(work, Work::Calls { .. }) { 2 } else { 1 };
    (0..ends).for_each(|end| world.schedule(Time::ZERO, end));
    let mut done_warm = None;
    while let Some(end) = world.next(length) {
        if world.now() >= warm {
            done_warm.get_or_insert(pipeline.done);
        }
        let next_ns = pipeline.turn(end, world.now().as_ns());
        world.schedule(Time::from_ps(ps(next_ns)), end);
    }
    let done = pipeline.done - done_warm.unwrap_or(0);
    (length.since(warm).as_ns() / done.max(1) as f64, world.trace())
}

impl<'a> Pipeline<'a> {
    fn new(profile: &'a LoopbackProfile, work: Work) -> Self {
        let (endpoints, depth) = match work {
            Work::Entries { depth, .. } => (1, depth),
            Work::Calls { endpoints, depth } => (endpoints, depth),
        };
        let end = |pending| End {
            pending: vec![pending; endpoints],
            queues: vec![0.0; endpoints],
            ..End::default()
        };
        Self { profile, work, ends: [end(depth), end(0)], sent: 0, done: 0 }
    }

    /// One turn of a program; returns when the next one begins.
    fn turn(&mut self, end: usize, began: f64) -> f64 {
        let mut now = began;
        while let Some((endpoint, messages)) = self.take(end, now) {
            if end == 0 {
                self.done += u64::from(messages);
            }
            self.ends[end].pending[endpoint] += messages;
            if let Work::Calls { .. } = self.work {
                now += self.profile.completion + f64::from(messages) * self.profile.message;
                // Assumed: answers leave before the next completion is taken. If they did not, both ends would
                // work in turns, and never at once.
                break;
            }
        }
        for endpoint in 0..self.ends[end].pending.len() {
            let messages = std::mem::take(&mut self.ends[end].pending[endpoint]);
            if messages > 0 {
                now = self.send(end, endpoint, messages, now);
            }
        }
        now + self.profile.turn
    }

    /// Endpoint and messages of a batch that has arrived.
    fn take(&mut self, end: usize, now: f64) -> Option<(usize, u32)> {
        let arrivals = &mut self.ends[end].arrivals;
        let is_here = arrivals.peek().is_some_and(|Reverse((at, ..))| *at <= ps(now));
        let Reverse((_, _, endpoint, messages)) = is_here.then(|| arrivals.pop())??;
        Some((endpoint, messages))
    }

    /// Posts messages; returns when the program goes on.
    fn send(&mut self, end: usize, endpoint: usize, messages: u32, now: f64) -> f64 {
        match self.work {
            Work::Calls { .. } => {
                let now = now + self.profile.flush;
                let left = self.queue(end, endpoint, now, self.profile.write);
                let at = left + self.profile.one_way - self.profile.write + self.profile.batch;
                self.arrive(1 - end, at, endpoint, messages);
                now
            }
            Work::Entries { queue_ns, post_ns, .. } => {
                let mut now = now;
                for _ in 0..messages {
                    now += post_ns;
                    // The answer of the NIC takes as long as the entry.
                    let left = self.queue(end, endpoint, now, queue_ns);
                    let at = left + 2.0 * self.profile.one_way - queue_ns;
                    self.arrive(end, at, endpoint, 1);
                }
                now
            }
        }
    }

    fn queue(&mut self, end: usize, endpoint: usize, now: f64, entry_ns: f64) -> f64 {
        let free = &mut self.ends[end].queues[endpoint];
        *free = free.max(now) + entry_ns;
        *free
    }

    fn arrive(&mut self, end: usize, at: f64, endpoint: usize, messages: u32) {
        self.sent += 1;
        self.ends[end].arrivals.push(Reverse((ps(at), self.sent, endpoint, messages)));
    }
}
