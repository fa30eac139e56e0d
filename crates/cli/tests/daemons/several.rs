//! Several processes of a node that offer one service: clients call one of them without the daemon, dealt out by load.

use std::{collections::BTreeSet, thread, time::Duration};

use client::{
    CallError, Client, ClientConfig, HERE, Offer, Pipeline, Provider, ProviderStop, Status, To,
};
use daemon::metrics::Counter;
use memory::sync::{AtomicBool, Ordering};
use rustix::process::Signal;

use super::{
    cluster::{Cluster, ECHO, PATIENCE, StopOnDrop, body, eventually, patient},
    threads::TWO,
};

/// More calls than go before an introduction.
const MANY: u64 = 200;

/// Calls that a stopped daemon does not answer end after this.
const SHORT: Duration = Duration::from_millis(100);

/// A provider of a shared service, which marks its answers.
fn offer(cluster: &Cluster) -> Provider {
    let offer = Offer::new(ECHO).shared();
    Provider::offer(&cluster.socket(0), &offer, ClientConfig::default()).unwrap()
}

fn serve<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    provider: Provider,
    mark: u8,
) -> ProviderStop {
    let stop = provider.stop_handle();
    scope.spawn(move || {
        provider.serve(|request, answer| {
            answer.push(mark);
            answer.extend_from_slice(request.body);
            Some(Status::Ok)
        })
    });
    stop
}

/// A call, and the mark of the provider that answered.
fn try_call(client: &mut Client, number: u64, timeout: Duration) -> Result<u8, CallError> {
    let sent = body(number);
    let answer = client.call_within(To::new(HERE, ECHO, 1), &sent, timeout)?;
    assert_eq!(answer[1..], sent);
    Ok(answer[0])
}

fn call(client: &mut Client, number: u64) -> u8 {
    try_call(client, number, PATIENCE).unwrap()
}

/// Each client calls until its calls need no daemon.
fn meet(clients: &mut [Client]) {
    for client in clients {
        (0..MANY).for_each(|number| drop(try_call(client, number, PATIENCE)));
    }
}

/// The providers that answer these clients while the daemon is stopped; `None`: a client has left its provider, and has
/// no other one yet.
fn marks_without_daemon(cluster: &Cluster, clients: &mut [Client]) -> Option<Vec<u8>> {
    cluster.signal(0, Signal::STOP);
    let call = |client: &mut Client, number| try_call(client, number, SHORT).ok();
    let mut marks: Option<Vec<_>> = clients
        .iter_mut()
        .map(|client| {
            let marks: Option<BTreeSet<_>> = (0..MANY).map(|number| call(client, number)).collect();
            let marks = marks?;
            assert_eq!(marks.len(), 1, "a client calls one provider");
            marks.first().copied()
        })
        .collect();
    cluster.signal(0, Signal::CONT);
    marks.iter_mut().for_each(|marks| marks.sort_unstable());
    marks
}

/// Clients call until each has a provider of its own, these in all.
fn expect_without_daemon(cluster: &Cluster, clients: &mut [Client], marks: &[u8]) {
    eventually(|| {
        meet(clients);
        marks_without_daemon(cluster, clients).is_some_and(|found| found == marks)
    });
}

fn wait_for_sessions(cluster: &Cluster, count: u64) {
    eventually(|| cluster.counter(0, Counter::DirectSessions) == Some(count));
}

#[test]
fn clients_are_dealt_out_to_the_providers_of_a_service_and_dealt_anew_when_one_goes() {
    let cluster = Cluster::new(1);
    thread::scope(|scope| {
        let providers = [offer(&cluster), offer(&cluster)];
        let [first, second] = providers;
        let stops = [serve(scope, first, 1), serve(scope, second, 2)];
        let _stops = stops.each_ref().map(StopOnDrop);
        let mut clients: Vec<_> = (0..4).map(|_| cluster.client(0)).collect();
        expect_without_daemon(&cluster, &mut clients, &[1, 1, 2, 2]);
        stops[0].stop();
        expect_without_daemon(&cluster, &mut clients, &[2; 4]);
    });
}

#[test]
fn clients_of_the_provider_with_more_of_them_go_to_the_other_one_and_lose_no_call() {
    let cluster = Cluster::new(1);
    thread::scope(|scope| {
        let first = serve(scope, offer(&cluster), 1);
        let _first = StopOnDrop(&first);
        let mut clients: Vec<_> = (0..4).map(|_| cluster.client(0)).collect();
        expect_without_daemon(&cluster, &mut clients, &[1; 4]);
        let second = serve(scope, offer(&cluster), 2);
        let _second = StopOnDrop(&second);
        // Every call on the way there is answered.
        eventually(|| {
            let marks = clients.iter_mut().map(|client| call(client, 1));
            marks.filter(|mark| *mark == 2).count() == 2
        });
        expect_without_daemon(&cluster, &mut clients, &[1, 1, 2, 2]);
    });
}

/// A client that makes no calls is no load: of four clients, the two busy ones have a provider each in the end.
#[test]
fn load_that_shifts_to_the_clients_of_one_provider_is_shared_by_both() {
    let cluster = Cluster::new(1);
    thread::scope(|scope| {
        let stops = [serve(scope, offer(&cluster), 1), serve(scope, offer(&cluster), 2)];
        let _stops = stops.each_ref().map(StopOnDrop);
        let mut clients: Vec<_> = (0..4).map(|_| cluster.client(0)).collect();
        meet(&mut clients);
        expect_without_daemon(&cluster, &mut clients, &[1, 1, 2, 2]);
        let mut busy: Vec<_> =
            clients.iter_mut().filter_map(|it| (call(it, 1) == 1).then_some(it)).collect();
        eventually(|| {
            let marks: BTreeSet<_> = busy.iter_mut().map(|client| call(client, 1)).collect();
            marks.len() == 2
        });
    });
}

/// The second provider belongs to the thread of the client, whose requests go there from then on.
#[test]
fn a_client_goes_to_the_provider_of_its_own_thread_and_loses_no_call() {
    let cluster = Cluster::with(1, TWO);
    thread::scope(|scope| {
        let first = serve(scope, offer(&cluster), 1);
        let _first = StopOnDrop(&first);
        let mut client = cluster.client(0);
        meet(std::slice::from_mut(&mut client));
        let _between = cluster.client(0);
        let second = serve(scope, offer(&cluster), 2);
        let _second = StopOnDrop(&second);
        eventually(|| call(&mut client, 1) == 2);
    });
}

/// The requests of a pipeline are dealt out one by one, since one process may not keep up with it.
#[test]
fn a_pipeline_leaves_its_provider_when_another_one_comes_and_loses_no_call() {
    let cluster = Cluster::new(1);
    thread::scope(|scope| {
        let first = serve(scope, offer(&cluster), 1);
        let _first = StopOnDrop(&first);
        let mut pipeline = Pipeline::connect(&cluster.socket(0), patient()).unwrap();
        let to = To { rank: HERE, service: ECHO, method: 1 };
        let has_joined = AtomicBool::new(false);
        let (mut next, mut of_second) = (0_u64, 0_u64);
        let mut second = None;
        while of_second < MANY || pipeline.in_flight() > 0 {
            while of_second < MANY && pipeline.in_flight() < 8 {
                pipeline.submit(to, &body(next), next).unwrap();
                next += 1;
            }
            pipeline.flush();
            let ended = pipeline.poll(|number, answer| {
                let answer = answer.unwrap();
                assert_eq!(answer[1..], body(number));
                of_second += u64::from(answer[0] == 2);
            });
            if ended == 0 {
                pipeline.rest();
            }
            if next > 2 * MANY && !has_joined.swap(true, Ordering::Relaxed) {
                wait_for_sessions(&cluster, 1);
                second = Some(serve(scope, offer(&cluster), 2));
            }
        }
        drop(second.as_ref().map(StopOnDrop));
    });
}
