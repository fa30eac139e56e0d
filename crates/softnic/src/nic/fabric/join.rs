//! Taking a free LID of a fabric, and who has them all if none is free.

use std::collections::BTreeMap;

use os::{
    clock,
    unix::{SocketError, UnixConnection},
};

use super::{Fabric, LID_MAX, address, new_instance};
use crate::nic::card::Card;

/// Addresses of a full fabric that are looked at to tell who has them.
const LOOKED_AT_MAX: u16 = 32;

/// Why a port has no LID.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Abstract names of sockets belong to whoever takes them first, of any user.
    #[error(
        "all {addresses} addresses of the fabric are taken, of {looked_at} that were looked at {count} by {holder}; \
         end that, or set COPYRPC_SOFT_FABRIC to another name"
    )]
    Full { addresses: u16, looked_at: usize, count: usize, holder: String },
}

impl Fabric {
    /// Takes a free LID of the fabric. With an `instance` only those who know that find the port.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub(crate) fn join(name: &str, card: Card, instance: Option<u64>) -> Result<Self, JoinError> {
        Self::join_below(LID_MAX, name, card, instance)
    }

    /// Takes a free LID of those up to `lid_max`.
    fn join_below(
        lid_max: u16,
        name: &str,
        card: Card,
        instance: Option<u64>,
    ) -> Result<Self, JoinError> {
        let start = new_instance();
        // Spread, so that ports opened at the same time seldom try the same one.
        let start = (start ^ start >> 17 ^ start >> 31) % u64::from(lid_max);
        for step in 0..u64::from(lid_max) {
            let lid = u16::try_from((start + step) % u64::from(lid_max) + 1).unwrap_or(1);
            match Self::join_as(lid, name, card.clone(), instance) {
                Err(SocketError::InUse(_)) => {}
                done => return Ok(done?),
            }
        }
        Err(full(name, lid_max))
    }
}

/// Who has the addresses of a fabric.
fn full(name: &str, addresses: u16) -> JoinError {
    let mut counts = BTreeMap::<String, usize>::new();
    let step = usize::from((addresses / LOOKED_AT_MAX).max(1));
    for lid in (1..=addresses).step_by(step) {
        *counts.entry(holder(name, lid)).or_default() += 1;
    }
    let looked_at = counts.values().sum();
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let (holder, count) = most.unwrap_or_else(|| ("no process".to_owned(), 0));
    JoinError::Full { addresses, looked_at, count, holder }
}

/// Who listens at the address of a port.
fn holder(name: &str, lid: u16) -> String {
    match UnixConnection::connect(&address(name, lid), clock::NOW) {
        Ok(connection) => match connection.peer_credentials().pid {
            0 => "a process of this user in another PID namespace".to_owned(),
            pid => format!("process {pid} of this user"),
        },
        Err(SocketError::ForeignUser { peer_uid, .. }) => format!("user {peer_uid}"),
        Err(SocketError::TimedOut) => "a process that accepts no connection".to_owned(),
        Err(SocketError::NobodyListens(_)) => "sockets that do not listen".to_owned(),
        Err(error) => format!("a process that is not reached ({error})"),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use os::unix::Listener;

    use super::*;
    use crate::nic::fabric::small_card;

    #[test]
    fn a_fabric_that_somebody_has_taken_whole_is_told_with_who_has_it() {
        const ADDRESSES: u16 = 8;
        let name = format!("squatted-{}", std::process::id());
        let listeners = (1..=ADDRESSES).map(|lid| Listener::bind(&address(&name, lid)).unwrap());
        let mut listeners = listeners.collect::<Vec<_>>();
        let join = || Fabric::join_below(ADDRESSES, &name, small_card(), None);
        let error = join().unwrap_err().to_string();
        let own = format!("by process {} of this user", std::process::id());
        for part in ["all 8 addresses", "of 8 that were looked at 8", &own, "COPYRPC_SOFT_FABRIC"] {
            assert!(error.contains(part), "{part:?} in {error}");
        }
        listeners.pop();
        let fabric = join().unwrap();
        assert_eq!(fabric.lid, ADDRESSES);
    }
}
