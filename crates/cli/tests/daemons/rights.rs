//! Who may offer and call what; whose place is whose.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use client::{
    CallError, Client, ClientConfig, Offer, ProvideError, Provider, Status, To, bulk::BulkProvider,
    message::HERE,
};
use rustix::process::{Signal, getuid};

use super::cluster::{Cluster, ECHO, Process, eventually, reverse, serve_reversed};

/// Nobody has this number.
const STRANGER: &str = "uid:4294967294";

fn rights(text: String) -> [(&'static str, &'static str); 1] {
    [("COPYRPC_RIGHTS", text.leak())]
}

#[test]
fn who_may_neither_offer_nor_call_is_told_so_and_others_are_served() {
    let uid = getuid().as_raw();
    let text = format!(
        "offer {ECHO} exe:{} ; call {ECHO} uid:{uid}; offer 30 {STRANGER}; call 31 {STRANGER}; call 32 nobody",
        std::env::current_exe().unwrap().display()
    );
    let cluster = Cluster::with(2, &rights(text));
    let offer = |service, rank| {
        let offer = Offer::new(service);
        Provider::offer(&cluster.socket(rank), &offer, ClientConfig::default())
    };
    let refused = offer(30, 1).unwrap_err();
    assert!(
        matches!(refused, ProvideError::Denied(ref service) if service.number == 30),
        "{refused}"
    );
    assert!(refused.to_string().contains("COPYRPC_RIGHTS"), "{refused}");
    let providers = [offer(ECHO, 1).unwrap(), offer(31, 1).unwrap()];
    thread::scope(|scope| {
        for provider in providers {
            scope.spawn(|| serve_reversed(provider));
        }
        for rank in 0..2 {
            let mut client = cluster.client(rank);
            assert_eq!(client.call(To::new(1, ECHO, 0), b"abc").unwrap(), b"cba", "its user may");
            for service in [31, 32] {
                let denied = client.call(To::new(1, service, 0), b"abc").unwrap_err();
                let CallError::Denied(to) = &denied else { panic!("{denied:?}") };
                assert_eq!((to.rank, to.service), (1, service));
                assert!(denied.is_certainly_not_executed());
                assert_eq!(denied.status(), Status::PermissionDenied);
            }
            assert_eq!(client.ping(1, b"all may").unwrap(), b"all may");
            assert!(matches!(client.call(To::new(9, ECHO, 0), b""), Err(CallError::NoRank(9))));
        }
        cluster.end();
    });
}

#[test]
fn a_daemon_that_guards_a_service_judges_callers_of_nodes_that_have_no_rules() {
    let text = format!("call {ECHO} self; call 31 {STRANGER}; call 32 nobody");
    let mut cluster = Cluster::with(2, &rights(text));
    // The other node has other rules: none.
    cluster.settings.clear();
    cluster.kill(0);
    cluster.start(0);
    cluster.wait_up(0, 1);
    let offer =
        |service| Provider::register(&cluster.socket(1), service, ClientConfig::default()).unwrap();
    let providers = [ECHO, 31, 32].map(offer);
    thread::scope(|scope| {
        for provider in providers {
            scope.spawn(|| serve_reversed(provider));
        }
        let mut client = cluster.client(0);
        for trace in [0, 7] {
            client.set_trace(trace);
            assert_eq!(client.call(To::new(1, ECHO, 0), b"abc").unwrap(), b"cba", "its user may");
            for service in [31, 32] {
                let denied = client.call(To::new(1, service, 0), b"abc").unwrap_err();
                assert!(matches!(denied, CallError::Denied(_)), "{denied:?}");
                assert!(denied.is_certainly_not_executed());
            }
        }
        assert_eq!(
            cluster.client(1).call(To::new(HERE, ECHO, 0), b"abc").unwrap(),
            reverse(b"abc")
        );
        drop(cluster);
    });
}

/// Calls of a client with a writable slice, which the provider of one service would get.
fn expect_denied(client: &mut Client, strange: &mut BulkProvider, rank: u32) {
    let region = client.bulk(4096).unwrap();
    region.write(0, b"secret of the caller").unwrap();
    let to = To { rank, service: 42, method: 0 };
    let slices = [region.writable(0, 4096)];
    let denied = client.call_bulk(to, b"", &slices, Duration::from_secs(20)).unwrap_err();
    assert_eq!(denied, CallError::Denied(to));
    assert!(denied.is_certainly_not_executed());
    assert_eq!(client.lent(&region).unwrap(), (0, 0), "nothing was lent");
    assert!(strange.next(Duration::from_millis(20)).unwrap().is_none(), "it was told of nothing");
}

/// Bulk rules 10 and 11.
#[test]
fn rights_hold_for_calls_that_lend_memory_as_for_others() {
    let text = format!("offer 41 {STRANGER}; call {ECHO} self; call 42 {STRANGER}");
    let mut cluster = Cluster::with(2, &rights(text));
    let offer = |path: &Path, service| BulkProvider::offer(path, service, ClientConfig::default());
    let refused = offer(&cluster.socket(1), 41).unwrap_err();
    assert!(
        matches!(refused, ProvideError::Denied(ref service) if service.number == 41),
        "{refused}"
    );
    let mut strange = offer(&cluster.socket(1), 42).unwrap();
    let mut own = offer(&cluster.socket(1), ECHO).unwrap();
    expect_denied(&mut cluster.client(1), &mut strange, HERE);
    expect_denied(&mut cluster.client(0), &mut strange, 1);
    // The other node has other rules: none.
    cluster.settings.clear();
    cluster.kill(0);
    cluster.start(0);
    cluster.wait_up(0, 1);
    expect_denied(&mut cluster.client(0), &mut strange, 1);
    for (from, rank) in [(1, HERE), (0, 1)] {
        let mut client = cluster.client(from);
        let served = thread::scope(|scope| {
            scope.spawn(|| {
                eventually(|| match own.next(Duration::from_millis(20)).unwrap() {
                    Some(work) => own.answer(work, Status::Ok, b"its user may").is_ok(),
                    None => false,
                });
                // The answer goes with the next question.
                own.next(Duration::ZERO).unwrap();
            });
            let to = To { rank, service: ECHO, method: 0 };
            client.call_bulk(to, b"", &[], Duration::from_secs(20)).map(<[u8]>::to_vec)
        });
        assert_eq!(served.unwrap(), b"its user may");
    }
    cluster.end();
}

#[test]
fn rules_that_make_no_sense_are_named_and_no_daemon_starts() {
    let daemon = Command::new(env!("CARGO_BIN_EXE_copyrpc"))
        .args(["config", "--rights", "call 17 alice"])
        .env_clear()
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&daemon.stderr).into_owned();
    assert_eq!(daemon.status.code(), Some(2), "{told}");
    assert!(told.contains("`call 17 alice`: a party is"), "{told}");
}

/// Another daemon of the job, in another runtime folder, as on another host.
fn another(cluster: &Cluster, address: &str, rank: u32) -> Command {
    let mut command = cluster.command(rank);
    let folder = cluster.folder.join("elsewhere");
    command
        .arg("daemon")
        .env("COPYRPC_RUNTIME_DIR", folder)
        .env("COPYRPC_RANK", rank.to_string())
        .env("COPYRPC_SIZE", "2")
        .env("COPYRPC_RENDEZVOUS", address)
        .env("COPYRPC_SECRET_FILE", cluster.folder.join("secret"))
        .stderr(Stdio::piped());
    command
}

/// It was stolen: the newcomer got the roster, and the others learned its address.
#[test]
fn a_rank_whose_daemon_lives_is_refused_to_others_over_tcp_and_given_once_it_is_dead() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free.to_string();
    let mut cluster = Cluster::meeting_at(2, address.clone());
    let thief = another(&cluster, &address, 1).output().unwrap();
    let told = String::from_utf8_lossy(&thief.stderr).into_owned();
    assert!(!thief.status.success() && told.contains("rank 1 has a daemon that lives"), "{told}");
    let mut client = cluster.client(0);
    assert_eq!(client.ping(1, b"the first").unwrap(), b"the first");
    cluster.kill(1);
    // At once: it waits until the other is found dead.
    cluster.start(1);
    cluster.wait_up(1, 1);
    eventually(|| client.ping(1, b"the next").is_ok());
    // One that is stopped is as good as dead, and does not come back as that rank.
    cluster.signal(1, Signal::STOP);
    let _next = Process(another(&cluster, &address, 1).spawn().unwrap());
    eventually(|| client.ping(1, b"another").is_ok());
}
