//! The choice of a NIC for who names none: `auto`.
//!
//! It is made once per job, not per peer: the address of a port means nothing to a port of another NIC, so all
//! daemons of a job have to choose alike. They do, if their machines have the same devices and the same settings.
//!
//! | if | then |
//! |---|---|
//! | an RDMA port of this machine is up, and libibverbs is there | `ibverbs` |
//! | a secret or a rendezvous `HOST:PORT` is set, so that the job may have several machines | `tcp` |
//! | otherwise | `soft` |

use crate::{SHARED_VARIABLES, hardware, ibverbs, soft, tcp};

/// Its name in the table.
pub const NAME: &str = "auto";

/// The NIC that is chosen; `lookup` finds what is set, by environment variable.
pub(crate) fn choose(lookup: impl Fn(&str) -> Option<String>) -> &'static str {
    let has_library = hardware::libraries().iter().any(|library| library.found);
    let has_port = hardware::devices().0.iter().any(hardware::KernelDevice::is_up);
    by_rule(has_library && has_port, lookup)
}

fn by_rule(has_rdma: bool, lookup: impl Fn(&str) -> Option<String>) -> &'static str {
    // A folder has a slash; HOST:PORT has none.
    let is_of_hosts = |text: String| !text.is_empty() && !text.contains('/');
    let [secret_file, rendezvous] = SHARED_VARIABLES;
    let has_secret = lookup(secret_file).is_some_and(|path| !path.is_empty());
    match has_rdma {
        true => ibverbs::NAME,
        false if has_secret || lookup(rendezvous).is_some_and(is_of_hosts) => tcp::NAME,
        false => soft::NAME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_first_and_hosts_before_processes() {
        let set = |name: &'static str, text: &'static str| {
            move |variable: &str| (variable == name).then(|| text.to_owned())
        };
        assert_eq!(by_rule(true, |_| None), "ibverbs");
        assert_eq!(by_rule(true, set("COPYRPC_RENDEZVOUS", "first:7000")), "ibverbs");
        assert_eq!(by_rule(false, |_| None), "soft");
        assert_eq!(by_rule(false, set("COPYRPC_RENDEZVOUS", "first:7000")), "tcp");
        assert_eq!(by_rule(false, set("COPYRPC_SECRET_FILE", "/a/file")), "tcp");
        assert_eq!(by_rule(false, set("COPYRPC_RENDEZVOUS", "./meet")), "soft");
    }
}
