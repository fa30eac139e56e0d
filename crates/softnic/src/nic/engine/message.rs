//! Requests and answers that own their bytes, for ports that are not reached by a call.
//!
//! ```text
//!  Packet       kind │ verb, key kind, flags │ from, to │ connection, PSN │ lengths, memory, operands │ payload
//!  ReplyPacket  kind │ from, to │ connection, PSN │ reply and its value │ data of a READ
//! ```
//!
//! Both have a form in bytes, little endian, for streams between processes and machines. [`Packet::decode`]
//! and [`ReplyPacket::decode`] check what they return.

use wire::{
    cqe::Syndrome,
    ids::{DcKey, Lid, QKey, Qpn, Rkey},
    wqe::MESSAGE_BYTES_MAX,
};

use super::{Extent, Key, Reply, Request, Verb, global_route::GlobalRoute};

/// Position of a request in the stream from a sender to a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// DC: which connection of the initiator; 0 for RC.
    pub(crate) connection: u32,
    /// Packet sequence number, modulo 2²⁴. A message is one packet.
    pub(crate) psn: u32,
}

impl Sequence {
    pub(crate) const PSN_MASK: u32 = 0xff_ffff;

    pub(crate) fn next(self) -> Self {
        Self { psn: (self.psn + 1) & Self::PSN_MASK, ..self }
    }

    /// How far `self` is ahead of `other` on the same connection; at least half of all numbers: behind.
    pub(crate) fn ahead_of(self, other: Self) -> u32 {
        self.psn.wrapping_sub(other.psn) & Self::PSN_MASK
    }
}

/// A request that has left its port, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Port that it goes to.
    pub(crate) to: Lid,
    pub(crate) request: Request,
    pub(crate) sequence: Sequence,
    pub(crate) payload: Vec<u8>,
}

/// A responder's answer to a [`Packet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyPacket {
    /// Queue pair that has sent the request.
    pub(crate) to: (Lid, Qpn),
    pub(crate) from: (Lid, Qpn),
    pub(crate) sequence: Sequence,
    pub(crate) reply: Reply,
    /// What a READ has read.
    pub(crate) data: Vec<u8>,
}

/// Bytes that are no packet or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end too early, or too late.
    #[error("the length does not fit")]
    Length,
    /// A field holds no value that exists.
    #[error("field `{0}` holds no value that exists")]
    Field(&'static str),
}

impl Packet {
    /// Port and queue pair that have sent it.
    #[must_use]
    pub fn source(&self) -> (Lid, Qpn) {
        self.request.from
    }

    /// Port and queue pair that it goes to.
    #[must_use]
    pub fn destination(&self) -> (Lid, Qpn) {
        (self.to, self.request.to)
    }

    /// Bytes that it carries.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Whether the answer to a later request of the queue pair says that this one was run, too: SENDs and
    /// WRITEs, but no datagrams.
    #[must_use]
    pub fn is_acknowledged_by_later(&self) -> bool {
        self.request.has_payload() && !self.is_datagram()
    }

    /// Whether it is a datagram, which has no answer.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        matches!(self.request.key, Key::Ud(_))
    }

    /// Row of the sender's GID table that a datagram leaves from; `None`: it has no global route header, or is none.
    #[must_use]
    pub fn source_gid_row(&self) -> Option<u8> {
        let is_global = self.is_datagram() && self.request.has_grh;
        is_global.then(|| GlobalRoute::of_word(self.request.addr).source_row())
    }

    /// Bytes that its answer may bring.
    #[must_use]
    pub fn answer_bytes_max(&self) -> usize {
        if self.request.verb == Verb::Read { self.request.len_bytes as usize } else { 0 }
    }

    /// The same, with a key that the region it names has had before.
    pub(crate) fn revoked(&self) -> Self {
        let rkey = Rkey::new(self.request.rkey.get() ^ 0x80);
        Self { request: Request { rkey, ..self.request }, ..self.clone() }
    }

    /// The same without the bytes, which are where they belong.
    pub(crate) fn placed(&self) -> Self {
        let request = Request { len_bytes: 0, ..self.request };
        Self { request, payload: Vec::new(), ..self.clone() }
    }

    /// Whether it is a WRITE that nobody is told of, so that all it does is to place bytes.
    pub(crate) fn is_silent_write(&self) -> bool {
        self.request.verb == Verb::Write && self.request.imm.is_none()
    }

    /// Whether it belongs to the connection of `other`, in the same direction.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        (self.source(), self.destination()) == (other.source(), other.destination())
            && !self.is_datagram()
    }

    /// Renames the ports: LIDs mean something within one port's view only.
    #[must_use]
    pub fn between(mut self, from: Lid, to: Lid) -> Self {
        self.request.from.0 = from;
        self.to = to;
        self
    }

    /// Takes the payload out; [`join`](Self::join) puts it back.
    pub fn take_payload(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.payload)
    }

    /// The packet whose form in bytes is `head` and then `payload`.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn join(head: &[u8], payload: Vec<u8>) -> Result<Self, DecodeError> {
        Self::decode_with(head, payload.len()).map(|packet| Self { payload, ..packet })
    }

    /// Its form in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let request = &self.request;
        let (verb, first, second) = match request.verb {
            Verb::Send => (0, 0, 0),
            Verb::Write => (1, 0, 0),
            Verb::Read => (2, 0, 0),
            Verb::CompareSwap { compare, swap } => (3, compare, swap),
            Verb::FetchAdd { add } => (4, add, 0),
        };
        let (kind, key) = match request.key {
            Key::Connected => (0, 0),
            Key::Ud(key) => (1, u64::from(key.get())),
            Key::Dc(key) => (2, key.get()),
        };
        let flags = u8::from(request.has_grh)
            | u8::from(request.solicited) << 1
            | u8::from(request.imm.is_some()) << 2;
        let mut bytes = vec![PACKET, verb, kind, flags, request.service_level];
        put_address(&mut bytes, request.from);
        put_address(&mut bytes, (self.to, request.to));
        put_sequence(&mut bytes, self.sequence);
        for word in [request.imm.unwrap_or(0), request.len_bytes, request.rkey.get()] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [request.addr, key, first, second] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.payload);
        bytes
    }

    /// The packet of these bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(bytes, 0)
    }

    /// `apart_bytes` of the payload are elsewhere.
    fn decode_with(bytes: &[u8], apart_bytes: usize) -> Result<Self, DecodeError> {
        let mut input = Input(bytes);
        let [tag, verb, kind, flags, service_level] = input.take()?;
        if tag != PACKET {
            return Err(DecodeError::Field("tag"));
        }
        let from = input.address()?;
        let (to, to_qpn) = input.address()?;
        let sequence = input.sequence()?;
        let [imm, len_bytes, rkey] = [input.u32()?, input.u32()?, input.u32()?];
        let [addr, key, first, second] = [input.u64()?, input.u64()?, input.u64()?, input.u64()?];
        let verb = match verb {
            0 => Verb::Send,
            1 => Verb::Write,
            2 => Verb::Read,
            3 => Verb::CompareSwap { compare: first, swap: second },
            4 => Verb::FetchAdd { add: first },
            _ => return Err(DecodeError::Field("verb")),
        };
        let key = match kind {
            0 => Key::Connected,
            1 => Key::Ud(QKey::new(u32::try_from(key).map_err(|_| DecodeError::Field("key"))?)),
            2 => Key::Dc(DcKey::new(key)),
            _ => return Err(DecodeError::Field("key kind")),
        };
        let payload = match verb {
            Verb::Send | Verb::Write => len_bytes,
            _ => 0,
        };
        let is_atomic = matches!(verb, Verb::CompareSwap { .. } | Verb::FetchAdd { .. });
        let fits = len_bytes <= MESSAGE_BYTES_MAX && (!is_atomic || len_bytes == 8);
        if !fits || input.0.len() + apart_bytes != payload as usize {
            return Err(DecodeError::Length);
        }
        if flags > 7 || service_level > 15 {
            return Err(DecodeError::Field("flags"));
        }
        let request = Request {
            verb,
            extent: Extent::Whole,
            key,
            from,
            to: to_qpn,
            service_level,
            has_grh: flags & 1 != 0,
            solicited: flags & 2 != 0,
            imm: (flags & 4 != 0).then_some(imm),
            len_bytes,
            addr,
            rkey: Rkey::new(rkey),
        };
        Ok(Self { to, request, sequence, payload: input.0.to_vec() })
    }
}

impl ReplyPacket {
    /// Port and queue pair that it goes to: the sender of the request.
    #[must_use]
    pub fn destination(&self) -> (Lid, Qpn) {
        self.to
    }

    /// Port and queue pair that have answered.
    #[must_use]
    pub fn source(&self) -> (Lid, Qpn) {
        self.from
    }

    /// Bytes that it carries.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.data.len()
    }

    /// Whether it says that the request was run, and nothing else.
    #[must_use]
    pub fn is_plain_acknowledgement(&self) -> bool {
        self.reply == Reply::Ack && self.data.is_empty()
    }

    /// Renames the ports: LIDs mean something within one port's view only.
    #[must_use]
    pub fn between(mut self, from: Lid, to: Lid) -> Self {
        self.from.0 = from;
        self.to.0 = to;
        self
    }

    /// Takes the data out; [`join`](Self::join) puts it back.
    pub fn take_payload(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.data)
    }

    /// The answer whose form in bytes is `head` and then `data`.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn join(head: &[u8], data: Vec<u8>) -> Result<Self, DecodeError> {
        let answer = Self::decode(head)?;
        if !answer.data.is_empty() || answer.reply != Reply::Ack && !data.is_empty() {
            return Err(DecodeError::Length);
        }
        Ok(Self { data, ..answer })
    }

    /// Its form in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (reply, value) = match self.reply {
            Reply::Ack => (0, 0),
            Reply::Value(value) => (1, value),
            Reply::NotReady { wait_ns } => (2, wait_ns),
            Reply::Refused(syndrome) => (3, u64::from(syndrome.code())),
            Reply::Connecting => (4, 0),
            Reply::Dead => (5, 0),
            Reply::Silence | Reply::Later => (6, 0),
        };
        let mut bytes = vec![ANSWER, reply];
        put_address(&mut bytes, self.from);
        put_address(&mut bytes, self.to);
        put_sequence(&mut bytes, self.sequence);
        bytes.extend(value.to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// The answer of these bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input(bytes);
        let [tag, reply] = input.take()?;
        if tag != ANSWER {
            return Err(DecodeError::Field("tag"));
        }
        let [from, to] = [input.address()?, input.address()?];
        let sequence = input.sequence()?;
        let value = input.u64()?;
        let reply = match reply {
            0 => Reply::Ack,
            1 => Reply::Value(value),
            2 => Reply::NotReady { wait_ns: value },
            3 => {
                let code = u8::try_from(value).map_err(|_| DecodeError::Field("syndrome"))?;
                Reply::Refused(Syndrome::from_code(code))
            }
            4 => Reply::Connecting,
            5 => Reply::Dead,
            6 => Reply::Silence,
            _ => return Err(DecodeError::Field("reply")),
        };
        if reply != Reply::Ack && !input.0.is_empty() {
            return Err(DecodeError::Length);
        }
        Ok(Self { to, from, sequence, reply, data: input.0.to_vec() })
    }
}

/// First bytes of the two forms.
const PACKET: u8 = 1;
const ANSWER: u8 = 2;

fn put_address(bytes: &mut Vec<u8>, (lid, qpn): (Lid, Qpn)) {
    bytes.extend(lid.get().to_le_bytes());
    bytes.extend(qpn.get().to_le_bytes());
}

fn put_sequence(bytes: &mut Vec<u8>, sequence: Sequence) {
    bytes.extend(sequence.connection.to_le_bytes());
    bytes.extend(sequence.psn.to_le_bytes());
}

/// What is left to decode.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(DecodeError::Length)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<(Lid, Qpn), DecodeError> {
        let lid = Lid::new(u16::from_le_bytes(self.take()?));
        Ok((lid, Qpn::new(self.u32()?).ok_or(DecodeError::Field("QPN"))?))
    }

    fn sequence(&mut self) -> Result<Sequence, DecodeError> {
        let (connection, psn) = (self.u32()?, self.u32()?);
        if psn > Sequence::PSN_MASK {
            return Err(DecodeError::Field("PSN"));
        }
        Ok(Sequence { connection, psn })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_packet() -> impl Strategy<Value = Packet> {
        let verb = prop_oneof![
            Just(Verb::Send),
            Just(Verb::Write),
            Just(Verb::Read),
            any::<[u64; 2]>().prop_map(|[compare, swap]| Verb::CompareSwap { compare, swap }),
            any::<u64>().prop_map(|add| Verb::FetchAdd { add }),
        ];
        let key = prop_oneof![
            Just(Key::Connected),
            any::<u32>().prop_map(|key| Key::Ud(QKey::new(key))),
            any::<u64>().prop_map(|key| Key::Dc(DcKey::new(key))),
        ];
        let numbers = (any::<[u16; 2]>(), any::<[u32; 6]>(), any::<u64>(), any::<[bool; 2]>());
        let payload = prop::collection::vec(any::<u8>(), 0..100);
        let imm = any::<Option<u32>>();
        (verb, key, imm, numbers, payload).prop_map(|(verb, key, imm, numbers, payload)| {
            let ([from, to], [qpn, to_qpn, connection, psn, rkey, len], addr, flags) = numbers;
            let payload = if matches!(verb, Verb::Send | Verb::Write) { payload } else { vec![] };
            let len_bytes = match verb {
                Verb::Send | Verb::Write => u32::try_from(payload.len()).expect("short"),
                Verb::Read => len % MESSAGE_BYTES_MAX,
                _ => 8,
            };
            let request = Request {
                verb,
                extent: Extent::Whole,
                key,
                from: (Lid::new(from), Qpn::from_low_bits(qpn)),
                to: Qpn::from_low_bits(to_qpn),
                service_level: from.to_le_bytes()[0] % 16,
                has_grh: flags[0],
                solicited: flags[1],
                imm,
                len_bytes,
                addr,
                rkey: Rkey::new(rkey),
            };
            let sequence = Sequence { connection, psn: psn & Sequence::PSN_MASK };
            Packet { to: Lid::new(to), request, sequence, payload }
        })
    }

    fn any_answer() -> impl Strategy<Value = ReplyPacket> {
        let reply = prop_oneof![
            Just(Reply::Ack),
            Just(Reply::Connecting),
            Just(Reply::Dead),
            any::<u64>().prop_map(Reply::Value),
            any::<u64>().prop_map(|wait_ns| Reply::NotReady { wait_ns }),
            any::<u8>().prop_map(|code| Reply::Refused(Syndrome::from_code(code))),
        ];
        let data = prop::collection::vec(any::<u8>(), 0..100);
        (reply, data, any_packet()).prop_map(|(reply, data, packet)| ReplyPacket {
            to: packet.source(),
            from: packet.destination(),
            sequence: packet.sequence,
            reply,
            data: if reply == Reply::Ack { data } else { vec![] },
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn packets_and_answers_cross_a_byte_stream(packet in any_packet(), answer in any_answer()) {
            prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
            prop_assert_eq!(ReplyPacket::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn garbage_is_refused_or_is_what_it_says(
            bytes in prop::collection::vec(prop_oneof![3 => 0u8..5, 1 => any::<u8>()], 0..200),
        ) {
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
            }
            if let Ok(answer) = ReplyPacket::decode(&bytes) {
                prop_assert_eq!(ReplyPacket::decode(&answer.encode()), Ok(answer));
            }
        }

        #[test]
        fn a_packet_that_is_cut_is_refused(packet in any_packet(), cut in 1usize..40) {
            let bytes = packet.encode();
            prop_assert!(Packet::decode(&bytes[..bytes.len() - cut]).is_err());
        }
    }
}
