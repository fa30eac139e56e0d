//! `copyrpc doctor`: what would fail on this machine, and what to do about it. It changes nothing but
//! to make the runtime folder, as a daemon would.

use core::fmt::Write as _;

use serde::Serialize;

use crate::args::DoctorArgs;
use command::{exit::Unfit, output};

mod checks;
mod network;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Nothing to do.
    Fine,
    /// It works, but less well than it could.
    Note,
    /// A daemon, or a client, would fail.
    Fails,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    what: &'static str,
    verdict: Verdict,
    /// The state that the check found.
    found: String,
    /// What to do, if anything.
    remedy: String,
}

impl Finding {
    fn fine(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fine, found: found.into(), remedy: String::new() }
    }

    fn note(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Note, found: found.into(), remedy: remedy.into() }
    }

    fn fails(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fails, found: found.into(), remedy: remedy.into() }
    }
}

/// `copyrpc doctor`.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let findings = checks::all(&settings);
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&findings)?))?;
    } else {
        output::print(&text(&findings))?;
    }
    let fails = findings.iter().filter(|finding| finding.verdict == Verdict::Fails);
    match fails.count() {
        0 => Ok(()),
        count => Err(Unfit(count).into()),
    }
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or_default();
    findings.iter().fold(String::new(), |mut text, finding| {
        let Finding { what, verdict, found, remedy } = finding;
        let mark = match verdict {
            // The words of the JSON.
            Verdict::Fine => "fine ",
            Verdict::Note => "note ",
            Verdict::Fails => "fails",
        };
        let _ = writeln!(text, "{mark}  {what:width$}  {found}");
        if !remedy.is_empty() {
            let _ = writeln!(text, "       {:width$}  -> {remedy}", "");
        }
        text
    })
}
