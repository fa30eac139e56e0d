//! The child's role: does what the parent asks, until that goes away.

use super::{
    SuiteError,
    words::{Reply, Request, receive},
};
use crate::{
    duo::{DuoError, Side},
    traffic::Party,
    workers::WorkerParty,
};

/// Opens a NIC by name and creates one side of the traffic on it.
pub type OpenParty<'a> = &'a dyn Fn(&str) -> Result<Box<dyn Party>, String>;

/// Finds a NIC by name and gives what opens workers on it.
pub type OpenWorkers<'a> = &'a dyn Fn(&str) -> Result<Box<dyn WorkerParty>, String>;

/// The child's role: serves until the parent goes away.
///
/// # Errors
///
/// [`SuiteError`]. What fails within a sample is told to the parent instead.
pub fn serve(
    side: &mut Side,
    open: OpenParty<'_>,
    open_workers: OpenWorkers<'_>,
) -> Result<(), SuiteError> {
    let mut responder = Responder { open, open_workers, party: None, worker_party: None };
    loop {
        let request = match receive(&mut side.control, &mut responder.party, None) {
            Err(SuiteError::Duo(DuoError::PeerGone)) => return Ok(()),
            request => request?,
        };
        let reply = responder.answer(side, request).unwrap_or_else(Reply::Failed);
        if matches!(reply, Reply::Failed(_)) {
            side.board.fail();
        }
        side.control.send(&reply)?;
    }
}

struct Responder<'a> {
    open: OpenParty<'a>,
    open_workers: OpenWorkers<'a>,
    party: Option<Box<dyn Party>>,
    worker_party: Option<Box<dyn WorkerParty>>,
}

impl Responder<'_> {
    /// Does what is asked; else why it was not done.
    fn answer(&mut self, side: &mut Side, request: Request) -> Result<Reply, String> {
        let Side { board, control } = side;
        let ready = &mut || control.send(&Reply::Ready);
        match request {
            Request::Open { nic } => {
                let party = self.party.insert((self.open)(&nic)?);
                return Ok(Reply::Contacts(party.contacts()));
            }
            Request::Connect(contacts) => {
                self.party()?.connect(&contacts).map_err(in_words)?;
                return Ok(Reply::Ready);
            }
            Request::OpenWorkers { nic } => {
                self.worker_party = Some((self.open_workers)(&nic)?);
                return Ok(Reply::Ready);
            }
            Request::Invite(calls) => {
                let invitations = self.worker_party()?.open(&calls).map_err(in_words)?;
                return Ok(Reply::Invitations(invitations));
            }
            Request::Accept(invitations) => {
                self.worker_party()?.connect(&invitations).map_err(in_words)?;
                return Ok(Reply::Ready);
            }
            Request::Limit(limit) => {
                ready().map_err(in_words)?;
                limit.respond(board).map_err(in_words)?;
            }
            Request::Run(sample) => {
                self.party()?.respond(board, &sample, ready).map_err(in_words)?;
            }
            Request::Serve(sample) => sample.respond(board, ready).map_err(in_words)?,
            Request::CallWorker(sample) => {
                self.worker_party()?.respond(board, &sample, ready).map_err(in_words)?;
            }
        }
        Ok(Reply::Done)
    }

    fn party(&mut self) -> Result<&mut dyn Party, String> {
        match &mut self.party {
            Some(party) => Ok(party.as_mut()),
            None => Err("no NIC is open".to_owned()),
        }
    }

    fn worker_party(&mut self) -> Result<&mut dyn WorkerParty, String> {
        match &mut self.worker_party {
            Some(party) => Ok(party.as_mut()),
            None => Err("no NIC is open for calls".to_owned()),
        }
    }
}

fn in_words(error: impl ToString) -> String {
    error.to_string()
}
