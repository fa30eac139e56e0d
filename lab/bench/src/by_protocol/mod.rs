//! Calls between two processes over copyrpc, eRPC or ScaleRPC, with every answer checked.
//!
//! ```text
//! initiator                                responder
//!   lane 0 … n, depth calls in flight ──▶  answers each with its body, the first word inverted
//!   compares every byte, calls again  ◀──
//! ```
//!
//! Caller and server are the same for all protocols, and each sample has a caller and a server of its own.

mod program;

use memory::sync::Ordering;
use os::{child::from_json, clock::PollClock};
use protocols::{Caller, Config, OpenError, Protocol, Server};
use serde::{Deserialize, Serialize};
use verbs::Nic;

use self::program::{Client, Echo};
use crate::{
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{self, SharedWord, SharedWords},
    traffic::link::PATIENCE,
};

/// Polls between two looks at the shared words.
const POLLS_PER_LOOK: u32 = 64;
/// Lanes beyond which copyrpc's rings have 32 KiB instead of 256.
const LANES_LARGE_RINGS: u16 = 16;
/// Longest block of ScaleRPC for short messages.
const BLOCK_BYTES: usize = 4096;
/// Memory of a pool of ScaleRPC, at most, unless one zone takes more.
const POOL_BYTES: usize = 32 << 20;

/// What is called, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolCalls {
    /// What carries the calls.
    pub protocol: Protocol,
    /// Connections between the two sides.
    pub lanes: u16,
    /// Calls in flight, over all lanes. One: the result is ns per round trip; more: millions of calls per
    /// second.
    pub depth: u16,
    /// Of the body of each call, and of its answer. At least 8.
    pub len_bytes: usize,
    /// What is set about ScaleRPC.
    pub scalerpc: ScalerpcSettings,
}

/// What can be set about ScaleRPC; `None`: what makes the calls possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalerpcSettings {
    /// Clients of a group.
    pub group: Option<u16>,
    /// Turn of a group.
    pub turn_ns: Option<u64>,
    /// Blocks of a client's zone.
    pub slots: Option<u8>,
    /// Bytes of a block; longer if the body is.
    pub block_bytes: Option<u32>,
}

impl ProtocolCalls {
    /// Calls in flight per lane.
    fn lane_depth(&self) -> u16 {
        self.depth.div_ceil(self.lanes.max(1))
    }

    /// Settings of each protocol that make these calls possible; otherwise its defaults.
    fn config(&self) -> Config {
        let mut config = Config { protocol: self.protocol, ..Config::default() };
        let large = self.len_bytes.next_power_of_two().max(1 << 20);
        config.copyrpc.peers_max = self.lanes.max(config.copyrpc.peers_max);
        config.copyrpc.large_bytes = u32::try_from(large).unwrap_or(u32::MAX);
        config.copyrpc.large_memory_bytes = 4 * large;
        if self.lanes > LANES_LARGE_RINGS {
            config.copyrpc.ring_bytes = 1 << 15;
            config.copyrpc.response_bytes = 1 << 14;
            config.copyrpc.batch_bytes = 1 << 12;
        }
        config.erpc.sessions_max = self.lanes.max(config.erpc.sessions_max);
        // A machine that runs other programs, too, may not let the server run for long.
        config.erpc.failure_after = shared_words::PATIENCE;
        // As many as sessions have credits: each receive is memory that a packet touches in turn.
        config.erpc.receives = (self.lanes.saturating_mul(32)).clamp(256, 4096);
        let scalerpc = &mut config.scalerpc;
        let set = &self.scalerpc;
        let slots = u8::try_from(self.lane_depth()).unwrap_or(u8::MAX).clamp(1, 64);
        scalerpc.slots = set.slots.unwrap_or(slots);
        let block_min = set.block_bytes.map_or(BLOCK_BYTES, |bytes| bytes as usize);
        let block = (self.len_bytes + 16).next_multiple_of(64).max(block_min);
        scalerpc.block_bytes = u32::try_from(block).unwrap_or(u32::MAX);
        scalerpc.clients_max = self.lanes;
        let zones = POOL_BYTES / (block * usize::from(scalerpc.slots));
        let group = u16::try_from(zones * 2 / 3).unwrap_or(u16::MAX);
        scalerpc.group = set.group.unwrap_or(group.clamp(1, scalerpc.group));
        scalerpc.slice = set.turn_ns.map_or(scalerpc.slice, std::time::Duration::from_nanos);
        config
    }
}

/// A caller or a server, opened for one sample.
pub(crate) enum ProtocolSide<N: Nic> {
    /// Of the initiator.
    Caller(Box<Caller<N>>),
    /// Of the responder.
    Server(Box<Server<N>>),
}

fn refused(error: OpenError) -> Error {
    Error::refused("cannot open or connect a protocol")(error.to_string())
}

fn to_text(told: Vec<Vec<u8>>) -> Result<Vec<String>, Error> {
    Ok(told.iter().map(serde_json::to_string).collect::<Result<_, _>>()?)
}

fn from_text(theirs: &[String]) -> Result<Vec<Vec<u8>>, Error> {
    Ok(theirs.iter().map(|text| from_json(text)).collect::<Result<_, _>>()?)
}

impl<N: Nic> ProtocolSide<N> {
    /// The caller, and what the server must be told.
    pub(crate) fn open(nic: N, calls: &ProtocolCalls) -> Result<(Self, Vec<String>), Error> {
        let now_ns = os::clock::now_ns();
        let caller = Caller::open(nic, &calls.config(), calls.lanes, now_ns).map_err(refused)?;
        let told = to_text(caller.greetings())?;
        Ok((Self::Caller(Box::new(caller)), told))
    }

    /// The server, and what the caller must be told.
    pub(crate) fn accept(
        nic: N,
        calls: &ProtocolCalls,
        theirs: &[String],
    ) -> Result<(Self, Vec<String>), Error> {
        let mut server =
            Server::open(nic, &calls.config(), os::clock::now_ns()).map_err(refused)?;
        let greetings = from_text(theirs)?;
        let answers = greetings.iter().map(|greeting| server.accept(greeting));
        let told = to_text(answers.collect::<Result<_, _>>().map_err(refused)?)?;
        Ok((Self::Server(Box::new(server)), told))
    }

    /// Connects the caller.
    pub(crate) fn connect(&mut self, theirs: &[String]) -> Result<(), Error> {
        let Self::Caller(caller) = self else { return Err(Error::NoNic) };
        caller.connect(&from_text(theirs)?).map_err(refused)
    }

    /// Runs the timed side of `sample`, after the other side is ready.
    pub(crate) fn initiate(
        self,
        calls: &ProtocolCalls,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        let Self::Caller(mut caller) = self else { return Err(Error::NoNic) };
        let mut client = Client::new(*calls, sample);
        let (mut clock, mut patience) = (PollClock::new(), shared.patience(PATIENCE));
        while !client.is_finished() {
            let work = caller.poll(clock.now_ns(), &mut client);
            if caller.is_connected() {
                client.call(&mut caller)?;
            }
            if let Some(failure) = client.failure.take() {
                return Err(failure);
            }
            if work == 0 {
                patience.wait()?;
            } else {
                patience.progress();
            }
        }
        // SYNC(protocol-done): pairs with the Acquire in `respond`, in the other process.
        shared.word(SharedWord::InitiatorDone).store(sample.number, Ordering::Release);
        // SYNC(protocol-done): pairs with the Release in `respond`, in the other process.
        while shared.word(SharedWord::ResponderDone).load(Ordering::Acquire) != sample.number {
            caller.poll(clock.now_ns(), &mut client);
            patience.wait()?;
        }
        Ok(client.value())
    }

    /// Answers until the other side has finished; calls `ready` when the initiator may begin.
    pub(crate) fn respond(
        self,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let Self::Server(mut server) = self else { return Err(Error::NoNic) };
        let mut echo = Echo::default();
        let (mut clock, mut patience) = (PollClock::new(), shared.patience(PATIENCE));
        ready()?;
        // SYNC(protocol-done): pairs with the Release in `initiate`, in the other process.
        while shared.word(SharedWord::InitiatorDone).load(Ordering::Acquire) != sample.number {
            for _ in 0..POLLS_PER_LOOK {
                if server.poll(clock.now_ns(), &mut echo) == 0 {
                    patience.wait()?;
                } else {
                    patience.progress();
                }
            }
            if let Some(failure) = echo.failure.take() {
                return Err(failure);
            }
        }
        // SYNC(protocol-done): pairs with the Acquire in `initiate`, in the other process.
        shared.word(SharedWord::ResponderDone).store(sample.number, Ordering::Release);
        Ok(())
    }
}
