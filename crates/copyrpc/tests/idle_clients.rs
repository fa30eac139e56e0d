//! A client without calls takes no processor time, also after its calls went to a provider without the daemon. One
//! test: it reads the processor time of a thread of this process by that thread's name.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use client::tokio::TokioClient;
use copyrpc::{
    ClientConfig, HERE, JobId, Provider, Runtime, Status, To,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};

const SERVICE: u16 = 17;
const ECHO: To = To { rank: HERE, service: SERVICE, method: 1 };
const SLOW: To = To { rank: HERE, service: SERVICE, method: 2 };
/// Deadline of a call, short: it is over before the client is judged.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for an answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls after which a client has been introduced to a provider of its node.
const CALLS: usize = 2000;
const IDLE: Duration = Duration::from_secs(1);

/// Processor time of the thread that talks to the daemon for [`TokioClient`], in nanoseconds.
fn processor_ns_of_the_calls() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut ours = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == "copyrpc-calls")
    });
    let task = ours.next().expect("a client has a thread");
    let schedstat = fs::read_to_string(task.join("schedstat")).unwrap();
    schedstat.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_client_without_calls_sleeps_after_its_deadlines_have_passed() {
    let name = format!("copyrpc-idle-clients-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let runtime = Runtime::new(folder.clone(), JobId::new("idle").unwrap(), "").unwrap();
    let socket = runtime.socket();
    let nic = Selection::from_env();
    let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, |_| Default::default());
    let daemon = daemon.unwrap();
    let provider = Provider::register(&socket, SERVICE, ClientConfig::default()).unwrap();
    let serving = thread::spawn(move || {
        drop(provider.serve(|request, answer| {
            if request.method == SLOW.method {
                thread::sleep(TIMEOUT / 10);
            }
            answer.extend_from_slice(request.body);
            Some(Status::Ok)
        }));
    });
    let config = ClientConfig { timeout: TIMEOUT, ..ClientConfig::default() };
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let client = TokioClient::connect(&socket, config).unwrap();
    tokio.block_on(async {
        for _ in 0..CALLS {
            client.call_within(ECHO, b"body", PATIENCE).await.unwrap();
        }
        // The client sleeps until it is answered, and so notes its deadline. A busy machine may miss that.
        let _ = client.call(SLOW, b"body").await;
    });
    let past = Instant::now() + 2 * TIMEOUT;
    while Instant::now() < past {
        thread::sleep(TIMEOUT / 4);
    }
    let before_ns = processor_ns_of_the_calls();
    thread::sleep(IDLE);
    let spent = Duration::from_nanos(processor_ns_of_the_calls() - before_ns);
    assert!(spent < IDLE / 20, "an idle client took {spent:?} of {IDLE:?}");
    drop(client);
    daemon.stop().unwrap();
    serving.join().unwrap();
    fs::remove_dir_all(folder).unwrap();
}
