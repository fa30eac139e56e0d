//! Whether a device is large enough for a job: known before a daemon starts.

use bootstrap::RankInfo;
use rpc::{ConfigError, TransportKind};
use verbs::NicAttributes;

use crate::{config::DaemonConfig, serve::worker_config_for};

/// The device is too small for the share of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRoomError {
    /// No device is large enough, or its receives are too few.
    #[error(transparent)]
    Worker(#[from] ConfigError),
    /// Completions of all sends have an entry.
    #[error(
        "the completion queue of sends to {peers} peers has {entries} entries, and those of this device at most {most}"
    )]
    Completions {
        /// Peers of the thread with most of them.
        peers: u16,
        /// Entries that they need.
        entries: u32,
        /// Entries of the largest queue.
        most: u32,
    },
}

/// Looks whether a thread of a daemon can serve its share of the other ranks on a NIC.
///
/// # Errors
///
/// [`DeviceRoomError`]: the daemon would end, or the thread with most peers could not open its queues.
pub fn check_device(
    config: &DaemonConfig,
    rank_info: RankInfo,
    nic: &NicAttributes,
) -> Result<(), DeviceRoomError> {
    let others = rank_info.size().saturating_sub(1);
    let peers =
        u16::try_from(others.div_ceil(u32::from(config.threads.max(1)))).unwrap_or(u16::MAX);
    let worker = worker_config_for(config, rank_info, peers, 0);
    worker.geometry()?;
    worker.check_receives(nic)?;
    let queues = match worker.transport {
        TransportKind::Rc => worker.peers_max,
        TransportKind::Dc => worker.dcis,
    };
    let entries = u32::from(queues) * u32::from(worker.sends);
    let most = nic.cqes_max;
    if entries > most {
        return Err(DeviceRoomError::Completions { peers, entries, most });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KNOBS, Layers};

    /// An adapter whose completion queues have so many entries.
    fn adapter(cqes_max: u32) -> NicAttributes {
        NicAttributes {
            name: "small".to_owned(),
            capabilities: verbs::Capabilities::empty(),
            cqes_max,
            requests_max: 1 << 15,
            srq_entries_max: 4095,
            srq_sges_max: 30,
            sges_max: 30,
            inline_bytes_max: 220,
            cqe_payload_bytes_max: 0,
            reads_max: 16,
            message_bytes_max: 1 << 30,
        }
    }

    #[test]
    fn a_job_that_is_too_large_for_a_device_is_told_and_threads_help() {
        let check = |size: u32, threads: &str, cqes_max: u32| {
            let layers = Layers::new(KNOBS.to_vec()).flag("threads", threads).unwrap();
            let config = DaemonConfig::from_settings(&layers.finish()).unwrap();
            check_device(&config, RankInfo::new(0, size).unwrap(), &adapter(cqes_max))
        };
        assert_eq!(check(4097, "1", (1 << 22) - 1), Ok(()));
        let refused = check(1000, "1", 4095).unwrap_err();
        assert!(matches!(refused, DeviceRoomError::Completions { peers: 999, most: 4095, .. }));
        assert_eq!(check(100, "64", 4095), Ok(()), "more threads share them");
        let refused = check(40_000, "1", u32::MAX).unwrap_err().to_string();
        assert!(refused.contains("COPYRPC_THREADS"), "{refused}");
    }
}
