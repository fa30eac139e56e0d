//! How a client and a server tell each other how to connect: over TCP, before the first call.
//!
//! ```text
//! frame   0           4
//!         │ len_bytes │ greeting, or answer to it …
//! ```

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use os::clock;

/// Longest greeting or answer.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// Between two looks for a client.
const LOOK: Duration = Duration::from_millis(1);
/// Longest time that one client may take to say what it has to say.
const WORD_TIMEOUT: Duration = Duration::from_secs(10);

/// A server's end.
#[derive(Debug)]
pub(super) struct Meeting {
    listener: TcpListener,
    address: SocketAddr,
}

impl Meeting {
    pub(super) fn open(address: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands the greetings of `count` clients to `answer`. Who connects and does not greet is no client.
    pub(super) fn answer_all<E: From<io::Error>>(
        &self,
        count: u16,
        deadline_ns: u64,
        mut answer: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let mut answered = 0;
        while answered < count {
            let mut stream = self.accept(deadline_ns)?;
            if let Ok(greeting) = read_frame(&mut stream) {
                // A client that went away meanwhile is missed by the coordinator.
                let _ = write_frame(&mut stream, &answer(&greeting)?);
                answered += 1;
            }
        }
        Ok(())
    }

    fn accept(&self, deadline_ns: u64) -> io::Result<TcpStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    set_timeouts(&stream)?;
                    return Ok(stream);
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if clock::now_ns() > deadline_ns => return Err(ErrorKind::TimedOut.into()),
                Err(_) => thread::sleep(LOOK),
            }
        }
    }
}

/// A client's end: says `greeting` to the server at `address` and returns its answer.
pub(super) fn greet(address: SocketAddr, greeting: &[u8], deadline_ns: u64) -> io::Result<Vec<u8>> {
    let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns())).max(LOOK);
    let mut stream = TcpStream::connect_timeout(&address, left)?;
    stream.set_write_timeout(Some(left))?;
    stream.set_read_timeout(Some(left))?;
    write_frame(&mut stream, greeting)?;
    read_frame(&mut stream)
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(WORD_TIMEOUT))?;
    stream.set_write_timeout(Some(WORD_TIMEOUT))
}

fn write_frame(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_le_bytes()[..], bytes].concat())
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_BYTES_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn every_greeting_is_answered_and_strangers_are_passed_over() {
        let meeting = Meeting::open(crate::backend::loopback()).unwrap();
        let address = meeting.address();
        thread::scope(|scope| {
            scope.spawn(move || {
                drop(TcpStream::connect(address).unwrap());
                TcpStream::connect(address).unwrap().write_all(&[0xff; 8]).unwrap();
            });
            let clients = [b"one".as_slice(), b""].map(|greeting| {
                scope.spawn(move || greet(address, greeting, clock::deadline_ns(PATIENCE)).unwrap())
            });
            let answer = |greeting: &[u8]| Ok::<_, io::Error>([greeting, b"!"].concat());
            meeting.answer_all(2, clock::deadline_ns(PATIENCE), answer).unwrap();
            assert_eq!(clients.map(|client| client.join().unwrap()), [&b"one!"[..], b"!"]);
        });
    }

    #[test]
    fn a_client_that_never_comes_is_an_error() {
        let meeting = Meeting::open(crate::backend::loopback()).unwrap();
        let answer = |_: &[u8]| Ok::<_, io::Error>(Vec::new());
        let error = meeting.answer_all(1, clock::NOW, answer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
