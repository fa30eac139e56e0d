//! `copyrpc-lab sim steady`: whether production daemons do as much however they began, and by which policy most.

use std::{
    cmp::Reverse,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use anyhow::Context as _;
use clap::{Args, builder::RangedU64ValueParser};
use protocols::flush_policy;
use serde::Serialize;
use sim::{
    actors::reference_daemon::{self, Approach, Hold, Load, StartState},
    cluster::{
        ClusterError,
        steady::{self, Begin, Connected, FlushPolicy, Measured, PARTS, Steady, UnknownTransport},
    },
    machine::{CONNECT_X7, DelegationProfile, QUICK_NIC},
    world::Time,
};

mod by_nodes;

use super::{cluster::parse_time, compared, constants::ConstantArgs, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim steady                            2, 4 and 8 nodes
  copyrpc-lab sim steady --nodes 8 --flush self-clocked:1,hold:10us
                                                    which policy is best
  copyrpc-lab sim steady --transport rc,dc:1,dc:16  memory and rate by transport
  copyrpc-lab sim steady --flush immediate --series
                                                    a collapse over time
  copyrpc-lab sim steady --quick-nic --set wire=0.5  # another NIC and way
  copyrpc-lab sim steady --by-nodes --jobs 8        the table of many nodes

Production daemons run with the times of the one ConnectX-7, which were fitted to other daemons; nobody has \
measured this one there. A load begins cold, with a burst, or with a burst and a daemon that stands still for a \
while. Exit code 1 if the rates of the three differ by more than --spread, where the policy is self-clocked. The \
other daemon stands beside it, with as many clients: after a burst, from a trickle, and with the best of its \
holds. Beside them stands what one send queue per node answers: calls without a daemon (direct), all answers of a \
node by its one server, which was measured as 1.65 to 1.70 M/s per node with 4 to 32 nodes, and daemons whose peers \
write answers straight to the client (to client), a work request for each remote one.";

#[derive(Debug, Args)]
pub(crate) struct SteadyArgs {
    /// Numbers of daemons, one per node.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,4,8", default_value_if("by_nodes", "true", by_nodes::NODES), value_parser = RangedU64ValueParser::<u32>::new().range(2..=1024))]
    nodes: Vec<u32>,
    /// Calls in flight of each client.
    #[arg(long, value_name = "D,…", value_delimiter = ',', default_value = "1,32", default_value_if("by_nodes", "true", by_nodes::DEPTHS), value_parser = RangedU64ValueParser::<u16>::new().range(1..=64))]
    depth: Vec<u16>,
    /// When batches leave: `default`, or as in `bench calls --switch flush`.
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',', default_value = "default", value_parser = parse_policy)]
    flush: Vec<Policy>,
    /// `rc`, or `dc:N` with N initiators [default: rc; with --by-nodes dc:8 beyond 128 nodes].
    #[arg(long, value_name = "TRANSPORT,…", value_delimiter = ',', value_parser = parse_transport)]
    transport: Vec<Connected>,
    /// Threads of each daemon, over which clients and peers are spread.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=16))]
    threads: u32,
    /// Clients of each daemon [default: the machine's, 46].
    #[arg(long, value_name = "M", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: Option<u32>,
    /// The NIC takes 74 ns for each request, which is assumed, and not 599 ns.
    #[arg(long)]
    quick_nic: bool,
    /// What is not counted at first, in virtual time.
    #[arg(long, value_name = "TIME", default_value = "1ms", default_value_if("by_nodes", "true", by_nodes::WARM_UP), value_parser = parse_time)]
    warm_up: Time,
    /// What is counted then, in virtual time [default: 1ms; with --by-nodes 500us, or 300us beyond 128 nodes].
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    length: Option<Time>,
    /// Largest difference of the three rates, in percent of the largest.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    spread: f64,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Shows rates over time as well, from the first call on.
    #[arg(long)]
    series: bool,
    /// Leaves the other daemon out, which takes long with many nodes.
    #[arg(long)]
    alone: bool,
    /// A table in Markdown with a row for each number of nodes, from 64 to 1024 unless --nodes says otherwise: that of
    /// docs/simulation.md. Leaves the other daemon out, and loads whose nodes times calls are more than 32768.
    #[arg(long, conflicts_with_all = ["series", "json"])]
    by_nodes: bool,
    /// Runs that go on at a time, 1 to 256. Their numbers do not depend on it; their memory adds up.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    jobs: usize,
    /// Prints one JSON object per row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    constants: ConstantArgs,
}

impl SteadyArgs {
    fn machine(&self) -> anyhow::Result<DelegationProfile> {
        let machine = if self.quick_nic { QUICK_NIC } else { CONNECT_X7 };
        let mut machine = self.constants.apply(&machine)?;
        machine.clients = self.clients.unwrap_or(machine.clients);
        Ok(machine)
    }
}

/// A flush policy, and what it was called.
#[derive(Clone, Debug)]
struct Policy {
    name: String,
    /// `None`: that of a daemon of so many nodes.
    policy: Option<FlushPolicy>,
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    let policy = if text == "default" { None } else { Some(flush_policy(text)?) };
    Ok(Policy { name: text.to_owned(), policy })
}

fn parse_transport(text: &str) -> Result<Connected, UnknownTransport> {
    text.parse()
}

/// The other daemon under the same load, in M/s per node.
#[derive(Clone, Copy, Debug, Serialize)]
struct Other {
    burst: f64,
    trickle: f64,
    best_hold: f64,
}

/// A load and what came of it, in M/s per node.
#[derive(Debug, Serialize)]
struct Row {
    nodes: u32,
    depth: u16,
    flush: String,
    transport: String,
    cold: f64,
    burst: f64,
    perturbed: f64,
    spread_percent: f64,
    messages_per_wqe: f64,
    connection_bytes: usize,
    not_answered: u64,
    /// `None`: it was left out.
    other: Option<Other>,
    /// What the send queue of one server per node answers without a daemon.
    direct: f64,
    /// What it answers with a work request for each remote answer.
    to_client_max: f64,
    /// Whether one steady state is claimed.
    is_claimed: bool,
    /// M/s per node over time: cold, burst, perturbed.
    series: [Vec<f64>; 3],
}

/// A row's load, but for the way in which it begins.
struct Asked<'a> {
    policy: &'a Policy,
    load: Steady,
}

/// `copyrpc-lab sim steady`.
pub(super) fn run(args: &SteadyArgs, progress: &Progress) -> anyhow::Result<()> {
    let machine = args.machine()?;
    let asked = args.asked(machine);
    let of = asked.len() * Begin::ALL.len();
    let loads =
        asked.iter().flat_map(|asked| Begin::ALL.map(|begin| Steady { begin, ..asked.load }));
    let loads = loads.collect::<Vec<_>>();
    progress.begin("runs");
    progress.at(0, of);
    let measured = in_parallel(&loads, args.jobs, || progress.step());
    progress.begin("loads beside them, with the other daemon");
    let mut measured = measured.into_iter();
    let mut rows = Vec::<Row>::new();
    for asked in &asked {
        let mut next = || measured.next().context("a run for each load")?.map_err(Into::into);
        let runs: [anyhow::Result<Measured>; 3] = [next(), next(), next()];
        let Steady { nodes, depth, .. } = asked.load;
        let other = match rows.last() {
            Some(last) if (last.nodes, last.depth) == (nodes, depth) => last.other,
            _ if args.alone || args.by_nodes => None,
            _ => Some(reference(args, &machine, nodes, depth)),
        };
        rows.push(row(asked, runs, other)?);
    }
    if args.json {
        progress.print_json(&rows)?;
    } else if args.by_nodes {
        progress.print(&by_nodes::markdown(args, &machine, &rows))?;
    } else {
        progress.print(&text_of(args, &machine, &rows))?;
        if args.series {
            rows.iter().try_for_each(|row| progress.print(&series_of(args, row)))?;
        }
    }
    let apart = rows.iter().filter(|row| row.is_claimed && row.spread_percent > args.spread);
    let apart: Vec<_> = apart
        .map(|Row { nodes, depth, flush, spread_percent, .. }| {
            format!("{nodes} nodes, {depth} calls, {flush}: {spread_percent:.1} %")
        })
        .collect();
    anyhow::ensure!(
        apart.is_empty(),
        "rates differ by more than {} %: {}",
        args.spread,
        apart.join("; ")
    );
    Ok(())
}

impl SteadyArgs {
    /// Every combination, in the order of the table.
    fn asked(&self, machine: DelegationProfile) -> Vec<Asked<'_>> {
        let Self { threads, seed, warm_up, .. } = *self;
        let mut asked = Vec::new();
        for &nodes in &self.nodes {
            for &depth in self.depth.iter().filter(|depth| self.is_run(nodes, **depth)) {
                for policy in &self.flush {
                    let default = || FlushPolicy::for_peers(nodes as usize - 1);
                    let flush = policy.policy.unwrap_or_else(default);
                    let (lengths, begin) = ((warm_up, self.length_of(nodes)), Begin::Cold);
                    asked.extend(self.transports(nodes).into_iter().map(|transport| {
                        let load = Steady {
                            nodes,
                            threads,
                            clients: machine.clients,
                            depth,
                            flush,
                            transport,
                            machine,
                            begin,
                            lengths,
                            seed,
                        };
                        Asked { policy, load }
                    }));
                }
            }
        }
        asked
    }
}

type Run = Result<Measured, ClusterError>;

/// Runs all loads, so many at a time, those with most calls first. Returns what came of each.
fn in_parallel(loads: &[Steady], jobs: usize, mut is_done: impl FnMut()) -> Vec<Run> {
    let calls = |index: &usize| u64::from(loads[*index].nodes) * u64::from(loads[*index].depth);
    let mut order = (0..loads.len()).collect::<Vec<_>>();
    order.sort_by_key(|index| Reverse(calls(index)));
    let order = Mutex::new(order.into_iter());
    let next = || order.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::channel();
    let mut runs = loads.iter().map(|_| None).collect::<Vec<_>>();
    thread::scope(|scope| {
        for _ in 0..jobs.min(loads.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(index) = next() {
                    // The receiver is there until all threads have ended.
                    let _ = sender.send((index, steady::run(&loads[index])));
                }
            });
        }
        drop(sender);
        for (index, run) in receiver {
            runs[index] = Some(run);
            is_done();
        }
    });
    runs.into_iter().flatten().collect()
}

fn row(
    asked: &Asked<'_>,
    [cold, burst, perturbed]: [anyhow::Result<Measured>; 3],
    other: Option<Other>,
) -> anyhow::Result<Row> {
    let (cold, burst, perturbed) = (cold?, burst?, perturbed?);
    let Steady { nodes, depth, flush, transport, machine, .. } = asked.load;
    let rates = [&cold, &burst, &perturbed].map(|measured| measured.mops_per_node);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let Measured { messages_per_wqe, connection_bytes, .. } = burst;
    Ok(Row {
        nodes,
        depth,
        flush: asked.policy.name.clone(),
        transport: transport.to_string(),
        cold: rates[0],
        burst: rates[1],
        perturbed: rates[2],
        spread_percent: 100.0 * (most - least) / most.max(1e-9),
        messages_per_wqe,
        connection_bytes,
        not_answered: cold.others + burst.others + perturbed.others,
        other,
        direct: 1.0 / machine.wqe,
        to_client_max: to_client_max(&machine, nodes),
        is_claimed: matches!(flush, FlushPolicy::SelfClocked { .. }),
        series: [cold.series, burst.series, perturbed.series],
    })
}

/// Calls per µs and node, if each answer to another node is a work request of the daemon.
fn to_client_max(machine: &DelegationProfile, nodes: u32) -> f64 {
    let remote = f64::from(nodes - 1) / f64::from(nodes);
    1.0 / (remote * (machine.wqe + machine.message))
}

/// The other daemon, per node.
fn reference(args: &SteadyArgs, machine: &DelegationProfile, nodes: u32, depth: u16) -> Other {
    // One call per µs trickles in.
    let warm_up_us = f64::from(machine.clients) * f64::from(depth) + 3000.0;
    let run = |start, hold| {
        let load = Load {
            nodes: nodes as usize,
            depth: depth.into(),
            start,
            poll_budget: 0,
            hold,
            approach: Approach::None,
            warm_up_us,
            end_us: warm_up_us + 1000.0,
        };
        reference_daemon::run(machine, &load, args.seed).total_mops / f64::from(nodes)
    };
    let holds = [Hold::Fixed(5.0), Hold::Fixed(10.0), Hold::Fixed(20.0), Hold::Adaptive(10.0)];
    Other {
        burst: run(StartState::Burst, Hold::None),
        trickle: run(StartState::Trickle, Hold::None),
        best_hold: holds.map(|hold| run(StartState::Burst, hold)).into_iter().fold(0.0, f64::max),
    }
}

/// Rates of a row over time.
fn series_of(args: &SteadyArgs, row: &Row) -> String {
    let mut table = compared::numbers(&["until, µs", "cold", "burst", "perturbed"]);
    let mut at_ns = 0.0;
    let lengths = [args.warm_up, args.length_of(row.nodes)].into_iter();
    let parts =
        lengths.flat_map(|length| (0..PARTS).map(move |_| length.as_ns() / f64::from(PARTS)));
    for (part, length_ns) in parts.enumerate() {
        at_ns += length_ns;
        let rates = row.series.each_ref().map(|series| format!("{:.2}", series[part]));
        table.add_row([format!("{:.0}", at_ns / 1000.0)].into_iter().chain(rates));
    }
    let Row { nodes, depth, flush, transport, .. } = row;
    format!(
        "\n{nodes} nodes, {depth} calls per client, {flush}, {transport}: M/s per node\n{table}\n"
    )
}

#[expect(clippy::cast_precision_loss, reason = "MiB for reading")]
fn text_of(args: &SteadyArgs, machine: &DelegationProfile, rows: &[Row]) -> String {
    let mut ours = compared::numbers(&[
        "flush, by",
        "nodes",
        "calls",
        "cold",
        "burst",
        "perturbed",
        "spread",
        "merged",
        "MiB",
    ]);
    let mut beside =
        compared::numbers(&["nodes", "calls", "burst", "trickle", "hold", "direct", "to client"]);
    let mut last = None;
    for row in rows {
        let load = [row.nodes.to_string(), row.depth.to_string()];
        let mut cells = vec![format!("{}, {}", row.flush, row.transport)];
        cells.extend(load.clone());
        cells.extend([row.cold, row.burst, row.perturbed].map(|rate| format!("{rate:.2}")));
        cells.push(format!("{:.1} %", row.spread_percent));
        cells.push(format!("{:.1}", row.messages_per_wqe));
        cells.push(format!("{:.1}", row.connection_bytes as f64 / f64::from(1 << 20)));
        ours.add_row(cells);
        if last.replace((row.nodes, row.depth)) != Some((row.nodes, row.depth)) {
            let shown =
                |rate: Option<f64>| rate.map_or_else(String::new, |rate| format!("{rate:.2}"));
            let other = |of: fn(&Other) -> f64| row.other.as_ref().map(of);
            let others = [other(|o| o.burst), other(|o| o.trickle), other(|o| o.best_hold)];
            let bounds = [row.direct, row.to_client_max].map(Some);
            beside.add_row(load.into_iter().chain(others.into_iter().chain(bounds).map(shown)));
        }
    }
    format!(
        "{ours}\n\nM/s per node with {} clients and {} threads; merged: messages per request of the NIC; MiB: memory that is \
         registered for connections, per node; {} calls not answered; seed {}\n\nbeside it\n{beside}\n\nthe other daemon after a burst, \
         from a trickle, and with the best of its holds; direct: what one send queue per node answers without a daemon; \
         to client: at most, with answers straight to clients\n",
        machine.clients,
        args.threads,
        rows.iter().map(|row| row.not_answered).sum::<u64>(),
        args.seed
    )
}
