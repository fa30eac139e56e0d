//! `ibv_modify_qp` as commands, against a model that was written down by itself: what each transition takes, as text.

use std::collections::{HashMap, HashSet};

use rustix::io::Errno;
use verbs::QpState;

use super::rules::{Asked, Known, Limits, Path, check, mask};
use crate::{
    abi::{Fields, Record, number},
    commands::tests::{ask, command, engine, halves},
    engine::{Engine, Service},
};

/// Each line: a kind of queue pair, from, to, what has to be there, and behind `|` what may be.
///
/// The lines of RC, UC and UD up to RTS are those of `ibv_modify_qp(3)`.
const MODEL: &str = "
RC RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |
RC INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS
RC INIT RTR AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ALT_PATH ACCESS_FLAGS PKEY_INDEX
RC RTR RTS SQ_PSN MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY TIMEOUT | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RC RTS RTS | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
UC RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |
UC INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS
UC INIT RTR AV PATH_MTU DEST_QPN RQ_PSN | ALT_PATH ACCESS_FLAGS PKEY_INDEX
UC RTR RTS SQ_PSN | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
UC RTS RTS | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
UD RESET INIT PKEY_INDEX PORT QKEY |
UD INIT INIT | PKEY_INDEX PORT QKEY
UD INIT RTR | PKEY_INDEX QKEY
UD RTR RTS SQ_PSN | CUR_STATE QKEY
UD RTS RTS | CUR_STATE QKEY
DCI RESET INIT STATE PKEY_INDEX PORT |
DCI INIT INIT STATE | PKEY_INDEX PORT
DCI INIT RTR STATE PATH_MTU | PKEY_INDEX AV
DCI RTR RTS STATE SQ_PSN MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY TIMEOUT | MIN_RNR_TIMER
DCI RTS RTS STATE | MIN_RNR_TIMER
DCT RESET INIT STATE PKEY_INDEX PORT ACCESS_FLAGS |
DCT INIT RTR STATE MIN_RNR_TIMER AV PATH_MTU |
";

const KINDS: [(&str, Service); 5] = [
    ("RC", Service::Rc),
    ("UC", Service::Uc),
    ("UD", Service::Ud),
    ("DCI", Service::Dci),
    ("DCT", Service::Dct),
];

const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

fn bits<'a>(names: impl Iterator<Item = &'a str>) -> u32 {
    let bit = |name: &str| {
        let all = (0..21).find(|bit| super::rules::names(1 << bit) == name);
        1u32 << all.unwrap_or_else(|| panic!("{name}"))
    };
    names.map(bit).fold(0, |all, bit| all | bit)
}

/// Needed and optional attributes by kind, and numbers of states.
type Model = HashMap<(&'static str, usize, usize), (u32, u32)>;

fn model() -> Model {
    let mut model = Model::new();
    let place = |name: &str| STATES.iter().position(|state| *state == name).unwrap();
    for line in MODEL.lines().filter(|line| !line.is_empty()) {
        let (needed, optional) = line.split_once('|').unwrap();
        let mut words = needed.split_whitespace();
        let (kind, from, to) = (words.next(), words.next(), words.next());
        let kind = KINDS.iter().find(|(name, _)| Some(*name) == kind).unwrap().0;
        let way = (kind, place(from.unwrap()), place(to.unwrap()));
        model.insert(way, (bits(words), bits(optional.split_whitespace())));
    }
    for (kind, _) in &KINDS[..4] {
        let needed = if *kind == "DCI" { mask::STATE } else { 0 };
        for from in [0, 1, 2, 3, 6] {
            model.insert((kind, from, 0), (needed, 0));
            if from != 0 {
                model.insert((kind, from, 6), (needed, 0));
            }
        }
    }
    model
}

/// Random numbers that are the same each time (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn byte(&mut self, limit: u64) -> u8 {
        u8::try_from(self.below(limit)).unwrap()
    }

    /// Mostly `usual`.
    fn mostly(&mut self, usual: u8, limit: u64) -> u8 {
        if self.below(10) > 0 { usual } else { self.byte(limit) }
    }
}

/// A call: the fields of `struct ib_uverbs_modify_qp` that matter.
#[derive(Debug)]
struct Call {
    mask: u32,
    state: u8,
    current: u8,
    port: u8,
    pkey: u8,
    mtu: u8,
    reads: [u8; 2],
    access: u8,
    path_port: u8,
    gid_row: u8,
    rate: u8,
}

impl Call {
    fn random(random: &mut Random, model: &Model, kind: &'static str, from: usize) -> Self {
        let to = random.byte(8);
        let known = model.get(&(kind, from, to.into())).copied();
        let (needed, optional) = known.unwrap_or_else(|| (1 << random.below(21), 0));
        let mut mask = needed | optional & u32::try_from(random.next() >> 40).unwrap();
        mask &= !(mask::ALTERNATE_PATH | mask::MIGRATION);
        mask |= if to == 8 || random.below(8) == 0 { 0 } else { mask::STATE };
        if random.below(3) == 0 {
            mask ^= 1 << random.below(21);
        }
        Self {
            mask,
            state: to,
            current: random.mostly(u8::try_from(from).unwrap(), 9),
            port: random.mostly(1, 4),
            pkey: random.mostly(0, 3),
            mtu: random.mostly(3, 9),
            reads: [random.mostly(4, 40), random.mostly(4, 40)],
            access: random.byte(16),
            path_port: random.mostly(1, 4),
            gid_row: random.mostly(0, 6),
            rate: random.mostly(0, 30),
        }
    }

    fn bytes(&self, handle: u32) -> Vec<u8> {
        let mut fields = Record::zeroed(112);
        fields.u32(16, 1); // flow label
        fields.u16(20, 1); // LID
        fields.set(24, &[self.gid_row, 1, 0, 0, 0, self.rate, 1, self.path_port]);
        fields.u32(64, handle);
        fields.u32(68, self.mask);
        fields.u32(72, 0x1234);
        fields.u32(84, 7);
        fields.u32(88, self.access.into());
        fields.u16(92, self.pkey.into());
        fields.set(96, &[self.state, self.current, self.mtu, 0, 0]);
        fields.set(101, &[self.reads[0], self.reads[1], 3, self.port, 8, 7, 7]);
        fields.0
    }

    /// The state that it leads to, by the model; `None`: a kernel refuses it.
    fn expected(&self, model: &Model, kind: &'static str, from: usize, port: u8) -> Option<usize> {
        let has = |bit: u32| self.mask & bit != 0;
        let mut mask = self.mask;
        if has(mask::AV) && !(has(mask::STATE) && self.state == 2) {
            mask |= mask::PORT;
        }
        let valid_path = !has(mask::AV)
            || self.path_port == 1
                && self.gid_row == 0
                && (!has(mask::STATE) || self.state != 2 || port == 1)
                && (kind == "DCT" || self.rate == 0 || (2..=22).contains(&self.rate));
        let current_is_known = matches!(self.current, 2..=5);
        let is_current = usize::from(self.current) == from && current_is_known;
        let to = if has(mask::STATE) { self.state.into() } else { from };
        let (needed, optional) = *model.get(&(kind, from, to))?;
        let ranges = [
            (mask::PORT, has(mask::PORT) && self.port != 1),
            (mask::PKEY_INDEX, self.pkey != 0),
            (mask::READS_OUT, self.reads[0] > 16),
            (mask::READS_IN, self.reads[1] > 16),
            (mask::PATH_MTU, kind != "UD" && !(1..6).contains(&self.mtu)),
            (mask::CURRENT_STATE, !is_current),
            // It begins at port 0.
            (mask::ALTERNATE_PATH, true),
        ];
        let is_allowed = mask & needed == needed
            && mask & !(needed | optional | mask::STATE) == 0
            && valid_path
            && !ranges.iter().any(|(bit, is_wrong)| has(*bit) && *is_wrong);
        is_allowed.then_some(to)
    }
}

/// Queue pairs of every kind, and the memory that they lie in.
struct Rig {
    engine: Engine,
    qps: Vec<u32>,
    _events: std::os::fd::OwnedFd,
    _memory: memory::Region,
}

fn rig(name: &str) -> Rig {
    let memory = memory::Region::heap(1 << 16).unwrap();
    let at = |offset: u64| halves(memory.as_ptr().as_ptr().expose_provenance() as u64 + offset);
    let (mut engine, events) = engine(name);
    let [pd, ..] = command(&mut engine, number::ALLOC_PD, true, &[]);
    let ([ring, high], [record, record_high]) = (at(0), at(4096));
    let queue = [1, 0, 15, 0, u32::MAX, 0, ring, high, record, record_high, 64, 0];
    let [cq, ..] = command(&mut engine, number::CREATE_CQ, true, &queue);
    let ([ring, high], [record, record_high]) = (at(8192), at(12288));
    let queue = [2, 0, pd, 15, 1, 0, ring, high, record, record_high, 0, 0];
    let [srq, ..] = command(&mut engine, number::CREATE_SRQ, true, &queue);
    // `enum ib_qp_type`, whether there is an SRQ, `MLX5_QP_FLAG_TYPE_*`
    let kinds = [[2, 0, 0], [3, 0, 0], [4, 0, 0], [0xff, 0, 1 << 5], [0xff, 1, 1 << 4]];
    let mut qps = Vec::new();
    for (nth, [kind, has_srq, flags]) in (1u64..).zip(kinds) {
        let ([ring, high], [record, record_high]) =
            (at(16384 + nth * 8192), at(16384 + nth * 8192 + 4096));
        let bits = kind << 8 | has_srq << 16;
        let mut fields = vec![0, 0, pd, cq, cq, srq, 0, 0, 0, 0, 0, bits];
        fields.extend([ring, high, record, record_high, 4, 0, 6, flags, 0, 0, 9, 0]);
        qps.push(command(&mut engine, number::CREATE_QP, true, &fields)[0]);
    }
    Rig { engine, qps, _events: events, _memory: memory }
}

fn state_and_port(engine: &mut Engine, qp: u32) -> (usize, u8) {
    let mut fields = Record::words(&[qp, mask::STATE]);
    fields.0.resize(8, 0);
    let answer = ask(engine, number::QUERY_QP, 128, &fields.0).unwrap();
    (answer[108].into(), answer[116])
}

fn agree_on(calls: usize, seed: u64) {
    let (model, mut random) = (model(), Random(seed));
    let mut rig = rig(&format!("modify-{seed}"));
    let mut taken = HashSet::new();
    for nth in 0..calls {
        let which = usize::from(random.byte(4));
        let (kind, qp) = (KINDS[which].0, rig.qps[which]);
        let (from, port) = state_and_port(&mut rig.engine, qp);
        let call = Call::random(&mut random, &model, kind, from);
        let expected = call.expected(&model, kind, from, port);
        let result = ask(&mut rig.engine, number::MODIFY_QP, 0, &call.bytes(qp));
        let what = || format!("call {nth}, {kind} in {}: {call:x?}", STATES[from]);
        assert_eq!(result.is_ok(), expected.is_some(), "{}: {result:?}", what());
        if let Err(refusal) = result {
            assert_eq!(refusal.errno, Errno::INVAL, "{}", what());
        }
        taken.extend(expected.map(|to| (kind, from, to)));
        let (state, _) = state_and_port(&mut rig.engine, qp);
        assert_eq!(state, expected.unwrap_or(from), "{}", what());
    }
    let mut never = model.keys().filter(|way| way.0 != "DCT" && !taken.contains(*way));
    assert_eq!(never.next(), None, "in {calls} calls");
}

#[test]
fn random_calls_end_as_the_model_of_a_kernel_says() {
    agree_on(60_000, 1);
}

#[test]
#[ignore = "long: a million calls; `cargo xtask ci --full` runs it"]
fn a_million_random_calls_end_as_the_model_of_a_kernel_says_long() {
    agree_on(1_000_000, 2);
}

/// A DC target goes one way, and is made anew for each.
#[test]
fn a_dc_target_goes_to_rtr_and_nowhere_else() {
    let (model, mut random) = (model(), Random(3));
    for round in 0..40 {
        let mut rig = rig(&format!("modify-dct-{round}"));
        let qp = rig.qps[4];
        let (mut from, mut port) = (0, 0);
        for _ in 0..300 {
            let call = Call::random(&mut random, &model, "DCT", from);
            let expected = call.expected(&model, "DCT", from, port);
            let result = ask(&mut rig.engine, number::MODIFY_QP, 0, &call.bytes(qp));
            assert_eq!(result.is_ok(), expected.is_some(), "{call:x?} in {from}: {result:?}");
            from = expected.unwrap_or(from);
            port = if from > 0 { 1 } else { 0 };
        }
    }
}

const LIMITS: Limits = Limits {
    link: verbs::LinkLayer::InfiniBand,
    needs_grh: false,
    ipv4_rows: 0,
    empty_rows: 0,
    ports: 1,
    pkeys: 1,
    gids: 1,
    reads_max: 16,
    has_atomics: true,
    is_privileged: false,
};

fn known(service: Service, state: QpState) -> Known {
    Known { service, state, device_state: state, port: 1, access: 0, reads_in: 4 }
}

fn errno(asked: &Asked, known: &Known, limits: &Limits) -> Option<Errno> {
    check(asked, known, limits).err().map(|broken| broken.errno)
}

#[test]
fn each_cause_has_its_error_number() {
    let rts = known(Service::Rc, QpState::Rts);
    let ask = |mask: u32| Asked { mask, state: 3, ..Asked::default() };
    assert_eq!(errno(&ask(mask::ACCESS), &rts, &LIMITS), None);
    assert_eq!(errno(&ask(1 << 22), &rts, &LIMITS), Some(Errno::OPNOTSUPP), "no attribute");
    let limited = ask(mask::RATE_LIMIT);
    assert_eq!(errno(&limited, &rts, &LIMITS), Some(Errno::OPNOTSUPP), "a plain command has none");
    let limited = Asked { is_extended: true, ..limited };
    assert_eq!(errno(&limited, &rts, &LIMITS), Some(Errno::INVAL), "RC has none");
    let atomic = Asked { access: super::rules::REMOTE_ATOMIC, ..ask(mask::ACCESS) };
    let without = Limits { has_atomics: false, ..LIMITS };
    assert_eq!(errno(&atomic, &rts, &LIMITS), None);
    assert_eq!(errno(&atomic, &rts, &without), Some(Errno::OPNOTSUPP), "no atomics");
    let none_in = Known { reads_in: 0, ..rts };
    assert_eq!(errno(&atomic, &none_in, &without), None, "without READs no atomics are granted");
    let ud = known(Service::Ud, QpState::Rts);
    let key = Asked { qkey: 1 << 31, ..ask(mask::QKEY) };
    assert_eq!(errno(&key, &ud, &LIMITS), Some(Errno::PERM), "a privileged key");
    assert_eq!(errno(&key, &ud, &Limits { is_privileged: true, ..LIMITS }), None);
    let sqd = Asked { mask: mask::STATE, state: 4, ..Asked::default() };
    assert_eq!(errno(&sqd, &rts, &LIMITS), Some(Errno::INVAL), "a ConnectX does not drain");
}

#[test]
fn what_an_error_has_made_of_a_queue_pair_is_known_after_a_query() {
    // Datagrams in SQE, and the kernel thinks that they are in RTS.
    let fallen = Known { device_state: QpState::Sqe, ..known(Service::Ud, QpState::Rts) };
    let rts = Asked { mask: mask::STATE, state: 3, ..Asked::default() };
    assert_eq!(errno(&rts, &fallen, &LIMITS), Some(Errno::INVAL));
    let told = Asked { mask: mask::STATE | mask::CURRENT_STATE, current_state: 5, ..rts };
    assert_eq!(errno(&told, &fallen, &LIMITS), None, "the program says which state it is in");
    assert_eq!(errno(&rts, &Known { state: QpState::Sqe, ..fallen }, &LIMITS), None);
    assert_eq!(errno(&Asked { state: 6, ..rts }, &fallen, &LIMITS), None, "an error comes always");
}

#[test]
fn on_roce_a_path_has_a_gid_of_the_table() {
    let init = known(Service::Dct, QpState::Init);
    let limits = Limits { link: verbs::LinkLayer::Ethernet, gids: 4, ..LIMITS };
    let path = Path { port: 1, is_global: true, gid_row: 3, rate: 0, is_ipv4: false };
    let mask = mask::STATE | mask::AV | mask::PATH_MTU | mask::RNR_TIMER;
    let rtr = Asked { mask, state: 2, path_mtu: 3, path, ..Asked::default() };
    assert_eq!(errno(&rtr, &init, &limits), None);
    for path in [Path { is_global: false, ..path }, Path { gid_row: 4, ..path }] {
        assert_eq!(errno(&Asked { path, ..rtr }, &init, &limits), Some(Errno::INVAL));
    }
    // Linux `drivers/infiniband/core/cache.c`, `rdma_get_gid_attr`.
    let empty = Limits { empty_rows: 1 << 3, ..limits };
    assert_eq!(errno(&rtr, &init, &empty), Some(Errno::NODATA));
    // UCX names a row of IPv4 and no peer.
    let ipv4 = Limits { ipv4_rows: 1 << 3, ..limits };
    assert_eq!(errno(&rtr, &init, &ipv4), None);
}

/// What changes in RTS counts before the call returns: rights, keys, timers.
#[test]
fn what_changes_in_rts_is_told_by_a_query_and_by_the_nic() {
    let mut rig = rig("modify-rts");
    let [rc, ud] = [rig.qps[0], rig.qps[2]];
    let mut modify = |qp, state, mask, access: u8| {
        let call = Call {
            mask: mask | mask::STATE,
            state,
            current: 3,
            port: 1,
            pkey: 0,
            mtu: 3,
            reads: [5, 5],
            access,
            path_port: 1,
            gid_row: 0,
            rate: 0,
        };
        ask(&mut rig.engine, number::MODIFY_QP, 0, &call.bytes(qp)).unwrap();
        let fields = Record::words(&[qp, mask::ACCESS]);
        let answer = ask(&mut rig.engine, number::QUERY_QP, 128, &fields.0).unwrap();
        let at = rig.engine.qps.get(qp).unwrap().device.amended();
        assert_eq!(Fields(&answer).u32(100), at.access.bits(), "the NIC grants what is told");
        (at, [answer[113], answer[114]])
    };
    let (peer, sender) = (model()[&("RC", 1, 2)].0, model()[&("RC", 2, 3)].0);
    let (at, _) = modify(rc, 1, mask::PKEY_INDEX | mask::PORT | mask::ACCESS, 0b1110);
    assert_eq!(at.access.bits(), 0b10, "without READs in flight a peer may only write");
    let (at, reads) = modify(rc, 2, peer, 0);
    assert_eq!((at.access.bits(), reads), (0b1110, [1, 4]), "a number of READs is a power of two");
    modify(rc, 3, sender, 0);
    assert_eq!(modify(rc, 3, mask::ACCESS, 0).0.access.bits(), 0);
    assert_eq!(modify(rc, 3, mask::RNR_TIMER, 0).0.rnr_timer.code(), 3);
    modify(ud, 1, mask::PKEY_INDEX | mask::PORT | mask::QKEY, 0);
    modify(ud, 2, 0, 0);
    modify(ud, 3, mask::SQ_PSN, 0);
    assert_eq!(modify(ud, 3, mask::QKEY, 0).0.qkey.get(), 0x1234);
}

/// Numbers and offsets as the headers of rdma-core and of the kernel have them, where a compiler and they are installed.
mod headers {
    use std::{env, fs, process::Command};

    use super::super::rules::{self, mask};

    const INCLUDES: &str = "#include <stddef.h>\n#include <infiniband/verbs.h>\n\
        #include <rdma/ib_user_verbs.h>\n";

    fn facts() -> Vec<(String, u64)> {
        let all = (0..21).filter(|bit| *bit != 19).map(|bit| 1u32 << bit);
        let masks = all.map(|bit| (format!("IBV_QP_{}", rules::names(bit)), u64::from(bit)));
        let mut facts: Vec<_> = masks.collect();
        let states = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        facts.extend((0..).zip(states).map(|(number, name)| (format!("IBV_QPS_{name}"), number)));
        let offsets = [
            ("modify_qp", "alt_dest", 32),
            ("modify_qp", "qp_handle", 64),
            ("modify_qp", "attr_mask", 68),
            ("modify_qp", "qkey", 72),
            ("modify_qp", "rq_psn", 76),
            ("modify_qp", "sq_psn", 80),
            ("modify_qp", "dest_qp_num", 84),
            ("modify_qp", "qp_access_flags", 88),
            ("modify_qp", "pkey_index", 92),
            ("modify_qp", "qp_state", 96),
            ("modify_qp", "cur_qp_state", 97),
            ("modify_qp", "path_mtu", 98),
            ("modify_qp", "path_mig_state", 99),
            ("modify_qp", "max_rd_atomic", 101),
            ("modify_qp", "max_dest_rd_atomic", 102),
            ("modify_qp", "min_rnr_timer", 103),
            ("modify_qp", "port_num", 104),
            ("modify_qp", "timeout", 105),
            ("modify_qp", "retry_cnt", 106),
            ("modify_qp", "rnr_retry", 107),
            ("modify_qp", "alt_port_num", 108),
            ("qp_dest", "sgid_index", 24),
            ("qp_dest", "static_rate", 29),
            ("qp_dest", "is_global", 30),
            ("qp_dest", "port_num", 31),
        ];
        let offset = |(of, field, at)| (format!("offsetof(struct ib_uverbs_{of}, {field})"), at);
        facts.extend(offsets.map(offset));
        let others = [
            ("IBV_QP_RATE_LIMIT", mask::RATE_LIMIT),
            ("IBV_ACCESS_REMOTE_WRITE", rules::REMOTE_WRITE),
            ("IBV_ACCESS_REMOTE_READ", rules::REMOTE_READ),
            ("IBV_ACCESS_REMOTE_ATOMIC", rules::REMOTE_ATOMIC),
            ("IBV_MTU_256", 1),
            ("IBV_MTU_4096", 5),
            ("IBV_RATE_2_5_GBPS", 2),
            ("IBV_RATE_600_GBPS", 22),
        ];
        facts.extend(others.map(|(name, value)| (name.to_owned(), value.into())));
        facts
    }

    #[test]
    fn attributes_and_states_have_the_numbers_of_the_headers() {
        let folder = env::temp_dir().join(format!("copyrpc-uverbs-headers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let compile = |text: &str| {
            let source = folder.join("facts.c");
            fs::write(&source, text).unwrap();
            Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&source).output()
        };
        let fact = |(name, value)| format!("_Static_assert(({name}) == {value}, \"{name}\");\n");
        let asserts: String = facts().into_iter().map(fact).collect();
        let has_headers = compile(INCLUDES).is_ok_and(|output| output.status.success());
        let compiled = has_headers.then(|| compile(&format!("{INCLUDES}{asserts}")).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        let Some(output) = compiled else {
            assert!(env::var("CI").as_deref() != Ok("true"), "install gcc and libibverbs-dev");
            eprintln!("skipped: no C compiler, or no headers, which are in libibverbs-dev");
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
