//! Daemons and clients in one process; daemons on threads of their own, as clients wait for them.

use std::{sync::mpsc, thread, time::Duration};

use memory::sync::{AtomicBool, Ordering};
use os::clock;

use super::*;
use crate::backend::{Client as _, Event, Kind, Roster, Server as _, Switches, Token, Wait};

const PATIENCE: Duration = Duration::from_secs(20);
const CALLS: u64 = 40;

fn setup() -> Setup {
    let switches = Switches::resolve("delegation", Kind::Delegation.switches(), &[].into());
    Setup {
        topology: Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 10 },
        queue_depth: 8,
        message_bytes_max: 40_000,
        timeout_ns: 5_000_000_000,
        wait: Wait::Yield,
        switches: switches.unwrap(),
        nic: "soft".into(),
    }
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

/// Both clients call both shards, with bodies of which some go by rendezvous between the daemons.
#[test]
fn every_call_gets_the_answer_of_its_shard() {
    let setup = setup();
    let backend = Delegation::open(&setup, 0).unwrap();
    let stop = AtomicBool::new(false);
    let (contacts, told) = mpsc::channel();
    let (joined, ready) = mpsc::channel();
    thread::scope(|scope| {
        // Also when an assertion fails, or the daemons would go on for ever.
        let _stop = StopOnDrop(&stop);
        let (rosters, threads): (Vec<_>, Vec<_>) = (0..2_u16)
            .map(|shard| {
                let (roster, meet) = mpsc::channel::<Roster>();
                let (contacts, backend, stop) = (contacts.clone(), &backend, &stop);
                let joined = joined.clone();
                let thread = scope.spawn(move || {
                    let mut server = backend.server(Shard(shard), signing(shard)).unwrap();
                    contacts.send((shard, server.contact())).unwrap();
                    server.join(&meet.recv().unwrap(), clock::deadline_ns(PATIENCE)).unwrap();
                    joined.send(()).unwrap();
                    let mut served = 0;
                    while !stop.load(Ordering::Relaxed) {
                        served += server.turn(64).unwrap();
                        server.wait(clock::deadline_ns(Duration::from_millis(1))).unwrap();
                    }
                    let counters = server.counters();
                    assert!(counters.named.values().any(|count| *count > 0), "{counters:?}");
                    served + server.turn(64).unwrap()
                });
                (roster, thread)
            })
            .unzip();
        let mut servers = [told.recv().unwrap(), told.recv().unwrap()];
        servers.sort_by_key(|(shard, _)| *shard);
        let servers = servers.into_iter().map(|(_, contact)| contact).collect();
        let roster = Roster { servers, clients: vec![Contact::default(); 2] };
        rosters.iter().for_each(|to| to.send(roster.clone()).unwrap());
        // A job starts when everybody has joined: before, daemons do not see each other.
        for _ in 0..2 {
            ready.recv_timeout(PATIENCE).unwrap();
        }
        for client in 0..2 {
            let mut client = backend.client(ClientId(client)).unwrap();
            client.join(&roster, clock::deadline_ns(PATIENCE)).unwrap();
            call_all(&mut client);
        }
        stop.store(true, Ordering::Relaxed);
        let served = threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>();
        assert_eq!(served as u64, 2 * CALLS);
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn call_all(client: &mut DelegationClient) {
    let (mut sent, mut answered) = (0, 0);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    while answered < CALLS {
        assert!(clock::now_ns() < deadline_ns, "{answered} of {CALLS} calls are answered");
        while sent < CALLS {
            let to = Shard(u16::try_from(sent % 2).unwrap());
            if client.submit(to, Token(sent), &body(sent)).is_err() {
                break;
            }
            sent += 1;
        }
        let poll = client.poll(64, &mut |event| {
            let Event::Answer { token: Token(n), bytes } = event else { panic!("{event:?}") };
            let (answer, shard) = bytes.split_at(bytes.len() - 2);
            assert_eq!(shard, [(n % 2).to_le_bytes()[0], 0]);
            assert!(answer == body(n), "call {n} got another's answer");
        });
        answered += poll.unwrap() as u64;
        client.wait(clock::deadline_ns(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn clients_are_dealt_out_among_the_daemons_of_their_node() {
    let topology = Topology { ranks: 2, daemon_threads: 2, clients_per_rank: 3, keys: 1 };
    let homes = (0..6).map(|client| home_of(topology, ClientId(client)).0).collect::<Vec<_>>();
    assert_eq!(homes, [0, 1, 0, 2, 3, 2]);
}
