//! Both sides of a session, each beside the bytes that builds of this version write and read: at these places, and no
//! others. Nothing here but the socket and the mappings is of this crate, so that a layout which changes without
//! [`VERSION`](crate::endpoint::handshake::VERSION) is noticed. Whoever raises the version records anew.

use std::{os::fd::AsFd as _, thread};

use memory::{
    Protection, Region,
    sync::{AtomicU64, Ordering},
};
use os::{
    clock,
    unix::{Address, Listener, UnixConnection},
};

use super::rig::*;
use crate::{BlockingClient, ClientConfig, ServerConfig};

const HELLO: &[u8] = b"crpc-ipc\x03\0\0\0\x01\0\0\0";
/// Depth 2^2, requests to 200 B, answers to 100 B, slot 0, first position 6; a generation follows.
const WELCOME: &[u8] =
    b"crpc-ipc\x03\0\0\0\x02\0\0\0\x02\0\0\0\xc8\0\0\0\x64\0\0\0\0\0\x06\0\0\0\0\0\0\0";
const WAKEUP: u8 = 0xb5;
const UP_BYTES: usize = 1536;
const DOWN_BYTES: usize = 1024;
/// Slots before the first message: the laps before those of positions 8, 9, 6 and 7.
const SLOTS: [(usize, u64); 4] = [(256, 2), (320, 2), (384, 1), (448, 1)];

/// The words of a header: lap, call, generation, length.
fn header(lap: u64, call: u64, generation: u64, len_bytes: u64) -> u64 {
    lap | call << 12 | generation << 24 | len_bytes << 36
}

fn put(half: &Region, at: usize, words: &[u64]) {
    for (index, word) in words.iter().enumerate() {
        let to: &AtomicU64 = half.shared(at + 8 * index).unwrap();
        to.store(*word, Ordering::Release);
    }
}

/// The words behind the control lines that are not zero, by offset.
fn written(half: &Region) -> Vec<(usize, u64)> {
    let mut bytes = Vec::new();
    half.append_to(0, half.len(), &mut bytes).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    (0..).step_by(8).zip(words).filter(|(at, word)| *at >= 256 && *word != 0).collect()
}

/// What a half holds once words are put at places of slots that were as at first.
fn with(changed: &[(usize, u64)]) -> Vec<(usize, u64)> {
    let is_kept = |(at, _): &(usize, u64)| changed.iter().all(|(other, _)| at != other);
    let mut all: Vec<_> = SLOTS.into_iter().filter(is_kept).chain(changed.to_vec()).collect();
    all.sort_unstable();
    all
}

/// Twelve words at a place.
fn long(at: usize, word: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..12).map(move |index| (at + 8 * index, word))
}

/// A word of eight bytes of this value.
fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

#[test]
fn fault_e7_a_client_of_a_build_in_use_is_served_at_the_places_where_it_writes_and_reads() {
    let dir = Dir::new();
    let config = ServerConfig {
        depth: 4,
        request_bytes_max: 200,
        response_bytes_max: 100,
        clients_max: 8,
        clients_per_user_max: 8,
        first_position: 6,
        ..ServerConfig::default()
    };
    let _server = ServerThread::start(&dir.socket(), config, increment);
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let connection = UnixConnection::connect(&Address::Path(dir.socket()), deadline_ns).unwrap();
    connection.send(HELLO, &[], deadline_ns).unwrap();
    let mut welcome = [0; 64];
    let datagram = connection.recv(&mut welcome, 4, deadline_ns).unwrap();
    assert_eq!(welcome[..datagram.len_bytes - 8], *WELCOME);
    let [up, down, bits, _sleeps] = <[_; 4]>::try_from(datagram.fds).unwrap();
    let up = Region::map_base_pages(up, UP_BYTES, Protection::ReadWrite).unwrap();
    let down = Region::map_base_pages(down, DOWN_BYTES, Protection::ReadOnly).unwrap();
    let bits = Region::map_base_pages(bits, 128, Protection::ReadWrite).unwrap();
    assert_eq!((written(&up), written(&down)), (SLOTS.to_vec(), SLOTS.to_vec()));
    // A body in the slot of position 6, and one in the bulk area of call 2, behind position 7.
    put(&up, 392, &[eight(7)]);
    put(&up, 384, &[header(2, 1, 0xabc, 8)]);
    put(&up, 1024, &[eight(8); 12]);
    put(&up, 448, &[header(2, 2, 5, 96)]);
    put(&bits, 0, &[1]);
    connection.send(&[WAKEUP], &[], deadline_ns).unwrap();
    let short = [(384, header(2, 1, 0xabc, 8)), (392, eight(8)), (448, header(2, 2, 5, 96))];
    let answered = with(&short.into_iter().chain(long(768, eight(9))).collect::<Vec<_>>());
    eventually("both answers", || written(&down) == answered);
}

/// What a server of a build in use does for one client: it reads two requests, and answers them.
fn serve_as_recorded(listener: &Listener) {
    let deadline_ns = clock::deadline_ns(PATIENCE);
    let connection = listener.accept(deadline_ns).unwrap();
    let mut hello = [0; 64];
    let datagram = connection.recv(&mut hello, 0, deadline_ns).unwrap();
    assert_eq!(hello[..datagram.len_bytes], *HELLO);
    let made = |name, len_bytes| {
        let region = Region::memfd(name, len_bytes).unwrap();
        region.seal_size().unwrap();
        region
    };
    let [up, down] = [made("up", UP_BYTES), made("down", DOWN_BYTES)];
    let [bits, sleeps] = [made("bits", 128), made("sleeps", 4)];
    for half in [&up, &down] {
        SLOTS.into_iter().for_each(|(at, lap)| put(half, at, &[lap]));
    }
    let welcome = [WELCOME, &42u64.to_le_bytes()].concat();
    let fds = [&up, &down, &bits, &sleeps].map(|region| region.fd().unwrap().as_fd());
    connection.send(&welcome, &fds, deadline_ns).unwrap();
    let first = [(384, header(2, 0, 0xabc, 8)), (392, eight(7))];
    eventually("the first request", || written(&up) == with(&first));
    put(&down, 392, &[eight(8)]);
    put(&down, 384, &[header(2, 0, 0xabc, 8)]);
    connection.send(&[WAKEUP], &[], deadline_ns).unwrap();
    let second = header(2, 0, 0xabd, 96);
    let both = [first[0], first[1], (448, second)].into_iter().chain(long(512, eight(8)));
    let both = with(&both.collect::<Vec<_>>());
    eventually("the second request", || written(&up) == both);
    put(&down, 512, &[eight(9); 12]);
    put(&down, 448, &[second]);
    connection.send(&[WAKEUP], &[], deadline_ns).unwrap();
    // The client hangs up.
    while connection.recv(&mut hello, 0, deadline_ns).is_ok() {}
}

#[test]
fn fault_e7_a_client_writes_and_reads_where_a_server_of_a_build_in_use_does() {
    let dir = Dir::new();
    let listener = Listener::bind(&Address::Path(dir.socket())).unwrap();
    let serving = thread::spawn(move || serve_as_recorded(&listener));
    let config = ClientConfig { first_generation: 0xabc, ..patient() };
    let mut client = BlockingClient::connect(&dir.socket(), config).unwrap();
    assert_eq!(client.call(&[7; 8]), Ok(&[8; 8][..]));
    assert_eq!(client.call(&[8; 96]), Ok(&[9; 96][..]));
    drop(client);
    serving.join().unwrap();
}
