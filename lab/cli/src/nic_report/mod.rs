//! `copyrpc-lab nic-report FILE`: what a person without this machine wants to know of its NIC.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use command::{
    flags::{KnobFlags, NicKnobs},
    nic::{self, NicDescription},
    output::file,
};
use conformance::NotPassed;
use nics::{
    OperationDump, Selection,
    hardware::{self, KernelDevice, Tried},
};
use os::{child::from_json, machine};
use serde::Serialize;
use serde_json::Value;

use crate::output;

mod suite;

/// Options of `copyrpc-lab nic-report`.
#[derive(Debug, ClapArgs)]
pub(crate) struct NicReportArgs {
    /// The file.
    #[arg(value_name = "FILE", value_parser = file())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) nic: KnobFlags<NicKnobs>,
}

/// `copyrpc-lab nic-report`.
pub(crate) fn run(args: &NicReportArgs) -> anyhow::Result<()> {
    output::check_file(&args.file)?;
    let report = Report::collect(&nic::selected(&args.nic.load()?));
    report.write(&args.file)?;
    let failures = report.failures();
    failures.iter().for_each(|failure| output::say(format_args!("fails  {failure}")));
    output::say(report.summary(&args.file));
    anyhow::ensure!(failures.is_empty(), "{} of the above failed", failures.len());
    Ok(())
}

/// Everything, in the order in which it is looked at.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    commit: &'static str,
    cpu: String,
    kernel: String,
    devices: Vec<KernelDevice>,
    tried: Vec<Tried>,
    /// The NIC that was selected.
    nic: String,
    limits: Tell<NicDescription>,
    conformance: Tell<Vec<Scenario>>,
    /// Bytes of requests and completions; none of a NIC that has none of its own.
    operations: Tell<Vec<Operation>>,
    /// Lines of `copyrpc-lab bench rpc --quick --cell rc-write --json`.
    rates: Tell<Vec<Value>>,
}

/// What was found, or why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Tell<T> {
    Found(T),
    Error(String),
}

impl<T> Tell<T> {
    fn of<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(found) => Self::Found(found),
            Err(error) => Self::Error(error.to_string()),
        }
    }
}

/// A scenario of the suite that every NIC must pass.
#[derive(Debug, Serialize)]
struct Scenario {
    name: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

/// One operation, its bytes in hexadecimal digits.
#[derive(Debug, Serialize)]
struct Operation {
    operation: String,
    wqe: String,
    cqe: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_wqe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_cqe: Option<String>,
}

const PASSED: &str = "passed";
const SKIPPED: &str = "skipped";
const FAILED: &str = "failed";

impl Report {
    /// Looks at everything; the suite takes seconds to minutes.
    fn collect(nic: &Selection) -> Self {
        let (devices, sysfs) = hardware::devices();
        let mut tried = vec![sysfs];
        tried.extend(hardware::libraries());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("BUILD_COMMIT"),
            cpu: machine::cpu_model(),
            kernel: machine::kernel(),
            devices,
            tried,
            nic: nic.name().to_owned(),
            limits: Tell::of(nic::describe(nic)),
            operations: operations(nic),
            conformance: conformance(nic),
            rates: Tell::of(rates(nic).map_err(|error| format!("{error:#}"))),
        }
    }

    /// Writes it to `path`.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// The scenarios that failed, and the parts that could not be had.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        match &self.conformance {
            Tell::Error(error) => failures.push(format!("conformance: {error}")),
            Tell::Found(scenarios) => {
                let failed = scenarios.iter().filter(|scenario| scenario.verdict == FAILED);
                failures
                    .extend(failed.map(|scenario| format!("{}: {}", scenario.name, scenario.why)));
            }
        }
        if let Tell::Error(error) = &self.operations {
            failures.push(format!("operations: {error}"));
        }
        if let Tell::Error(error) = &self.rates {
            failures.push(format!("rates: {error}"));
        }
        failures
    }

    /// One line for people.
    fn summary(&self, path: &Path) -> String {
        let scenarios: &[Scenario] = match &self.conformance {
            Tell::Found(scenarios) => scenarios,
            Tell::Error(_) => &[],
        };
        let count = |verdict| scenarios.iter().filter(|one| one.verdict == verdict).count();
        let (passed, skipped, failed) = (count(PASSED), count(SKIPPED), count(FAILED));
        format!(
            "report: {}: NIC {}; conformance: {passed} passed, {skipped} skipped, {failed} failed",
            path.display(),
            self.nic,
        )
    }
}

fn conformance(nic: &Selection) -> Tell<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    let ran = suite::conformance(nic, |name, outcome| {
        let (verdict, why) = match outcome {
            Ok(()) => (PASSED, String::new()),
            Err(NotPassed::Skipped(why)) => (SKIPPED, why),
            Err(NotPassed::Failed(why)) => (FAILED, why),
        };
        scenarios.push(Scenario { name, verdict, why });
    });
    Tell::of(ran.map(|()| scenarios))
}

fn operations(nic: &Selection) -> Tell<Vec<Operation>> {
    match suite::operations(nic) {
        Ok(None) => Tell::Found(Vec::new()),
        Ok(Some(Ok(dumps))) => Tell::Found(dumps.into_iter().map(Operation::of).collect()),
        Ok(Some(Err(error))) => Tell::Error(error.to_string()),
        Err(error) => Tell::Error(error.to_string()),
    }
}

impl Operation {
    fn of(dump: OperationDump) -> Self {
        let OperationDump { operation, wqe, cqe, received } = dump;
        let [receive_wqe, receive_cqe] = match received {
            Some(both) => both.map(|bytes| Some(hex(&bytes))),
            None => [None, None],
        };
        Self { operation, wqe: hex(&wqe), cqe: hex(&cqe), receive_wqe, receive_cqe }
    }
}

/// Octowords apart.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().enumerate().fold(String::new(), |mut text, (at, byte)| {
        let space = if at > 0 && at % 16 == 0 { " " } else { "" };
        let _ = write!(text, "{space}{byte:02x}");
        text
    })
}

/// Raw WRITEs, by this program: its measurements run in processes of their own.
fn rates(nic: &Selection) -> anyhow::Result<Vec<Value>> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["bench", "rpc", "--quick", "--cell", "rc-write", "--json", "-"]);
    command.envs(nic.settings()).env(nics::VARIABLE, nic.name());
    let output = command.stdin(Stdio::null()).output().context("cannot start this program")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        anyhow::bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    text.lines().map(|line| Ok(from_json(line)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octowords_are_apart() {
        assert_eq!(hex(&[]), "");
        assert_eq!(hex(&[0x0a; 17]), format!("{} 0a", "0a".repeat(16)));
    }
}
