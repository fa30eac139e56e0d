//! What a client and a server of stored values say to each other, one after the other on a connection.

use std::{fmt, ops::Range, process::Command};

/// A request to a server of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    Get,
    Put(&'a [u8]),
}

/// A whole reply at the begin of what was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub outcome: ReplyOutcome,
    /// Bytes of the reply, all its parts together.
    pub len_bytes: usize,
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The value lies in this part of the reply.
    Found(Range<usize>),
    Missing,
    Stored,
}

/// Bytes that no server of this kind sends, or an error that it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strange(String);

impl fmt::Display for Strange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server says {:?}", self.0)
    }
}

impl std::error::Error for Strange {}

impl Strange {
    /// The first bytes of what was received.
    pub fn of(input: &[u8]) -> Self {
        Self(String::from_utf8_lossy(&input[..input.len().min(80)]).into_owned())
    }
}

/// The protocol of a server of stored values, and how it starts.
pub trait ValueProtocol {
    const PACKAGE: &'static str;

    /// The server, on this port of the loopback device, with room for `bytes` of values.
    fn command(port: u16, bytes: u64) -> Command;

    /// Appends a request.
    fn write(key: u64, wish: Wish<'_>, to: &mut Vec<u8>);

    /// The first reply, if it is there to its end. `wish_is_get`: what was asked for.
    fn read(input: &[u8], is_get: bool) -> Result<Option<Reply>, Strange>;
}

/// Longest line of a reply that is no value.
const LINE_BYTES_MAX: usize = 512;

/// The first line without its end, and where the next one begins.
pub fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, Strange> {
    let found = input.windows(2).take(LINE_BYTES_MAX).position(|pair| pair == b"\r\n");
    match found {
        Some(end) => Ok(Some((&input[..end], end + 2))),
        None if input.len() > LINE_BYTES_MAX => Err(Strange::of(input)),
        None => Ok(None),
    }
}

/// A number in decimal digits.
pub fn number(digits: &[u8]) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Longest value of which a server tells.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// The length of a value, in decimal digits; `None`: it is none that anybody stored, and nothing is to be waited
/// for.
pub fn value_length(digits: &[u8]) -> Option<usize> {
    number(digits).filter(|len| *len <= VALUE_BYTES_MAX)
}

/// For tests of protocols: whatever a server says, it is a reply inside of what was received, an error, or too
/// little; more bytes change neither of the first two. `replies` are replies of it, which are changed at random.
#[cfg(test)]
pub fn assert_any_bytes_are_judged<P: ValueProtocol>(replies: &[&[u8]]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    for round in 0..100_000 {
        let mut bytes = replies[random(replies.len())].repeat(1 + random(2));
        for _ in 0..random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] = b"0123456789$+-: \r\n"[random(17)],
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"09\r\n\xff"[random(5)]),
            }
        }
        let is_get = random(2) == 0;
        let mut judged = None;
        for end in 0..=bytes.len() {
            let now = P::read(&bytes[..end], is_get);
            if let Ok(Some(Reply { outcome, len_bytes })) = &now {
                assert!(0 < *len_bytes && *len_bytes <= end, "round {round}: {now:?}");
                if let ReplyOutcome::Found(value) = outcome {
                    assert!(value.start <= value.end && value.end <= *len_bytes, "{now:?}");
                }
            }
            match (&judged, now) {
                (_, Ok(None)) => assert!(judged.is_none(), "round {round}: {bytes:?} at {end}"),
                (None, now) => judged = Some(now),
                (Some(Ok(before)), Ok(now)) => assert_eq!(*before, now, "round {round}"),
                (Some(before), now) => assert_eq!(before.is_ok(), now.is_ok(), "round {round}"),
            }
        }
    }
}

/// For tests of protocols: a reply is found when its last byte is there, not earlier.
#[cfg(test)]
pub fn assert_whole<P: ValueProtocol>(bytes: &[u8], is_get: bool, expected: &ReplyOutcome) {
    for end in 0..bytes.len() {
        assert_eq!(P::read(&bytes[..end], is_get), Ok(None), "{end} of {} bytes", bytes.len());
    }
    let more = [bytes, b"more"].concat();
    let reply = P::read(&more, is_get).unwrap().unwrap();
    assert_eq!((&reply.outcome, reply.len_bytes), (expected, bytes.len()));
}
