//! What two connection managers tell each other, one datagram each on the socket of a connection.
//!
//! ```text
//!  active                    passive
//!   Request  ───────────────▶  CONNECT_REQUEST
//!   CONNECT_RESPONSE  ◀──────  Reply          (or Reject)
//!   Ready  ─────────────────▶  ESTABLISHED
//!   Disconnect  ◀───────────▶  DISCONNECTED   as is the end of the socket
//! ```
//!
//! Of a queue pair for datagrams the active side asks only where it is: the answer is the last message.
//!
//! ```text
//!   Request  ───────────────▶  CONNECT_REQUEST
//!   ESTABLISHED  ◀───────────  Reply
//!   UNREACHABLE  ◀───────────  Reject
//! ```

use super::address::{self, Address};

/// Longest private data that a program may send with a message: `RDMA_MAX_PRIVATE_DATA`, whose length fits a byte.
const PRIVATE_BYTES_MAX: usize = 255;

/// Longest message.
pub(super) const BYTES_MAX: usize = 512;

/// What one side says of its queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) lid: u16,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    /// Of a queue pair for datagrams.
    pub(super) qkey: u32,
    /// READs and atomics that it answers at a time, and that it asks for.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) has_srq: u8,
    pub(super) private: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Request { side: Side, port_space: u16, from: Address, to: Address },
    Reply(Side),
    Reject { reason: u8, private: Vec<u8> },
    Ready,
    Disconnect,
}

const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const REJECT: u8 = 2;
const READY: u8 = 3;
const DISCONNECT: u8 = 4;

impl Side {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(self.lid.to_le_bytes());
        for word in [self.qpn, self.psn, self.qkey] {
            into.extend(word.to_le_bytes());
        }
        into.extend([self.responder_resources, self.initiator_depth, self.flow_control]);
        into.extend([self.retry_count, self.rnr_retry, self.has_srq]);
        put_private(&self.private, into);
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let lid = u16::from_le_bytes(input.take()?);
        let [qpn, psn, qkey] = [input.u32()?, input.u32()?, input.u32()?];
        let [responder_resources, initiator_depth, flow_control, retry_count, rnr_retry, has_srq] =
            input.take()?;
        let private = input.private()?;
        Some(Self {
            lid,
            qpn,
            psn,
            qkey,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry,
            has_srq,
            private,
        })
    }
}

fn put_private(private: &[u8], into: &mut Vec<u8>) {
    let private = &private[..private.len().min(PRIVATE_BYTES_MAX)];
    into.push(private.len().to_le_bytes()[0]);
    into.extend(private);
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES_MAX);
        match self {
            Self::Request { side, port_space, from, to } => {
                bytes.push(REQUEST);
                bytes.extend(port_space.to_le_bytes());
                bytes.extend(address::encode(*from));
                bytes.extend(address::encode(*to));
                side.encode(&mut bytes);
            }
            Self::Reply(side) => {
                bytes.push(REPLY);
                side.encode(&mut bytes);
            }
            Self::Reject { reason, private } => {
                bytes.extend([REJECT, *reason]);
                put_private(private, &mut bytes);
            }
            Self::Ready => bytes.push(READY),
            Self::Disconnect => bytes.push(DISCONNECT),
        }
        bytes
    }

    /// `None`: it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let [kind] = input.take()?;
        let message = match kind {
            REQUEST => {
                let port_space = u16::from_le_bytes(input.take()?);
                let [from, to] = [address::parse(&input.take()?)?, address::parse(&input.take()?)?];
                Self::Request { side: Side::decode(&mut input)?, port_space, from, to }
            }
            REPLY => Self::Reply(Side::decode(&mut input)?),
            REJECT => {
                let [reason] = input.take()?;
                Self::Reject { reason, private: input.private()? }
            }
            READY => Self::Ready,
            DISCONNECT => Self::Disconnect,
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

/// For fuzzing: any bytes are refused, or are a message that survives as bytes.
///
/// # Panics
///
/// If it does not.
pub(super) fn check(bytes: &[u8]) {
    if let Some(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Some(&message));
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn private(&mut self) -> Option<Vec<u8>> {
        let [len] = self.take()?;
        let (private, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(private.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let side = Side {
            lid: 3,
            qpn: 0x12_3456,
            psn: 0xff_ffff,
            qkey: 0x8000_0001,
            responder_resources: 1,
            initiator_depth: 2,
            flow_control: 1,
            retry_count: 7,
            rnr_retry: 6,
            has_srq: 1,
            private: vec![9; PRIVATE_BYTES_MAX],
        };
        let [from, to] = ["127.0.0.1:1", "[::1]:2"].map(|text| Address::Ip(text.parse().unwrap()));
        vec![
            Message::Request { side: side.clone(), port_space: 0x106, from, to },
            Message::Reply(Side { private: Vec::new(), ..side }),
            Message::Reject { reason: 28, private: vec![1, 2] },
            Message::Ready,
            Message::Disconnect,
        ]
    }

    #[test]
    fn messages_survive_as_bytes_and_nothing_shorter_or_longer_is_one() {
        for message in messages() {
            let mut bytes = message.encode();
            assert!(bytes.len() <= BYTES_MAX);
            assert_eq!(Message::decode(&bytes), Some(message));
            assert!((0..bytes.len()).all(|len| Message::decode(&bytes[..len]).is_none()));
            bytes.push(0);
            assert_eq!(Message::decode(&bytes), None);
        }
    }
}
