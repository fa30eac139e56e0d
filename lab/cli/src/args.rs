//! The command line.

#[cfg(feature = "layers")]
use bench::calls::CALLER_COMMAND;
use clap::{Parser, Subcommand};

#[cfg(feature = "layers")]
use crate::bench::args::{LayerCommand, PEER_COMMAND};
#[cfg(feature = "clients")]
use crate::clients::{CLIENT_COMMAND, ClientsArgs};
#[cfg(feature = "nic-report")]
use crate::nic_report::NicReportArgs;
#[cfg(feature = "sim")]
use crate::sim::SimCommand;
#[cfg(feature = "uverbs")]
use crate::uverbs::UverbsCommand;
use crate::{
    help::{BENCH_HELP, EXAMPLES, KV_EXAMPLES},
    kv::{CHILD_OF_KV, KvArgs, ReportArgs},
    version::VERSION,
};

/// The laboratory of copyrpc: how fast it is here, and what it would be elsewhere.
#[derive(Debug, Parser)]
#[command(name = "copyrpc-lab", version = VERSION, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure a layer beside its peers and the limits of the machine.
    #[command(after_help = BENCH_HELP)]
    Bench {
        #[command(subcommand)]
        which: BenchCommand,
    },
    /// Show a result of `bench`, or compare two of `bench kv`.
    Report(ReportArgs),
    /// Simulate measurements of hardware, and compare.
    #[cfg(feature = "sim")]
    Sim {
        #[command(subcommand)]
        which: SimCommand,
    },
    /// Run verbs programs, unmodified, on the software NIC.
    #[cfg(feature = "uverbs")]
    #[command(after_help = crate::uverbs::UVERBS_EXAMPLES)]
    Uverbs {
        #[command(subcommand)]
        which: UverbsCommand,
    },
    /// Write to FILE, as JSON, what a person without this machine wants to know of its NIC: devices, limits,
    /// conformance by name, the bytes of every operation, raw rates. It takes a minute and uses the NIC.
    #[cfg(feature = "nic-report")]
    NicReport(NicReportArgs),
    /// The other side of a benchmark; started by `bench` itself.
    #[cfg(feature = "layers")]
    #[command(name = PEER_COMMAND, hide = true)]
    BenchPeer,
    /// A client process of `bench ipc`; started by it.
    #[cfg(feature = "layers")]
    #[command(name = CALLER_COMMAND, hide = true)]
    BenchCaller,
    /// A process of `bench kv`; started by it.
    #[command(name = CHILD_OF_KV, hide = true)]
    KvProcess,
    /// A client of `bench clients`; started by it.
    #[cfg(feature = "clients")]
    #[command(name = CLIENT_COMMAND, hide = true)]
    BenchClient { arguments: Vec<String> },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// A key-value store over every way to call another node.
    #[command(after_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
    /// Clients in each form and language that users write, beside the fastest.
    #[cfg(feature = "clients")]
    #[command(after_help = crate::clients::EXAMPLES)]
    Clients(ClientsArgs),
    #[cfg(feature = "layers")]
    #[command(flatten)]
    Layer(LayerCommand),
}

// Without all features there are fewer commands than the documents show.
#[cfg(all(test, feature = "default"))]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::shown;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_laboratory_that_the_documents_show_exists() {
        shown::assert_exist(&Args::command(), &["cargo lab"], 60);
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        shown::assert_help_fits(&Args::command());
    }

    #[test]
    fn the_default_switches_are_the_defaults_of_a_worker() {
        let args = Args::try_parse_from(["copyrpc-lab", "bench", "rpc"]).unwrap();
        let Command::Bench { which: BenchCommand::Layer(LayerCommand::Rpc(args)) } = args.command
        else {
            panic!("another command");
        };
        assert_eq!(args.grid(), ::bench::workers::switches::Grid::default());
    }

    #[test]
    fn impossible_arguments_are_usage_errors() {
        for bad in [
            &["copyrpc-lab", "bench", "limit", "--runs", "0"][..],
            &["copyrpc-lab", "bench", "limit", "--cpus", "1,1"],
            &["copyrpc-lab", "bench"],
            &["copyrpc-lab", "bench", "rpc", "--flush", "sometimes"],
            &["copyrpc-lab", "bench", "rpc", "--dcis", "1,257"],
            &["copyrpc-lab", "bench", "rpc", "--signal-interval", "0"],
            &["copyrpc-lab", "bench", "rpc", "--signal-interval", "65"],
            &["copyrpc-lab", "bench", "rpc", "--markdown", "-"],
            &["copyrpc-lab", "bench", "kv", "--markdown", "-"],
            &["copyrpc-lab", "report", "a", "--markdown", "-"],
            &["copyrpc-lab", "report", "a", "--html", "-"],
        ] {
            assert_eq!(Args::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
