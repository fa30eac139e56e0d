//! What the log tells of connections that did not become clients: how many, and the cause.

use ipc::{Rejection, Rejections};

/// Logs what came since an earlier look, a line for each cause.
pub(crate) fn log(before: Rejections, now: Rejections) {
    for cause in Rejection::ALL {
        let (count, total) = (now.count(cause) - before.count(cause), now.count(cause));
        if count > 0 {
            tracing::warn!(count, total, "connections did not become clients: {}", told(cause));
        }
    }
}

fn told(cause: Rejection) -> &'static str {
    match cause {
        Rejection::Full => "there are as many clients as COPYRPC_CLIENTS_MAX allows",
        Rejection::UserLimit => "their user has as many clients as COPYRPC_CLIENTS_MAX allows",
        Rejection::ProcessLimit => {
            "their process has as many clients as COPYRPC_CLIENTS_PER_PROCESS allows"
        }
        Rejection::Resources => {
            "this daemon has no memory or no descriptor left for another client; raise `ulimit -n`, `ulimit -v`, \
             or the limit of the control group"
        }
        Rejection::Descriptors => {
            "this daemon has no descriptor left for another connection; raise `ulimit -n` (systemd: LimitNOFILE)"
        }
        Rejection::Version => {
            "they speak another version of the protocol; use the library that came with the daemon"
        }
        Rejection::ForeignUser => {
            "they belong to another user, or to one of another user namespace"
        }
        Rejection::NoHello => "they ended, or were silent for too long, before they said hello",
    }
}
