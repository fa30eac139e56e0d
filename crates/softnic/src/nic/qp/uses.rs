//! How many threads a queue pair may bring into its queues.

use memory::sync::Arc;
use verbs::{CreateError, Transport};

use super::QpQueues;
use crate::nic::objects::{CqShared, RqShared};

/// What a queue pair adds to the users of its queues; taken back on drop.
#[derive(Debug)]
pub(super) struct Uses {
    cqs: [(Arc<CqShared>, usize); 2],
    rq: Option<(Arc<RqShared>, usize)>,
}

impl Uses {
    pub(super) fn add(request: &QpQueues, rq: Option<&Arc<RqShared>>) -> Result<Self, CreateError> {
        // A connected queue pair hears one peer; others hear any number.
        let receivers = match request.transport {
            Transport::Rc => 1,
            Transport::Ud | Transport::Dct => 2,
            Transport::Dci => 0,
        };
        let senders = usize::from(request.log_send_blocks.is_some());
        let cqs = [&request.send_cq, &request.recv_cq].map(|cq| (cq.clone(), 0));
        let mut uses = Self { cqs, rq: rq.map(|rq| (rq.clone(), 0)) };
        for ((cq, counted), count) in uses.cqs.iter_mut().zip([senders, receivers]) {
            cq.add_producers(count)?;
            *counted = count;
        }
        if let Some((rq, counted)) = &mut uses.rq {
            rq.add_takers(receivers)?;
            *counted = receivers;
        }
        Ok(uses)
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        for (cq, count) in &self.cqs {
            cq.remove_producers(*count);
        }
        if let Some((rq, count)) = &self.rq {
            rq.remove_takers(*count);
        }
    }
}
