//! The set of counters: each named once, and in this order in the file.

/// The kind of a number: total or gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// A total: it only grows.
    Total,
    /// A gauge: it shows what there is now.
    Gauge,
}

macro_rules! numbered {
    (
        $(#[$outer:meta])*
        $name:ident {
            $($variant:ident = $text:literal, $help:literal;)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $help] $variant,)*
        }

        impl $name {
            /// All, in the order of the file.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in tables, JSON and Prometheus.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The meaning.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$variant => $help,)*
                }
            }
        }
    };
}

numbered! {
    /// Numbers that a daemon counts.
    Counter {
        Loops = "loops", "Turns of the loop.";
        BusyLoops = "busy_loops", "Turns of the loop that found something to do.";
        RequestsIpc = "requests_ipc", "Requests taken from clients of this node.";
        RequestsLocal = "requests_local", "Requests for a service of this node: of these, and those that went without the daemon.";
        RequestsRemote = "requests_remote", "Of these, requests for a service of another node.";
        Responses = "responses", "Responses from other nodes.";
        Incoming = "incoming", "Requests from other nodes.";
        Replies = "replies", "Answers given to clients of this node, with or without success.";
        Flushes = "flushes", "Batches posted to the NIC.";
        BatchesIn = "batches_in", "Batches of other nodes.";
        Credits = "credits", "Times that credit was written beside another node's ring, for want of a batch to ride on.";
        ReplyHolds = "reply_holds", "Times that answers which had waited for each other went to clients.";
        RingFull = "ring_full", "Times that a send ring had no room for a message.";
        CqPolls = "cq_polls", "Completion queue polls that found something.";
        Completions = "completions", "Completions.";
        BytesOut = "bytes_out", "Bytes of bodies of requests and responses sent to other nodes.";
        BytesIn = "bytes_in", "Bytes of bodies of requests and responses from other nodes.";
        Deadlines = "deadlines", "Calls that ended at their deadline.";
        PeerGone = "peer_gone", "Calls that ended because the other node was gone, or the connection to it.";
        NoService = "no_service", "Requests for a service without a provider.";
        Exhausted = "exhausted", "Requests refused for lack of room, to be tried again.";
        NoMemory = "no_memory", "Times that there was no memory for what another node needs: its card, a ring, a region.";
        HandlerErrors = "handler_errors", "Requests that a handler answered with an error.";
        Abandoned = "abandoned", "Calls and requests that ended because their caller is gone.";
        Stale = "stale", "Messages of an earlier epoch, or without a receiver, that were dropped.";
        Evicted = "evicted", "Clients that broke a rule and were thrown out.";
        Welcomed = "welcomed", "Clients that came.";
        Departed = "departed", "Clients that left or died.";
        Sleeps = "sleeps", "Times that the loop slept.";
        ThreadRequests = "thread_requests", "Calls and requests handed to another thread of the daemon.";
        LaneFull = "lane_full", "Times that another thread had too much of one kind to take more.";
        Heartbeats = "heartbeats", "Heartbeats sent.";
        Suspicions = "suspicions", "Peers suspected.";
        PeersLost = "peers_lost", "Peers given up, without those that left in order.";
        PeersJoined = "peers_joined", "Peers that joined, or came back.";
        BulkCalls = "bulk_calls", "Calls of clients that lent memory.";
        BulkBytes = "bulk_bytes", "Bytes that were moved from or to memory which calls had lent.";
        BulkRefused = "bulk_refused", "Slices and moves that were refused: outside, not allowed, or late.";
        RequestsDirect = "requests_direct", "Requests that clients of this node made to a provider of it without the daemon, as that tells.";
        Clients = "clients", "Clients connected now.";
        Outstanding = "outstanding", "Calls in flight now, to other nodes and to processes that provide a service.";
        Waiting = "waiting", "Calls that wait for room at another node, or for their share of it, now.";
        HeldBytes = "held_bytes", "Bytes of requests that wait, for whatever they wait, now.";
        LargeHeld = "large_held_bytes", "Bytes of bodies that go by rendezvous, to and from other nodes, now.";
        LargeRegistered = "large_registered_bytes", "Bytes of memory that is registered for such bodies, now.";
        BulkHeld = "bulk_held_bytes", "Bytes of memory that clients have registered for calls to lend, now.";
        BulkRegions = "bulk_regions", "Regions of memory that clients have registered for calls to lend, now.";
        DirectSessions = "direct_sessions", "Clients that were introduced to a provider of this node, now.";
        PeersUp = "peers_up", "Peers that are up now.";
    }
}

impl Counter {
    /// The kind of the number.
    #[must_use]
    pub const fn kind(self) -> CounterKind {
        match self {
            Self::Clients
            | Self::Outstanding
            | Self::Waiting
            | Self::HeldBytes
            | Self::LargeHeld
            | Self::LargeRegistered
            | Self::BulkHeld
            | Self::BulkRegions
            | Self::DirectSessions
            | Self::PeersUp => CounterKind::Gauge,
            _ => CounterKind::Total,
        }
    }
}

numbered! {
    /// Distributions, in nanoseconds unless the name says otherwise. Times of
    /// calls are those of the turns in which they were taken and ended, so that no call costs a look
    /// at the clock: what ends in the turn that took it counts as 0.
    Timing {
        Loop = "loop_ns", "Duration of a turn of the loop, sampled.";
        PhaseClients = "phase_clients_ns", "Time a turn spends with clients, sampled.";
        PhaseNic = "phase_nic_ns", "Time a turn spends with what the NIC brings, sampled.";
        PhasePost = "phase_post_ns", "Time a turn spends posting batches to the NIC, sampled; 0: there were none.";
        PhaseWaiting = "phase_waiting_ns", "Time a turn spends with what waits for room, sampled.";
        PhaseControl = "phase_control_ns", "Time a turn spends with deadlines and peers, sampled.";
        Turnaround = "turnaround_ns", "From taking a request of another node to answering it.";
        Rtt = "rtt_ns", "From handing a call to the connection to its response.";
        Call = "call_ns", "From taking a request of a client to answering it.";
        BatchMessages = "batch_messages", "Messages per batch to a peer, averaged over a millisecond.";
        CallToFlush = "call_to_flush_ns", "From the first message of a batch to its posting, averaged over a millisecond; 0: in the same turn.";
        FlushToCredit = "flush_to_credit_ns", "From posting a batch until the peer says that it has consumed it, averaged over a millisecond.";
        CompletionsPerPoll = "completions_per_poll", "Completions per poll that found one.";
        RequestsPerLoop = "requests_per_loop", "Requests of clients per turn that took one.";
    }
}

impl Timing {
    /// Whether it is a time.
    #[must_use]
    pub const fn is_ns(self) -> bool {
        !matches!(self, Self::BatchMessages | Self::CompletionsPerPoll | Self::RequestsPerLoop)
    }
}

/// A part of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requests of clients.
    Clients,
    /// Completions, responses and requests of other nodes.
    Nic,
    /// Posting batches.
    Post,
    /// Requests that wait for a provider or for room in a ring.
    Waiting,
    /// Deadlines and peers.
    Control,
}

impl Phase {
    pub(super) const fn timing(self) -> Timing {
        match self {
            Self::Clients => Timing::PhaseClients,
            Self::Nic => Timing::PhaseNic,
            Self::Post => Timing::PhasePost,
            Self::Waiting => Timing::PhaseWaiting,
            Self::Control => Timing::PhaseControl,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_numbers_follow_the_order() {
        let counters = Counter::ALL.iter().map(|counter| counter.name());
        let timings = Timing::ALL.iter().map(|timing| timing.name());
        let names: BTreeSet<_> = counters.chain(timings).collect();
        assert_eq!(names.len(), Counter::ALL.len() + Timing::ALL.len());
        assert!(Counter::ALL.iter().enumerate().all(|(index, counter)| *counter as usize == index));
        assert!(Timing::ALL.iter().enumerate().all(|(index, timing)| *timing as usize == index));
        assert!(Timing::ALL.iter().all(|timing| timing.is_ns() == timing.name().ends_with("_ns")));
    }
}
