//! Properties of writers and readers together: nothing is lost, and no bytes are fatal.

mod stability;

use copyrpc_wire::{
    cqe::{
        Cqe, CqeView, ErrorCqe, PlainArrival, RequesterCqe, ResponderCqe, ResponderKind, Scatter,
        Source, Syndrome, is_written, owner_bit,
    },
    ids::{DcKey, Gid, Lid, Lkey, QKey, Qpn, Rkey, UserIndex},
    wqe::{
        Atomic, Av, AvExtension, AvKey, CtrlFlags, END_OF_LIST, ENTRY_BYTES_MAX, OCTOWORD_BYTES,
        Octoword, Opcode, Raddr, RecvWqe, RecvWqeWriter, Segment, SendWqe, Sge, Transport, WqeSink,
        WqeWriter, inline_octowords,
    },
};
use proptest::{collection::vec, prelude::*};

const POISON: Octoword = [0xa5; OCTOWORD_BYTES];
const LENGTH_MAX: usize = 63;

#[derive(Clone, Debug)]
enum Piece {
    Sge(Sge),
    /// Parts of one inline segment.
    Inline(Vec<Vec<u8>>),
}

/// One WQE, as its author means it.
#[derive(Clone, Debug)]
struct Plan {
    transport: Transport,
    opcode: Opcode,
    index: u16,
    qpn: Qpn,
    flags: CtrlFlags,
    imm: u32,
    av: Av,
    raddr: Raddr,
    atomic: Atomic,
    pieces: Vec<Piece>,
}

fn any_qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::from_low_bits)
}

fn any_sge() -> impl Strategy<Value = Sge> {
    let len_bytes = prop_oneof![0..=4096u32, 0..=ENTRY_BYTES_MAX];
    (any::<u64>(), any::<u32>(), len_bytes).prop_map(|(addr, lkey, len_bytes)| Sge {
        addr,
        lkey: Lkey::new(lkey),
        len_bytes,
    })
}

fn any_piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        any_sge().prop_map(Piece::Sge),
        vec(vec(any::<u8>(), 0..40), 0..4).prop_map(Piece::Inline),
        vec(vec(any::<u8>(), 0..988), 1..2).prop_map(Piece::Inline),
    ]
}

fn any_extension() -> impl Strategy<Value = AvExtension> {
    (any::<[u8; 6]>(), any::<u8>(), any::<u8>(), any::<u32>(), any::<[u8; 16]>()).prop_map(
        |(rmac, tclass, hop_limit, grh_gid_fl, rgid)| AvExtension {
            rmac,
            tclass,
            hop_limit,
            grh_gid_fl,
            rgid: Gid::new(rgid),
        },
    )
}

fn any_av(transport: Transport) -> impl Strategy<Value = Av> {
    let extension = proptest::option::of(any_extension());
    (any::<u64>(), any::<u32>(), any_qpn(), any::<[u8; 2]>(), any::<u16>(), extension).prop_map(
        move |(dc_key, qkey, destination, [stat_rate_sl, fl_mlid], rlid, extension)| Av {
            key: match transport {
                Transport::Dci => AvKey::Dc(DcKey::new(dc_key)),
                Transport::Rc | Transport::Ud => AvKey::Queue(QKey::new(qkey)),
            },
            destination,
            stat_rate_sl,
            fl_mlid,
            rlid,
            extension,
        },
    )
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let transport = prop_oneof![Just(Transport::Rc), Just(Transport::Ud), Just(Transport::Dci)];
    let opcode = proptest::sample::select(&Opcode::ALL[..]);
    (transport, opcode)
        .prop_filter("UD has no remote memory", |(transport, opcode)| {
            *transport != Transport::Ud || !opcode.has_raddr()
        })
        .prop_flat_map(|(transport, opcode)| {
            let ctrl = (any::<u16>(), any_qpn(), any::<u8>(), any::<u32>());
            let segs = (any_av(transport), any::<[u64; 3]>(), any::<u32>());
            (Just((transport, opcode)), ctrl, segs, vec(any_piece(), 0..20))
        })
        .prop_map(|((transport, opcode), (index, qpn, flags, imm), (av, words, rkey), pieces)| {
            let [addr, swap_or_add, compare] = words;
            let mut plan = Plan {
                transport,
                opcode,
                index,
                qpn,
                flags: CtrlFlags::from_bits(flags),
                imm,
                av,
                raddr: Raddr { addr, rkey: Rkey::new(rkey) },
                atomic: Atomic { swap_or_add, compare },
                pieces,
            };
            plan.make_legal();
            plan
        })
}

const PLAIN_OPCODES: [Opcode; 4] =
    [Opcode::RdmaWrite, Opcode::RdmaWriteImm, Opcode::Send, Opcode::SendImm];

/// Mostly what the short reader knows.
fn any_plain_plan() -> impl Strategy<Value = Plan> {
    let transport = prop::sample::select(vec![Transport::Rc, Transport::Dci]);
    let opcode = prop::sample::select(PLAIN_OPCODES.to_vec());
    let flags = prop::sample::select(vec![0, 2, 8, 10, 10, 10, 128]);
    let kinds = (transport, opcode, flags);
    (any_plan(), kinds, proptest::option::weighted(0.9, any_extension()), vec(any_piece(), 1..3))
        .prop_map(|(plan, (transport, opcode, flags), extension, mut pieces)| {
            pieces.truncate(1 + usize::from(plan.index % 8 == 0));
            let flags = CtrlFlags::from_bits(flags);
            let key = AvKey::Dc(DcKey::new(plan.raddr.addr));
            let av = Av { key, extension, ..plan.av };
            let mut plan = Plan { transport, opcode, flags, av, pieces, ..plan };
            plan.make_legal();
            plan
        })
}

impl Plan {
    /// Keeps the pieces that the operation may have, as many as fit.
    fn make_legal(&mut self) {
        let opcode = self.opcode;
        self.pieces.retain(|piece| match piece {
            Piece::Sge(_) => opcode != Opcode::Nop,
            Piece::Inline(_) => opcode.may_inline(),
        });
        if opcode.is_atomic() {
            let addr = self.raddr.addr;
            let lkey = Lkey::new(7);
            self.pieces = vec![Piece::Sge(Sge { addr, lkey, len_bytes: 8 })];
        }
        let mut octowords = self.fixed_octowords();
        self.pieces.retain(|piece| {
            let needed = match piece {
                Piece::Sge(_) => 1,
                Piece::Inline(parts) => inline_octowords(parts.concat().len()),
            };
            let fits = octowords + needed <= LENGTH_MAX;
            octowords += if fits { needed } else { 0 };
            fits
        });
    }

    fn has_av(&self) -> bool {
        self.transport != Transport::Rc && self.opcode != Opcode::Nop
    }

    /// Length without the payload.
    fn fixed_octowords(&self) -> usize {
        1 + usize::from(self.has_av()) * usize::from(self.av.octowords())
            + usize::from(self.opcode.has_raddr())
            + usize::from(self.opcode.is_atomic())
    }

    fn write<S: WqeSink>(&self, sink: S) -> u8 {
        let mut wqe = WqeWriter::new(sink);
        if self.has_av() {
            wqe = wqe.av(&self.av);
        }
        if self.opcode.has_raddr() {
            wqe = wqe.raddr(self.raddr.addr, self.raddr.rkey);
        }
        if self.opcode.is_atomic() {
            wqe = wqe.atomic(self.atomic.swap_or_add, self.atomic.compare);
        }
        for piece in &self.pieces {
            wqe = match piece {
                Piece::Sge(sge) => wqe.data(sge.addr, sge.lkey, sge.len_bytes),
                Piece::Inline(parts) => {
                    wqe.inline_parts(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
                }
            };
        }
        wqe.finish(self.opcode, self.index, self.qpn, self.flags, self.imm)
    }

    /// Whether the short reader has to know it.
    fn is_plain(&self) -> bool {
        let mut lengths = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Sge(sge) => (sge.len_bytes > 0).then_some(sge.len_bytes),
            Piece::Inline(parts) => parts.iter().any(|part| !part.is_empty()).then_some(1),
        });
        let has_one_piece = lengths.next().is_some_and(|len_bytes| len_bytes < ENTRY_BYTES_MAX)
            && lengths.next().is_none();
        let flags = (CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED).contains(self.flags);
        let is_addressed = match self.transport {
            Transport::Rc => true,
            Transport::Dci | Transport::Ud => self.av.extension.is_some(),
        };
        is_addressed && PLAIN_OPCODES.contains(&self.opcode) && flags && has_one_piece
    }

    fn assert_reads_back(&self, wqe: &SendWqe<'_>) {
        let ctrl = wqe.ctrl();
        assert_eq!((wqe.opcode, ctrl.opmod, ctrl.index), (self.opcode, 0, self.index));
        assert_eq!((ctrl.qpn, ctrl.flags, ctrl.imm), (self.qpn, self.flags, self.imm));
        assert_eq!(wqe.av(), self.has_av().then_some(self.av));
        assert_eq!(wqe.raddr(), self.opcode.has_raddr().then_some(self.raddr));
        assert_eq!(wqe.atomic(), self.opcode.is_atomic().then_some(self.atomic));
        let mut segments = wqe.segments();
        let mut len_bytes = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Sge(sge) if sge.len_bytes > 0 => {
                    assert_eq!(segments.next(), Some(Segment::Sge(*sge)));
                    len_bytes += u64::from(sge.len_bytes);
                }
                Piece::Inline(parts) if !parts.concat().is_empty() => {
                    let payload = parts.concat();
                    assert_eq!(segments.next(), Some(Segment::Inline(&payload)));
                    len_bytes += payload.len() as u64;
                }
                Piece::Sge(_) | Piece::Inline(_) => {}
            }
        }
        assert_eq!(segments.next(), None);
        assert_eq!(wqe.len_bytes(), len_bytes);
    }
}

fn any_source() -> impl Strategy<Value = Source> {
    (any_qpn(), 0..16u8, 0..4u8, any::<u16>(), any::<u8>()).prop_map(
        |(qpn, service_level, grh, slid, ml_path)| Source {
            qpn,
            service_level,
            grh,
            slid: Lid::new(slid),
            ml_path,
        },
    )
}

/// Lets `check` see one view of each kind, made of the same random fields.
fn with_views(fields: &CqeFields, mut check: impl FnMut(CqeView<'_>)) {
    let &CqeFields { qpn, index, counter, timestamp, imm, ref payload, source, .. } = fields;
    let in_cqe_len = u32::try_from(payload.len()).expect("at most 32");
    let places = [
        (Scatter::Memory, fields.byte_cnt),
        (Scatter::InCqe(payload), in_cqe_len),
        (Scatter::Preceding64, fields.byte_cnt % 65),
    ];
    for (scatter, byte_cnt) in places {
        for opcode in Opcode::ALL {
            check(CqeView::Requester(RequesterCqe {
                opcode,
                qpn,
                wqe_counter: counter,
                user_index: index,
                byte_cnt,
                scatter,
                timestamp,
            }));
        }
        for kind in [ResponderKind::Send, ResponderKind::SendImm(imm), ResponderKind::WriteImm(imm)]
        {
            if scatter != Scatter::Memory && kind == ResponderKind::WriteImm(imm) {
                continue;
            }
            check(CqeView::Responder(ResponderCqe {
                kind,
                qpn,
                wqe_counter: counter,
                user_index: index,
                byte_cnt,
                scatter,
                source: (!matches!(scatter, Scatter::InCqe(_))).then_some(source),
                solicited: fields.solicited,
                timestamp,
            }));
        }
    }
    let [send_opcode, syndrome, vendor_syndrome, _] = imm.to_be_bytes();
    check(CqeView::Error(ErrorCqe {
        is_requester: fields.solicited,
        qpn,
        wqe_counter: counter,
        user_index: index,
        send_opcode,
        syndrome: Syndrome::from_code(syndrome),
        vendor_syndrome,
    }));
}

#[derive(Debug)]
struct CqeFields {
    qpn: Qpn,
    index: UserIndex,
    counter: u16,
    timestamp: u64,
    imm: u32,
    byte_cnt: u32,
    payload: Vec<u8>,
    source: Source,
    solicited: bool,
}

fn any_cqe_fields() -> impl Strategy<Value = CqeFields> {
    let numbers = (any_qpn(), any::<u32>(), any::<u16>(), any::<u64>(), any::<u32>());
    (numbers, any::<u32>(), vec(any::<u8>(), 0..=32), any_source(), any::<bool>()).prop_map(
        |((qpn, index, counter, timestamp, imm), byte_cnt, payload, source, solicited)| CqeFields {
            qpn,
            index: UserIndex::from_low_bits(index),
            counter,
            timestamp,
            imm,
            byte_cnt,
            payload,
            source,
            solicited,
        },
    )
}

fn is_read_short(plan: &Plan, slots: &[Octoword]) -> bool {
    stability::wqe::plain_send(slots.as_flattened(), plan.transport).is_some()
}

proptest! {
    #[test]
    fn send_wqe_reads_back_as_written(plan in any_plan()) {
        let mut slots = [POISON; LENGTH_MAX + 1];
        let octowords = usize::from(plan.write(&mut slots));
        prop_assert!(slots[octowords..].iter().all(|slot| *slot == POISON), "past the WQE");
        let wqe = SendWqe::parse(slots.as_flattened(), plan.transport).unwrap();
        prop_assert_eq!(usize::from(wqe.ctrl().octowords), octowords);
        plan.assert_reads_back(&wqe);
        prop_assert_eq!(is_read_short(&plan, &slots), plan.is_plain());
    }

    #[test]
    fn plain_sends_are_told(plan in any_plain_plan()) {
        let mut slots = [POISON; LENGTH_MAX + 1];
        plan.write(&mut slots);
        prop_assert_eq!(is_read_short(&plan, &slots), plan.is_plain());
        let choice = if plan.transport == Transport::Rc { 0 } else { 2 };
        stability::wqe::check(&[&[choice], slots.as_flattened()].concat());
    }

    #[test]
    fn mutated_plain_sends_are_refused_or_read_alike(
        plan in any_plain_plan(),
        changes in vec((0..96usize, any::<u8>()), 1..3),
    ) {
        let mut slots = [POISON; LENGTH_MAX];
        plan.write(&mut slots);
        let mut bytes = [&[0], slots.as_flattened()].concat();
        bytes[0] = if plan.transport == Transport::Rc { 0 } else { 2 };
        for (at, value) in changes {
            bytes[1 + at] = value;
        }
        stability::wqe::check(&bytes);
    }

    #[test]
    fn truncated_send_wqe_is_refused(plan in any_plan(), cut in any::<prop::sample::Index>()) {
        let mut slots = [POISON; LENGTH_MAX + 1];
        let len_bytes = usize::from(plan.write(&mut slots)) * OCTOWORD_BYTES;
        let cut = cut.index(len_bytes);
        prop_assert!(SendWqe::parse(&slots.as_flattened()[..cut], plan.transport).is_err());
    }

    #[test]
    fn receive_wqe_reads_back_as_written(
        list in prop_oneof![vec(any_sge(), 0..3), vec(any_sge(), 0..16)],
        spare in 0..3u8,
        next in proptest::option::of(any::<u16>()),
    ) {
        let is_entry = |sge: &Sge| sge.lkey != END_OF_LIST;
        let list: Vec<Sge> = list.into_iter().filter(is_entry).collect();
        let stride = u8::try_from(list.len()).unwrap() + u8::from(next.is_some()) + spare;
        let mut slots = [POISON; 32];
        let mut writer = match next {
            Some(next) => RecvWqeWriter::srq(&mut slots, stride, next),
            None => RecvWqeWriter::rq(&mut slots, stride),
        };
        for sge in &list {
            writer = writer.data(sge.addr, sge.lkey, sge.len_bytes);
        }
        writer.finish();

        let (wqe, beyond) = slots.split_at(usize::from(stride));
        prop_assert!(beyond.iter().all(|slot| *slot == POISON), "past the stride");
        let bytes = wqe.as_flattened();
        let parsed = if next.is_some() { RecvWqe::parse_srq(bytes) } else { RecvWqe::parse_rq(bytes) };
        let parsed = parsed.unwrap();
        prop_assert_eq!(parsed.next_wqe_index, next);
        prop_assert!(parsed.sges().eq(list.into_iter().filter(|sge| sge.len_bytes > 0)));
        stability::wqe::check_plain_receive(&bytes[16 * usize::from(next.is_some())..]);
    }

    #[test]
    fn cqe_reads_back_as_written(fields in any_cqe_fields(), n in any::<u32>(), log in 0..32u8) {
        let owner = owner_bit(n, log);
        with_views(&fields, |view| {
            let cqe = view.encode(owner);
            assert_eq!(cqe.parse(), Ok(view));
            assert!(is_written(cqe.op_own(), n, log));
            assert_eq!(Cqe::from_words(cqe.to_words()), Cqe::from_bytes(cqe.to_bytes()));
            let is_arrival =
                matches!(view, CqeView::Responder(ResponderCqe { scatter: Scatter::Memory, .. }));
            assert_eq!(PlainArrival::ends_in(cqe.to_words()[7]), is_arrival);
        });
    }

    #[test]
    fn no_bytes_are_fatal_to_the_wqe_readers(bytes in vec(any::<u8>(), 0..1200)) {
        stability::wqe::check(&bytes);
    }

    #[test]
    fn mutated_wqes_are_refused_or_stable(
        plan in any_plan(),
        choice in any::<u8>(),
        changes in vec((0..96usize, any::<u8>()), 0..8),
    ) {
        let mut slots = [POISON; LENGTH_MAX];
        plan.write(&mut slots);
        let mut bytes = vec![choice];
        bytes.extend_from_slice(slots.as_flattened());
        for (at, value) in changes {
            bytes[at] = value;
        }
        stability::wqe::check(&bytes);
    }

    #[test]
    fn no_bytes_are_fatal_to_the_cqe_readers(bytes in vec(any::<u8>(), 0..140)) {
        stability::cqe::check(&bytes);
    }

    #[test]
    fn mutated_cqes_are_refused_or_stable(
        fields in any_cqe_fields(),
        payload in any::<[u8; 32]>(),
        changes in vec((0..128usize, any::<u8>()), 0..8),
    ) {
        with_views(&fields, |view| {
            let mut bytes = [payload, payload].concat();
            bytes.extend_from_slice(&view.encode(0).to_bytes());
            for &(at, value) in &changes {
                bytes[at] = value;
            }
            stability::cqe::check(&bytes);
            stability::cqe::check(&bytes[64..]);
        });
    }
}
