//! Ordinary calls with long bodies: their programs know nothing of how they travel.

use std::thread;

use client::{CallError, Client, ClientConfig, Filler, Pipeline, Provider, To, message::HERE};
use copyrpc_daemon::{Inbound, IpcPort, Services, Serving, Status};
use memory::sync::{AtomicBool, Ordering};

mod two_daemons;
use two_daemons::with_two_daemons;

/// Answers with the body, each byte plus one.
const EMBEDDED: u16 = 7;
const PROVIDED: u16 = 8;

fn services() -> Services<IpcPort> {
    let mut services = Services::default();
    let handler = |inbound: &Inbound<'_>, answer: &mut Vec<u8>| increment(inbound, answer);
    services.offer(EMBEDDED, Box::new(handler)).unwrap();
    services
}

fn increment(inbound: &Inbound<'_>, answer: &mut Vec<u8>) -> Status {
    answer.extend(inbound.body.iter().map(|byte| byte.wrapping_add(1)));
    Status::Ok
}

fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn incremented(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.wrapping_add(1)).collect()
}

/// A provider at each daemon. They end with their daemons.
fn provide(daemons: &[Serving; 2]) {
    for serving in daemons {
        let socket = serving.runtime.socket();
        let provider = Provider::register(&socket, PROVIDED, ClientConfig::default()).unwrap();
        thread::spawn(move || provider.serve(|inbound, answer| Some(increment(inbound, answer))));
    }
}

#[test]
fn fault_c5_bodies_of_any_length_reach_every_kind_of_service_here_and_there() {
    with_two_daemons("large-lengths", services, |daemons| {
        provide(daemons);
        let longest = daemons[0].config.message_bytes_max as usize;
        assert_eq!(longest, 1 << 20, "the default");
        let socket = daemons[0].runtime.socket();
        let mut client = Client::connect(&socket, ClientConfig::default()).unwrap();
        for rank in [HERE, 1] {
            for service in [EMBEDDED, PROVIDED] {
                for len_bytes in [0, 56, 4096, 4097, 16_384, 65_537, longest - 1, longest] {
                    let sent = pattern(len_bytes);
                    let answer = client.call(To::new(rank, service, 0), &sent).map(<[u8]>::to_vec);
                    let right = answer == Ok(incremented(&sent));
                    assert!(right, "{len_bytes} B to service {service} at {rank}");
                }
            }
            let refused =
                client.call(To::new(rank, PROVIDED, 0), &pattern(longest + 1)).unwrap_err();
            assert_eq!(refused.status(), Status::OutOfRange);
        }
    });
}

#[test]
fn bodies_are_filled_and_answers_lent_at_every_length() {
    with_two_daemons("large-in-place", services, |daemons| {
        provide(daemons);
        let longest = daemons[0].config.message_bytes_max as usize;
        let socket = daemons[0].runtime.socket();
        let mut client = Client::connect(&socket, ClientConfig::default()).unwrap();
        for to in [(HERE, EMBEDDED), (1, PROVIDED)].map(|(rank, service)| to(rank, service)) {
            for len_bytes in [0, 56, 4096, 4097, 65_537, longest] {
                let sent = pattern(len_bytes);
                let answer = client.call_lent(to, &sent).unwrap();
                assert!(answer.to_vec() == incremented(&sent), "{len_bytes} B to {to:?}");
                let (first, last) = sent.split_at(len_bytes / 3);
                let fill = |filler: &mut Filler<'_>| {
                    filler.put(first).and_then(|()| filler.put(last)).unwrap();
                };
                client.set_trace(len_bytes as u64);
                let answer = client.call_in_place(to, len_bytes, fill).unwrap();
                assert!(answer.to_vec() == incremented(&sent), "{len_bytes} B to {to:?}");
            }
            let refused = client.call_in_place(to, 2 * longest, |_| {}).unwrap_err();
            assert_eq!(refused.status(), Status::OutOfRange);
        }
        let nobody = client.call_lent(to(HERE, 99), b"").unwrap_err();
        assert_eq!(nobody, CallError::NoService(to(HERE, 99)));
    });
}

fn to(rank: u32, service: u16) -> To {
    To { rank, service, method: 0 }
}

/// Small calls are answered while large ones are under way, and all are right.
#[test]
fn small_calls_go_on_beside_a_stream_of_large_ones() {
    with_two_daemons("large-stream", services, |daemons| {
        let socket = daemons[0].runtime.socket();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let streamer = scope.spawn(|| {
                let mut pipeline = Pipeline::connect(&socket, ClientConfig::default()).unwrap();
                let (sent, mut answered) = (pattern(1 << 20), 0);
                let expected = incremented(&sent);
                for _ in 0..20 {
                    for rank in [HERE, 1] {
                        let to = To { rank, service: EMBEDDED, method: 0 };
                        pipeline.submit(to, &sent, ()).unwrap();
                    }
                    while pipeline.in_flight() > 0 {
                        let check = |(), answer: Result<&[u8], CallError>| {
                            assert!(answer == Ok(&expected[..]));
                        };
                        answered += pipeline.poll(check);
                        pipeline.rest();
                    }
                }
                is_over.store(true, Ordering::Relaxed);
                answered
            });
            let mut client = Client::connect(&socket, ClientConfig::default()).unwrap();
            let mut calls = 0_u64;
            while !is_over.load(Ordering::Relaxed) && !streamer.is_finished() {
                for rank in [HERE, 1] {
                    let answer = client.call(To::new(rank, EMBEDDED, 0), &calls.to_le_bytes());
                    assert_eq!(answer, Ok(&incremented(&calls.to_le_bytes())[..]));
                    calls += 1;
                }
            }
            assert_eq!(streamer.join().unwrap(), 40);
            assert!(calls > 10, "{calls} small calls beside 40 large ones");
        });
    });
}
