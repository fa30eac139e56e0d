//! Two managers in one process, as two processes have them.

use std::{
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    sync::Mutex,
    time::{Duration, Instant},
};

use memory::sync::{AtomicU32, Ordering};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};
use verbs::{Gid, Lid, LinkLayer};

use super::{
    ConnectionManager, SLEEP,
    address::{Address, IbAddress},
    attributes::PortIdentity,
    event::{Event, kind},
    id::{IdOption, State},
    manager::Manager,
    message::Side,
};
use crate::polls::Polls;

const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
/// `enum ib_qp_type`
const RC: u8 = 2;
const UD: u8 = 4;

struct End {
    manager: Manager,
    channel: OwnedFd,
}

impl End {
    fn new(name: &str, lid: u16) -> Self {
        let fabric = format!("{name}-{}", std::process::id());
        let gids = vec![Gid::new(gid(lid))];
        let port = PortIdentity { lid: Lid::new(lid), link: LinkLayer::InfiniBand, gids };
        let mut manager = Manager::new(fabric, port);
        let channel = manager.open().unwrap();
        Self { manager, channel }
    }

    fn channel(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    fn create(&mut self, uid: u64) -> u32 {
        self.manager.create(self.channel(), uid, TCP, RC).unwrap()
    }

    fn serve(&mut self) {
        for (handle, _) in self.manager.sources().0 {
            self.manager.serve(handle);
        }
        self.manager.request_again();
        self.part(Polls { empty: 0, is_recent: false }, Instant::now());
    }

    fn part(&mut self, polls: Polls, now: Instant) {
        self.manager.completed(polls, now);
        self.manager.part(polls, now);
    }

    /// The next event, whatever both have to do for it.
    fn event(&mut self, other: Option<&mut Self>) -> Event {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut other = other;
        loop {
            self.serve();
            if let Some(other) = &mut other {
                other.serve();
            }
            if let Some(event) = self.manager.take_event(self.channel()) {
                return event;
            }
            assert!(Instant::now() < deadline, "no event");
        }
    }

    /// A listener, and where it listens.
    fn listen(&mut self) -> (u32, Address) {
        let listener = self.create(1);
        self.listen_with(listener)
    }

    fn listen_with(&mut self, listener: u32) -> (u32, Address) {
        self.manager.bind(listener, ip("127.0.0.1:0")).unwrap();
        self.manager.listen(listener, 4).unwrap();
        let address = self.manager.get(listener).unwrap().source.unwrap();
        (listener, address)
    }

    /// One that has asked for a connection.
    fn connect(&mut self, to: Address) -> u32 {
        let id = self.create(2);
        self.connect_with(id, to)
    }

    fn connect_with(&mut self, id: u32, to: Address) -> u32 {
        self.manager.resolve_address(id, None, to).unwrap();
        assert_eq!(self.event(None).kind, kind::ADDR_RESOLVED);
        self.manager.resolve_route(id).unwrap();
        assert_eq!(self.event(None).kind, kind::ROUTE_RESOLVED);
        self.manager.connect(id, side(7)).unwrap();
        id
    }
}

/// The GID of a port, which ends as its LID.
fn gid(lid: u16) -> [u8; 16] {
    (0xfe80u128 << 112 | 0x0200_00ff_fe00_0000 | u128::from(lid)).to_be_bytes()
}

fn ip(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

fn side(qpn: u32) -> Side {
    Side { qpn, responder_resources: 3, initiator_depth: 2, ..Side::default() }
}

/// Two ends, connected; and their identifiers.
fn connected(name: &str) -> ([End; 2], [u32; 2]) {
    let [mut passive, mut active] = [1, 2].map(|lid| End::new(name, lid));
    let (_, to) = passive.listen();
    let id = active.connect(to);
    let request = passive.event(Some(&mut active));
    assert_eq!((request.kind, request.uid), (kind::CONNECT_REQUEST, 1));
    // Its program moves its queue pair now, and then answers: by the number that it tells.
    let told = passive.manager.get(request.id).unwrap().own.psn;
    passive.manager.accept(request.id, Some(side(9))).unwrap();
    let response = active.event(Some(&mut passive));
    assert_eq!(response.kind, kind::CONNECT_RESPONSE);
    let peer = &active.manager.get(id).unwrap().peer;
    assert_eq!((peer.qpn, peer.lid, peer.psn), (9, 1, told));
    active.manager.accept(id, None).unwrap();
    assert_eq!(passive.event(Some(&mut active)).kind, kind::ESTABLISHED);
    ([passive, active], [request.id, id])
}

#[test]
fn a_connection_is_made_and_ends_on_both_sides() {
    let ([mut passive, mut active], [accepted, id]) = connected("connected");
    active.manager.disconnect(id).unwrap();
    assert_eq!(active.event(None).kind, kind::DISCONNECTED);
    assert_eq!(passive.event(Some(&mut active)).kind, kind::DISCONNECTED);
    passive.manager.disconnect(accepted).unwrap();
    // What librdmacm waits for: it has taken each of them.
    assert_eq!(active.manager.destroy(id), Ok(4));
    assert_eq!(passive.manager.destroy(accepted), Ok(2));
    assert_eq!(passive.manager.destroy(accepted), Err(Errno::NOENT));
}

#[test]
fn each_side_asks_for_no_more_reads_than_the_other_answers() {
    let (ends, ids) = connected("depths");
    let depths = |nth: usize| {
        let own = &ends[nth].manager.get(ids[nth]).unwrap().own;
        (own.responder_resources, own.initiator_depth)
    };
    // The program of the passive side has said 3 and 2; the active side takes no more of that than it wants.
    assert_eq!([depths(0), depths(1)], [(3, 2), (2, 2)]);
}

#[test]
fn who_is_killed_is_disconnected() {
    let ([mut passive, active], _) = connected("killed");
    drop(active);
    assert_eq!(passive.event(None).kind, kind::DISCONNECTED);
}

#[test]
fn a_program_that_polls_hears_of_an_end_after_it_has_polled_or_in_time() {
    for says_so in [true, false] {
        let ([mut passive, mut active], [accepted, id]) = connected("polls");
        if says_so {
            active.manager.disconnect(id).unwrap();
        } else {
            active.manager.destroy(id).unwrap();
        }
        let (polls, now) = (|empty| Polls { empty, is_recent: true }, Instant::now());
        assert!(!passive.manager.has_heard_end());
        passive.manager.serve(accepted);
        // Polls before the last completion tell nothing.
        passive.manager.part(polls(1000), now + Duration::from_secs(1));
        assert!(
            passive.manager.has_heard_end()
                && passive.manager.take_event(passive.channel()).is_none()
        );
        passive.part(polls(1000), now);
        passive.part(polls(1015), now);
        assert!(
            !passive.manager.has_heard_end()
                && passive.manager.take_event(passive.channel()).is_none()
        );
        let (polls, now) = if says_so {
            (polls(1016), now)
        } else {
            (polls(1000), now + Duration::from_millis(100))
        };
        passive.part(polls, now);
        let event = passive.manager.take_event(passive.channel()).unwrap();
        assert_eq!((event.kind, event.id), (kind::DISCONNECTED, accepted));
        assert_eq!(passive.manager.get(accepted).unwrap().state, State::Over);
    }
}

#[test]
fn a_request_is_refused_by_a_program_and_where_nobody_listens() {
    let [mut passive, mut active] = [1, 2].map(|lid| End::new("refused", lid));
    let (listener, to) = passive.listen();
    active.connect(to);
    let request = passive.event(Some(&mut active));
    passive.manager.reject(request.id, vec![1, 2, 3]).unwrap();
    let refused = active.event(Some(&mut passive));
    assert_eq!((refused.kind, refused.status), (kind::REJECTED, 28));
    assert_eq!(refused.parameters[8..11], [1, 2, 3]);
    passive.manager.destroy(listener).unwrap();
    active.connect(to);
    let refused = active.event(None);
    assert_eq!((refused.kind, refused.status), (kind::REJECTED, 8));
}

/// A listener for datagrams, and an identifier that has asked it where it is.
fn asking_for_datagrams(name: &str) -> ([End; 2], u32, Event) {
    let [mut passive, mut active] = [1, 2].map(|lid| End::new(name, lid));
    let listener = passive.manager.create(passive.channel(), 1, UDP, UD).unwrap();
    let (_, to) = passive.listen_with(listener);
    let id = active.manager.create(active.channel(), 2, UDP, UD).unwrap();
    active.connect_with(id, to);
    let request = passive.event(Some(&mut active));
    assert_eq!((request.kind, request.uid), (kind::CONNECT_REQUEST, 1));
    ([passive, active], id, request)
}

#[test]
fn who_asks_for_a_queue_pair_for_datagrams_is_told_where_it_is() {
    let ([mut passive, mut active], id, request) = asking_for_datagrams("datagrams");
    let told = Side { private: vec![4, 5], ..side(9) };
    passive.manager.accept(request.id, Some(told)).unwrap();
    let found = active.event(Some(&mut passive));
    assert_eq!((found.kind, found.status), (kind::ESTABLISHED, 0));
    // `struct rdma_ucm_ud_param`: number, key, LID in the address, private data.
    assert_eq!(found.parameters[..8], [9, 0, 0, 0, 0x67, 0x45, 0x23, 0x01]);
    assert_eq!(found.parameters[8 + 24..8 + 26], [1, 0]);
    assert_eq!((&found.parameters[40..43], found.parameters[296]), (&[4, 5, 0][..], 136));
    // Nobody is told of an end: there is no connection.
    assert_eq!(active.manager.disconnect(id), Err(Errno::INVAL));
    assert_eq!(active.manager.destroy(id), Ok(3));
    assert_eq!(passive.manager.destroy(request.id), Ok(0));
    passive.serve();
    assert!(passive.manager.take_event(passive.channel()).is_none());
}

#[test]
fn who_asks_for_datagrams_is_refused_by_a_program_and_where_nobody_listens() {
    let ([mut passive, mut active], id, request) = asking_for_datagrams("datagrams-refused");
    passive.manager.reject(request.id, vec![1, 2, 3]).unwrap();
    let refused = active.event(Some(&mut passive));
    assert_eq!((refused.kind, refused.status), (kind::UNREACHABLE, 2));
    assert_eq!(refused.parameters[40..43], [1, 2, 3]);
    let to = active.manager.get(id).unwrap().destination.unwrap();
    drop(passive);
    let id = active.manager.create(active.channel(), 3, UDP, UD).unwrap();
    active.connect_with(id, to);
    let refused = active.event(None);
    assert_eq!((refused.kind, refused.status), (kind::UNREACHABLE, 1));
}

#[test]
fn an_identifier_takes_its_events_to_another_channel_or_to_its_end() {
    let mut end = End::new("migrated", 1);
    let other = end.manager.open().unwrap();
    let [kept, gone] = [5, 6].map(|uid| end.create(uid));
    for id in [kept, gone] {
        end.manager.resolve_address(id, None, ip("127.0.0.1:9")).unwrap();
    }
    assert_eq!(end.manager.migrate(kept, other.as_raw_fd()), Ok(0));
    assert_eq!(end.manager.destroy(gone), Ok(0));
    assert!(end.manager.take_event(end.channel()).is_none());
    assert_eq!(end.manager.take_event(other.as_raw_fd()).unwrap().uid, 5);
    // What the descriptor of the first channel counts is gone, too.
    rustix::io::ioctl_fionbio(&end.channel, true).unwrap();
    assert_eq!(rustix::io::read(&end.channel, &mut [0; 8]), Err(Errno::AGAIN));
}

#[test]
fn a_request_waits_for_room_at_its_listener() {
    let [mut passive, mut active] = [1, 2].map(|lid| End::new("backlog", lid));
    let listener = passive.create(1);
    passive.manager.bind(listener, ip("127.0.0.1:0")).unwrap();
    passive.manager.listen(listener, 1).unwrap();
    let to = passive.manager.get(listener).unwrap().source.unwrap();
    let asked: Vec<u32> = (0..8).map(|_| active.connect(to)).collect();
    let is_waiting = |id: &u32| matches!(active.manager.get(*id).unwrap().state, State::Waiting(_));
    assert!(asked.iter().any(is_waiting), "more than there is room for");
    for _ in &asked {
        assert_eq!(passive.event(Some(&mut active)).kind, kind::CONNECT_REQUEST);
    }
    assert!(active.manager.take_event(active.channel()).is_none());
}

#[test]
fn two_listeners_do_not_share_a_port_and_no_port_is_elsewhere() {
    let mut end = End::new("ports", 1);
    let (_, taken) = end.listen();
    let id = end.create(3);
    assert_eq!(end.manager.bind(id, taken), Err(Errno::ADDRINUSE));
    assert_eq!(end.manager.bind(id, ip("192.0.2.1:0")), Err(Errno::ADDRNOTAVAIL));
    end.manager.resolve_address(id, None, ip("192.0.2.1:1")).unwrap();
    assert_eq!(end.event(None).kind, kind::ADDR_ERROR);
}

/// Length of the private data that an event of a connection tells of, and where it ends.
fn private_of(event: &Event) -> (u8, usize) {
    let Some(len) = event.parameters.get(264) else { return (0, 0) };
    let data = &event.parameters[8..8 + usize::from(*len)];
    (*len, data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1))
}

/// As on InfiniBand and RoCE: what a message has no room for is refused, and events tell of all the room.
#[test]
fn private_data_is_as_long_as_its_message_whatever_was_sent() {
    let said = |len: usize| Side { private: vec![7; len], ..side(9) };
    for (request, reply) in [(0, 0), (1, 3), (56, 196)] {
        let [mut passive, mut active] = [1, 2].map(|lid| End::new("private", lid));
        let (_, to) = passive.listen();
        let id = active.create(2);
        active.manager.resolve_address(id, None, to).unwrap();
        assert_eq!(active.event(None).kind, kind::ADDR_RESOLVED);
        assert_eq!(active.manager.connect(id, said(57)), Err(Errno::INVAL));
        active.manager.connect(id, said(request)).unwrap();
        let asked = passive.event(Some(&mut active));
        assert_eq!(private_of(&asked), (56, request));
        assert_eq!(passive.manager.accept(asked.id, Some(said(197))), Err(Errno::INVAL));
        assert_eq!(passive.manager.reject(asked.id, vec![1; 149]), Err(Errno::INVAL));
        passive.manager.accept(asked.id, Some(said(reply))).unwrap();
        let answered = active.event(Some(&mut passive));
        assert_eq!(private_of(&answered), (196, reply));
        active.manager.accept(id, None).unwrap();
        let last = passive.event(Some(&mut active));
        assert_eq!((last.kind, private_of(&last)), (kind::ESTABLISHED, (0, 0)));
        assert!(last.encode()[20..].iter().all(|byte| *byte == 0), "it says nothing else either");
    }
    let [mut passive, mut active] = [1, 2].map(|lid| End::new("private-no", lid));
    let (listener, to) = passive.listen();
    active.connect(to);
    let asked = passive.event(Some(&mut active));
    passive.manager.reject(asked.id, vec![1; 148]).unwrap();
    assert_eq!(private_of(&active.event(Some(&mut passive))), (148, 148));
    passive.manager.destroy(listener).unwrap();
    active.connect(to);
    assert_eq!(private_of(&active.event(None)), (148, 0), "of a kernel that finds no listener");
}

#[test]
fn options_take_effect_or_are_refused() {
    let mut end = End::new("options", 1);
    let id = end.create(1);
    end.manager.set_option(id, &IdOption::AckTimeout(21)).unwrap();
    end.manager.set_option(id, &IdOption::ServiceType(0x68)).unwrap();
    let told = |end: &End, state| {
        let id = end.manager.get(id).unwrap();
        end.manager.port.qp_attr(id, state).unwrap()
    };
    assert_eq!(told(&end, 3)[134], 21, "timeout of RTS");
    end.manager.port.link = LinkLayer::Ethernet;
    assert_eq!(told(&end, 2)[40 + 22], 0x68, "traffic class of the path");
    let datagrams = end.manager.create(end.channel(), 2, UDP, UD).unwrap();
    let refused = end.manager.set_option(datagrams, &IdOption::AckTimeout(21));
    assert_eq!(refused, Err(Errno::INVAL), "nothing is acknowledged");
}

#[test]
fn there_are_four_port_spaces() {
    let mut end = End::new("spaces", 1);
    let has = [0, 2, 0x106, 0x111, 0x13f, 7]
        .map(|space| end.manager.create(end.channel.as_raw_fd(), 1, space, RC).is_some());
    assert_eq!(has, [false, true, true, true, true, false]);
}

/// The thread that waits for descriptors is rung, and begins its next wait before the identifier's owner looks.
#[test]
fn the_end_of_an_identifier_waits_for_no_later_wait_of_the_thread() {
    let port = PortIdentity { lid: Lid::new(1), link: LinkLayer::InfiniBand, gids: Vec::new() };
    let manager = ConnectionManager {
        manager: Mutex::new(Manager::new("unused".to_owned(), port)),
        bell: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        catch_up: || {},
        waits: AtomicU32::new(1),
    };
    let wait = manager.ring();
    manager.waits.store(3, Ordering::Release);
    let begin = Instant::now();
    manager.let_go(wait);
    assert!(begin.elapsed() < SLEEP, "it has waited for the wait after that");
}

/// An address of a service of a port, as `rdma_getaddrinfo` makes them.
fn ib(gid: [u8; 16], space: u16, port: u16) -> Address {
    let mask = if port == 0 { !0xffff } else { u64::MAX };
    let service = u64::from(space) << 16 | u64::from(port);
    Address::Ib(IbAddress { service_mask: mask, ..IbAddress::of(gid, 0xffff, service) })
}

/// What QUERY says of both addresses.
fn told_addresses(end: &End, id: u32, option: u32) -> [Option<Address>; 2] {
    let answer = end.manager.port.query(end.manager.get(id).unwrap(), option, 280, [2; 8]).unwrap();
    [16, 144].map(|at| super::address::parse(answer[at..at + 48].try_into().unwrap()))
}

#[test]
fn a_connection_is_made_by_gids_alone() {
    const NOWHERE: [u8; 16] = [0; 16];
    let [mut passive, mut active] = [1, 2].map(|lid| End::new("gids", lid));
    let listener = passive.create(1);
    passive.manager.bind(listener, ib(NOWHERE, TCP, 0)).unwrap();
    passive.manager.listen(listener, 4).unwrap();
    let port = passive.manager.get(listener).unwrap().source.unwrap().port();
    let id = active.create(2);
    active.manager.resolve_address(id, None, ib(gid(1), TCP, port)).unwrap();
    assert_eq!(active.event(None).kind, kind::ADDR_RESOLVED);
    active.manager.resolve_route(id).unwrap();
    assert_eq!(active.event(None).kind, kind::ROUTE_RESOLVED);
    let path = active.manager.port.query(active.manager.get(id).unwrap(), 1, 512, [2; 8]).unwrap();
    assert_eq!((path[0], &path[24..40], &path[40..56]), (1, &gid(1)[..], &gid(2)[..]));
    assert_eq!(path[56..60], [0, 1, 0, 2], "LIDs of both");
    // There is no header with IP addresses in front.
    let said = |len: usize| Side { private: vec![7; len], ..side(9) };
    assert_eq!(active.manager.connect(id, said(93)), Err(Errno::INVAL));
    active.manager.connect(id, said(92)).unwrap();
    let asked = passive.event(Some(&mut active));
    assert_eq!((asked.kind, private_of(&asked)), (kind::CONNECT_REQUEST, (92, 92)));
    let [own, peer] = told_addresses(&passive, asked.id, 0);
    let gids = [own, peer].map(|address| match address {
        Some(Address::Ib(address)) => (address.gid, address.pkey),
        other => panic!("{other:?}"),
    });
    assert_eq!(gids, [(gid(1), 0xffff), (gid(2), 0xffff)]);
    passive.manager.accept(asked.id, Some(side(8))).unwrap();
    assert_eq!(active.event(Some(&mut passive)).kind, kind::CONNECT_RESPONSE);
}

#[test]
fn gids_that_lead_nowhere_are_refused_as_by_a_kernel() {
    let [mut passive, mut active] = [1, 2].map(|lid| End::new("gids-no", lid));
    let (_, to) = passive.listen();
    let port = to.port();
    let resolve = |end: &mut End, to| {
        let id = end.create(2);
        (id, end.manager.resolve_address(id, None, to))
    };
    let mut away = gid(1);
    away[7] = 9;
    assert_eq!(resolve(&mut active, ib(away, TCP, port)).1, Err(Errno::NODEV), "another subnet");
    let Address::Ib(near) = ib(gid(1), TCP, port) else { panic!() };
    let partition = Address::Ib(IbAddress { pkey: 0x8001, ..near });
    assert_eq!(resolve(&mut active, partition).1, Err(Errno::NODEV), "another partition");
    let udp = active.create(3);
    let bound = active.manager.bind(udp, ib([0; 16], UDP, 0));
    assert_eq!(bound, Err(Errno::PROTONOSUPPORT), "another port space");
    let id = active.create(3);
    assert_eq!(active.manager.bind(id, ib(gid(1), TCP, 0)), Err(Errno::NODEV), "of another port");
    active.manager.bind(id, ib(gid(2), TCP, 0)).unwrap();
    let mixed = active.manager.resolve_address(id, None, ip("127.0.0.1:9"));
    assert_eq!(mixed, Err(Errno::INVAL), "two families");
    // A listener of IP finds no IP addresses in the request; and one of this number may listen elsewhere.
    for (to, reason) in [(gid(1), 28), (gid(7), 8)] {
        let (id, resolved) = resolve(&mut active, ib(to, TCP, port));
        assert_eq!((resolved, active.event(None).kind), (Ok(()), kind::ADDR_RESOLVED));
        active.manager.connect(id, side(9)).unwrap();
        let refused = active.event(Some(&mut passive));
        assert_eq!((refused.kind, refused.status), (kind::REJECTED, reason));
    }
    active.manager.port.link = LinkLayer::Ethernet;
    assert_eq!(resolve(&mut active, ib(gid(1), TCP, port)).1, Err(Errno::NODEV), "RoCE");
}

#[test]
fn identifiers_of_ip_tell_their_gids_and_paths_when_asked() {
    let ([passive, active], [request, id]) = connected("queries");
    for (end, id, lids) in [(&passive, request, [1, 2]), (&active, id, [2, 1])] {
        assert!(told_addresses(end, id, 0).iter().all(|at| matches!(at, Some(Address::Ip(_)))));
        let gids = told_addresses(end, id, 2).map(|address| match address {
            Some(Address::Ib(address)) => address.gid,
            other => panic!("{other:?}"),
        });
        assert_eq!(gids, lids.map(gid));
        let query = |option, room| {
            let id = end.manager.get(id).unwrap();
            end.manager.port.query(id, option, room, [2; 8]).map(|answer| answer.len())
        };
        assert_eq!(query(1, 8), Ok(80));
        assert_eq!(query(0, 271), Err(Errno::NOSPC));
        assert_eq!(query(3, 512), Err(Errno::NOSYS));
    }
}
