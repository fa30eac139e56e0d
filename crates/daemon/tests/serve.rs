//! A program that embeds a daemon of several threads.

use std::{
    cell::Cell,
    collections::BTreeSet,
    os::unix::net::UnixListener,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    rc::Rc,
    thread,
    time::Duration,
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{
    Client, ClientConfig, Pipeline, ProvideError, Provider, To, message::HERE, runtime::Runtime,
};
use copyrpc_daemon::{
    Inbound, ServeError, Services, Serving, Status,
    config::{DaemonConfig, KNOBS, Layers, Start},
    metrics::Snapshot,
    serve, serve_threads,
};
use memory::sync::{AtomicBool, AtomicUsize, Ordering};
use os::clock;

#[path = "../../bootstrap/tests/common/mod.rs"]
mod common;
use common::{TempFolder, eventually};

const COUNT: u16 = 7;
const OF_THREAD_1: u16 = 8;

fn serving(folder: &Path, threads: &str) -> Serving {
    let settings = Layers::new(KNOBS.to_vec()).flag("threads", threads).unwrap().finish();
    Serving {
        config: DaemonConfig::from_settings(&settings).unwrap(),
        runtime: Runtime::new(folder.to_owned(), JobId::new("embedded").unwrap(), "").unwrap(),
        rank_info: RankInfo::ALONE,
        secret: Secret::from_bytes(b"sixteen bytes or more"),
    }
}

fn nic(folder: &Path) -> softnic::Nic {
    let fabric = folder.file_name().unwrap().to_str().unwrap().to_owned();
    softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap()
}

fn private(name: &str) -> TempFolder {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = TempFolder::new(name);
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    temp
}

/// Each thread has its own state, which need not be `Send`.
#[test]
fn functions_run_on_the_thread_of_their_client_or_on_the_one_that_offers_them() {
    let temp = private("serve-threads");
    let serving = serving(temp.path(), "2");
    let nics = vec![nic(temp.path()), nic(temp.path())];
    let services = |number: usize| {
        let mut services = Services::default();
        let calls = Rc::new(Cell::new(0_u64));
        let count = move |_: &Inbound<'_>, answer: &mut Vec<u8>| {
            calls.set(calls.get() + 1);
            answer.extend_from_slice(&calls.get().to_le_bytes());
            Status::Ok
        };
        services.offer(COUNT, Box::new(count)).unwrap();
        if number == 1 {
            let name = |_: &Inbound<'_>, answer: &mut Vec<u8>| {
                answer.extend_from_slice(format!("{:?}", thread::current().id()).as_bytes());
                Status::Ok
            };
            services.offer(OF_THREAD_1, Box::new(name)).unwrap();
        }
        services
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let daemon = scope.spawn(|| serve_threads(&serving, nics, services, &stop));
        let socket = serving.runtime.socket();
        let connect = || Client::connect(&socket, ClientConfig::default());
        eventually(|| connect().is_ok());
        let mut clients = [connect().unwrap(), connect().unwrap()];
        let mut threads = BTreeSet::new();
        for number in 1..=10_u64 {
            for client in &mut clients {
                assert_eq!(
                    client.call(To::new(HERE, COUNT, 0), b""),
                    Ok(&number.to_le_bytes()[..])
                );
                threads.insert(client.call(To::new(HERE, OF_THREAD_1, 0), b"").unwrap().to_vec());
            }
        }
        assert_eq!(threads.len(), 1, "{threads:?}");
        stop.store(true, Ordering::Relaxed);
        daemon.join().unwrap().unwrap();
    });
}

#[test]
fn each_thread_needs_a_nic() {
    let temp = private("serve-nics");
    let (serving, stop) = (serving(temp.path(), "2"), AtomicBool::new(false));
    let refused = serve_threads(&serving, vec![nic(temp.path())], |_| Services::default(), &stop);
    assert!(matches!(refused, Err(ServeError::Nics { threads: 2, nics: 1 })));
    let refused = serve(&serving, nic(temp.path()), Services::default(), &stop);
    assert!(matches!(refused, Err(ServeError::Nics { threads: 2, nics: 1 })));
}

/// It would wait for the other rank for a minute, and then fail.
#[test]
fn a_daemon_that_looks_for_its_peers_stops_when_it_is_told_and_leaves_nothing() {
    let (temp, meeting) = (private("serve-stop"), private("serve-stop-meeting"));
    let mut serving = serving(temp.path(), "1");
    serving.rank_info = RankInfo::new(1, 2).unwrap();
    serving.config.start = Start::File(meeting.path().to_owned());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let daemon = scope.spawn(|| serve(&serving, nic(temp.path()), Services::default(), &stop));
        eventually(|| std::fs::read_dir(meeting.path()).unwrap().count() == 1);
        stop.store(true, Ordering::Relaxed);
        daemon.join().unwrap().unwrap();
    });
    assert_eq!(std::fs::read_dir(meeting.path()).unwrap().count(), 0);
    assert!(!serving.runtime.metrics().exists());
}

#[test]
fn a_thread_that_panics_before_it_serves_ends_all() {
    let temp = private("serve-panics");
    let (serving, stop) = (serving(temp.path(), "3"), AtomicBool::new(false));
    let nics = (0..3).map(|_| nic(temp.path())).collect();
    let services = |number: usize| {
        assert_ne!(number, 2, "a factory that panics");
        Services::default()
    };
    let ended = catch_unwind(AssertUnwindSafe(|| serve_threads(&serving, nics, services, &stop)));
    assert!(ended.is_err());
    serving.runtime.lock().unwrap();
}

/// A daemon that is stopped wakes nobody, so who waits for the descriptor has to know until when.
#[test]
fn fault_a5_a_pipeline_says_when_its_next_call_ends_though_the_daemon_is_silent() {
    let temp = private("serve-deadline");
    let server = ipc::Server::bind(&temp.path().join("silent"), ipc::ServerConfig::default());
    let mut server = server.unwrap();
    thread::scope(|scope| {
        let socket = temp.path().join("silent");
        let client = scope.spawn(move || {
            let mut pipeline = Pipeline::connect(&socket, ClientConfig::default()).unwrap();
            assert_eq!(pipeline.earliest_deadline_ns(), u64::MAX);
            let to = To { rank: HERE, service: COUNT, method: 0 };
            let before_ns = clock::now_ns();
            pipeline.submit_within(to, b"", Duration::from_millis(20), ()).unwrap();
            assert!(pipeline.arm());
            let due_ns = pipeline.earliest_deadline_ns();
            assert!(due_ns > before_ns + 20_000_000 && due_ns < u64::MAX);
            while clock::now_ns() < due_ns {
                thread::sleep(Duration::from_millis(1));
            }
            let mut ends = Vec::new();
            pipeline.poll(|(), answer| ends.push(answer.map(<[u8]>::len).unwrap_err().status()));
            assert_eq!(ends, [Status::DeadlineExceeded]);
        });
        // It welcomes the client, and takes nothing of it.
        while !client.is_finished() {
            server.service_now();
            thread::yield_now();
        }
        client.join().unwrap();
    });
}

/// It costs its own call, as that of a function does.
#[test]
fn fault_c5_an_answer_of_a_provider_that_is_too_long_costs_its_own_call_only() {
    let temp = private("serve-long");
    let serving = serving(temp.path(), "1");
    let longest = serving.config.message_bytes_max as usize;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let daemon = scope.spawn(|| serve(&serving, nic(temp.path()), Services::default(), &stop));
        let socket = serving.runtime.socket();
        eventually(|| Client::connect(&socket, ClientConfig::default()).is_ok());
        let provider = Provider::register(&socket, COUNT, ClientConfig::default()).unwrap();
        let provided = scope.spawn(move || {
            provider.serve(|inbound, answer| {
                let len: [u8; 4] = inbound.body.try_into().unwrap();
                answer.resize(u32::from_le_bytes(len) as usize, 7);
                Some(Status::Ok)
            })
        });
        let mut client = Client::connect(&socket, ClientConfig::default()).unwrap();
        let lens = [longest, longest + 1, longest * 2, 0, longest];
        let answers = lens.map(|len| {
            let asked = u32::try_from(len).unwrap().to_le_bytes();
            client.call(To::new(HERE, COUNT, 0), &asked).map(<[u8]>::len)
        });
        stop.store(true, Ordering::Relaxed);
        daemon.join().unwrap().unwrap();
        assert!(matches!(provided.join().unwrap(), Err(ProvideError::Call(_))));
        let answers = answers.map(|answer| answer.map_err(|error| error.status()));
        let too_long = Err(Status::OutOfRange);
        assert_eq!(answers, [Ok(longest), too_long, too_long, Ok(0), Ok(longest)]);
    });
}

/// What lies beside a socket is never taken for what belongs to a job of another name.
#[test]
fn a_job_that_is_called_like_the_socket_of_another_has_its_own_daemon() {
    let temp = private("serve-names");
    let jobs = ["default", "default.sock", "default.lock", "default.metrics"];
    let serving = jobs.map(|job| Serving {
        runtime: Runtime::new(temp.path().to_owned(), JobId::new(job).unwrap(), "").unwrap(),
        ..serving(temp.path(), "1")
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let daemons = serving.each_ref().map(|serving| {
            scope.spawn(|| serve(serving, nic(temp.path()), Services::default(), &stop))
        });
        let is_up = |serving: &Serving| {
            Client::connect(&serving.runtime.socket(), ClientConfig::default()).is_ok()
        };
        eventually(|| {
            serving.iter().all(is_up) || daemons.iter().any(thread::ScopedJoinHandle::is_finished)
        });
        stop.store(true, Ordering::Relaxed);
        for daemon in daemons {
            daemon.join().unwrap().unwrap();
        }
    });
}

/// All of them find what a dead daemon left, and one cleans it up.
#[test]
fn fault_a15_of_many_starts_at_once_one_serves_and_none_disturbs_its_clients() {
    const STARTS: usize = 16;
    let temp = private("starts");
    let serving = serving(temp.path(), "1");
    let socket = serving.runtime.socket();
    for round in 0..8 {
        let _ = std::fs::remove_file(&socket);
        drop(UnixListener::bind(&socket).unwrap());
        std::fs::write(serving.runtime.metrics(), b"half of what a dead daemon wrote").unwrap();
        let (stop, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
        let start = || {
            let served = serve(&serving, nic(temp.path()), Services::default(), &stop);
            refused.fetch_add(usize::from(served.is_err()), Ordering::Relaxed);
            served
        };
        thread::scope(|scope| {
            let starts = (0..STARTS).map(|_| scope.spawn(start)).collect::<Vec<_>>();
            let mut client = None;
            eventually(|| {
                client = Client::connect(&socket, ClientConfig::default()).ok();
                client.is_some()
            });
            let mut client = client.unwrap();
            eventually(|| {
                assert_eq!(client.ping(0, b"alive").unwrap(), b"alive", "round {round}");
                refused.load(Ordering::Relaxed) == STARTS - 1
            });
            assert!(Snapshot::read(&serving.runtime.metrics()).is_ok());
            stop.store(true, Ordering::Relaxed);
            let ends = starts.into_iter().map(|start| start.join().unwrap());
            let refusals = ends.filter_map(Result::err).map(|error| error.to_string());
            assert!(refusals.into_iter().all(|text| text.contains("runs on this node already")));
        });
    }
}
