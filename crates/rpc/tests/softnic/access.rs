//! Memory beside the calls: READ, WRITE, and regions that go.

use copyrpc_rpc::{
    Body, Call, CallEnd, CloseReason, Config, Handler, LocalRegion, PeerId, Range, RemoteRegion,
    Request, Status, TransferError, TransportKind, Worker,
};
use softnic::Nic;

use crate::rig::{ECHO, Node, fabric, join, pair, poll_until, shapes, tight, until};

#[test]
fn one_sided_access_moves_bytes_both_ways() {
    for config in shapes() {
        let (mut a, mut b, to_b, _) = pair(&config);
        let theirs = b.worker.expose(4096).unwrap();
        let ours = a.worker.expose(4096).unwrap();
        let remote = RemoteRegion::from_bytes(theirs.remote().to_bytes());
        ours.write(100, b"one-sided");
        let range = Range { remote_offset: 7, local_offset: 100, len_bytes: 9 };
        a.worker.write(to_b, &ours, &remote, range, 1).unwrap();
        until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&1));
        assert_eq!(a.program.ended[&1].0, Status::Ok, "{config:?}");
        let mut there = [0; 9];
        theirs.read(7, &mut there);
        assert_eq!(&there, b"one-sided");
        let range = Range { remote_offset: 7, local_offset: 3000, len_bytes: 9 };
        a.worker.read(to_b, &remote, &ours, range, 2).unwrap();
        until(&mut [&mut a], |nodes| nodes[0].program.ended.contains_key(&2));
        let mut back = [0; 9];
        ours.read(3000, &mut back);
        assert_eq!(&back, b"one-sided");
        let outside = Range { remote_offset: 4090, local_offset: 0, len_bytes: 9 };
        let error = a.worker.read(to_b, &remote, &ours, outside, 3);
        assert_eq!(error, Err(TransferError::Remote(outside)));
    }
}

/// Fault D9: memory that its owner took back is not read; the access ends, and so does the
/// connection, for the peer's NIC refused.
#[test]
fn fault_d9_a_region_that_is_gone_ends_the_access() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let (mut a, mut b, to_b, _) = pair(&Config { transport, ..tight() });
        let theirs = b.worker.expose(4096).unwrap();
        let remote = theirs.remote();
        drop(theirs);
        let ours = a.worker.expose(4096).unwrap();
        let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 64 };
        a.worker.read(to_b, &remote, &ours, range, 1).unwrap();
        until(&mut [&mut a, &mut b], |nodes| {
            !nodes[0].program.ended.is_empty() && !nodes[0].program.closed.is_empty()
        });
        assert_eq!(a.program.ended[&1].0, Status::Unavailable);
        assert!(matches!(a.program.closed[0].1, CloseReason::Failed(_)));
    }
}

/// Accesses have a capacity too: what exceeds it is refused, and goes later.
#[test]
fn accesses_in_flight_are_bounded() {
    let (mut a, mut b, to_b, _) = pair(&Config { accesses_max: 2, ..tight() });
    let (theirs, ours) = (b.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 8 };
    let write =
        |node: &mut Node, cookie| node.worker.write(to_b, &ours, &theirs.remote(), range, cookie);
    assert_eq!([write(&mut a, 0), write(&mut a, 1)], [Ok(()), Ok(())]);
    assert_eq!(write(&mut a, 2), Err(TransferError::Busy(2)));
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 2);
    assert_eq!(write(&mut a, 2), Ok(()));
    a.worker.close(to_b);
    until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.len() == 3);
}

/// A READ that has ended with its connection is not told again by the name of a later one.
#[test]
fn an_access_ends_only_when_its_own_bytes_have_moved() {
    struct Again {
        to_b: PeerId,
        theirs: RemoteRegion,
        ours: LocalRegion<Nic>,
        seen: Vec<(u64, Status, [u8; 4])>,
    }
    impl Handler<Nic> for Again {
        fn request(&mut self, _: &mut Worker<Nic>, _: Request, _: Body<'_, Nic>) {}
        fn ended(&mut self, worker: &mut Worker<Nic>, cookie: u64, end: CallEnd<'_, Nic>) {
            let mut there = [0; 4];
            self.ours.read(0, &mut there);
            self.seen.push((cookie, end.status(), there));
            if cookie == 0 {
                let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
                worker.read(self.to_b, &self.theirs, &self.ours, range(32), 10).unwrap();
                worker.read(self.to_b, &self.theirs, &self.ours, range(0), 11).unwrap();
            }
        }
    }
    let fabric = fabric();
    let open = || Node::open(&fabric, &tight());
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, _) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let (theirs, gone) = (b.worker.expose(64).unwrap(), c.worker.expose(64).unwrap());
    theirs.write(0, b"read");
    let (alive, ours) = (c.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    let dead = gone.remote();
    drop(gone);
    let mut again = Again { to_b, theirs: theirs.remote(), ours: ours.clone(), seen: Vec::new() };
    let range = Range { remote_offset: 0, local_offset: 60, len_bytes: 4 };
    a.worker.read(to_b, &theirs.remote(), &ours, range, 0).unwrap();
    a.worker.read(to_c, &alive.remote(), &ours, range, 1).unwrap();
    a.worker.read(to_c, &dead, &ours, range, 2).unwrap();
    a.worker.flush();
    poll_until("the ends of five accesses", || {
        a.worker.poll(os::clock::now_ns(), &mut again);
        again.seen.len() == 5
    });
    let end = again.seen.iter().find(|(cookie, ..)| *cookie == 11).unwrap();
    assert_eq!((end.1, &end.2), (Status::Ok, b"read"), "{:?}", again.seen);
}

/// Fault D4: what an initiator had not started when it failed for one peer is moved for the others, and
/// ends for that one.
#[test]
fn fault_d4_accesses_behind_one_that_fails_are_made_again() {
    let config = Config { transport: TransportKind::Dc, dcis: 1, ..tight() };
    let fabric = fabric();
    let open = || Node::open(&fabric, &config);
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, _) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let (theirs, ours) = (b.worker.expose(64).unwrap(), a.worker.expose(64).unwrap());
    theirs.write(0, b"read");
    let gone = c.worker.expose(64).unwrap();
    let dead = gone.remote();
    drop(gone);
    let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
    a.worker.read(to_c, &dead, &ours, range(0), 0).unwrap();
    a.worker.read(to_b, &theirs.remote(), &ours, range(8), 1).unwrap();
    a.worker.read(to_c, &theirs.remote(), &ours, range(16), 2).unwrap();
    let called = Call { method: ECHO, cookie: 3, ..Call::default() };
    a.worker.call(to_b, &called, b"behind").unwrap();
    until(&mut [&mut a, &mut b, &mut c], |nodes| nodes[0].program.ended.len() == 4);
    let ended = [0, 1, 2, 3].map(|cookie| a.program.ended[&cookie].0);
    assert_eq!(ended, [Status::Unavailable, Status::Ok, Status::Unavailable, Status::Ok]);
    let mut there = [0; 4];
    ours.read(8, &mut there);
    assert_eq!(&there, b"read");
    assert_eq!((a.program.closed.len(), a.worker.is_connected(to_b)), (1, true));
}

/// Of one access at a time, also after some that failed.
#[test]
fn accesses_that_failed_are_not_in_flight_any_more() {
    for transport in [TransportKind::Rc, TransportKind::Dc] {
        let config = Config { transport, accesses_max: 1, ..tight() };
        let fabric = fabric();
        let (mut a, mut b) = (Node::open(&fabric, &config), Node::open(&fabric, &config));
        let ours = a.worker.expose(64).unwrap();
        let range = || Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
        for round in 0..3 {
            let (to_b, _) = join(&mut a, &mut b);
            let dead = b.worker.expose(64).unwrap().remote();
            a.worker.read(to_b, &dead, &ours, range(), round).expect("none is in flight");
            until(&mut [&mut a, &mut b], |nodes| nodes[0].program.ended.contains_key(&round));
            assert_eq!(a.program.ended[&round].0, Status::Unavailable);
            until(&mut [&mut a, &mut b], |nodes| {
                nodes[0].worker.peers() == 0
                    && (transport == TransportKind::Dc || nodes[1].worker.peers() == 0)
            });
            assert_eq!(a.worker.stats().failures, round + 1);
        }
    }
}

/// Fault D4, rule C3.4: credit that an initiator had not written when it failed for another peer is written
/// again, though nothing more happens.
#[test]
fn fault_d4_credit_behind_an_access_that_fails_is_written_again() {
    let config = Config { transport: TransportKind::Dc, dcis: 1, ..tight() };
    let fabric = fabric();
    let open = || Node::open(&fabric, &config);
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (to_b, to_a) = join(&mut a, &mut b);
    let (to_c, _) = join(&mut a, &mut c);
    let ours = a.worker.expose(64).unwrap();
    let dead = c.worker.expose(64).unwrap().remote();
    let now_ns = os::clock::now_ns() + (1 << 24);
    let call = Call { method: ECHO, cookie: 1, ..Call::default() };
    a.worker.call(to_b, &call, b"x").unwrap();
    // Time stands still, so that no credit is due before all is in place.
    poll_until("the answer", || {
        a.worker.poll(now_ns, &mut a.program);
        b.worker.poll(now_ns, &mut b.program);
        a.program.ended.contains_key(&1)
    });
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
    a.worker.read(to_c, &dead, &ours, range, 0).unwrap();
    // Longer than credit waits that is not needed (rule C3.8).
    a.worker.poll(now_ns + 4_000_000, &mut a.program);
    assert_eq!(a.worker.counters(to_b).unwrap().credits_out, 1, "behind the access that fails");
    assert_eq!(b.worker.counters(to_a).unwrap().trips, 0);
    until(&mut [&mut a, &mut b, &mut c], |nodes| nodes[0].program.ended.contains_key(&0));
    assert_eq!(a.program.ended[&0].0, Status::Unavailable);
    until(&mut [&mut a, &mut b, &mut c], |nodes| {
        nodes[1].worker.counters(to_a).unwrap().trips == 1
    });
}
