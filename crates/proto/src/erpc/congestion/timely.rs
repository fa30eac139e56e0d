//! A rate from round trips: it grows while they are short or become shorter, and falls with their gradient.
//!
//! Source: R. Mittal and others, *TIMELY: RTT-based Congestion Control for the Datacenter*, SIGCOMM 2015,
//! algorithm 1; values as eRPC has them, commit de83dab3.

/// Values of Timely. Rates are in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyConfig {
    /// Rate of the link: a session begins with it and never exceeds it.
    pub link_rate: f64,
    /// A session never sends slower.
    pub rate_min: f64,
    /// The increment of a rate.
    pub additive: f64,
    /// Round trip of an idle network.
    pub rtt_min_ns: f64,
    /// Below this round trip the rate grows whatever the gradient.
    pub low_ns: f64,
    /// Above this round trip the rate falls whatever the gradient.
    pub high_ns: f64,
    /// Weight of the latest difference of round trips.
    pub weight: f64,
    /// How strongly the rate falls.
    pub decrease: f64,
    /// Gradients in a row that are not positive, after which the rate grows five times as fast.
    pub hyper_after: u32,
}

/// How much faster a rate grows then.
const HYPER: f64 = 5.0;

impl TimelyConfig {
    /// Values of eRPC for a link of `link_rate` bytes per second.
    #[must_use]
    pub const fn new(link_rate: f64) -> Self {
        Self {
            link_rate,
            rate_min: 15e6,
            additive: 5e6,
            rtt_min_ns: 2e3,
            low_ns: 50e3,
            high_ns: 1e6,
            weight: 0.46,
            decrease: 0.26,
            hyper_after: 5,
        }
    }
}

/// The rate of one session.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    config: TimelyConfig,
    rate: f64,
    previous_rtt_ns: f64,
    /// Moving average of differences of round trips.
    difference_ns: f64,
    updated_ns: u64,
    falling: u32,
}

impl Timely {
    /// Begins at the rate of the link.
    #[must_use]
    pub fn new(config: TimelyConfig) -> Self {
        Self {
            config,
            rate: config.link_rate,
            previous_rtt_ns: config.rtt_min_ns,
            difference_ns: 0.0,
            updated_ns: 0,
            falling: 0,
        }
    }

    /// In bytes per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The session may send at once.
    #[must_use]
    pub fn is_at_link_rate(&self) -> bool {
        self.rate >= self.config.link_rate
    }

    /// A packet was answered `rtt_ns` after it was sent.
    pub fn update(&mut self, rtt_ns: u64, now_ns: u64) {
        let config = self.config;
        let rtt_ns = rtt_ns as f64;
        if self.is_at_link_rate() && rtt_ns <= config.low_ns {
            self.previous_rtt_ns = rtt_ns;
            return;
        }
        let difference_ns = rtt_ns - self.previous_rtt_ns;
        self.previous_rtt_ns = rtt_ns;
        self.difference_ns += config.weight * (difference_ns - self.difference_ns);
        let gradient = self.difference_ns / config.rtt_min_ns;
        let passed_ns = now_ns.saturating_sub(self.updated_ns) as f64;
        let step = (passed_ns / config.rtt_min_ns).min(1.0);
        self.updated_ns = now_ns;
        let is_falling = (config.low_ns..=config.high_ns).contains(&rtt_ns) && gradient <= 0.0;
        self.falling = if is_falling { self.falling.saturating_add(1) } else { 0 };
        let rate = if rtt_ns < config.low_ns {
            self.rate + config.additive * step
        } else if rtt_ns > config.high_ns {
            self.rate * (1.0 - step * config.decrease * (1.0 - config.high_ns / rtt_ns))
        } else if is_falling {
            let factor = if self.falling >= config.hyper_after { HYPER } else { 1.0 };
            self.rate + factor * config.additive * step
        } else {
            self.rate * (1.0 - step * config.decrease * gradient)
        };
        self.rate = rate.max(self.rate * 0.5).max(config.rate_min).min(config.link_rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: f64 = 12.5e9;

    fn after(rtts_ns: impl IntoIterator<Item = u64>) -> Timely {
        let mut timely = Timely::new(TimelyConfig::new(LINK));
        for (nth, rtt_ns) in (1..).zip(rtts_ns) {
            timely.update(rtt_ns, nth * 10_000);
        }
        timely
    }

    #[test]
    fn short_round_trips_leave_the_rate_at_the_link() {
        let timely = after([2_000, 49_999, 3_000, 50_000]);
        assert!(timely.is_at_link_rate());
    }

    #[test]
    fn long_round_trips_lower_the_rate_by_at_most_half_and_never_below_the_least() {
        let timely = after([2_000_000]);
        let expected = LINK * (1.0 - 0.26 * 0.5);
        assert!((timely.rate() - expected).abs() < 1.0, "{}", timely.rate());
        let timely = after([800_000]);
        assert!((timely.rate() - LINK * 0.5).abs() < 1.0, "a steep gradient: half");
        let timely = after((0..200).map(|nth| 60_000 + nth * 4_000));
        assert!((timely.rate() - 15e6).abs() < 1.0);
    }

    #[test]
    fn after_congestion_the_rate_grows_to_the_link_again() {
        let mut timely = after((0..200).map(|nth| 60_000 + nth * 4_000));
        let slow = timely.rate();
        timely.update(100_000, 3_000_000);
        for nth in 0..5000 {
            timely.update(10_000, 4_000_000 + nth * 10_000);
        }
        assert!(timely.rate() > slow && timely.is_at_link_rate());
    }

    #[test]
    fn five_gradients_that_fall_speed_up_growth() {
        let mut timely = after((0..200).map(|nth| 60_000 + nth * 4_000));
        let mut grown = std::vec::Vec::new();
        for nth in 0..60u64 {
            let before = timely.rate();
            timely.update(800_000 - nth * 5_000, 10_000_000 + nth * 10_000);
            grown.push(timely.rate() - before);
        }
        let first = grown.iter().position(|grown| *grown > 0.0).unwrap();
        assert!((grown[first] - 5e6).abs() < 1.0 && (grown[first + 5] - 25e6).abs() < 1.0);
    }

    #[test]
    fn updates_close_together_count_in_proportion() {
        let mut timely = Timely::new(TimelyConfig::new(LINK));
        timely.update(2_000_000, 1_000_000);
        let before = timely.rate();
        timely.update(2_000_000, 1_001_000);
        let fallen = 1.0 - timely.rate() / before;
        assert!((fallen - 0.5 * 0.26 * 0.5).abs() < 1e-9, "half of the least round trip: {fallen}");
    }
}
