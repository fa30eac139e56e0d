//! Memory of clients that is to be registered. Processes take turns by bytes, so that the region of one does not wait
//! for all regions of another.
//!
//! A NIC registers in the order in which it is asked, and a kernel takes seconds for gibibytes. So it is asked for one
//! long region at a time, or for as many short ones as take no longer than the daemon's next look.

use std::os::fd::OwnedFd;

use ids::slots::{Key, SlotTable};
use rpc::{LocalRegion, Status};
use verbs::{MemoryError, Nic, Registration};

use super::{
    Turn,
    regions::{Regions, Reserved, status_of},
};
use crate::{
    client_port::ClientPort,
    fair_queue::{FairQueue, NextTurn, QUANTUM_BYTES},
    limits::Wheel,
    process_regions::Maker,
};

/// Time between two looks of a daemon without other work at memory that is being registered.
const LOOK_NS: u64 = 1_000_000;

/// Bytes that a NIC is asked to register at a time, if that is more than one region.
const BEGUN_BYTES_MAX: u64 = 4 << 20;

/// A unit in which the turns of processes count: in its turn a process gets as much as the NIC is asked for at a time.
const TURN_UNIT_BYTES: u64 = BEGUN_BYTES_MAX / QUANTUM_BYTES as u64;

/// Units of a region at most, 16 GiB: a look for the next region goes round once per turn of it.
const TURN_UNITS_MAX: u64 = (16 << 30) / TURN_UNIT_BYTES;

/// A client's call to register memory.
struct AskedRegion<P: ClientPort> {
    /// `None`: the client was answered, or is gone.
    reply_to: Option<P::ReplyTo>,
    reserved: Reserved<P::Client>,
    /// `None`: the NIC has it.
    fd: Option<OwnedFd>,
}

/// What the NIC is at.
struct Begun<N: Nic> {
    key: Key,
    registration: Registration<LocalRegion<N>>,
}

/// The registrations of all clients of a thread that have not ended.
pub(super) struct Registrations<N: Nic, P: ClientPort> {
    asked: SlotTable<AskedRegion<P>>,
    deadlines: Wheel,
    /// Those of `asked` that the NIC was not asked for.
    waiting: FairQueue<Maker, Key>,
    /// The others, oldest first.
    begun: Vec<Begun<N>>,
    begun_bytes: u64,
    /// Time of the next look at them; `u64::MAX`: there is none.
    look_ns: u64,
}

impl<N: Nic, P: ClientPort> Default for Registrations<N, P> {
    fn default() -> Self {
        Self {
            asked: SlotTable::default(),
            deadlines: Wheel::default(),
            waiting: FairQueue::default(),
            begun: Vec::new(),
            begun_bytes: 0,
            look_ns: u64::MAX,
        }
    }
}

impl<N: Nic, P: ClientPort> Registrations<N, P> {
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Time of the next look; `u64::MAX` if there is none.
    pub(super) fn look_ns(&self) -> u64 {
        self.look_ns
    }

    /// Adds a call of a client, which is answered at `deadline_ns` at the latest. The share comes back if there is no
    /// room for the call.
    pub(super) fn add(
        &mut self,
        reply_to: P::ReplyTo,
        deadline_ns: u64,
        reserved: Reserved<P::Client>,
        fd: OwnedFd,
    ) -> Result<(), Reserved<P::Client>> {
        let maker = reserved.maker();
        let units = (reserved.len_bytes() / TURN_UNIT_BYTES).clamp(1, TURN_UNITS_MAX);
        let asked = AskedRegion { reply_to: Some(reply_to), reserved, fd: Some(fd) };
        let key = self.asked.insert(asked).map_err(|asked| asked.reserved)?;
        self.deadlines.add(deadline_ns, key);
        self.waiting.push(maker, usize::try_from(units).unwrap_or(usize::MAX), key);
        Ok(())
    }

    /// Answers clients whose memory is registered by now, and has the NIC begin with the next. Returns how many
    /// registrations ended.
    pub(super) fn advance(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        regions: &mut Regions<N, P::Client>,
    ) -> usize {
        let mut ended = 0;
        loop {
            ended += self.end(turn, regions);
            if !self.begin(turn) {
                break;
            }
        }
        self.look_ns = if self.is_empty() { u64::MAX } else { turn.now_ns() + LOOK_NS };
        ended
    }

    /// Asks the NIC for the next regions; returns whether for any.
    fn begin(&mut self, turn: &mut Turn<'_, N, P>) -> bool {
        let mut has_begun = false;
        while self.begun.is_empty() || self.begun_bytes < BEGUN_BYTES_MAX {
            let Some((maker, units, key)) = self.waiting.pop() else { break };
            let Some(asked) = self.asked.get_mut(key) else { continue };
            let len_bytes = asked.reserved.len_bytes();
            if !self.begun.is_empty() && self.begun_bytes + len_bytes > BEGUN_BYTES_MAX {
                self.waiting.put_back(maker, units, key, NextTurn::Own);
                break;
            }
            let Some(fd) = asked.fd.take() else { continue };
            let registration = match usize::try_from(len_bytes) {
                Ok(len) => turn.worker.begin_expose_memfd(fd, len),
                Err(_) => Registration::ended(Err(MemoryError::Length {
                    len_bytes,
                    max_bytes: usize::MAX as u64,
                })),
            };
            self.begun_bytes += len_bytes;
            self.begun.push(Begun { key, registration });
            has_begun = true;
        }
        has_begun
    }

    /// Ends what the NIC has done. Memory whose client waits no longer is given back.
    fn end(&mut self, turn: &mut Turn<'_, N, P>, regions: &mut Regions<N, P::Client>) -> usize {
        let Self { asked, begun, begun_bytes, .. } = self;
        let before = begun.len();
        begun.retain_mut(|begun| {
            let Some(result) = begun.registration.poll() else { return true };
            let Some(AskedRegion { reply_to, reserved, .. }) = asked.remove(begun.key) else {
                unreachable!("a region that the NIC is at is not removed before")
            };
            *begun_bytes -= reserved.len_bytes();
            let Some(to) = reply_to.filter(|to| turn.port.is_there(P::client_of(*to))) else {
                regions.release(reserved);
                return false;
            };
            let made = result.map_err(|error| {
                tracing::warn!(%error, "memory of a process is not registered");
                status_of(&error)
            });
            match regions.insert(reserved, made) {
                Ok(key) => turn.reply(to, Status::Ok, &key.to_u64().to_le_bytes()),
                Err(status) => turn.reply(to, status, &[]),
            }
            false
        });
        before - self.begun.len()
    }

    /// Answers the calls whose deadline has passed.
    pub(super) fn expire(
        &mut self,
        turn: &mut Turn<'_, N, P>,
        regions: &mut Regions<N, P::Client>,
    ) {
        let Self { asked, deadlines, .. } = self;
        let due = deadlines.take_due(turn.now_ns(), |key| asked.get(key).is_some());
        for key in due {
            if let Some(to) = self.give_up(key, regions) {
                turn.reply(to, Status::DeadlineExceeded, &[]);
            }
        }
    }

    /// Nobody waits for the regions of clients that are gone.
    pub(super) fn retain(
        &mut self,
        regions: &mut Regions<N, P::Client>,
        is_there: impl Fn(P::Client) -> bool,
    ) {
        let is_gone = |asked: &AskedRegion<P>| !is_there(asked.reserved.client());
        let gone = self.asked.iter().filter(|(_, asked)| is_gone(asked)).map(|(key, _)| key);
        for key in gone.collect::<Vec<_>>() {
            self.give_up(key, regions);
        }
    }

    /// A call is given up: the NIC is not asked for its region, or gives it back. Returns the address of its answer.
    fn give_up(&mut self, key: Key, regions: &mut Regions<N, P::Client>) -> Option<P::ReplyTo> {
        let call = self.asked.get_mut(key)?;
        let reply_to = call.reply_to.take();
        if call.fd.is_some() {
            if let Some(call) = self.asked.remove(key) {
                regions.release(call.reserved);
            }
            let Self { asked, waiting, .. } = self;
            waiting.mark_dead(|key| asked.get(*key).is_some(), |_, _| {});
        }
        reply_to
    }
}
