//! What a daemon tells of its clients, peers, services and answers.

use client::message::{
    CallerHead, ClientRecord, DAEMON, PeerRecord, ReportAnswer, ReportHead, report,
};
use rpc::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    client_port::{ClientPort, Replies as _},
    dispatcher::{
        Answer, Dispatcher,
        provider_calls::{ProviderCall, Server},
    },
    request::{Request, caller_head},
    threads::{AskedBy, ThreadCall, ThreadRequest},
};

impl<P: ClientPort> Dispatcher<P> {
    /// A client asks a thread of the daemon for a report.
    pub(super) fn serve_report(
        &mut self,
        request: Request<'_, P>,
        replies: &P::Replies,
        answer: &mut Vec<u8>,
    ) -> Answer {
        let payload = request.body.private();
        let Ok(asked) = ReportHead::read_from_bytes(payload) else {
            return Answer::Now(Status::InvalidArgument);
        };
        let thread = u32::from(asked.thread.get());
        if thread == self.thread_handle.number() {
            return Answer::Now(self.report(payload, replies, answer));
        }
        if thread >= self.thread_handle.threads() {
            return Answer::Now(Status::NotFound);
        }
        let head = request.head;
        let call = ProviderCall::new(request, Server::Thread, self.now_ns);
        let Ok(key) = self.provider_calls.insert(call) else {
            return Answer::Refused(Status::ResourceExhausted);
        };
        let asked = AskedBy { thread: self.thread_handle.number(), key };
        let serve = ThreadRequest::Serve { head, asked, body: payload.to_vec().into() };
        let to = ThreadCall::Provider { key, service: DAEMON };
        match self.thread_handle.request(thread as usize, to, serve) {
            Ok(()) => Answer::Later,
            Err((_, status)) => {
                self.provider_calls.remove(key);
                Answer::Refused(status)
            }
        }
    }

    /// Writes what this thread tells into the answer.
    pub(super) fn report(
        &mut self,
        payload: &[u8],
        replies: &P::Replies,
        answer: &mut Vec<u8>,
    ) -> Status {
        let Ok(asked) = ReportHead::read_from_bytes(payload) else {
            return Status::InvalidArgument;
        };
        let skip = asked.skip.get() as usize;
        let mut told = Vec::new();
        let records = match asked.what.get() {
            report::CLIENTS => self.report_clients(replies, &mut told, skip),
            report::PEERS => self.report_peers(&mut told, skip),
            report::SERVICES => self.services.report(&mut told, skip),
            report::STATUSES => self.report_statuses(&mut told, skip),
            _ => return Status::InvalidArgument,
        };
        let threads = u16::try_from(self.thread_handle.threads()).unwrap_or(u16::MAX);
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        let head =
            ReportAnswer { threads: threads.into(), reserved: 0.into(), records: records.into() };
        answer.extend_from_slice(head.as_bytes());
        answer.extend_from_slice(&told);
        Status::Ok
    }

    fn report_clients(&self, replies: &P::Replies, into: &mut Vec<u8>, skip: usize) -> usize {
        let direct = |tag| self.introductions.sessions.requests_of(|client| P::tag(client) == tag);
        let mut clients = replies.clients();
        clients.sort_by_key(|client| client.tag);
        let word = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let mut count = 0;
        for client in clients.into_iter().skip(skip).take(report::RECORDS_MAX) {
            let CallerHead { uid, pid, .. } = caller_head(client.process, 0);
            let record = ClientRecord {
                pid,
                uid,
                requests: (client.requests + direct(client.tag)).into(),
                in_flight: word(client.in_flight).into(),
                services: word(self.admission.offered_by(client.tag)).into(),
            };
            into.extend_from_slice(record.as_bytes());
            count += 1;
        }
        count
    }

    fn report_peers(&self, into: &mut Vec<u8>, skip: usize) -> usize {
        let is_own = |rank: &u32| {
            *rank != self.rank_info.rank() && self.thread_handle.owner(*rank).is_none()
        };
        let mut in_flight = vec![0_u32; self.rank_info.size() as usize];
        for call in self.calls.iter() {
            in_flight[call.charge.rank as usize] += 1;
        }
        let mut count = 0;
        let ranks = (0..self.rank_info.size()).filter(is_own);
        for rank in ranks.skip(skip).take(report::RECORDS_MAX) {
            let counts = self.peers.counts(rank);
            let waiting = u32::try_from(self.waiting.len_of(rank)).unwrap_or(u32::MAX);
            let record = PeerRecord {
                rank: rank.into(),
                is_up: u32::from(self.peers.get(rank).is_some()).into(),
                calls: counts.calls.into(),
                in_flight: in_flight[rank as usize].into(),
                waiting: waiting.into(),
                unanswered: counts.unanswered.into(),
                requests: counts.requests.into(),
            };
            into.extend_from_slice(record.as_bytes());
            count += 1;
        }
        count
    }

    fn report_statuses(&self, into: &mut Vec<u8>, skip: usize) -> usize {
        let told = &self.statuses[skip.min(self.statuses.len())..];
        into.extend(told.iter().flat_map(|count| count.to_le_bytes()));
        told.len()
    }
}
