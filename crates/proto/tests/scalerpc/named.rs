//! The rules, message by message.

use copyrpc_proto::{
    Status,
    scalerpc::{
        Client, Entry, Ignored, Mapping, Server, Trailer,
        client::{self, CallError, State},
        server::{Action, ClientId, RequestOrigin, ServerConfig, Stage, ZoneLease},
    },
};

fn announce(client: &mut Client) -> Entry {
    match client.poll_action() {
        Some(client::Action::Announce(entry)) => entry,
        other => panic!("{other:?}"),
    }
}

fn response(number: u32, place: Option<ZoneLease>) -> Trailer {
    Trailer {
        len_bytes: 8,
        method: 0,
        mapping: place.map(|place| place.mapping),
        generation: place.map_or(0, |place| place.generation),
        number,
    }
}

const ZONE: ZoneLease = ZoneLease { mapping: Mapping { pool: 1, zone: 4 }, generation: 9 };

/// Rules S2.1, S2.2, S3.1, S3.2: the states of a client.
#[test]
fn a_client_goes_from_idle_to_warmup_to_process_and_back() {
    let mut client = Client::new(4);
    assert_eq!((client.state(), client.poll_action()), (State::Idle, None));
    let slots: Vec<_> = (0..2).map(|cookie| client.call(cookie, 1, 8, u64::MAX).unwrap()).collect();
    assert_eq!(slots, [0, 1]);
    let entry = announce(&mut client);
    assert_eq!(entry, Entry { mask: 0b11, ack: 0, warm: 1 });
    assert_eq!(client.staged(0).unwrap().generation, 1, "the number of the announcement");
    // A call that is made now waits: the entry is the server's.
    assert_eq!(client.call(2, 1, 8, u64::MAX), Ok(2));
    assert_eq!((client.state(), client.poll_action()), (State::Warmup, None));
    client.receive(0, &response(1, Some(ZONE))).unwrap();
    assert_eq!(client.state(), State::Process);
    let Some(client::Action::Write { slot, mapping, header }) = client.poll_action() else {
        panic!("slot 2 is written")
    };
    assert_eq!((slot, mapping, header.generation, header.number), (2, ZONE.mapping, 9, 3));
    assert_eq!(client.poll_action(), None, "what was announced is not written, too");
    client.handle_event(8);
    assert_eq!(client.state(), State::Process, "an event of another turn");
    client.handle_event(9);
    assert_eq!(client.state(), State::Idle);
    assert_eq!(announce(&mut client), Entry { mask: 0, ack: 9, warm: 1 });
    assert_eq!(client.poll_action(), None);
    // Answers come late, and without a mapping.
    client.receive(2, &response(3, None)).unwrap();
    assert_eq!(client.receive(2, &response(3, None)), Err(Ignored::Late));
    client.receive(1, &response(2, None)).unwrap();
    assert_eq!(client.outstanding(), 0);
}

/// Rule S3.4: an acknowledgement goes with the next announcement.
#[test]
fn what_is_not_written_is_announced_with_the_acknowledgement() {
    let mut client = Client::new(4);
    client.call(0, 1, 8, u64::MAX).unwrap();
    announce(&mut client);
    client.call(1, 1, 8, u64::MAX).unwrap();
    client.handle_event(5);
    assert_eq!(announce(&mut client), Entry { mask: 0b10, ack: 5, warm: 2 });
}

/// Rule S1.3: a client has as many calls as slots; a call that was never sent ends at once.
#[test]
fn calls_are_bounded_and_end_at_their_deadlines() {
    let mut client = Client::new(2);
    client.call(0, 1, 8, 100).unwrap();
    announce(&mut client);
    client.call(1, 1, 8, 100).unwrap();
    assert_eq!(client.call(2, 1, 8, 100), Err(CallError::Busy(2)));
    assert_eq!(client.handle_timeout(99), Some(100));
    assert_eq!(client.handle_timeout(100), None);
    let ended: Vec<_> = std::iter::from_fn(|| client.poll_ended()).collect();
    assert_eq!(ended.iter().map(|ended| ended.was_sent).collect::<Vec<_>>(), [true, false]);
    assert!(ended.iter().all(|ended| ended.status == Status::DeadlineExceeded));
    assert_eq!(client.call(3, 1, 8, u64::MAX), Ok(1), "the first slot waits for the server");
    assert_eq!(client.receive(0, &response(1, Some(ZONE))), Err(Ignored::Late));
    assert_eq!(client.state(), State::Process, "the mapping counts");
    assert!(client.cancel(3) && !client.cancel(3));
    client.close(Status::Unavailable);
    assert_eq!(client.call(4, 1, 8, 1), Err(CallError::Closed));
}

fn server() -> (Server, ClientId, ClientId) {
    let config = ServerConfig { group: 1, slots: 4, ..ServerConfig::default() };
    let mut server = Server::new(config, 0);
    let a = server.connect().unwrap();
    let b = server.connect().unwrap();
    assert_eq!(server.groups().collect::<Vec<_>>(), [1, 1]);
    (server, a, b)
}

fn request(generation: u32, number: u32) -> Trailer {
    Trailer { len_bytes: 8, method: 1, mapping: None, generation, number }
}

/// Announces, is read and has its turn.
fn activate(server: &mut Server, client: ClientId, warm: u32) -> ZoneLease {
    server.handle_entry(client, Entry { mask: 1, ack: 0, warm });
    let Some(Action::Read { place, mask: 1, .. }) = server.poll_action() else { panic!("a READ") };
    server.handle_read(client);
    let Some(Action::Take { .. }) = server.poll_action() else { panic!("its turn") };
    place
}

/// Rules S4.2, S4.3: generation and number decide what runs, once.
#[test]
fn a_request_runs_once_and_only_in_its_own_generation() {
    let (mut server, a, _) = server();
    let place = activate(&mut server, a, 1);
    let read = server.handle_block(a, 0, &request(1, 1), RequestOrigin::Read).unwrap();
    let again = server.handle_block(a, 0, &request(place.generation, 1), RequestOrigin::Written);
    assert_eq!(again, Err(Ignored::Late), "read before and written now");
    let stale = request(place.generation + 1, 2);
    assert_eq!(server.handle_block(a, 1, &stale, RequestOrigin::Written), Err(Ignored::Generation));
    let early = request(place.generation, 2);
    assert_eq!(server.handle_block(a, 0, &early, RequestOrigin::Written), Err(Ignored::Unexpected));
    assert_eq!(server.handle_block(a, 4, &early, RequestOrigin::Written), Err(Ignored::Unexpected));
    let header = server.respond(read, 0, 8).unwrap();
    assert_eq!((header.mapping, header.generation), (Some(place.mapping), place.generation));
    assert_eq!(server.respond(read, 0, 8), None, "answered once");
    assert!(server.handle_block(a, 0, &early, RequestOrigin::Written).is_ok());
}

/// Rules S4.1, S3.3: a zone is another client's only after it was left; what arrives before is served.
#[test]
fn a_zone_is_given_away_only_after_its_client_has_left_it() {
    let (mut server, a, b) = server();
    let place = activate(&mut server, a, 1);
    server.handle_entry(b, Entry { mask: 1, ack: 0, warm: 1 });
    let Some(Action::Read { client, place: other, .. }) = server.poll_action() else {
        panic!("the next group is read")
    };
    assert!(client == b && other.mapping.pool != place.mapping.pool);
    server.handle_read(b);
    assert_eq!(server.poll_action(), None, "it is not its turn");
    server.handle_timeout(1_000_000);
    let event = Action::Event { client: a, generation: place.generation };
    assert_eq!(server.poll_action(), Some(event));
    assert!(matches!(server.poll_action(), Some(Action::Take { client, .. }) if client == b));
    // Written before the client knew: served, and answered without a mapping.
    let late = request(place.generation, 2);
    let late = server.handle_block(a, 1, &late, RequestOrigin::Written).unwrap();
    assert_eq!(server.respond(late, 0, 8).unwrap().mapping, None);
    assert!(matches!(server.stage(a), Some(Stage::Retiring { .. })));
    let wrong = Entry { mask: 0, ack: place.generation + 7, warm: 1 };
    server.handle_entry(a, wrong);
    assert!(matches!(server.stage(a), Some(Stage::Retiring { .. })));
    server.handle_entry(a, Entry { mask: 0, ack: place.generation, warm: 1 });
    assert_eq!((server.stage(a), server.place(a)), (Some(Stage::Idle), None));
    let later = request(place.generation, 3);
    assert_eq!(server.handle_block(a, 2, &later, RequestOrigin::Written), Err(Ignored::Generation));
}

/// A client that is gone leaves nothing, and its name is never used again.
#[test]
fn names_of_clients_are_never_used_twice() {
    let (mut server, a, _) = server();
    activate(&mut server, a, 1);
    let request = server.handle_block(a, 0, &request(1, 1), RequestOrigin::Read).unwrap();
    server.disconnect(a);
    let successor = server.connect().unwrap();
    assert!(successor.index() == a.index() && successor != a);
    assert_eq!(server.respond(request, 0, 8), None);
    assert_eq!(server.stage(a), None);
    server.disconnect(a);
    assert_eq!(server.stage(successor), Some(Stage::Idle));
}
