//! A smaller run that fails like a larger one.

use super::{ClusterError, ClusterWorkload, Setup, run};
use crate::world::Time;

/// Runs that a search may take.
const RUNS_MAX: u32 = 300;

/// Makes a run that fails smaller as long as it fails: fewer faults, nodes, clients, less time. The sizes and
/// habits that its seed has drawn stay. Returns the smallest that was found, with its failure.
///
/// # Errors
///
/// As [`run()`].
pub fn shrink(
    setup: &Setup,
    mut progress: impl FnMut(&Setup, &str),
) -> Result<Option<(Setup, String)>, ClusterError> {
    let explicit = Setup { faults: Some(setup.faults()), ..setup.clone() };
    let Some(failure) = run(&explicit)?.failure else { return Ok(None) };
    let mut best = (explicit, failure);
    let mut runs = 0;
    loop {
        let mut has_shrunk = false;
        for candidate in candidates(&best.0) {
            if runs >= RUNS_MAX {
                return Ok(Some(best));
            }
            runs += 1;
            if let Some(failure) = run(&candidate)?.failure {
                progress(&candidate, &failure);
                best = (candidate, failure);
                has_shrunk = true;
                break;
            }
        }
        if !has_shrunk {
            return Ok(Some(best));
        }
    }
}

/// Smaller runs, those first that are much smaller.
fn candidates(setup: &Setup) -> Vec<Setup> {
    let mut smaller = Vec::new();
    let faults = setup.faults();
    if setup.workload != ClusterWorkload::Drawn {
        smaller.push(Setup { workload: ClusterWorkload::Drawn, ..setup.clone() });
    }
    if faults.len() > 1 {
        smaller.push(Setup { faults: Some(Vec::new()), ..setup.clone() });
    }
    for left_out in 0..faults.len() {
        let mut fewer = faults.clone();
        fewer.remove(left_out);
        smaller.push(Setup { faults: Some(fewer), ..setup.clone() });
    }
    let numbers = |now: u32, least: u32| {
        let mut tried = vec![least, now / 2, now - 1];
        tried.retain(|number| (least..now).contains(number));
        tried.dedup();
        tried
    };
    if setup.nodes > 1 {
        let nodes = numbers(setup.nodes, 2);
        smaller.extend(nodes.into_iter().map(|nodes| Setup { nodes, ..setup.clone() }));
    }
    if setup.clients > 1 {
        let clients = numbers(setup.clients, 1);
        smaller.extend(clients.into_iter().map(|clients| Setup { clients, ..setup.clone() }));
    }
    let length_us = setup.length.whole_ns() / 1000;
    for shorter_us in [length_us / 8, length_us / 2, length_us * 3 / 4, length_us * 15 / 16] {
        if (10..length_us).contains(&shorter_us) {
            let length = Time::from_ns(1000 * shorter_us);
            smaller.push(Setup { length, ..setup.clone() });
        }
    }
    smaller
}
