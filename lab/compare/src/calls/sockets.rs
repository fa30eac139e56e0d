//! Unix stream sockets and TCP over loopback, polled (`O_NONBLOCK`) or blocking.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    time::Instant,
};

use copyrpc_bench::calls::NumberedMessage;
use measure::shared_words::PATIENCE;

use super::{CallWork, Ground, Listening, NUMBER_BYTES, Peer, is_right, timed};
use crate::Fallible;

pub const PEERS: [Peer; 4] = [
    Peer {
        name: "Unix stream, polled",
        serve: |ground, ready| unix(ground, ready, true),
        call: |ground, _| call(ground, UnixStream::connect(path(ground))?, true),
        lacks: |_| None,
    },
    Peer {
        name: "Unix stream, blocking",
        serve: |ground, ready| unix(ground, ready, false),
        call: |ground, _| call(ground, UnixStream::connect(path(ground))?, false),
        lacks: |_| None,
    },
    Peer {
        name: "TCP loopback, polled",
        serve: |ground, ready| tcp(ground, ready, true),
        call: |ground, port| call(ground, connect(port)?, true),
        lacks: |_| None,
    },
    Peer {
        name: "TCP loopback, blocking",
        serve: |ground, ready| tcp(ground, ready, false),
        call: |ground, port| call(ground, connect(port)?, false),
        lacks: |_| None,
    },
];

/// Calls per reading of the clock.
const BATCH: usize = 32;
/// Empty reads between two looks at the clock.
const READS_PER_CLOCK: u32 = 1 << 10;

trait Stream: Read + Write {
    /// Polled or with a deadline.
    fn prepare(&self, is_polled: bool) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn prepare(&self, is_polled: bool) -> io::Result<()> {
        self.set_nonblocking(is_polled)?;
        self.set_read_timeout(Some(PATIENCE))
    }
}

impl Stream for TcpStream {
    fn prepare(&self, is_polled: bool) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_nonblocking(is_polled)?;
        self.set_read_timeout(Some(PATIENCE))
    }
}

fn path(ground: &Ground<'_>) -> std::path::PathBuf {
    ground.sample.folder.join(format!("stream-{}", ground.sample.number))
}

fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
}

fn unix(ground: &Ground<'_>, ready: Listening<'_>, is_polled: bool) -> Fallible<()> {
    std::fs::create_dir_all(&ground.sample.folder)?;
    let listener = UnixListener::bind(path(ground))?;
    ready(0)?;
    answer(listener.accept()?.0, is_polled, ground.work)
}

fn tcp(ground: &Ground<'_>, ready: Listening<'_>, is_polled: bool) -> Fallible<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    ready(listener.local_addr()?.port())?;
    answer(listener.accept()?.0, is_polled, ground.work)
}

/// Retries what would block until it is done, or patience ends.
fn polled<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut since = None;
    for empty in 1u32.. {
        match step() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
        if empty % READS_PER_CLOCK == 0
            && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            break;
        }
        std::hint::spin_loop();
    }
    Err(ErrorKind::TimedOut.into())
}

fn write(stream: &mut impl Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = polled(|| stream.write(bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn read(stream: &mut impl Stream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match polled(|| stream.read(bytes))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => bytes = &mut bytes[count..],
        }
    }
    Ok(())
}

/// Answers until the client hangs up. What belongs to no whole message waits for the rest: both sides would wait for
/// each other if answers began before long requests ended.
fn answer(mut stream: impl Stream, is_polled: bool, work: CallWork) -> Fallible<()> {
    stream.prepare(is_polled)?;
    let message = NumberedMessage::new(work.len_bytes);
    let mut bytes = vec![0; (64 << 10).max(2 * work.len_bytes)];
    let (mut filled, mut compared) = (0, 0);
    loop {
        match polled(|| stream.read(&mut bytes[filled..]))? {
            0 => return Ok(()),
            count => filled += count,
        }
        let whole = filled - filled % work.len_bytes;
        if work.is_one_way {
            let mut numbers = Vec::new();
            for request in bytes[..whole].chunks_exact(work.len_bytes) {
                if !is_right(&message, request, compared) {
                    return Err(format!("request {compared} is wrong").into());
                }
                compared += 1;
                numbers.extend_from_slice(&request[..NUMBER_BYTES]);
            }
            write(&mut stream, &numbers)?;
        } else {
            write(&mut stream, &bytes[..whole])?;
        }
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Sends all requests of a window with one system call, and reads all answers.
fn call(ground: &Ground<'_>, mut stream: impl Stream, is_polled: bool) -> Fallible<f64> {
    stream.prepare(is_polled)?;
    let CallWork { len_bytes, in_flight, .. } = ground.work;
    let (mut message, expected) =
        (NumberedMessage::new(len_bytes), NumberedMessage::new(ground.work.answer_bytes()));
    let mut window = vec![0; len_bytes * in_flight];
    let mut answers = vec![0; expected.len() * in_flight];
    let mut number = 0;
    let windows = ground.work.batch(BATCH).div_ceil(in_flight);
    timed(ground.work, windows * in_flight, || {
        for _ in 0..windows {
            for (slot, number) in window.chunks_exact_mut(len_bytes).zip(number + 1..) {
                slot.copy_from_slice(message.stamp(number));
            }
            write(&mut stream, &window)?;
            read(&mut stream, &mut answers)?;
            for answer in answers.chunks_exact(expected.len()) {
                number += 1;
                if !expected.is(number, answer) {
                    return Err(format!("answer {number} is not its request").into());
                }
            }
        }
        Ok(())
    })
}
