//! The acceptor: admits clients from the server's own listener, from that of its team, or those that are introduced.

use std::path::Path;

use os::unix::{PeerCredentials, UnixConnection};

use crate::endpoint::{
    poller::Poller,
    server::{
        core::ServerCore,
        handoff::Handoff,
        introduction::{self, IntroducerMessage, Introduction},
        listener::{self, BindError, ClientListener},
        poll_key::PollKey,
        sockets::Sockets,
        stats::Rejections,
    },
};

/// Introductions that are read at a time.
const INTRODUCTIONS_PER_LOOK: usize = 8;

#[derive(Debug)]
pub(crate) struct Acceptor {
    /// `None` if another server of the team listens.
    listener: Option<ClientListener>,
    /// `None` of a server without a team.
    handoff: Option<Handoff>,
    /// The way to whoever introduces clients, if somebody does, and is there.
    introducer: Option<UnixConnection>,
}

impl Acceptor {
    pub(crate) fn open(
        path: Option<&Path>,
        handoff: Option<Handoff>,
        poller: &Poller,
    ) -> Result<Self, BindError> {
        let listener = path.map(|path| ClientListener::open(path, poller)).transpose()?;
        if let Some(handoff) = &handoff {
            poller
                .add(handoff, PollKey::HANDOFF.to_word())
                .map_err(|source| BindError::Os { call: "epoll_ctl", source })?;
        }
        Ok(Self { listener, handoff, introducer: None })
    }

    /// Admits those alone that are introduced through the channel.
    pub(crate) fn introduced(channel: UnixConnection, poller: &Poller) -> Result<Self, BindError> {
        poller
            .add(&channel, PollKey::INTRODUCER.to_word())
            .map_err(|source| BindError::Os { call: "epoll_ctl", source })?;
        Ok(Self { listener: None, handoff: None, introducer: Some(channel) })
    }

    /// Admits clients that are introduced, and does what else the introducer says.
    pub(crate) fn read_introducer(
        &mut self,
        core: &mut ServerCore,
        sockets: &mut Sockets,
        poller: &Poller,
    ) {
        for _ in 0..INTRODUCTIONS_PER_LOOK {
            let Some(channel) = &self.introducer else { return };
            match introduction::read(channel) {
                IntroducerMessage::Introduced(connection, introduction) => {
                    crate::pause::at("introduced");
                    self.admit(connection, (0, Some(introduction)), core, sockets, poller);
                    crate::pause::at("welcomed");
                }
                IntroducerMessage::Retire(tag) => core.retire(tag),
                IntroducerMessage::AskToLeave(tag) => core.ask_to_leave(tag),
                IntroducerMessage::Nothing => return,
                IntroducerMessage::Foreign => {}
                IntroducerMessage::End => {
                    poller.remove(channel);
                    self.introducer = None;
                }
            }
        }
    }

    /// Takes new connections.
    pub(crate) fn accept(&mut self, core: &mut ServerCore, poller: &Poller) {
        if let Some(listener) = &mut self.listener {
            core.stats_mut().accept_backoffs += u64::from(listener.accept(poller));
        }
    }

    /// Admits clients that another server of the team handed to this one.
    pub(crate) fn take_handed(
        &mut self,
        core: &mut ServerCore,
        sockets: &mut Sockets,
        poller: &Poller,
    ) {
        while let Some(connection) = self.handoff.as_ref().and_then(Handoff::next) {
            self.admit(connection, (0, None), core, sockets, poller);
        }
    }

    /// Reads the hello of a connection, and admits it here or at another server of the team.
    pub(crate) fn read_hello(
        &mut self,
        number: u64,
        core: &mut ServerCore,
        sockets: &mut Sockets,
        poller: &Poller,
    ) {
        let Some(listener) = &mut self.listener else { return };
        let Some(connection) = listener.read_hello(number, poller) else { return };
        let pending = listener.pending_of(connection.peer_credentials().uid);
        let Some(handoff) = &self.handoff else {
            return self.admit(connection, (pending, None), core, sockets, poller);
        };
        match handoff.choose(connection, pending) {
            Ok(Some(connection)) => self.admit(connection, (0, None), core, sockets, poller),
            Ok(None) => {}
            Err((connection, reason)) => {
                listener::refuse(&connection, reason);
                core.stats_mut().rejections.add(reason.into());
            }
        }
    }

    fn admit(
        &self,
        connection: UnixConnection,
        (pending_of_user, introduction): (usize, Option<Introduction>),
        core: &mut ServerCore,
        sockets: &mut Sockets,
        poller: &Poller,
    ) {
        let owner = connection.peer_credentials();
        match sockets.admit(connection, (pending_of_user, introduction), core, poller) {
            Ok(()) => core.stats_mut().welcomed += 1,
            Err(reason) => {
                core.stats_mut().rejections.add(reason.into());
                self.left(owner);
            }
        }
    }

    /// A client of this process left, or was not admitted after all.
    pub(crate) fn left(&self, owner: PeerCredentials) {
        if let Some(handoff) = &self.handoff {
            handoff.leave(owner);
        }
    }

    /// Ends connections that have not said hello in time.
    pub(crate) fn expire(&mut self, now_ns: u64, poller: &Poller) {
        if let Some(listener) = &mut self.listener {
            listener.expire(now_ns, poller);
        }
    }

    /// Connections that the listener itself did not take.
    pub(crate) fn rejections(&self) -> Rejections {
        self.listener.as_ref().map_or_else(Rejections::default, ClientListener::rejections)
    }

    /// In a forked child: the listener belongs to the parent.
    pub(crate) fn forget(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.forget();
        }
    }
}
