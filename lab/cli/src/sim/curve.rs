//! `copyrpc-lab sim curve`: calls per second over clients per node, where each process has a core.

use std::{io::Write as _, path::PathBuf};

use clap::{Args, builder::RangedU64ValueParser};
use measure::{
    number,
    report::chart::{Axis, Lines, Series},
};
use serde::Serialize;
use sim::{
    cluster::steady::{self, Begin, FlushPolicy, Steady},
    machine::{CONNECT_X7, DelegationProfile},
    world::Time,
};

use super::progress::Progress;
use crate::output;
use command::table::narrow;

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim curve
  copyrpc-lab sim curve --clients 4,16,64 --svg simulated.svg

The curve of `bench kv` for nodes where each client and each daemon has a core of its own: production daemons in \
virtual time, with the times of the one ConnectX-7 that `sim steady` has. Half of the calls of two nodes are to the \
other node. Nobody has measured this. The same options give the same numbers on every machine.";

/// Clients that the curve has points for.
const CLIENTS: &str = "4,8,16,32,64,128,200";
/// What is not counted at first, and what is counted then, in virtual time.
const LENGTHS: (Time, Time) = (Time::from_ns(1_000_000), Time::from_ns(1_000_000));
/// Colours of delegation and of direct connections in the pictures of `bench kv`.
const COLOURS: [usize; 2] = [0, 2];

#[derive(Debug, Args)]
pub(crate) struct CurveArgs {
    /// Clients of each node.
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_value = CLIENTS, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: Vec<u32>,
    /// Number of nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = RangedU64ValueParser::<u32>::new().range(2..=64))]
    nodes: u32,
    /// Calls in flight of each client.
    #[arg(long, value_name = "D", default_value_t = 4, value_parser = RangedU64ValueParser::<u16>::new().range(1..=64))]
    depth: u16,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the picture to PATH.
    #[arg(long, value_name = "PATH", value_parser = command::output::file())]
    svg: Option<PathBuf>,
    /// Print one JSON object per point.
    #[arg(long)]
    json: bool,
}

/// Calls per second of all nodes together.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    clients_per_node: u32,
    delegation: f64,
    messages_per_wqe: f64,
    /// At most: one work request of its node's only server per answer.
    direct_max: f64,
}

/// `copyrpc-lab sim curve`.
pub(super) fn run(args: &CurveArgs, progress: &Progress) -> anyhow::Result<()> {
    args.svg.as_deref().map_or(Ok(()), output::check_file)?;
    progress.begin("numbers of clients");
    progress.at(0, args.clients.len());
    let mut points = Vec::new();
    for &clients in &args.clients {
        points.push(point(args, clients)?);
        progress.step();
    }
    if let Some(path) = &args.svg {
        output::write_file(path, |file| file.write_all(picture(&points).as_bytes()))?;
    }
    if args.json { progress.print_json(&points) } else { progress.print(&text_of(args, &points)) }
}

fn point(args: &CurveArgs, clients: u32) -> anyhow::Result<Point> {
    let CurveArgs { nodes, depth, seed, .. } = *args;
    let measured = steady::run(&Steady {
        nodes,
        threads: 1,
        clients,
        depth,
        flush: FlushPolicy::for_peers(nodes as usize - 1),
        transport: "rc".parse()?,
        machine: CONNECT_X7,
        begin: Begin::Burst,
        lengths: LENGTHS,
        seed,
    })?;
    anyhow::ensure!(measured.others == 0, "{} calls were not answered", measured.others);
    let all = |mops_per_node: f64| mops_per_node * f64::from(nodes) * 1e6;
    Ok(Point {
        clients_per_node: clients,
        delegation: all(measured.mops_per_node),
        messages_per_wqe: measured.messages_per_wqe,
        direct_max: all(1.0 / CONNECT_X7.wqe),
    })
}

fn picture(points: &[Point]) -> String {
    let names = ["delegation, simulated", "direct, at most: one send queue per server"];
    let values: [fn(&Point) -> f64; 2] = [|point| point.delegation, |point| point.direct_max];
    let series = (0..2).map(|index| Series {
        name: names[index].to_owned(),
        colour: COLOURS[index],
        points: points
            .iter()
            .map(|point| (f64::from(point.clients_per_node), values[index](point)))
            .collect(),
    });
    let series = series.collect::<Vec<_>>();
    let all = || series.iter().flat_map(|series| &series.points);
    let x = Axis::doubling(all().map(|point| point.0));
    let y = Axis::linear(all().map(|point| point.1), number::short);
    let lines = Lines { x, y, series, has_dots: true, is_wide: true };
    lines.chart().coloured(names.map(str::to_owned).into_iter().zip(COLOURS)).file()
}

fn text_of(args: &CurveArgs, points: &[Point]) -> String {
    let mut shown = narrow(&["clients/node", "delegation, k/s", "merged", "direct, at most, k/s"]);
    for point in points {
        shown.add_row([
            point.clients_per_node.to_string(),
            number::number(point.delegation / 1e3),
            format!("{:.1}", point.messages_per_wqe),
            number::number(point.direct_max / 1e3),
        ]);
    }
    let CurveArgs { nodes, depth, seed, .. } = args;
    let DelegationProfile { wqe, message, wire, client, .. } = CONNECT_X7;
    format!(
        "{shown}\n\nsimulated: {nodes} nodes, all clients together, {depth} calls in flight of each; each process has a core; \
         a work request takes {:.0} ns of a send queue, a message {:.0} ns more, the way between NICs {wire:.2} µs, a client \
         {:.0} ns between an answer and the next call; merged: messages per request of the NIC; seed {seed}\n",
        wqe * 1e3,
        message * 1e3,
        client * 1e3
    )
}
