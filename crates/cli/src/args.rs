//! The command line.

use std::{ffi::OsString, path::PathBuf};

use bench::cores::Cores;
use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::{
    knobs::NIC,
    kv::{KvArgs, ReportArgs},
};

/// Version and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

const EXAMPLES: &str = "\
Examples:
  copyrpc info                          devices, the NIC in use, every knob and its origin
  copyrpc bench limit                   how fast two cores of this machine can talk at all
  copyrpc bench verbs --quick           the NIC, in some seconds
  copyrpc bench inproc                  queues between threads
  copyrpc bench ipc --cell round-trip   calls between processes
  copyrpc bench verbs --json run.jsonl  tables here, JSON lines there
  copyrpc bench kv                      a key-value store over every backend, checked and measured
  copyrpc report A B                    is B faster than A, or is it chance?

Exit codes:
  0  done
  1  a benchmark failed, or its data arrived wrong
  2  the command line makes no sense
  3  this machine lacks what is needed: two cores, or the NIC asked for

RUST_LOG sets what is logged to standard error (error, warn, info, debug); default: warn.";

const BENCH_HELP: &str = "\
Two processes, each pinned to a core of its own, measure together; without two cores nothing is
measured. Every sample lies between two probes: the round trip of two cache lines tells whether the
two cores share a cache (near, below 250 ns) or not (far, 350 to 700 ns). Samples between probes
that disagree are dropped and counted. Ratios compare medians of one regime.";

const VERBS_EXAMPLES: &str = "\
Examples:
  copyrpc bench verbs --quick
  copyrpc bench verbs --cell write-imm --runs 15
  copyrpc bench verbs --json - | jq 'select(.ratio != null) | [.cell, .regime, .ratio]'

All data is checked: sequence numbers and bytes of every small message, the last word of every large
one, and every byte of what is in memory at the end of a sample. Wrong data ends the run with exit
code 1.";

const KV_EXAMPLES: &str = "\
Examples:
  copyrpc bench kv                                    two nodes, four client processes each
  copyrpc bench kv --clients 1,2,4,8 --qd 1,32        a grid: lists multiply
  copyrpc bench kv --matrix --runs 5                  the standard grid
  copyrpc bench kv --pace open:50000 --locality remote   latency under a fixed load
  copyrpc bench kv --verify full --mix 50:10:20       are the answers linearizable?

All processes of a run are started together and measured over the same interval. Every byte of every
answer is checked by the client that asked; a wrong answer or a process that fails ends the run with
exit code 1 and is named. Results of cores near each other and far apart are kept apart.";

/// RPC for RDMA clusters: what is on this machine, and how fast it is.
#[derive(Debug, Parser)]
#[command(name = "copyrpc", version = VERSION, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show devices, the NIC in use, and every knob with its value and origin.
    Info(InfoArgs),
    /// Measure.
    #[command(after_help = BENCH_HELP)]
    Bench {
        #[command(subcommand)]
        which: BenchCommand,
    },
    /// Show a result of `bench kv`, or compare two.
    Report(ReportArgs),
    /// The other side of a benchmark; started by `bench` itself.
    #[command(name = PEER_COMMAND, hide = true)]
    BenchPeer,
    /// A process of `bench kv`; started by it.
    #[command(name = CHILD_OF_KV, hide = true)]
    KvProcess,
}

/// Name of [`Command::BenchPeer`].
pub(crate) const PEER_COMMAND: &str = "bench-peer";
/// Name of [`Command::KvProcess`].
pub(crate) const CHILD_OF_KV: &str = "kv-process";

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What the machine can do: cache-line round trips and streams, memory copies.
    #[command(after_help = BENCH_HELP)]
    Limit(BenchArgs),
    /// What a NIC does: rates, round trips and bandwidths between two processes.
    #[command(after_help = VERBS_EXAMPLES)]
    Verbs(VerbsArgs),
    /// Queues and calls between threads of one process.
    #[command(after_help = BENCH_HELP)]
    Inproc(BenchArgs),
    /// Calls between two processes over shared memory.
    #[command(after_help = BENCH_HELP)]
    Ipc(BenchArgs),
    /// A key-value store over every way to call another node.
    #[command(after_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct InfoArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nic: NicArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct NicArgs {
    #[arg(long, value_name = "NAME", env = NIC.env, default_value = NIC.default, help = NIC.meaning)]
    pub(crate) nic: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VerbsArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    #[command(flatten)]
    pub(crate) nic: NicArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// Fewer sizes, shorter samples: below 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write JSON lines to PATH; `-` is standard output, and the tables go to standard error.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Samples per cell [default: 7; with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: Option<u16>,
    /// Only cells whose name contains TEXT, and what they are compared with.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) cell: String,
    /// The two cores, as `INITIATOR,RESPONDER` [default: the first two that are allowed].
    #[arg(long, value_name = "A,B")]
    pub(crate) cpus: Option<Cores>,
}

/// This process's command line, for the record.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args_os().map(|word: OsString| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// Scripts of an earlier implementation called commands that were gone.
    #[test]
    fn pitfall_31_every_command_that_the_documents_show_exists() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut texts =
            vec![EXAMPLES.to_owned(), VERBS_EXAMPLES.to_owned(), KV_EXAMPLES.to_owned()];
        for file in ["README.md", "docs/softnic.md", "docs/testing.md", "docs/kv.md"] {
            texts.push(std::fs::read_to_string(root.join(file)).expect(file));
        }
        let commands = texts.iter().flat_map(|text| shown_commands(text)).collect::<Vec<_>>();
        assert!(commands.len() > 15, "{commands:?}");
        for command in commands {
            let parsed = Args::try_parse_from(command.split_whitespace());
            let is_known = parsed.as_ref().map_or_else(|error| error.exit_code() == 0, |_| true);
            assert!(is_known, "`{command}`: {}", parsed.unwrap_err());
        }
    }

    /// Lines that call this program, as `copyrpc …` or through cargo, without what follows.
    fn shown_commands(text: &str) -> Vec<String> {
        let line = |line: &str| {
            let line = line.trim().trim_start_matches("$ ");
            let arguments = match line.strip_prefix("copyrpc ") {
                Some(arguments) => arguments,
                None if line.starts_with("cargo run") && !line.contains(" -p ") => {
                    line.split_once(" -- ")?.1
                }
                None => return None,
            };
            let end = arguments.find(|c| "|#`".contains(c)).unwrap_or(arguments.len());
            // In help, what the command does stands two blanks behind it.
            let arguments = arguments[..end].split("  ").next()?;
            Some(format!("copyrpc {arguments}"))
        };
        text.lines().filter_map(line).collect()
    }

    #[test]
    fn impossible_arguments_are_usage_errors() {
        for bad in [
            &["copyrpc", "bench", "limit", "--runs", "0"][..],
            &["copyrpc", "bench", "limit", "--cpus", "1,1"],
            &["copyrpc", "bench"],
        ] {
            assert_eq!(Args::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
