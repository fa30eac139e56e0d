//! A peer that writes anything anywhere on its card: whoever uses the card survives.

use core::cell::Cell;

use memory::sync::{AtomicU64, Ordering};
use wire::ids::Qpn;

use super::Input;
use crate::{
    nic::{
        card::{
            target::Target,
            views::{CqView, RqView},
        },
        engine::{Arrival, Chunk, Order, Verb, respond},
        reap::Recovery,
        rig::{Rig, SENDER, Shape, region_of},
    },
    shared::arm,
};

/// The input is a list of words to overwrite, between uses of everything on the card.
///
/// # Panics
///
/// If anything here panics.
pub fn card(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = input.byte();
    let shape = if choice & 1 == 0 { Shape::RC } else { Shape::SRQ };
    let cqe_bytes = if choice & 2 == 0 { 64 } else { 128 };
    let shape = Shape { cqe_bytes, scatter_to_cqe: choice & 4 != 0, ..shape };
    let mut rig = Rig::new(shape);
    rig.post(&[(0, 64)]);
    rig.post(&[(64, 64), (512, 64)]);
    rig.card = rig.card.as_of_a_peer();
    // Resolved while all was well; used while it is not.
    let target = rig.target();
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        for _ in 0..=input.byte() % 4 {
            scribble(&rig, &mut input);
        }
        let verb = input.byte();
        send(&mut rig, &target, verb);
        use_anew(&mut rig, verb);
    }
}

fn scribble(rig: &Rig, input: &mut Input<'_>) {
    let (place, kind) = (u16::from_le_bytes([input.byte(), input.byte()]), input.byte());
    let region = if kind & 1 == 0 { &rig.card.ro } else { &rig.card.rw };
    // Most of a card is empty: prefer its tables and first queues.
    let reach = if kind & 2 == 0 { 2048 } else { region.len() };
    let offset = usize::from(place) * 8 % reach;
    let word: &AtomicU64 = region.shared(offset).expect("inside and aligned");
    let value = match kind >> 2 & 3 {
        0 => input.word(),
        1 => word.load(Ordering::Relaxed) ^ 1 << (input.byte() & 63),
        2 => word.load(Ordering::Relaxed).wrapping_add(u64::from(input.byte())),
        _ => u64::MAX,
    };
    word.store(value, Ordering::Relaxed);
}

fn send(rig: &mut Rig, target: &Target, verb: u8) {
    let imm = (verb & 8 != 0).then_some(1);
    let len = u32::from(verb >> 4) * 8;
    let verb = match verb & 7 {
        0 | 1 => Verb::Send,
        2 | 3 => Verb::Write,
        4 => Verb::Read,
        5 => Verb::FetchAdd { add: 1 },
        _ => Verb::CompareSwap { compare: 0, swap: 1 },
    };
    let len =
        if matches!(verb, Verb::FetchAdd { .. } | Verb::CompareSwap { .. }) { 8 } else { len };
    let request = crate::nic::engine::Request { imm, ..rig.request(verb, len) };
    let payload = region_of(&[0x5a; 128][..len as usize]);
    let local = [Chunk { ptr: payload.as_ptr().as_ptr(), len: len as usize, is_inline: false }];
    let (memory, order) = (&mut rig.memory, Order::Ascending);
    respond(Arrival { request: &request, local: &local, target, memory, order });
}

fn use_anew(rig: &mut Rig, verb: u8) {
    for index in 0..5 {
        if let Some(target) = Target::resolve(&rig.card, Qpn::from_low_bits(index)) {
            send(rig, &target, verb);
        }
        let rq = RqView::resolve(&rig.card, index);
        if let Some(rq) = &rq
            && let Ok(taken) = rq.take(9, &Cell::new(0), false)
        {
            rq.release(taken, 9);
        }
        let Some(cq) = CqView::resolve(&rig.card, index) else { continue };
        if cq.slots().held_by(9).count() < 64 {
            let _ = cq.slots().reserve(9, || cq.consumed());
        }
        cq.armed().arm(arm::NEXT);
        cq.armed().fires(true);
        let _ = cq.unpolled().take(64).filter(|entry| entry.parse().is_ok()).count();
        let rqs = rq.into_iter().map(|rq| (index, rq)).collect();
        let recovery = Recovery { owner: 1, cqs: vec![cq], rqs, users: Vec::new() };
        recovery.run(SENDER.0.get());
    }
}
