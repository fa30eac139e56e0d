//! Commands as libibverbs writes them, on queues in memory of a test.

use softnic::AdapterProfile;
use verbs::LinkLayer;

use super::{Refusal, run};
use crate::{
    abi::{Record, number},
    engine::{Context, Engine, EventPipe},
};

const CONTEXT: u32 = 3;

pub(super) fn engine(name: &str) -> (Engine, std::os::fd::OwnedFd) {
    let fabric = format!("{name}-{}", std::process::id());
    let mut engine =
        Engine::start(&fabric, LinkLayer::InfiniBand, AdapterProfile::ConnectX, false).unwrap();
    let (events, reader) = EventPipe::new().unwrap();
    engine.contexts.insert(CONTEXT, Context { events });
    (engine, reader)
}

/// Runs a plain command with fields of 32 bits, and returns the first words of its response.
pub(super) fn command(
    engine: &mut Engine,
    number: u32,
    has_response: bool,
    fields: &[u32],
) -> [u32; 4] {
    try_command(engine, number, has_response, fields).unwrap()
}

fn try_command(
    engine: &mut Engine,
    number: u32,
    has_response: bool,
    fields: &[u32],
) -> Result<[u32; 4], Refusal> {
    let room = if has_response { 32 } else { 0 };
    let response = ask(engine, number, room, &Record::words(fields).0)?;
    let word = |at: usize| response.get(at * 4..at * 4 + 4).and_then(|word| word.try_into().ok());
    Ok([0, 1, 2, 3].map(|at| u32::from_ne_bytes(word(at).unwrap_or_default())))
}

/// Runs a plain command; its response, for which there are so many bytes, of which 0 mean that it has none.
pub(super) fn ask(
    engine: &mut Engine,
    number: u32,
    room: u16,
    fields: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let mut response = vec![0u8; usize::from(room)];
    let address = response.as_mut_ptr().expose_provenance() as u64;
    let mut bytes = Record::words(&[number, 0]);
    if room > 0 {
        bytes.0.extend(address.to_ne_bytes());
    }
    bytes.0.extend(fields);
    let words = u16::try_from(bytes.0.len() / 4).unwrap();
    bytes.u16(4, words);
    bytes.u16(6, room / 4);
    // SAFETY: what it names is memory of the test, which outlives the engine.
    unsafe { run(engine, CONTEXT, &bytes.0) }?;
    Ok(response)
}

pub(super) fn halves(address: u64) -> [u32; 2] {
    let bytes = address.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

#[test]
fn a_shared_receive_queue_below_its_limit_raises_one_event() {
    const MODIFY_LIMIT: u32 = 2;
    const NAME: u32 = 0x77;
    let memory = memory::Region::heap(8192).unwrap();
    let ring = memory.as_ptr().as_ptr().expose_provenance() as u64;
    let record = memory.as_ptr().as_ptr().wrapping_add(4096).cast::<u32>();
    let post = |count: u32| {
        // SAFETY: in the region, aligned, and a word to all that use it.
        let record = unsafe { memory::sync::AtomicU32::from_ptr(record) };
        record.store(count.to_be(), memory::sync::Ordering::Release);
    };
    let (mut engine, reader) = engine("limit");
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let [pd, ..] = command(&mut engine, number::ALLOC_PD, true, &[]);
    let ([low, high], [record_low, record_high]) = (halves(ring), halves(ring + 4096));
    let queue = [NAME, 0, pd, 15, 1, 0, low, high, record_low, record_high, 0, 0];
    let [srq, ..] = command(&mut engine, number::CREATE_SRQ, true, &queue);
    post(6);
    command(&mut engine, number::MODIFY_SRQ, false, &[srq, MODIFY_LIMIT, 0, 5]);
    let mut event = [0; 16];
    engine.step();
    let nothing = rustix::io::read(&reader, &mut event[..]);
    assert_eq!(nothing, Err(rustix::io::Errno::AGAIN), "six are not fewer than five");
    assert_eq!(command(&mut engine, number::QUERY_SRQ, true, &[srq])[2], 5);
    post(4);
    engine.step();
    assert_eq!(rustix::io::read(&reader, &mut event[..]), Ok(16));
    assert_eq!((event[0], event[8]), (0x77, 15));
    engine.step();
    let nothing = rustix::io::read(&reader, &mut event[..]);
    assert_eq!(nothing, Err(rustix::io::Errno::AGAIN), "until the program asks again");
    // One was raised, and read.
    assert_eq!(command(&mut engine, number::DESTROY_SRQ, true, &[srq])[0], 1);
}

/// A queue pair of two completion queues, without rings: nothing is posted to it.
fn queue_pair(engine: &mut Engine, pd: u32, [send_cq, recv_cq]: [u32; 2], records: u64) -> u32 {
    const RC: u32 = 2 << 8;
    let mut fields = vec![0, 0, pd, send_cq, recv_cq, 0, 0, 0, 0, 0, 0, RC];
    let ([ring, ring_high], [record, record_high]) = (halves(records), halves(records + 8));
    fields.extend([ring, ring_high, record, record_high, 0, 0, 6, 0, 0, 0, 0, 0]);
    command(engine, number::CREATE_QP, true, &fields)[0]
}

#[test]
fn what_others_are_made_on_is_destroyed_after_them() {
    let memory = memory::Region::heap(16384).unwrap();
    let at = |offset: u64| memory.as_ptr().as_ptr().expose_provenance() as u64 + offset;
    let (mut engine, _reader) = engine("users");
    let [pd, ..] = command(&mut engine, number::ALLOC_PD, true, &[]);
    let no_channel = u32::MAX;
    let cqs = [0, 4096].map(|offset| {
        let ([low, high], [record, record_high]) = (halves(at(offset)), halves(at(offset + 2048)));
        let queue = [1, 0, 15, 0, no_channel, 0, low, high, record, record_high, 64, 0];
        command(&mut engine, number::CREATE_CQ, true, &queue)[0]
    });
    let qp = queue_pair(&mut engine, pd, cqs, at(8192));
    let made_on =
        [(number::DESTROY_CQ, cqs[0]), (number::DESTROY_CQ, cqs[1]), (number::DEALLOC_PD, pd)];
    for (number, handle) in made_on {
        let has_response = number == number::DESTROY_CQ;
        let refusal = try_command(&mut engine, number, has_response, &[handle, 0]).unwrap_err();
        assert_eq!(refusal.errno, rustix::io::Errno::BUSY, "{refusal}");
    }
    command(&mut engine, number::DESTROY_QP, true, &[qp, 0]);
    for (number, handle) in made_on {
        command(&mut engine, number, number == number::DESTROY_CQ, &[handle, 0]);
    }
}

/// The error number of REG_MR.
fn registers(
    engine: &mut Engine,
    pd: u32,
    region: &memory::Region,
    access: u32,
) -> Option<rustix::io::Errno> {
    let start = region.as_ptr().as_ptr().expose_provenance() as u64;
    let [low, high] = halves(start);
    let fields = [low, high, 4096, 0, low, high, pd, access];
    try_command(engine, number::REG_MR, true, &fields).err().map(|refusal| refusal.errno)
}

#[test]
fn each_cause_of_a_refused_region_has_its_error_number() {
    use rustix::io::Errno;
    const LOCAL_WRITE: u32 = 1;
    const REMOTE_WRITE: u32 = 1 << 1;
    let (mut engine, _reader) = engine("regions");
    let [pd, ..] = command(&mut engine, number::ALLOC_PD, true, &[]);
    let memory = memory::Region::memfd("regions", 8192).unwrap();
    assert_eq!(registers(&mut engine, pd, &memory, LOCAL_WRITE | REMOTE_WRITE), None);
    let refused = registers(&mut engine, pd, &memory, REMOTE_WRITE);
    assert_eq!(refused, Some(Errno::INVAL), "whoever lets a peer write may write");
    let [low, high] = halves(memory.as_ptr().as_ptr().expose_provenance() as u64);
    let fields = [low, high, 64, 0, low + 8, high, pd, LOCAL_WRITE];
    let refusal = try_command(&mut engine, number::REG_MR, true, &fields).unwrap_err();
    assert_eq!(refusal.errno, Errno::INVAL, "another place of a page: {refusal}");
    let fields = [0x1000, 0, 64, 0, 0x1000, 0, pd, LOCAL_WRITE];
    let refusal = try_command(&mut engine, number::REG_MR, true, &fields).unwrap_err();
    assert_eq!(refusal.errno, Errno::FAULT, "nothing is there: {refusal}");
    let mut last = None;
    for _ in 0..1 << 16 {
        last = registers(&mut engine, pd, &memory, LOCAL_WRITE);
        if last.is_some() {
            break;
        }
    }
    assert_eq!(last, Some(Errno::NOMEM), "all regions are used up");
}

#[test]
fn completion_queues_and_ports_have_their_ranges() {
    use rustix::io::Errno;
    let (mut engine, _reader) = engine("ranges");
    let memory = memory::Region::heap(8192).unwrap();
    let at = memory.as_ptr().as_ptr().expose_provenance() as u64;
    let ([low, high], [record, record_high]) = (halves(at), halves(at + 4096));
    let mut create = |cqe: u32, vector: u32, channel: u32| {
        let queue = [1, 0, cqe, vector, channel, 0, low, high, record, record_high, 64, 0];
        try_command(&mut engine, number::CREATE_CQ, true, &queue).err().map(|refusal| refusal.errno)
    };
    assert_eq!(create(15, 0, u32::MAX), None);
    assert_eq!(create(1 << 22, 0, u32::MAX), Some(Errno::INVAL), "more than `max_cqe`");
    assert_eq!(create(15, 1, u32::MAX), Some(Errno::INVAL), "no such vector");
    assert_eq!(create(15, 0, 7), Some(Errno::BADF), "no channel");
    let mut port = |number| {
        let fields = Record(vec![number, 0, 0, 0, 0, 0, 0, 0]);
        ask(&mut engine, number::QUERY_PORT, 40, &fields.0).err().map(|refusal| refusal.errno)
    };
    assert_eq!([0, 1, 2].map(&mut port), [Some(Errno::INVAL), None, Some(Errno::INVAL)]);
}

#[test]
fn shared_receive_queues_have_their_ranges() {
    use rustix::io::Errno;
    let (mut engine, _reader) = engine("srq-ranges");
    let [pd, ..] = command(&mut engine, number::ALLOC_PD, true, &[]);
    let memory = memory::Region::heap(8192).unwrap();
    let at = memory.as_ptr().as_ptr().expose_provenance() as u64;
    let ([low, high], [record, record_high]) = (halves(at), halves(at + 4096));
    let mut create = |requests: u32, sges: u32| {
        let queue = [1, 0, pd, requests, sges, 0, low, high, record, record_high, 0, 0];
        let created = try_command(&mut engine, number::CREATE_SRQ, true, &queue);
        created.map(|[srq, ..]| srq).map_err(|refusal| refusal.errno)
    };
    let srq = create(15, 1).unwrap();
    assert_eq!(create(1 << 15, 1), Err(Errno::INVAL), "more than `max_srq_wr`");
    assert_eq!(create(15, 32), Err(Errno::INVAL), "more than `max_srq_sge`");
    let mut modify = |mask: u32, value: u32| {
        let fields = [srq, mask, value, value];
        let modified = try_command(&mut engine, number::MODIFY_SRQ, false, &fields);
        modified.err().map(|refusal| refusal.errno)
    };
    assert_eq!(modify(1, 31), Some(Errno::INVAL), "another size");
    assert_eq!([15, 16].map(|limit| modify(2, limit)), [None, Some(Errno::INVAL)]);
}
