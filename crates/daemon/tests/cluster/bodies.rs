//! What the tests of long bodies share: two nodes, and bytes to tell parts apart.

use std::time::Duration;

use crate::rig::Cluster;

/// What a thread copies in one turn.
pub(crate) const PIECE_BYTES: usize = 128 << 10;
/// Long enough for every call.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Clusters of two nodes, of one thread and of two, which take bodies of so many bytes.
pub(crate) fn each_of_two(name: &str, body_bytes_max: usize) -> impl Iterator<Item = Cluster> {
    Cluster::each(name, 2).map(move |mut cluster| {
        cluster.body_bytes_max = u32::try_from(body_bytes_max).unwrap();
        start_all(&mut cluster, 200);
        cluster
    })
}

pub(crate) fn start_all(cluster: &mut Cluster, epoch: u64) {
    (0..2).for_each(|rank| cluster.start(rank, epoch));
    cluster.wait_all_up();
}

/// No two parts that are copied at a time are alike.
pub(crate) fn body(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at ^ (at >> 9)).to_le_bytes()[0]).collect()
}
