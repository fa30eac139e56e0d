//! The services of this node: functions of the embedding program, or client processes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ids::slots::Key;
use rpc::Status;

use crate::{
    admission::Admission,
    client_port::ClientPort,
    fair_queue::{FairQueue, NextTurn},
    limits::{CallerId, ENTRY_BYTES, Held},
    members::{Members, OfferError, Offered, Poll},
    request_head::RequestHead,
    rights::Rights,
    source::Source,
    threads::Offers,
};
pub use client::Inbound;
use client::message::{DAEMON, ServiceRecord, ServiceReport, report};
use zerocopy::IntoBytes as _;

/// Most requests that wait for one providing process, or for one service of another thread.
pub(super) const QUEUE_MAX: usize = 8192;

/// Numbers that a service may have, and 0.
const NUMBERS: usize = 1 << 16;

/// Answers a request: the body goes into the buffer, which is empty. It must not wait.
pub type ServiceFn = Box<dyn FnMut(&Inbound<'_>, &mut Vec<u8>) -> Status>;

/// A request that waits for its provider, or for room at another thread.
#[derive(Debug)]
pub(super) struct QueuedRequest<P: ClientPort> {
    /// The key of the call.
    pub(super) key: Key,
    pub(super) head: RequestHead,
    pub(super) body: Source<P>,
}

/// Client processes that answer requests.
#[derive(Debug)]
pub(super) struct Provider<P: ClientPort> {
    /// If one of them polls, no request waits.
    pub(super) members: Members<P>,
    /// Requests for them: their callers take turns.
    pub(super) queue: RequestQueue<P>,
}

/// Requests that wait for one provider, or for one service of another thread.
pub(super) type RequestQueue<P> = FairQueue<CallerId, QueuedRequest<P>>;

/// Queues a request. [`Status::ResourceExhausted`]: too much waits, of its caller or in all. A caller gets at most what
/// is left for all others; the first one of a caller finds room, whatever its length, while anything is left.
pub(super) fn enqueue<P: ClientPort>(
    queue: &mut RequestQueue<P>,
    held: &mut Held,
    request: QueuedRequest<P>,
) -> Result<(), Status> {
    let (caller, bytes) = (request.head.caller_id, request.body.held_bytes() + ENTRY_BYTES);
    let left = QUEUE_MAX - queue.len();
    let left_bytes = held.limits().service_held_bytes.saturating_sub(queue.bytes());
    let has_bytes = match queue.len_of(caller) {
        0 => left_bytes > 0,
        _ => queue.bytes_of(caller) + bytes <= left_bytes,
    };
    if queue.len_of(caller) >= left || !has_bytes {
        return Err(Status::ResourceExhausted);
    }
    held.admit(caller, bytes)?;
    queue.push(caller, bytes, request);
    Ok(())
}

/// Puts back the request that was next. [`Status::ResourceExhausted`]: there is no room for it any more.
pub(super) fn requeue<P: ClientPort>(
    queue: &mut RequestQueue<P>,
    held: &mut Held,
    request: QueuedRequest<P>,
) -> Result<(), Status> {
    let (caller, bytes) = (request.head.caller_id, request.body.held_bytes() + ENTRY_BYTES);
    held.admit(caller, bytes)?;
    queue.put_back(caller, bytes, request, NextTurn::Own);
    Ok(())
}

/// The request that is next in a queue.
pub(super) fn dequeue<P: ClientPort>(
    queue: &mut RequestQueue<P>,
    held: &mut Held,
) -> Option<QueuedRequest<P>> {
    let (caller, bytes, request) = queue.pop()?;
    held.release(caller, bytes);
    Some(request)
}

enum Service<P: ClientPort> {
    Embedded(ServiceFn),
    Provided(Provider<P>),
}

/// A service and its number.
struct Entry<P: ClientPort> {
    number: u16,
    service: Service<P>,
    /// Requests that came for it.
    requests: u64,
}

/// The services of this node.
pub struct Services<P: ClientPort> {
    table: Vec<Entry<P>>,
    /// By number: one more than the place in `table`; 0: not offered. Looked up for every request.
    places: Box<[u16]>,
    /// The services of the other threads; `None` if there are none.
    offers: Option<Offers>,
    /// The rules by which the daemon judges offers and calls.
    rights: Rights,
    /// Services of another kind, in the order of their numbers: they are only told of here.
    lending: Vec<LendingService>,
}

/// The disposition of a request.
pub(super) enum Served {
    /// It was answered; the body is in the buffer.
    Answered(Status),
    /// A provider is to answer it.
    Provided,
    /// Another thread is to answer it.
    Elsewhere,
}

impl<P: ClientPort> Entry<P> {
    /// What is told of it, and its name.
    fn record(&self) -> (ServiceRecord, &[u8]) {
        let (mut name, mut counts) = (&[][..], [0; 4]);
        if let Service::Provided(provider) = &self.service {
            let (members, given) = provider.members.census();
            let (name_bytes, description) = provider.members.description();
            name = &description[..name_bytes.into()];
            counts = [members, provider.queue.len(), given as usize, name.len()];
        }
        let [providers, waiting, given, name_bytes] = counts;
        let word = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let half = |count| u16::try_from(count).unwrap_or(u16::MAX);
        let record = ServiceRecord {
            service: self.number.into(),
            providers: half(providers).into(),
            waiting: word(waiting).into(),
            given: word(given).into(),
            name_bytes: half(name_bytes).into(),
            flags: 0.into(),
        };
        (record, name)
    }
}

/// A service whose calls lend memory, as it was at the last look.
pub(super) struct LendingService {
    pub(super) report: ServiceReport,
    pub(super) name: Vec<u8>,
}

impl<P: ClientPort> Default for Services<P> {
    fn default() -> Self {
        // Memory that is zero already costs nothing until somebody offers a service of its page.
        Self {
            table: Vec::new(),
            places: vec![0; NUMBERS].into(),
            offers: None,
            rights: Rights::default(),
            lending: Vec::new(),
        }
    }
}

impl<P: ClientPort> Services<P> {
    /// Says who may offer what, and call it.
    pub fn limit(&mut self, rights: Rights) {
        self.rights = rights;
    }

    /// Takes the rules, for whoever judges by them.
    pub(super) fn take_rights(&mut self) -> Rights {
        std::mem::take(&mut self.rights)
    }

    /// Offers a service that a function answers.
    ///
    /// # Errors
    ///
    /// [`OfferError`].
    pub fn offer(&mut self, service: u16, handler: ServiceFn) -> Result<(), OfferError> {
        self.add(service, Service::Embedded(handler))
    }

    /// Joins the threads of a daemon. A function that several of them offer is called by each; one
    /// that only one offers, by that one.
    pub(super) fn share(&mut self, offers: Option<Offers>) {
        if let Some(offers) = &offers {
            for entry in &self.table {
                // If another thread offers it, too, that one is asked by those that do not.
                let _ = offers.claim(entry.number);
            }
        }
        self.offers = offers;
    }

    /// The other thread that offers a service.
    pub(super) fn elsewhere(&self, service: u16) -> Option<usize> {
        self.offers.as_ref()?.elsewhere(service)
    }

    /// Offers a service that a client answers.
    pub(super) fn provide(
        &mut self,
        offered: Offered,
        client: P::Client,
    ) -> Result<(), OfferError> {
        let (service, is_shared) = (offered.service, offered.is_shared());
        if let Some(provider) = self.provider(service) {
            return provider.members.join(&offered, client);
        }
        let is_free = service != DAEMON && self.service(service).is_none();
        let claims = |offers: &Offers| match is_shared {
            true => offers.claim_shared(service),
            false => offers.claim(service),
        };
        if is_free && !self.offers.as_ref().is_none_or(claims) {
            return Err(OfferError::Taken(service));
        }
        let (members, queue) = (Members::new(offered, client), FairQueue::default());
        self.add(service, Service::Provided(Provider { members, queue }))
    }

    /// Tells the other threads of the services that this one shares, if nobody else does any more.
    pub(super) fn claim_shared(&self) {
        let Some(offers) = &self.offers else { return };
        for Entry { number, service, .. } in &self.table {
            if let Service::Provided(provider) = service
                && provider.members.is_shared()
            {
                // If another thread offers it, that one is asked by those that do not.
                let _ = offers.claim_shared(*number);
            }
        }
    }

    /// Writes what a service says about itself; `false`: nobody offers it.
    pub(super) fn describe(&mut self, service: u16, into: &mut Vec<u8>) -> bool {
        let is_elsewhere = self.elsewhere(service).is_some();
        let (name_bytes, description) = match self.service(service) {
            Some(Service::Provided(provider)) => provider.members.description(),
            Some(Service::Embedded(_)) => (0, &[][..]),
            None if is_elsewhere => (0, &[][..]),
            None => return false,
        };
        into.extend_from_slice(&name_bytes.to_le_bytes());
        into.extend_from_slice(description);
        true
    }

    /// Writes what this thread offers in the order of the numbers, without the first `skip`; returns
    /// how many.
    pub(super) fn report(&self, into: &mut Vec<u8>, skip: usize) -> usize {
        let entries = self.sorted();
        let offered = entries.iter().map(|entry| {
            let (service, name) = entry.record();
            (ServiceReport { service, requests: entry.requests.into() }, name)
        });
        let lending = self.lending.iter().map(|it| (it.report, &it.name[..]));
        let mut count = 0;
        for (record, name) in offered.chain(lending).skip(skip).take(report::RECORDS_MAX) {
            into.extend_from_slice(record.as_bytes());
            into.extend_from_slice(name);
            count += 1;
        }
        count
    }

    /// The services whose calls lend memory are these now.
    pub(super) fn set_lending(&mut self, lending: Vec<LendingService>) {
        self.lending = lending;
    }

    fn sorted(&self) -> Vec<&Entry<P>> {
        let mut entries: Vec<_> = self.table.iter().collect();
        entries.sort_by_key(|entry| entry.number);
        entries
    }

    fn add(&mut self, number: u16, service: Service<P>) -> Result<(), OfferError> {
        if number == DAEMON {
            return Err(OfferError::Reserved);
        }
        if self.service(number).is_some() {
            return Err(OfferError::Taken(number));
        }
        self.table.push(Entry { number, service, requests: 0 });
        // There are no more services than numbers.
        self.places[usize::from(number)] = u16::try_from(self.table.len()).unwrap_or(u16::MAX);
        Ok(())
    }

    /// Writes down where each service is.
    fn index(&mut self) {
        for (place, entry) in (1..=u16::MAX).zip(&self.table) {
            self.places[usize::from(entry.number)] = place;
        }
    }

    #[inline]
    fn service(&mut self, number: u16) -> Option<&mut Service<P>> {
        Some(&mut self.entry(number)?.service)
    }

    #[inline]
    fn entry(&mut self, number: u16) -> Option<&mut Entry<P>> {
        let place = usize::from(self.places[usize::from(number)]);
        self.table.get_mut(place.wrapping_sub(1))
    }

    /// Answers a request, if a function of this thread does; a function that panics answers
    /// [`Status::Internal`]. `None`: nobody offers the service.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        service: u16,
        inbound: &Inbound<'_>,
        body: &mut Vec<u8>,
    ) -> Option<Served> {
        let Some(entry) = self.entry(service) else {
            return self.elsewhere(service).map(|_| Served::Elsewhere);
        };
        entry.requests += 1;
        let handler = match &mut entry.service {
            Service::Embedded(handler) => handler,
            Service::Provided(_) => return Some(Served::Provided),
        };
        // What the function captured is its own affair.
        let status = catch_unwind(AssertUnwindSafe(|| handler(inbound, body)));
        Some(Served::Answered(status.unwrap_or_else(|_| {
            body.clear();
            Status::Internal
        })))
    }

    /// Who is to answer a request if no function of this thread does; `None`: one does, or nobody.
    pub(super) fn others(&mut self, service: u16) -> Option<Served> {
        match self.service(service) {
            Some(Service::Provided(_)) => Some(Served::Provided),
            Some(Service::Embedded(_)) => None,
            None => self.elsewhere(service).map(|_| Served::Elsewhere),
        }
    }

    /// Whether a function of this thread answers.
    pub(super) fn has_function(&mut self, service: u16) -> bool {
        matches!(self.service(service), Some(Service::Embedded(_)))
    }

    /// The services that functions of this thread answer.
    pub(super) fn functions(&self) -> Vec<u16> {
        let is_function = |entry: &&Entry<P>| matches!(entry.service, Service::Embedded(_));
        self.table.iter().filter(is_function).map(|entry| entry.number).collect()
    }

    /// The processes that provide a service.
    pub(super) fn provider(&mut self, service: u16) -> Option<&mut Provider<P>> {
        match self.service(service)? {
            Service::Provided(provider) => Some(provider),
            Service::Embedded(_) => None,
        }
    }

    /// Whether a process waits for a request for the service.
    #[inline]
    pub(super) fn is_polled(&self, service: u16) -> bool {
        let place = usize::from(self.places[usize::from(service)]);
        let entry = self.table.get(place.wrapping_sub(1));
        entry.is_some_and(|entry| {
            matches!(&entry.service, Service::Provided(provider) if provider.members.is_polling())
        })
    }

    /// Counts a request that goes to such a process.
    #[inline]
    pub(super) fn count_request(&mut self, service: u16) {
        self.count_requests(service, 1);
    }

    /// Counts requests for a service.
    #[inline]
    pub(super) fn count_requests(&mut self, service: u16, count: u64) {
        if let Some(entry) = self.entry(service) {
            entry.requests += count;
        }
    }

    /// Takes the poll of a provider that is to have the next request.
    #[inline]
    pub(super) fn take_poll(&mut self, service: u16) -> Option<Poll<P>> {
        self.provider(service)?.members.take_poll()
    }

    /// Queues a request for its provider. [`Status::ResourceExhausted`]: too much waits.
    pub(super) fn enqueue(
        &mut self,
        held: &mut Held,
        request: QueuedRequest<P>,
    ) -> Result<(), Status> {
        let provider = self.provider(request.head.service).ok_or(Status::ResourceExhausted)?;
        enqueue(&mut provider.queue, held, request)
    }

    /// Whether a process that offers a service is gone.
    #[cold]
    pub(super) fn has_lost_provider(&self, is_there: impl Fn(P::Client) -> bool) -> bool {
        self.table.iter().any(|entry| match &entry.service {
            Service::Provided(provider) => !provider.members.are_all(&is_there),
            Service::Embedded(_) => false,
        })
    }

    /// Withdraws the services whose clients are all gone; returns the requests that waited for them.
    pub(super) fn withdraw(
        &mut self,
        held: &mut Held,
        admission: &mut Admission,
        is_there: impl Fn(P::Client) -> bool,
    ) -> Vec<Key> {
        let Self { table, places, offers, .. } = self;
        let (mut withdrawn, mut last, mut unhanded) = (0_usize, 0, Vec::new());
        table.retain_mut(|Entry { number, service, .. }| match service {
            Service::Provided(provider) => {
                let gone = |client| admission.withdrawn(P::tag(client));
                if provider.members.retain(&is_there, gone) {
                    return true;
                }
                (withdrawn, last) = (withdrawn + 1, *number);
                for (caller, bytes, request) in provider.queue.take_all() {
                    held.release(caller, bytes);
                    unhanded.push(request.key);
                }
                if let Some(offers) = offers {
                    offers.release(*number);
                }
                places[usize::from(*number)] = 0;
                false
            }
            Service::Embedded(_) => true,
        });
        if withdrawn > 0 {
            // One line, however many there were.
            tracing::info!(services = withdrawn, last, "their providers are gone");
            self.index();
        }
        unhanded
    }
}
