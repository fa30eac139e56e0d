//! Both roles in one process, each on a thread with a NIC of its own.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use verbs::Nic;

use crate::{
    Scenario,
    harness::{NicPlace, Role, Side, Stop, Testbed, Verdict},
    oob::{InMemory, OutOfBand},
};

/// For a scenario that takes minutes.
const LONG_DEADLINE: Duration = Duration::from_secs(1200);

/// Scenarios that this process has skipped.
static SKIPS: Mutex<u32> = Mutex::new(0);

/// Opens the NIC of one role.
pub type MakeNic<N> = fn(&NicPlace) -> N;

/// Runs `scenario` as two threads of this process.
///
/// # Panics
///
/// If the NIC breaks a rule of the scenario, or either role outlives
/// [`Testbed::scenario_deadline`]. The message names the scenario, the place, and the seed.
pub fn run_threads<N: Nic + 'static>(
    name: &str,
    scenario: Scenario<N>,
    make_nic: MakeNic<N>,
    testbed: &Testbed,
) {
    let testbed = as_environment_asks(*testbed);
    if testbed.leaves_out(name) {
        return;
    }
    judge(name, &testbed, verdicts(name, scenario, make_nic, testbed));
}

/// How the scenario `name` goes between two threads of this process, each with a NIC that `make_nic` opens, on a
/// device without the capabilities that it does not claim. For reports; tests use [`run_threads`].
///
/// # Errors
///
/// The skipped capability, or the rule that the NIC breaks, for people.
pub fn try_threads<N: Nic + 'static>(
    name: &str,
    make_nic: impl Fn(&NicPlace) -> N + Clone + Send + 'static,
    testbed: Testbed,
) -> Result<(), NotPassed> {
    let scenario = crate::scenario::<N>(name);
    let verdicts = verdicts(name, scenario, make_nic, testbed);
    let stops = verdicts.into_iter().filter_map(|(role, verdict)| Some((role, verdict.err()?)));
    let stops: Vec<(Role, Stop)> = stops.collect();
    let text = |(role, stop): &(Role, Stop)| format!("{role:?}: {stop}");
    match stops.iter().find(|(_, stop)| matches!(stop, Stop::Skipped(_))) {
        Some((_, skipped)) => Err(NotPassed::Skipped(skipped.to_string())),
        None if stops.is_empty() => Ok(()),
        None => Err(NotPassed::Failed(stops.iter().map(text).collect::<Vec<_>>().join("; "))),
    }
}

/// How a scenario went that did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPassed {
    /// The NIC does not claim a capability that it needs.
    Skipped(String),
    /// The NIC breaks a rule.
    Failed(String),
}

/// Runs both roles to their ends, or to the deadline.
fn verdicts<N: Nic + 'static>(
    name: &str,
    scenario: Scenario<N>,
    make_nic: impl Fn(&NicPlace) -> N + Clone + Send + 'static,
    testbed: Testbed,
) -> Vec<(Role, Verdict)> {
    let fabric = fabric_name(name);
    let (client, server) = InMemory::pair();
    let (to, results) = mpsc::channel();
    for (role, oob) in [(Role::Client, client), (Role::Server, server)] {
        let place = NicPlace { role, fabric: fabric.clone() };
        spawn_role(scenario, make_nic.clone(), testbed, place, oob, to.clone());
    }
    drop(to);
    let mut verdicts = Vec::new();
    let end = Instant::now() + testbed.scenario_deadline;
    while verdicts.len() < 2 {
        let left = end.saturating_duration_since(Instant::now());
        match results.recv_timeout(left) {
            Ok(verdict) => verdicts.push(verdict),
            Err(_) => {
                verdicts.push((Role::Client, Err(Stop::violation("a role outlived its deadline"))));
                break;
            }
        }
    }
    verdicts
}

/// Runs one role on a thread; its verdict goes `to` the runner.
pub(super) fn spawn_role<N: Nic + 'static>(
    scenario: Scenario<N>,
    make_nic: impl Fn(&NicPlace) -> N + Send + 'static,
    testbed: Testbed,
    place: NicPlace,
    oob: impl OutOfBand + 'static,
    to: mpsc::Sender<(Role, Verdict)>,
) {
    let name = format!("{:?}", place.role);
    let run = move || {
        let role = place.role;
        let verdict = catch_unwind(AssertUnwindSafe(|| {
            let nic = make_nic(&place);
            scenario(&mut Side::new(nic, role, testbed, Box::new(oob)))
        }))
        .unwrap_or_else(|panic| Err(Stop::violation(format!("panic: {}", text_of(&*panic)))));
        // A runner that stopped waiting has reported already.
        let _ = to.send((role, verdict));
    };
    thread::Builder::new().name(name).spawn(run).expect("a thread for each role");
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("not a string")
}

/// Turns verdicts into the result of a test.
///
/// # Panics
///
/// If any of them is a violation; a [`Stop::PeerEnded`] alone is one too.
pub(super) fn judge(name: &str, testbed: &Testbed, verdicts: Vec<(Role, Verdict)>) {
    let stops: Vec<(Role, Stop)> =
        verdicts.into_iter().filter_map(|(role, verdict)| Some((role, verdict.err()?))).collect();
    if let Some((_, skipped)) = stops.iter().find(|(_, stop)| matches!(stop, Stop::Skipped(_))) {
        let mut count = SKIPS.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        println!("{name}: {skipped} (number {count} that this process skips)");
        return;
    }
    let reports: Vec<String> =
        stops.iter().map(|(role, stop)| format!("  {role:?}: {stop}")).collect();
    assert!(
        reports.is_empty(),
        "{name} failed (CONFORMANCE_SEED={:#x}):\n{}",
        testbed.seed,
        reports.join("\n")
    );
}

/// A name that no other run on this machine has at the same time.
pub(super) fn fabric_name(name: &str) -> String {
    let thread = format!("{:?}", thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    format!("{name}-{}-{number}", process::id())
}

/// `testbed`, with the seed that `CONFORMANCE_SEED` asks for, and with what takes minutes if
/// `CONFORMANCE_LONG` is set.
pub(super) fn as_environment_asks(testbed: Testbed) -> Testbed {
    let seed = std::env::var("CONFORMANCE_SEED").map_or(testbed.seed, |text| {
        let hex = text.trim_start_matches("0x");
        u64::from_str_radix(hex, 16).expect("CONFORMANCE_SEED is a hexadecimal number")
    });
    if std::env::var_os("CONFORMANCE_LONG").is_none() {
        return Testbed { seed, ..testbed };
    }
    Testbed { seed, long: true, scenario_deadline: LONG_DEADLINE, ..testbed }
}
