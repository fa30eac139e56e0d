//! Daemons and clients in one process; daemons on threads of their own, as clients wait for them.

use std::{sync::mpsc, thread, time::Duration};

use memory::sync::{AtomicBool, Ordering};
use os::clock;

use super::*;
use crate::backend::{
    CallToken, Client as _, Counters, Event, Kind, Roster, Server as _, Switches, Wait,
};

const PATIENCE: Duration = Duration::from_secs(20);
const CALLS: u64 = 40;

fn setup(daemon_threads: u16) -> JobSetup {
    let switches = Switches::resolve("delegation", Kind::Delegation.switches(), &[].into());
    JobSetup {
        topology: Topology { ranks: 2, daemon_threads, clients_per_rank: 2, keys: 10 },
        queue_depth: 8,
        message_bytes_max: 40_000,
        timeout_ns: 5_000_000_000,
        wait: Wait::Yield,
        switches: switches.unwrap(),
        times_turns: false,
        address: crate::backend::loopback(),
    }
}

fn delegation(setup: JobSetup, rank: u16) -> Delegation {
    Delegation::new(setup, Selection::new("soft"), rank)
}

/// Answers with the request and the number of the shard.
fn signing(shard: u16) -> Service {
    Box::new(move |request, answer| {
        answer.extend_from_slice(request);
        answer.extend_from_slice(&shard.to_le_bytes());
    })
}

fn body(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(n * 900).unwrap()]
}

/// All clients call all shards, with bodies of which some go by rendezvous between the daemons.
#[test]
fn every_call_gets_the_answer_of_its_shard() {
    all_call_all(1);
}

/// Of calls between nodes some change the thread where they are made, some where they are served, and
/// some at both ends; of local ones some do, too.
#[test]
fn threads_of_a_daemon_serve_their_shards_to_all_nodes() {
    let thread_requests = all_call_all(2);
    assert!(thread_requests > 0, "calls travel between the threads of a daemon");
}

/// Returns how many calls changed the thread.
fn all_call_all(daemon_threads: u16) -> u64 {
    let setup = setup(daemon_threads);
    let topology = setup.topology;
    let shards = topology.shards();
    let backends = [0, 1].map(|rank| delegation(setup.clone(), rank));
    let stop = AtomicBool::new(false);
    let (contacts, told) = mpsc::channel();
    let (joined, ready) = mpsc::channel();
    thread::scope(|scope| {
        // Also when an assertion fails, or the daemons would go on for ever.
        let _stop = StopOnDrop(&stop);
        let (rosters, threads): (Vec<_>, Vec<_>) = (0..shards)
            .map(|shard| {
                let (roster, meet) = mpsc::channel::<Roster>();
                let backend = &backends[usize::from(topology.rank_of(Shard(shard)))];
                let (contacts, stop, joined) = (contacts.clone(), &stop, joined.clone());
                let thread = scope.spawn(move || {
                    let mut server = backend.server(Shard(shard), signing(shard)).unwrap();
                    contacts.send((shard, server.contact())).unwrap();
                    server.join(&meet.recv().unwrap(), clock::deadline_ns(PATIENCE)).unwrap();
                    joined.send(()).unwrap();
                    let (mut served, mut passed_on) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let turn = server.turn(64).unwrap();
                        served += turn.served;
                        passed_on += usize::from(turn.handled > 0 && turn.served == 0);
                        server.wait(clock::deadline_ns(Duration::from_millis(1))).unwrap();
                    }
                    served += server.turn(64).unwrap().served;
                    assert!(passed_on > 0, "a turn that passes calls on did something");
                    (served as u64, server.counters())
                });
                (roster, thread)
            })
            .unzip();
        let mut servers = (0..shards).map(|_| told.recv().unwrap()).collect::<Vec<_>>();
        servers.sort_by_key(|(shard, _)| *shard);
        let servers = servers.into_iter().map(|(_, contact)| contact).collect();
        let roster = Roster { servers, clients: vec![Contact::default(); 4] };
        rosters.iter().for_each(|to| to.send(roster.clone()).unwrap());
        // A job starts when everybody has joined: before, daemons do not see each other.
        for _ in 0..shards {
            ready.recv_timeout(PATIENCE).unwrap();
        }
        // They stay until all have called, so that each thread has one.
        let clients = (0..topology.clients()).map(|client| {
            let rank = usize::from(topology.home_of(ClientId(client)));
            let mut client = backends[rank].client(ClientId(client)).unwrap();
            client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
            call_all(&mut client, shards.into());
            client
        });
        let clients = clients.collect::<Vec<_>>();
        stop.store(true, Ordering::Relaxed);
        let ends = threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
        let served = ends.iter().map(|(served, _)| served).sum::<u64>();
        assert_eq!(served, clients.len() as u64 * CALLS);
        let count = |(_, counters): &(_, Counters)| counters.total(&["daemon requests_ipc"]);
        assert!(ends.iter().all(|end| count(end) > 0), "clients are dealt out among the threads");
        ends.iter().map(|(_, counters)| counters.total(&["daemon thread_requests"])).sum()
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn call_all(client: &mut DelegationClient, shards: u64) {
    let (mut sent, mut answered) = (0, 0);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while answered < CALLS {
        assert!(clock::now_ns() < deadline_ns, "{answered} of {CALLS} calls are answered");
        while sent < CALLS {
            let to = Shard(u16::try_from(sent % shards).unwrap());
            if client.submit(to, CallToken(sent), &body(sent)).is_err() {
                break;
            }
            sent += 1;
        }
        let poll = client.poll(64, &mut |event| {
            let Event::Answer { token: CallToken(n), bytes } = event else { panic!("{event:?}") };
            let (answer, shard) = bytes.split_at(bytes.len() - 2);
            assert_eq!(shard, [(n % shards).to_le_bytes()[0], 0]);
            assert!(answer == body(n), "call {n} got another's answer");
        });
        answered += poll.unwrap() as u64;
        client.wait(clock::deadline_ns(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn a_shard_is_served_once() {
    let backend = delegation(setup(2), 0);
    let _server = backend.server(Shard(1), signing(1)).unwrap();
    for shard in [1, 2] {
        let refused = backend.server(Shard(shard), signing(shard)).map(drop).unwrap_err();
        let told =
            format!("cannot serve shard {shard}: it is served already, or is another rank's");
        assert_eq!(refused.to_string(), told);
    }
}

#[test]
fn too_many_threads_are_refused_with_the_limit() {
    let backend = delegation(setup(65), 0);
    let refused = backend.server(Shard(0), signing(0)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("threads") && refused.contains("64"), "{refused}");
}
