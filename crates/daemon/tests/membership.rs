//! Daemons that watch each other in virtual time, through a network that delays, loses and cuts, and
//! with daemons that stop, die and come back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use copyrpc_daemon::membership::{Detector, DetectorConfig, Gone, Heartbeat, PeerEvent, PeerState};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const CONFIG: DetectorConfig =
    DetectorConfig { interval_ns: 200 * MS, suspect_after_ns: 1000 * MS, dead_after_ns: 3000 * MS };

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrives { to: u32, from: u32, packet: usize },
    Ticks { node: u32, life: u32 },
}

struct Node {
    detector: Detector,
    life: u32,
    is_dead: bool,
    /// Neither receives nor sends before this: what came meanwhile is handled then.
    paused_until_ns: u64,
    /// Epoch in which each peer is up.
    up: BTreeMap<u32, u64>,
    /// Latest epoch in which each peer was up.
    last: BTreeMap<u32, u64>,
    /// Peers that may be called.
    ready: BTreeSet<u32>,
    /// Epochs, the peer's and the own, in which each peer was up last.
    epochs: BTreeMap<u32, (u64, u64)>,
    /// Peers that were up in any life, with the epochs of both.
    ups: BTreeSet<(u32, u64, u64)>,
    log: Vec<(u64, PeerEvent)>,
}

/// All daemons and the network between them.
struct World {
    nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<(u64, What)>>,
    packets: Vec<Heartbeat>,
    now_ns: u64,
    seed: u64,
    delay_ns_max: u64,
    loss_percent: u64,
    /// `(from, to, until)`.
    cuts: Vec<(u32, u32, u64)>,
    /// No heartbeat takes as long as suspicion.
    is_punctual: bool,
}

impl World {
    fn new(size: u32, seed: u64) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            queue: BinaryHeap::new(),
            packets: Vec::new(),
            now_ns: MS,
            seed,
            delay_ns_max: 10 * MS,
            loss_percent: 0,
            cuts: Vec::new(),
            is_punctual: true,
        };
        for node in 0..size {
            let detector = world.detector(node, size, 100);
            world.nodes.push(Node {
                detector,
                life: 0,
                is_dead: false,
                paused_until_ns: 0,
                up: BTreeMap::new(),
                last: BTreeMap::new(),
                ready: BTreeSet::new(),
                epochs: BTreeMap::new(),
                ups: BTreeSet::new(),
                log: Vec::new(),
            });
            world.tick_at(node, MS);
        }
        world
    }

    fn detector(&self, node: u32, size: u32, epoch: u64) -> Detector {
        Detector::new(CONFIG, epoch, (0..size).filter(|peer| *peer != node), self.now_ns)
    }

    fn node(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % below.max(1)
    }

    fn tick_at(&mut self, node: u32, at_ns: u64) {
        let life = self.node(node).life;
        self.queue.push(Reverse((at_ns, What::Ticks { node, life })));
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some(&Reverse((at_ns, what))) = self.queue.peek()
            && at_ns <= end_ns
        {
            self.queue.pop();
            self.now_ns = at_ns;
            let (What::Arrives { to: node, .. } | What::Ticks { node, .. }) = what;
            let paused_until_ns = self.node(node).paused_until_ns;
            if paused_until_ns > at_ns {
                self.queue.push(Reverse((paused_until_ns, what)));
                continue;
            }
            self.handle(what);
        }
        self.now_ns = end_ns;
    }

    fn handle(&mut self, what: What) {
        let now_ns = self.now_ns;
        match what {
            What::Arrives { to, from, packet } => {
                let heartbeat = self.packets[packet];
                let node = self.node(to);
                if !node.is_dead {
                    node.detector.handle_heartbeat(from, heartbeat, now_ns);
                    self.drain(to);
                }
            }
            What::Ticks { node, life } => {
                if self.node(node).life != life || self.node(node).is_dead {
                    return;
                }
                self.node(node).detector.handle_timeout(now_ns);
                self.drain(node);
                let next = self.node(node).detector.poll_timeout().unwrap();
                self.tick_at(node, next.max(now_ns + 1));
            }
        }
    }

    fn drain(&mut self, node: u32) {
        let now_ns = self.now_ns;
        while let Some((to, heartbeat)) = self.node(node).detector.poll_transmit() {
            let cut = |&(from, dest, until): &(u32, u32, u64)| {
                (from, dest) == (node, to) && until > now_ns
            };
            let is_lost = self.cuts.iter().any(cut) || self.random(100) < self.loss_percent;
            if is_lost {
                continue;
            }
            let at_ns = now_ns + self.random(self.delay_ns_max) + 1;
            let packet = self.packets.len();
            self.packets.push(heartbeat);
            self.queue.push(Reverse((at_ns, What::Arrives { to, from: node, packet })));
        }
        while let Some(event) = self.node(node).detector.poll_event() {
            self.check(node, event);
            self.node(node).log.push((now_ns, event));
        }
        assert_eq!(self.node(node).detector.up(), self.node(node).up.len());
        // What an event changed may be due at once.
        if let Some(due_ns) = self.node(node).detector.poll_timeout()
            && due_ns <= now_ns
        {
            self.tick_at(node, now_ns);
        }
    }

    /// Up and gone alternate, and no epoch is up twice.
    fn check(&mut self, node: u32, event: PeerEvent) {
        if let PeerEvent::Ready { peer } = event
            && self.is_punctual
        {
            self.check_ready(node, peer);
        }
        let node = self.node(node);
        match event {
            PeerEvent::Up { peer, epoch, our_epoch } => {
                node.epochs.insert(peer, (epoch, our_epoch));
                node.ups.insert((peer, epoch, our_epoch));
                assert_eq!(node.up.insert(peer, epoch), None, "it was up");
                let last = node.last.insert(peer, epoch).unwrap_or(0);
                assert!(epoch > last, "epoch {epoch} after {last}");
            }
            PeerEvent::Gone { peer, epoch, .. } => {
                assert_eq!(node.up.remove(&peer), Some(epoch));
                node.ready.remove(&peer);
            }
            PeerEvent::Ready { peer } => {
                assert!(node.up.contains_key(&peer) && node.ready.insert(peer));
            }
            PeerEvent::Suspected { peer } | PeerEvent::Recovered { peer } => {
                assert!(node.up.contains_key(&peer));
            }
        }
    }

    /// A peer that may be called has come up itself, in the same epochs of both.
    fn check_ready(&self, node: u32, peer: u32) {
        let (epoch, our_epoch) = self.nodes[node as usize].epochs[&peer];
        let other_end = (node, our_epoch, epoch);
        assert!(
            self.nodes[peer as usize].ups.contains(&other_end),
            "{node} calls {peer} too early"
        );
    }

    fn kill(&mut self, node: u32) {
        self.node(node).is_dead = true;
    }

    fn restart(&mut self, node: u32, epoch: u64) {
        let size = u32::try_from(self.nodes.len()).unwrap();
        let detector = self.detector(node, size, epoch);
        let now_ns = self.now_ns;
        let node_ref = self.node(node);
        node_ref.detector = detector;
        node_ref.is_dead = false;
        node_ref.life += 1;
        node_ref.up.clear();
        // A new life knows nothing of the earlier one.
        node_ref.last.clear();
        node_ref.ready.clear();
        self.tick_at(node, now_ns);
    }

    fn state(&self, node: u32, peer: u32) -> PeerState {
        self.nodes[node as usize].detector.state(peer)
    }

    fn all_up(&self) -> bool {
        let size = u32::try_from(self.nodes.len()).unwrap();
        (0..size).all(|node| {
            (0..size).all(|peer| peer == node || self.state(node, peer) == PeerState::Up)
        })
    }

    /// Times and reasons at which `node` gave `peer` up.
    fn gone(&self, node: u32, peer: u32) -> Vec<(u64, Gone)> {
        let log = self.nodes[node as usize].log.iter();
        let gone = log.filter_map(|(at_ns, event)| match event {
            PeerEvent::Gone { peer: who, why, .. } if *who == peer => Some((*at_ns, *why)),
            _ => None,
        });
        gone.collect()
    }
}

#[test]
fn all_are_up_after_three_delays_and_stay_so() {
    let mut world = World::new(5, 1);
    world.run_until(500 * MS);
    assert!(world.all_up());
    world.run_until(60_000 * MS);
    for node in &world.nodes {
        assert_eq!(node.log.len(), 8, "four came up, and may be called: {:?}", node.log);
        assert_eq!(node.ready.len(), 4);
    }
}

/// Until both are up, a connection has one end: its requests are not answered, and it breaks.
#[test]
fn the_second_end_of_a_link_comes_up_a_delay_after_the_first() {
    for seed in 0..50 {
        let mut world = World::new(2, seed);
        world.run_until(1000 * MS);
        world.kill(1);
        let away_ns = world.random(5000) * MS;
        world.run_until(1000 * MS + away_ns);
        world.restart(1, 200);
        world.run_until(10_000 * MS);
        let up_ns = |node: usize| {
            let log = world.nodes[node].log.iter().rev();
            log.filter(|(_, event)| matches!(event, PeerEvent::Up { .. })).map(|(at_ns, _)| *at_ns)
        };
        assert_eq!((world.nodes[0].ready.len(), world.nodes[1].ready.len()), (1, 1));
        for (one_ns, other_ns) in up_ns(0).zip(up_ns(1)) {
            assert!(one_ns.abs_diff(other_ns) <= world.delay_ns_max, "{one_ns} and {other_ns}");
        }
        assert_eq!((up_ns(0).count(), up_ns(1).count()), (2, 2));
    }
}

#[test]
fn fault_a8_a_dead_peer_is_gone_within_the_bound_and_comes_back_in_a_new_epoch() {
    let mut world = World::new(3, 2);
    world.run_until(5000 * MS);
    world.kill(2);
    world.run_until(8000 * MS);
    for node in [0, 1] {
        let gone = world.gone(node, 2);
        assert!(matches!(gone[..], [(at_ns, Gone::Silent)] if at_ns <= 8000 * MS), "{gone:?}");
        assert_eq!(world.state(node, 1 - node), PeerState::Up, "nobody else is touched");
    }
    world.restart(2, 200);
    world.run_until(9000 * MS);
    assert!(world.all_up());
}

#[test]
fn fault_a8_a_restart_faster_than_the_detector_is_noticed_at_once() {
    let mut world = World::new(2, 3);
    world.run_until(5000 * MS);
    world.kill(1);
    world.restart(1, 200);
    world.run_until(6000 * MS);
    assert!(world.all_up());
    assert!(matches!(world.gone(0, 1)[..], [(_, Gone::Replaced)]));
}

#[test]
fn a_restart_whose_clock_went_back_is_told_by_its_peer() {
    let mut world = World::new(2, 4);
    world.run_until(5000 * MS);
    world.kill(1);
    world.run_until(10_000 * MS);
    world.restart(1, 7);
    world.run_until(12_000 * MS);
    assert!(world.all_up());
}

/// What nobody gave up, because it never was up, is remembered too.
#[test]
fn a_restart_whose_clock_went_back_is_told_by_a_peer_that_only_heard_of_it() {
    let mut world = World::new(2, 4);
    world.cuts.push((0, 1, 5000 * MS));
    world.run_until(5000 * MS);
    assert_eq!(world.state(0, 1), PeerState::Down);
    world.kill(1);
    world.restart(1, 7);
    world.run_until(8000 * MS);
    assert!(world.all_up());
}

/// `one` speaks, and hears what corrects it; what `other` says by itself, only if that thinks that it is there.
fn speak(one: &mut Detector, other: &mut Detector, is_known: bool, now_ns: u64) {
    one.handle_timeout(now_ns);
    while let Some((_, heartbeat)) = one.poll_transmit() {
        if let Some(correction) = other.correction(1, &heartbeat, now_ns) {
            one.handle_heartbeat(0, correction, now_ns);
        }
        other.handle_heartbeat(1, heartbeat, now_ns);
    }
    other.handle_timeout(now_ns);
    while let Some((_, heartbeat)) = other.poll_transmit() {
        if is_known {
            one.handle_heartbeat(0, heartbeat, now_ns);
        }
    }
}

#[test]
fn fault_e4_of_two_daemons_of_one_rank_the_later_has_the_place_until_it_is_gone() {
    let mut peer = Detector::new(CONFIG, 100, [1], MS);
    let mut earlier = Detector::new(CONFIG, 100, [0], MS);
    let mut times = (1_u64..).map(|tick| tick * CONFIG.interval_ns);
    for now_ns in times.by_ref().take(5) {
        speak(&mut earlier, &mut peer, true, now_ns);
    }
    assert_eq!((peer.epoch(1), earlier.state(0)), (Some(100), PeerState::Up));
    let mut later = Detector::new(CONFIG, 200, [0], 6 * CONFIG.interval_ns);
    for now_ns in times.by_ref().take(50) {
        speak(&mut later, &mut peer, true, now_ns);
        speak(&mut earlier, &mut peer, false, now_ns);
    }
    assert_eq!((peer.epoch(1), later.state(0)), (Some(200), PeerState::Up), "it kept the place");
    assert_eq!(earlier.state(0), PeerState::Down);
    for now_ns in times.by_ref().take(50) {
        let is_known = peer.epoch(1).is_none_or(|epoch| epoch > 200);
        speak(&mut earlier, &mut peer, is_known, now_ns);
    }
    assert_eq!((peer.epoch(1), earlier.state(0)), (Some(201), PeerState::Up));
}

/// A machine that was booted anew counts its time from 0: what is echoed is of the present life.
#[test]
fn the_time_of_a_new_life_is_echoed_though_it_is_earlier() {
    let mut detector = Detector::new(CONFIG, 100, [1], MS);
    let mut echo_of = |epoch, sent_ns| {
        let heartbeat = Heartbeat { epoch, sent_ns, ..Heartbeat::default() };
        detector.handle_heartbeat(1, heartbeat, MS);
        detector.handle_timeout(detector.poll_timeout().unwrap());
        let (to, heartbeat) = detector.poll_transmit().unwrap();
        assert_eq!((to, heartbeat.peer_epoch), (1, epoch));
        heartbeat.echo_ns
    };
    assert_eq!(echo_of(5, 9000 * MS), 9000 * MS);
    assert_eq!(echo_of(5, 8000 * MS), 9000 * MS, "one was overtaken");
    assert_eq!(echo_of(6, 7), 7);
}

/// A peer that was given up comes back in a later epoch only, whatever it proves in the old one.
#[test]
fn an_epoch_that_is_over_stays_over() {
    let mut detector = Detector::new(CONFIG, 100, [1], MS);
    let up =
        Heartbeat { epoch: 5, peer_epoch: 100, sent_ns: 9, echo_ns: MS, ..Heartbeat::default() };
    detector.handle_heartbeat(1, up, 2 * MS);
    assert_eq!(detector.epoch(1), Some(5));
    detector.handle_timeout(2 * MS);
    assert_eq!(detector.poll_timeout(), Some(202 * MS));
    detector.handle_failure(1, 3 * MS);
    assert_eq!(detector.poll_timeout(), Some(3 * MS), "the peer is told at once");
    let again = Heartbeat { peer_epoch: 101, echo_ns: 4 * MS, ..up };
    detector.handle_heartbeat(1, again, 5 * MS);
    assert_eq!((detector.state(1), detector.stale()), (PeerState::Down, 1));
    detector.handle_heartbeat(1, Heartbeat { epoch: 6, ..again }, 5 * MS);
    assert_eq!(detector.epoch(1), Some(6));
}

#[test]
fn fault_a9_a_stopped_daemon_is_gone_and_both_agree_after_it_continues() {
    let mut world = World::new(2, 5);
    world.run_until(5000 * MS);
    world.node(1).paused_until_ns = 35_000 * MS;
    world.run_until(8000 * MS);
    assert_eq!(world.state(0, 1), PeerState::Down);
    world.run_until(36_000 * MS);
    assert!(world.all_up());
    assert_eq!((world.gone(0, 1).len(), world.gone(1, 0).len()), (1, 1), "once each");
}

#[test]
fn fault_d2_a_one_way_partition_is_seen_by_both_and_heals() {
    let mut world = World::new(3, 6);
    world.run_until(5000 * MS);
    world.cuts.push((0, 1, 20_000 * MS));
    world.run_until(8000 * MS);
    assert_eq!((world.state(0, 1), world.state(1, 0)), (PeerState::Down, PeerState::Down));
    assert_eq!((world.state(0, 2), world.state(1, 2)), (PeerState::Up, PeerState::Up));
    world.run_until(20_000 * MS);
    assert_eq!((world.gone(0, 1).len(), world.gone(1, 0).len()), (1, 1), "and stays so");
    world.run_until(21_000 * MS);
    assert!(world.all_up());
}

#[test]
fn fault_d8_heartbeats_of_an_epoch_that_is_over_are_ignored() {
    let mut world = World::new(2, 7);
    world.run_until(5000 * MS);
    let old = *world.packets.last().unwrap();
    world.kill(1);
    world.restart(1, 200);
    world.run_until(7000 * MS);
    let stale = world.node(0).detector.stale();
    let now_ns = world.now_ns;
    for epoch in [100, 101, 150] {
        let heartbeat = Heartbeat { epoch, is_leaving: true, ..old };
        world.node(0).detector.handle_heartbeat(1, heartbeat, now_ns);
    }
    world.node(0).detector.handle_heartbeat(77, old, now_ns);
    assert_eq!(world.node(0).detector.stale(), stale + 4);
    assert!(world.all_up());
}

#[test]
fn who_leaves_is_gone_at_once() {
    let mut world = World::new(2, 8);
    world.run_until(5000 * MS);
    let now_ns = world.now_ns;
    world.node(1).detector.leave(now_ns);
    world.drain(1);
    world.kill(1);
    world.run_until(5100 * MS);
    assert!(matches!(world.gone(0, 1)[..], [(_, Gone::Left)]));
}

/// What proves that the peer lived long ago does not prove that it lives.
#[test]
fn an_echo_that_took_too_long_brings_nobody_up() {
    let mut detector = Detector::new(CONFIG, 100, [1], MS);
    let up =
        Heartbeat { epoch: 5, peer_epoch: 100, sent_ns: 9, echo_ns: MS, ..Heartbeat::default() };
    // The daemon runs all the while.
    let looks = (0..=CONFIG.suspect_after_ns).step_by(100_000_000);
    looks.for_each(|later_ns| detector.handle_timeout(MS + later_ns));
    detector.handle_heartbeat(1, up, MS + CONFIG.suspect_after_ns);
    assert_eq!(detector.state(1), PeerState::Down);
    let later = Heartbeat { sent_ns: 10, echo_ns: 2 * MS, ..up };
    detector.handle_heartbeat(1, later, MS + CONFIG.suspect_after_ns);
    assert_eq!(detector.state(1), PeerState::Up);
}

/// A heartbeat that was overtaken by the good-bye brings nobody back.
#[test]
fn who_left_before_it_was_up_does_not_come_up() {
    let mut detector = Detector::new(CONFIG, 100, [1], MS);
    let up =
        Heartbeat { epoch: 5, peer_epoch: 100, sent_ns: 9, echo_ns: MS, ..Heartbeat::default() };
    detector.handle_heartbeat(1, Heartbeat { is_leaving: true, sent_ns: 10, ..up }, 2 * MS);
    detector.handle_heartbeat(1, up, 2 * MS);
    assert_eq!((detector.state(1), detector.stale()), (PeerState::Down, 1));
}

#[test]
fn an_echo_of_the_future_or_of_another_epoch_proves_nothing() {
    let mut detector = Detector::new(CONFIG, 100, [1], MS);
    let heartbeat = Heartbeat { epoch: 5, peer_epoch: 100, sent_ns: 9, ..Heartbeat::default() };
    for (peer_epoch, echo_ns) in [(100, 0), (100, MS - 1), (100, 3 * MS), (99, 2 * MS)] {
        let heartbeat = Heartbeat { peer_epoch, echo_ns, ..heartbeat };
        detector.handle_heartbeat(1, heartbeat, 2 * MS);
        assert_eq!(detector.state(1), PeerState::Down);
    }
    detector.handle_heartbeat(1, Heartbeat { echo_ns: 2 * MS, ..heartbeat }, 2 * MS);
    assert_eq!((detector.state(1), detector.epoch(1)), (PeerState::Up, Some(5)));
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut { from: u32, to: u32, ms: u64 },
    Pause { node: u32, ms: u64 },
    Kill { node: u32 },
    Restart { node: u32 },
    Loss { percent: u64 },
    Delay { ms: u64 },
    Wait { ms: u64 },
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let node = 0u32..4;
    prop_oneof![
        (node.clone(), 0u32..4, 1u64..20_000).prop_map(|(from, to, ms)| Fault::Cut {
            from,
            to,
            ms
        }),
        (node.clone(), 1u64..10_000).prop_map(|(node, ms)| Fault::Pause { node, ms }),
        node.clone().prop_map(|node| Fault::Kill { node }),
        node.prop_map(|node| Fault::Restart { node }),
        (0u64..60).prop_map(|percent| Fault::Loss { percent }),
        (1u64..2000).prop_map(|ms| Fault::Delay { ms }),
        (1u64..5000).prop_map(|ms| Fault::Wait { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..Default::default()
    })]

    /// Whatever happened: once it is over, all who live agree within a bound, and nobody is up in an
    /// epoch that was over (checked at every event).
    #[test]
    fn fault_d2_after_any_faults_all_converge(
        seed in any::<u64>(), faults in proptest::collection::vec(any_fault(), 0..30),
    ) {
        let mut world = World::new(4, seed);
        world.is_punctual = false;
        let mut epoch = 100;
        for fault in faults {
            let now_ns = world.now_ns;
            match fault {
                Fault::Cut { from, to, ms } => world.cuts.push((from, to, now_ns + ms * MS)),
                Fault::Pause { node, ms } => world.node(node).paused_until_ns = now_ns + ms * MS,
                Fault::Kill { node } => world.kill(node),
                Fault::Restart { node } => {
                    epoch += 1000;
                    world.restart(node, epoch);
                }
                Fault::Loss { percent } => world.loss_percent = percent,
                Fault::Delay { ms } => world.delay_ns_max = ms * MS,
                Fault::Wait { ms } => world.run_until(now_ns + ms * MS),
            }
        }
        let calm_ns = world.now_ns + 20_001 * MS;
        world.run_until(calm_ns);
        world.loss_percent = 0;
        world.delay_ns_max = 10 * MS;
        // Delayed packets, then giving up, then coming up again.
        world.run_until(calm_ns + 2000 * MS + CONFIG.dead_after_ns + 2000 * MS);
        for node in (0..4).filter(|node| !world.nodes[*node as usize].is_dead) {
            for peer in (0..4).filter(|peer| *peer != node) {
                let is_dead = world.nodes[peer as usize].is_dead;
                let expected = if is_dead { PeerState::Down } else { PeerState::Up };
                prop_assert_eq!(world.state(node, peer), expected, "{} sees {}", node, peer);
                let may_call = world.nodes[node as usize].ready.contains(&peer);
                prop_assert_eq!(may_call, !is_dead, "{} calls {}", node, peer);
            }
        }
    }

    /// Within what the bounds tolerate, nobody is given up or even suspected.
    #[test]
    fn no_living_peer_is_suspected_within_the_bounds(seed in any::<u64>(), delay_ms in 1u64..299) {
        let mut world = World::new(3, seed);
        // 2d + 2I < 1 s
        world.delay_ns_max = delay_ms * MS;
        world.run_until(30_000 * MS);
        for node in &world.nodes {
            prop_assert_eq!(node.log.len(), 4, "{:?}", node.log);
        }
    }
}

/// Heartbeats to thousands of peers neither leave nor arrive in bursts, but for the first ones.
#[test]
fn heartbeats_are_spread_over_the_interval() {
    const PEERS: u32 = 1000;
    let mut detector = Detector::new(CONFIG, 1, 1..=PEERS, 0);
    let mut sent = BTreeMap::<u32, Vec<u64>>::new();
    for now_ns in (0..=2 * CONFIG.interval_ns).step_by(usize::try_from(MS).unwrap()) {
        detector.handle_timeout(now_ns);
        let before: usize = sent.values().map(Vec::len).sum();
        while let Some((to, _)) = detector.poll_transmit() {
            sent.entry(to).or_default().push(now_ns);
        }
        let count = sent.values().map(Vec::len).sum::<usize>() - before;
        let most = if now_ns == 0 { PEERS as usize } else { 6 };
        assert!(count <= most, "{count} heartbeats at {now_ns} ns");
    }
    // What a peer is told besides, when it is up, does not move the others together.
    let now_ns = 2 * CONFIG.interval_ns;
    for peer in 1..=PEERS {
        let up = Heartbeat {
            epoch: 5,
            peer_epoch: 1,
            sent_ns: 9,
            echo_ns: now_ns,
            ..Heartbeat::default()
        };
        detector.handle_heartbeat(peer, up, now_ns);
    }
    let mut at_once = 0;
    for later_ns in (0..=2 * CONFIG.interval_ns).step_by(usize::try_from(MS).unwrap()) {
        detector.handle_timeout(now_ns + later_ns);
        let count = core::iter::from_fn(|| detector.poll_transmit()).count();
        if later_ns == 0 {
            at_once = count;
        } else {
            assert!(count <= 6, "{count} heartbeats {later_ns} ns after all are up");
        }
    }
    assert_eq!(at_once, PEERS as usize);
    assert_eq!(sent.len(), PEERS as usize);
    for (peer, times) in sent {
        assert!(times.len() >= 3, "{peer}: {times:?}");
        assert!(times.windows(2).all(|two| two[1] - two[0] <= CONFIG.interval_ns + MS));
    }
}

/// Daemons that share cores with much else: each runs for a moment, then not for a round. It reads then what came
/// meanwhile.
struct Crowd {
    daemons: Vec<Detector>,
    inboxes: Vec<Vec<(u32, Heartbeat)>>,
    /// By daemon.
    events: Vec<Vec<PeerEvent>>,
    dead: Option<u32>,
    now_ns: u64,
}

impl Crowd {
    const SIZE: u32 = 32;
    /// A heartbeat and its echo take two of these, longer than after which a peer that does not starve is given up.
    const ROUND_NS: u64 = 2000 * MS;

    fn new() -> Self {
        let peers = |own| (0..Self::SIZE).filter(move |peer| *peer != own);
        Self {
            daemons: (0..Self::SIZE).map(|own| Detector::new(CONFIG, 100, peers(own), 0)).collect(),
            inboxes: vec![Vec::new(); Self::SIZE as usize],
            events: vec![Vec::new(); Self::SIZE as usize],
            dead: None,
            now_ns: 0,
        }
    }

    fn run(&mut self, rounds: u64) {
        for own in (0..rounds).flat_map(|_| 0..Self::SIZE) {
            self.now_ns += Self::ROUND_NS / u64::from(Self::SIZE);
            if self.dead != Some(own) {
                self.turn(own);
            }
        }
    }

    fn turn(&mut self, own: u32) {
        let Self { daemons, inboxes, events, now_ns, .. } = self;
        let detector = &mut daemons[own as usize];
        for (from, heartbeat) in core::mem::take(&mut inboxes[own as usize]) {
            detector.handle_heartbeat(from, heartbeat, *now_ns);
        }
        detector.handle_timeout(*now_ns);
        while let Some((to, heartbeat)) = detector.poll_transmit() {
            inboxes[to as usize].push((own, heartbeat));
        }
        events[own as usize].extend(core::iter::from_fn(|| detector.poll_event()));
    }
}

#[test]
fn fault_a9_of_32_daemons_that_starve_none_is_taken_for_dead() {
    const { assert!(2 * Crowd::ROUND_NS > CONFIG.dead_after_ns) };
    let mut crowd = Crowd::new();
    crowd.run(100);
    for (daemon, events) in crowd.daemons.iter().zip(&crowd.events) {
        let is_calm =
            |event: &PeerEvent| matches!(event, PeerEvent::Up { .. } | PeerEvent::Ready { .. });
        let came_up = events.iter().filter(|event| matches!(event, PeerEvent::Up { .. })).count();
        assert_eq!((daemon.up(), came_up), (31, 31), "{events:?}");
        assert!(events.iter().all(is_calm), "{events:?}");
    }
}

#[test]
fn fault_a8_daemons_that_starve_give_a_dead_peer_up_after_few_of_their_turns() {
    let mut crowd = Crowd::new();
    crowd.run(6);
    crowd.dead = Some(31);
    crowd.run(CONFIG.dead_after_ns / CONFIG.interval_ns + 2);
    for events in &crowd.events[..31] {
        let gone = |event: &&PeerEvent| matches!(event, PeerEvent::Gone { .. });
        let gone: Vec<_> = events.iter().filter(gone).collect();
        let is_right = |event: &PeerEvent| {
            matches!(event, PeerEvent::Gone { peer: 31, why: Gone::Silent, .. })
        };
        assert!(gone.len() == 1 && is_right(gone[0]), "{gone:?}");
    }
}

/// A daemon that was stopped has heard nothing because it did not listen.
#[test]
fn fault_a9_a_daemon_that_was_stopped_blames_no_peer() {
    let mut world = World::new(3, 8);
    world.run_until(5000 * MS);
    world.node(1).paused_until_ns = 7500 * MS;
    world.node(2).paused_until_ns = 7500 * MS;
    world.run_until(8000 * MS);
    assert!(world.gone(1, 2).is_empty() && world.gone(2, 1).is_empty());
    assert!(!world.nodes[1].log.contains(&(7500 * MS, PeerEvent::Suspected { peer: 2 })));
}
