//! Frames of any bytes: refused, or understood as their content; memory grows with arrived bytes only.

use copyrpc_tcp::{
    PortName, Secret,
    frame::{Assembler, HEADER_BYTES, Header, TcpMessage},
    handshake::{Acceptor, Dialer, HELLO_BYTES, Hello},
};

/// Feeds bytes to a port's parsers.
pub(crate) fn check(bytes: &[u8]) {
    handshake(bytes);
    let mut assembler = Assembler::default();
    let mut rest = bytes;
    while let Ok(Some((header, len))) = Assembler::peek(rest) {
        assert_eq!(header.to_bytes()[..], rest[..HEADER_BYTES]);
        let Ok(message) = assembler.take(&header, &rest[HEADER_BYTES..len]) else { return };
        if let Some(TcpMessage::Request(packet)) = &message {
            assert!(packet.payload_bytes() <= bytes.len());
        }
        rest = &rest[len..];
    }
    if let Some(header) = rest.first_chunk() {
        let read = Header::from_bytes(header);
        assert!(read.is_err() || read.unwrap().rest_bytes() + HEADER_BYTES > rest.len());
    }
}

/// No peer gets in without a proof.
fn handshake(bytes: &[u8]) {
    let name = |life| PortName { address: "127.0.0.1:9".parse().unwrap(), life, lid: 0 };
    let key = Secret::from_bytes(b"a secret of the job");
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>()
        && let Ok((acceptor, _)) = Acceptor::new(&key, name(1), 0, [7; 32], hello)
        && let Some(proof) = bytes[HELLO_BYTES..].first_chunk()
    {
        assert!(acceptor.finish(&key, proof).is_err());
    }
    let hello = Hello { from: name(2), to: name(1), epoch: 0, nonce: [8; 32] };
    if let Some(answer) = bytes.first_chunk() {
        assert!(Dialer::new(hello).0.answer(&key, answer).is_err());
    }
}
