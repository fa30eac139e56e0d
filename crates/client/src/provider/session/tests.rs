//! A provider between two daemons, which the test plays.

use std::{
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use proto::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    ClientConfig, Offer, Provider, Retry,
    message::{CallHead, ServeHead, WorkHead, method},
};

const SERVICE: u16 = 17;
const LONG: Duration = Duration::from_secs(30);

/// A daemon that introduces no clients.
struct FakeDaemon {
    server: ipc::Server,
    /// Calls that ask for requests and are not answered.
    asks: Vec<ipc::RequestId>,
    /// Names of requests that were answered.
    answered: Vec<u64>,
}

impl FakeDaemon {
    fn bind(path: &Path) -> Self {
        let config = ipc::ServerConfig { takes_descriptors: true, ..ipc::ServerConfig::default() };
        let server = ipc::Server::bind(path, config).unwrap();
        Self { server, asks: Vec::new(), answered: Vec::new() }
    }

    /// Serves until something holds.
    fn serve_until(&mut self, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !holds(self) {
            assert!(Instant::now() < deadline, "it never came to hold");
            while let Some(ipc::OpenRequest { id, payload, replies }) = self.server.take() {
                let (head, body) = CallHead::read_from_prefix(payload).unwrap();
                match head.method.get() {
                    method::SERVE => {
                        let (head, _) = ServeHead::read_from_prefix(body).unwrap();
                        self.answered.extend(Some(head.work.get()).filter(|work| *work != 0));
                        self.asks.push(id);
                    }
                    method::REGISTER | method::PING => replies.reply(id, &[]).unwrap(),
                    _ => replies.reply_error(id, Status::Unimplemented.code().into()).unwrap(),
                }
            }
            self.server.service_now();
            thread::yield_now();
        }
    }

    /// Gives a request of this name.
    fn give(&mut self, work: u64) {
        let head =
            WorkHead { work: work.into(), rank: 0.into(), method: 1.into(), flags: 0.into() };
        let ask = self.asks.remove(0);
        self.server.replies().reply(ask, head.as_bytes()).unwrap();
        self.server.pause();
    }
}

/// Names of requests are the daemon's own: its successor has others of the same names.
#[test]
fn an_answer_to_a_daemon_that_is_gone_is_not_given_to_its_successor() {
    let name = format!("@copyrpc-successor-{}", std::process::id());
    let path = Path::new(&name);
    let mut first = FakeDaemon::bind(path);
    let (started, starts) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (stop_handle, stop_handles) = mpsc::channel();
        scope.spawn(move || {
            let offer = Offer::new(SERVICE).window(2).reconnecting(Retry::standard());
            let provider = Provider::offer(path, &offer, ClientConfig::default()).unwrap();
            stop_handle.send(provider.stop_handle()).unwrap();
            let served = provider.serve(|_, answer| {
                started.send(()).unwrap();
                // Requests of the second daemon do not wait.
                let _ = goes_on.recv_timeout(LONG);
                answer.push(1);
                Some(Status::Ok)
            });
            served.unwrap();
        });
        first.serve_until(|daemon| daemon.asks.len() == 2);
        first.give(6);
        starts.recv_timeout(LONG).unwrap();
        // The provider finds a second request, and that the daemon is gone, behind that.
        first.give(7);
        drop(first);
        let mut second = FakeDaemon::bind(path);
        drop(go_on);
        second.serve_until(|daemon| daemon.asks.len() == 2);
        second.give(9);
        second.serve_until(|daemon| !daemon.answered.is_empty());
        assert_eq!(second.answered, [9]);
        stop_handles.recv_timeout(LONG).unwrap().stop();
        second.serve_until(|daemon| daemon.server.clients().next().is_none());
    });
}
