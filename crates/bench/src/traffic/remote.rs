//! One READ or atomic at a time: the target's CPU takes no part.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op};

use crate::{
    board::Board,
    duo::DuoError,
    stats,
    traffic::{
        BATCH, Sample, TrafficError,
        link::{self, Link, TARGET_OFFSET},
        payload::WORD_BYTES,
    },
};

/// An operation on 8 bytes at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remote {
    /// READ of a constant.
    Read,
    /// Fetch-and-add of 1.
    FetchAdd,
    /// Compare-and-swap to the next number; always succeeds.
    CompareSwap,
}

impl Remote {
    /// Median batch, in ns per operation.
    pub(crate) fn initiate<N: Nic>(
        self,
        link: &mut Link<N>,
        board: &Board,
        sample: &Sample,
    ) -> Result<f64, TrafficError> {
        let mut patience = board.patience(link::PATIENCE);
        let mut batches = Vec::new();
        let mut last = Instant::now();
        for index in 0..sample.count {
            link.region.write(0, &[0; WORD_BYTES]);
            let wqe = self.post(link, sample, index)?;
            link.ring_send();
            link.wait_sent(wqe, &mut patience)?;
            let (found, expected) = (link.region.load_u64(0), self.value(sample, index));
            if found != expected {
                let what = "old value";
                return Err(TrafficError::WrongMessage { index, what, found, expected });
            }
            if index % BATCH == BATCH - 1 {
                let now = Instant::now();
                batches.push((now - last).as_secs_f64() * 1e9 / BATCH as f64);
                last = now;
            }
        }
        Ok(stats::median(&mut batches))
    }

    /// What the target holds before operation `index`.
    fn value(self, sample: &Sample, index: u64) -> u64 {
        match self {
            Self::Read => sample.sequence(0),
            Self::FetchAdd | Self::CompareSwap => sample.sequence(index),
        }
    }

    fn post<N: Nic>(
        self,
        link: &mut Link<N>,
        sample: &Sample,
        index: u64,
    ) -> Result<u16, TrafficError> {
        let remote = link.remote(TARGET_OFFSET);
        let into = link.region.sge(0, WORD_BYTES);
        let scatter = [into];
        let op = match self {
            Self::Read => Op::Read { remote, into: &scatter },
            Self::FetchAdd => Op::FetchAdd { remote, into, add: 1 },
            Self::CompareSwap => Op::CompareSwap {
                remote,
                into,
                compare: self.value(sample, index),
                swap: self.value(sample, index + 1),
            },
        };
        link.post(op, true)
    }

    pub(crate) fn prepare_target<N: Nic>(
        self,
        link: &mut Link<N>,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        link.region.write(TARGET_OFFSET, &self.value(sample, 0).to_ne_bytes());
        Ok(ready()?)
    }

    pub(crate) fn verify_target<N: Nic>(
        self,
        link: &Link<N>,
        sample: &Sample,
    ) -> Result<(), TrafficError> {
        let (found, expected) =
            (link.region.load_u64(TARGET_OFFSET), self.value(sample, sample.count));
        if found == expected {
            Ok(())
        } else {
            let (index, what) = (sample.count, "final value");
            Err(TrafficError::WrongMessage { index, what, found, expected })
        }
    }
}
