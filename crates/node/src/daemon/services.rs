//! Who answers requests for this node: functions of the embedding program, or client processes.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
};

use rpc::Status;

pub use crate::client::Inbound;
use crate::daemon::{crew::Offers, front::Front, wire::DAEMON};

/// Most requests that wait for one providing process, or for one service of another thread.
pub(super) const QUEUE_MAX: usize = 4096;

/// Numbers that a service may have, and 0.
const NUMBERS: usize = 1 << 16;

/// Answers a request: the body goes into the buffer, which is empty. It must not wait.
pub type Handler = Box<dyn FnMut(&Inbound<'_>, &mut Vec<u8>) -> Status>;

/// Why a service is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Number 0 is the daemon itself.
    #[error("service {DAEMON} is the daemon itself; choose another number")]
    Reserved,
    /// Somebody offers it already.
    #[error("service {0} is already offered on this node")]
    Taken(u16),
}

/// A request that waits for its provider.
#[derive(Debug)]
pub(super) struct Job {
    /// Name of the work.
    pub(super) work: u64,
    pub(super) rank: u32,
    pub(super) method: u16,
    pub(super) body: Vec<u8>,
}

/// A client process that answers requests.
#[derive(Debug)]
pub(super) struct Provider<F: Front> {
    pub(super) client: F::Client,
    /// Its wishes for a request, oldest first.
    pub(super) takes: VecDeque<F::Token>,
    /// Requests for it, oldest first.
    pub(super) queue: VecDeque<Job>,
}

enum Service<F: Front> {
    Embedded(Handler),
    Provided(Provider<F>),
}

/// What this node offers.
pub struct Services<F: Front> {
    /// With their numbers.
    table: Vec<(u16, Service<F>)>,
    /// By number: one more than the place in `table`; 0: not offered. Looked up for every request.
    places: Box<[u16]>,
    /// What the other threads offer; `None` if there are none.
    offers: Option<Offers>,
}

/// What is to be done with a request.
pub(super) enum Served {
    /// It was answered; the body is in the buffer.
    Answered(Status),
    /// A provider is to answer it.
    Provided,
    /// Another thread is to answer it.
    Elsewhere,
}

impl<F: Front> Default for Services<F> {
    fn default() -> Self {
        // Memory that is zero already costs nothing until somebody offers a service of its page.
        Self { table: Vec::new(), places: vec![0; NUMBERS].into(), offers: None }
    }
}

impl<F: Front> Services<F> {
    /// Offers a service that a function answers.
    ///
    /// # Errors
    ///
    /// [`OfferError`].
    pub fn offer(&mut self, service: u16, handler: Handler) -> Result<(), OfferError> {
        self.add(service, Service::Embedded(handler))
    }

    /// Joins the threads of a daemon. A function that several of them offer is called by each; one
    /// that only one offers, by that one.
    pub(super) fn share(&mut self, offers: Option<Offers>) {
        if let Some(offers) = &offers {
            for (number, _) in &self.table {
                // If another thread offers it, too, that one is asked by those that do not.
                let _ = offers.claim(*number);
            }
        }
        self.offers = offers;
    }

    /// The other thread that offers a service.
    pub(super) fn elsewhere(&self, service: u16) -> Option<usize> {
        self.offers.as_ref()?.elsewhere(service)
    }

    /// Offers a service that a client answers.
    pub(super) fn provide(&mut self, service: u16, client: F::Client) -> Result<(), OfferError> {
        let is_free = service != DAEMON && self.service(service).is_none();
        if is_free && self.offers.as_ref().is_some_and(|offers| !offers.claim(service)) {
            return Err(OfferError::Taken(service));
        }
        let (takes, queue) = (VecDeque::new(), VecDeque::new());
        self.add(service, Service::Provided(Provider { client, takes, queue }))
    }

    fn add(&mut self, number: u16, service: Service<F>) -> Result<(), OfferError> {
        if number == DAEMON {
            return Err(OfferError::Reserved);
        }
        if self.service(number).is_some() {
            return Err(OfferError::Taken(number));
        }
        self.table.push((number, service));
        self.index();
        Ok(())
    }

    /// Writes down where each service is.
    fn index(&mut self) {
        for (place, (number, _)) in (1..=u16::MAX).zip(&self.table) {
            self.places[usize::from(*number)] = place;
        }
    }

    #[inline]
    fn service(&mut self, number: u16) -> Option<&mut Service<F>> {
        let place = usize::from(self.places[usize::from(number)]);
        let (_, service) = self.table.get_mut(place.wrapping_sub(1))?;
        Some(service)
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
        let handler = match self.service(service) {
            Some(Service::Embedded(handler)) => handler,
            Some(Service::Provided(_)) => return Some(Served::Provided),
            None => return self.elsewhere(service).map(|_| Served::Elsewhere),
        };
        // What the function captured is its own affair.
        let status = catch_unwind(AssertUnwindSafe(|| handler(inbound, body)));
        Some(Served::Answered(status.unwrap_or_else(|_| {
            body.clear();
            Status::Internal
        })))
    }

    /// The process that provides a service.
    pub(super) fn provider(&mut self, service: u16) -> Option<&mut Provider<F>> {
        match self.service(service)? {
            Service::Provided(provider) => Some(provider),
            Service::Embedded(_) => None,
        }
    }

    /// Queues a request for its provider; `false` if too many wait.
    pub(super) fn enqueue(&mut self, service: u16, job: Job) -> bool {
        let provider = self.provider(service).filter(|provider| provider.queue.len() < QUEUE_MAX);
        provider.map(|provider| provider.queue.push_back(job)).is_some()
    }

    /// Forgets requests that are not wanted.
    pub(super) fn retain_jobs(&mut self, is_wanted: impl Fn(&Job) -> bool) {
        for (_, service) in &mut self.table {
            if let Service::Provided(provider) = service {
                provider.queue.retain(&is_wanted);
            }
        }
    }

    /// Withdraws the services of clients that are gone.
    pub(super) fn withdraw(&mut self, is_there: impl Fn(F::Client) -> bool) {
        let Self { table, places, offers } = self;
        table.retain(|(number, service)| match service {
            Service::Provided(provider) if !is_there(provider.client) => {
                tracing::info!(service = number, "its provider is gone");
                if let Some(offers) = offers {
                    offers.release(*number);
                }
                places[usize::from(*number)] = 0;
                false
            }
            Service::Provided(_) | Service::Embedded(_) => true,
        });
        self.index();
    }
}
