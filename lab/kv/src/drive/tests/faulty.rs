//! A client's end that lies, to prove that lies are found.

use std::collections::HashMap;

use crate::{
    backend::{BackendError, CallToken, Client, Contact, Counters, Event, Roster, SubmitError},
    codec::{Answer, Request, StoreCommand, StoreOp, StoreStatus},
    place::Shard,
};

/// Faults of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// One bit of an answer is wrong.
    FlipBit,
    /// The last byte of an answer is missing.
    Cut,
    /// An answer is lost.
    Drop,
    /// An answer comes twice.
    Duplicate,
    /// Two calls get each other's answer.
    Swap,
    /// A call gets an answer of an earlier call.
    Replay,
    /// A GET is answered with a value that the key once had: well-formed, but out of date.
    Stale,
    /// A PUT is acknowledged but not carried out.
    Forget,
}

/// Wraps a client's end; every `period`-th answer (or request, for [`Fault::Forget`]) is wrong.
#[derive(Debug)]
pub(super) struct Faulty<C> {
    inner: C,
    fault: Fault,
    period: u64,
    count: u64,
    /// Held back for [`Fault::Swap`], kept for [`Fault::Replay`].
    kept: Option<(CallToken, Vec<u8>)>,
    /// The first value seen of each key.
    first_values: HashMap<u64, Vec<u8>>,
    /// Acknowledgements made up by [`Fault::Forget`].
    made_up: Vec<(CallToken, Vec<u8>)>,
}

impl<C: Client> Faulty<C> {
    /// Wraps `inner`.
    pub(super) fn new(inner: C, fault: Fault, period: u64) -> Self {
        let (kept, first_values, made_up) = (None, HashMap::new(), Vec::new());
        Self { inner, fault, period, count: 0, kept, first_values, made_up }
    }

    fn is_due(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.period)
    }

    /// Passes on an answer, or what becomes of it.
    fn distort(
        &mut self,
        token: CallToken,
        mut bytes: Vec<u8>,
        out: &mut Vec<(CallToken, Vec<u8>)>,
    ) {
        if self.fault == Fault::Stale {
            return self.make_stale(token, bytes, out);
        }
        if let Some((other, earlier)) = self.kept.take() {
            match self.fault {
                Fault::Swap => {
                    out.push((token, earlier));
                    out.push((other, bytes));
                    return;
                }
                _ => bytes = earlier,
            }
        } else if self.is_due() {
            match self.fault {
                Fault::FlipBit => {
                    let bit = usize::try_from(self.count).unwrap_or(0) % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                Fault::Cut => drop(bytes.pop()),
                Fault::Drop => return,
                Fault::Duplicate => out.push((token, bytes.clone())),
                Fault::Swap => {
                    self.kept = Some((token, bytes));
                    return;
                }
                Fault::Replay => self.kept = Some((token, bytes.clone())),
                Fault::Stale | Fault::Forget => {}
            }
        }
        out.push((token, bytes));
    }

    fn make_stale(
        &mut self,
        token: CallToken,
        mut bytes: Vec<u8>,
        out: &mut Vec<(CallToken, Vec<u8>)>,
    ) {
        let is_due = self.is_due();
        if let Ok(answer) = Answer::read(&bytes)
            && (answer.op, answer.status) == (Some(StoreOp::Get), StoreStatus::Ok)
        {
            let tag = answer.tag;
            let first = self.first_values.entry(answer.key).or_insert_with(|| bytes.clone());
            if is_due && let Ok(first) = Answer::read(first) {
                let mut stale = Vec::new();
                Answer { tag, ..first }.write(&mut stale);
                bytes = stale;
            }
        }
        out.push((token, bytes));
    }
}

impl<C: Client> Client for Faulty<C> {
    fn contact(&self) -> Contact {
        self.inner.contact()
    }

    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        self.inner.join(roster, deadline_ns)
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        if self.fault == Fault::Forget
            && let Ok(Request { tag, key, action: action @ StoreCommand::Put { .. } }) =
                Request::read(request)
            && self.is_due()
        {
            let (op, status, version) = (Some(action.op()), StoreStatus::Ok, None);
            let mut answer = Vec::new();
            Answer { op, status, tag, key, version, value: &[] }.write(&mut answer);
            self.made_up.push((token, answer));
            return Ok(());
        }
        self.inner.submit(to, token, request)
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let mut arrived = Vec::new();
        self.inner.poll(budget, &mut |event| match event {
            Event::Answer { token, bytes } => arrived.push((token, bytes.to_vec())),
            other => sink(other),
        })?;
        let mut out = std::mem::take(&mut self.made_up);
        for (token, bytes) in arrived {
            self.distort(token, bytes, &mut out);
        }
        for (token, bytes) in &out {
            sink(Event::Answer { token: *token, bytes });
        }
        Ok(out.len())
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.inner.wait(deadline_ns)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
