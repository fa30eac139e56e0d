//! What was called, executed and answered, and what must not have happened.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use rpc::Status;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::world::Time;

/// First in the body of a request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestHead {
    call: U64,
    /// Bytes after the head of the response.
    response_bytes: U32,
}

/// First in the body of a response.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ResponseHead {
    call: U64,
    /// Who has served it.
    rank: U32,
}

/// Bytes of the head of a request, and of a response.
pub(super) const HEAD_BYTES: usize = 12;
const _: () = assert!(size_of::<RequestHead>() == HEAD_BYTES);
const _: () = assert!(size_of::<ResponseHead>() == HEAD_BYTES);

/// Bytes that belong to this call alone.
fn pattern(call: u64, salt: u64) -> impl Iterator<Item = u8> {
    let start = (call ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..u32::MAX).flat_map(move |word| {
        start.wrapping_add(u64::from(word)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    })
}

const REQUEST_SALT: u64 = 0;
const RESPONSE_SALT: u64 = 0x5555;

/// The body of a request.
pub(super) fn request(call: u64, request_bytes: usize, response_bytes: u32) -> Vec<u8> {
    let head = RequestHead { call: call.into(), response_bytes: response_bytes.into() };
    let mut body = head.as_bytes().to_vec();
    body.extend(pattern(call, REQUEST_SALT).take(request_bytes));
    body
}

/// How a call was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) from: u32,
    /// Number of the client at its node.
    pub(super) client: u32,
    pub(super) to: u32,
    pub(super) at: Time,
    /// The latest end that is right.
    pub(super) due: Time,
    pub(super) response_bytes: u32,
    /// Nothing may keep it from success.
    pub(super) must_succeed: bool,
}

#[derive(Debug)]
struct Call {
    made: Made,
    executed: u32,
    ended: Option<(Time, End)>,
    /// Its client knows that it is not executed from now on.
    is_void: bool,
}

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// With the right answer.
    Answered,
    /// With a status: that of the daemon.
    Status(u8),
    /// At the client's own deadline.
    Deadline,
    /// With the daemon of its node.
    DaemonGone,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered => f.write_str("answered"),
            Self::Status(code) => match Status::from_code(*code) {
                Some(status) => write!(f, "{status:?}"),
                None => write!(f, "status {code}"),
            },
            Self::Deadline => f.write_str("deadline of the client"),
            Self::DaemonGone => f.write_str("daemon gone"),
        }
    }
}

/// All calls of a run.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Calls from number `first` on: those before were executed once and answered.
    calls: VecDeque<Call>,
    first: u64,
    /// Whether calls that were answered are kept, for who shows them.
    keeps_all: bool,
    /// Calls that rank 0 has answered for clients of others, by number of the client.
    by_client: BTreeMap<u32, u64>,
    ends: BTreeMap<End, u64>,
    open: usize,
    hash: u64,
    /// Requests executed, by thread.
    executed: BTreeMap<u32, u64>,
    failure: Option<String>,
}

impl History {
    /// A call is about to be made: its number.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.calls.len() as u64
    }

    /// The call of the next number was made.
    pub(super) fn made(&mut self, made: Made) {
        self.calls.push_back(Call { made, executed: 0, ended: None, is_void: false });
        self.open += 1;
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Requests that a thread has executed, in all lives of its daemon.
    pub(super) fn executed(&self, thread: u32) -> u64 {
        self.executed.get(&thread).copied().unwrap_or(0)
    }

    pub(super) fn ends(&self) -> &BTreeMap<End, u64> {
        &self.ends
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Something happened that must not. The first one counts.
    pub(super) fn fail(&mut self, what: impl FnOnce() -> String) {
        self.failure.get_or_insert_with(what);
    }

    /// A request has come to who answers it: checks it, and makes the response.
    /// `thread` counts it.
    pub(super) fn execute(
        &mut self,
        (rank, thread): (u32, u32),
        body: &[u8],
        response: &mut Vec<u8>,
    ) -> Status {
        let Ok((head, fill)) = RequestHead::read_from_prefix(body) else {
            self.fail(|| format!("rank {rank} got a request of {} B", body.len()));
            return Status::InvalidArgument;
        };
        let number = head.call.get();
        if number < self.first {
            self.fail(|| format!("call {number} was executed twice"));
            return Status::InvalidArgument;
        }
        let Some(call) = self.call(number) else {
            self.fail(|| format!("rank {rank} got call {number}, which was not made"));
            return Status::InvalidArgument;
        };
        call.executed += 1;
        let is_void = call.is_void;
        let (executed, made) = (call.executed, call.made);
        *self.executed.entry(thread).or_default() += 1;
        if executed > 1 {
            self.fail(|| format!("call {number} was executed twice"));
        }
        if is_void {
            self.fail(|| {
                format!("call {number} was executed after its client knew that it is not")
            });
        }
        let is_right = made.to == rank && head.response_bytes.get() == made.response_bytes;
        if !is_right || !fill.iter().copied().eq(pattern(number, REQUEST_SALT).take(fill.len())) {
            self.fail(|| format!("the request of call {number} came to rank {rank} damaged"));
        }
        let head = ResponseHead { call: number.into(), rank: rank.into() };
        response.extend_from_slice(head.as_bytes());
        response.extend(pattern(number, RESPONSE_SALT).take(made.response_bytes as usize));
        Status::Ok
    }

    /// The client learns that a call was not executed, and is not.
    pub(super) fn not_executed(&mut self, number: u64) {
        if self.call(number).is_some_and(|call| call.executed > 0) {
            self.fail(|| {
                format!("call {number} was executed, and its client is told that it was not")
            });
        }
        self.given_up(number);
    }

    /// The client gives a call up so that it is not executed from now on.
    pub(super) fn given_up(&mut self, number: u64) {
        if let Some(call) = self.call(number) {
            call.is_void = true;
        }
    }

    /// A call has ended, with the body of a response or otherwise.
    pub(super) fn ended(&mut self, number: u64, outcome: Result<&[u8], End>, now: Time) {
        if number < self.first {
            self.fail(|| format!("call {number} ended twice"));
            return;
        }
        let Some(call) = self.call(number) else {
            self.fail(|| format!("call {number} ended and was not made"));
            return;
        };
        if call.ended.is_some() {
            self.fail(|| format!("call {number} ended twice"));
            return;
        }
        let (made, executed) = (call.made, call.executed);
        self.open -= 1;
        let end = match outcome {
            Ok(body) => {
                if !is_response(number, &made, body) {
                    self.fail(|| format!("call {number} was answered with something else"));
                }
                if executed == 0 {
                    self.fail(|| format!("call {number} was answered and not executed"));
                }
                End::Answered
            }
            Err(end) => end,
        };
        if made.must_succeed && end != End::Answered {
            let Made { from, to, .. } = made;
            self.fail(|| {
                format!("nothing is wrong, and call {number} of rank {from} to {to}: {end}")
            });
        }
        if now > made.due {
            let late_us = now.since(made.due).as_ns() / 1000.0;
            self.fail(|| format!("call {number} ended {late_us:.0} µs late: {end}"));
        }
        *self.ends.entry(end).or_default() += 1;
        self.close(number, (now, end), &made);
        self.hash = (self.hash ^ number ^ now.whole_ns() << 20).wrapping_mul(0x0100_0000_01b3);
    }

    /// The call of this number, unless it is forgotten.
    fn call(&mut self, number: u64) -> Option<&mut Call> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.calls.get_mut(at)
    }

    /// Marks a call as ended, and forgets the oldest calls if they can be: what comes of them from now on is wrong.
    fn close(&mut self, number: u64, ended: (Time, End), made: &Made) {
        if ended.1 == End::Answered && made.from != 0 && made.to == 0 && !made.must_succeed {
            *self.by_client.entry(made.client).or_default() += 1;
        }
        if let Some(call) = self.call(number) {
            call.ended = Some(ended);
        }
        let is_over = |call: &Call| {
            call.executed == 1 && call.ended.is_some_and(|(_, end)| end == End::Answered)
        };
        while !self.keeps_all && self.calls.front().is_some_and(is_over) {
            self.calls.pop_front();
            self.first += 1;
        }
    }

    /// Keeps calls that were answered, for [`ended_calls`](Self::ended_calls).
    pub(super) fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// A hash of which call ended when.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Calls that have ended and are kept: how they were made, when and how they ended.
    pub(super) fn ended_calls(&self) -> impl Iterator<Item = (Made, Time, End)> {
        self.calls.iter().filter_map(|call| call.ended.map(|(at, end)| (call.made, at, end)))
    }

    /// Calls of each client of other ranks that rank 0 has answered, by number of the client.
    pub(super) fn answered_by_client(&self) -> BTreeMap<u32, u64> {
        self.by_client.clone()
    }

    /// The oldest call that has not ended.
    pub(super) fn oldest_open(&self) -> Option<(u64, Made)> {
        let mut open = (self.first..).zip(&self.calls).filter(|(_, call)| call.ended.is_none());
        open.next().map(|(number, call)| (number, call.made))
    }
}

fn is_response(number: u64, made: &Made, body: &[u8]) -> bool {
    let Ok((head, fill)) = ResponseHead::read_from_prefix(body) else { return false };
    head.call.get() == number
        && head.rank.get() == made.to
        && fill.len() == made.response_bytes as usize
        && fill.iter().copied().eq(pattern(number, RESPONSE_SALT).take(fill.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History::default();
        history.made(Made {
            from: 0,
            client: 0,
            to: 1,
            at: Time::ZERO,
            due: Time::from_ns(100),
            response_bytes: 20,
            must_succeed: false,
        });
        history
    }

    fn answer(history: &mut History, rank: u32) -> Vec<u8> {
        let mut response = Vec::new();
        history.execute((rank, rank), &request(0, 30, 20), &mut response);
        response
    }

    #[test]
    fn a_right_call_is_right() {
        let mut history = history();
        let response = answer(&mut history, 1);
        history.ended(0, Ok(&response), Time::from_ns(100));
        assert_eq!((history.failure(), history.open()), (None, 0));
        assert_eq!(history.ends()[&End::Answered], 1);
    }

    #[test]
    fn a_right_call_is_forgotten_and_what_comes_of_it_then_is_told() {
        let ended = || {
            let mut history = history();
            let response = answer(&mut history, 1);
            history.ended(0, Ok(&response), Time::ZERO);
            assert_eq!((history.calls.len(), history.next_number()), (0, 1));
            (history, response)
        };
        let (mut again, response) = ended();
        again.ended(0, Ok(&response), Time::ZERO);
        assert_eq!(again.failure(), Some("call 0 ended twice"));
        let (mut again, _) = ended();
        answer(&mut again, 1);
        assert_eq!(again.failure(), Some("call 0 was executed twice"));
    }

    #[test]
    fn what_must_not_happen_is_told() {
        type Case = fn(&mut History);
        let cases: [(&str, Case); 8] = [
            ("is told that it was not", |history| {
                answer(history, 1);
                history.not_executed(0);
            }),
            ("knew that it is not", |history| {
                history.given_up(0);
                answer(history, 1);
            }),
            ("executed twice", |history| drop([answer(history, 1), answer(history, 1)])),
            ("damaged", |history| drop(answer(history, 2))),
            ("not made", |history| history.ended(1, Err(End::Deadline), Time::ZERO)),
            ("late", |history| history.ended(0, Err(End::Deadline), Time::from_ns(101))),
            ("something else", |history| {
                let mut response = answer(history, 1);
                response[31] ^= 1;
                history.ended(0, Ok(&response), Time::ZERO);
            }),
            ("ended twice", |history| {
                (0..2).for_each(|_| history.ended(0, Err(End::Deadline), Time::ZERO));
            }),
        ];
        for (what, case) in cases {
            let mut history = history();
            case(&mut history);
            let failure = history.failure().unwrap_or_else(|| panic!("{what} is not noticed"));
            assert!(failure.contains(what), "{failure}");
        }
    }
}
