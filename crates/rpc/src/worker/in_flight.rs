//! Pieces of transfers that the NIC has and has not ended.

/// Pieces that are outstanding at a time in one send queue: no more READs than a queue pair can have, since what is
/// behind the next would wait for it.
const PIECES_OF_QUEUE_MAX: u32 = 16;

/// Bytes of all pieces that are outstanding at a time: what the fastest link holds with the longest cable (400 Gb/s
/// for 40 µs). A NIC that copies while it is rung keeps the loop no longer than these take.
const BYTES_MAX: usize = 2 << 20;

/// The pieces of a worker, or of one transfer.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pieces: usize,
    bytes: usize,
    /// Pieces in each send queue.
    of_queues: Vec<u32>,
}

impl InFlight {
    pub(super) fn pieces(&self) -> usize {
        self.pieces
    }

    /// Whether a piece of so many bytes may be posted to a queue: a piece that is longer than all bytes that may be
    /// outstanding is posted alone.
    pub(super) fn has_room(&self, queue: u16, bytes: usize) -> bool {
        let of_queue = self.of_queues.get(usize::from(queue)).copied().unwrap_or(0);
        of_queue < PIECES_OF_QUEUE_MAX && (self.bytes == 0 || self.bytes + bytes <= BYTES_MAX)
    }

    pub(super) fn add(&mut self, queue: u16, bytes: usize) {
        let index = usize::from(queue);
        if self.of_queues.len() <= index {
            self.of_queues.resize(index + 1, 0);
        }
        self.of_queues[index] += 1;
        self.pieces += 1;
        self.bytes += bytes;
    }

    /// Pieces of a queue, of so many bytes together, have ended.
    pub(super) fn remove(&mut self, queue: u16, pieces: u32, bytes: usize) {
        if pieces > 0 {
            self.of_queues[usize::from(queue)] -= pieces;
            self.pieces -= pieces as usize;
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pieces_are_bounded_by_queue_and_long_ones_by_their_bytes() {
        let mut in_flight = InFlight::default();
        let mut fill = |queue, bytes| {
            let before = in_flight.pieces();
            while in_flight.has_room(queue, bytes) {
                in_flight.add(queue, bytes);
            }
            in_flight.pieces() - before
        };
        let (short, long) = (16 << 10, 128 << 10);
        assert_eq!([fill(0, short), fill(3, short), fill(0, short)], [16, 16, 0]);
        assert_eq!(fill(1, long), (BYTES_MAX - 32 * short) / long);
        assert_eq!(fill(2, long), 0);
        in_flight.remove(0, 16, 16 * short);
        assert!(in_flight.has_room(0, long));
        in_flight.remove(0, 0, 0);
        in_flight.remove(3, 16, 16 * short);
        in_flight.remove(1, 12, 12 * long);
        assert_eq!((in_flight.pieces(), in_flight.bytes), (0, 0));
        assert!(in_flight.has_room(9, 2 * BYTES_MAX), "alone");
    }
}
