//! Round trips between two processes on one core: each side offers the core with `sched_yield(2)` until the other one
//! has had it, as clients and daemons do that share one. A round trip is two changes from one process to the other.
//!
//! The initiator moves to the responder's core for the time of a sample. Two counters check it: each answer has the
//! number that was asked, and the kernel says that the initiator left its core in each round trip.

use std::{io, time::Duration};

use measure::{cores::Guest, ping_pong, shared_words::Patience};
use memory::sync::{AtomicU64, Ordering};
use nix::sys::resource::{UsageWho, getrusage};
use os::affinity::allowed_cores;

use crate::{
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{SharedWord, SharedWords},
    stats::Laps,
};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The responder's core.
fn core_word(shared: &SharedWords) -> &AtomicU64 {
    shared.word(SharedWord::Received)
}

/// Initiator's side: ns per round trip, the median of batches.
pub(crate) fn initiate(shared: &SharedWords, sample: &SamplePlan) -> Result<f64, Error> {
    // The control channel, by which the responder said that it is ready, orders this load.
    let core = core_word(shared).load(Ordering::Relaxed);
    let refused = Error::refused("cannot move to the core of the other process");
    let core = usize::try_from(core).map_err(io::Error::other);
    let _guest = core.and_then(Guest::of).map_err(refused)?;
    let (count, batch) = (sample.count, sample.batch());
    let mut patience = shared.patience(PATIENCE);
    let before = changes(UsageWho::RUSAGE_THREAD);
    let mut laps = Laps::start();
    for number in 1..=count {
        ping_pong::round_trip(shared, number, &mut patience, Patience::offer_core)?;
        if number % batch == 0 {
            laps.lap(batch);
        }
    }
    let counted = changes(UsageWho::RUSAGE_THREAD) - before;
    ping_pong::stop(shared);
    check(count, counted)?;
    Ok(laps.median_ns())
}

/// Responder's side: answers until the initiator stops.
pub(crate) fn respond(shared: &SharedWords, ready: Ready<'_>) -> Result<(), Error> {
    let allowed = allowed_cores().map_err(Error::refused("cannot tell the core"))?;
    let core = allowed.first().map_or(0, |core| *core as u64);
    core_word(shared).store(core, Ordering::Relaxed);
    ready()?;
    Ok(ping_pong::answer_by(shared, Patience::offer_core)?)
}

/// Times that a core went from a thread to something else, by the kernel's count; 0 where it does not count.
fn changes(of: UsageWho) -> u64 {
    let counts = getrusage(of)
        .map(|usage| usage.voluntary_context_switches() + usage.involuntary_context_switches());
    counts.ok().and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// Refuses round trips in which the initiator kept its core, where the kernel counts.
fn check(round_trips: u64, counted: u64) -> Result<(), Error> {
    if counted >= round_trips || changes(UsageWho::RUSAGE_SELF) == 0 {
        return Ok(());
    }
    let cause = format!(
        "the initiator left its core {counted} times in {round_trips} round trips; run on a kernel that shares a core"
    );
    Err(Error::refused::<String>("two processes do not share a core")(cause))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A sample of two threads, of which the responder has one core.
    fn sample_of(count: u64) -> (Result<f64, Error>, SharedWords) {
        let shared = SharedWords::new().unwrap();
        let sample = SamplePlan { count, number: 1, ..SamplePlan::default() };
        let (is_ready, wait) = std::sync::mpsc::channel();
        let value = thread::scope(|scope| {
            let responder = scope.spawn(|| {
                let core = *allowed_cores().unwrap().last().unwrap();
                os::affinity::pin_current_thread(core).unwrap();
                respond(&shared, &mut || {
                    is_ready.send(()).unwrap();
                    Ok(())
                })
            });
            wait.recv().unwrap();
            let before = allowed_cores().unwrap();
            let value = initiate(&shared, &sample).inspect_err(|_| shared.fail());
            assert_eq!(allowed_cores().unwrap(), before, "the initiator is where it was");
            responder.join().unwrap().unwrap();
            value
        });
        (value, shared)
    }

    #[test]
    fn each_round_trip_on_one_core_is_answered_and_counted() {
        let (value, shared) = sample_of(20);
        let value = value.unwrap();
        assert!(value.is_finite() && value > 0.0, "{value}");
        assert_eq!(shared.word(SharedWord::Pong).load(Ordering::Relaxed), 20);
        assert_eq!(
            shared.word(SharedWord::Ping).load(Ordering::Relaxed),
            u64::MAX,
            "it was stopped"
        );
    }

    #[test]
    fn round_trips_without_changes_are_refused() {
        assert!(check(20, 20).is_ok() && check(20, 41).is_ok());
        let error = check(20, 3).unwrap_err().to_string();
        assert!(error.contains("3 times in 20 round trips"), "{error}");
    }
}
