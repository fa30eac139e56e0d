//! `copyrpc-lab sim prototypes`: what two designs that are not built would bring.

use clap::{Args, builder::RangedU64ValueParser};
use serde::Serialize;
use sim::scenarios::prototypes::{self, HotRow, ReturnRow};

use super::{compared, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim prototypes
  copyrpc-lab sim prototypes --nodes 64 --depth 1

Answers that go straight into the slot of their client, beside answers through its daemon, with the times of a \
ConnectX-7 and with a NIC whose requests take 74 ns. Then READs of threads with a hot peer, over DC initiators \
alone and with a queue pair for that peer beside them, on the NIC of `sim dct`. Nothing of it is built or measured.";

#[derive(Debug, Args)]
pub(crate) struct PrototypesArgs {
    /// Numbers of daemons, one per node.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,4,8,16,64", value_parser = RangedU64ValueParser::<u32>::new().range(2..=1024))]
    nodes: Vec<u32>,
    /// Calls in flight of each client.
    #[arg(long, value_name = "D,…", value_delimiter = ',', default_value = "1,8", value_parser = RangedU64ValueParser::<u32>::new().range(1..=64))]
    depth: Vec<u32>,
    /// Clients of each daemon.
    #[arg(long, value_name = "M", default_value_t = 46, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    clients: u32,
    /// Seed of all random numbers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per row.
    #[arg(long)]
    json: bool,
}

/// A row of either table.
#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Return(ReturnRow),
    Hot(HotRow),
}

/// `copyrpc-lab sim prototypes`.
pub(super) fn run(args: &PrototypesArgs, progress: &Progress) -> anyhow::Result<()> {
    let PrototypesArgs { nodes, depth, clients, seed, .. } = args;
    let told = |done, of| progress.at(done, of);
    progress.begin("loads of both ways back");
    let returns = prototypes::return_paths(nodes, depth, *clients, *seed, told);
    progress.begin("loads with a hot peer");
    let hot = prototypes::hot_peers(&[1, 2, 4, 8], &[500, 800, 950], *seed, told);
    if args.json {
        let rows: Vec<_> =
            returns.into_iter().map(Row::Return).chain(hot.into_iter().map(Row::Hot)).collect();
        return progress.print_json(&rows);
    }
    progress.print(&text_of(args, &returns, &hot))
}

fn text_of(args: &PrototypesArgs, returns: &[ReturnRow], hot: &[HotRow]) -> String {
    let head = ["WQE", "nodes", "calls", "", "M/s per node", "round trip", "WQEs/call", "busy"];
    let mut ways = compared::numbers(&head);
    for row in returns {
        for (way, measured) in [("daemon", row.daemon), ("slot", row.slot)] {
            ways.add_row([
                format!("{:.0} ns", 1000.0 * row.wqe_us),
                row.nodes.to_string(),
                row.depth.to_string(),
                way.to_owned(),
                format!("{:.2}", measured.mops_per_node),
                format!("{:.1} µs", measured.round_trip_us),
                format!("{:.2}", measured.wqes_per_call),
                format!("{:.0} %", 100.0 * measured.busy),
            ]);
        }
    }
    let mut peers = compared::numbers(&[
        "initiators",
        "hot",
        "M/s",
        "one more",
        "own",
        "µs",
        "one more",
        "own",
    ]);
    for row in hot {
        let all = [row.shared, row.one_more, row.own];
        let mut cells = vec![row.initiators.to_string(), format!("{} %", row.hot_permille / 10)];
        cells.extend(all.map(|measured| format!("{:.1}", measured.per_client_mops)));
        cells.extend(all.map(|measured| format!("{:.1}", measured.latency_us)));
        peers.add_row(cells);
    }
    format!(
        "answers through the daemon of the client, and into its slot\n{ways}\n\n{} clients per node; WQE: time of the \
         NIC per request; WQEs/call: requests of NICs per call to another node; busy: share of the time in turns that \
         find work; seed {}\n\nREADs with a hot peer: M/s per machine, and latency in µs\n{peers}\n\n5 machines of 14 threads; M/s, µs: \
         with DC initiators of each thread alone; own: a queue pair of each thread for its hot peer beside them\n",
        args.clients, args.seed
    )
}
