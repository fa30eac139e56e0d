//! Work requests.

use ids::{Lkey, Rkey};

use crate::Destination;

/// Local memory: one scatter or gather entry. Entries of length zero are allowed and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address in the owner's address space.
    pub addr: u64,
    /// Below 2 GiB.
    pub len_bytes: u32,
    /// Key of the region that contains it.
    pub lkey: Lkey,
}

/// Start of remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    /// Address in the *owner's* address space.
    pub addr: u64,
    /// Key of the region that contains it.
    pub rkey: Rkey,
}

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// The NIC fetches them after the doorbell; they must not change before the completion.
    Gather(&'a [Sge]),
    /// Copied into the WQE, one after another, while posting; free for reuse at once.
    Inline(&'a [&'a [u8]]),
}

/// The operation.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Message into the peer's next receive.
    Send {
        /// The message.
        payload: Payload<'a>,
        /// Immediate data, host order.
        imm: Option<u32>,
    },
    /// Bytes into remote memory; with immediate data it also consumes a receive at the peer.
    Write {
        /// The remote memory to write to.
        remote: RemoteSlice,
        /// Bytes to write.
        payload: Payload<'a>,
        /// Immediate data, host order.
        imm: Option<u32>,
    },
    /// Bytes from remote memory.
    Read {
        /// The remote memory to read from.
        remote: RemoteSlice,
        /// The local memory to read into; the sum of its lengths is read.
        into: &'a [Sge],
    },
    /// `*remote = swap if *remote == compare`. The old value lands in host order.
    CompareSwap {
        /// 8-byte aligned.
        remote: RemoteSlice,
        /// 8 bytes.
        into: Sge,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// `*remote += add`. The old value lands in host order.
    FetchAdd {
        /// 8-byte aligned.
        remote: RemoteSlice,
        /// 8 bytes.
        into: Sge,
        /// Addend, wrapping.
        add: u64,
    },
    /// Nothing, in order. On queue pairs other than RC it needs
    /// [`Capabilities::NOP`](crate::Capabilities::NOP): a NIC that has no such operation sends a WRITE of
    /// zero bytes on RC.
    Nop,
}

bitflags::bitflags! {
    /// Flags of a send request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// Report a completion even when it works. (Failures are always reported, and a queue
        /// signals by itself before unsignaled requests fill half of it.)
        const SIGNALED = 1;
        /// Wake a receiver that waits for solicited completions only.
        const SOLICITED = 1 << 1;
        /// Start only when all earlier READs and atomics of this queue pair are complete.
        const FENCE = 1 << 2;
    }
}

/// One send-side work request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The operation.
    pub op: Op<'a>,
    /// Flags of the request: signaled, solicited, fenced.
    pub flags: SendFlags,
    /// The destination: required for UD and DCI, absent for RC.
    pub to: Option<&'a Destination>,
}

impl<'a> SendRequest<'a> {
    /// A request on a connected queue pair that reports its completion.
    #[must_use]
    pub const fn signaled(op: Op<'a>) -> Self {
        Self { op, flags: SendFlags::SIGNALED, to: None }
    }

    /// A request on a connected queue pair that reports only failure.
    #[must_use]
    pub const fn unsignaled(op: Op<'a>) -> Self {
        Self { op, flags: SendFlags::empty(), to: None }
    }

    /// The same request to `to`.
    #[must_use]
    pub const fn to(mut self, to: &'a Destination) -> Self {
        self.to = Some(to);
        self
    }

    /// The same request with more flags.
    #[must_use]
    pub const fn with(mut self, flags: SendFlags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }
}

/// The completions that make a channel readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arm {
    /// The next one.
    Next,
    /// The next one whose sender asked for it, or that failed.
    Solicited,
}
