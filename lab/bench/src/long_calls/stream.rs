//! A bare TCP stream: the floor of calls over the NIC `tcp`.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use measure::cores::{self, Cores};

use super::{PATIENCE, WARM_UP, late, right};
use crate::{calls::NumberedMessage, error::Error};

/// Times of round trips through a stream of this host, in ns, of messages as long as a call and its answer; both ends
/// poll, each on its core.
///
/// # Errors
///
/// [`Error`]: there is no stream or no core, or the other end did not answer rightly and in time.
pub(super) fn stream_times_ns(
    len_bytes: usize,
    calls: u32,
    cores: Cores,
) -> Result<Vec<u64>, Error> {
    let refused = |what| move |error: std::io::Error| Error::refused(what)(error.to_string());
    let no_stream = || refused("no TCP stream");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_stream())?;
    let address = listener.local_addr().map_err(no_stream())?;
    let mut near = TcpStream::connect(address).map_err(no_stream())?;
    let (mut far, _) = listener.accept().map_err(no_stream())?;
    for stream in [&near, &far] {
        stream.set_nodelay(true).map_err(no_stream())?;
        stream.set_nonblocking(true).map_err(no_stream())?;
    }
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<(), Error> {
            cores::pin(cores.responder).map_err(Error::refused("cannot pin a thread"))?;
            let mut message = vec![0; len_bytes];
            for _ in 0..calls + WARM_UP {
                receive(&mut far, &mut message)?;
                send(&mut far, &message)?;
            }
            Ok(())
        });
        let mut run = || -> Result<Vec<u64>, Error> {
            cores::pin(cores.initiator).map_err(Error::refused("cannot pin a thread"))?;
            let (mut message, mut answer) = (NumberedMessage::new(len_bytes), vec![0; len_bytes]);
            let mut call = |number: u64| -> Result<u64, Error> {
                let begin = Instant::now();
                send(&mut near, message.stamp(number))?;
                receive(&mut near, &mut answer)?;
                right(number, &message, true, &answer)?;
                Ok(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
            };
            let times = (1..=u64::from(calls + WARM_UP)).map(&mut call);
            times.collect::<Result<Vec<_>, _>>().map(|mut times| times.split_off(WARM_UP as usize))
        };
        let times = run();
        // The other end waits for this one, and not for ever.
        let _ = near.shutdown(std::net::Shutdown::Both);
        let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
        let echoed = echo.join().unwrap_or_else(panicked);
        times.and_then(|times| echoed.map(|()| times))
    })
}

fn send(stream: &mut TcpStream, message: &[u8]) -> Result<(), Error> {
    until_done(message.len(), |at| stream.write(&message[at..]))
}

fn receive(stream: &mut TcpStream, message: &mut [u8]) -> Result<(), Error> {
    until_done(message.len(), |at| stream.read(&mut message[at..]))
}

/// Moves bytes until all are moved, from an offset on each time.
fn until_done(
    len_bytes: usize,
    mut step: impl FnMut(usize) -> std::io::Result<usize>,
) -> Result<(), Error> {
    let (mut at, begin) = (0, Instant::now());
    while at < len_bytes {
        match step(at) {
            Ok(0) => return Err(late()),
            Ok(moved_bytes) => at += moved_bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if begin.elapsed() > PATIENCE {
                    return Err(late());
                }
                core::hint::spin_loop();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::refused("a TCP stream ended")(error.to_string())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_whole_and_are_timed() {
        let cores = Cores::choose().unwrap();
        for len_bytes in [4 << 10, 3 << 20] {
            let times_ns = stream_times_ns(len_bytes, 3, cores).unwrap();
            assert!(times_ns.len() == 3 && !times_ns.contains(&0), "{times_ns:?}");
        }
    }
}
