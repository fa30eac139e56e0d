//! The one door of the daemon: whether a request may go on, whatever carries its body and wherever it comes from, and
//! whether a client may offer a service.

use std::collections::BTreeMap;

use bootstrap::RankInfo;
use client::message::{CallerHead, DAEMON, method};
use rpc::Status;

use crate::{
    client_port::{ClientPort, ClientTag},
    limits::Limits,
    members::OfferError,
    metrics::{Counter, Tally},
    request::{Caller, Request, process_of},
    request_head::RequestHead,
    rights::{Act, Rights},
};

/// The place of an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The daemon itself, which everybody may ask.
    Daemon,
    /// A service of this node.
    Here,
    /// A service of another node.
    There,
}

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The job has no such rank.
    NoRank,
    /// The rights do not let the caller call the service.
    Denied,
    /// The daemon takes nothing new any more.
    Draining,
    /// The body is longer than bodies may be.
    TooLong,
}

impl Refusal {
    /// What the caller is told.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::NoRank => Status::NotFound,
            Self::Denied => Status::PermissionDenied,
            Self::Draining => Status::Unavailable,
            Self::TooLong => Status::OutOfRange,
        }
    }
}

/// What requests and offers are judged by.
pub(crate) struct Admission {
    rank: u32,
    size: u32,
    rights: Rights,
    is_draining: bool,
    body_bytes_max: usize,
    services_per_client: usize,
    /// Services of each client that offers any, those of ordinary calls and those of calls that lend memory.
    offered: BTreeMap<ClientTag, usize>,
}

impl Admission {
    pub(crate) fn new(
        rank_info: RankInfo,
        rights: Rights,
        body_bytes_max: usize,
        limits: &Limits,
    ) -> Self {
        Self {
            rank: rank_info.rank(),
            size: rank_info.size(),
            rights,
            is_draining: false,
            body_bytes_max,
            services_per_client: limits.services_per_client,
            offered: BTreeMap::new(),
        }
    }

    /// Nothing new is admitted any more.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Longest body of a request or an answer.
    #[inline]
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    /// Counts a request and judges it, in this order: by rank, by rights, by the daemon's life, by length.
    #[inline(always)]
    pub(crate) fn admit<P: ClientPort>(
        &self,
        request: &Request<'_, P>,
        tally: &mut Tally,
    ) -> Result<Route, Refusal> {
        let Request { reply_to, head, .. } = request;
        let is_here = head.rank == self.rank;
        if is_here && head.service == DAEMON {
            return Ok(Route::Daemon);
        }
        if let Caller::Client(_) = reply_to {
            let counter = if is_here { Counter::RequestsLocal } else { Counter::RequestsRemote };
            tally.add(counter, 1);
        }
        self.check(request)?;
        Ok(if is_here { Route::Here } else { Route::There })
    }

    /// Judges a request that is not for the daemon of this node itself, or an introduction, which is a request that is
    /// to be made.
    #[inline(always)]
    pub(crate) fn check<P: ClientPort>(&self, request: &Request<'_, P>) -> Result<(), Refusal> {
        let Request { reply_to, head, .. } = request;
        if head.rank >= self.size {
            return Err(Refusal::NoRank);
        }
        if head.service == DAEMON || self.rights.is_limited(Act::Call, head.service) {
            self.judge(request)?;
        }
        // The thread that took the request from its client admitted it: it is in flight there, and ends as it would.
        if self.is_draining && !matches!(reply_to, Caller::Thread(..)) {
            return Err(Refusal::Draining);
        }
        if request.body.len_bytes() > request.body.longest(self.body_bytes_max) {
            return Err(Refusal::TooLong);
        }
        Ok(())
    }

    /// Whether the rights admit a request for a service that not everybody may call, or for the daemon of another node.
    #[cold]
    fn judge<P: ClientPort>(&self, request: &Request<'_, P>) -> Result<(), Refusal> {
        let RequestHead { caller, service, method, .. } = &request.head;
        let may_go_on = match request.reply_to {
            // All else that daemons tell each other, they vouch for.
            Caller::Client(_) if *service == DAEMON => {
                [method::PING, method::DESCRIBE].contains(method)
            }
            Caller::Client(_) => self.rights.allows(Act::Call, *service, process_of(caller)),
            // By the thread that took it from its client, or from another node.
            Caller::Thread(..) => true,
            Caller::Peer(_) => process_of(caller)
                .is_some_and(|process| self.rights.may_allow(*service, process.uid)),
        };
        if may_go_on { Ok(()) } else { Err(Refusal::Denied) }
    }

    /// Judges the offer of a service of either kind. One that is made is to be [counted](Self::offered).
    pub(crate) fn admit_offer(
        &self,
        service: u16,
        client: ClientTag,
        caller: &CallerHead,
    ) -> Result<(), OfferError> {
        if service == DAEMON {
            return Err(OfferError::Reserved);
        }
        if !self.rights.allows(Act::Offer, service, process_of(caller)) {
            return Err(OfferError::Denied(service));
        }
        if self.offered_by(client) >= self.services_per_client {
            return Err(OfferError::TooMany(self.services_per_client));
        }
        Ok(())
    }

    /// A client offers one more service.
    pub(crate) fn offered(&mut self, client: ClientTag) {
        *self.offered.entry(client).or_default() += 1;
    }

    /// A client is gone, and so are its services.
    pub(crate) fn withdrawn(&mut self, client: ClientTag) {
        self.offered.remove(&client);
    }

    /// Services that a client offers.
    pub(crate) fn offered_by(&self, client: ClientTag) -> usize {
        self.offered.get(&client).copied().unwrap_or(0)
    }
}
