//! Room in the ring for answers that are longer than their callers said: as long as answers of that service were lately.
//!
//! An answer that finds room is written ahead. One that finds none costs its caller a READ, the wait for it, and a message
//! that gives the memory back.

/// Services are told apart by so many remainders of their numbers.
const SERVICES: usize = 256;

/// So many answers in a row that need half of the room or less halve it.
const SHORT_MAX: u16 = 64;

/// What answers of a service need.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    bytes: u32,
    /// Answers in a row that needed half of it or less.
    short: u16,
}

/// The room that answers of each service need.
#[derive(Debug)]
pub(super) struct AnswerRooms {
    rooms: Box<[Room; SERVICES]>,
    /// Longest answer that the ring takes.
    ring_bytes_max: u32,
}

impl AnswerRooms {
    /// No answers were seen; the ring takes those of up to `ring_bytes_max`.
    pub(super) fn new(ring_bytes_max: usize) -> Self {
        let ring_bytes_max = u32::try_from(ring_bytes_max).unwrap_or(u32::MAX);
        Self { rooms: Box::new([Room::default(); SERVICES]), ring_bytes_max }
    }

    /// Room for the next answer of a service, 0 if none was seen, at most what the ring takes.
    #[inline]
    pub(super) fn of(&self, service: u16) -> usize {
        self.rooms[usize::from(service) % SERVICES].bytes as usize
    }

    /// A service answered a call, for which `asked_bytes` were set aside by its caller's word.
    #[inline]
    pub(super) fn learn(&mut self, service: u16, asked_bytes: usize, len_bytes: usize) {
        let room = &mut self.rooms[usize::from(service) % SERVICES];
        if room.bytes != 0 || len_bytes > asked_bytes {
            room.learn(len_bytes, self.ring_bytes_max);
        }
    }
}

impl Room {
    #[cold]
    fn learn(&mut self, len_bytes: usize, ring_bytes_max: u32) {
        // One that the ring does not take needs none.
        let needed = u32::try_from(len_bytes).ok().filter(|len| *len <= ring_bytes_max);
        let needed = needed.unwrap_or(0);
        if needed > self.bytes / 2 {
            *self = Self { bytes: self.bytes.max(needed), short: 0 };
        } else {
            self.short += 1;
            if self.short == SHORT_MAX {
                *self = Self { bytes: self.bytes / 2, short: 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: usize = 232;

    #[test]
    fn room_follows_the_longest_of_late_answers() {
        let mut rooms = AnswerRooms::new(16_000);
        rooms.learn(7, ASKED, ASKED);
        assert_eq!(rooms.of(7), 0, "its callers said enough");
        for len_bytes in [4096, 4100, 8, 3000] {
            rooms.learn(7, ASKED, len_bytes);
        }
        assert_eq!((rooms.of(7), rooms.of(8)), (4100, 0));
        // Misses between hits take nothing away.
        for call in 0..1000 {
            rooms.learn(7, ASKED, if call % 10 == 0 { 4096 } else { 1 });
        }
        assert_eq!(rooms.of(7), 4100);
    }

    #[test]
    fn room_that_nobody_needs_goes() {
        let mut rooms = AnswerRooms::new(16_000);
        rooms.learn(7, ASKED, 16_000);
        assert_eq!(rooms.of(7), 16_000);
        // Those that the ring does not take need none.
        for len_bytes in [16_001, usize::MAX].into_iter().cycle().take(SHORT_MAX.into()) {
            rooms.learn(7, ASKED, len_bytes);
        }
        assert_eq!(rooms.of(7), 8_000);
        (0..SHORT_MAX * 16).for_each(|_| rooms.learn(7, ASKED, 8));
        assert!(rooms.of(7) <= 16, "{}", rooms.of(7));
        rooms.learn(7, ASKED, 16_001);
        rooms.learn(8, ASKED, 16_001);
        assert!(rooms.of(7) <= 16 && rooms.of(8) == 0);
    }
}
