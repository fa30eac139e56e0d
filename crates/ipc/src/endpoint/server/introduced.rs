//! What a server knows of its clients from others, and the end of the sessions of those that were introduced.

use crate::endpoint::{
    lifeline::Lifeline,
    server::{
        core::ServerCore,
        id::{ClientId, ClientProcess},
    },
    status::EvictReason,
};

impl ServerCore {
    /// What the kernel says about a client that was admitted just now.
    pub fn set_process(&mut self, client: ClientId, process: ClientProcess) {
        if let Some(session) = self.replies.table.session(client) {
            session.process = Some(process);
        }
    }

    /// Tells of the end of a client that was admitted just now.
    pub(crate) fn set_lifeline(&mut self, client: ClientId, lifeline: Lifeline) {
        if let Some(session) = self.replies.table.session(client) {
            session.lifeline = Some(lifeline);
        }
    }

    /// Ends a turn in which not all clients were looked at: the next one goes on with them.
    pub(crate) fn pause(&mut self) {
        let cursor = self.cursor;
        self.end();
        self.cursor = cursor.min(self.polled.len());
    }

    /// Takes no more requests of the client that was introduced by this name, or of any if it is `None`, and evicts it
    /// once those that were taken are answered.
    #[cold]
    pub fn retire(&mut self, tag: Option<u64>) {
        for (slot, session) in (0..).zip(&mut self.replies.table.sessions) {
            let Some(session) = session else { continue };
            let is_meant = session.tag.is_some() && (tag.is_none() || session.tag == tag);
            if is_meant && !session.is_retired {
                session.is_retired = true;
                session.is_polled = false;
                self.polled.retain(|polled| *polled != slot);
                self.retiring.push(slot);
            }
        }
        // The next turn begins with the first of those that are left.
        self.cursor = 0;
        self.budget = self.turn_budget;
        self.end_retired();
    }

    /// Asks the client that was introduced by this name to leave. Its requests are taken and answered as before.
    #[cold]
    pub fn ask_to_leave(&mut self, tag: u64) {
        let mut sessions = self.replies.table.sessions.iter().flatten();
        if let Some(session) = sessions.find(|session| session.tag == Some(tag)) {
            session.calls.ask_to_leave();
        }
    }

    #[cold]
    pub(super) fn end_retired(&mut self) {
        for slot in core::mem::take(&mut self.retiring) {
            let session = self.replies.table.sessions[usize::from(slot)].as_deref();
            match session.filter(|session| session.is_retired) {
                Some(session) if session.calls.unanswered() > 0 => self.retiring.push(slot),
                Some(_) => self.evict_slot(slot, EvictReason::Retired),
                None => {}
            }
        }
    }

    /// Says to clients that were introduced that nothing more is taken, as the server ends.
    pub fn abandon_introduced(&self) {
        for session in self.replies.table.sessions.iter().flatten() {
            if session.tag.is_some() {
                session.calls.write_eviction(EvictReason::Retired);
            }
        }
    }

    /// The name by which a client that was admitted just now was introduced.
    pub fn set_tag(&mut self, client: ClientId, tag: Option<u64>) {
        if let Some(session) = self.replies.table.session(client) {
            session.tag = tag;
        }
    }
}
