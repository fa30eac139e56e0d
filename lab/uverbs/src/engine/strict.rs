//! Strict mode: what a program does with its rings and doorbell records, and hardware would not take, is told on
//! standard error.
//!
//! Rings are looked at between steps, when nobody else executes them. So what is told is wrong for certain: a record
//! that is further ahead than its ring is long, a consumer that is ahead of the producer. What is no WQE where the
//! record says that one is, is found as it is fetched, and an overrun queue as it is completed into; both are told,
//! too. How a doorbell register was rung cannot be seen: it is memory that nothing watches.

use std::collections::HashSet;

use mlx5::device::DeviceQp as _;
use softnic::Violation;
use verbs::QpState;

use super::Engine;
use crate::notice::tell;

/// How a line of strict mode begins, behind the name of the command and the process.
pub(crate) const MARK: &str = "strict: ";

/// Lines that are told at most.
const TOLD_MAX: usize = 64;

/// What strict mode has told.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    told: HashSet<String>,
}

impl Strict {
    fn tell(&mut self, text: String) {
        if self.told.len() < TOLD_MAX && !self.told.contains(&text) {
            tell(format_args!("{MARK}{text}"));
            self.told.insert(text);
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
