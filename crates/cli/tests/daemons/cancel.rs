//! Handlers see that nobody waits for them any more: the caller died, on this node or another one.

use std::{
    env,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use client::{ClientConfig, Inbound, Pipeline, Provider, ProviderStop, Request, Status, To};

use super::cluster::{Cluster, ECHO, PATIENCE, StopOnDrop, connect, eventually};

/// What a child process of these tests finds set: the socket of its daemon, and the service that it calls.
const SOCKET: &str = "TEST_CALLER_SOCKET";
const SERVICE: &str = "TEST_CALLER_SERVICE";

/// Longer than any test runs.
const DEADLINE: Duration = Duration::from_secs(1000);

/// The rank that offers the services.
const SERVER: u32 = 1;

/// What a handler saw.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Begun(u32),
    Cancelled(u32),
}

/// Not a test: what other processes of these tests run, which find the variables set.
#[test]
fn child_caller() {
    let (Some(socket), Ok(service)) = (env::var_os(SOCKET), env::var(SERVICE)) else { return };
    let mut client = connect(socket.as_ref());
    let ended = client.call_within(To::new(SERVER, service.parse().unwrap(), 0), b"", DEADLINE);
    unreachable!("it is killed while it waits: {ended:?}");
}

fn caller(cluster: &Cluster, rank: u32, service: u16) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "cancel::child_caller"]);
    command.env(SOCKET, cluster.socket(rank)).env(SERVICE, service.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Ends when the request is cancelled.
fn serve(request: &Inbound<'_>, seen: &mpsc::Sender<Seen>) -> Status {
    seen.send(Seen::Begun(request.rank)).unwrap();
    let gives_up = Instant::now() + PATIENCE;
    while !request.is_cancelled() {
        assert!(Instant::now() < gives_up, "the handler was not told");
        thread::sleep(Duration::from_millis(1));
    }
    let left = request.context.unwrap().time_left();
    assert!(left > DEADLINE / 2, "its deadline has not passed: {left:?}");
    seen.send(Seen::Cancelled(request.rank)).unwrap();
    Status::Cancelled
}

async fn serve_later(request: Request, seen: mpsc::Sender<Seen>) {
    let context = request.context().clone();
    seen.send(Seen::Begun(context.rank)).unwrap();
    context.cancelled().await;
    assert!(context.is_cancelled() && context.time_left() > DEADLINE / 2);
    seen.send(Seen::Cancelled(context.rank)).unwrap();
}

/// Providers of the services from `ECHO` on, whose connections are shared out among the threads of the daemon.
fn providers(cluster: &Cluster, count: u16) -> Vec<(u16, Provider)> {
    let offer = |service| Provider::register(&cluster.socket(SERVER), service, patient());
    (ECHO..ECHO + count).map(|service| (service, offer(service).unwrap())).collect()
}

fn patient() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

/// Kills callers of both nodes in the middle of their calls. `run` serves until it is stopped.
fn kill_callers(
    settings: &[(&'static str, &'static str)],
    services: u16,
    run: impl Fn(Provider, mpsc::Sender<Seen>) + Sync,
) {
    let cluster = Cluster::with(2, settings);
    let providers = providers(&cluster, services);
    let numbers: Vec<_> = providers.iter().map(|(service, _)| *service).collect();
    let stops: Vec<ProviderStop> =
        providers.iter().map(|(_, provider)| provider.stop_handle()).collect();
    let (seen, sees) = mpsc::channel();
    let run = &run;
    thread::scope(|scope| {
        let _stops: Vec<_> = stops.iter().map(StopOnDrop).collect();
        for (_, provider) in providers {
            let seen = seen.clone();
            scope.spawn(move || run(provider, seen));
        }
        for service in numbers {
            for rank in [SERVER, 0] {
                let mut caller = caller(&cluster, rank, service);
                assert_eq!(sees.recv_timeout(PATIENCE), Ok(Seen::Begun(rank)));
                caller.kill().unwrap();
                caller.wait().unwrap();
                let told = sees.recv_timeout(PATIENCE);
                assert_eq!(told, Ok(Seen::Cancelled(rank)), "service {service}, {settings:?}");
            }
        }
    });
    cluster.end();
}

/// One thread, and several: connections to clients and to other nodes are of different threads then.
const THREADS: [(u16, &[(&str, &str)]); 2] = [(1, &[]), (3, &[("COPYRPC_THREADS", "3")])];

#[test]
fn handlers_on_threads_see_that_their_caller_was_killed_here_or_on_another_node() {
    for (services, settings) in THREADS {
        kill_callers(settings, services, |provider, seen| {
            let served = provider.serve_on(1, |request, _| serve(request, &seen));
            served.unwrap();
        });
    }
}

#[test]
fn handlers_that_are_futures_see_that_their_caller_was_killed_here_or_on_another_node() {
    for (services, settings) in THREADS {
        kill_callers(settings, services, |provider, seen| {
            provider.run_async(|request| serve_later(request, seen.clone())).unwrap();
        });
    }
}

/// One caller misses its deadline; the call of another one goes on beside it.
#[test]
fn a_deadline_cancels_the_request_that_missed_it_and_no_other() {
    let cluster = Cluster::new(2);
    let provider = providers(&cluster, 1).pop().unwrap().1;
    let stop = provider.stop_handle();
    let (taken, takes) = mpsc::channel::<Request>();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(move || provider.run(|request| taken.send(request).unwrap()).unwrap());
        let mut pipeline: Pipeline<u8> = Pipeline::connect(&cluster.socket(0), patient()).unwrap();
        let to = To { rank: SERVER, service: ECHO, method: 0 };
        pipeline.submit(to, b"stays", 0).unwrap();
        pipeline.flush();
        let stays = takes.recv_timeout(PATIENCE).unwrap();
        pipeline.submit_within(to, b"late", Duration::from_secs(3), 1).unwrap();
        pipeline.flush();
        let late = takes.recv_timeout(PATIENCE).unwrap();
        let mut ended = Vec::new();
        while ended.is_empty() {
            pipeline.poll(|number, answer| ended.push((number, answer.map(<[u8]>::to_vec))));
            pipeline.rest();
        }
        assert!(
            matches!(&ended[..], [(1, Err(error))] if error.status() == Status::DeadlineExceeded)
        );
        eventually(|| late.context().is_cancelled());
        assert!(!stays.context().is_cancelled());
        late.reply(Status::Ok, b"nobody reads it".to_vec());
        assert!(!stays.context().is_cancelled());
        stays.reply(Status::Ok, b"done".to_vec());
        while pipeline.in_flight() > 0 {
            pipeline.poll(|number, answer| ended.push((number, answer.map(<[u8]>::to_vec))));
            pipeline.rest();
        }
        assert_eq!(ended.pop(), Some((0, Ok(b"done".to_vec()))));
    });
}

#[test]
fn requests_of_a_daemon_that_is_gone_are_cancelled() {
    let mut cluster = Cluster::new(2);
    let provider = providers(&cluster, 1).pop().unwrap().1;
    let (taken, takes) = mpsc::channel::<Request>();
    thread::scope(|scope| {
        let served = scope.spawn(move || provider.run(|request| taken.send(request).unwrap()));
        let mut pipeline: Pipeline<u8> = Pipeline::connect(&cluster.socket(0), patient()).unwrap();
        pipeline.submit(To { rank: SERVER, service: ECHO, method: 0 }, b"", 0).unwrap();
        pipeline.flush();
        let request = takes.recv_timeout(PATIENCE).unwrap();
        assert!(!request.context().is_cancelled());
        cluster.kill(SERVER);
        assert!(served.join().unwrap().is_err(), "its daemon is gone");
        eventually(|| request.context().is_cancelled());
        drop(request);
    });
}

/// With several threads the connection to the other node is of one, and the provider's of another.
#[test]
fn requests_of_a_node_that_is_lost_are_cancelled() {
    for (services, settings) in THREADS {
        let mut cluster = Cluster::with(2, settings);
        let providers = providers(&cluster, services);
        let stops: Vec<_> = providers.iter().map(|(_, it)| it.stop_handle()).collect();
        let to = |service| To { rank: SERVER, service, method: 0 };
        let targets: Vec<_> = providers.iter().map(|(service, _)| to(*service)).collect();
        let (taken, takes) = mpsc::channel::<Request>();
        thread::scope(|scope| {
            let _stops: Vec<_> = stops.iter().map(StopOnDrop).collect();
            for (_, provider) in providers {
                let taken = taken.clone();
                scope.spawn(move || provider.run(|request| taken.send(request).unwrap()).unwrap());
            }
            let mut pipeline: Pipeline<()> =
                Pipeline::connect(&cluster.socket(0), patient()).unwrap();
            for to in &targets {
                pipeline.submit_within(*to, b"", DEADLINE, ()).unwrap();
            }
            pipeline.flush();
            let requests: Vec<_> =
                targets.iter().map(|_| takes.recv_timeout(PATIENCE).unwrap()).collect();
            assert!(requests.iter().all(|request| !request.context().is_cancelled()));
            cluster.kill(0);
            eventually(|| requests.iter().all(|request| request.context().is_cancelled()));
        });
    }
}
