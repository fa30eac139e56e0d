//! Any packets and management packets from a peer: both ends of a session stay consistent, and answer what
//! they should. For tests and for fuzzing.

use copyrpc_proto::erpc::{
    Client, Geometry, HEADER_BYTES, Header, Link, Server, client,
    client::{Call, ClientConfig},
    management::{MANAGEMENT_BYTES, Management},
    server,
};

/// Bytes of one step: what arrives, how much data follows it, and what time it is.
const STEP_BYTES: usize = HEADER_BYTES + 4;

/// Panics if a promise is broken.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(packet) = bytes.first_chunk::<MANAGEMENT_BYTES>()
        && let Ok(packet) = Management::decode(packet)
    {
        assert_eq!(Management::decode(&packet.encode()), Ok(packet));
    }
    let geometry = Geometry::with_mtu(Link::InfiniBand, 64).expect("room for data");
    let config = ClientConfig { backlog_max: 4, ..ClientConfig::new(geometry) };
    let mut client = Client::new(config, 1);
    let mut server = Server::new(geometry, 2);
    let mut now_ns = 0;
    let mut made = 0_u64;
    for step in bytes.chunks_exact(STEP_BYTES) {
        let (header, rest) = step.split_at(HEADER_BYTES);
        now_ns += u64::from(rest[0]) * 100_000;
        let request_bytes = u32::from(rest[1]);
        let call = Call {
            cookie: made,
            req_type: 1,
            request_bytes,
            response_bytes_max: u32::from(rest[2]),
            deadline_ns: now_ns + u64::from(rest[3]) * 1_000_000,
        };
        made += u64::from(client.call(call, now_ns).is_ok());
        while client.poll_transmit(now_ns).is_some() {}
        let Ok(header) = Header::decode(Link::InfiniBand, header) else { continue };
        let data_bytes = u32::from(rest[1]);
        match client.receive(&header, data_bytes, now_ns) {
            client::Received::Data { cookie, span, .. } => {
                assert!(cookie < made && span.len_bytes <= data_bytes);
            }
            _ => assert!(client.outstanding() <= 12),
        }
        if let server::Received::Data { request, span, msg_bytes, is_last, .. } =
            server.receive(&header, data_bytes)
        {
            assert!(span.at_bytes + span.len_bytes <= msg_bytes && span.len_bytes <= data_bytes);
            if is_last {
                server.respond(request, u32::from(rest[2])).expect("it waits for an answer");
            }
        }
        while let Some(packet) = server.poll_transmit() {
            assert_eq!(packet.header.dest_session, 2);
        }
        client.handle_timeout(now_ns);
        while let Some(ended) = client.poll_ended() {
            assert!(ended.cookie < made);
        }
    }
}
