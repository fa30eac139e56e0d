//! `copyrpc-lab sim scalerpc`: groups in turn beside a pool per client.

use clap::{Args, builder::RangedU64ValueParser};
use sim::{
    scenarios::scalerpc::{self, CONTEXTS, Figures, Outcome, PoolPlan, THREADS},
    world::Time,
};

use super::{cluster::parse_time, progress::Progress};
use command::table::narrow;

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim scalerpc                   40 to 400 clients
  copyrpc-lab sim scalerpc --contexts 1350   a NIC that keeps all of them
  copyrpc-lab sim scalerpc --slice 50us --group 20

The cores of ScaleRPC run in virtual time on the NIC of `sim dct`, but for its cache, whose size is assumed. Exit \
code 1 if the rates of ScaleRPC differ by more than --spread. docs/simulation.md says more.";

#[derive(Debug, Args)]
pub(crate) struct ScalerpcArgs {
    /// Clients of the server.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "40,80,120,200,300,400", value_parser = RangedU64ValueParser::<u16>::new().range(1..=10_000))]
    clients: Vec<u16>,
    /// Calls in flight of each client.
    #[arg(long, value_name = "D", default_value_t = 8, value_parser = RangedU64ValueParser::<u8>::new().range(1..=64))]
    depth: u8,
    /// Connections that the server's NIC keeps.
    #[arg(long, value_name = "C", default_value_t = CONTEXTS)]
    contexts: usize,
    /// Clients of a group.
    #[arg(long, value_name = "G", default_value_t = 40, value_parser = RangedU64ValueParser::<u16>::new().range(1..=10_000))]
    group: u16,
    /// Turn of a group, in virtual time.
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_time)]
    slice: Time,
    /// Largest difference of ScaleRPC's rates, in percent of the largest.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    spread: f64,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per number of clients.
    #[arg(long)]
    json: bool,
}

/// `copyrpc-lab sim scalerpc`.
pub(super) fn run(args: &ScalerpcArgs, progress: &Progress) -> anyhow::Result<()> {
    let ScalerpcArgs { depth, contexts, group, slice, seed, .. } = *args;
    anyhow::ensure!(slice.whole_ns() >= 1000, "a turn takes 1us at least");
    let clients = args.clients.clone();
    progress.begin("numbers of clients");
    let plan = PoolPlan { clients, depth, contexts, group, slice, seed };
    let outcome = scalerpc::run(&plan, |done, of| progress.at(done, of));
    if args.json {
        progress.print_json(&outcome.rows)?;
    } else {
        progress.print(&text_of(args, &outcome))?;
    }
    let spread = 100.0 * outcome.spread(|row| row.scalerpc);
    anyhow::ensure!(spread <= args.spread, "ScaleRPC's rates differ by {spread:.1} %");
    Ok(())
}

fn text_of(args: &ScalerpcArgs, outcome: &Outcome) -> String {
    let head = ["clients", "", "M/s", "misses/call", "p50", "p99", "longest", "turns"];
    let mut rows = narrow(&head);
    for row in &outcome.rows {
        for (way, figures) in [("pool", row.pool), ("scalerpc", row.scalerpc)] {
            let Figures { mops, misses_per_call, p50_us, p99_us, longest_us, switches } = figures;
            rows.add_row([
                row.clients.to_string(),
                way.to_owned(),
                format!("{mops:.1}"),
                format!("{misses_per_call:.3}"),
                format!("{p50_us:.0} µs"),
                format!("{p99_us:.0} µs"),
                format!("{longest_us:.0} µs"),
                switches.to_string(),
            ]);
        }
    }
    let [pool, scalerpc] =
        [outcome.spread(|row| row.pool), outcome.spread(|row| row.scalerpc)].map(|all| 100.0 * all);
    format!(
        "{rows}\n\nrates differ by {pool:.1} % (pool) and {scalerpc:.1} % (scalerpc)\n\
         {} calls per client, {} contexts, {THREADS} threads\nseed {}, {} events, trace {:016x}\n",
        args.depth, args.contexts, args.seed, outcome.events, outcome.trace,
    )
}
