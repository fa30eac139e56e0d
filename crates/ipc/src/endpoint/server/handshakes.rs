//! How much of a server's time newcomers get while clients have requests.

use crate::endpoint::{
    poller::Ready,
    server::poll_key::{PollKey, Source},
};

/// Handshakes get one part in so many of the time of a server that has requests to take.
const PARTS: u64 = 8;

/// Looks at the kernel after which a server that has taken no request counts as idle.
const BUSY_LOOKS: u8 = 4;

/// What one handshake counts for at most: what took longer was no work, for the server did not run meanwhile.
const SPENT_NS_MAX: u64 = 5_000_000;

/// The order in which newcomers are looked at: hellos before new connections, and the oldest first. Otherwise
/// connections that come without end displace those whose hellos nobody has read.
pub(crate) fn put_in_order(newcomers: &mut [Ready]) {
    newcomers.sort_unstable_by_key(|ready| {
        let PollKey { source, generation, .. } = PollKey::from_word(ready.key);
        let rank = match source {
            Source::Pending => 0,
            Source::Handoff | Source::Introducer => 1,
            Source::Listener | Source::Socket | Source::Process => 2,
        };
        (rank, generation)
    });
}

/// When the next handshake may be worked on.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    from_ns: u64,
    busy_looks: u8,
}

impl Handshakes {
    /// A turn had requests.
    #[inline]
    pub(crate) fn note_busy(&mut self) {
        self.busy_looks = BUSY_LOOKS;
    }

    /// The server looks at what the kernel has to say.
    pub(crate) fn look(&mut self) {
        self.busy_looks = self.busy_looks.saturating_sub(1);
    }

    /// Whether a handshake may be worked on now. What has to wait is announced again.
    pub(crate) fn may_begin(&self, now_ns: u64) -> bool {
        now_ns >= self.from_ns
    }

    /// A handshake was worked on from `began_ns` to `now_ns`.
    pub(crate) fn worked(&mut self, began_ns: u64, now_ns: u64) {
        let spent_ns = now_ns.saturating_sub(began_ns).min(SPENT_NS_MAX);
        let pause_ns = if self.busy_looks > 0 { spent_ns * (PARTS - 1) } else { 0 };
        self.from_ns = now_ns.saturating_add(pause_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough that a share shows, and short for an interpreter.
    const END_NS: u64 = if cfg!(miri) { 30_000_000 } else { 1_000_000_000 };

    /// Thousandths of the time that handshakes of 60 µs each get which come without end.
    fn share(is_busy: bool) -> u64 {
        let (mut handshakes, mut now_ns, mut spent_ns) = (Handshakes::default(), 1, 0);
        while now_ns < END_NS {
            if is_busy {
                handshakes.note_busy();
            }
            handshakes.look();
            for _ in 0..32 {
                if handshakes.may_begin(now_ns) {
                    handshakes.worked(now_ns, now_ns + 60_000);
                    now_ns += 60_000;
                    spent_ns += 60_000;
                }
            }
            now_ns += 10_000;
        }
        spent_ns * 1000 / now_ns
    }

    /// A process that is stopped while it works on a handshake, as for a second, would let nobody in for seven.
    #[test]
    fn fault_i10_a_server_that_was_stopped_in_a_handshake_soon_works_on_the_next() {
        let mut handshakes = Handshakes::default();
        handshakes.note_busy();
        handshakes.worked(1_000, 10_000_001_000);
        assert!(!handshakes.may_begin(10_000_002_000));
        assert!(handshakes.may_begin(10_050_001_000));
    }

    #[test]
    fn hellos_are_read_before_connections_are_accepted_and_the_oldest_first() {
        let ready = |key: PollKey| Ready { key: key.to_word(), hung_up: false };
        let (first, second) = (PollKey::pending(2), PollKey::pending(9));
        let order = [first, second, PollKey::HANDOFF, PollKey::LISTENER].map(ready);
        let mut newcomers = [order[3], order[1], order[2], order[0]];
        put_in_order(&mut newcomers);
        assert_eq!(newcomers, order);
    }

    #[test]
    fn fault_i10_handshakes_get_an_eighth_of_a_busy_server_and_all_of_an_idle_one() {
        assert!((90..=126).contains(&share(true)), "{}", share(true));
        assert!(share(false) > 980, "{}", share(false));
    }
}
