//! Any entries, blocks, responses and immediates from a peer: no zone has two clients, and no request runs twice. For tests and for fuzzing.

use std::collections::BTreeSet;

use copyrpc_proto::scalerpc::{
    Client, Entry, HEADER_BYTES, Imm, Server, Trailer,
    server::{Action, RequestOrigin, ServerConfig},
};

/// Bytes of one step: who, what, and its bytes.
const STEP_BYTES: usize = HEADER_BYTES + 4;
const CLIENTS: usize = 5;

/// Panics if a promise is broken.
pub(crate) fn check(bytes: &[u8]) {
    let config = ServerConfig { group: 2, slots: 4, clients_max: 8, ..ServerConfig::default() };
    let mut server = Server::new(config, 0);
    let mut clients: Vec<_> = (0..CLIENTS).filter_map(|_| server.connect()).collect();
    let mut core = Client::new(4);
    let mut executed = BTreeSet::new();
    let mut now_ns = 0;
    for step in bytes.chunks_exact(STEP_BYTES) {
        let (message, rest) = step.split_at(HEADER_BYTES);
        let message: &[u8; HEADER_BYTES] = message.try_into().expect("its length");
        let at = usize::from(rest[0]) % CLIENTS;
        let slot = rest[1] % 8;
        let header = Trailer::decode(message, 64);
        match (rest[2] % 6, header) {
            (0, _) => server.handle_entry(clients[at], Entry::decode(message)),
            (1, Ok(header)) => {
                let origin =
                    if rest[3] & 1 == 0 { RequestOrigin::Read } else { RequestOrigin::Written };
                if let Ok(request) = server.handle_block(clients[at], slot, &header, origin) {
                    assert!(executed.insert(request), "a request runs twice");
                    let response = server.respond(request, 0, 8).expect("it waits");
                    assert_eq!(server.respond(request, 0, 8), None);
                    let place = server.place(clients[at]);
                    assert!(response.mapping.is_none_or(|mapping| {
                        place.is_some_and(|place| place.mapping == mapping)
                    }));
                }
            }
            (2, _) => {
                server.disconnect(clients[at]);
                clients[at] = server.connect().expect("room");
            }
            (3, _) => server.handle_read(clients[at]),
            (4, Ok(header)) => {
                let _ = core.call(now_ns, 1, 8, now_ns + 1_000_000);
                while core.poll_action().is_some() {}
                let _ = core.receive(slot, &header);
            }
            _ => {
                let [a, b, c, d, ..] = *message;
                if let Some(Imm::Event(generation)) = Imm::decode(u32::from_le_bytes([a, b, c, d]))
                {
                    core.handle_event(generation);
                }
            }
        }
        now_ns += u64::from(rest[3]) * 1000;
        server.handle_timeout(now_ns);
        while let Some(action) = server.poll_action() {
            if let Action::Drop(client) = action {
                server.disconnect(client);
                let at = clients.iter().position(|other| *other == client).expect("known");
                clients[at] = server.connect().expect("room");
            }
        }
        core.handle_timeout(now_ns);
        while core.poll_ended().is_some() {}
        let places: Vec<_> = clients.iter().filter_map(|client| server.place(*client)).collect();
        let zones: BTreeSet<_> =
            places.iter().map(|place| (place.mapping.pool, place.mapping.zone)).collect();
        assert_eq!(zones.len(), places.len(), "a zone has two clients");
    }
}
