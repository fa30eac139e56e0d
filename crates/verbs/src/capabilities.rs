//! Capabilities of a NIC beyond reliable connections.

bitflags::bitflags! {
    /// Capabilities of a NIC beyond reliable connections with SEND, WRITE, READ and their completions, and
    /// which promises of these traits it keeps although the specification leaves them open.
    ///
    /// A protocol that wants more than the empty set asks [`NicAttributes`](crate::NicAttributes) first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// UD queue pairs.
        const UD = 1;
        /// DC initiators and targets.
        const DC = 1 << 1;
        /// Shared receive queues.
        const SRQ = 1 << 2;
        /// 8-byte atomics.
        const ATOMICS = 1 << 3;
        /// [`Completion::solicited`](crate::Completion::solicited) tells what the sender asked for.
        /// [`Arm::Solicited`](crate::Arm::Solicited) needs no capability.
        const SOLICITED = 1 << 4;
        /// [`Op::Nop`](crate::Op::Nop) on queue pairs other than RC.
        const NOP = 1 << 5;
        /// The bytes of a WRITE become visible in ascending order, so its last word can be polled.
        const ORDERED_PLACEMENT = 1 << 6;
        /// An overrun of a completion queue is reported as an
        /// [event](crate::AsyncEvent::CqOverrun).
        const CQ_OVERRUN_EVENT = 1 << 7;
        /// State SQD.
        const SQD = 1 << 8;
        /// [`Nic::create_qp`](crate::Nic::create_qp) refuses queues whose completions might not fit their
        /// completion queue.
        const CQ_ACCOUNTING = 1 << 9;
        /// A queue pair reaches another one of the same NIC.
        const LOOPBACK = 1 << 10;
        /// A responder whose queue pair is denied an access goes to ERR itself.
        const RESPONDER_ERR = 1 << 11;
        /// The NIC tells by [`AsyncEvent::PeerGone`](crate::AsyncEvent::PeerGone) that a peer's process or
        /// node is gone.
        const PEER_GONE_EVENT = 1 << 12;
    }
}
