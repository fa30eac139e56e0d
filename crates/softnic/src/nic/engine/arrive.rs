//! The short way at the destination: a WRITE or SEND of one piece that `plain` has sent.
//!
//! It does what [`respond`](super::respond) does with such a request, and declines, before anything is done,
//! whatever is not as it nearly always is.
//!
//! One thing shows only after a receive was taken: whether it has just one entry. If not, the long way
//! goes on from there.

use verbs::{Access, Transport};
use wire::cqe::{CqeView, ResponderCqe, ResponderKind, Scatter, Source};

use super::{
    Arrival, Chunk, Key, Memory, Order, Reply, Request, Verb, chunk,
    global_route::GRH_BYTES,
    port::Carried,
    responder::{Answered, lose, release, source_of},
};
use crate::nic::card::{
    target::Target,
    views::{RqView, Taken},
};

/// Runs a WRITE or SEND at its destination. Once a completion is there, it calls
/// `arrived`, and says whether that counts as solicited.
#[inline(always)]
pub(crate) fn respond_to_plain<M: Memory>(
    request: Request,
    payload: Chunk,
    target: &Target,
    memory: &mut M,
    arrived: impl FnMut(bool),
) -> Carried {
    let is_admitted = match request.key {
        Key::Connected => target.transport == Transport::Rc && target.is_peer(request.from),
        Key::Dc(key) => target.transport == Transport::Dct && target.key == key.get(),
        Key::Ud(key) => {
            let is_right = target.transport == Transport::Ud && target.key == u64::from(key.get());
            is_right && !request.has_grh
        }
    };
    if !is_admitted {
        return Carried::Declined;
    }
    let mut to = None;
    if request.verb == Verb::Write {
        let (key, len) = (request.rkey.get(), u64::from(request.len_bytes));
        let is_allowed = target.access.contains(Access::REMOTE_WRITE);
        to = memory.locate_known(key, request.addr, len, Access::REMOTE_WRITE, target.pd);
        let Some(to) = to.filter(|_| is_allowed) else { return Carried::Declined };
        if request.imm.is_none() {
            put(to, payload, request.len_bytes);
            return Carried::Done;
        }
    } else if target.scatter_to_cqe || !memory.is_complete() {
        return Carried::Declined;
    }
    let Some(rq) = &target.rq else { return Carried::Declined };
    // Each knows how receives are taken.
    if rq.is_exclusive() {
        arrive::<true, M>(request, to, payload, rq, target, memory, arrived)
    } else {
        arrive::<false, M>(request, to, payload, rq, target, memory, arrived)
    }
}

/// Takes a receive, moves the payload, to `to` if it is a WRITE, and reports the arrival.
#[inline(always)]
fn arrive<const IS_ALONE: bool, M: Memory>(
    request: Request,
    to: Option<Chunk>,
    payload: Chunk,
    rq: &RqView,
    target: &Target,
    memory: &mut M,
    mut arrived: impl FnMut(bool),
) -> Carried {
    let holder = request.from.0.get();
    let Ok((taken, position)) = target.take(rq, holder, IS_ALONE) else {
        return Carried::Declined;
    };
    let Ok(position) = position else {
        return carried(lose(target, rq, taken, holder), arrived);
    };
    let header_bytes = if matches!(request.key, Key::Ud(_)) { GRH_BYTES } else { 0 };
    let to = match to {
        None => receive(rq, taken, header_bytes, request.len_bytes, memory),
        to => to,
    };
    let Some(to) = to else {
        let at = (rq, taken, position);
        return carried(go_on(Request { ..request }, payload, at, target, memory), arrived);
    };
    put(to, payload, request.len_bytes);
    let kind = match (request.verb, request.imm) {
        (Verb::Send, None) => ResponderKind::Send,
        (Verb::Send, Some(imm)) => ResponderKind::SendImm(imm),
        (_, imm) => ResponderKind::WriteImm(imm.unwrap_or(0)),
    };
    let source = match request.key {
        Key::Connected => Source::default(),
        _ => source_of(&request),
    };
    let cqe = CqeView::Responder(ResponderCqe {
        kind,
        qpn: target.qpn,
        wqe_counter: taken.counter,
        user_index: target.user_index,
        byte_cnt: request.len_bytes + header_bytes,
        scatter: Scatter::Memory,
        source: Some(source),
        solicited: request.solicited,
        timestamp: 0,
    });
    target.cq.fill(position, &cqe, &[]);
    release(rq, taken, holder, IS_ALONE);
    target.cq.finish(position);
    arrived(request.solicited);
    Carried::Done
}

/// The outcome of the long path for a WQE that had taken a receive, and so is never tried again.
#[cold]
fn carried(answered: Answered, mut arrived: impl FnMut(bool)) -> Carried {
    if let Some(solicited) = answered.arrived {
        arrived(solicited);
    }
    match answered.reply {
        Reply::Refused(syndrome) => Carried::Refused(syndrome),
        _ => Carried::Done,
    }
}

/// Moves a payload of `len_bytes` to a place that is as long, or longer.
#[inline(always)]
fn put(to: Chunk, payload: Chunk, len_bytes: u32) {
    let len = len_bytes as usize;
    debug_assert!(payload.len == len && to.len >= len, "{to:?} {payload:?}");
    let (to, payload) = (Chunk { len, ..to }, Chunk { len, ..payload });
    // SAFETY: `locate` checked `to` for writing; the payload is in a WQE or was checked; the sender's
    // presence keeps both mapped.
    unsafe { chunk::copy(&[to], &[payload], Order::Ascending) };
}

/// Where a SEND of `len_bytes` goes, if the receive that was taken for it has one entry and room, which begins
/// with that of a header.
#[inline(always)]
fn receive<M: Memory>(
    rq: &RqView,
    taken: Taken,
    header_bytes: u32,
    len_bytes: u32,
    memory: &mut M,
) -> Option<Chunk> {
    let all_bytes = header_bytes + len_bytes;
    let sge = rq.only_entry(taken.index).filter(|sge| sge.len_bytes >= all_bytes)?;
    let (key, len) = (sge.lkey.get(), u64::from(all_bytes));
    let all = memory.locate_known(key, sge.addr, len, Access::LOCAL_WRITE, rq.pd)?;
    let header = header_bytes as usize;
    Some(Chunk { ptr: all.ptr.wrapping_add(header), len: all.len - header, ..all })
}

/// The rest of the long way of a SEND that has a receive and a place for its completion.
#[cold]
#[inline(never)]
fn go_on<M: Memory>(
    request: Request,
    payload: Chunk,
    (rq, taken, position): (&RqView, Taken, u64),
    target: &Target,
    memory: &mut M,
) -> Answered {
    let (local, order) = (&[payload], Order::Ascending);
    Arrival { request: &request, local, target, memory, order }.deliver(rq, taken, position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::ids::{DcKey, Lid, QKey, Qpn, Rkey};

    use super::*;
    use crate::nic::rig::{BASE, KEY, LEN, QKEY, Rig, SENDER, Shape, region_of};

    #[derive(Clone, Debug)]
    enum Step {
        /// A receive with these entries, offset and length.
        Post(Vec<(usize, u32)>),
        Poll,
        Message(Message),
    }

    #[derive(Clone, Debug)]
    struct Message {
        from: (Lid, Qpn),
        dc_key: u64,
        is_send: bool,
        imm: Option<u32>,
        offset: usize,
        bytes: Vec<u8>,
        rkey: u32,
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let from = prop_oneof![9 => Just(SENDER), 1 => Just((Lid::new(8), SENDER.1))];
        let dc_key = prop_oneof![9 => Just(u64::from(QKEY)), 1 => any::<u64>()];
        let imm = proptest::option::weighted(0.8, any::<u32>());
        let offset = prop_oneof![9 => 0..LEN - 300, 1 => LEN - 300..LEN + 300];
        let bytes = proptest::collection::vec(any::<u8>(), 1..300);
        let rkey = prop_oneof![9 => Just(KEY), 1 => any::<u32>()];
        (from, dc_key, any::<bool>(), imm, offset, bytes, rkey).prop_map(
            |(from, dc_key, is_send, imm, offset, bytes, rkey)| Message {
                from,
                dc_key,
                is_send,
                imm,
                offset,
                bytes,
                rkey,
            },
        )
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![9 => 250..400u32, 1 => 0..250u32, 1 => Just(4096)];
        let entries = prop_oneof![9 => 1..2usize, 1 => 0..1usize, 1 => 2..4usize];
        let list = entries.prop_flat_map(move |count| {
            proptest::collection::vec((0..LEN - 400, len.clone()), count)
        });
        prop_oneof![2 => list.prop_map(Step::Post), 2 => Just(Step::Poll), 4 => any_message().prop_map(Step::Message)]
    }

    /// Runs the request the short way if that takes it, and otherwise the long way.
    fn respond(rig: &mut Rig, request: &Request, bytes: &[u8], is_short: bool) -> Reply {
        let region = region_of(bytes);
        let ptr = region.as_ptr().as_ptr();
        let payload = Chunk { ptr, len: bytes.len(), is_inline: false };
        let target = rig.target();
        if !is_short {
            return rig.respond(request, &mut [bytes.to_vec()]);
        }
        match respond_to_plain(*request, payload, &target, &mut rig.memory, |_| {}) {
            Carried::Done => Reply::Ack,
            Carried::Refused(syndrome) => Reply::Refused(syndrome),
            Carried::Declined => rig.respond(request, &mut [bytes.to_vec()]),
        }
    }

    /// Nobody answers a datagram.
    fn as_heard(request: &Request, reply: Reply) -> Reply {
        match (request.key, reply) {
            (Key::Ud(_), Reply::Silence) => Reply::Ack,
            (_, reply) => reply,
        }
    }

    fn request_of(rig: &Rig, message: &Message, number: usize) -> Request {
        let Message { from, dc_key, is_send, imm, offset, ref bytes, rkey } = *message;
        // A datagram is a SEND.
        let is_send = is_send || matches!(rig.request(Verb::Send, 0).key, Key::Ud(_));
        let verb = if is_send { Verb::Send } else { Verb::Write };
        let request = rig.request(verb, u32::try_from(bytes.len()).expect("short"));
        let key = match request.key {
            Key::Dc(_) => Key::Dc(DcKey::new(dc_key)),
            Key::Ud(_) => Key::Ud(QKey::new(u32::try_from(dc_key).unwrap_or(0))),
            Key::Connected => Key::Connected,
        };
        Request {
            from,
            key,
            imm,
            solicited: number.is_multiple_of(3),
            service_level: u8::try_from(number % 16).expect("four bits"),
            has_grh: number.is_multiple_of(2),
            addr: BASE + offset as u64,
            rkey: Rkey::new(rkey),
            ..request
        }
    }

    /// All that a step may change.
    fn trace(rig: &Rig) -> impl PartialEq + core::fmt::Debug + use<> {
        let claims: Vec<_> = rig.rq.claims().held_by(SENDER.0.get()).collect();
        let slots: Vec<_> = rig.cq.slots().held_by(SENDER.0.get()).collect();
        let taken = rig.rq.claims().taken();
        (rig.memory.read(0, LEN), taken, claims, slots, rig.cq.is_overrun(), rig.is_up())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 500 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn the_short_way_leads_where_the_long_one_does(
            steps in proptest::collection::vec(any_step(), 1..if cfg!(miri) { 10 } else { 40 }),
            is_srq in any::<bool>(),
            is_alone in any::<bool>(),
            is_alone_in_rq in any::<bool>(),
            transport in prop_oneof![
                Just(Transport::Rc),
                Just(Transport::Dct),
                Just(Transport::Ud),
            ],
            scatter_to_cqe in proptest::bool::weighted(0.1),
            log_stride in 4..8u8,
        ) {
            let log_stride = log_stride.max(if is_srq { 5 } else { 4 });
            let shape = Shape { is_srq, transport, scatter_to_cqe, log_stride, ..Shape::RC };
            let mut rigs = [Rig::new(shape), Rig::new(shape)];
            rigs.iter().for_each(|rig| rig.set_exclusive(is_alone, is_alone_in_rq));
            let entries_max = (1usize << log_stride) / 16 - usize::from(is_srq);
            let mut posted = 0;
            for (number, step) in steps.into_iter().enumerate() {
                let [short, long] = &mut rigs;
                match step {
                    Step::Post(_) if posted == short.rq.claims().taken() + 4 => {}
                    Step::Post(mut list) => {
                        list.truncate(entries_max);
                        [short, long].into_iter().for_each(|rig| rig.post(&list));
                        posted += 1;
                    }
                    Step::Poll => prop_assert_eq!(short.poll(), long.poll()),
                    Step::Message(message) => {
                        let request = request_of(long, &message, number);
                        let replies = [(short, true), (long, false)]
                            .map(|(rig, is_short)| respond(rig, &request, &message.bytes, is_short))
                            .map(|reply| as_heard(&request, reply));
                        prop_assert_eq!(replies[0], replies[1]);
                    }
                }
                let ends = rigs.each_ref().map(trace);
                prop_assert!(ends[0] == ends[1], "{:?}", &ends);
                if !rigs[0].is_up() {
                    return Ok(());
                }
            }
        }
    }

    /// That the property above is one of the short way.
    #[test]
    fn the_short_way_is_taken() {
        for transport in [Transport::Rc, Transport::Dct, Transport::Ud] {
            let header = if transport == Transport::Ud { 40 } else { 0 };
            for (shape, verb) in [Shape::RC, Shape::SRQ].into_iter().zip([Verb::Write, Verb::Send])
            {
                if transport == Transport::Ud && verb == Verb::Write {
                    continue;
                }
                let mut rig = Rig::new(Shape { transport, ..shape });
                rig.post(&[(64 - header, 32 + u32::try_from(header).expect("short"))]);
                let region = region_of(&[7; 32]);
                let ptr = region.as_ptr().as_ptr();
                let payload = Chunk { ptr, len: 32, is_inline: false };
                let request = Request { imm: Some(1), addr: BASE + 64, ..rig.request(verb, 32) };
                let target = rig.target();
                let mut arrivals = Vec::new();
                let carried =
                    respond_to_plain(request, payload, &target, &mut rig.memory, |solicited| {
                        arrivals.push(solicited);
                    });
                assert_eq!((carried, arrivals), (Carried::Done, vec![false]));
                assert_eq!(rig.memory.read(64, 32), [7; 32]);
                assert!(rig.poll().is_some());
            }
        }
    }
}
