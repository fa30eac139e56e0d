//! What parent and child say to each other.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::SuiteError;
use crate::{
    calls::CallSample,
    duo::{Control, DuoError},
    limit::SharedLimit,
    traffic::{Contact, Party, Sample},
    workers::{WorkerCalls, WorkerSample},
};

/// What the parent asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Open { nic: String },
    Connect(Vec<Contact>),
    Limit(SharedLimit),
    Run(Sample),
    Serve(CallSample),
    OpenWorkers { nic: String },
    Invite(WorkerCalls),
    Accept(Vec<String>),
    CallWorker(WorkerSample),
}

/// What the child answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Contacts(Vec<Contact>),
    Invitations(Vec<String>),
    Ready,
    Done,
    Failed(String),
}

/// Waits for the next message and keeps the NIC, if there is one, going meanwhile.
pub(super) fn receive<T: DeserializeOwned>(
    control: &mut Control,
    party: &mut Option<Box<dyn Party>>,
    deadline: Option<Duration>,
) -> Result<T, SuiteError> {
    let begin = Instant::now();
    loop {
        let pause = party.as_mut().map(|party| party.idle()).transpose()?.flatten();
        let left = deadline.map(|deadline| deadline.saturating_sub(begin.elapsed()));
        let timeout = match (pause, left) {
            (Some(pause), Some(left)) => Some(pause.min(left)),
            (pause, left) => pause.or(left),
        };
        match control.receive(timeout) {
            Err(DuoError::Silent(_)) if left.is_none_or(|left| !left.is_zero()) => {}
            message => return Ok(message?),
        }
    }
}
