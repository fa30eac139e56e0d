//! Processes and threads that provide services: many requests at a time, several processes behind one name,
//! what callers are told.

use std::{
    env,
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use client::{
    CallError, Client, ClientConfig, Description, Offer, Pipeline, ProvideError, Provider, Retry,
    To,
    message::{HERE, MethodRecord},
    name,
};
use daemon::{Status, metrics::Counter};

use super::cluster::{
    Cluster, ECHO, PATIENCE, Process, StopOnDrop, body, connect, eventually, reverse,
};

/// What a child process of these tests finds set: the socket of its daemon.
const SOCKET: &str = "TEST_PROVIDER_SOCKET";

/// Methods of the service of these tests.
const FAST: u16 = 1;
const SLOW: u16 = 2;
const WHO: u16 = 3;

/// What slow handlers wait for: that the test has seen what does not wait for them.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        let waited = self.changed.wait_timeout_while(is_open, PATIENCE, |is_open| !*is_open);
        assert!(!waited.unwrap().1.timed_out(), "a slow call was waited for");
    }
}

fn pipeline(cluster: &Cluster, rank: u32) -> Pipeline<u64> {
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    Pipeline::connect(&cluster.socket(rank), config).unwrap()
}

fn to(rank: u32, method: u16) -> To {
    To { rank, service: ECHO, method }
}

/// Polls until nothing is in flight; answers in the order in which they came.
fn finish(pipeline: &mut Pipeline<u64>) -> Vec<(u64, Result<Vec<u8>, CallError>)> {
    let mut ended = Vec::new();
    while pipeline.in_flight() > 0 {
        let mut done =
            |number, answer: Result<&[u8], _>| ended.push((number, answer.map(<[u8]>::to_vec)));
        if pipeline.poll(&mut done) == 0 {
            pipeline.rest();
        }
    }
    ended
}

#[test]
fn requests_in_flight_are_answered_in_any_order_by_other_threads_and_a_slow_one_delays_none() {
    let cluster = Cluster::new(2);
    let provider = Provider::register(&cluster.socket(1), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let gate = Arc::new(Gate::default());
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        let waits = Arc::clone(&gate);
        scope.spawn(move || {
            provider.run(move |request| match request.method() {
                SLOW => drop(thread::spawn({
                    let waits = Arc::clone(&waits);
                    move || {
                        waits.wait();
                        let body = reverse(request.body());
                        request.reply(Status::Ok, body);
                    }
                })),
                _ => {
                    let body = reverse(request.body());
                    request.reply(Status::Ok, body);
                }
            })
        });
        let mut slow = pipeline(&cluster, 0);
        for number in 0..4 {
            slow.submit(to(1, SLOW), &body(number), number).unwrap();
        }
        slow.flush();
        let mut fast = cluster.client(0);
        for number in 0..20 {
            assert_eq!(
                fast.call(To::new(1, ECHO, FAST), &body(number)).unwrap(),
                reverse(&body(number))
            );
        }
        assert_eq!(slow.in_flight(), 4);
        gate.open();
        for (number, answer) in finish(&mut slow) {
            assert_eq!(answer.unwrap(), reverse(&body(number)));
        }
    });
}

#[test]
fn threads_serve_beside_each_other_and_a_handler_that_panics_costs_its_own_call_only() {
    let cluster = Cluster::new(1);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let gate = Gate::default();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        let served = scope.spawn(|| {
            provider.serve_on(3, |request, answer| {
                match request.method {
                    SLOW => gate.wait(),
                    WHO => panic!("as the test wants it"),
                    _ => {}
                }
                answer.extend(request.body.iter().rev());
                Status::Ok
            })
        });
        let mut slow = pipeline(&cluster, 0);
        for number in 0..2 {
            slow.submit(to(HERE, SLOW), &body(number), number).unwrap();
        }
        slow.flush();
        let mut fast = cluster.client(0);
        assert_eq!(fast.call(To::new(HERE, ECHO, FAST), b"abc").unwrap(), b"cba");
        let panicked = fast.call(To::new(HERE, ECHO, WHO), b"").unwrap_err();
        assert_eq!(panicked.status(), Status::Internal, "{panicked}");
        assert_eq!(fast.call(To::new(HERE, ECHO, FAST), b"abc").unwrap(), b"cba");
        gate.open();
        assert_eq!(finish(&mut slow).len(), 2);
        stop.stop();
        served.join().unwrap().unwrap();
    });
}

#[test]
fn futures_wait_for_other_threads_and_answer_in_the_order_in_which_they_end() {
    let cluster = Cluster::new(1);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        let served = scope.spawn(|| {
            provider.run_async(async move |mut request| {
                let body = request.take_body();
                let waits_ms = u64::from(body[0]);
                after(Duration::from_millis(waits_ms)).await;
                request.reply(Status::Ok, body);
            })
        });
        let mut pipeline = pipeline(&cluster, 0);
        for waits_ms in [200u8, 100, 0] {
            pipeline.submit(to(HERE, FAST), &[waits_ms], waits_ms.into()).unwrap();
        }
        let order: Vec<_> = finish(&mut pipeline).into_iter().map(|(number, _)| number).collect();
        assert_eq!(order, [0, 100, 200]);
        stop.stop();
        served.join().unwrap().unwrap();
    });
}

/// A future that another thread wakes.
async fn after(duration: Duration) {
    use std::{future::poll_fn, task::Poll};
    let deadline = Instant::now() + duration;
    poll_fn(|context| {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return Poll::Ready(());
        };
        let waker = context.waker().clone();
        thread::spawn(move || {
            thread::sleep(left);
            waker.wake();
        });
        Poll::Pending
    })
    .await;
}

/// Not a test: what other processes of these tests run, which find the variable set.
#[test]
fn child_provider() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let offer = Offer::new(ECHO).with_name("echo").shared().window(4);
    let provider = Provider::offer(socket.as_ref(), &offer, ClientConfig::default()).unwrap();
    let served = provider.serve(|request, answer| {
        match request.method {
            WHO => answer.extend(std::process::id().to_le_bytes()),
            _ => answer.extend(request.body.iter().rev()),
        }
        Some(Status::Ok)
    });
    assert!(served.is_err(), "it ends with its daemon");
}

fn provide(cluster: &Cluster, rank: u32) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "providers::child_provider"]);
    command.env(SOCKET, cluster.socket(rank)).stdout(Stdio::null()).stderr(Stdio::null());
    Process(command.spawn().unwrap())
}

fn providers(client: &mut Client) -> u16 {
    client.services().unwrap().first().map_or(0, |service| service.providers)
}

#[test]
fn processes_behind_one_name_share_the_load_and_one_that_dies_does_not_stop_the_service() {
    let cluster = Cluster::new(2);
    let mut processes: Vec<_> = (0..3).map(|_| provide(&cluster, 1)).collect();
    let mut observer = connect(&cluster.socket(1));
    eventually(|| providers(&mut observer) == 3);
    let mut pipeline = pipeline(&cluster, 0);
    let mut served = std::collections::BTreeMap::new();
    for _ in 0..50 {
        for number in 0..6 {
            pipeline.submit(to(1, WHO), b"", number).unwrap();
        }
        for (_, answer) in finish(&mut pipeline) {
            *served.entry(answer.unwrap()).or_insert(0) += 1;
        }
    }
    assert_eq!(served.len(), 3, "all of them serve: {served:?}");
    assert!(served.values().all(|count| *count >= 30), "and share the load: {served:?}");

    processes.pop();
    let mut lost = 0;
    for number in 0..300 {
        pipeline.submit(to(1, FAST), &body(number), number).unwrap();
        for (number, answer) in finish(&mut pipeline) {
            match answer {
                Ok(answer) => assert_eq!(answer, reverse(&body(number))),
                Err(error) => {
                    assert_eq!(error.status(), Status::Unavailable, "{error}");
                    lost += 1;
                }
            }
        }
    }
    assert!(lost <= 4, "no more than the dead one had: {lost}");
    eventually(|| providers(&mut observer) == 2);
    drop(processes);
    let error = loop {
        match observer.call(To::new(HERE, ECHO, FAST), b"").map(drop) {
            Err(error @ CallError::NoService(_)) => break error,
            Ok(()) => {}
            Err(error) => assert_eq!(error.status(), Status::Unavailable, "{error}"),
        }
    };
    assert!(error.is_certainly_not_executed());
    assert_eq!(
        error.to_string(),
        "no process offers service 9 on this node; offer it there, or call another rank"
    );
}

#[test]
fn who_means_another_service_by_the_same_number_is_refused() {
    let cluster = Cluster::new(2);
    let method = |fingerprint: u64| MethodRecord {
        method: FAST.into(),
        reserved: [0; 6],
        fingerprint: fingerprint.into(),
    };
    let offer = Offer::named("metadata").with_methods(&[method(7)]).shared();
    let config = ClientConfig::default();
    let provide = |offer: &Offer| Provider::offer(&cluster.socket(1), offer, config);
    let _first = provide(&offer).unwrap();
    let _second = provide(&offer).unwrap();
    let refused = provide(&offer.clone().with_methods(&[method(8)]));
    assert!(matches!(refused, Err(ProvideError::Mismatch(_))), "{refused:?}");
    let refused = provide(&offer.clone().with_name("other"));
    assert!(matches!(refused, Err(ProvideError::Mismatch(_))), "{refused:?}");
    let refused = Provider::register(&cluster.socket(1), name::service_number("metadata"), config);
    assert!(matches!(refused, Err(ProvideError::Taken(_))), "{refused:?}");
    // A caller of another node sees what it would call.
    let told = cluster.client(0).describe(1, name::service_number("metadata")).unwrap();
    assert_eq!(told, Description { name: "metadata".into(), methods: vec![method(7)] });
    let absent = cluster.client(0).describe(1, 77).unwrap_err();
    assert!(matches!(absent, CallError::NoService(To { rank: 1, service: 77, .. })), "{absent}");
}

#[test]
fn errors_tell_who_says_so_and_whether_the_call_was_executed() {
    let cluster = Cluster::new(2);
    let provider = Provider::register(&cluster.socket(1), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| {
            provider.serve(|request, answer| match request.method {
                FAST => {
                    answer.extend_from_slice(b"no such file: a/b");
                    Some(Status::NotFound)
                }
                SLOW => Some(Status::Unimplemented),
                _ => Some(Status::Unavailable),
            })
        });
        for rank in 0..2 {
            let mut client = cluster.client(rank);
            let error = client.call(To::new(1, ECHO, FAST), b"").unwrap_err();
            assert_eq!(error.detail(), b"no such file: a/b", "from rank {rank}");
            assert_eq!(
                (error.status(), error.is_certainly_not_executed()),
                (Status::NotFound, false)
            );
            let error = client.call(To::new(1, ECHO, SLOW), b"").unwrap_err();
            assert_eq!(error, CallError::NoMethod(to(1, SLOW)));
            let error = client.call(To::new(1, ECHO, WHO), b"").unwrap_err();
            assert!(
                matches!(&error, CallError::Service(said) if said.status == Status::Unavailable)
            );
            let error = client.call(To::new(1, 77, FAST), b"").unwrap_err();
            assert_eq!(error, CallError::NoService(To { rank: 1, service: 77, method: FAST }));
            let error = client.call(To::new(2, ECHO, FAST), b"").unwrap_err();
            assert_eq!(error, CallError::NoRank(2));
            assert_eq!(error.to_string(), "rank 2 does not exist in this job");
        }
    });
}

#[test]
fn handlers_know_who_calls_by_what_trace_and_how_long_that_waits() {
    let cluster = Cluster::new(2);
    let provider = Provider::register(&cluster.socket(1), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let (seen, sees) = mpsc::channel();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| {
            provider.run(move |request| {
                let context = request.context();
                assert!(!context.is_cancelled());
                seen.send((context.rank, context.caller, context.time_left())).unwrap();
                request.reply(Status::Ok, Vec::new());
            })
        });
        let own = (Some(rustix::process::getuid().as_raw()), Some(std::process::id()));
        let timeout = Duration::from_secs(30);
        for (rank, trace) in [(1, 0), (1, 5), (0, 0), (0, 7)] {
            let mut client = cluster.client(rank);
            client.set_trace(trace);
            client.call_within(To::new(1, ECHO, FAST), b"", timeout).unwrap();
            let (from, caller, left) = sees.recv_timeout(PATIENCE).unwrap();
            assert_eq!((from, caller.trace), (rank, trace));
            assert_eq!((caller.uid, caller.pid), own, "rank {rank}");
            assert!(Duration::from_secs(1) < left && left <= timeout, "{left:?}");
        }
    });
}

#[test]
fn a_request_whose_caller_gave_up_is_cancelled_and_not_served() {
    let cluster = Cluster::new(1);
    let provider = Provider::register(&cluster.socket(0), ECHO, ClientConfig::default()).unwrap();
    let stop = provider.stop_handle();
    let (taken, takes) = mpsc::channel();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| provider.run(move |request| taken.send(request).unwrap()));
        let mut client = cluster.client(0);
        // A busy machine may let a deadline pass before the provider gets the request.
        let mut timeouts = (0..10).map(|doublings| Duration::from_millis(20 << doublings));
        let request = timeouts.find_map(|timeout| {
            let late = client.call_within(To::new(HERE, ECHO, FAST), b"", timeout).unwrap_err();
            assert_eq!(late.status(), Status::DeadlineExceeded);
            takes.recv_timeout(Duration::from_millis(200)).ok()
        });
        let request = request.unwrap();
        eventually(|| request.context().is_cancelled());
        request.reply(Status::Ok, b"too late".to_vec());
        let answered = scope.spawn(move || {
            let request = takes.recv_timeout(PATIENCE).unwrap();
            assert!(!request.context().is_cancelled());
            drop(request);
        });
        let dropped = client.call(To::new(HERE, ECHO, FAST), b"").unwrap_err();
        assert_eq!(dropped.status(), Status::Unknown, "a request that is dropped is answered");
        answered.join().unwrap();
    });
}

#[test]
fn too_many_requests_are_refused_with_a_status_that_says_so_and_the_rest_are_served() {
    let cluster = Cluster::with(1, &[("COPYRPC_DEPTH", "1024")]);
    let offer = Offer::new(ECHO).window(2);
    let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::default() };
    let provider = Provider::offer(&cluster.socket(0), &offer, config).unwrap();
    let stop = provider.stop_handle();
    let (taken, takes) = mpsc::channel();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        scope.spawn(|| provider.run(move |request| drop(taken.send(request))));
        // Clients have a bounded number of calls each, and the queue has a bound: so many that it is met.
        let mut pipelines: Vec<_> = (0..20).map(|_| pipeline(&cluster, 0)).collect();
        'full: for pipeline in &mut pipelines {
            for number in 0..pipeline.depth() as u64 {
                if pipeline.submit(to(HERE, FAST), &[7; 900], number).is_err() {
                    continue 'full;
                }
            }
            pipeline.flush();
        }
        let mut refused = 0;
        let mut answered = 0;
        let held: Vec<_> = (0..2).map(|_| takes.recv_timeout(PATIENCE).unwrap()).collect();
        drop(held);
        let serve = scope.spawn(move || {
            while let Ok(request) = takes.recv_timeout(PATIENCE) {
                request.reply(Status::Ok, Vec::new());
            }
        });
        for pipeline in &mut pipelines {
            for (_, answer) in finish(pipeline) {
                match answer {
                    Ok(_) => answered += 1,
                    Err(CallError::Refused(Status::ResourceExhausted)) => refused += 1,
                    Err(error) => assert_eq!(error.status(), Status::Unknown, "{error}"),
                }
            }
        }
        assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
        assert_eq!(cluster.counter(0, Counter::Exhausted).unwrap_or_default(), refused);
        // The provider ends, and with it what sends requests.
        stop.stop();
        serve.join().unwrap();
    });
}

#[test]
fn client_pipeline_and_provider_find_the_next_life_of_their_daemon() {
    let mut cluster = Cluster::new(1);
    let retry = Retry {
        retries_max: 10_000,
        awaits_service: true,
        is_idempotent: true,
        ..Retry::standard()
    };
    // Ten retries of a call are saved up, in which a provider on a busy machine has to have come back.
    let (backoff, backoff_max) = (Duration::from_millis(50), Duration::from_secs(10));
    let retry = Retry { budget_percent: 100_000, backoff, backoff_max, ..retry };
    let config = ClientConfig { timeout: PATIENCE, retry, ..ClientConfig::default() };
    let socket = cluster.socket(0);
    let offer = Offer::new(ECHO).reconnecting(retry);
    let provider = Provider::offer(&socket, &offer, config).unwrap();
    let stop = provider.stop_handle();
    let mut client = Client::connect(&socket, config).unwrap();
    let mut pipeline: Pipeline<u64> = Pipeline::connect(&socket, config).unwrap();
    thread::scope(|scope| {
        let _stops = StopOnDrop(&stop);
        let served = scope.spawn(|| {
            provider.run(|request| {
                let body = reverse(request.body());
                request.reply(Status::Ok, body);
            })
        });
        assert_eq!(client.call(To::new(HERE, ECHO, FAST), b"abc").unwrap(), b"cba");
        let generation = client.daemon_generation();
        cluster.kill(0);
        cluster.start(0);
        // Nobody told them: the call finds the daemon, and waits for the service that is offered anew.
        assert_eq!(client.call(To::new(HERE, ECHO, FAST), b"abc").unwrap(), b"cba");
        assert_ne!(client.daemon_generation(), generation);
        eventually(|| {
            let submitted = pipeline.submit(to(HERE, FAST), b"abc", 1).is_ok();
            let ended = finish(&mut pipeline);
            submitted && matches!(&ended[..], [(1, Ok(answer))] if answer == b"cba")
        });
        stop.stop();
        served.join().unwrap().unwrap();
    });
}

#[test]
fn a_deadline_of_10_ms_is_met_although_the_daemon_is_stopped() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client(0);
    client.ping(HERE, b"alive").unwrap();
    cluster.signal(0, rustix::process::Signal::STOP);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let late =
            client.call_within(To::new(HERE, 0, 0), b"", Duration::from_millis(10)).unwrap_err();
        assert_eq!(late, CallError::Daemon(ipc::CallError::Deadline));
        best = best.min(start.elapsed());
    }
    cluster.signal(0, rustix::process::Signal::CONT);
    // The time is the point: a client used to give a stopped daemon half a second more.
    assert!(best < Duration::from_millis(250), "{best:?}");
}
