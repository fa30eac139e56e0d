//! Every knob of the node daemon and of the commands that talk to it.

use config::{Knob, KnobKind};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const HOUR: u64 = 3_600 * S;

/// Name of the NIC.
pub const NIC: Knob = Knob {
    env: "COPYRPC_NIC",
    kind: KnobKind::Text,
    default: "soft",
    meaning: "The NIC to use: `soft`, the software NIC in shared memory; `tcp`, the same over TCP; `hosts`, \
              memory within a host and TCP beyond; `ibverbs`, or the name of an RDMA device; `mlx5`, a \
              ConnectX by this project's driver; or `auto`",
};

/// The daemon's job.
pub const JOB: Knob = Knob {
    env: "COPYRPC_JOB",
    kind: KnobKind::Text,
    default: "",
    meaning: "Name of the job (1 to 48 of A-Z a-z 0-9 - _ .): daemons and clients of different jobs \
              never meet [default: that of the allocation of Slurm, Flux, PBS or LSF, such as slurm-77; \
              else `default`]",
};

/// Number of the daemon among several on one machine.
pub const INSTANCE: Knob = Knob {
    env: "COPYRPC_INSTANCE",
    kind: KnobKind::Text,
    default: "",
    meaning: "Tells several daemons of one job on one machine apart; a node has one, so normally empty \
              [default: where a launcher starts several on a host, the local rank of all but the first]",
};

/// The runtime folder of sockets, locks and counters.
pub const RUNTIME_DIR: Knob = Knob {
    env: "COPYRPC_RUNTIME_DIR",
    kind: KnobKind::Text,
    default: "",
    meaning: "Private folder of sockets, locks and counters [default: copyrpc in $XDG_RUNTIME_DIR, or \
              copyrpc-UID in the folder for temporary files]",
};

/// The way in which daemons find each other.
pub const BOOTSTRAP: Knob = Knob {
    env: "COPYRPC_BOOTSTRAP",
    kind: KnobKind::Choice(&["auto", "alone", "tcp", "join", "file", "pmi"]),
    default: "auto",
    meaning: "How daemons find each other: `alone` (one node), `tcp` (meet at COPYRPC_RENDEZVOUS, where \
              rank 0 listens), `join` (the same, but another program listens), `file` (meet in the folder \
              COPYRPC_RENDEZVOUS), `pmi` (rank 0 sends its address by PMIx or PMI-1); `auto` follows \
              COPYRPC_RENDEZVOUS, or else the launcher",
};

/// Address of the rendezvous.
pub const RENDEZVOUS: Knob = Knob {
    env: "COPYRPC_RENDEZVOUS",
    kind: KnobKind::Text,
    default: "",
    meaning: "Where daemons meet: HOST:PORT of rank 0, or a folder that all nodes share [default: below a \
              launcher, a folder in the runtime folder, or what rank 0 tells by PMIx or PMI-1, or a folder in \
              the home folder if there are several hosts]",
};

/// The daemon's number.
pub const RANK: Knob = Knob {
    env: "COPYRPC_RANK",
    kind: KnobKind::Count { min: 0, max: 65_534 },
    default: "",
    meaning: "Number of this daemon, from 0 [default: that of the launcher: Open MPI, PMI, PALS, Slurm]",
};

/// Number of daemons.
pub const SIZE: Knob = Knob {
    env: "COPYRPC_SIZE",
    kind: KnobKind::Count { min: 1, max: 65_535 },
    default: "",
    meaning: "Number of daemons [default: that of the launcher; 1 without one]",
};

/// File with the secret of the job.
pub const SECRET_FILE: Knob = Knob {
    env: "COPYRPC_SECRET_FILE",
    kind: KnobKind::Text,
    default: "",
    meaning: "File with the job's secret, at least 16 bytes, readable by this user alone; all daemons of \
              a job need the same",
};

/// Longest bootstrap.
pub const BOOTSTRAP_TIMEOUT: Knob = Knob {
    env: "COPYRPC_BOOTSTRAP_TIMEOUT",
    kind: KnobKind::Duration { min_ns: 10 * MS, max_ns: 24 * HOUR },
    default: "60s",
    meaning: "How long a daemon waits for all others to come",
};

/// Longest handshake.
pub const HANDSHAKE_TIMEOUT: Knob = Knob {
    env: "COPYRPC_HANDSHAKE_TIMEOUT",
    kind: KnobKind::Duration { min_ns: MS, max_ns: 60 * S },
    default: "1s",
    meaning: "How long a new connection may take to prove that it belongs to the job",
};

/// Number of threads.
pub const THREADS: Knob = Knob {
    env: "COPYRPC_THREADS",
    kind: KnobKind::Count { min: 1, max: 64 },
    default: "1",
    meaning: "Threads of the daemon, which share clients and peers: more than 1 where one core is not \
              enough",
};

/// Transport of calls to other nodes.
pub const TRANSPORT: Knob = Knob {
    env: "COPYRPC_TRANSPORT",
    kind: KnobKind::Choice(&["rc", "dc"]),
    default: "rc",
    meaning: "What carries calls to other nodes: a queue pair for each (`rc`), or a few initiators and one target \
              for all (`dc`); the same on all nodes of a job",
};

/// Initiators of DC.
pub const DCIS: Knob = Knob {
    env: "COPYRPC_DCIS",
    kind: KnobKind::Count { min: 1, max: 256 },
    default: "8",
    meaning: "With `dc`: initiators of each thread. One serves one node at a time and turns to the next when all \
              is acknowledged; no more are made than there are nodes",
};

/// Wait for an acknowledgement.
pub const ACK_TIMEOUT: Knob = Knob {
    env: "COPYRPC_ACK_TIMEOUT",
    kind: KnobKind::Duration { min_ns: 4096, max_ns: 8 * S },
    default: "67ms",
    meaning: "Wait for the acknowledgement of another node before the NIC sends again, eight times at most: 4096 ns \
              times a power of two, else the next longer one. Adapters have a least value, and wait up to four times \
              as long. On lossy RoCE a lost last packet costs this much",
};

/// Order of the NIC's writes to memory.
pub const RELAXED_ORDERING: Knob = Knob {
    env: "COPYRPC_RELAXED_ORDERING",
    kind: KnobKind::Choice(&["on", "off"]),
    default: "on",
    meaning: "Lets writes of the NIC to rings and bodies overtake each other on PCIe: on some processors (AMD EPYC, \
              A64FX) and in virtual machines they are slow without. Nothing is read before its completion",
};

/// Size of the ring for each peer.
pub const RING_BYTES: Knob = Knob {
    env: "COPYRPC_RING_BYTES",
    kind: KnobKind::Bytes { min: 16 << 10, max: 64 << 20 },
    default: "256KiB",
    meaning: "Ring for each other node, which writes its calls and answers there: a power of two. It is \
              registered memory, and so is the mirror of it at the node that writes",
};

/// Service level of calls.
pub const SERVICE_LEVEL: Knob = Knob {
    env: "COPYRPC_SERVICE_LEVEL",
    kind: KnobKind::Count { min: 0, max: 15 },
    default: "0",
    meaning: "Service level of calls to other nodes; on RoCE the Ethernet priority, 0 to 7",
};

/// Traffic class of calls.
pub const TRAFFIC_CLASS: Knob = Knob {
    env: "COPYRPC_TRAFFIC_CLASS",
    kind: KnobKind::Count { min: 0, max: 255 },
    default: "0",
    meaning: "Traffic class (DSCP and ECN) of calls to other nodes, where they have a global route header",
};

/// Traffic class of heartbeats.
pub const CONTROL_TRAFFIC_CLASS: Knob = Knob {
    env: "COPYRPC_CONTROL_TRAFFIC_CLASS",
    kind: KnobKind::Count { min: 0, max: 255 },
    default: "0",
    meaning: "Traffic class of the datagrams by which daemons watch each other, so that switches can carry them \
              before calls: 192 is that of network control (CS6)",
};

/// Largest number of clients.
pub const CLIENTS_MAX: Knob = Knob {
    env: "COPYRPC_CLIENTS_MAX",
    kind: KnobKind::Count { min: 1, max: 4096 },
    default: "256",
    meaning: "Most client processes at a time",
};

/// Most connections of one process.
pub const CLIENTS_PER_PROCESS: Knob = Knob {
    env: "COPYRPC_CLIENTS_PER_PROCESS",
    kind: KnobKind::Count { min: 1, max: 4096 },
    default: "",
    meaning: "Most clients of one process at a time [default: a quarter of COPYRPC_CLIENTS_MAX]",
};

/// Most bytes that wait for room, of all callers.
pub const HELD_BYTES: Knob = Knob {
    env: "COPYRPC_HELD_BYTES",
    kind: KnobKind::Bytes { min: 64 << 10, max: 64 << 30 },
    default: "64MiB",
    meaning: "Memory for requests that wait, for room at another node or for a provider; what would exceed it \
              ends with `resource exhausted`",
};

/// Most bytes of one caller that wait for room.
pub const CALLER_HELD_BYTES: Knob = Knob {
    env: "COPYRPC_CALLER_HELD_BYTES",
    kind: KnobKind::Bytes { min: 16 << 10, max: 64 << 30 },
    default: "1MiB",
    meaning: "How much of COPYRPC_HELD_BYTES one caller may have: a client, or another node. One request may \
              exceed it if its caller has no other. No caller gets more than is left for all others",
};

/// Most bytes that wait for one service.
pub const SERVICE_HELD_BYTES: Knob = Knob {
    env: "COPYRPC_SERVICE_HELD_BYTES",
    kind: KnobKind::Bytes { min: 16 << 10, max: 64 << 30 },
    default: "8MiB",
    meaning: "How much of COPYRPC_HELD_BYTES may wait for one service of this node; the last request may exceed it \
              if it is its caller's only one",
};

/// How much memory bodies that go by rendezvous may take.
pub const LARGE_MEMORY_BYTES: Knob = Knob {
    env: "COPYRPC_LARGE_MEMORY_BYTES",
    kind: KnobKind::Bytes { min: 1 << 20, max: 1 << 46 },
    default: "1GiB",
    meaning: "Registered memory for bodies that go to and from other nodes by rendezvous, all together; what \
              would exceed it waits, or ends with `resource exhausted`",
};

/// How much of it one caller may have.
pub const CALLER_LARGE_MEMORY_BYTES: Knob = Knob {
    env: "COPYRPC_CALLER_LARGE_MEMORY_BYTES",
    kind: KnobKind::Bytes { min: 64 << 10, max: 1 << 46 },
    default: "256MiB",
    meaning: "How much of COPYRPC_LARGE_MEMORY_BYTES one caller may have: a client, or another node. No caller \
              gets more than is left for all others",
};

/// How much of it one service may have.
pub const SERVICE_LARGE_MEMORY_BYTES: Knob = Knob {
    env: "COPYRPC_SERVICE_LARGE_MEMORY_BYTES",
    kind: KnobKind::Bytes { min: 64 << 10, max: 1 << 46 },
    default: "512MiB",
    meaning: "How much of COPYRPC_LARGE_MEMORY_BYTES requests for one service and its answers may have",
};

/// Most bytes that clients have registered.
pub const BULK_BYTES: Knob = Knob {
    env: "COPYRPC_BULK_BYTES",
    kind: KnobKind::Bytes { min: 1 << 20, max: 1 << 46 },
    default: "64GiB",
    meaning: "Memory that clients may register for calls to lend, all together; what would exceed it is refused \
              with `resource exhausted`",
};

/// Most bytes that one process has registered.
pub const CALLER_BULK_BYTES: Knob = Knob {
    env: "COPYRPC_CALLER_BULK_BYTES",
    kind: KnobKind::Bytes { min: 4 << 10, max: 1 << 46 },
    default: "16GiB",
    meaning: "How much of COPYRPC_BULK_BYTES one process may have, over all its connections. No process gets more \
              than is left for all others",
};

/// Most services that a client offers.
pub const SERVICES_PER_CLIENT: Knob = Knob {
    env: "COPYRPC_SERVICES_PER_CLIENT",
    kind: KnobKind::Count { min: 1, max: 65_535 },
    default: "64",
    meaning: "Most services that one client may offer",
};

/// Rules that say who may offer and call which services.
pub const RIGHTS: Knob = Knob {
    env: "COPYRPC_RIGHTS",
    kind: KnobKind::Text,
    default: "",
    meaning: "Processes that may offer or call a service, such as `offer metadata exe:/usr/bin/mds; call \
              metadata uid:1000 self; call * nobody`; the same for all daemons of a job [default: all processes]",
};

/// Largest number of calls in flight of one client.
pub const DEPTH: Knob = Knob {
    env: "COPYRPC_DEPTH",
    kind: KnobKind::Count { min: 1, max: 4096 },
    default: "64",
    meaning: "Most calls in flight per client: a power of two",
};

/// Longest message.
pub const MESSAGE_BYTES_MAX: Knob = Knob {
    env: "COPYRPC_MESSAGE_BYTES_MAX",
    // The heads before a body count to what a ring can describe: 16 MiB less a byte.
    kind: KnobKind::Bytes { min: 64, max: 15 << 20 },
    default: "1MiB",
    meaning: "Longest request and longest response. Those above 4 KiB take memory when they are made",
};

/// Requests of one client per turn.
pub const TURN_BUDGET: Knob = Knob {
    env: "COPYRPC_TURN_BUDGET",
    kind: KnobKind::Count { min: 1, max: 65_536 },
    default: "32",
    meaning: "Most requests taken of one client before the others have their turn",
};

/// Longest stop of a client.
pub const STALL_TIMEOUT: Knob = Knob {
    env: "COPYRPC_STALL_TIMEOUT",
    kind: KnobKind::Duration { min_ns: MS, max_ns: 24 * HOUR },
    default: "30s",
    meaning: "A client that reads none of its answers for so long, though it can call nothing more, is \
              evicted",
};

/// Waiting mode.
pub const WAIT: Knob = Knob {
    env: "COPYRPC_WAIT",
    kind: KnobKind::Choice(&["busy", "adaptive", "block"]),
    default: "adaptive",
    meaning: "What the daemon does while there is nothing to do: poll (`busy`), poll for some 40us and then \
              sleep (`adaptive`), or sleep at once (`block`)",
};

/// Deadline of a call that names none.
pub const CALL_TIMEOUT: Knob = Knob {
    env: "COPYRPC_CALL_TIMEOUT",
    kind: KnobKind::Duration { min_ns: MS, max_ns: HOUR },
    default: "5s",
    meaning: "How long a call of `ping` may take, and one whose client does not say (those of the library \
              do: `ClientConfig::timeout`), before it ends with `deadline exceeded`",
};

/// Interval of heartbeats.
pub const HEARTBEAT_INTERVAL: Knob = Knob {
    env: "COPYRPC_HEARTBEAT_INTERVAL",
    kind: KnobKind::Duration { min_ns: MS, max_ns: 60 * S },
    default: "200ms",
    meaning: "Time between two heartbeats to a peer",
};

/// Silence after which a peer is suspected.
pub const SUSPECT_AFTER: Knob = Knob {
    env: "COPYRPC_SUSPECT_AFTER",
    kind: KnobKind::Duration { min_ns: MS, max_ns: HOUR },
    default: "1s",
    meaning: "A peer that has not echoed a heartbeat for so long is suspected, and shown so",
};

/// Silence after which a peer is dead.
pub const DEAD_AFTER: Knob = Knob {
    env: "COPYRPC_DEAD_AFTER",
    kind: KnobKind::Duration { min_ns: MS, max_ns: HOUR },
    default: "3s",
    meaning: "A peer that has not echoed a heartbeat for so long is gone: its calls end with `unavailable`",
};

/// Longest drain.
pub const DRAIN_TIMEOUT: Knob = Knob {
    env: "COPYRPC_DRAIN_TIMEOUT",
    kind: KnobKind::Duration { min_ns: MS, max_ns: HOUR },
    default: "10s",
    meaning: "After SIGTERM, how long calls in flight may still take",
};

/// Turns of the loop per timed turn.
pub const SAMPLE_EVERY: Knob = Knob {
    env: "COPYRPC_SAMPLE_EVERY",
    kind: KnobKind::Count { min: 0, max: 1 << 30 },
    default: "1024",
    meaning: "The phases of one in so many turns of the daemon's loop are timed; 0: of none",
};

/// Every knob.
pub const KNOBS: &[Knob] = &[
    NIC,
    JOB,
    INSTANCE,
    RUNTIME_DIR,
    BOOTSTRAP,
    RENDEZVOUS,
    RANK,
    SIZE,
    SECRET_FILE,
    BOOTSTRAP_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    THREADS,
    TRANSPORT,
    DCIS,
    ACK_TIMEOUT,
    RELAXED_ORDERING,
    RING_BYTES,
    SERVICE_LEVEL,
    TRAFFIC_CLASS,
    CONTROL_TRAFFIC_CLASS,
    CLIENTS_MAX,
    CLIENTS_PER_PROCESS,
    HELD_BYTES,
    CALLER_HELD_BYTES,
    SERVICE_HELD_BYTES,
    LARGE_MEMORY_BYTES,
    CALLER_LARGE_MEMORY_BYTES,
    SERVICE_LARGE_MEMORY_BYTES,
    BULK_BYTES,
    CALLER_BULK_BYTES,
    SERVICES_PER_CLIENT,
    RIGHTS,
    DEPTH,
    MESSAGE_BYTES_MAX,
    TURN_BUDGET,
    STALL_TIMEOUT,
    WAIT,
    CALL_TIMEOUT,
    HEARTBEAT_INTERVAL,
    SUSPECT_AFTER,
    DEAD_AFTER,
    DRAIN_TIMEOUT,
    SAMPLE_EVERY,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use config::Layers;

    use super::*;

    #[test]
    fn knobs_are_unique_prefixed_and_explained_and_their_defaults_are_values() {
        let names: BTreeSet<_> = KNOBS.iter().map(|knob| knob.env).collect();
        assert_eq!(names.len(), KNOBS.len());
        for knob in KNOBS {
            assert!(knob.env.starts_with("COPYRPC_") && !knob.meaning.is_empty(), "{}", knob.env);
        }
        assert_eq!(Layers::new(KNOBS.to_vec()).finish().iter().count(), KNOBS.len());
    }
}
