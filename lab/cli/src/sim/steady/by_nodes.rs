//! `copyrpc-lab sim steady --by-nodes`: the table over many nodes of docs/simulation.md, as that shows it.

use sim::{cluster::steady::Connected, machine::DelegationProfile, world::Time};

use super::{Row, SteadyArgs};

/// Rows and columns.
pub(super) const NODES: &str = "64,128,256,512,1024";
pub(super) const DEPTHS: &str = "1,8,64";
pub(super) const WARM_UP: &str = "2ms";
/// More nodes have DC, which takes less memory of each, and are counted for a shorter time.
const RC_NODES_MAX: u32 = 128;
const INITIATORS: u16 = 8;
const LENGTH: Time = Time::from_ns(500_000);
const LENGTH_BEYOND: Time = Time::from_ns(300_000);
/// Nodes times calls of a client; beyond, a start needs more than 8 GiB.
const CALLS_MAX: u32 = 1 << 15;

impl SteadyArgs {
    /// How `nodes` are connected.
    pub(super) fn transports(&self, nodes: u32) -> Vec<Connected> {
        match &self.transport[..] {
            [] if self.by_nodes && nodes > RC_NODES_MAX => vec![Connected::Dc(INITIATORS)],
            [] => vec![Connected::Rc],
            named => named.to_vec(),
        }
    }

    /// How long a load of `nodes` is counted.
    pub(super) fn length_of(&self, nodes: u32) -> Time {
        let usual = match (self.by_nodes, nodes > RC_NODES_MAX) {
            (false, _) => Time::from_ns(1_000_000),
            (true, false) => LENGTH,
            (true, true) => LENGTH_BEYOND,
        };
        self.length.unwrap_or(usual)
    }

    /// Whether a load is not too large for a table.
    pub(super) fn is_run(&self, nodes: u32, depth: u16) -> bool {
        !self.by_nodes || nodes * u32::from(depth) <= CALLS_MAX
    }
}

/// M/s per node: one number, or the range of the starts.
fn range(row: &Row) -> String {
    let rates = [row.cold, row.burst, row.perturbed];
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    match [least, most].map(|rate| format!("{rate:.2}")) {
        [least, most] if least == most => least,
        [least, most] => format!("{least}–{most}"),
    }
}

fn messages(row: &Row) -> String {
    let decimals = if row.messages_per_wqe < 9.95 { 1 } else { 0 };
    format!("{:.decimals$}", row.messages_per_wqe)
}

#[expect(clippy::cast_precision_loss, reason = "MiB for reading")]
fn mebibytes(row: &Row) -> String {
    format!("{:.1}", row.connection_bytes as f64 / f64::from(1 << 20))
}

/// The table, and what its numbers are.
pub(super) fn markdown(args: &SteadyArgs, machine: &DelegationProfile, rows: &[Row]) -> String {
    let calls = |depth: &u16| if *depth == 1 { "1 call".into() } else { format!("{depth} calls") };
    let mut head = vec!["nodes".to_owned()];
    head.extend(args.depth.iter().map(calls));
    head.extend(["messages per request", "MiB per node"].map(str::to_owned));
    let line = |fields: Vec<String>| format!("| {} |\n", fields.join(" | "));
    let mut text = format!("{}|{}\n", line(head.clone()), "---|".repeat(head.len()));
    for nodes in &args.nodes {
        for policy in &args.flush {
            for transport in args.transports(*nodes) {
                let transport = transport.to_string();
                let is_it = |row: &&Row| {
                    (row.nodes, &row.flush, &row.transport) == (*nodes, &policy.name, &transport)
                };
                let of = rows.iter().filter(is_it).collect::<Vec<_>>();
                let mut name = format!("{nodes}, {transport}");
                if args.flush.len() > 1 {
                    name += &format!(", {}", policy.name);
                }
                text += &line(fields_of(name, args, &of));
            }
        }
    }
    let (clients, seed, direct) = (machine.clients, args.seed, 1.0 / machine.wqe);
    format!(
        "{text}\nM/s per node, the range of three starts, {clients} clients per node, seed {seed}; messages and memory in \
         the order of calls; without a daemon {direct:.2} in each cell\n"
    )
}

/// Fields of a row of the table: its name, rates, messages, memory.
fn fields_of(name: String, args: &SteadyArgs, rows: &[&Row]) -> Vec<String> {
    let rate = |depth: &u16| {
        let row = rows.iter().find(|row| row.depth == *depth);
        row.map_or_else(|| "not run".to_owned(), |row| range(row))
    };
    let mut memory = rows.iter().map(|row| mebibytes(row)).collect::<Vec<_>>();
    memory.dedup();
    let merged = rows.iter().map(|row| messages(row)).collect::<Vec<_>>();
    let mut fields = vec![name];
    fields.extend(args.depth.iter().map(rate));
    fields.extend([merged, memory].map(|values| values.join(", ")));
    fields
}
