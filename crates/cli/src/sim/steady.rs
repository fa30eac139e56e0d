//! `copyrpc sim steady`: whether production daemons do as much however they began.

use clap::{Args, builder::RangedU64ValueParser};
use sim::{
    actors::reference_daemon::{self, Hold, Load, StartState},
    cluster::steady::{self, Begin, FlushPolicy, Measured, Steady},
    machine::DELEGATION,
    world::Time,
};

use super::cluster::parse_time;
use crate::{output, table::table};

pub(super) const HELP: &str = "\
Examples:
  copyrpc sim steady                              2, 4 and 8 nodes
  copyrpc sim steady --nodes 8 --wqes 1,2,4,8,0   which limit is best

Production daemons run with the times of the delegation machine, which were fitted to another daemon; nobody has \
measured this one there. A load begins cold, with a burst, or with a burst and a daemon that stands still for a \
while. Exit code 1 if the rates of the three differ by more than --spread. The other daemon stands beside it, \
with as many clients and no hold.";

#[derive(Debug, Args)]
pub(crate) struct SteadyArgs {
    /// Daemons.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,4,8", value_parser = RangedU64ValueParser::<u32>::new().range(2..=1024))]
    nodes: Vec<u32>,
    /// Calls in flight of each client.
    #[arg(long, value_name = "D,…", value_delimiter = ',', default_value = "1,32", value_parser = RangedU64ValueParser::<u16>::new().range(1..=64))]
    depth: Vec<u16>,
    /// A batch leaves while fewer requests of its peer than this are unfinished; 0: after each call.
    #[arg(long, value_name = "W,…", value_delimiter = ',', default_value = "2", value_parser = RangedU64ValueParser::<u16>::new().range(0..=64))]
    wqes: Vec<u16>,
    /// Clients of each daemon.
    #[arg(long, value_name = "M", default_value_t = 46, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: u32,
    /// What is not counted at first, in virtual time.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_time)]
    warm_up: Time,
    /// What is counted then, in virtual time.
    #[arg(long = "for", value_name = "TIME", default_value = "500us", value_parser = parse_time)]
    length: Time,
    /// Largest difference of the three rates, in percent of the largest.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    spread: f64,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// `copyrpc sim steady`.
pub(super) fn run(args: &SteadyArgs) -> anyhow::Result<()> {
    let mut rows = table(&[
        "nodes",
        "calls",
        "wqes",
        "cold",
        "burst",
        "perturbed",
        "spread",
        "merged",
        "not answered",
        "other: burst",
        "other: trickle",
    ]);
    let mut apart = Vec::new();
    for &nodes in &args.nodes {
        for &depth in &args.depth {
            let other = [StartState::Burst, StartState::Trickle]
                .map(|start| reference(args, nodes, depth, start));
            for &wqes in &args.wqes {
                let [cold, burst, perturbed] = measure(args, nodes, depth, wqes)?;
                let rates = [&cold, &burst, &perturbed].map(|measured| measured.mops_per_node);
                let most = rates.iter().copied().fold(0.0, f64::max);
                let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
                let spread = 100.0 * (most - least) / most.max(1e-9);
                if spread > args.spread {
                    apart.push(format!(
                        "{nodes} nodes, {depth} calls, {wqes} requests: {spread:.1} %"
                    ));
                }
                let mut row = vec![nodes.to_string(), depth.to_string(), wqes.to_string()];
                row.extend(rates.map(|rate| format!("{rate:.2}")));
                row.push(format!("{spread:.1} %"));
                row.push(format!("{:.1}", burst.messages_per_wqe));
                row.push((cold.others + burst.others + perturbed.others).to_string());
                row.extend(other.map(|rate| format!("{rate:.2}")));
                rows.add_row(row);
            }
        }
    }
    output::print(&format!(
        "{rows}\n\nM/s per node with {} clients; merged: messages per request of the NIC; seed {}\n",
        args.clients, args.seed
    ))?;
    anyhow::ensure!(
        apart.is_empty(),
        "rates differ by more than {} %: {}",
        args.spread,
        apart.join("; ")
    );
    Ok(())
}

fn measure(args: &SteadyArgs, nodes: u32, depth: u16, wqes: u16) -> anyhow::Result<[Measured; 3]> {
    let SteadyArgs { clients, seed, .. } = *args;
    let lengths = (args.warm_up, args.length);
    let flush = match wqes {
        0 => FlushPolicy::Immediate,
        wqes => FlushPolicy::SelfClocked { wqes },
    };
    let [cold, burst, perturbed] = Begin::ALL
        .map(|begin| steady::run(&Steady { nodes, clients, depth, flush, begin, lengths, seed }));
    Ok([cold?, burst?, perturbed?])
}

/// The other daemon, per node.
fn reference(args: &SteadyArgs, nodes: u32, depth: u16, start: StartState) -> f64 {
    let profile = sim::machine::DelegationProfile { clients: args.clients, ..DELEGATION };
    // One call per µs trickles in.
    let warm_up_us = f64::from(args.clients) * f64::from(depth) + 3000.0;
    let load = Load {
        nodes: nodes as usize,
        depth: depth.into(),
        start,
        poll_budget: 0,
        hold: Hold::None,
        warm_up_us,
        end_us: warm_up_us + 1000.0,
    };
    reference_daemon::run(&profile, &load, args.seed).total_mops / f64::from(nodes)
}
