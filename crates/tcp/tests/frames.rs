//! Frames through any cuts of a stream, and any bytes, as in the fuzz target `tcp_frames`.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, Write},
};

use copyrpc_tcp::{
    frame::{Assembler, FrameKind, HEADER_BYTES, TcpMessage},
    outbox::Outbox,
};
use proptest::{collection::vec, prelude::*};

mod frame_check;

/// A socket that takes a few bytes at a time, and then says that it is full.
struct Narrow<'a> {
    written: Vec<u8>,
    takes: &'a [usize],
}

impl Write for Narrow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some((&take, rest)) = self.takes.split_first() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        self.takes = rest;
        let before = self.written.len();
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied());
        self.written.extend(bytes.take(take));
        Ok(self.written.len() - before)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An answer to queue pair `channel` that carries `data`, as the software NIC encodes it.
fn head(channel: u32, psn: u32) -> Vec<u8> {
    let mut head = vec![2, 0];
    for (lid, qpn) in [(1u16, 9u32), (1, channel)] {
        head.extend(lid.to_le_bytes());
        head.extend(qpn.to_le_bytes());
    }
    head.extend(0u32.to_le_bytes());
    head.extend(psn.to_le_bytes());
    head.extend(0u64.to_le_bytes());
    head
}

fn body(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number * 7).to_le_bytes()[0]).collect()
}

/// Reads all frames; of each message its channel, and its length.
fn read(mut bytes: &[u8], messages: &mut Vec<TcpMessage>, assembler: &mut Assembler) -> Vec<u64> {
    let mut taken = Vec::new();
    while let Some((header, len)) = Assembler::peek(bytes).unwrap() {
        taken.push(header.taken);
        messages.extend(assembler.take(&header, &bytes[HEADER_BYTES..len]).unwrap());
        bytes = &bytes[len..];
    }
    assert!(bytes.is_empty());
    taken
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: if cfg!(miri) { 2 } else { 24 }, ..Default::default()
    })]

    #[test]
    fn messages_of_each_channel_arrive_whole_and_in_order(
        messages in vec((1u32..4, prop_oneof![0usize..3000, 60_000usize..200_000]), 1..20),
        takes in vec(prop_oneof![1usize..100, 1000usize..100_000], 1..60),
    ) {
        let mut outbox = Outbox::default();
        let mut written = Vec::new();
        let mut expected: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        for (number, &(channel, len)) in messages.iter().enumerate() {
            let psn = u32::try_from(number).unwrap();
            outbox.push(FrameKind::Answer, channel, head(channel, psn), body(len, number), 5);
            expected.entry(channel).or_default().push(body(len, number));
            // Between messages the socket takes a little.
            let mut socket = Narrow { written: Vec::new(), takes: &takes[..takes.len().min(2)] };
            outbox.write(&mut socket, 5).unwrap();
            written.extend(socket.written);
        }
        let mut round = 0;
        while !outbox.is_empty() {
            let mut socket = Narrow { written: Vec::new(), takes: &takes };
            prop_assert_eq!(outbox.write(&mut socket, 6).unwrap(), outbox.is_empty());
            written.extend(socket.written);
            round += 1;
            prop_assert!(round < 100_000);
        }
        prop_assert_eq!(outbox.bytes(), 0);
        let mut arrived = Vec::new();
        let mut assembler = Assembler::default();
        let taken = read(&written, &mut arrived, &mut assembler);
        prop_assert!(taken.is_sorted() && taken.iter().all(|taken| (5..=6).contains(taken)));
        let mut found: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        for message in arrived {
            let TcpMessage::Answer(mut answer) = message else { panic!("{message:?}") };
            let channel = answer.destination().1.get();
            found.entry(channel).or_default().push(answer.take_payload());
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_refused_or_understood(
        bytes in vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..400),
    ) {
        frame_check::check(&bytes);
    }
}

#[test]
fn short_messages_pass_between_the_pieces_of_a_long_one() {
    let mut outbox = Outbox::default();
    outbox.push(FrameKind::Answer, 1, head(1, 0), body(4 << 20, 0), 0);
    outbox.push(FrameKind::Answer, 2, head(2, 0), body(10, 1), 0);
    let mut socket = Narrow { written: Vec::new(), takes: &[usize::MAX; 1000] };
    assert!(outbox.write(&mut socket, 0).unwrap());
    let mut bytes = &socket.written[..];
    let mut channels = Vec::new();
    while let Some((header, len)) = Assembler::peek(bytes).unwrap() {
        channels.push(header.channel);
        bytes = &bytes[len..];
    }
    let short = channels.iter().position(|&channel| channel == 2).unwrap();
    assert!(short <= 1 && channels.len() == 65, "{short} of {}", channels.len());
}

#[test]
fn a_piece_that_follows_nothing_and_a_second_first_one_are_refused() {
    let mut outbox = Outbox::default();
    outbox.push(FrameKind::Answer, 1, head(1, 0), body(100_000, 0), 0);
    let mut socket = Narrow { written: Vec::new(), takes: &[usize::MAX; 10] };
    outbox.write(&mut socket, 0).unwrap();
    let bytes = &socket.written;
    let (first, len) = Assembler::peek(bytes).unwrap().unwrap();
    let (second, _) = Assembler::peek(&bytes[len..]).unwrap().unwrap();
    let mut assembler = Assembler::default();
    assert!(assembler.take(&second, &bytes[len + HEADER_BYTES..]).is_err());
    assert_eq!(assembler.take(&first, &bytes[HEADER_BYTES..len]), Ok(None));
    assert!(assembler.take(&first, &bytes[HEADER_BYTES..len]).is_err());
}
