//! Calls of every size, of one client and of many.

use std::time::Duration;

use copyrpc_protocols::scalerpc::{CallError, Detection, Exchange, ServerConfig, Status};

use crate::rig::{LATER, Scene, TOO_LONG, body};

const DETECTIONS: [Detection; 2] = [Detection::Immediate, Detection::Polling];

#[test]
fn messages_of_every_size_that_a_block_holds_come_back() {
    for detection in DETECTIONS {
        let mut scene = Scene::new(ServerConfig { detection, ..ServerConfig::default() }, 1);
        let max = scene.callers[0].client.body_bytes_max();
        assert_eq!(max, 4080);
        scene.echo(70, &[8, 32, 204, 205, 1000, max - 1, max]);
        let refused = scene.callers[0].call(1, &vec![0; max + 1]);
        let expected = CallError::TooLong { len_bytes: max + 1, max_bytes: max };
        assert_eq!(refused, Err(expected));
        let looks = scene.server.looks();
        assert_eq!(looks > 0, detection == Detection::Polling, "{looks} looks");
    }
}

/// Three groups and more share the zones of one and a half.
#[test]
fn many_clients_take_turns() {
    for detection in DETECTIONS {
        let config = ServerConfig {
            group: 8,
            slots: 4,
            block_bytes: 1024,
            slice: Duration::from_millis(5),
            clients_max: 64,
            detection,
            ..ServerConfig::default()
        };
        let mut scene = Scene::new(config, 40);
        assert!(scene.server.groups().len() >= 4);
        scene.echo(60, &[8, 500, 32]);
        let counters = scene.server.counters();
        assert!(counters.switches > 5, "{counters:?}");
        assert_eq!(counters.executed, 40 * 60);
        assert!(counters.warmed > 0 && counters.warmed < counters.executed, "{counters:?}");
    }
}

#[test]
fn long_messages_fit_long_blocks() {
    let config =
        ServerConfig { group: 2, slots: 2, block_bytes: 1 << 20, ..ServerConfig::default() };
    let mut scene = Scene::new(config, 2);
    let longest = (1 << 20) - 16;
    scene.echo(6, &[longest, 8]);
    // Private memory is cleared once, and not for each message.
    assert_eq!(scene.server.cleared_bytes(), longest as u64);
    for caller in &scene.callers {
        assert_eq!(caller.client.stats().cleared_bytes, longest as u64);
    }
}

/// Handlers that answer after their client's turn: no turn waits for them.
#[test]
fn answers_may_come_after_the_turn() {
    let config = ServerConfig { group: 1, slots: 4, ..ServerConfig::default() };
    let mut scene = Scene::new(config, 3);
    for number in 0..4 {
        scene.callers[0].call(LATER, &body(number, 300)).unwrap();
    }
    scene.until(|scene| scene.echo.kept.len() == 4);
    for caller in &mut scene.callers[1..] {
        caller.call(LATER, &body(0, 300)).unwrap();
    }
    scene.until(|scene| scene.echo.kept.len() == 6);
    for (token, body) in std::mem::take(&mut scene.echo.kept).into_iter().rev() {
        scene.server.reply(token, Status::Ok, &body).unwrap();
    }
    scene.until(|scene| scene.callers[0].seen.ended.len() == 4);
    let ended = &scene.callers[0].seen.ended;
    assert!(ended.iter().all(|(cookie, (_, answer))| *answer == body(*cookie, 300)));
    scene.echo(50, &[300]);
}

/// Rules S6.1, S6.2: two servers end their turns together, and serve as before.
#[test]
fn servers_in_step_serve_as_before() {
    let slice = Duration::from_millis(1);
    let slice_ns = 1_000_000;
    let config = ServerConfig { group: 1, slice, ..ServerConfig::default() };
    let mut leader = Scene::new(config.clone(), 4);
    let mut follower = Scene::new(config, 4);
    leader.server.keep_step(os::clock::now_ns());
    // Both have one clock here.
    let now_ns = os::clock::now_ns();
    let switch_ns = leader.server.next_switch_ns();
    let exchange =
        Exchange { asked_ns: now_ns, answered_ns: now_ns, arrived_ns: now_ns, switch_ns };
    assert!(follower.server.follow(&exchange));
    let phase = |scene: &Scene| scene.server.next_switch_ns() % slice_ns;
    assert_eq!(phase(&follower), phase(&leader));
    leader.echo(50, &[8, 300]);
    follower.echo(50, &[8, 300]);
    assert_eq!(phase(&follower), phase(&leader), "turns went by");
    assert!(follower.server.counters().switches > 0);
}

#[test]
fn a_handler_may_answer_with_any_status() {
    let mut scene = Scene::new(ServerConfig::default(), 1);
    scene.callers[0].call(77, b"what").unwrap();
    scene.callers[0].call(TOO_LONG, b"much").unwrap();
    scene.until(|scene| scene.callers[0].seen.ended.len() == 2);
    let ended = &scene.callers[0].seen.ended;
    assert_eq!(ended[&0], (Status::Unimplemented, b"no such method".to_vec()));
    assert_eq!(ended[&1], (Status::OutOfRange, vec![]));
}

/// A NIC that promises no order of bytes is refused before a torn request can be taken for a whole one.
#[test]
fn looking_at_the_ends_of_blocks_needs_placement_in_order() {
    let fabric = format!("unordered-{}", std::process::id());
    let config = softnic::Config { fabric, strict: Some(1), ..softnic::Config::default() };
    let open = |detection| {
        let nic = softnic::open(&config).unwrap();
        copyrpc_protocols::scalerpc::Server::open(
            nic,
            ServerConfig { detection, ..ServerConfig::default() },
            0,
        )
    };
    let refused = open(Detection::Polling).map(drop).unwrap_err();
    assert!(
        matches!(refused, copyrpc_protocols::scalerpc::OpenError::Unordered { .. }),
        "{refused}"
    );
    assert!(open(Detection::Immediate).is_ok());
}
