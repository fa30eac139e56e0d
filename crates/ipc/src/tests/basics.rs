//! Calls of all sizes and styles against a server thread of the same process.

use std::{sync::Arc, thread, time::Duration};

use memory::sync::{AtomicBool, Ordering};

use super::rig::*;
use crate::{
    BindError, BlockingClient, CallError, ClientConfig, ConnectError, PipelinedClient,
    RefuseReason, Rejection, Request, Server, ServerConfig, Wait,
};

#[test]
fn fault_c5_every_size_arrives_and_one_more_is_refused() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), increment);
    let mut client = sync(&dir.socket());
    let bytes: Vec<u8> = (0..1001u32).map(|i| i.to_le_bytes()[0]).collect();
    for len in (0..130).chain([512, 999, 1000]) {
        expect_increment(&mut client, &bytes[..len]);
    }
    let error = CallError::TooLarge { len_bytes: 1001, max_bytes: 1000 };
    assert_eq!(client.call(&bytes), Err(error));
    expect_increment(&mut client, b"still in order");
}

#[test]
fn a_response_that_is_too_long_is_an_error_on_both_sides() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), |request| {
        let refused = request.reply(&[0; 1001]);
        assert_eq!(refused, Err(crate::ReplyError::TooLarge { len_bytes: 1001, max_bytes: 1000 }));
    });
    assert_eq!(sync(&dir.socket()).call(b""), Err(CallError::ResponseTooLarge));
}

#[test]
fn fault_c6_c3_calls_and_slots_are_reused_for_ever() {
    let dir = Dir::new();
    let config = ServerConfig { clients_max: 2, depth: 2, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    for round in 0..20u32 {
        let mut client = sync(&dir.socket());
        // Positions, generations and lap tags wrap in here.
        for call in 0..50u32 {
            expect_increment(&mut client, &(round * 50 + call).to_le_bytes());
        }
        drop(client);
        expect_baseline(&server, 0);
    }
    assert_eq!(server.ask(|server| server.stats().welcomed), 20);
}

#[test]
fn lap_tags_wrap_in_a_ring_of_one() {
    let dir = Dir::new();
    let config = ServerConfig { depth: 1, ..small() };
    let _server = ServerThread::start(&dir.socket(), config, increment);
    let mut client = sync(&dir.socket());
    for call in 0..9000u32 {
        expect_increment(&mut client, &call.to_le_bytes());
    }
}

#[test]
fn fault_c3_a_full_server_says_so_until_a_slot_is_free() {
    let dir = Dir::new();
    let config = ServerConfig { clients_max: 2, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let first = sync(&dir.socket());
    let _second = sync(&dir.socket());
    let refused = BlockingClient::connect(&dir.socket(), patient()).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(RefuseReason::ServerFull)), "{refused}");
    drop(first);
    expect_baseline(&server, 1);
    expect_increment(&mut sync(&dir.socket()), b"there is a slot");
}

#[test]
fn servers_behind_one_door_share_the_clients_and_their_limit() {
    let dir = Dir::new();
    let config = ServerConfig { clients_max: 5, ..small() };
    let team = Server::bind_team(&dir.socket(), config, 3).unwrap();
    let mut team: Vec<_> = team.into_iter().map(|one| ServerThread::run(one, increment)).collect();
    let here = |server: &ServerThread| server.ask(|server| server.stats().clients);
    let mut clients: Vec<_> = (0..5).map(|_| sync(&dir.socket())).collect();
    let mut counts: Vec<_> = team.iter().map(here).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 2]);
    let refused = BlockingClient::connect(&dir.socket(), patient()).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(RefuseReason::ServerFull)), "{refused}");
    clients.iter_mut().for_each(|client| expect_increment(client, b"whose client I am"));
    // One that leaves makes room, wherever it was.
    clients.remove(0);
    eventually("it left", || team.iter().map(here).sum::<usize>() == 4);
    clients.push(connect_eventually(&dir.socket()));
    clients.iter_mut().for_each(|client| expect_increment(client, b"still theirs"));
    // A server that leaves hangs up on its own clients, and the others take who comes.
    let lost = here(&team[2]);
    drop(team.pop());
    let gone = clients.iter_mut().filter_map(|client| client.call(b"?").err());
    assert_eq!(gone.inspect(|error| assert_eq!(*error, CallError::ServerGone)).count(), lost);
    clients.push(connect_eventually(&dir.socket()));
    expect_increment(&mut clients[5], b"in time");
}

#[test]
fn fault_b9_one_user_has_a_limit() {
    let dir = Dir::new();
    let config = ServerConfig { clients_per_user_max: 1, ..small() };
    let _server = ServerThread::start(&dir.socket(), config, increment);
    let _first = sync(&dir.socket());
    let refused = BlockingClient::connect(&dir.socket(), patient()).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(RefuseReason::UserLimit)), "{refused}");
}

#[test]
fn fault_i7_one_process_has_a_limit_and_what_leaves_makes_room() {
    let dir = Dir::new();
    let config = ServerConfig { clients_per_process_max: 2, clients_max: 8, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let mut clients: Vec<_> = (0..2).map(|_| sync(&dir.socket())).collect();
    let refused = BlockingClient::connect(&dir.socket(), patient()).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(RefuseReason::ProcessLimit)), "{refused}");
    // The cause is counted, and no other.
    eventually("it is counted", || {
        let rejections = server.ask(|server| server.stats().rejections);
        rejections.count(Rejection::ProcessLimit) == 1 && rejections.total() == 1
    });
    expect_increment(&mut clients[0], b"whoever was there is served");
    clients.pop();
    expect_increment(&mut connect_eventually(&dir.socket()), b"there is room again");
    // The same for all servers of a team together.
    let dir = Dir::new();
    let team = Server::bind_team(&dir.socket(), config, 2).unwrap();
    let _team: Vec<_> = team.into_iter().map(|one| ServerThread::run(one, increment)).collect();
    let mut clients: Vec<_> = (0..2).map(|_| sync(&dir.socket())).collect();
    let refused = BlockingClient::connect(&dir.socket(), patient()).unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(RefuseReason::ProcessLimit)), "{refused}");
    clients.pop();
    expect_increment(&mut connect_eventually(&dir.socket()), b"there is room again");
}

#[test]
fn fault_a7_a_second_server_is_refused_by_the_id_of_the_first() {
    let dir = Dir::new();
    let _first = Server::bind(&dir.socket(), small()).unwrap();
    let second = Server::bind(&dir.socket(), small()).unwrap_err();
    assert!(matches!(second, BindError::Locked(_)));
    let pid = format!("process {}", std::process::id());
    assert!(second.to_string().contains(&pid), "{second}");
}

#[test]
fn an_abstract_name_has_one_server_and_no_file() {
    let name = format!("@copyrpc-ipc/{}", std::process::id());
    let name = std::path::Path::new(&name);
    let server = ServerThread::start(name, small(), increment);
    assert_eq!(sync(name).call(&[1]).unwrap(), [2]);
    let second = Server::bind(name, small()).unwrap_err();
    assert!(matches!(second, BindError::Socket(_)), "{second}");
    assert!(!name.exists());
    drop(server);
    drop(Server::bind(name, small()).unwrap());
}

#[test]
fn impossible_configurations_are_refused() {
    let dir = Dir::new();
    for config in [
        ServerConfig { depth: 0, ..small() },
        ServerConfig { depth: 3, ..small() },
        ServerConfig { depth: 8192, ..small() },
        ServerConfig { request_bytes_max: 1 << 24, ..small() },
        ServerConfig { clients_max: 0, ..small() },
        ServerConfig { clients_max: 4097, ..small() },
        ServerConfig { turn_budget: 0, ..small() },
    ] {
        let refused = Server::bind(&dir.socket(), config);
        assert!(matches!(refused, Err(BindError::Config(_))), "{config:?}");
    }
}

/// Answers the latest of four requests first.
fn reversed() -> impl FnMut(Request<'_>) + Send {
    let mut tokens = Vec::new();
    move |request| {
        tokens.push((request.payload().to_vec(), request.client()));
        drop(request);
    }
}

#[test]
fn a_dropped_request_is_answered_with_an_error() {
    let dir = Dir::new();
    let _server = ServerThread::start(&dir.socket(), small(), reversed());
    assert_eq!(sync(&dir.socket()).call(b"x"), Err(CallError::NotAnswered));
}

#[test]
fn pitfall_19_out_of_order_replies_reach_their_own_calls() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || {
        let mut client = pipelined::<u64>(&path);
        let mut answered = 0u64;
        for round in 0..200u64 {
            for call in 0..8 {
                let number = round * 8 + call;
                client.submit(&number.to_le_bytes(), number).unwrap();
            }
            let full = client.submit(b"", 0).unwrap_err();
            assert_eq!(full.error, CallError::Full { depth: 8 });
            while client.in_flight() > 0 {
                answered += client.poll(|number, response| {
                    assert_eq!(response, Ok(&(number * 3).to_le_bytes()[..]));
                }) as u64;
                client.rest();
            }
        }
        assert_eq!(answered, 1600);
    });
    let mut tokens = Vec::new();
    while !client.is_finished() {
        let before = tokens.len();
        while let Some(request) = server.recv() {
            let number = u64::from_le_bytes(request.payload().try_into().unwrap());
            tokens.push((number, request.defer()));
        }
        // Half a ring at a time or what is left, the latest first: out of order.
        if tokens.len() >= 4 || tokens.len() == before {
            for (number, token) in tokens.drain(..).rev() {
                server.reply(token, &(number * 3).to_le_bytes()).unwrap();
            }
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(10)));
    }
    client.join().unwrap();
}

#[test]
fn a_dropped_token_is_an_error_and_a_token_of_a_gone_client_is_harmless() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || {
        let mut client = sync(&path);
        assert_eq!(client.call(b"drop"), Err(CallError::NotAnswered));
        assert_eq!(client.call(b"fail"), Err(CallError::HandlerError(77)));
        assert_eq!(client.call(b"exhausted"), Err(CallError::ResourceExhausted));
        assert_eq!(
            client.call_within(b"leave", Duration::from_millis(1)),
            Err(CallError::Deadline)
        );
    });
    let mut kept = None;
    eventually("the client leaves", || {
        while let Some(request) = server.recv() {
            match request.payload() {
                b"drop" => {
                    let token = request.defer();
                    thread::spawn(move || drop(token)).join().unwrap();
                }
                b"fail" => request.reply_error(77),
                b"exhausted" => request.reply_exhausted(),
                _ => kept = Some(request.defer()),
            }
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
        client.is_finished() && server.stats().clients == 0
    });
    client.join().unwrap();
    let kept = kept.expect("the client asked to leave");
    assert_eq!(server.reply(kept, b"late"), Err(crate::ReplyError::ClientGone));
    let stats = server.stats();
    assert_eq!((stats.unanswered, stats.departed), (1, 1));
}

#[test]
fn who_waits_for_a_dropped_token_is_told_before_the_server_sleeps() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, small()).unwrap();
    let client = thread::spawn(move || pipelined::<()>(&path));
    eventually("the client is in", || {
        assert!(server.recv().is_none());
        server.service_now();
        client.is_finished()
    });
    let mut client = client.join().unwrap();
    client.submit(b"drop", ()).unwrap();
    client.flush();
    drop(server.recv().expect("it was told").defer());
    server.arm();
    let mut outcome = None;
    client.poll(|(), response| outcome = Some(response.map(<[u8]>::len)));
    assert_eq!(outcome, Some(Err(CallError::NotAnswered)));
}

#[test]
fn fault_a13_late_responses_are_discarded_and_their_calls_used_again() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, ServerConfig { depth: 2, ..small() }).unwrap();
    let is_full = Arc::new(AtomicBool::new(false));
    let tell_full = Arc::clone(&is_full);
    let client = thread::spawn(move || {
        let mut client = pipelined::<&str>(&path);
        let first = client.submit(b"first", "first").unwrap();
        client.submit_within(b"second", Duration::from_millis(1), "second").unwrap();
        assert_eq!(client.cancel(first), Some("first"));
        assert_eq!(client.cancel(first), None, "cancelled once");
        let mut ended = Vec::new();
        eventually("the deadline passes", || {
            client.poll(|name, outcome| ended.push((name, outcome.map(<[u8]>::to_vec)))) > 0
        });
        assert_eq!(ended, [("second", Err(CallError::Deadline))]);
        // Both calls are still the server's, so there is no slot for a third yet.
        let mut third = client.submit(b"third", "third");
        assert_eq!(
            third,
            Err(crate::SubmitError { error: CallError::Full { depth: 2 }, context: "third" })
        );
        tell_full.store(true, Ordering::Relaxed);
        eventually("a late response frees a slot", || {
            client.poll(|name, _| panic!("{name} ended twice"));
            third = client.submit(b"third", "third");
            third.is_ok()
        });
        eventually("the third call is answered", || {
            client.poll(|name, outcome| assert_eq!((name, outcome), ("third", Ok(&b"3"[..])))) > 0
        });
    });
    let mut late = Vec::new();
    while !client.is_finished() {
        while let Some(request) = server.recv() {
            if request.payload() == b"third" {
                request.reply(b"3").unwrap();
            } else {
                late.push(request.defer());
            }
        }
        if is_full.load(Ordering::Relaxed) {
            for token in late.drain(..) {
                server.reply(token, b"late").unwrap();
            }
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
    }
    client.join().unwrap();
}

#[test]
fn fault_a10_a_panicking_handler_costs_its_own_call_only() {
    let dir = Dir::new();
    let server = ServerThread::start(&dir.socket(), small(), |request| {
        assert_ne!(request.payload(), b"panic", "as asked");
        increment(request);
    });
    let mut client = sync(&dir.socket());
    assert_eq!(client.call(b"panic"), Err(CallError::NotAnswered));
    expect_increment(&mut client, b"alive");
    assert_eq!(server.ask(|server| server.stats().panics), 1);
}

#[test]
fn fault_a10_a_handler_that_never_returns_an_answer_meets_the_deadline() {
    let dir = Dir::new();
    let mut kept = Vec::new();
    let server = ServerThread::start(&dir.socket(), small(), move |request| {
        if request.payload() == b"never" { kept.push(request.defer()) } else { increment(request) }
    });
    let mut client = sync(&dir.socket());
    let timeout = Duration::from_millis(5);
    for _ in 0..8 {
        assert_eq!(client.call_within(b"never", timeout), Err(CallError::Deadline));
    }
    // All calls wait for late responses.
    assert_eq!(client.call_within(b"full", timeout), Err(CallError::Full { depth: 8 }));
    let stuck = server.ask(|server| {
        let client = server.clients().next().unwrap();
        server.unanswered(client)
    });
    assert_eq!(stuck, 8);
    expect_increment(&mut sync(&dir.socket()), b"others are served");
}

/// A call ends at its deadline: the time that it waits for an entry is part of its own.
#[test]
fn who_waits_for_an_entry_has_less_time_for_the_call() {
    let dir = Dir::new();
    let path = dir.socket();
    let mut server = Server::bind(&path, ServerConfig { depth: 1, ..small() }).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let tell_over = Arc::clone(&is_over);
    let client = thread::spawn(move || {
        let mut client = sync(&path);
        let late = client.call_within(b"late", Duration::from_millis(1)).map(drop);
        assert_eq!(late, Err(CallError::Deadline));
        tell_over.store(true, Ordering::Relaxed);
        client.wait_for_entry(1 << 60)
    });
    let mut late = None;
    while !client.is_finished() {
        late = server.recv().map(Request::defer).or(late);
        if is_over.load(Ordering::Relaxed)
            && let Some(token) = late.take()
        {
            server.reply(token, b"").unwrap();
        }
        server.rest(os::clock::deadline_ns(Duration::from_millis(1)));
    }
    let left_ns = client.join().unwrap().unwrap();
    assert!(left_ns < 1 << 60, "all of it");
}

/// All ways of waiting on both sides, several clients, data checked.
fn mixed(server_wait: Wait, client_wait: Wait) {
    let dir = Dir::new();
    let config = ServerConfig { wait: server_wait, turn_budget: 3, ..small() };
    let server = ServerThread::start(&dir.socket(), config, increment);
    let clients: Vec<_> = (0..3u32)
        .map(|seed| {
            let path = dir.socket();
            thread::spawn(move || {
                let config = ClientConfig { wait: client_wait, ..patient() };
                let mut client = PipelinedClient::<Vec<u8>>::connect(&path, config).unwrap();
                let (mut sent, mut left) = (0u32, 100);
                while left > 0 {
                    while sent < 100 && client.in_flight() < client.depth() {
                        let len = (sent * 37 + seed * 11) as usize % 200;
                        let request = vec![(sent + seed).to_le_bytes()[0]; len];
                        client.submit(&request, request.clone()).unwrap();
                        sent += 1;
                    }
                    left -= client.poll(|request, response| {
                        let expected: Vec<_> = request.iter().map(|b| b.wrapping_add(1)).collect();
                        assert_eq!(response, Ok(&expected[..]));
                    });
                    client.rest();
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let stats = server.ask(|server| server.stats());
    assert_eq!((stats.requests, stats.responses, stats.evicted), (300, 300, 0));
}

#[test]
fn fault_g1_busy_on_both_sides() {
    mixed(Wait::Busy, Wait::Busy);
}

#[test]
fn fault_g1_sleeping_on_both_sides() {
    mixed(Wait::Block, Wait::Block);
}

#[test]
fn fault_g1_adaptive_with_early_sleep() {
    let wait = Wait::Adaptive { spins: 3, yields: 1 };
    mixed(wait, wait);
}

#[test]
fn fault_g1_a_sleeping_server_and_a_busy_client() {
    mixed(Wait::Block, Wait::Busy);
}

#[test]
fn fault_g1_a_busy_server_and_a_sleeping_client() {
    mixed(Wait::Busy, Wait::Block);
}
