//! The key-value workload of crate `kv` over rivals at the level of RPC, each over TCP, beside ours: the
//! same processes, operations, checks and interval for everybody, one run after the other in each round.
//!
//! ```text
//! client process ── connection per shard ── TCP over loopback ──▶ server of the shard
//!   Driver and judge of crate `kv`                                  tonic, tarpc: a thread of the rank process
//!                                                                   Redis, memcached: its child process
//! ```
//!
//! - Processes, operations, schedule, pinning and checks are those of `bench kv` for every contender: a client
//!   process has one thread and a connection to each of two servers. A value holds its key and its version, so
//!   values of Redis and memcached are judged, too.
//! - Redis and memcached are child processes of the shard's process, on its core. All ready requests leave by one
//!   system call, and replies are read where they were received. memcached has one thread and room for four times
//!   the values; Redis writes nothing to disk.
//! - *copyrpc tokio* are the daemons of delegation, whose clients make each call as a task of tokio, as those of
//!   tonic and tarpc do.
//! - tonic and tarpc have an executor of one thread on each side, `TCP_NODELAY`, and bodies of `bytes::Bytes` and
//!   `serde_bytes::ByteBuf`, so that no codec goes through them byte by byte. Their client threads sleep in the
//!   executor (`Wait::Block`); all others wait adaptively.

mod conversation;
mod grpc;
mod memcached;
mod redis;
mod server_process;
mod stored;
mod tarpc_calls;
mod tasks;
mod tokio_calls;

use std::{collections::BTreeMap, io, time::Instant};

use copyrpc_memory::sync::AtomicBool;
use kv::{
    backend::{Kind, Switches, Wait},
    job::{self, Config, Launcher, Pin, hosts::Hosts},
    result::{Latency, RunRecord},
    session::{self, Progress, SessionPlan},
    workload::{ValueSize, Workload},
};
use measure::{results::Metric, rounds::Rounds, schedule::shuffled};

use self::stored::Stored;
use crate::{Fallible, plan::ComparisonPlan, table::Measurements};

/// Command of a process of a run over a backend that this program brings; its name follows.
pub const CHILD: &str = "kv-child";
/// Command of a process of a run of ours.
pub const OUR_CHILD: &str = "kv-our-child";
/// What every ratio is to.
const REFERENCE: &str = "copyrpc delegation";
/// What a run is filed under.
const NUMBERS: [(&str, Metric); 3] =
    [("rate", Metric::Rate), ("p50", Metric::RoundTrip), ("p99", Metric::RoundTrip)];

/// Values, unless others are asked for.
const VALUES_BYTES: [usize; 2] = [64, 4 << 10];
/// The same of a smoke test.
const SMOKE_BYTES: [usize; 3] = [64, 4 << 10, 64 << 10];
const QUEUE_DEPTHS: [u32; 3] = [1, 4, 32];
const CLIENTS_PER_RANK: [u16; 2] = [1, 4];
const KEYS: u64 = 1000;
const WARM_UP_MS: u64 = 100;
const DURATION_MS: u64 = 300;

/// A way to call.
#[derive(Clone, Copy, Debug)]
struct Contender {
    name: &'static str,
    way: Way,
    /// How its client threads wait. An executor of tasks sleeps itself.
    wait: Wait,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Ours(Kind),
    /// A backend that this program brings.
    Brought(Brought),
}

#[derive(Clone, Copy, Debug)]
enum Brought {
    Tokio,
    Redis,
    Memcached,
    Tonic,
    Tarpc,
}

const CONTENDERS: [Contender; 8] = [
    ours(REFERENCE, Kind::Delegation),
    ours("copyrpc direct", Kind::Direct),
    Contender { name: "copyrpc tokio", way: Way::Brought(Brought::Tokio), wait: Wait::Adaptive },
    ours("TCP, as kv has it", Kind::Tcp),
    Contender { name: "Redis", way: Way::Brought(Brought::Redis), wait: Wait::Adaptive },
    Contender { name: "memcached", way: Way::Brought(Brought::Memcached), wait: Wait::Adaptive },
    Contender { name: "tonic", way: Way::Brought(Brought::Tonic), wait: Wait::Block },
    Contender { name: "tarpc", way: Way::Brought(Brought::Tarpc), wait: Wait::Block },
];

const fn ours(name: &'static str, kind: Kind) -> Contender {
    Contender { name, way: Way::Ours(kind), wait: Wait::Adaptive }
}

impl Contender {
    /// Why this machine has it not.
    fn missing(&self) -> Option<String> {
        match self.way {
            Way::Brought(Brought::Redis) => server_process::missing("redis-server", "redis-server"),
            Way::Brought(Brought::Memcached) => server_process::missing("memcached", "memcached"),
            Way::Brought(Brought::Tokio) => Kind::Delegation.missing(),
            Way::Brought(Brought::Tonic | Brought::Tarpc) => None,
            Way::Ours(kind) => kind.missing(),
        }
    }

    fn config(&self, workload: &Workload) -> Fallible<Config> {
        // The backend of the configuration is not asked where this program brings one.
        let kind = match self.way {
            Way::Ours(kind) => kind,
            Way::Brought(Brought::Tokio) => Kind::Delegation,
            Way::Brought(_) => Kind::Tcp,
        };
        Ok(Config {
            backend: kind,
            wait: self.wait,
            pin: Pin::Node,
            nic: if kind.uses_nic() { "soft" } else { "none" }.to_owned(),
            nic_knobs: BTreeMap::new(),
            hosts: 1,
            switches: Switches::resolve(kind.name(), kind.switches(), &BTreeMap::new())?,
            counters: false,
            workload: workload.clone(),
        })
    }

    fn launcher(&self) -> io::Result<Launcher> {
        match self.way {
            Way::Ours(_) => Launcher::this_program(OUR_CHILD),
            Way::Brought(_) => {
                let mut launcher = Launcher::this_program(CHILD)?;
                launcher.arguments.push(self.name.into());
                Ok(launcher)
            }
        }
    }

    /// One run, between two probes of the cores.
    fn run(&self, workload: &Workload) -> Fallible<RunRecord> {
        let (config, mut record) = (self.config(workload)?, None);
        let mut watch = |progress: Progress<'_>| {
            if let Progress::Done(done) = progress {
                record = Some(*done);
            }
        };
        session::run(
            &[config],
            SessionPlan::exactly(1),
            &self.launcher()?,
            &mut Hosts::only_this()?,
            &AtomicBool::new(false),
            &mut watch,
        )
        .map_err(|error| format!("{}: {error}", self.name))?;
        record.ok_or_else(|| format!("{}: the run has no record", self.name).into())
    }
}

/// The cells: workloads, and their names.
fn cells(is_smoke: bool, values_bytes: &[usize]) -> Vec<(String, Workload)> {
    let mut cells = Vec::new();
    for &len_bytes in values_bytes {
        for clients_per_rank in CLIENTS_PER_RANK {
            for queue_depth in QUEUE_DEPTHS {
                let name = format!("kv/{len_bytes}B/2x{clients_per_rank}/depth-{queue_depth}");
                let (min_bytes, max_bytes) = (len_bytes, len_bytes);
                let workload = Workload {
                    clients_per_rank,
                    queue_depth,
                    keys: KEYS,
                    value_size: ValueSize { min_bytes, max_bytes },
                    warm_up_ms: WARM_UP_MS,
                    duration_ms: DURATION_MS,
                    ..Workload::default()
                };
                cells.push((name, workload));
            }
        }
    }
    if is_smoke {
        // Whatever is made is checked as ever, and a run is short.
        cells.retain(|(_, workload)| (workload.clients_per_rank, workload.queue_depth) == (1, 4));
        for (_, workload) in &mut cells {
            (workload.warm_up_ms, workload.duration_ms) = (20, 50);
        }
    }
    cells
}

/// Compares all whose names the plan names with [`REFERENCE`]; no rounds at all are a smoke test.
pub fn compare(plan: &ComparisonPlan, comparison: &mut Measurements) -> Fallible<()> {
    let (begin, first) = (Instant::now(), comparison.len());
    let mut contenders = Vec::new();
    for contender in CONTENDERS.into_iter().filter(|it| plan.has(it.name, REFERENCE)) {
        match contender.missing() {
            None => contenders.push(contender),
            Some(reason) => comparison.note(format!("{}: skipped: {reason}", contender.name)),
        }
    }
    let is_smoke = plan.rounds == Rounds::Exactly(0);
    let rounds = if is_smoke { Rounds::Exactly(1) } else { plan.rounds };
    let default = if is_smoke { &SMOKE_BYTES[..] } else { &VALUES_BYTES };
    let (works, workloads): (Vec<_>, Vec<_>) =
        cells(is_smoke, &plan.sizes_or(default)).into_iter().unzip();
    for name in &works {
        for (number, metric) in NUMBERS {
            let names = contenders.iter().map(|contender| contender.name);
            comparison.declare((&format!("{name}/{number}"), REFERENCE), metric, names);
        }
    }
    let plan = ComparisonPlan { rounds, ..plan.clone() };
    comparison.take_rounds((&plan, begin), &works, first, |index, round, comparison| {
        for contender in shuffled(contenders.len(), round).into_iter().map(|at| &contenders[at]) {
            plan.go_on()?;
            let record = contender.run(&workloads[index])?;
            file(&works[index], contender.name, &record, comparison)?;
        }
        Ok(())
    })
}

/// Adds rate, median and 99th percentile of a run in which every call was answered.
fn file(cell: &str, name: &str, record: &RunRecord, comparison: &mut Measurements) -> Fallible<()> {
    let measured = &record.measured;
    if measured.failed() > 0 || measured.completed() == 0 {
        let (failed, completed) = (measured.failed(), measured.completed());
        return Err(format!("{cell}/{name}: {completed} answers, {failed} failed calls").into());
    }
    let Some(probes) = record.placement else {
        comparison.note(format!("{cell}/{name}: left out: the cores could not be probed"));
        return Ok(());
    };
    let latency = Latency::merged(&measured.local.latency, &measured.remote.latency).to_histogram();
    let at = |quantile: f64| latency.value_at_quantile(quantile) as f64;
    let values = [measured.rate() / 1e6, at(0.5), at(0.99)];
    for ((number, _), value) in NUMBERS.into_iter().zip(values) {
        comparison.add(&format!("{cell}/{number}"), name, probes, value);
    }
    Ok(())
}

/// A process of a run of ours.
pub fn our_child() -> Fallible<()> {
    Ok(job::child()?)
}

/// A process of a run over the backend of that name, which this program brings.
pub fn child(name: &str) -> Fallible<()> {
    let contender = CONTENDERS.into_iter().find(|contender| contender.name == name);
    let Some(Contender { way: Way::Brought(brought), .. }) = contender else {
        return Err(format!("`{name}` is no backend of this program").into());
    };
    match brought {
        Brought::Tokio => job::child_over(|config, setup, rank| {
            Ok(tokio_calls::TokioDelegation::new(config, setup, rank))
        })?,
        Brought::Redis => job::child_over(|config, _, _| Ok(Stored::<redis::Resp>::new(config)))?,
        Brought::Memcached => {
            job::child_over(|config, _, _| Ok(Stored::<memcached::Text>::new(config)))?
        }
        Brought::Tonic => {
            job::child_over(|config, _, _| Ok(tasks::Over::<grpc::Grpc>::new(config)))?
        }
        Brought::Tarpc => {
            job::child_over(|config, _, _| Ok(tasks::Over::<tarpc_calls::Tarpc>::new(config)))?
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_distinct_and_make_sense() {
        let cells = cells(false, &VALUES_BYTES);
        assert_eq!(cells.len(), 12);
        for (at, (name, workload)) in cells.iter().enumerate() {
            workload.validate().unwrap();
            assert!(cells[..at].iter().all(|(other, _)| other != name), "{name}");
        }
        for contender in CONTENDERS {
            contender.config(&cells[0].1).unwrap();
        }
    }
}
