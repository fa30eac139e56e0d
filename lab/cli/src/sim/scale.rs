//! `copyrpc-lab sim scale`: what a simulation of many nodes costs.

use std::{fs, time::Instant};

use clap::{Args, builder::RangedU64ValueParser};
use sim::{
    cluster::scale::{self, Scale},
    world::Time,
};

use super::{cluster::parse_time, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim scale --nodes 64 --clients 8 --for 1ms

Production daemons over DC with eight initiators, rings of 2 KiB, and clients with one call in flight. All daemons \
are connected; clients of a node call it and the --peers after it, so that memory of other pairs is never touched. Times of NIC \
and daemons are not calibrated: calls per second are those of the model, events per second those of this machine.";

#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// Number of daemons, one per node.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = RangedU64ValueParser::<u32>::new().range(2..=1024))]
    nodes: u32,
    /// Clients of each daemon.
    #[arg(long, value_name = "M", default_value_t = 4, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: u32,
    /// Nodes that the clients of a node call: those after it.
    #[arg(long, value_name = "P", default_value_t = 64, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1023))]
    peers: u32,
    /// How long clients call, in virtual time.
    #[arg(long = "for", value_name = "TIME", default_value = "1ms", value_parser = parse_time)]
    length: Time,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// `copyrpc-lab sim scale`.
#[expect(clippy::cast_precision_loss, reason = "rates for reading")]
pub(super) fn run(args: &ScaleArgs, progress: &Progress) -> anyhow::Result<()> {
    let ScaleArgs { nodes, clients, peers, length, seed } = *args;
    let started = Instant::now();
    let mut met_s = 0.0;
    progress.begin("phases (connecting, calling)");
    progress.at(0, 2);
    let scaled = scale::run(Scale { nodes, clients, peers, length, seed }, || {
        met_s = started.elapsed().as_secs_f64();
        progress.step();
    })?;
    let ran_s = started.elapsed().as_secs_f64() - met_s;
    let virtual_us = length.as_ns() / 1000.0;
    progress.print(&format!(
        "{nodes} nodes, {clients} clients each\n\
         connected: {:.0} ms of virtual time, {} events in {met_s:.1} s\n\
         calling:   {:.3} ms of virtual time, {} events in {ran_s:.1} s, {:.0} events/s\n\
         calls:     {} answered, {} not; {:.2} M/s per node\n\
         packets:   {} with {} B\n\
         memory:    {}\n\
         trace:     {:016x}\n",
        scaled.met.as_ns() / 1e6,
        scaled.events_met,
        virtual_us / 1000.0,
        scaled.events,
        scaled.events as f64 / ran_s.max(1e-9),
        scaled.answered,
        scaled.others,
        scaled.answered as f64 / virtual_us / f64::from(nodes),
        scaled.packets.0,
        scaled.packets.1,
        memory(),
        scaled.trace,
    ))?;
    anyhow::ensure!(scaled.failure.is_none(), "{}", scaled.failure.unwrap_or_default());
    Ok(())
}

/// The most that this process has used, as Linux says.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".into(), |line| format!("{} at most", line.trim()))
}
