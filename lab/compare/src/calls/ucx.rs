//! Active messages of libucp between two processes, by this program: it fills, carries and compares the same bytes as
//! all others, which `ucx_perftest` does not.

use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use copyrpc_bench::calls::NumberedMessage;
use kv::ucp::{self, Config, Event, SendError, UcxAddress, UcxContext, UcxEndpoint, UcxWorker};
use measure::shared_words::PATIENCE;

use super::{CallWork, Ground, IPC_BYTES_MAX, Listening, NUMBER_BYTES, Peer, is_right, timed};
use crate::Fallible;

pub const PEERS: [Peer; 2] = [
    Peer {
        name: "UCX active messages, bytes compared",
        serve: |ground, ready| serve(ground, ready, "posix,self"),
        call: |ground, _| call(ground, "posix,self"),
        lacks,
    },
    Peer {
        name: "UCX active messages, CMA, bytes compared",
        serve: |ground, ready| serve(ground, ready, "posix,cma,self"),
        call: |ground, _| call(ground, "posix,cma,self"),
        lacks,
    },
];

/// Calls per reading of the clock.
const BATCH: usize = 32;
/// Empty polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 1 << 10;
const CLIENT: &str = "client";
const SERVER: &str = "server";

fn lacks(_: CallWork) -> Option<&'static str> {
    ucp::version().is_err().then_some("libucp is not installed (Debian: libucx0)")
}

/// A worker that the other side can find.
struct Side {
    worker: UcxWorker,
    peer: UcxEndpoint,
}

fn path(ground: &Ground<'_>, side: &str) -> PathBuf {
    ground.sample.folder.join(format!("ucx-{}-{side}", ground.sample.number))
}

fn open(transports: &str) -> Fallible<UcxWorker> {
    let config = Config {
        settings: vec![("TLS", transports.to_owned())],
        // Both sides poll, and a lost peer ends the comparison by its deadline.
        wakeup: false,
        peer_failures: false,
        message_bytes_max: IPC_BYTES_MAX,
        ..Config::default()
    };
    Ok(UcxWorker::open(&UcxContext::open(config)?)?)
}

/// Writes the address of a worker where the other side looks for it.
fn publish(ground: &Ground<'_>, side: &str, worker: &UcxWorker) -> Fallible<()> {
    fs::create_dir_all(&ground.sample.folder)?;
    let (path, begun) = (path(ground, side), path(ground, &format!("{side}.new")));
    fs::write(&begun, worker.address()?.to_string())?;
    Ok(fs::rename(begun, path)?)
}

/// Waits for the address of the other side, and connects to it.
fn connect(ground: &Ground<'_>, side: &str, worker: UcxWorker) -> Fallible<Side> {
    let deadline = Instant::now() + PATIENCE;
    let address = loop {
        match fs::read_to_string(path(ground, side)) {
            Ok(address) => break address,
            Err(error) if Instant::now() > deadline => {
                return Err(format!("no address of the {side}: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    let peer = worker.connect(&address.parse::<UcxAddress>()?)?;
    Ok(Side { worker, peer })
}

impl Side {
    /// Sends once there is room, which polls make; events of those go to `sink`.
    fn send(&self, body: &[u8], sink: &mut impl FnMut(Event<'_>)) -> Fallible<()> {
        let mut watch = Watch::default();
        loop {
            match self.worker.send(self.peer, None, body) {
                Err(SendError::Full) => watch.look(self.worker.poll(sink))?,
                sent => return Ok(sent?),
            }
        }
    }
}

/// Ends a row of empty polls after the patience of this side.
#[derive(Default)]
struct Watch {
    empty: u32,
    since: Option<Instant>,
}

impl Watch {
    fn look(&mut self, events: usize) -> Fallible<()> {
        if events > 0 {
            *self = Self::default();
            return Ok(());
        }
        self.empty = self.empty.wrapping_add(1);
        if self.empty.is_multiple_of(POLLS_PER_CLOCK)
            && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return Err(format!("the other side of UCX said nothing for {PATIENCE:?}").into());
        }
        Ok(())
    }
}

/// Answers until the client has all its answers.
fn serve(ground: &Ground<'_>, ready: Listening<'_>, transports: &str) -> Fallible<()> {
    let worker = open(transports)?;
    publish(ground, SERVER, &worker)?;
    ready(0)?;
    let side = connect(ground, CLIENT, worker)?;
    let message = NumberedMessage::new(ground.work.len_bytes);
    let (mut answers, mut compared, mut is_wrong) = (Vec::<Vec<u8>>::new(), 0, false);
    let mut spare = Vec::<Vec<u8>>::new();
    while !ground.is_over() {
        let mut take = |event: Event<'_>| {
            let Event::Message { body, .. } = event else { return };
            let mut answer = spare.pop().unwrap_or_default();
            answer.clear();
            if ground.work.is_one_way {
                is_wrong |= !is_right(&message, body, compared);
                compared += 1;
                answer.extend_from_slice(&body[..NUMBER_BYTES.min(body.len())]);
            } else {
                answer.extend_from_slice(body);
            }
            answers.push(answer);
        };
        side.worker.poll(&mut take);
        if is_wrong {
            return Err(format!("request {compared} is wrong").into());
        }
        for answer in std::mem::take(&mut answers) {
            let mut late = Vec::new();
            side.send(&answer, &mut |event| {
                if let Event::Message { body, .. } = event {
                    late.push(body.to_vec());
                }
            })?;
            if !late.is_empty() {
                return Err("requests came while an answer waited: the window is too large".into());
            }
            spare.push(answer);
        }
    }
    Ok(())
}

/// Sends the requests of a window, then takes their answers, which come in order.
fn call(ground: &Ground<'_>, transports: &str) -> Fallible<f64> {
    let worker = open(transports)?;
    publish(ground, CLIENT, &worker)?;
    let side = connect(ground, SERVER, worker)?;
    let CallWork { len_bytes, in_flight, .. } = ground.work;
    let mut message = NumberedMessage::new(len_bytes);
    let expected = NumberedMessage::new(ground.work.answer_bytes());
    let (answered, wrong) = (Cell::new(0), Cell::new(None));
    let mut sent = 0;
    let windows = ground.work.batch(BATCH).div_ceil(in_flight);
    timed(ground.work, windows * in_flight, || {
        for _ in 0..windows {
            let mut take = |event: Event<'_>| {
                if let Event::Message { body, .. } = event {
                    answered.set(answered.get() + 1);
                    if !expected.is(answered.get(), body) {
                        wrong.set(wrong.get().or(Some(answered.get())));
                    }
                }
            };
            for _ in 0..in_flight {
                sent += 1;
                side.send(message.stamp(sent), &mut take)?;
            }
            let mut watch = Watch::default();
            loop {
                let events = side.worker.poll(&mut take);
                watch.look(events)?;
                if answered.get() == sent {
                    break;
                }
            }
            if let Some(number) = wrong.get() {
                return Err(format!("answer {number} is not its request").into());
            }
        }
        Ok(())
    })
}
