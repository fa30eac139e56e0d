//! Raises the events that programs read from descriptors: completions of armed queues, and what happens to objects.

use memory::sync::{AtomicU32, AtomicU64, Ordering};
use mlx5::device::{Device as _, DeviceCq as _};
use verbs::AsyncEvent;

use super::{Engine, objects::Cq};
use crate::condition::AdapterCondition;

/// `enum ib_event_type`
const QP_FATAL: u32 = 1;
const CQ_ERR: u32 = 0;
const SRQ_LIMIT_REACHED: u32 = 15;
const QP_LAST_WQE_REACHED: u32 = 16;
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
const GID_CHANGE: u32 = 18;

/// The port that an event is of.
const PORT: u64 = 1;

/// What no request looks like: the highest byte of one holds a number below 4 and a command of 0 or 1.
const NO_REQUEST: u32 = u32::MAX;

impl Cq {
    fn arm_record(&self) -> &AtomicU32 {
        let at = core::ptr::with_exposed_provenance::<AtomicU32>(self.arm_record);
        // SAFETY: the program's driver keeps the record until the queue is destroyed, and changes it as a word.
        unsafe { &*at }
    }

    /// Before the program knows the queue. Its first request may be a record of zero, which is what its driver has
    /// left there, and never reads: now it is something else.
    pub(crate) fn clear_request(&mut self) {
        self.arm_record().store(NO_REQUEST, Ordering::Relaxed);
        self.arm_seen = NO_REQUEST;
    }

    /// Arms the queue if its record says so anew.
    fn arm(&mut self) {
        if self.channel.is_none() {
            return;
        }
        let record = self.arm_record().load(Ordering::Acquire);
        if self.arm_seen != record {
            self.arm_seen = record;
            let request = u64::from(u32::from_be(record)) << 32;
            self.device.arm(request | u64::from(self.device.number().get()));
            self.is_armed = true;
        }
    }

    /// Reports an event that the queue has raised.
    fn report(&mut self) {
        let Some(channel) = &self.channel else { return };
        if self.is_armed && !self.device.is_armed() {
            self.is_armed = false;
            self.device.note_event();
            self.written.count(channel.write_completion(self.user_handle));
        }
    }
}

impl Engine {
    pub(super) fn raise_events(&mut self) {
        if self.take_arm_doorbells() {
            self.cqs.values_mut().for_each(Cq::arm);
        }
        self.cqs.values_mut().for_each(Cq::report);
        self.raise_limits();
        while let Some(event) = self.device.poll_event() {
            self.raise(event);
        }
    }

    /// Lets programs know what has become of the adapter. A kernel takes every object of a failed device away.
    pub(super) fn look_at_condition(&mut self) {
        let before = self.condition.now;
        let Some(now) = self.condition.changed() else { return };
        let (element, number) = match now {
            AdapterCondition::Down => (PORT, PORT_ERR),
            AdapterCondition::Gone => (0, DEVICE_FATAL),
            _ if before == AdapterCondition::Gone => return,
            _ if before == AdapterCondition::Down => (PORT, PORT_ACTIVE),
            _ => (PORT, GID_CHANGE),
        };
        for (context, it) in &self.contexts {
            if !self.dead.contains(context) {
                it.events.write_async(element, number);
            }
        }
        if now == AdapterCondition::Gone {
            let contexts: Vec<u32> = self.contexts.keys().copied().collect();
            for context in contexts {
                self.take_away(context);
                self.dead.insert(context);
            }
        }
    }

    /// Shared receive queues that have fewer receives than their programs want: once, until they ask again.
    fn raise_limits(&mut self) {
        for srq in self.srqs.values_mut().filter(|srq| srq.limit > 0) {
            if srq.device.waiting() < srq.limit
                && let Some(context) = self.contexts.get(&srq.context)
            {
                srq.limit = 0;
                let was_written = context.events.write_async(srq.user_handle, SRQ_LIMIT_REACHED);
                srq.written.count(was_written);
            }
        }
    }

    /// Whether a completion queue's doorbell was rung: all of them share a register in each page.
    fn take_arm_doorbells(&self) -> bool {
        const ARM_OFFSET: usize = 0x20;
        let rung = |region: &memory::Region| {
            let at = region.as_ptr().as_ptr().wrapping_add(ARM_OFFSET).cast::<u64>();
            // SAFETY: in the region, aligned; program and engine access it as a word.
            let register = unsafe { AtomicU64::from_ptr(at) };
            register.load(Ordering::Relaxed) != 0 && register.swap(0, Ordering::AcqRel) != 0
        };
        self.doorbells.iter().filter(|region| rung(region)).count() > 0
    }

    fn raise(&mut self, event: AsyncEvent) {
        let (qpn, number) = match event {
            AsyncEvent::QpFatal(qpn) => (qpn, QP_FATAL),
            AsyncEvent::LastWqeReached(qpn) => (qpn, QP_LAST_WQE_REACHED),
            AsyncEvent::CqOverrun(cqn) => {
                self.tell_overrun(cqn.get());
                let cq = self.cqs.values_mut().find(|cq| cq.device.number() == cqn);
                if let Some(cq) = cq
                    && let Some(context) = self.contexts.get(&cq.context)
                {
                    let name = cq.user_handle;
                    cq.written_async.count(context.events.write_async(name, CQ_ERR));
                }
                return;
            }
            _ => return,
        };
        let qp = self.qps.values_mut().find(|qp| qp.device.number() == qpn);
        if let Some(qp) = qp
            && let Some(context) = self.contexts.get(&qp.context)
        {
            qp.written.count(context.events.write_async(qp.user_handle, number));
        }
    }
}
