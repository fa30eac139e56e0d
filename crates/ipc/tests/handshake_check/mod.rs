//! What must hold of the handshake for any bytes: shared by the property test and the fuzz target.

#[cfg(test)]
use crate::endpoint::handshake;
#[cfg(not(test))]
use copyrpc_ipc::handshake;

/// Refused, or understood and written again as the same bytes.
pub(crate) fn check(bytes: &[u8]) {
    if handshake::read_hello(bytes).is_ok() {
        assert_eq!(handshake::write_hello(), bytes);
    }
    match handshake::read_answer(bytes) {
        Err(_) | Ok(handshake::HandshakeAnswer::Refused(handshake::RefuseReason::Unknown)) => {}
        Ok(answer) => assert_eq!(handshake::write_answer(answer), bytes),
    }
}
