//! `copyrpc-lab uverbs`: programs of others on the software NIC.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use ::uverbs::{
    condition::CONDITION_ENV,
    launch::{self, LaunchFiles, PARENT_ENV},
    matrix::{ROWS, Verdict},
    process::{EXPLAIN_ENV, FABRIC_ENV, LENIENT, PROFILE_ENV, ROCE, STRICT_ENV},
};
use anyhow::Context as _;
use measure::progress::StepProgress;
use verbs::LinkLayer;

use clap::{Args as ClapArgs, Subcommand};
use command::{exit::Unfit, table};

use crate::output;

pub(crate) const UVERBS_EXAMPLES: &str = "\
Examples:
  copyrpc-lab uverbs run -- ibv_devinfo -v
  copyrpc-lab uverbs run -- ib_write_lat &
  copyrpc-lab uverbs run -- ib_write_lat localhost
  copyrpc-lab uverbs run --explain -- PROGRAM    what the NIC refuses it
  copyrpc-lab uverbs matrix --only ib_send";

#[derive(Debug, Subcommand)]
pub(crate) enum UverbsCommand {
    /// Run a program whose libibverbs finds `mlx5_0`.
    Run(UverbsRunArgs),
    /// Show whether programs can run, and what they are refused.
    Doctor,
    /// Run programs that are known to work, two processes each, and show the table.
    Matrix(UverbsMatrixArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UverbsRunArgs {
    /// Say on standard error what is refused.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Programs see each other only within one fabric.
    #[arg(long, value_name = "NAME")]
    pub(crate) fabric: Option<String>,
    /// Do not say on standard error what hardware would not take of the program's queues.
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Link layer of the port: on InfiniBand it is addressed by LID, on RoCE by GID.
    #[arg(long, value_name = "LINK", default_value = "infiniband", value_parser = ["infiniband", "roce"])]
    pub(crate) link: String,
    /// The adapter: `vf` has short queues and no atomics, and its InfiniBand port needs global route headers;
    /// `adaptive-routing` places WRITEs that are under way in any order.
    #[arg(long, value_name = "NAME", default_value = "connectx", value_parser = ["connectx", "vf", "adaptive-routing"])]
    pub(crate) profile: String,
    /// A file that says how the adapter is, at any time: `active`, `down` (the port), `gone` (the device), and on RoCE
    /// `unaddressed` (no IPv4 address), or `moved` (to other rows of the GID table).
    #[arg(long, value_name = "FILE")]
    pub(crate) condition: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UverbsMatrixArgs {
    /// Only lines that contain TEXT.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// A line does not fail for what hardware would not take of its programs' queues.
    #[arg(long)]
    pub(crate) lenient: bool,
}

/// Runs one of the commands.
pub(crate) fn run(which: &UverbsCommand) -> anyhow::Result<()> {
    match which {
        UverbsCommand::Run(args) => start(args),
        UverbsCommand::Doctor => doctor(),
        UverbsCommand::Matrix(args) => matrix(args),
    }
}

/// Ends as the program does.
fn start(args: &UverbsRunArgs) -> anyhow::Result<()> {
    let (program, arguments) = args.program.split_first().context("no program is named")?;
    let link = if args.link == ROCE { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
    let stage = LaunchFiles::on(link)?;
    let mut command = stage.command(program);
    command.args(arguments);
    if args.explain {
        command.env(EXPLAIN_ENV, "1");
    }
    if args.lenient {
        command.env(STRICT_ENV, LENIENT);
    }
    command.env(PROFILE_ENV, &args.profile);
    if let Some(file) = &args.condition {
        command.env(CONDITION_ENV, std::path::absolute(file)?);
    }
    command.env(PARENT_ENV, std::process::id().to_string());
    if let Some(fabric) = &args.fabric {
        command.env(FABRIC_ENV, fabric);
    }
    let shown = Path::new(program).display();
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    drop(stage);
    match code_of(status) {
        0 => Ok(()),
        code => std::process::exit(code),
    }
}

/// As shells have it.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn matrix(args: &UverbsMatrixArgs) -> anyhow::Result<()> {
    let wanted = |line: &str| args.only.as_ref().is_none_or(|only| line.contains(only.as_str()));
    launch::library()?;
    let mut shown = table::table(&["verdict", "shows", "program"]);
    let mut failed = 0;
    let rows = ROWS.iter().filter(|row| wanted(&row.line())).collect::<Vec<_>>();
    let mut progress = StepProgress::new("programs", rows.len());
    for row in rows {
        progress.step(row.line());
        let verdict = match row.run(!args.lenient) {
            Verdict::Works => "works".to_owned(),
            Verdict::Skipped => format!("skipped: install {}", row.package),
            Verdict::Fails(problem) => {
                failed += 1;
                format!("FAILS: {problem}")
            }
        };
        shown.add_row([verdict, row.shows.to_owned(), row.line()]);
    }
    drop(progress);
    output::print(&format!("{shown}\n"))?;
    if failed > 0 {
        anyhow::bail!("{failed} of the above do not work");
    }
    Ok(())
}

/// What verbs programs may ask for and are refused, and what to do instead.
const LACKS: [(&str, &str); 10] = [
    ("rdma_cm: multicast, AF_IB, rsockets for datagrams", "name peers by IP address, and connect"),
    ("XRC", "use SRQ with RC, or DC"),
    ("raw packets, flow steering, RSS", "not for this NIC"),
    ("memory windows, UMR, local invalidate", "register what peers may reach"),
    ("on-demand paging, device memory, dma-buf", "register memory by ibv_reg_mr"),
    ("another size of CQ or SRQ", "create it as large as it has to be"),
    ("multicast", "send to each"),
    ("tag matching, DEVX, signatures", "UCX goes on without; they are for ConnectX alone"),
    (
        "the device's clock as a register, times of day in completions",
        "completions have nanoseconds of the monotonic clock",
    ),
    ("a child of fork that uses its parent's device", "open the device after the fork"),
];

/// Where Debian and others have the driver of libibverbs.
const DRIVER_FOLDERS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/lib/aarch64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs",
    "/usr/lib/libibverbs",
];

fn has_driver() -> Option<String> {
    DRIVER_FOLDERS.iter().find_map(|folder| {
        let entries = std::fs::read_dir(folder).ok()?;
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.find(|name| name.starts_with("libmlx5-")).map(|name| format!("{folder}/{name}"))
    })
}

fn doctor() -> anyhow::Result<()> {
    let mut text = String::new();
    let mut missing = 0;
    let mut tell = |what: &str, found: Result<String, String>| {
        let (mark, found) = match found {
            Ok(found) => ("ok  ", found),
            Err(found) => {
                missing += 1;
                ("FAIL", found)
            }
        };
        let _ = writeln!(text, "{mark}  {what:<10}  {found}");
    };
    let library = launch::library();
    tell("library", library.map(|path| path.display().to_string()).map_err(|e| e.to_string()));
    let no_driver = || "no libmlx5 provider: install ibverbs-providers".to_owned();
    tell("libmlx5", has_driver().ok_or_else(no_driver));
    if let (0, Ok(stage)) = (missing, LaunchFiles::new()) {
        let mut command = stage.command(OsStr::new("ibv_devinfo"));
        let opened = command.env(EXPLAIN_ENV, "1").output();
        let mut tell = |mark, found: &str| {
            let _ = writeln!(text, "{mark}  {:<10}  {found}", "device");
        };
        match opened {
            Ok(output) if output.status.success() => tell("ok  ", "libibverbs opens mlx5_0"),
            Ok(output) => {
                missing += 1;
                tell("FAIL", String::from_utf8_lossy(&output.stderr).trim());
            }
            Err(_) => tell("note", "not tried: install ibverbs-utils"),
        }
    }
    let _ = writeln!(
        text,
        "\nrefused by name (`copyrpc-lab uverbs run --explain -- PROGRAM` shows which):"
    );
    for (what, instead) in LACKS {
        let _ = writeln!(text, "      {what}\n        -> {instead}");
    }
    output::print(&text)?;
    if missing > 0 { Err(Unfit(missing).into()) } else { Ok(()) }
}
