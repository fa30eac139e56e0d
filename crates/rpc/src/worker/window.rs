//! How many batches of a worker may be unfinished, over all of its peers (rule C7.8).

use proto::copyrpc::FlushPolicy;

/// The smallest limit. A NIC that takes one request after the other is kept busy by fewer.
const LIMIT_MIN: u32 = 8;
/// The limit while the shortest time is taken, and how many batches that takes.
const PROBE_LIMIT: u32 = 3;
const PROBE_BATCHES: u32 = 4;
/// Rounds between two probes, at first and at last.
const PROBE_ROUNDS: [u32; 2] = [4, 256];
/// A full window in which nothing ends for so long grows: peers that are gone keep their places until the NIC
/// gives them up.
const STALL_NS: u64 = 100_000;

/// The limit of unfinished batches that a NIC has from a worker.
///
/// A batch that stands in the NIC's queue takes no more messages, one that waits in the worker does. So where the
/// NIC is what calls wait for, the worker gives it what keeps it busy and no more. That shows in the time from
/// posting to completion: the limit falls while no batch takes less than one and a half times the shortest time,
/// and rises where batches wait for it and some are quicker. (Delay as the signal, as in TCP Vegas: Brakmo, O'Malley
/// and Peterson, SIGCOMM 1994.) The shortest time is that of a few batches now and then which are alone with the NIC
/// (as BBR does: Cardwell et al., ACM Queue 14(5), 2016), so it does not depend on what came before.
///
/// A completion is seen at a poll, and may have come any time since the poll before. So the shortest time is taken
/// from the middle of that, and times that are compared with it from the begin: polls that are far apart are not
/// taken for a NIC that is slow.
#[derive(Debug)]
pub(super) struct SendWindow {
    limit: u32,
    shortest_ns: u64,
    /// The last poll, and the one before it.
    polls_ns: [u64; 2],
    /// When a batch ended, or the limit grew because none did.
    progress_ns: u64,
    round: Round,
    probe: Probe,
}

/// What was seen since the limit was last thought over.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    ended: u32,
    /// The shortest time of a batch, at least.
    least_ns: Option<u64>,
    /// Most that were unfinished.
    most: u32,
    /// Batches waited for the limit.
    is_limited: bool,
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    /// None now.
    Idle {
        /// Rounds until the next one begins.
        rounds: u32,
        /// And how many there were before.
        interval: u32,
    },
    /// The shortest time is taken.
    Running {
        /// Batches that are to end: those before it, and its own.
        batches: u32,
        shortest_ns: u64,
        interval: u32,
    },
}

impl SendWindow {
    /// Only where a policy waits for completions, and so asks for one with each batch, there is a limit.
    pub(super) fn new(policy: FlushPolicy, now_ns: u64) -> Option<Self> {
        let [interval, _] = PROBE_ROUNDS;
        (policy == FlushPolicy::SelfClocked { wqes: 1 }).then(|| Self {
            limit: u32::from(u16::MAX),
            shortest_ns: u64::MAX,
            polls_ns: [now_ns; 2],
            progress_ns: now_ns,
            round: Round::default(),
            probe: Probe::Idle { rounds: interval, interval },
        })
    }

    /// A poll begins.
    #[inline]
    pub(super) fn polled(&mut self, now_ns: u64) {
        self.polls_ns = [now_ns, self.polls_ns[0]];
    }

    #[inline]
    fn limit(&self) -> u32 {
        match self.probe {
            Probe::Idle { .. } => self.limit,
            Probe::Running { .. } => PROBE_LIMIT,
        }
    }

    /// Whether another batch may be posted while so many are unfinished.
    #[inline]
    pub(super) fn has_room(&mut self, unfinished: u32) -> bool {
        self.round.most = self.round.most.max(unfinished);
        unfinished < self.limit() || self.is_stalled(unfinished)
    }

    #[cold]
    fn is_stalled(&mut self, unfinished: u32) -> bool {
        self.round.is_limited = true;
        let [now_ns, _] = self.polls_ns;
        let is_stalled = self.stalls_ns(unfinished).is_some_and(|stalls_ns| now_ns >= stalls_ns);
        if is_stalled {
            self.progress_ns = now_ns;
            match self.probe {
                Probe::Idle { .. } => self.limit = unfinished + 1,
                Probe::Running { interval, .. } => self.end_probe(interval),
            }
        }
        is_stalled
    }

    /// When the limit grows if nothing ends until then; `None`: there is room.
    pub(super) fn stalls_ns(&self, unfinished: u32) -> Option<u64> {
        (unfinished >= self.limit()).then(|| self.progress_ns.saturating_add(STALL_NS))
    }

    /// A batch that was posted then has ended.
    #[inline]
    pub(super) fn ended(&mut self, posted_ns: u64) {
        let [now_ns, before_ns] = self.polls_ns;
        self.progress_ns = now_ns;
        let least_ns = before_ns.saturating_sub(posted_ns);
        let middle_ns = (least_ns + now_ns.saturating_sub(posted_ns)) / 2;
        if let Probe::Running { batches, shortest_ns, .. } = &mut self.probe {
            *batches -= 1;
            *shortest_ns = (*shortest_ns).min(middle_ns.max(1));
            return self.go_on();
        }
        self.shortest_ns = self.shortest_ns.min(middle_ns.max(1));
        let round = &mut self.round;
        round.least_ns = Some(round.least_ns.map_or(least_ns, |least| least.min(least_ns)));
        round.ended += 1;
        if round.ended >= LIMIT_MIN && round.ended >= round.most {
            self.think_over();
        }
    }

    fn think_over(&mut self) {
        let Round { least_ns, most, is_limited, .. } = std::mem::take(&mut self.round);
        let least_ns = least_ns.unwrap_or(0);
        let aim_ns = self.shortest_ns.saturating_mul(3) / 2;
        if least_ns > aim_ns {
            // Where all stand in one queue, half of them take half as long.
            let limit = self.limit.min(most);
            let aim = u32::try_from(u64::from(limit) * aim_ns / least_ns).unwrap_or(limit);
            self.limit = aim.max(limit / 2).min(limit.saturating_sub(1)).max(LIMIT_MIN);
        } else if is_limited {
            self.limit = (self.limit + 1).min(u16::MAX.into());
        }
        // A NIC that has done all of it by the next poll needs no probe, nor do few peers.
        let Probe::Idle { rounds, interval } = &mut self.probe else { return };
        if least_ns > 0 && most >= LIMIT_MIN {
            *rounds -= 1;
            if *rounds == 0 {
                let (batches, interval) = (most + PROBE_BATCHES, *interval);
                self.probe = Probe::Running { batches, shortest_ns: u64::MAX, interval };
            }
        }
    }

    #[cold]
    fn go_on(&mut self) {
        if let Probe::Running { batches: 0, shortest_ns, interval } = self.probe {
            self.shortest_ns = shortest_ns;
            self.end_probe(interval);
        }
    }

    fn end_probe(&mut self, interval: u32) {
        let [_, last] = PROBE_ROUNDS;
        let interval = (2 * interval).min(last);
        self.probe = Probe::Idle { rounds: interval, interval };
        self.round = Round::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const POLL_NS: u64 = 500;
    const WAY_NS: u64 = 2_000;

    fn window() -> SendWindow {
        SendWindow::new(FlushPolicy::SelfClocked { wqes: 1 }, 0).unwrap()
    }

    /// A NIC that takes `wqe_ns` for a request, of which `peers` want one each all the time, from a window on;
    /// returns the most that were unfinished in the last quarter of a number of polls `poll_ns` apart.
    fn most_of(window: &mut SendWindow, wqe_ns: u64, peers: u32, poll_ns: u64) -> u32 {
        let mut unfinished: VecDeque<[u64; 2]> = VecDeque::new();
        let (mut free_ns, mut most, mut count) = (0, 0, 0);
        let begin = window.polls_ns[0] / poll_ns;
        for poll in begin + 1..=begin + 8000 {
            let now_ns = poll * poll_ns;
            window.polled(now_ns);
            while unfinished.front().is_some_and(|[_, ends_ns]| *ends_ns <= now_ns) {
                let [posted_ns, _] = unfinished.pop_front().unwrap();
                window.ended(posted_ns);
                count -= 1;
            }
            while count < peers && window.has_room(count) {
                free_ns = now_ns.max(free_ns) + wqe_ns;
                unfinished.push_back([now_ns, free_ns + WAY_NS]);
                count += 1;
            }
            if poll > begin + 6000 {
                most = most.max(count);
            }
        }
        most
    }

    /// Rule C7.8.
    #[test]
    fn a_nic_that_calls_wait_for_gets_what_keeps_it_busy() {
        let most = most_of(&mut window(), 600, 100, POLL_NS);
        // It has four while the first one of them travels; twice the shortest time is that of some more.
        assert!((LIMIT_MIN..=14).contains(&most), "{most}");
    }

    #[test]
    fn a_nic_that_is_quick_gets_all() {
        assert_eq!(most_of(&mut window(), 10, 100, POLL_NS), 100);
        // And again, once it was slow.
        let mut window = window();
        assert!(most_of(&mut window, 600, 100, POLL_NS) < 20);
        assert!(most_of(&mut window, 10, 100, POLL_NS) > 90);
    }

    #[test]
    fn few_peers_are_not_limited() {
        assert_eq!(most_of(&mut window(), 3_000, LIMIT_MIN, POLL_NS), LIMIT_MIN);
    }

    #[test]
    fn a_loop_that_is_slow_is_not_taken_for_a_nic_that_is() {
        assert_eq!(most_of(&mut window(), 10, 100, POLL_NS), 100);
        let mut window = window();
        most_of(&mut window, 10, 100, POLL_NS);
        assert_eq!(most_of(&mut window, 10, 100, 50_000), 100);
    }

    /// Rule C7.8: after 100 µs each.
    #[test]
    fn peers_that_are_gone_do_not_keep_others_from_posting() {
        let mut window = window();
        most_of(&mut window, 600, 100, POLL_NS);
        let begin_ns = window.polls_ns[0];
        let mut unfinished = 0;
        for poll in 1..=100_000 {
            window.polled(begin_ns + poll * POLL_NS);
            while unfinished < 200 && window.has_room(unfinished) {
                unfinished += 1;
            }
        }
        assert_eq!((unfinished, window.stalls_ns(199)), (200, None));
        assert!(window.stalls_ns(200).is_some_and(|stalls_ns| stalls_ns > begin_ns));
    }

    #[test]
    fn policies_that_do_not_ask_for_completions_have_no_limit() {
        assert!(SendWindow::new(FlushPolicy::SelfClocked { wqes: 2 }, 0).is_none());
        assert!(SendWindow::new(FlushPolicy::Immediate, 0).is_none());
    }
}
