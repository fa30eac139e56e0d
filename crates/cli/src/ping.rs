//! `copyrpc ping`: is the daemon of a rank there, and how far away.

use core::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use client::ClientConfig;
use daemon::config::CALL_TIMEOUT;

use crate::{args::PingArgs, node::connect_to};
use command::output;

/// `copyrpc ping`.
pub(crate) fn run(args: &PingArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let runtime = daemon::config::runtime_of(&settings)?;
    let timeout = Duration::from_nanos(settings.number(&CALL_TIMEOUT));
    let config = ClientConfig { timeout, ..ClientConfig::default() };
    let mut client = connect_to(&runtime, config)?;
    let (rank, size) = client.who()?;
    let body: Vec<u8> = (0..args.bytes).map(|index| index.to_le_bytes()[0]).collect();
    let mut times = Vec::new();
    for _ in 0..args.count {
        let start = Instant::now();
        let answer = client.ping(args.rank, &body);
        let took = start.elapsed();
        let answer = answer
            .with_context(|| format!("rank {} of {size} does not answer rank {rank}", args.rank))?;
        anyhow::ensure!(answer == body, "rank {} answered something else", args.rank);
        times.push(took);
    }
    times.sort_unstable();
    if args.json {
        let times: Vec<_> = times.iter().map(|time| time.as_nanos()).collect();
        let told = serde_json::json!({
            "rank": args.rank, "size": size, "from": rank, "bytes": args.bytes, "times_ns": times,
        });
        return output::print(&format!("{told}\n"));
    }
    let mut text =
        format!("rank {} of {size}, from rank {rank}: {} answers, ", args.rank, times.len());
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let _ = writeln!(text, "min {:?}, median {:?}, max {:?}", at(0), at(50), at(100));
    output::print(&text)
}
