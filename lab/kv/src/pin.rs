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
        /// As `node`, and each serving thread of a node has a core of its share for itself, if there is one left for
        /// clients.
        Apart = "apart",
    }
}

/// The threads of a node that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The serving threads from the first to this number, exclusive, of all.
    Serving {
        /// Number of the first.
        first: usize,
        /// Number of threads.
        count: usize,
    },
    /// Threads that call.
    Calling,
}

impl Pin {
    /// The cores of a part of `rank`, whose node has `serving` serving threads; empty: all that are allowed.
    #[must_use]
    pub(crate) fn cores_of(
        self,
        (rank, ranks): (u16, u16),
        allowed: &[usize],
        part: Part,
        serving: usize,
    ) -> Vec<usize> {
        let cores = self.share_of(rank, ranks, allowed);
        if self != Self::Apart || cores.len() <= serving {
            return cores;
        }
        match part {
            Part::Serving { first, count } => cores[first..first + count].to_vec(),
            Part::Calling => cores[serving..].to_vec(),
        }
    }

    /// The cores of a node.
    fn share_of(self, rank: u16, ranks: u16, allowed: &[usize]) -> Vec<usize> {
        let (rank, ranks) = (usize::from(rank), usize::from(ranks));
        match self {
            Self::None => Vec::new(),
            // Another host has named none.
            Self::Node | Self::Apart if allowed.is_empty() => Vec::new(),
            // More nodes than cores: they take turns.
            Self::Node | Self::Apart if allowed.len() < ranks => {
                vec![allowed[rank % allowed.len()]]
            }
            Self::Node | Self::Apart => {
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
            let share = |rank| Pin::Node.cores_of((rank, ranks), allowed, Part::Calling, 1);
            (0..ranks).map(share).collect::<Vec<_>>()
        };
        assert_eq!(deal(2, &[0, 1]), [[0], [1]]);
        assert_eq!(deal(2, &[0, 2, 4, 6, 8]), [vec![0, 2], vec![4, 6, 8]]);
        assert_eq!(deal(3, &[5, 7]), [[5], [7], [5]]);
        assert!(Pin::None.cores_of((0, 2), &[0, 1], Part::Calling, 1).is_empty());
    }

    #[test]
    fn serving_threads_have_cores_that_no_client_has_if_there_are_enough() {
        let of = |allowed: &[usize], part| Pin::Apart.cores_of((1, 2), allowed, part, 3);
        let eight = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(of(&eight, Part::Serving { first: 0, count: 2 }), [4, 5]);
        assert_eq!(of(&eight, Part::Serving { first: 2, count: 1 }), [6]);
        assert_eq!(of(&eight, Part::Calling), [7]);
        let few = [0, 1, 2, 3, 4, 5];
        assert_eq!(of(&few, Part::Serving { first: 0, count: 2 }), [3, 4, 5]);
        assert_eq!(of(&few, Part::Calling), [3, 4, 5]);
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
