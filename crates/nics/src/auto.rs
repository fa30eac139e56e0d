//! The choice of a NIC for who names none: `auto`.
//!
//! It is made once per job: the address of a port means nothing to a port of another NIC, so all daemons of a job
//! have to choose alike. They do, if their machines have the same devices and the same settings. Between shared memory
//! and TCP there is nothing to choose once: NIC `hosts` settles that for each peer, when a queue pair is connected.
//!
//! | if | then |
//! |---|---|
//! | a port of a ConnectX (kernel driver `mlx5_core`) is up, and NIC `mlx5` opens: libmlx5 is there, no variable changes its layouts, and the queues that it makes are laid out as the driver knows them | `mlx5` |
//! | an RDMA port of this machine is up, or none is and one is coming up, and libibverbs is there | `ibverbs`, which names the port that is not active yet |
//! | a secret or a rendezvous `HOST:PORT` is set, so that the job may have several machines | `hosts` |
//! | otherwise | `soft` |

use crate::{
    Opener as _, SHARED_VARIABLES,
    hardware::{self, KernelDevice},
    hosts, ibverbs, mlx5, soft,
};

/// Its name in the table.
pub const NAME: &str = "auto";

/// The NIC that is chosen; `lookup` finds settings by environment variable.
pub(crate) fn choose(lookup: impl Fn(&str) -> Option<String>) -> &'static str {
    let has_library = hardware::libraries().iter().any(|library| library.found);
    let (devices, _) = hardware::devices();
    let rdma = if has_library { rdma_of(&devices, || opens_mlx5(&lookup)) } else { None };
    by_rule(rdma, lookup)
}

/// The NIC of RDMA devices. Software does not take the place of a port that is coming up: other nodes, whose ports came
/// earlier, would have chosen otherwise.
fn rdma_of(devices: &[KernelDevice], opens_mlx5: impl FnOnce() -> bool) -> Option<&'static str> {
    let mut up = devices.iter().filter(|device| device.is_up()).peekable();
    if up.peek().is_none() {
        return devices.iter().any(KernelDevice::is_coming_up).then_some(ibverbs::NAME);
    }
    let is_connectx = up.any(|device| device.driver() == hardware::CONNECTX_DRIVER);
    Some(if is_connectx && opens_mlx5() { mlx5::NAME } else { ibverbs::NAME })
}

/// Whether the port that is set opens as NIC `mlx5`.
fn opens_mlx5(lookup: impl Fn(&str) -> Option<String>) -> bool {
    mlx5::Mlx5Opener::from_lookup(lookup).is_ok_and(|opener| opener.open().is_ok())
}

fn by_rule(rdma: Option<&'static str>, lookup: impl Fn(&str) -> Option<String>) -> &'static str {
    // A folder has a slash; HOST:PORT has none.
    let is_of_hosts = |text: String| !text.is_empty() && !text.contains('/');
    let [secret_file, rendezvous] = SHARED_VARIABLES;
    let has_secret = lookup(secret_file).is_some_and(|path| !path.is_empty());
    match rdma {
        Some(name) => name,
        None if has_secret || lookup(rendezvous).is_some_and(is_of_hosts) => hosts::NAME,
        None => soft::NAME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_coming_up_is_waited_for_and_a_disabled_one_is_not() {
        let device = |state: &&str| KernelDevice::for_tests("mlx5_0", state, "InfiniBand");
        let of = |states: &[&str], opens| {
            let devices: Vec<_> = states.iter().map(device).collect();
            rdma_of(&devices, || opens)
        };
        assert_eq!(of(&[], true), None);
        assert_eq!(of(&["ACTIVE"], true), Some("mlx5"));
        assert_eq!(of(&["INIT", "ACTIVE"], true), Some("mlx5"));
        assert_eq!(of(&["ACTIVE"], false), Some("ibverbs"));
        for state in ["INIT", "ARMED"] {
            assert_eq!(of(&["DOWN", state], true), Some("ibverbs"), "{state}");
        }
        assert_eq!(of(&["DOWN"], true), None);
    }

    #[test]
    fn devices_come_first_and_hosts_before_processes() {
        let set = |name: &'static str, text: &'static str| {
            move |variable: &str| (variable == name).then(|| text.to_owned())
        };
        assert_eq!(by_rule(Some(ibverbs::NAME), |_| None), "ibverbs");
        assert_eq!(
            by_rule(Some(ibverbs::NAME), set("COPYRPC_RENDEZVOUS", "first:7000")),
            "ibverbs"
        );
        assert_eq!(by_rule(None, |_| None), "soft");
        assert_eq!(by_rule(None, set("COPYRPC_RENDEZVOUS", "first:7000")), "hosts");
        assert_eq!(by_rule(None, set("COPYRPC_SECRET_FILE", "/a/file")), "hosts");
        assert_eq!(by_rule(None, set("COPYRPC_RENDEZVOUS", "./meet")), "soft");
    }
}
