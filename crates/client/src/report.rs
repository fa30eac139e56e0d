//! Reports of the daemon of this node: its clients, peers, services and answers.

use std::collections::BTreeMap;

use proto::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes as _, KnownLayout};

use crate::{
    CallError, Client, HERE, ServiceInfo, To,
    message::{
        ClientRecord, DAEMON, Known, LENDS_MEMORY, PeerRecord, ReportAnswer, ReportHead,
        ServiceReport, method, report,
    },
    name::printable,
};

/// A client of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its process; `None`: it is in a PID namespace that the daemon does not see.
    pub pid: Option<u32>,
    /// The user of that.
    pub uid: Option<u32>,
    /// The thread of the daemon that it is with.
    pub thread: u16,
    /// Requests that it ever made.
    pub requests: u64,
    /// Its requests that are not answered yet; polls of a provider are among them.
    pub in_flight: u32,
    /// Services that it offers.
    pub services: u32,
}

/// Another rank, as the daemon sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Rank of the peer.
    pub rank: u32,
    /// Whether calls reach it.
    pub is_up: bool,
    /// The thread of the daemon that owns the connection.
    pub thread: u16,
    /// Calls to it since the daemon began, those of processes of this node.
    pub calls: u64,
    /// Calls that it has not answered yet.
    pub in_flight: u32,
    /// Calls that wait for room there.
    pub waiting: u32,
    /// Calls that ended without its answer.
    pub unanswered: u64,
    /// Requests that it made.
    pub requests: u64,
}

impl Client {
    /// The clients of the daemon, this one among them.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn clients(&mut self) -> Result<Vec<ClientInfo>, CallError> {
        let mut clients = Vec::new();
        self.report(report::CLIENTS, |thread, records| {
            let (record, rest) = split::<ClientRecord>(records)?;
            let Known { uid, pid } = Known::of(record.uid, record.pid);
            clients.push(ClientInfo {
                pid,
                uid,
                thread,
                requests: record.requests.get(),
                in_flight: record.in_flight.get(),
                services: record.services.get(),
            });
            Ok(rest)
        })?;
        Ok(clients)
    }

    /// The other ranks, in their order.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn peers(&mut self) -> Result<Vec<PeerInfo>, CallError> {
        let mut peers = Vec::new();
        self.report(report::PEERS, |thread, records| {
            let (record, rest) = split::<PeerRecord>(records)?;
            peers.push(PeerInfo {
                rank: record.rank.get(),
                is_up: record.is_up.get() != 0,
                thread,
                calls: record.calls.get(),
                in_flight: record.in_flight.get(),
                waiting: record.waiting.get(),
                unanswered: record.unanswered.get(),
                requests: record.requests.get(),
            });
            Ok(rest)
        })?;
        peers.sort_by_key(|peer| peer.rank);
        Ok(peers)
    }

    /// The services of this node, in the order of their numbers. What is told of those whose calls lend memory is up to
    /// 100 ms old.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn services(&mut self) -> Result<Vec<ServiceInfo>, CallError> {
        let mut services = BTreeMap::<(u16, bool), ServiceInfo>::new();
        self.report(report::SERVICES, |_, records| {
            let (record, rest) = split::<ServiceReport>(records)?;
            let ServiceReport { service: it, requests } = record;
            let name = rest.split_at_checked(it.name_bytes.get().into());
            let (name, rest) = name.ok_or(NONSENSE)?;
            let lends_memory = it.flags.get() & LENDS_MEMORY != 0;
            let told = ServiceInfo {
                service: it.service.get(),
                lends_memory,
                name: printable(name),
                providers: it.providers.get(),
                waiting: it.waiting.get(),
                given: it.given.get(),
                requests: requests.get(),
            };
            // Several threads of the daemon may offer it.
            match services.get_mut(&(told.service, lends_memory)) {
                Some(known) => {
                    known.providers = known.providers.saturating_add(told.providers);
                    known.waiting = known.waiting.saturating_add(told.waiting);
                    known.given = known.given.saturating_add(told.given);
                    known.requests += told.requests;
                }
                None => drop(services.insert((told.service, lends_memory), told)),
            }
            Ok(rest)
        })?;
        Ok(services.into_values().collect())
    }

    /// The number of answers of the daemon to its clients, by status.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn answers(&mut self) -> Result<Vec<(Status, u64)>, CallError> {
        let mut counts = [0; Status::ALL.len()];
        let mut next = BTreeMap::<u16, usize>::new();
        self.report(report::STATUSES, |thread, records| {
            let (count, rest) = records.split_first_chunk().ok_or(NONSENSE)?;
            let place = next.entry(thread).or_default();
            *counts.get_mut(*place).ok_or(NONSENSE)? += u64::from_le_bytes(*count);
            *place += 1;
            Ok(rest)
        })?;
        Ok(Status::ALL.into_iter().zip(counts).collect())
    }

    /// Asks each thread of the daemon for what it knows, and hands the records to `take`, which returns what it
    /// leaves.
    fn report(
        &mut self,
        what: u16,
        mut take: impl FnMut(u16, &[u8]) -> Result<&[u8], CallError>,
    ) -> Result<(), CallError> {
        let (mut thread, mut threads, mut skip) = (0, 1, 0);
        while thread < threads {
            let head = ReportHead { thread: thread.into(), what: what.into(), skip: skip.into() };
            let told = self.call(To::new(HERE, DAEMON, method::REPORT), head.as_bytes())?;
            let (answer, mut records) = split::<ReportAnswer>(told)?;
            for _ in 0..answer.records.get() {
                records = take(thread, records)?;
            }
            threads = answer.threads.get();
            skip += answer.records.get();
            if (answer.records.get() as usize) < report::RECORDS_MAX {
                (thread, skip) = (thread + 1, 0);
            }
        }
        Ok(())
    }
}

/// The daemon says what makes no sense.
const NONSENSE: CallError = CallError::Unanswered(Status::Internal);

fn split<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), CallError> {
    T::read_from_prefix(bytes).map_err(|_| NONSENSE)
}
