//! This process: calls, and keeps how each call ended.

use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use copyrpc_rpc::{
    Body, Call, CallEnd, CallError, CloseReason, Config, Handler, PeerId, Request, Status,
    TransportKind, Worker,
};
use softnic::Nic;

use crate::child::{ECHO, nic};

/// Longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Both sides' settings.
pub(crate) fn config(transport: TransportKind, peers_max: u16) -> Config {
    Config {
        transport,
        peers_max,
        ring_bytes: 1 << 13,
        response_bytes: 1 << 12,
        batch_bytes: 1 << 11,
        calls_max: 32,
        ..Config::default()
    }
}

/// The only test that runs: others would open descriptors while it counts them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors of this process, and mappings of memory that it shares.
pub(crate) fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

/// What became of each call.
#[derive(Default)]
pub(crate) struct Program {
    made: u64,
    /// By number of the call; `None`: in flight.
    pub(crate) ended: Vec<Option<Status>>,
    pub(crate) in_flight: usize,
    pub(crate) ok: usize,
    /// Requests of the child.
    pub(crate) served: usize,
    pub(crate) closed: Vec<(PeerId, CloseReason)>,
    /// Bodies of answers that are not echoes.
    pub(crate) answers: Vec<Vec<u8>>,
}

/// Cookies of calls that are not echoes.
pub(crate) const OTHER: u64 = u64::MAX;

impl Handler<Nic> for Program {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        self.served += 1;
        // It fails only if the child is gone, which other means will tell.
        let _ = worker.reply(request.token, Status::Ok, &body.bytes());
    }

    fn ended(&mut self, _: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
        let status = end.status();
        let body = &*end.bytes();
        if cookie == OTHER {
            assert_eq!(status, Status::Ok);
            return self.answers.push(body.to_vec());
        }
        let before = self.ended[usize::try_from(cookie).unwrap()].replace(status);
        assert_eq!(before, None, "call {cookie} ended twice");
        self.in_flight -= 1;
        if status == Status::Ok {
            assert_eq!(body, cookie.to_le_bytes(), "another call's answer");
            self.ok += 1;
        }
    }

    fn closed(&mut self, _: &mut Worker<Nic>, peer: PeerId, reason: CloseReason) {
        self.closed.push((peer, reason));
    }
}

/// A worker and its program.
pub(crate) struct Caller {
    pub(crate) worker: Worker<Nic>,
    pub(crate) program: Program,
}

impl Caller {
    pub(crate) fn open(fabric: &str, strict: Option<u64>, config: &Config) -> Self {
        let nic = nic(fabric, strict);
        let worker = Worker::open(nic, config.clone(), os::clock::now_ns()).unwrap();
        Self { worker, program: Program::default() }
    }

    /// Calls with a body that carries the call's number; `false`: not now, or not any more.
    pub(crate) fn call(&mut self, to: PeerId, timeout: Duration) -> bool {
        let cookie = self.program.made;
        let call = Call { method: ECHO, cookie, timeout, response_bytes: 8, caller: None };
        match self.worker.call(to, &call, &cookie.to_le_bytes()) {
            Ok(_) => {
                self.program.made += 1;
                self.program.in_flight += 1;
                self.program.ended.push(None);
                true
            }
            Err(CallError::Busy(_) | CallError::NotConnected) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Polls until `is_done`.
    #[track_caller]
    pub(crate) fn until(&mut self, is_done: impl FnMut(&mut Self) -> bool) {
        let is_in_time = self.until_or(PATIENCE, is_done);
        let Program { ok, in_flight, .. } = &self.program;
        assert!(
            is_in_time,
            "not within {PATIENCE:?}; {ok} calls ended well, {in_flight} are in flight"
        );
    }

    /// Polls until `is_done`, and tells whether that was within `patience`.
    pub(crate) fn until_or(
        &mut self,
        patience: Duration,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let start = Instant::now();
        while !is_done(self) {
            if start.elapsed() > patience {
                return false;
            }
            if self.worker.poll(os::clock::now_ns(), &mut self.program) == 0 {
                std::thread::yield_now();
            }
        }
        true
    }
}
