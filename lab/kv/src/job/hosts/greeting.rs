//! Who connects to the leader proves that it knows the job's secret, and the leader proves it to them.
//!
//! ```text
//! host                                      leader
//!   nonce (32), greeting (8) ─────────────▶
//!        ◀──── nonce (32), leader's proof (32)
//!   host's proof (32) ────────────────────▶ the connection is the host's, or that of one of its children
//! ```
//!
//! Both proofs cover both nonces and the greeting. What follows is neither signed nor encrypted.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use bootstrap::{
    Secret,
    entropy::{self, NONCE_BYTES},
    secret::{PROOF_BYTES, Proof, ProofPurpose},
};
use rustix::net::sockopt;

/// Longest wait of the leader for a whole greeting: strangers make it wait, one after the other.
const HOST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait of a host, for which strangers may have come before it.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence before the kernel asks whether the other side is there, and between questions; unanswered ones until it
/// is taken for dead.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVES: u32 = 3;
const GREETING_BYTES: usize = 8;

/// What a connection to the leader is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) host: u32,
    /// The number of a child, whose channel it is; `None`: orders to the host itself.
    pub(super) child: Option<u32>,
}

/// No child has this number.
const NO_CHILD: u32 = u32::MAX;

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let words = [self.host, self.child.unwrap_or(NO_CHILD)];
        let mut bytes = [0; GREETING_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; GREETING_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        let child = u32::from_le_bytes([e, f, g, h]);
        Self { host: u32::from_le_bytes([a, b, c, d]), child: (child != NO_CHILD).then_some(child) }
    }
}

/// The host's side.
pub(super) fn greet(stream: &mut TcpStream, secret: &Secret, greeting: Greeting) -> io::Result<()> {
    let deadline = prepare(stream, LEADER_TIMEOUT)?;
    let (nonce, greeting) = (entropy::nonce(), greeting.to_bytes());
    stream.write_all(&[&nonce[..], &greeting].concat())?;
    let mut theirs = [0; NONCE_BYTES];
    read(stream, &mut theirs, deadline)?;
    let mut proof: Proof = [0; PROOF_BYTES];
    read(stream, &mut proof, deadline)?;
    let parts = [&nonce[..], &theirs, &greeting];
    if !secret.verify(ProofPurpose::Leader, &parts, &proof) {
        return Err(refused("it does not know the secret of this job"));
    }
    stream.write_all(&secret.sign(ProofPurpose::Host, &parts))
}

/// The leader's side.
pub(super) fn answer(stream: &mut TcpStream, secret: &Secret) -> io::Result<Greeting> {
    let deadline = prepare(stream, HOST_TIMEOUT)?;
    let mut theirs = [0; NONCE_BYTES];
    read(stream, &mut theirs, deadline)?;
    let mut greeting = [0; GREETING_BYTES];
    read(stream, &mut greeting, deadline)?;
    let nonce = entropy::nonce();
    let parts = [&theirs[..], &nonce, &greeting];
    let proof = secret.sign(ProofPurpose::Leader, &parts);
    stream.write_all(&[&nonce[..], &proof].concat())?;
    let mut proof: Proof = [0; PROOF_BYTES];
    read(stream, &mut proof, deadline)?;
    if !secret.verify(ProofPurpose::Host, &parts, &proof) {
        return Err(refused("it does not know the secret of this job"));
    }
    Ok(Greeting::from_bytes(greeting))
}

/// Sets what holds as long as the connection does; returns when the greeting has to be over.
fn prepare(stream: &TcpStream, timeout: Duration) -> io::Result<Instant> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(timeout))?;
    // A host that is gone without a word closes nothing: the kernel finds out.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVES)?;
    Ok(Instant::now() + timeout)
}

/// Fills `into` before the deadline, however slowly the bytes come.
fn read(stream: &mut TcpStream, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    const GREETING: Greeting = Greeting { host: 3, child: Some(7) };

    /// What host and leader say of each other, with these secrets.
    fn meet(of_host: &[u8], of_leader: &[u8]) -> (io::Result<()>, io::Result<Greeting>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let secret = Secret::from_bytes(of_host);
        let host = thread::spawn(move || {
            greet(&mut TcpStream::connect(address).unwrap(), &secret, GREETING)
        });
        let (mut stream, _) = listener.accept().unwrap();
        let answered = answer(&mut stream, &Secret::from_bytes(of_leader));
        drop(stream);
        (host.join().unwrap(), answered)
    }

    #[test]
    fn who_knows_the_secret_is_taken_for_what_it_says() {
        let (host, leader) = meet(b"the same, of both", b"the same, of both");
        host.unwrap();
        assert_eq!(leader.unwrap(), GREETING);
        let control = Greeting { host: 1, child: None };
        assert_eq!(Greeting::from_bytes(control.to_bytes()), control);
    }

    #[test]
    fn bytes_that_trickle_in_do_not_prolong_a_greeting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let trickle = thread::spawn(move || {
            // Until the other side hangs up.
            while slow.write_all(&[0]).is_ok() {
                thread::sleep(HOST_TIMEOUT / 10);
            }
        });
        assert!(answer(&mut stream, &Secret::from_bytes(b"of the job")).is_err());
        drop(stream);
        trickle.join().unwrap();
    }

    #[test]
    fn who_does_not_know_the_secret_is_neither_leader_nor_host() {
        let (host, leader) = meet(b"one secret", b"another secret");
        assert_eq!(host.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(leader.is_err());
    }
}
