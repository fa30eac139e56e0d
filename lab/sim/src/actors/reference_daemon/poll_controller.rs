//! The controller of polls that was tried on the daemon of the delegation measurements and removed: it keeps the ratio of
//! turn to round trip near 1, and learns its steps from what polls bring at the start.

/// Turns of each of the two parts of the start, without and with [`PROBE_POLLS`]. Assumed.
const PART_TURNS: u32 = 256;
/// Polls of the second part of the start.
const PROBE_POLLS: u32 = 8;
/// Weights of the newest turn in the averages of turns and of round trips.
const WEIGHTS: (f64, f64) = (0.05, 0.02);
/// Turn over round trip, below and above which polls are added and taken away.
const RATIO: (f64, f64) = (0.8, 1.2);
/// Share of turns without response, above and below which polls are added and taken away.
const EMPTY: (f64, f64) = (0.75, 0.40);
/// Turns in a row before polls are added, taken away, and between two changes.
const TURNS: (u32, u32, u32) = (64, 128, 32);
/// Responses per turn and share of empty turns of a collapse.
const COLLAPSE: (f64, f64) = (1.0, 0.9);

/// What it has seen, and what follows.
#[derive(Clone, Debug, Default)]
pub(super) struct PollController {
    polls: u32,
    polls_max: u32,
    step_up: u32,
    /// Turns of the start that are over.
    turns: u32,
    /// Responses of the two parts of the start.
    learned: [u32; 2],
    responses: f64,
    empty: f64,
    turn_us: f64,
    round_trip_us: f64,
    low: u32,
    high: u32,
    rest: u32,
}

fn follow(average: &mut f64, newest: f64, weight: f64) {
    *average += weight * (newest - *average);
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between the bounds")]
fn clamped(value: f64, least: u32, most: u32) -> u32 {
    value.round().clamp(f64::from(least), f64::from(most)) as u32
}

impl PollController {
    /// Polls that a turn adds at most, until one finds something.
    pub(super) const fn polls(&self) -> u32 {
        self.polls
    }

    /// A turn with so many responses took so long.
    pub(super) fn observe(&mut self, responses: u32, turn_us: f64, round_trip_us: f64) {
        follow(&mut self.responses, f64::from(responses), WEIGHTS.0);
        follow(&mut self.empty, f64::from(u8::from(responses == 0)), WEIGHTS.0);
        follow(&mut self.turn_us, turn_us, WEIGHTS.0);
        follow(&mut self.round_trip_us, round_trip_us, WEIGHTS.1);
        if self.turns < 2 * PART_TURNS {
            self.learn(responses);
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        self.adapt();
        if self.responses < COLLAPSE.0 && self.empty > COLLAPSE.1 {
            self.change(self.polls + 2 * self.step_up);
        }
    }

    fn learn(&mut self, responses: u32) {
        self.learned[(self.turns / PART_TURNS) as usize] += responses;
        self.turns += 1;
        if self.turns == PART_TURNS {
            self.polls = PROBE_POLLS;
            self.polls_max = clamped(2.5 * self.round_trip_us, 8, 64);
        } else if self.turns == 2 * PART_TURNS {
            let [without, with] = self.learned.map(f64::from);
            let gain = (with - without) / f64::from(PART_TURNS * PROBE_POLLS);
            self.step_up = clamped(2.0 / gain.max(1e-3), 1, 8);
            self.polls = 0;
        }
    }

    fn adapt(&mut self) {
        let ratio = self.turn_us / self.round_trip_us.max(0.5);
        if ratio < RATIO.0 || self.empty > EMPTY.0 {
            self.low += 1;
            self.high = 0;
            if self.low >= TURNS.0 {
                self.change(self.polls + self.step_up);
            }
        } else if ratio > RATIO.1 && self.empty < EMPTY.1 {
            self.high += 1;
            self.low = 0;
            if self.high >= TURNS.1 {
                self.change(self.polls.saturating_sub((2 * self.step_up).max(2)));
            }
        } else {
            (self.low, self.high) = (0, 0);
        }
    }

    fn change(&mut self, polls: u32) {
        self.polls = polls.min(self.polls_max);
        (self.low, self.high, self.rest) = (0, 0, TURNS.2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Past the start, after `turns` turns alike.
    fn after(turns: u32, responses: u32, turn_us: f64) -> PollController {
        let mut controller = PollController::default();
        (0..2 * PART_TURNS + turns).for_each(|_| controller.observe(responses, turn_us, 6.0));
        controller
    }

    #[test]
    fn turns_without_responses_get_polls_up_to_a_limit() {
        assert_eq!(after(0, 0, 0.7).polls(), 0);
        assert!(after(TURNS.0, 0, 0.7).polls() > 0);
        assert_eq!(after(10_000, 0, 0.7).polls(), 15, "2.5 round trips");
    }

    #[test]
    fn turns_that_outlast_a_round_trip_lose_their_polls() {
        let mut controller = after(10_000, 0, 0.7);
        (0..10_000).for_each(|_| controller.observe(30, 12.0, 6.0));
        assert_eq!(controller.polls(), 0);
    }
}
