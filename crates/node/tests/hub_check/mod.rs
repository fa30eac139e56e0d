//! Any bytes, as what strangers and ranks without the secret do to a rendezvous: it never completes,
//! and never keeps more than it may.

use std::time::Duration;

use copyrpc_node::bootstrap::{
    JobId, Place, Secret,
    frame::Hello,
    hub::{Action, Hub, HubConfig, Outcome, PENDING_MAX},
};
use zerocopy::IntoBytes as _;

const SIZE: u32 = 3;

/// Bytes of one operation: what, on which connection, and how much.
const OP_BYTES: usize = 3;

pub(crate) fn check(mut bytes: &[u8]) {
    let job = JobId::new("job").expect("a name");
    let config = HubConfig {
        job: job.clone(),
        secret: Secret::from_bytes(b"nobody in here knows it"),
        size: SIZE,
        handshake_timeout: Duration::from_secs(1),
        exchange_timeout: Duration::from_secs(60),
        linger: Duration::from_secs(1),
        roster: None,
    };
    let mut hub = Hub::new(config, 0, || [7; 32]);
    let (mut now_ns, mut ids) = (0_u64, Vec::new());
    while let Some((&[what, whom, amount], rest)) = bytes.split_first_chunk::<OP_BYTES>() {
        bytes = rest;
        let id = ids.get(usize::from(whom) % ids.len().max(1)).copied().unwrap_or(0);
        match what % 6 {
            0 => ids.push(hub.handle_connection("stranger".into(), now_ns)),
            1 => {
                let (chunk, rest) = bytes.split_at(bytes.len().min(amount.into()));
                bytes = rest;
                hub.handle_bytes(id, chunk);
            }
            2 => {
                let place = Place::new(u32::from(amount) % SIZE, SIZE).expect("below the size");
                hub.handle_bytes(id, Hello::new(&job, place, [amount; 32]).as_bytes());
            }
            3 => hub.handle_closed(id),
            _ => {
                now_ns += u64::from(amount) * 10_000_000;
                hub.handle_timeout(now_ns);
            }
        }
        while let Some(action) = hub.poll_action() {
            if let Action::Send(_, bytes) = action {
                assert!(bytes.len() <= 520, "a stranger gets a challenge or a refusal");
            }
        }
        assert!(hub.connections() <= PENDING_MAX);
        assert_ne!(hub.outcome(), &Outcome::Complete);
        assert_eq!(hub.stats().joined, 0);
    }
}
