//! One READ or atomic at a time: the target's CPU takes no part.

use serde::{Deserialize, Serialize};
use verbs::{MemoryRegion as _, Nic, Op};

use super::{
    link::{self, Link, TARGET_OFFSET},
    payload::WORD_BYTES,
};
use crate::{error::Error, sample::SamplePlan, shared_words::SharedWords, stats::Laps};

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
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        let mut patience = shared.patience(link::PATIENCE);
        let batch = sample.batch();
        let mut laps = Laps::start();
        for index in 0..sample.count {
            link.region.write(0, &[0; WORD_BYTES]);
            let wqe = self.post(link, sample, index)?;
            link.ring_send();
            link.wait_sent(wqe, &mut patience)?;
            check(index, "old value", link.region.load_u64(0), self.value(sample, index))?;
            if (index + 1).is_multiple_of(batch) {
                laps.lap(batch);
            }
        }
        Ok(laps.median_ns())
    }

    /// What the target holds before operation `index`.
    fn value(self, sample: &SamplePlan, index: u64) -> u64 {
        match self {
            Self::Read => sample.sequence(0),
            Self::FetchAdd | Self::CompareSwap => sample.sequence(index),
        }
    }

    fn post<N: Nic>(
        self,
        link: &mut Link<N>,
        sample: &SamplePlan,
        index: u64,
    ) -> Result<u16, Error> {
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

    pub(super) fn prepare_target<N: Nic>(self, link: &mut Link<N>, sample: &SamplePlan) {
        link.region.write(TARGET_OFFSET, &self.value(sample, 0).to_ne_bytes());
    }

    pub(super) fn verify_target<N: Nic>(
        self,
        link: &Link<N>,
        sample: &SamplePlan,
    ) -> Result<(), Error> {
        let found = link.region.load_u64(TARGET_OFFSET);
        check(sample.count, "final value", found, self.value(sample, sample.count))
    }
}

fn check(index: u64, what: &'static str, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Wrong { index, what, found, expected }) }
}
