//! The receiving end of a stream of requests: takes each once, and in order.
//!
//! The responder has a `Stream` per sender. On RC it begins with `rq_psn` at RTR; on DC with each connection of the
//! initiator, of which a port keeps 8192, of one sender 2048. An initiator beyond that waits until another one was
//! silent for a minute; an initiator that was idle for a second connects anew. The stream runs the expected
//! request, drops later ones, and repeats the answers of earlier ones: it keeps the last 16 results of atomics, and
//! of READs up to 4 KiB; a longer READ runs again. A refusal is kept too, and nothing behind it runs.

use std::collections::{BTreeMap, VecDeque};

use wire::ids::{Lid, Qpn};

use super::{Reply, Sequence};

/// Streams of DC initiators that a port keeps, of all senders and of one. An interpreter would take minutes
/// to come to the end of more.
const CONNECTIONS_MAX: usize = 4 * CONNECTIONS_OF_ONE_MAX;
const CONNECTIONS_OF_ONE_MAX: usize = if cfg!(miri) { 16 } else { 2048 };

/// How long a stream of a DC initiator is kept at least after its last request: longer than a packet may be
/// on its way, and much longer than [`KEEP_NS`].
const FORGET_NS: u64 = 60_000_000_000;

/// How long an idle DC initiator takes its connection for one that its target knows.
pub(crate) const KEEP_NS: u64 = 1_000_000_000;

/// Results of READs and atomics that are kept for requests that come again: as many as may be outstanding.
const RESULTS_MAX: usize = 16;

/// Longest READ whose data is kept; of a longer one that comes again, the memory is read again.
const KEPT_BYTES_MAX: usize = 4096;

/// The queue pair that takes a stream, and the port and queue pair that send it.
pub(crate) type StreamName = (Qpn, (Lid, Qpn));

/// What a port has taken of each stream of requests.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: BTreeMap<StreamName, Stream>,
    /// How many of them are of DC initiators, by port.
    connections: BTreeMap<Lid, usize>,
}

impl Streams {
    pub(crate) fn get_mut(&mut self, name: &StreamName) -> Option<&mut Stream> {
        self.streams.get_mut(name)
    }

    /// RTR of an RC queue pair.
    pub(crate) fn insert(&mut self, name: StreamName, stream: Stream) {
        self.streams.insert(name, stream);
    }

    /// The port `lid` is gone, and with it everything that its queue pairs sent.
    pub(crate) fn lose_peer(&mut self, lid: Lid) {
        self.streams.retain(|(_, (from, _)), _| *from != lid);
        self.connections.remove(&lid);
    }

    /// A DC initiator asks for `connection`: it is new, or a later one than the last. `false`: too many others
    /// were heard of lately.
    pub(crate) fn connect(&mut self, name: StreamName, connection: u32, now_ns: u64) -> bool {
        let known = self.streams.get(&name).map(Stream::connection);
        if known.is_some_and(|known| connection.wrapping_sub(known).cast_signed() <= 0) {
            return true;
        }
        let has_room = known.is_some() || self.make_room(name.1.0, now_ns);
        if has_room {
            let stream = Stream::new(Sequence { connection, psn: 0 });
            self.streams.insert(name, Stream { last_ns: now_ns, is_dc: true, ..stream });
            if known.is_none() {
                *self.connections.entry(name.1.0).or_default() += 1;
            }
        }
        has_room
    }

    /// Forgets the DC initiator that was silent for longest, of `sender` or of all, if one of them has to go.
    fn make_room(&mut self, sender: Lid, now_ns: u64) -> bool {
        let count_of_sender = self.connections.get(&sender).copied().unwrap_or(0);
        let is_sender_full = count_of_sender >= CONNECTIONS_OF_ONE_MAX;
        if !is_sender_full && self.connections.values().sum::<usize>() < CONNECTIONS_MAX {
            return true;
        }
        let connections = self.streams.iter().filter(|(_, stream)| stream.is_dc);
        let among = connections.filter(|((_, from), _)| !is_sender_full || from.0 == sender);
        let silent = among.min_by_key(|(_, stream)| stream.last_ns);
        let silent =
            silent.filter(|(_, stream)| now_ns.saturating_sub(stream.last_ns) >= FORGET_NS);
        let Some(name) = silent.map(|(name, _)| *name) else { return false };
        self.streams.remove(&name);
        self.count_down(name.1.0);
        true
    }

    fn count_down(&mut self, sender: Lid) {
        if let Some(count) = self.connections.get_mut(&sender) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&sender);
            }
        }
    }

    /// What queue pair `qpn` has taken goes with its life.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        let is_its = |(name, _): &(&StreamName, &Stream)| name.0 == qpn;
        let gone: Vec<_> = self.streams.iter().filter(is_its).map(|(name, _)| *name).collect();
        for name in gone {
            if self.streams.remove(&name).is_some_and(|stream| stream.is_dc) {
                self.count_down(name.1.0);
            }
        }
    }
}

/// WRITEs that are placed before their turn.
const PLACED_MAX: usize = 64;

/// What a responder knows of the requests of one sender.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Of the request that comes next.
    expected: Sequence,
    /// Results of the last READs and atomics.
    results: VecDeque<(Sequence, Outcome)>,
    /// WRITEs behind `expected` whose bytes are in memory: they complete in their turn.
    placed: VecDeque<Sequence>,
    /// The request at `expected` was refused, and so nothing behind it is taken.
    refusal: Option<Reply>,
    /// DC: when the last request came.
    last_ns: u64,
    is_dc: bool,
}

/// The answer to a request, and the data of a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    pub(crate) data: Vec<u8>,
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self { reply, data: Vec::new() }
    }
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arriving {
    /// Run it, and [`note`](Stream::note) how it went.
    InOrder,
    /// It was run, and its answer is lost or late: answer again. A long READ is run again.
    Again,
    /// The answer is known.
    Answered(Outcome),
    /// One before it is missing: the sender will send it again.
    Early,
}

impl Stream {
    pub(crate) fn new(expected: Sequence) -> Self {
        let results = VecDeque::new();
        let placed = VecDeque::new();
        Self { expected, results, placed, refusal: None, last_ns: 0, is_dc: false }
    }

    pub(crate) fn connection(&self) -> u32 {
        self.expected.connection
    }

    /// A request has come.
    pub(crate) fn touch(&mut self, now_ns: u64) {
        self.last_ns = now_ns;
    }

    /// What to do with the request at `sequence`.
    pub(crate) fn arriving(&self, sequence: Sequence) -> Arriving {
        match sequence.ahead_of(self.expected) {
            0 => self.refusal.map_or(Arriving::InOrder, |reply| Arriving::Answered(reply.into())),
            ahead if ahead <= Sequence::PSN_MASK / 2 => Arriving::Early,
            _ => {
                let result = self.results.iter().find(|(of, _)| *of == sequence);
                result.map_or(Arriving::Again, |(_, known)| Arriving::Answered(known.clone()))
            }
        }
    }

    /// Whether the bytes of a WRITE that comes early are to be placed now: once, and of so many at a time.
    pub(crate) fn may_place(&self, sequence: Sequence) -> bool {
        self.placed.len() < PLACED_MAX && !self.placed.contains(&sequence)
    }

    pub(crate) fn note_placed(&mut self, sequence: Sequence) {
        self.placed.push_back(sequence);
    }

    /// Whether the bytes of the request that comes next are in memory already.
    pub(crate) fn take_placed(&mut self, sequence: Sequence) -> bool {
        let at = self.placed.iter().position(|placed| *placed == sequence);
        at.is_some_and(|at| self.placed.remove(at).is_some())
    }

    /// The request at `expected` was run with this outcome.
    pub(crate) fn note(&mut self, outcome: &Outcome) {
        match outcome.reply {
            Reply::Ack | Reply::Value(_) => {}
            Reply::Refused(_) => {
                self.refusal = Some(outcome.reply);
                return;
            }
            _ => return,
        }
        let has_result = outcome.reply != Reply::Ack || !outcome.data.is_empty();
        if has_result && outcome.data.len() <= KEPT_BYTES_MAX {
            if self.results.len() == RESULTS_MAX {
                self.results.pop_front();
            }
            self.results.push_back((self.expected, outcome.clone()));
        }
        self.expected = self.expected.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the queue pair `number` of port `lid`.
    fn from(lid: u16, number: usize) -> StreamName {
        let number = Qpn::from_low_bits(u32::try_from(number).unwrap());
        (Qpn::from_low_bits(1), (Lid::new(lid), number))
    }

    #[test]
    fn of_dc_initiators_as_many_are_known_as_were_heard_of_lately() {
        let mut streams = Streams::default();
        let connected = (Qpn::from_low_bits(2), (Lid::new(1), Qpn::from_low_bits(1)));
        streams.insert(connected, Stream::new(at(0)));
        let ports = u16::try_from(CONNECTIONS_MAX / CONNECTIONS_OF_ONE_MAX).unwrap();
        // One port can have its share, and no more.
        for number in 0..CONNECTIONS_OF_ONE_MAX {
            assert!(streams.connect(from(1, number), 1, 0), "{number}");
        }
        assert!(!streams.connect(from(1, CONNECTIONS_OF_ONE_MAX), 1, FORGET_NS - 1));
        assert!(streams.connect(from(1, 0), 2, 0), "one that is known");
        for lid in 2..=ports {
            for number in 0..CONNECTIONS_OF_ONE_MAX {
                assert!(streams.connect(from(lid, number), 1, 0));
            }
        }
        assert!(!streams.connect(from(99, 0), 1, FORGET_NS - 1));
        // Who was heard of stays, and so does who is connected.
        for number in 1..CONNECTIONS_OF_ONE_MAX {
            streams.get_mut(&from(1, number)).unwrap().touch(1);
        }
        let count = streams.streams.len();
        assert!(streams.connect(from(1, CONNECTIONS_OF_ONE_MAX), 1, FORGET_NS));
        assert!(streams.get_mut(&from(1, 0)).is_none());
        assert!(streams.connect(from(99, 0), 1, FORGET_NS));
        assert!(streams.get_mut(&connected).is_some());
        assert_eq!(streams.streams.len(), count);
        streams.forget(Qpn::from_low_bits(1));
        assert_eq!((streams.streams.len(), streams.connections.len()), (1, 0));
    }

    #[test]
    fn a_later_connection_takes_the_place_of_the_one_before() {
        let mut streams = Streams::default();
        assert!(streams.connect(from(1, 1), 5, 0) && streams.connect(from(1, 1), 4, 0));
        assert_eq!(streams.get_mut(&from(1, 1)).unwrap().connection(), 5);
        assert!(streams.connect(from(1, 1), 6, 0));
        let stream = streams.get_mut(&from(1, 1)).unwrap();
        assert_eq!(stream.arriving(Sequence { connection: 6, psn: 0 }), Arriving::InOrder);
    }

    const fn at(psn: u32) -> Sequence {
        Sequence { connection: 3, psn }
    }

    #[test]
    fn requests_are_taken_once_and_in_order_across_the_end_of_all_numbers() {
        let mut stream = Stream::new(at(Sequence::PSN_MASK));
        assert_eq!(stream.arriving(at(0)), Arriving::Early);
        for psn in [Sequence::PSN_MASK, 0, 1] {
            assert_eq!(stream.arriving(at(psn)), Arriving::InOrder);
            stream.note(&Reply::Ack.into());
            assert_eq!(stream.arriving(at(psn)), Arriving::Again);
        }
        stream.note(&Reply::NotReady { wait_ns: 1 }.into());
        assert_eq!(stream.arriving(at(2)), Arriving::InOrder, "it has not been run");
    }

    #[test]
    fn an_atomic_that_comes_again_gets_its_first_result() {
        let mut stream = Stream::new(at(0));
        for old in 100..116 {
            stream.note(&Reply::Value(old).into());
        }
        assert_eq!(stream.arriving(at(0)), Arriving::Answered(Reply::Value(100).into()));
        assert_eq!(stream.arriving(at(15)), Arriving::Answered(Reply::Value(115).into()));
    }

    #[test]
    fn nothing_is_taken_behind_a_refusal() {
        let mut stream = Stream::new(at(0));
        let refused = Reply::Refused(wire::cqe::Syndrome::RemoteAccess);
        stream.note(&refused.into());
        assert_eq!(stream.arriving(at(0)), Arriving::Answered(refused.into()));
        assert_eq!(stream.arriving(at(1)), Arriving::Early);
    }
}
