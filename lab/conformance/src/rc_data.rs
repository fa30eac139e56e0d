//! Reliable connections: every operation moves exactly the bytes it names.

use verbs::{Capabilities, CompletionKind, Nic, Op, Payload, QueuePair, SendRequest, Sge};

use crate::{
    data::{SIZE_MAX, SIZES, pattern},
    end::{End, INLINE_BYTES_MAX, Setup},
    harness::{Side, Verdict, ensure, ensure_eq, len_u32},
};

/// Room for the largest message at every shift.
const AREA_BYTES: usize = SIZE_MAX + 64;

/// A message: its length, and how far from alignment its ends are.
#[derive(Clone, Copy, Debug)]
struct Shape {
    len: usize,
    from: usize,
    to: usize,
    seed: u64,
}

/// Every length, aligned and not, with data of its own.
fn shapes() -> Vec<Shape> {
    let shifts = [(0, 0), (1, 3), (3, 8), (8, 63), (63, 1)];
    let mut shapes = Vec::new();
    for (nth, len) in SIZES.into_iter().enumerate() {
        let seed = 1000 + nth as u64;
        let (from, to) = shifts[1 + nth % 4];
        shapes.push(Shape { len, from: 0, to: 0, seed });
        shapes.push(Shape { len, from, to, seed: seed + 500 });
    }
    shapes
}

/// Immediate data of every other message.
fn imm_of(shape: Shape) -> Option<u32> {
    shape.seed.is_multiple_of(2).then(|| 0xfeed_0000 | len_u32(shape.len & 0xffff))
}

/// SEND, with and without immediate data.
pub(super) fn send_moves_every_size<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, AREA_BYTES)?;
    for shape in shapes() {
        let Shape { len, from, to, seed } = shape;
        buffer.clear();
        if side.is_client() {
            buffer.write(from, &pattern(seed, len));
            side.meet(&mut end.cq)?;
            let payload = Payload::Gather(&[buffer.sge(from, len)]);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: imm_of(shape) }))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        } else {
            let wqe = end.recv(&[buffer.sge(to, len + 1)])?;
            side.meet(&mut end.cq)?;
            let done = end.wait_sent(CompletionKind::Recv, wqe)?;
            ensure_eq!((done.len_bytes, done.imm), (len_u32(len), imm_of(shape)), "{shape:?}");
            buffer.expect(to, &pattern(seed, len));
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// WRITE: the target changes, and nothing around it.
pub(super) fn write_moves_every_size<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, AREA_BYTES)?;
    let remote = side.swap_remote(&buffer)?;
    for shape in shapes() {
        let Shape { len, from, to, seed } = shape;
        buffer.clear();
        side.meet(&mut end.cq)?;
        if side.is_client() {
            buffer.write(from, &pattern(seed, len));
            let payload = Payload::Gather(&[buffer.sge(from, len)]);
            let op = Op::Write { remote: remote.at(to), payload, imm: None };
            let wqe = end.send(&SendRequest::signaled(op))?;
            end.wait_sent(CompletionKind::Write, wqe)?;
        } else {
            buffer.expect(to, &pattern(seed, len));
        }
        side.meet(&mut end.cq)?;
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// WRITE with immediate data: consumes one receive and leaves that receive's buffers alone.
pub(super) fn write_imm_leaves_the_receive_untouched<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, AREA_BYTES)?;
    let bystander = end.buffer(side, 4096)?;
    let remote = side.swap_remote(&buffer)?;
    for shape in shapes() {
        let Shape { len, from, to, seed } = shape;
        buffer.clear();
        let imm = Some(0xabcd_0000 | len_u32(len & 0xffff));
        if side.is_client() {
            side.meet(&mut end.cq)?;
            buffer.write(from, &pattern(seed, len));
            let payload = Payload::Gather(&[buffer.sge(from, len)]);
            let wqe = end.send(&SendRequest::signaled(Op::Write {
                remote: remote.at(to),
                payload,
                imm,
            }))?;
            end.wait_sent(CompletionKind::Write, wqe)?;
        } else {
            // Half of the receives have no buffer at all.
            let whole = [bystander.sge(0, 4096)];
            let wqe = end.recv(if from == 0 { &whole } else { &[] })?;
            side.meet(&mut end.cq)?;
            let done = end.wait_sent(CompletionKind::RecvWriteImm, wqe)?;
            ensure_eq!((done.len_bytes, done.imm), (len_u32(len), imm), "{shape:?}");
            buffer.expect(to, &pattern(seed, len));
        }
        buffer.verify()?;
        bystander.verify()?;
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// READ: the result changes, and nothing around it.
pub(super) fn read_moves_every_size<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, AREA_BYTES)?;
    let remote = side.swap_remote(&buffer)?;
    for shape in shapes() {
        let Shape { len, from, to, seed } = shape;
        buffer.clear();
        if side.is_client() {
            side.meet(&mut end.cq)?;
            let into = [buffer.sge(to, len)];
            let op = Op::Read { remote: remote.at(from), into: &into };
            let wqe = end.send(&SendRequest::signaled(op))?;
            let done = end.wait_sent(CompletionKind::Read, wqe)?;
            ensure_eq!(done.len_bytes, len_u32(len), "length of a READ");
            buffer.expect(to, &pattern(seed, len));
        } else {
            buffer.write(from, &pattern(seed, len));
            side.meet(&mut end.cq)?;
        }
        side.meet(&mut end.cq)?;
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Compare-and-swap and fetch-and-add, against a model of the word.
pub(super) fn atomics_return_the_old_value<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::ATOMICS)?;
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 64)?;
    buffer.write(0, &[0; 64]);
    let remote = side.swap_remote(&buffer)?.at(16);
    let mut word: u64 = 0;
    for step in 0..200_u64 {
        let random = side.rng.next_u64();
        let into = buffer.sge(40, 8);
        // Additions near the top make the word wrap; every third CAS guesses wrong.
        let compare = if step % 3 == 0 { !word } else { word };
        let (op, kind, new) = if step % 2 == 0 {
            let swap = random | 1 << 63;
            let new = if compare == word { swap } else { word };
            (Op::CompareSwap { remote, into, compare, swap }, CompletionKind::CompareSwap, new)
        } else {
            let new = word.wrapping_add(random);
            (Op::FetchAdd { remote, into, add: random }, CompletionKind::FetchAdd, new)
        };
        if side.is_client() {
            let wqe = end.send(&SendRequest::signaled(op))?;
            let done = end.wait_sent(kind, wqe)?;
            ensure_eq!(done.len_bytes, 8, "length of an atomic");
            buffer.expect(40, &word.to_ne_bytes());
            buffer.verify()?;
        }
        word = new;
    }
    side.meet(&mut end.cq)?;
    if !side.is_client() {
        ensure_eq!(buffer.word(16), word, "word after 200 atomics");
        buffer.expect(16, &word.to_ne_bytes());
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Two queue pairs add to one word: every addition counts, and no two see the same value.
pub(super) fn atomics_of_two_queue_pairs_do_not_interfere<N: Nic>(side: &mut Side<N>) -> Verdict {
    const ADDS: usize = 500;
    side.needs(Capabilities::ATOMICS)?;
    let first = End::connected(side, &Setup::rc())?;
    // A key belongs to one domain, so both queue pairs live in it.
    let mut second = End::create_in(side, &Setup::rc(), first.pd.clone(), None, None)?;
    super::end::connect(side, &mut second.qp, &Setup::rc())?;
    let mut buffer = first.buffer(side, 8)?;
    buffer.write(0, &[0; 8]);
    let results = first.buffer(side, 16)?;
    let remote = side.swap_remote(&buffer)?.at(0);
    let mut ends = [first, second];
    let mut seen = vec![false; 2 * ADDS];
    for _ in 0..ADDS {
        if !side.is_client() {
            break;
        }
        for (nth, end) in ends.iter_mut().enumerate() {
            let into = results.sge(8 * nth, 8);
            end.send(&SendRequest::signaled(Op::FetchAdd { remote, into, add: 1 }))?;
        }
        for (nth, end) in ends.iter_mut().enumerate() {
            end.wait_for(CompletionKind::FetchAdd)?;
            let old = usize::try_from(results.word(8 * nth)).unwrap_or(usize::MAX);
            ensure!(seen.get(old) == Some(&false), "old value {old} is out of range or repeated");
            seen[old] = true;
        }
    }
    side.meet(&mut ends[0].cq)?;
    if !side.is_client() {
        ensure_eq!(buffer.word(0), 2 * ADDS as u64, "sum");
    }
    side.meet(&mut ends[0].cq)
}

/// NOP completes, in order, and touches nothing.
pub(super) fn nop_completes_in_order<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 64)?;
    let remote = side.swap_remote(&buffer)?;
    if side.is_client() {
        let data = pattern(1, 64);
        buffer.write(0, &data);
        let payload = Payload::Gather(&[buffer.sge(0, 64)]);
        let write = Op::Write { remote: remote.at(0), payload, imm: None };
        let first = end.qp.post_send(&SendRequest::signaled(write))?;
        let second = end.qp.post_send(&SendRequest::signaled(Op::Nop))?;
        end.qp.ring_send();
        end.wait_sent(CompletionKind::Write, first)?;
        end.wait_sent(CompletionKind::Nop, second)?;
    } else {
        buffer.expect(0, &pattern(1, 64));
    }
    side.meet(&mut end.cq)?;
    buffer.verify()?;
    side.meet(&mut end.cq)
}

/// Several entries, some empty, in any order in memory, at both ends.
pub(super) fn gather_and_scatter_keep_the_order<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 3 * AREA_BYTES)?;
    for shape in shapes() {
        let Shape { len, from, to, seed } = shape;
        let data = pattern(seed, len);
        let cut = side.rng.below(len + 1);
        let head = &data[..cut];
        let tail = &data[cut..];
        buffer.clear();
        if side.is_client() {
            // The tail lies below the head.
            let head_at = 2 * AREA_BYTES - 64 + from;
            let tail_at = to;
            buffer.write(head_at, head);
            buffer.write(tail_at, tail);
            let sges = [
                buffer.sge(head_at, head.len()),
                buffer.sge(7, 0),
                buffer.sge(tail_at, tail.len()),
            ];
            side.meet(&mut end.cq)?;
            let payload = Payload::Gather(&sges);
            let wqe = end.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
            end.wait_sent(CompletionKind::Send, wqe)?;
        } else {
            let split = len / 3;
            let low = to;
            let high = AREA_BYTES + from;
            let into: [Sge; 3] =
                [buffer.sge(high, split), buffer.sge(9, 0), buffer.sge(low, len - split + 5)];
            let wqe = end.recv(&into)?;
            side.meet(&mut end.cq)?;
            let done = end.wait_sent(CompletionKind::Recv, wqe)?;
            ensure_eq!(done.len_bytes, len_u32(len), "{shape:?}");
            buffer.expect(high, &data[..split]);
            buffer.expect(low, &data[split..]);
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// A READ's result is scattered over several entries.
pub(super) fn read_scatters<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 2 * AREA_BYTES)?;
    let remote = side.swap_remote(&buffer)?;
    for Shape { len, from, to, seed } in shapes() {
        let data = pattern(seed, len);
        let cut = side.rng.below(len + 1);
        buffer.clear();
        if side.is_client() {
            side.meet(&mut end.cq)?;
            let high = AREA_BYTES + to;
            let low = to;
            let into = [buffer.sge(high, cut), buffer.sge(low, len - cut)];
            let op = Op::Read { remote: remote.at(from), into: &into };
            let wqe = end.send(&SendRequest::signaled(op))?;
            end.wait_sent(CompletionKind::Read, wqe)?;
            buffer.expect(high, &data[..cut]);
            buffer.expect(low, &data[cut..]);
        } else {
            buffer.write(from, &data);
            side.meet(&mut end.cq)?;
        }
        side.meet(&mut end.cq)?;
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Inline payloads are copied while posting: the source may change before the doorbell.
pub(super) fn inline_payload_is_copied_while_posting<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    let mut buffer = end.buffer(side, 1024)?;
    let remote = side.swap_remote(&buffer)?;
    let sizes = SIZES.into_iter().filter(|len| *len <= usize::from(INLINE_BYTES_MAX));
    for (nth, len) in sizes.collect::<Vec<_>>().into_iter().enumerate() {
        let data = pattern(nth as u64, len);
        buffer.clear();
        let is_send = nth % 2 == 0;
        if side.is_client() {
            side.meet(&mut end.cq)?;
            let mut source = data.clone();
            let (head, tail) = source.split_at(len / 3);
            let slices = [head, &[], tail];
            let payload = Payload::Inline(&slices);
            let op = if is_send {
                Op::Send { payload, imm: None }
            } else {
                Op::Write { remote: remote.at(5), payload, imm: Some(1) }
            };
            let wqe = end.qp.post_send(&SendRequest::signaled(op))?;
            source.fill(0xee);
            end.qp.ring_send();
            let kind = if is_send { CompletionKind::Send } else { CompletionKind::Write };
            end.wait_sent(kind, wqe)?;
        } else {
            end.recv(&[buffer.sge(5, 512)])?;
            side.meet(&mut end.cq)?;
            let kind = if is_send { CompletionKind::Recv } else { CompletionKind::RecvWriteImm };
            let done = end.wait_for(kind)?;
            ensure_eq!(done.len_bytes, len_u32(len), "inline length");
            buffer.expect(5, &data);
        }
        buffer.verify()?;
    }
    side.meet(&mut end.cq)
}

/// Two queue pairs of one NIC reach each other.
pub(super) fn loopback_inside_one_nic<N: Nic>(side: &mut Side<N>) -> Verdict {
    side.needs(Capabilities::LOOPBACK)?;
    let setup = Setup::rc();
    let mut left = End::create(side, &setup)?;
    let mut right = End::create_in(side, &setup, left.pd.clone(), None, None)?;
    super::end::connect_local(side, &mut left.qp, &mut right.qp, &setup)?;
    let mut buffer = left.buffer(side, 8192)?;
    let data = pattern(9, 3000);
    buffer.write(0, &data);
    right.recv(&[buffer.sge(4096, 3000)])?;
    let payload = Payload::Gather(&[buffer.sge(0, 3000)]);
    left.send(&SendRequest::signaled(Op::Send { payload, imm: Some(7) }))?;
    // Both queues are polled: neither NIC nor peer runs by itself.
    let deadline = side.deadline();
    let mut sent = 0;
    let mut received = 0;
    while sent + received < 2 {
        ensure!(!deadline.has_passed(), "loopback: {sent} sent, {received} received");
        for (end, count) in [(&mut left, &mut sent), (&mut right, &mut received)] {
            if let Some(done) = end.cq.poll() {
                ensure!(done.failure.is_none(), "{done:?}");
                end.retire(&done);
                *count += 1;
            }
        }
    }
    ensure_eq!((sent, received), (1, 1), "completions at either end");
    buffer.expect(4096, &data);
    buffer.verify()
}
