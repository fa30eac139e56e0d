//! Rights of calls that lend memory: every order of events, and any numbers in requests to move something.

use std::collections::VecDeque;

use copyrpc_proto::bulk::{
    Borrowing, Checked, Direction, Extent, Lending, Move, Plan, Refused, Slice,
};
use proptest::{collection::vec, prelude::*};

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The next event, in any order.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The caller's side gives up: its deadline, a cancellation, or the death of its process.
    GiveUp,
    /// The other side begins a segment.
    Begin,
    /// The oldest segment under way is done.
    Done,
    /// The provider answers.
    Answer,
    /// The other side ends the call: its deadline, or the death of the provider.
    End,
    /// The oldest message to the other side arrives.
    Deliver,
    /// The oldest message to the caller's side arrives.
    DeliverBack,
    /// The caller's side has waited long enough for "closed", and asks again.
    AskAgain,
    /// The connection dies.
    Disconnect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Call,
    Close,
    Answer,
    Closed,
}

/// Both sides of one call, as the daemons drive them, and the connection between.
#[derive(Default)]
struct World {
    lending: Lending,
    /// `None`: the call has not arrived, or nothing is known of it any more.
    borrowing: Option<Borrowing>,
    /// A party waits for "closed".
    closers: u32,
    under_way: u32,
    there: VecDeque<Message>,
    back: VecDeque<Message>,
    is_dead: bool,
    /// How often the program learned that its call ended.
    ends: u32,
}

impl World {
    fn new() -> Self {
        Self { there: [Message::Call].into(), ..Self::default() }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::GiveUp if self.lending == Lending::Granted => {
                self.ends += 1;
                assert!(self.lending.given_up());
                assert!(!self.lending.given_up(), "asked once");
                self.ask();
            }
            Event::AskAgain if self.lending == Lending::Closing => self.ask(),
            Event::Begin => {
                if let Some(borrowing) = &mut self.borrowing {
                    let is_ended = borrowing.is_ended();
                    assert_eq!(borrowing.begin().is_err(), is_ended);
                    self.under_way += u32::from(!is_ended);
                }
            }
            Event::Done if self.under_way > 0 => {
                self.under_way -= 1;
                if let Some(borrowing) = &mut self.borrowing {
                    borrowing.done();
                }
                self.settle();
            }
            Event::Answer | Event::End => {
                if let Some(borrowing) = &mut self.borrowing {
                    borrowing.end();
                }
                self.settle();
            }
            Event::Deliver => self.deliver(),
            Event::DeliverBack => match self.back.pop_front() {
                Some(Message::Answer) => {
                    self.ends += u32::from(self.lending == Lending::Granted);
                    self.lending.answered();
                }
                Some(Message::Closed) => self.lending.closed(),
                _ => {}
            },
            Event::Disconnect => self.disconnect(),
            _ => {}
        }
    }

    fn ask(&mut self) {
        if self.is_dead {
            self.lending.disconnected();
        } else {
            self.there.push_back(Message::Close);
        }
    }

    fn deliver(&mut self) {
        match self.there.pop_front() {
            Some(Message::Call) => self.borrowing = Some(Borrowing::default()),
            Some(Message::Close) => match &mut self.borrowing {
                None => self.back.push_back(Message::Closed),
                Some(borrowing) => {
                    self.closers += 1;
                    borrowing.end();
                    self.settle();
                }
            },
            _ => {}
        }
    }

    /// Tells the caller's side once nothing is under way.
    fn settle(&mut self) {
        if self.borrowing.is_some_and(Borrowing::is_drained) {
            self.borrowing = None;
            self.back.push_back(Message::Answer);
            for _ in 0..core::mem::take(&mut self.closers) {
                self.back.push_back(Message::Closed);
            }
        }
    }

    /// The traffic of the connection is flushed: its segments, and its messages.
    fn disconnect(&mut self) {
        self.is_dead = true;
        self.under_way = 0;
        self.there.clear();
        self.back.clear();
        self.borrowing = None;
        self.ends += u32::from(self.lending == Lending::Granted);
        self.lending.disconnected();
    }

    /// The one rule that must not be broken.
    fn check(&self) {
        if self.lending.is_closed() {
            assert_eq!(self.under_way, 0, "memory is the caller's again while it is written");
            let may_begin = self.borrowing.is_some_and(|borrowing| !borrowing.is_ended());
            assert!(!may_begin, "the other side would write memory that was given back");
            assert!(!self.there.contains(&Message::Call), "and would so still");
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::GiveUp),
        4 => Just(Event::Begin),
        4 => Just(Event::Done),
        2 => Just(Event::Answer),
        1 => Just(Event::End),
        4 => Just(Event::Deliver),
        4 => Just(Event::DeliverBack),
        1 => Just(Event::AskAgain),
        1 => Just(Event::Disconnect),
    ]
}

fn slice() -> impl Strategy<Value = Slice> {
    (0_u64..1000, 0_u64..1000, any::<bool>()).prop_map(|(offset, len_bytes, is_writable)| {
        let extent = Extent::new(offset, len_bytes, u64::MAX).expect("small numbers");
        Slice { extent, is_writable }
    })
}

/// Often just inside or just outside, sometimes anything.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..1100, 1 => any::<u64>(), 1 => (u64::MAX - 1000)..=u64::MAX]
}

fn entry() -> impl Strategy<Value = Move> {
    (0_u16..4, any::<bool>(), number(), number(), number()).prop_map(
        |(slice, is_push, offset, local_offset, len_bytes)| {
            let direction = if is_push { Direction::Push } else { Direction::Pull };
            Move { slice, direction, offset, local_offset, len_bytes }
        },
    )
}

proptest! {
    #![proptest_config(config())]

    /// Bulk rules 5 to 7.
    #[test]
    fn memory_is_given_back_when_nobody_can_write_it_and_not_before(
        events in vec(event(), 0..60),
    ) {
        let mut world = World::new();
        for event in events {
            world.apply(event);
            world.check();
        }
        // Whatever happened: once the caller has given up, its memory comes back.
        world.apply(Event::GiveUp);
        for event in [Event::Deliver, Event::Done, Event::DeliverBack].repeat(80) {
            world.apply(event);
            world.check();
        }
        prop_assert!(world.lending.is_closed());
        prop_assert_eq!(world.ends, 1, "the program is told once");
    }

    /// Bulk rules 3 and 4.
    #[test]
    fn a_transfer_moves_what_was_granted_once_and_nothing_else(
        slices in vec(slice(), 0..3),
        moves in vec(entry(), 0..5),
        local_bytes in 0_u64..2000,
        segment_bytes in 1_u64..300,
    ) {
        let allowed = |entry: &Move| {
            let Some(slice) = slices.get(usize::from(entry.slice)) else { return false };
            let inside = |offset: u64, of: u64| {
                u128::from(offset) + u128::from(entry.len_bytes) <= u128::from(of)
            };
            inside(entry.offset, slice.extent.len_bytes())
                && inside(entry.local_offset, local_bytes)
                && (slice.is_writable || entry.direction == Direction::Pull)
        };
        let plan = Plan::new(&moves, &slices, local_bytes);
        prop_assert_eq!(plan.is_ok(), moves.iter().all(allowed));
        let Ok(mut plan) = plan else { return Ok(()) };
        let mut segments: Vec<Checked> = Vec::new();
        loop {
            let announced = plan.next_slice();
            let Some(segment) = plan.segment(segment_bytes) else {
                prop_assert_eq!(announced, None);
                break;
            };
            prop_assert_eq!(announced, Some(segment.slice));
            prop_assert!((1..=segment_bytes).contains(&segment.len_bytes));
            segments.push(segment);
        }
        // Byte for byte, in order.
        let bytes = |slice: u16, direction, remote: u64, local: u64, len_bytes: u64| {
            (0..len_bytes).map(move |at| (slice, direction, remote + at, local + at))
        };
        let moved: Vec<_> = segments
            .iter()
            .flat_map(|s| bytes(s.slice, s.direction, s.remote_offset, s.local_offset, s.len_bytes))
            .collect();
        let asked: Vec<_> = moves
            .iter()
            .flat_map(|m| {
                let begin = slices[usize::from(m.slice)].extent.offset();
                bytes(m.slice, m.direction, begin + m.offset, m.local_offset, m.len_bytes)
            })
            .collect();
        prop_assert_eq!(moved, asked);
    }

    #[test]
    fn extents_overlap_if_they_have_a_byte_in_common(
        a in (0_u64..20, 0_u64..20), b in (0_u64..20, 0_u64..20),
    ) {
        let extent = |(offset, len)| Extent::new(offset, len, u64::MAX).expect("small numbers");
        let common = (a.0..a.0 + a.1).any(|at| (b.0..b.0 + b.1).contains(&at));
        prop_assert_eq!(extent(a).overlaps(extent(b)), common);
    }
}

#[test]
fn four_gibibytes_and_the_end_of_the_address_space_are_numbers_as_others() {
    let whole = Slice { extent: Extent::new(0, 4 << 30, 4 << 30).unwrap(), is_writable: false };
    let entry = |offset, len_bytes| Move {
        slice: 0,
        direction: Direction::Pull,
        offset,
        local_offset: 0,
        len_bytes,
    };
    let mut plan = Plan::new(&[entry(0, 4 << 30)], &[whole], 4 << 30).unwrap();
    let segments = std::iter::from_fn(|| plan.segment(1 << 20)).count();
    assert_eq!(segments, 4096);
    let beyond = Plan::new(&[entry(u64::MAX, 2)], &[whole], u64::MAX).unwrap_err();
    assert_eq!(beyond, Refused::Range);
    assert_eq!(Extent::new(u64::MAX, 1, u64::MAX), None);
    assert!(Extent::new(u64::MAX, 0, u64::MAX).is_some());
}
