//! Which cores the processes of a node may use.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::words::words;

words! {
    /// Placement of threads on cores.
    Pin, "placement" {
        /// Wherever the kernel puts them.
        None = "none",
        /// The cores are dealt out among the nodes; a node's threads stay on its share.
        Node = "node",
    }
}

impl Pin {
    /// The cores of `rank`; empty: all that are allowed.
    #[must_use]
    pub(crate) fn cores_of(self, rank: u16, ranks: u16, allowed: &[usize]) -> Vec<usize> {
        let (rank, ranks) = (usize::from(rank), usize::from(ranks));
        match self {
            Self::None => Vec::new(),
            // Another host has named none.
            Self::Node if allowed.is_empty() => Vec::new(),
            // More nodes than cores: they take turns.
            Self::Node if allowed.len() < ranks => vec![allowed[rank % allowed.len()]],
            Self::Node => {
                let share = rank * allowed.len() / ranks..(rank + 1) * allowed.len() / ranks;
                allowed[share].to_vec()
            }
        }
    }
}

/// Keeps the calling thread, and those that it starts, on these cores.
pub(crate) fn pin_to(cores: &[usize]) -> io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut mask = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        mask.set(core);
    }
    Ok(sched_setaffinity(None, &mask)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_dealt_out_among_nodes() {
        let deal = |ranks: u16, allowed: &[usize]| {
            (0..ranks).map(|rank| Pin::Node.cores_of(rank, ranks, allowed)).collect::<Vec<_>>()
        };
        assert_eq!(deal(2, &[0, 1]), [[0], [1]]);
        assert_eq!(deal(2, &[0, 2, 4, 6, 8]), [vec![0, 2], vec![4, 6, 8]]);
        assert_eq!(deal(3, &[5, 7]), [[5], [7], [5]]);
        assert!(Pin::None.cores_of(0, 2, &[0, 1]).is_empty());
    }

    #[test]
    fn a_pinned_thread_stays() {
        std::thread::spawn(|| {
            let core = os::affinity::allowed_cores().unwrap()[0];
            pin_to(&[core]).unwrap();
            assert_eq!(os::affinity::allowed_cores().unwrap(), [core]);
        })
        .join()
        .unwrap();
    }
}
