//! What is run: how clients call, where threads run, what is asked for.

use std::collections::BTreeMap;

use nics::Selection;
use serde::{Deserialize, Serialize};

pub use crate::pin::Pin;
use crate::{
    backend::{JobSetup, Kind, Switches, Wait, loopback},
    codec::{HEAD_BYTES, MESSAGE_BYTES_MAX},
    workload::Workload,
};

/// Everything that a run depends on, as far as this program decides it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The backend, the way that clients call.
    pub backend: Kind,
    /// The way that threads wait for work.
    pub wait: Wait,
    /// Placement of threads on cores.
    pub pin: Pin,
    /// Name of the NIC; "none" for backends without.
    pub nic: String,
    /// What is set about the NIC, by the names of its environment variables; the rest is default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nic_knobs: BTreeMap<String, String>,
    /// The backend's switches, all of them.
    pub switches: Switches,
    /// What is asked for.
    pub workload: Workload,
    /// Hosts that the nodes are dealt out to.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub hosts: u16,
    /// Processes count cycles, instructions and misses of caches.
    #[serde(default, skip_serializing_if = "is_false")]
    pub counters: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(is: &bool) -> bool {
    !*is
}

const fn one() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(hosts: &u16) -> bool {
    *hosts == 1
}

impl Config {
    /// What everybody in a job of it knows before anything is opened.
    #[must_use]
    pub fn setup(&self) -> JobSetup {
        let message_bytes_max = HEAD_BYTES + self.workload.value_size.max_bytes;
        JobSetup {
            topology: self.workload.topology(),
            queue_depth: self.workload.queue_depth,
            message_bytes_max: message_bytes_max.min(MESSAGE_BYTES_MAX),
            timeout_ns: self.workload.timeout_ms * 1_000_000,
            wait: self.wait,
            switches: self.switches.clone(),
            times_turns: self.workload.series.is_some(),
            address: loopback(),
        }
    }

    /// Whether some of its threads use a core also while nothing is measured.
    #[must_use]
    pub fn burns_between_intervals(&self) -> bool {
        self.backend == Kind::Provider && matches!(self.wait, Wait::Spin | Wait::Yield)
    }

    /// Whether a message wakes a thread that sleeps. A thread that is not woken looks now and then.
    #[must_use]
    pub fn is_woken(&self) -> bool {
        self.wait.can_sleep() && !matches!(self.backend, Kind::Erpc | Kind::Scalerpc)
    }

    /// Queue pairs of each node, by construction. `None`: it has none, or other objects of the NIC carry its calls.
    #[must_use]
    pub fn queue_pairs_per_node(&self) -> Option<u64> {
        let is_dc = self.switches.iter().any(|(name, value)| name == "transport" && value == "dc");
        self.backend.queue_pairs_per_node(self.workload.topology()).filter(|_| !is_dc)
    }

    /// The NIC, for backends that use one.
    #[must_use]
    pub fn selected_nic(&self) -> Selection {
        Selection::with_settings(&self.nic, self.nic_knobs.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{grid::Axes, workload::Workload};

    /// Two nodes of 64 clients: each client connects to both servers, and each server to all clients.
    #[test]
    fn queue_pairs_are_those_of_connections_over_rc() {
        let of = |backend, transport: &str| {
            let has_transport = backend != Kind::Erpc && backend != Kind::Tcp;
            let given = [("transport".to_owned(), vec![transport.to_owned()])];
            let axes = Axes {
                workload: Workload { clients_per_rank: 64, ..Workload::default() },
                backends: vec![backend],
                switches: given.into_iter().filter(|_| has_transport).collect(),
                nic: "soft".into(),
                ..Axes::default()
            };
            axes.configs().unwrap()[0].queue_pairs_per_node()
        };
        assert_eq!(of(Kind::Delegation, "rc"), Some(1));
        assert_eq!(of(Kind::Direct, "rc"), Some(64 * 2 + 128));
        assert_eq!(of(Kind::Erpc, "rc"), Some(64 + 1));
        assert_eq!([of(Kind::Direct, "dc"), of(Kind::Delegation, "dc")], [None, None]);
        assert_eq!(of(Kind::Tcp, "rc"), None);
    }
}
