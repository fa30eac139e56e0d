//! What must hold for any bytes in the memory that a client can write: shared by the property test
//! and the fuzz target.

use std::sync::Arc;

#[cfg(test)]
use crate::endpoint::{half, server::call_table, server::large};
use call_table::{CallTable, Taken};
#[cfg(not(test))]
use copyrpc_ipc::{call_table, half, large};
use half::{EAGER_BYTES_MAX, Half, HalfShape};
use large::LargeCopies;
use memory::{Region, sync::Ordering};

/// Where the slots of a half begin: behind its control lines.
const SLOTS_OFFSET_BYTES: usize = 256;

/// Instructions to a hostile client and to the server, three bytes and up to eight more each.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        bytes.fill_with(|| self.byte().unwrap_or(0));
        u64::from_le_bytes(bytes)
    }
}

/// The server never panics, takes no more than the ring has, and believes no length.
pub(crate) fn check(bytes: &[u8]) {
    let mut script = Script(bytes);
    let depth_log2 = u32::from(script.byte().unwrap_or(0) % 4);
    let longest = [300, 5000][usize::from(script.byte().unwrap_or(0) % 2)];
    let (up, down) =
        (HalfShape::new(depth_log2, longest).unwrap(), HalfShape::new(depth_log2, 40).unwrap());
    let memory = Arc::new(Region::heap(up.len_bytes()).unwrap());
    let answers = Arc::new(Region::heap(down.len_bytes()).unwrap());
    let halves = (Half::new(Arc::clone(&memory), up), Half::new(answers, down));
    let mut position = u64::MAX - u64::from(script.byte().unwrap_or(0));
    let mut calls = CallTable::new(halves.0, halves.1, position);
    let mut copy = [0; EAGER_BYTES_MAX];
    let mut copies = LargeCopies::default();
    let mut pending: Vec<Taken> = Vec::new();
    while let Some(instruction) = script.byte() {
        match instruction % 4 {
            // Any word, anywhere.
            0 => {
                let at = usize::from(script.byte().unwrap_or(0)) * 8 % memory.len();
                let word = script.word();
                memory.whole().atomic_u64(at).unwrap().store(word, Ordering::Relaxed);
            }
            // A header with the right tag and anything else in the slot that is looked at.
            1 => {
                let tag = (position >> depth_log2).wrapping_add(1) & 0xfff;
                let slot = usize::try_from(position % (1 << depth_log2)).unwrap();
                let header = memory.whole().atomic_u64(SLOTS_OFFSET_BYTES + slot * 64).unwrap();
                header.store(script.word() << 12 | tag, Ordering::Release);
            }
            2 => match calls.take(&mut copy, &mut copies) {
                Ok(Some(taken)) => {
                    assert!(taken.len_bytes <= longest as usize);
                    if HalfShape::is_large(taken.len_bytes) {
                        assert_eq!(copies.latest().len(), taken.len_bytes);
                    }
                    assert!(pending.iter().all(|other| other.call != taken.call));
                    pending.push(taken);
                    position = position.wrapping_add(1);
                }
                Ok(None) => {}
                // Evicted.
                Err(_) => return,
            },
            _ => {
                if let Some(taken) = pending.pop() {
                    calls.reply(taken, &[7; 40]).expect("taken and not answered");
                    calls.reply(taken, &[8; 40]).expect_err("answered once");
                }
            }
        }
        assert_eq!(calls.unanswered(), pending.len());
        assert!(pending.len() <= calls.depth());
    }
}
