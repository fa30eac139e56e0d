//! Strict mode: reports, on standard error, of rings and doorbell records that hardware would not take.
//!
//! Rings are looked at between steps, when no party executes them, so a report is certain: a record further ahead than its
//! ring is long, a consumer ahead of the producer. The fetch finds a record that announces no WQE, the completion an
//! overrun queue; both are reported, too. Nothing shows how a doorbell register was rung: it is memory that nothing
//! watches.

use std::collections::HashSet;

use mlx5::device::DeviceQp as _;
use softnic::Violation;
use verbs::QpState;

use super::Engine;
use crate::notice::tell;

/// How a line of strict mode begins, behind the name of the command and the process.
pub(crate) const MARK: &str = "strict: ";

/// Lines that are reported at most.
const REPORTS_MAX: usize = 64;

/// Reports of strict mode.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    reports: HashSet<String>,
}

impl Strict {
    fn tell(&mut self, text: String) {
        if self.reports.len() < REPORTS_MAX && !self.reports.contains(&text) {
            tell(format_args!("{MARK}{text}"));
            self.reports.insert(text);
        }
    }
}

impl Engine {
    /// Tells what is wrong, each thing once.
    pub(super) fn check_rings(&mut self) {
        let Some(mut strict) = self.strict.take() else { return };
        let mut found: Vec<Violation> = self.device.take_violations();
        let runs = |state| matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let qps = self.qps.values_mut().filter(|qp| runs(qp.device.state()));
        found.extend(qps.filter_map(|qp| qp.device.check()));
        found.extend(self.srqs.values_mut().filter_map(|srq| srq.device.check()));
        found.extend(self.cqs.values_mut().filter_map(|cq| cq.device.check()));
        for violation in found {
            strict.tell(violation.to_string());
        }
        self.strict = Some(strict);
    }

    /// A completion queue is overrun.
    pub(super) fn tell_overrun(&mut self, cqn: u32) {
        if let Some(strict) = &mut self.strict {
            strict.tell(format!(
                "CQ {cqn:#x}: more completions than it has room for: poll it, or make it larger"
            ));
        }
    }
}
