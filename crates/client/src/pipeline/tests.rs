use std::{path::Path, thread, time::Duration};

use ipc::{OpenRequest, RequestId, Server, ServerConfig};

use super::*;
use crate::message::CALL_HEAD_BYTES;

/// Calls in flight.
const DEPTH: u16 = 4;

/// The next request that a daemon gets, and its body; `None`: there is none.
fn next(server: &mut Server) -> Option<(RequestId, Vec<u8>)> {
    let taken = server.take();
    taken.map(|OpenRequest { id, payload, .. }| (id, payload[CALL_HEAD_BYTES..].to_vec()))
}

/// A pipeline, and a daemon that does nothing by itself.
fn connect(name: &str) -> (Pipeline<()>, Server) {
    let name = format!("@copyrpc-pipeline-{name}-{}", std::process::id());
    let config = ServerConfig { depth: DEPTH, ..ServerConfig::default() };
    let mut server = Server::bind(Path::new(&name), config).unwrap();
    let connecting = thread::spawn(move || {
        let timeout = Duration::from_secs(60);
        Pipeline::connect(Path::new(&name), ClientConfig { timeout, ..ClientConfig::default() })
    });
    while !connecting.is_finished() {
        assert_eq!(next(&mut server), None);
        server.service_now();
    }
    (connecting.join().unwrap().unwrap(), server)
}

/// A program that waits for the descriptor polls only when the daemon says something.
#[test]
fn whoever_is_about_to_wait_first_tells_of_calls_that_were_given_up() {
    let (mut pipeline, mut server) = connect("arm");
    let to = To { rank: HERE, service: 1, method: 1 };
    let submit = |pipeline: &mut Pipeline<()>| pipeline.submit(to, b"", ()).unwrap();
    let [first, second, third] = std::array::from_fn(|_| submit(&mut pipeline));
    pipeline.flush();
    (0..3).for_each(|_| assert!(next(&mut server).is_some()));
    // The message about the first call has the last place.
    assert_eq!(pipeline.cancel(first), Some(()));
    assert_eq!(pipeline.poll(|(), _| {}), 0);
    pipeline.flush();
    let (told, body) = next(&mut server).unwrap();
    assert_eq!(body, first.call().to_le_bytes());
    assert_eq!((pipeline.cancel(second), pipeline.cancel(third)), (Some(()), Some(())));
    pipeline.flush();
    assert_eq!(next(&mut server), None);
    // The answer makes room, and the poll that finds it reports nothing.
    server.replies().reply(told, b"").unwrap();
    assert_eq!(next(&mut server), None);
    assert_eq!(pipeline.poll(|(), _| {}), 0);
    assert!(pipeline.has_untold());
    assert!(pipeline.arm());
    let (_, body) = next(&mut server).unwrap();
    let numbers = [second, third].map(|call| call.call().to_le_bytes());
    assert_eq!(body, numbers.as_flattened());
}
