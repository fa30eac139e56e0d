//! How long it takes to wake a sleeper, by way of what it sleeps on: why `ipc` has no futex.
//!
//! Two threads on two cores, each asleep until the other wakes it, a millisecond of silence between round
//! trips so that both cores are idle. The ways are the ones two processes have: a futex in a memfd, a
//! datagram on a Unix socket, an eventfd.

use std::{collections::BTreeMap, os::unix::net::UnixDatagram, thread, time::Duration};

use copyrpc_memory::{
    Region,
    sync::{AtomicU32, Ordering},
};
use copyrpc_os::{clock, event::EventFd, futex};
use measure::cores::{self, Cores};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Fallible, plan::ComparisonPlan};

const ROUND_TRIPS: u32 = 200;
const SILENCE: Duration = Duration::from_millis(1);
/// Longest sleep: a wake-up that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// One side of a way to wake and to sleep.
trait Way: Send {
    fn wake(&mut self) -> Fallible<()>;
    /// Sleeps until the other side's next wake.
    fn sleep(&mut self) -> Fallible<()>;
}

/// Two words that count wakes, in memory that two processes could share.
struct Futex<'m> {
    theirs: &'m AtomicU32,
    ours: &'m AtomicU32,
    seen: u32,
}

impl Way for Futex<'_> {
    fn wake(&mut self) -> Fallible<()> {
        self.theirs.fetch_add(1, Ordering::Release);
        futex::wake(self.theirs, 1);
        Ok(())
    }

    fn sleep(&mut self) -> Fallible<()> {
        let deadline_ns = clock::deadline_ns(PATIENCE);
        while self.ours.load(Ordering::Acquire) == self.seen {
            if futex::wait(self.ours, self.seen, deadline_ns) == futex::Woken::TimedOut {
                return Err("a futex was not woken".into());
            }
        }
        self.seen += 1;
        Ok(())
    }
}

/// A socket, slept on in `poll(2)` because `ipc` sleeps on the other side's death, too.
struct Datagram(UnixDatagram);

impl Way for Datagram {
    fn wake(&mut self) -> Fallible<()> {
        self.0.send(&[0])?;
        Ok(())
    }

    fn sleep(&mut self) -> Fallible<()> {
        let timeout = Timespec::try_from(PATIENCE)?;
        if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err("no datagram came".into());
        }
        self.0.recv(&mut [0])?;
        Ok(())
    }
}

struct Eventfd<'e> {
    theirs: &'e EventFd,
    ours: &'e EventFd,
}

impl Way for Eventfd<'_> {
    fn wake(&mut self) -> Fallible<()> {
        Ok(self.theirs.signal()?)
    }

    fn sleep(&mut self) -> Fallible<()> {
        if !self.ours.wait(clock::deadline_ns(PATIENCE))? {
            return Err("an event was not signaled".into());
        }
        self.ours.drain()?;
        Ok(())
    }
}

/// Median round trip, in ns.
fn round_trip(cores: Cores, mut near: impl Way, mut far: impl Way) -> Fallible<u64> {
    thread::scope(|scope| {
        let answering = scope.spawn(move || -> Result<(), String> {
            cores::pin(cores.responder).map_err(|error| error.to_string())?;
            for _ in 0..ROUND_TRIPS {
                far.sleep().and_then(|()| far.wake()).map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        cores::pin(cores.initiator)?;
        let mut times_ns = Vec::new();
        for _ in 0..ROUND_TRIPS {
            thread::sleep(SILENCE);
            let begin_ns = clock::now_ns();
            near.wake()?;
            near.sleep()?;
            times_ns.push(clock::now_ns() - begin_ns);
        }
        answering.join().expect("it returns its errors")?;
        times_ns.sort_unstable();
        Ok(times_ns[times_ns.len() / 2])
    })
}

fn by_futex(cores: Cores) -> Fallible<u64> {
    let memory = Region::memfd("copyrpc-compare", 4096)?;
    let (a, b) = (memory.shared(0)?, memory.shared(128)?);
    let near = Futex { theirs: a, ours: b, seen: 0 };
    round_trip(cores, near, Futex { theirs: b, ours: a, seen: 0 })
}

fn by_datagram(cores: Cores) -> Fallible<u64> {
    let (near, far) = UnixDatagram::pair()?;
    round_trip(cores, Datagram(near), Datagram(far))
}

fn by_eventfd(cores: Cores) -> Fallible<u64> {
    let (a, b) = (EventFd::new()?, EventFd::new()?);
    round_trip(cores, Eventfd { theirs: &a, ours: &b }, Eventfd { theirs: &b, ours: &a })
}

/// Prints medians of medians with their spread.
pub fn compare(plan: &ComparisonPlan, rounds: u32) -> Fallible<()> {
    type Run = fn(Cores) -> Fallible<u64>;
    let rows: [(&str, Run); 3] =
        [("futex", by_futex), ("datagram", by_datagram), ("eventfd", by_eventfd)];
    let mut samples: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (name, run) in rows {
            plan.go_on()?;
            samples.entry(name).or_default().push(run(plan.cores)?);
        }
    }
    println!("\nround trip between two sleepers, µs: median (min-max; n)");
    for (name, _) in rows {
        let own = samples.get_mut(name).expect("each row ran");
        own.sort_unstable();
        let us = |index: usize| own[index] as f64 / 1e3;
        let (low, middle, high) = (us(0), us(own.len() / 2), us(own.len() - 1));
        println!("{name:<12} {middle:.1} ({low:.1}-{high:.1}; {})", own.len());
    }
    Ok(())
}
