//! Every knob of the node daemon and of the commands that talk to it.

use crate::config::knob::{Kind, Knob};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const HOUR: u64 = 3_600 * S;

/// Which NIC is used.
pub const NIC: Knob = Knob {
    env: "COPYRPC_NIC",
    kind: Kind::Text,
    default: "soft",
    meaning: "The NIC to use: `soft`, the software NIC, is the only one that this version drives",
};

/// Which job the daemon belongs to.
pub const JOB: Knob = Knob {
    env: "COPYRPC_JOB",
    kind: Kind::Text,
    default: "default",
    meaning: "Name of the job (1 to 48 of A-Z a-z 0-9 - _ .): daemons and clients of different jobs \
              never meet",
};

/// Which daemon of several on one machine.
pub const INSTANCE: Knob = Knob {
    env: "COPYRPC_INSTANCE",
    kind: Kind::Text,
    default: "",
    meaning: "Tells several daemons of one job on one machine apart; a node has one, so normally empty",
};

/// Where sockets, locks and counters lie.
pub const RUNTIME_DIR: Knob = Knob {
    env: "COPYRPC_RUNTIME_DIR",
    kind: Kind::Text,
    default: "",
    meaning: "Private folder of sockets, locks and counters [default: copyrpc in $XDG_RUNTIME_DIR, or \
              copyrpc-UID in the folder for temporary files]",
};

/// How daemons find each other.
pub const BOOTSTRAP: Knob = Knob {
    env: "COPYRPC_BOOTSTRAP",
    kind: Kind::Choice(&["auto", "alone", "tcp", "join", "file"]),
    default: "auto",
    meaning: "How daemons find each other: `alone` (one node), `tcp` (meet at COPYRPC_RENDEZVOUS, where \
              rank 0 listens), `join` (the same, but somebody else listens), `file` (meet in the folder COPYRPC_RENDEZVOUS); `auto` takes what \
              COPYRPC_RENDEZVOUS looks like",
};

/// Where daemons find each other.
pub const RENDEZVOUS: Knob = Knob {
    env: "COPYRPC_RENDEZVOUS",
    kind: Kind::Text,
    default: "",
    meaning: "Where daemons meet: HOST:PORT of rank 0, or a folder that all nodes share",
};

/// The daemon's number.
pub const RANK: Knob = Knob {
    env: "COPYRPC_RANK",
    kind: Kind::Count { min: 0, max: 65_534 },
    default: "",
    meaning: "Number of this daemon, from 0 [default: that of the launcher: Open MPI, PMI, PALS, Slurm]",
};

/// How many daemons there are.
pub const SIZE: Knob = Knob {
    env: "COPYRPC_SIZE",
    kind: Kind::Count { min: 1, max: 65_535 },
    default: "",
    meaning: "Number of daemons [default: that of the launcher; 1 without one]",
};

/// What daemons of one job know.
pub const SECRET_FILE: Knob = Knob {
    env: "COPYRPC_SECRET_FILE",
    kind: Kind::Text,
    default: "",
    meaning: "File with the job's secret, at least 16 bytes, readable by this user alone; all daemons of \
              a job need the same",
};

/// How long bootstrap may take.
pub const BOOTSTRAP_TIMEOUT: Knob = Knob {
    env: "COPYRPC_BOOTSTRAP_TIMEOUT",
    kind: Kind::Duration { min_ns: 10 * MS, max_ns: 24 * HOUR },
    default: "60s",
    meaning: "How long a daemon waits for all others to come",
};

/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Knob = Knob {
    env: "COPYRPC_HANDSHAKE_TIMEOUT",
    kind: Kind::Duration { min_ns: MS, max_ns: 60 * S },
    default: "1s",
    meaning: "How long a new connection may take to prove that it belongs to the job",
};

/// How many threads the daemon has.
pub const THREADS: Knob = Knob {
    env: "COPYRPC_THREADS",
    kind: Kind::Count { min: 1, max: 64 },
    default: "1",
    meaning: "Threads of the daemon, which share clients and peers: more than 1 where one core is not \
              enough",
};

/// What carries calls to other nodes.
pub const TRANSPORT: Knob = Knob {
    env: "COPYRPC_TRANSPORT",
    kind: Kind::Choice(&["rc", "dc"]),
    default: "rc",
    meaning: "What carries calls to other nodes: a queue pair for each (`rc`), or one initiator and one target \
              for all (`dc`); the same on all nodes of a job",
};

/// How much may be on its way from each node.
pub const RING_BYTES: Knob = Knob {
    env: "COPYRPC_RING_BYTES",
    kind: Kind::Bytes { min: 16 << 10, max: 64 << 20 },
    default: "256KiB",
    meaning: "Ring for each other node, which writes its calls and answers there: a power of two. It is \
              registered memory, and so is the mirror of it at the node that writes",
};

/// How many clients there may be.
pub const CLIENTS_MAX: Knob = Knob {
    env: "COPYRPC_CLIENTS_MAX",
    kind: Kind::Count { min: 1, max: 4096 },
    default: "256",
    meaning: "Most client processes at a time",
};

/// How many calls a client may have in flight.
pub const DEPTH: Knob = Knob {
    env: "COPYRPC_DEPTH",
    kind: Kind::Count { min: 1, max: 4096 },
    default: "64",
    meaning: "Most calls in flight per client: a power of two",
};

/// How long a message may be.
pub const MESSAGE_BYTES_MAX: Knob = Knob {
    env: "COPYRPC_MESSAGE_BYTES_MAX",
    kind: Kind::Bytes { min: 64, max: 1 << 20 },
    default: "4KiB",
    meaning: "Longest request and longest response",
};

/// How much of one client is served at a time.
pub const TURN_BUDGET: Knob = Knob {
    env: "COPYRPC_TURN_BUDGET",
    kind: Kind::Count { min: 1, max: 65_536 },
    default: "32",
    meaning: "Most requests taken of one client before the others have their turn",
};

/// How long a client may be stopped.
pub const STALL_TIMEOUT: Knob = Knob {
    env: "COPYRPC_STALL_TIMEOUT",
    kind: Kind::Duration { min_ns: MS, max_ns: 24 * HOUR },
    default: "30s",
    meaning: "A client that reads none of its answers for so long, though it can call nothing more, is \
              evicted",
};

/// How the daemon waits.
pub const WAIT: Knob = Knob {
    env: "COPYRPC_WAIT",
    kind: Kind::Choice(&["busy", "adaptive", "block"]),
    default: "adaptive",
    meaning: "What the daemon does while there is nothing to do: poll (`busy`), poll for some 40us and then \
              sleep (`adaptive`), or sleep at once (`block`)",
};

/// How long a call may take.
pub const CALL_TIMEOUT: Knob = Knob {
    env: "COPYRPC_CALL_TIMEOUT",
    kind: Kind::Duration { min_ns: MS, max_ns: HOUR },
    default: "5s",
    meaning: "How long a call of `ping` may take, and one whose client does not say (those of the library \
              do: `ClientConfig::timeout`), before it ends with `deadline exceeded`",
};

/// How often daemons say that they live.
pub const HEARTBEAT_INTERVAL: Knob = Knob {
    env: "COPYRPC_HEARTBEAT_INTERVAL",
    kind: Kind::Duration { min_ns: MS, max_ns: 60 * S },
    default: "200ms",
    meaning: "Time between two heartbeats to a peer",
};

/// When a peer is suspected.
pub const SUSPECT_AFTER: Knob = Knob {
    env: "COPYRPC_SUSPECT_AFTER",
    kind: Kind::Duration { min_ns: MS, max_ns: HOUR },
    default: "1s",
    meaning: "A peer that has not echoed a heartbeat for so long is suspected, and shown so",
};

/// When a peer is given up.
pub const DEAD_AFTER: Knob = Knob {
    env: "COPYRPC_DEAD_AFTER",
    kind: Kind::Duration { min_ns: MS, max_ns: HOUR },
    default: "3s",
    meaning: "A peer that has not echoed a heartbeat for so long is gone: its calls end with `unavailable`",
};

/// How long the daemon finishes its work.
pub const DRAIN_TIMEOUT: Knob = Knob {
    env: "COPYRPC_DRAIN_TIMEOUT",
    kind: Kind::Duration { min_ns: MS, max_ns: HOUR },
    default: "10s",
    meaning: "After SIGTERM, how long calls in flight may still take",
};

/// How often the daemon's loop is timed.
pub const SAMPLE_EVERY: Knob = Knob {
    env: "COPYRPC_SAMPLE_EVERY",
    kind: Kind::Count { min: 0, max: 1 << 30 },
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
    RING_BYTES,
    CLIENTS_MAX,
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

    use super::*;
    use crate::config::{Layers, knob::PREFIX};

    #[test]
    fn knobs_are_unique_prefixed_and_explained_and_their_defaults_are_values() {
        let names: BTreeSet<_> = KNOBS.iter().map(|knob| knob.env).collect();
        assert_eq!(names.len(), KNOBS.len());
        for knob in KNOBS {
            assert!(knob.env.starts_with(PREFIX) && !knob.meaning.is_empty(), "{}", knob.env);
        }
        assert_eq!(Layers::new(KNOBS.to_vec()).finish().iter().count(), KNOBS.len());
    }
}
