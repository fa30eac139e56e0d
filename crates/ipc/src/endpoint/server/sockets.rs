//! The sockets of a server's clients, by slot, and how a client is told of its admission.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use memory::Region;
use os::{
    clock,
    fdpass::RecvError,
    process::Process,
    unix::{PeerCredentials, UnixConnection},
};

use crate::endpoint::{
    fork::ForkGuard,
    handshake::{self, DESCRIPTOR, HandshakeAnswer, RefuseReason, WAKEUP, Welcome},
    lifeline::Lifeline,
    poller::Poller,
    server::{
        core::ServerCore,
        handoff::of_process,
        id::{ClientId, ClientProcess},
        introduction::Introduction,
        listener::{self, BindError},
        poll_key::{PollKey, Source},
    },
};

/// The result of a look at a client's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    Wakeup,
    /// A descriptor, which is kept.
    Descriptor,
    /// Nothing, or not yet.
    Nothing,
    /// Something that is not in the protocol.
    Foreign,
    /// The client is gone.
    End,
}

/// The socket of one client, shut down on drop.
#[derive(Debug)]
struct ClientSocket {
    connection: Arc<UnixConnection>,
    /// `None` where the kernel gives no handle: then the socket alone tells of death.
    process: Option<Arc<Process>>,
    /// What the client sent and nobody took yet.
    descriptor: Option<OwnedFd>,
    fork: ForkGuard,
}

impl ClientSocket {
    fn owner(&self) -> PeerCredentials {
        self.connection.peer_credentials()
    }

    fn watch(&self, poller: &Poller, client: ClientId) -> io::Result<()> {
        let ClientId { slot, generation } = client;
        let key = |source| PollKey { source, slot, generation }.to_word();
        poller.add(&self.connection, key(Source::Socket))?;
        match &self.process {
            Some(process) => poller.add(process, key(Source::Process)),
            None => Ok(()),
        }
    }

    fn unwatch(&self, poller: &Poller) {
        poller.remove(&self.connection);
        if let Some(process) = &self.process {
            poller.remove(process);
        }
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if !self.fork.is_forked() {
            // Closing alone would not be noticed while a forked child holds a copy.
            let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
        }
    }
}

/// The sockets of all clients.
#[derive(Debug)]
pub(crate) struct Sockets {
    by_slot: Vec<Option<ClientSocket>>,
    takes_descriptors: bool,
    fork: ForkGuard,
}

impl Sockets {
    pub(crate) fn new(clients_max: u16, takes_descriptors: bool, fork: ForkGuard) -> Self {
        Self { by_slot: (0..clients_max).map(|_| None).collect(), takes_descriptors, fork }
    }

    /// Admits a connection that said hello, or refuses it. All notices of the core were taken.
    pub(crate) fn admit(
        &mut self,
        connection: UnixConnection,
        (pending_of_user, introduction): (usize, Option<Introduction>),
        core: &mut ServerCore,
        poller: &Poller,
    ) -> Result<(), RefuseReason> {
        let owner = connection.peer_credentials();
        let owners: Vec<_> = self.by_slot.iter().flatten().map(ClientSocket::owner).collect();
        let of_user = owners.iter().filter(|candidate| candidate.uid == owner.uid).count();
        let user_max = usize::from(core.config().clients_per_user_max);
        let process_max = usize::from(core.config().clients_per_process_max);
        let halves = if of_user + pending_of_user >= user_max {
            Err(RefuseReason::UserLimit)
        } else if of_process(owners.iter(), owner) >= process_max {
            Err(RefuseReason::ProcessLimit)
        } else if core.has_free() {
            make_halves(core).map_err(|_| RefuseReason::ResourceExhausted)
        } else {
            Err(RefuseReason::ServerFull)
        };
        let (up, down) = halves.inspect_err(|reason| listener::refuse(&connection, *reason))?;
        let admitted = core.admit(Arc::clone(&up), Arc::clone(&down));
        let Some((client, welcome)) = admitted else { unreachable!("a slot was free") };
        let process = connection.peer_process().ok().map(Arc::new);
        // A client that was introduced has made its socket by itself: the kernel tells it nothing of this process.
        let own = introduction.and_then(|_| Process::open(std::process::id()).ok());
        let connection = Arc::new(connection);
        let socket = ClientSocket { connection, process, descriptor: None, fork: self.fork };
        let told = socket
            .watch(poller, client)
            .is_ok_and(|()| tell(&socket.connection, welcome, [&up, &down], core, own.as_ref()));
        if !told {
            socket.unwatch(poller);
            core.remove(client.slot);
            return Err(RefuseReason::ResourceExhausted);
        }
        let peer = socket.connection.peer_credentials();
        let of_kernel = ClientProcess { uid: peer.uid, pid: peer.pid };
        core.set_process(client, introduction.map_or(of_kernel, |told| told.process));
        core.set_tag(client, introduction.map(|told| told.tag));
        let lifeline = Lifeline::of(&socket.connection, socket.process.as_ref());
        core.set_lifeline(client, lifeline);
        self.by_slot[usize::from(client.slot)] = Some(socket);
        Ok(())
    }

    /// Wakes a client that sleeps.
    pub(crate) fn wake(&self, slot: u16) {
        if let Some(socket) = &self.by_slot[usize::from(slot)] {
            // A full queue holds wakeups already; a closed one is noticed by the poller. Never waits,
            // whatever the client did to its end.
            let _ = socket.connection.send(&[WAKEUP], &[], clock::NOW);
        }
    }

    /// Reads one datagram, so that a storm takes no more of the server's time than that.
    pub(crate) fn read(&mut self, slot: u16) -> Datagram {
        let Some(socket) = &mut self.by_slot[usize::from(slot)] else { return Datagram::Nothing };
        let mut byte = [0; 1];
        let fds_max = usize::from(self.takes_descriptors);
        match socket.connection.recv(&mut byte, fds_max, clock::NOW) {
            Ok(datagram) if byte == [WAKEUP] && datagram.fds.is_empty() => Datagram::Wakeup,
            Ok(mut datagram) if byte == [DESCRIPTOR] && socket.descriptor.is_none() => {
                socket.descriptor = datagram.fds.pop();
                if socket.descriptor.is_some() { Datagram::Descriptor } else { Datagram::Foreign }
            }
            Err(RecvError::TimedOut) => Datagram::Nothing,
            Err(RecvError::Closed | RecvError::Os(_)) => Datagram::End,
            _ => Datagram::Foreign,
        }
    }

    /// The descriptor that a client sent last.
    pub(crate) fn take_descriptor(&mut self, slot: u16) -> Option<OwnedFd> {
        self.by_slot[usize::from(slot)].as_mut()?.descriptor.take()
    }

    /// Ends the connection to a client; returns whose it was.
    pub(crate) fn close(&mut self, slot: u16, poller: &Poller) -> Option<PeerCredentials> {
        let socket = self.by_slot[usize::from(slot)].take()?;
        socket.unwatch(poller);
        Some(socket.owner())
    }
}

/// Memory of one client. The down half is mapped first, then sealed, so that it never leaves this process
/// writable by anybody but its writer. The up half cannot be resized, and is sealed once its client has
/// mapped it.
fn make_halves(core: &ServerCore) -> Result<(Arc<Region>, Arc<Region>), BindError> {
    let (up_bytes, down_bytes) = core.half_bytes();
    let (up_eager, down_eager) = core.eager_bytes();
    let up = Region::sparse_memfd("copyrpc-up", up_bytes)?;
    up.commit(0..up_eager)?;
    let down = Region::sparse_memfd("copyrpc-down", down_bytes)?;
    down.commit(0..down_eager)?;
    down.seal_future_write()?;
    Ok((Arc::new(up), Arc::new(down)))
}

/// Sends a client its welcome and its memory.
fn tell(
    connection: &UnixConnection,
    welcome: Welcome,
    halves: [&Region; 2],
    core: &ServerCore,
    own: Option<&Process>,
) -> bool {
    let [up, down] = halves;
    let memory = core.memory();
    let fds = [up.fd(), down.fd(), memory.wakeup_bits.fd(), memory.sleep_flag.fd()];
    let [Some(up), Some(down), Some(wakeup_bits), Some(sleep_flag)] = fds else {
        unreachable!("all four are files");
    };
    let answer = handshake::write_answer(HandshakeAnswer::Welcome(welcome));
    let memory = [up, down, wakeup_bits, sleep_flag].into_iter();
    let fds: Vec<_> = memory.chain(own.map(AsFd::as_fd)).collect();
    connection.send(&answer, &fds, clock::NOW).is_ok()
}
