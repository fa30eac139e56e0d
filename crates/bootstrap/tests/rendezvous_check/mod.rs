//! Any bytes, as what strangers and ranks without the secret do to a rendezvous: it never completes,
//! and never keeps more than it may.

use std::time::Duration;

use copyrpc_bootstrap::{
    JobId, RankInfo, Secret,
    frame::Hello,
    rendezvous::{Action, ExchangeState, PENDING_MAX, Rendezvous, RendezvousConfig},
};
use zerocopy::IntoBytes as _;

const SIZE: u32 = 3;

/// Bytes of one operation: what, on which connection, and how much.
const OP_BYTES: usize = 3;

pub(crate) fn check(mut bytes: &[u8]) {
    let job = JobId::new("job").expect("a name");
    let config = RendezvousConfig {
        job: job.clone(),
        secret: Secret::from_bytes(b"nobody in here knows it"),
        size: SIZE,
        handshake_timeout: Duration::from_secs(1),
        exchange_timeout: Duration::from_secs(60),
        linger: Duration::from_secs(1),
        contest_timeout: Duration::from_secs(2),
        roster: None,
    };
    let mut rendezvous = Rendezvous::new(config, 0, || [7; 32]);
    let (mut now_ns, mut ids) = (0_u64, Vec::new());
    while let Some((&[what, whom, amount], rest)) = bytes.split_first_chunk::<OP_BYTES>() {
        bytes = rest;
        let id = ids.get(usize::from(whom) % ids.len().max(1)).copied().unwrap_or(0);
        match what % 6 {
            0 => ids.push(rendezvous.handle_connection("stranger".into(), now_ns)),
            1 => {
                let (chunk, rest) = bytes.split_at(bytes.len().min(amount.into()));
                bytes = rest;
                rendezvous.handle_bytes(id, chunk);
            }
            2 => {
                let rank_info =
                    RankInfo::new(u32::from(amount) % SIZE, SIZE).expect("below the size");
                rendezvous.handle_bytes(id, Hello::new(&job, rank_info, [amount; 32]).as_bytes());
            }
            3 => rendezvous.handle_closed(id),
            _ => {
                now_ns += u64::from(amount) * 10_000_000;
                rendezvous.handle_timeout(now_ns);
            }
        }
        while let Some(action) = rendezvous.poll_action() {
            if let Action::Send(_, bytes) = action {
                assert!(bytes.len() <= 520, "a stranger gets a challenge or a refusal");
            }
        }
        assert!(rendezvous.connections() <= PENDING_MAX);
        assert_ne!(rendezvous.outcome(), &ExchangeState::Complete);
        assert_eq!(rendezvous.stats().joined, 0);
    }
}
