//! How two ports that share a secret meet on a stream: pure code, without a socket.
//!
//! ```text
//!  dialer                                                acceptor
//!    Hello: own name, acceptor's name, nonce   ──────▶
//!                    ◀──────   Hello: own name, dialer's name, nonce │ proof over both hellos
//!    proof over both hellos                    ──────▶
//! ```
//!
//! A proof is HMAC-SHA-256 with the secret over a label and both hellos. The labels of the two sides differ, so
//! a proof that is sent back proves nothing; each side's nonce is in what the other signs, so neither does one
//! that was recorded. A hello names whom it is for, with the life of that port: a hello for another port
//! is refused.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{PortName, Secret, name::NAME_BYTES};

/// The first bytes of a hello: the protocol's name and version.
const MAGIC: [u8; 8] = *b"cpr/tcp1";

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = MAGIC.len() + 8 + 2 * NAME_BYTES + NONCE_BYTES;
/// Bytes of the acceptor's answer.
pub const ANSWER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;

/// Longest frame that a port takes; part of a hello, so that versions which differ in it do not meet.
const LIMIT: [u8; 4] = {
    let [a, b, c, d, ..] = (crate::frame::FRAME_BYTES_MAX as u64).to_le_bytes();
    [a, b, c, d]
};

/// Why a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// No port of this kind and version.
    #[error("the other side speaks something else, or another version")]
    Magic,
    /// Its limits are others.
    #[error("the other side has other limits")]
    Limit,
    /// It means another port, or names none.
    #[error("the other side means another port, or another life of this one")]
    Name,
    /// It does not know the secret.
    #[error("the other side does not know the secret")]
    Proof,
}

/// The first message of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the port that says hello.
    pub from: PortName,
    /// To whom.
    pub to: PortName,
    /// How many streams between the two it has lost: a stream that replaces none is not taken for one that does.
    pub epoch: u32,
    /// Never used before.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let parts: [&[u8]; 6] = [
            &MAGIC,
            &LIMIT,
            &self.epoch.to_le_bytes(),
            &self.from.to_bytes(),
            &self.to.to_bytes(),
            &self.nonce,
        ];
        let mut bytes = [0; HELLO_BYTES];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bytes
    }

    /// Of bytes without a signature yet.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`].
    pub fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HandshakeError> {
        let (magic, rest) = bytes.split_at(MAGIC.len());
        if *magic != MAGIC {
            return Err(HandshakeError::Magic);
        }
        let (limit, rest) = rest.split_at(4);
        if *limit != LIMIT {
            return Err(HandshakeError::Limit);
        }
        let (epoch, rest) = rest.split_at(4);
        let epoch = u32::from_le_bytes(epoch.try_into().map_err(|_| HandshakeError::Magic)?);
        let name = |bytes: &[u8]| {
            let bytes = <[u8; NAME_BYTES]>::try_from(bytes).map_err(|_| HandshakeError::Name)?;
            PortName::from_bytes(bytes).ok_or(HandshakeError::Name)
        };
        let from = name(&rest[..NAME_BYTES])?;
        let to = name(&rest[NAME_BYTES..2 * NAME_BYTES])?;
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&rest[2 * NAME_BYTES..]);
        Ok(Self { from, to, epoch, nonce })
    }
}

/// Both hellos, as bytes.
#[derive(Clone, Debug)]
struct Transcript {
    dialer: [u8; HELLO_BYTES],
    acceptor: [u8; HELLO_BYTES],
}

/// The side that proves that it knows the secret.
#[derive(Clone, Copy)]
enum Side {
    Dialer,
    Acceptor,
}

impl Transcript {
    fn mac(&self, key: &Secret, side: Side) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
        let mut mac = mac.expect("HMAC takes keys of any length");
        let label: &[u8; 16] = match side {
            Side::Dialer => b"copyrpc tcp dial",
            Side::Acceptor => b"copyrpc tcp acpt",
        };
        for part in [&label[..], &self.dialer, &self.acceptor] {
            mac.update(part);
        }
        mac
    }

    fn sign(&self, key: &Secret, side: Side) -> [u8; PROOF_BYTES] {
        self.mac(key, side).finalize().into_bytes().into()
    }

    fn verify(&self, key: &Secret, side: Side, proof: &[u8]) -> Result<(), HandshakeError> {
        self.mac(key, side).verify_slice(proof).map_err(|_| HandshakeError::Proof)
    }
}

/// The side that has opened the stream.
#[derive(Clone, Debug)]
pub struct Dialer(Hello);

impl Dialer {
    /// A dialer, and its message.
    #[must_use]
    pub fn new(hello: Hello) -> (Self, [u8; HELLO_BYTES]) {
        (Self(hello), hello.to_bytes())
    }

    /// Takes the acceptor's answer. The proof that it returns is sent, and the handshake is over. The second
    /// result is the acceptor's epoch.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`].
    pub fn answer(
        &self,
        key: &Secret,
        bytes: &[u8; ANSWER_BYTES],
    ) -> Result<([u8; PROOF_BYTES], u32), HandshakeError> {
        let (hello, proof) = bytes.split_at(HELLO_BYTES);
        let acceptor = hello.try_into().map_err(|_| HandshakeError::Magic)?;
        let theirs = Hello::from_bytes(&acceptor)?;
        if (theirs.from, theirs.to) != (self.0.to, self.0.from) {
            return Err(HandshakeError::Name);
        }
        let transcript = Transcript { dialer: self.0.to_bytes(), acceptor };
        transcript.verify(key, Side::Acceptor, proof)?;
        Ok((transcript.sign(key, Side::Dialer), theirs.epoch))
    }
}

/// The side that listens, once the dialer's hello is there.
#[derive(Clone, Debug)]
pub struct Acceptor {
    hello: Hello,
    transcript: Transcript,
}

impl Acceptor {
    /// Takes a hello for the port `own`, which has lost `epoch` streams of that dialer. The second result is
    /// sent.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`].
    pub fn new(
        key: &Secret,
        own: PortName,
        epoch: u32,
        nonce: [u8; NONCE_BYTES],
        bytes: &[u8; HELLO_BYTES],
    ) -> Result<(Self, [u8; ANSWER_BYTES]), HandshakeError> {
        let hello = Hello::from_bytes(bytes)?;
        if hello.to != own || hello.from == own {
            return Err(HandshakeError::Name);
        }
        let acceptor = Hello { from: own, to: hello.from, epoch, nonce }.to_bytes();
        let transcript = Transcript { dialer: *bytes, acceptor };
        let mut answer = [0; ANSWER_BYTES];
        answer[..HELLO_BYTES].copy_from_slice(&acceptor);
        answer[HELLO_BYTES..].copy_from_slice(&transcript.sign(key, Side::Acceptor));
        Ok((Self { hello, transcript }, answer))
    }

    /// The message of the dialer.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Takes the dialer's proof: it is who it says.
    ///
    /// # Errors
    ///
    /// [`HandshakeError::Proof`].
    pub fn finish(
        &self,
        key: &Secret,
        proof: &[u8; PROOF_BYTES],
    ) -> Result<PortName, HandshakeError> {
        self.transcript.verify(key, Side::Dialer, proof)?;
        Ok(self.hello.from)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use proptest::prelude::*;

    use super::*;

    fn name(port: u16, life: u32) -> PortName {
        PortName { address: SocketAddrV4::new([127, 0, 0, 1].into(), port), life, lid: 0 }
    }

    fn key(text: &str) -> Secret {
        Secret::from_bytes(text.as_bytes())
    }

    const DIALER: [u8; NONCE_BYTES] = [1; NONCE_BYTES];
    const ACCEPTOR: [u8; NONCE_BYTES] = [2; NONCE_BYTES];

    fn begin(nonce: [u8; NONCE_BYTES]) -> (Dialer, [u8; HELLO_BYTES]) {
        Dialer::new(Hello { from: name(1, 1), to: name(2, 2), epoch: 7, nonce })
    }

    /// A port of another build may be on the other side. A change of these bytes changes [`MAGIC`], and the version
    /// between daemons (crate `proto`), which names both to an operator.
    #[test]
    fn fault_e7_a_hello_has_the_bytes_that_builds_in_use_have() {
        let mut bytes = b"cpr/tcp1\x98\0\x01\0\x07\0\0\0".to_vec();
        bytes.extend(b"\xfdcpr\0\0\0\x01\0\0\0\x01\x7f\0\0\x01");
        bytes.extend(b"\xfdcpr\0\0\0\x02\0\0\0\x02\x7f\0\0\x01");
        bytes.extend(DIALER);
        assert_eq!(begin(DIALER).1[..], bytes);
        let mut other = begin(DIALER).1;
        other[7] += 1;
        assert_eq!(Hello::from_bytes(&other), Err(HandshakeError::Magic));
    }

    #[test]
    fn two_that_know_the_secret_meet() {
        let key = key("a secret of the job");
        let (dialer, hello) = begin(DIALER);
        let (acceptor, answer) = Acceptor::new(&key, name(2, 2), 9, ACCEPTOR, &hello).unwrap();
        let (proof, epoch) = dialer.answer(&key, &answer).unwrap();
        assert_eq!((epoch, acceptor.hello().epoch), (9, 7));
        assert_eq!(acceptor.finish(&key, &proof), Ok(name(1, 1)));
    }

    #[test]
    fn who_has_another_secret_is_refused_on_either_side() {
        let right = key("a secret of the job");
        let wrong = key("a secret of another");
        let (dialer, hello) = begin(DIALER);
        let (_, answer) = Acceptor::new(&wrong, name(2, 2), 9, ACCEPTOR, &hello).unwrap();
        assert_eq!(dialer.answer(&right, &answer), Err(HandshakeError::Proof));
        let (acceptor, answer) = Acceptor::new(&right, name(2, 2), 9, ACCEPTOR, &hello).unwrap();
        let transcript =
            Transcript { dialer: hello, acceptor: *answer.first_chunk::<HELLO_BYTES>().unwrap() };
        let forged = transcript.sign(&wrong, Side::Dialer);
        assert_eq!(acceptor.finish(&right, &forged), Err(HandshakeError::Proof));
    }

    #[test]
    fn a_proof_that_is_sent_back_or_was_recorded_is_worth_nothing() {
        let key = key("a secret of the job");
        let (dialer, hello) = begin(DIALER);
        let (acceptor, answer) = Acceptor::new(&key, name(2, 2), 9, ACCEPTOR, &hello).unwrap();
        let reflected = answer[HELLO_BYTES..].try_into().unwrap();
        assert_eq!(acceptor.finish(&key, &reflected), Err(HandshakeError::Proof));
        let (recorded, _) = dialer.answer(&key, &answer).unwrap();
        let (later, _) = Acceptor::new(&key, name(2, 2), 9, [3; NONCE_BYTES], &hello).unwrap();
        assert_eq!(later.finish(&key, &recorded), Err(HandshakeError::Proof));
        let (next, _) = begin([4; NONCE_BYTES]);
        assert_eq!(next.answer(&key, &answer), Err(HandshakeError::Proof));
    }

    #[test]
    fn what_is_meant_for_another_port_or_life_or_comes_from_oneself_is_refused() {
        let key = key("a secret of the job");
        let (_, hello) = begin(DIALER);
        for own in [name(2, 3), name(3, 2), name(1, 1)] {
            let refused = Acceptor::new(&key, own, 9, ACCEPTOR, &hello).map(drop);
            assert_eq!(refused, Err(HandshakeError::Name));
        }
        let (_, own) =
            Dialer::new(Hello { from: name(2, 2), to: name(2, 2), epoch: 7, nonce: DIALER });
        let refused = Acceptor::new(&key, name(2, 2), 9, ACCEPTOR, &own).map(drop);
        assert_eq!(refused, Err(HandshakeError::Name));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..Default::default()
        })]

        #[test]
        fn a_bit_that_flips_anywhere_ends_the_handshake(
            step in 0usize..3, at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let key = key("a secret of the job");
            let flip = |bytes: &mut [u8]| bytes[at.index(bytes.len())] ^= 1 << bit;
            let (dialer, mut hello) = begin(DIALER);
            if step == 0 {
                flip(&mut hello);
            }
            let Ok((acceptor, mut answer)) = Acceptor::new(&key, name(2, 2), 9, ACCEPTOR, &hello)
            else { return Ok(()) };
            if step == 1 {
                flip(&mut answer);
            }
            let Ok((mut proof, _)) = dialer.answer(&key, &answer) else { return Ok(()) };
            prop_assert_eq!(step, 2);
            flip(&mut proof);
            prop_assert_eq!(acceptor.finish(&key, &proof), Err(HandshakeError::Proof));
        }

        #[test]
        fn any_bytes_are_refused(
            hello in prop::collection::vec(any::<u8>(), HELLO_BYTES),
            answer in prop::collection::vec(any::<u8>(), ANSWER_BYTES),
        ) {
            let key = key("a secret of the job");
            let hello = hello.try_into().unwrap();
            prop_assert!(Acceptor::new(&key, name(2, 2), 9, ACCEPTOR, &hello).is_err());
            prop_assert!(begin(DIALER).0.answer(&key, &answer.try_into().unwrap()).is_err());
        }
    }
}
