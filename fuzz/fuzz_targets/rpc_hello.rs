//! Any hello from a peer: refused, or one that says what its bytes say.

#![no_main]

use copyrpc_proto::copyrpc::{Config, Connection, FlushPolicy, Hello};

/// Larger tables take longer to make than they are worth here.
const CALLS_MAX: u16 = 1024;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(hello) = Hello::decode(bytes) else { return };
    let encoded = hello.encode();
    assert_eq!(Hello::decode(&encoded), Ok(hello));
    if hello.calls_max <= CALLS_MAX {
        let (flush, signal_interval, credit_delay_ns) = (FlushPolicy::default(), 1, 0);
        let config = Config { own: hello, peer: hello, flush, signal_interval, credit_delay_ns };
        let connection = Connection::new(config);
        assert!(connection.request_bytes_max() < hello.geometry.ring_bytes());
    }
});
