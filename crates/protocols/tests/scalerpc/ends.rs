//! How calls and connections end.

use std::time::Duration;

use copyrpc_protocols::scalerpc::{Call, CloseReason, ServerConfig, Status};

use crate::rig::{ECHO, LATER, Scene, body};

#[test]
fn calls_end_at_their_deadlines_and_when_they_are_cancelled() {
    let mut scene = Scene::new(ServerConfig::default(), 1);
    let caller = &mut scene.callers[0];
    let call = Call { method: LATER, cookie: 1, timeout: Duration::from_millis(20) };
    caller.client.call(&call, &[1; 20]).unwrap();
    caller.client.call(&Call { cookie: 2, ..call }, &[2; 20]).unwrap();
    assert!(caller.client.cancel(2));
    scene.until(|scene| scene.callers[0].seen.ended.len() == 2);
    let ended = &scene.callers[0].seen.ended;
    assert_eq!((ended[&1].0, ended[&2].0), (Status::DeadlineExceeded, Status::Cancelled));
    for (token, body) in std::mem::take(&mut scene.echo.kept) {
        scene.server.reply(token, Status::Ok, &body).unwrap();
    }
    scene.callers[0].seen.ended.clear();
    scene.callers[0].seen.made = 0;
    scene.echo(40, &[32]);
}

/// A client's port is gone: its calls end, its zone serves others, and they notice nothing.
#[test]
fn the_others_go_on_when_a_client_is_gone() {
    let config = ServerConfig { group: 2, slots: 2, ..ServerConfig::default() };
    let mut scene = Scene::new(config, 5);
    let port = softnic::open(&scene.nic).unwrap();
    scene.join(&port);
    drop(port);
    for caller in &mut scene.callers {
        caller.call(LATER, &body(0, 300)).unwrap();
    }
    scene.until(|scene| scene.echo.kept.len() == 6);
    let gone = scene.callers.pop().unwrap().id;
    for (token, body) in std::mem::take(&mut scene.echo.kept) {
        let is_gone = token.client() == gone;
        // The server may not have noticed yet: then its NIC will.
        let replied = scene.server.reply(token, Status::Ok, &body);
        assert!(is_gone || replied.is_ok());
    }
    scene.until(|scene| !scene.echo.closed.is_empty());
    assert_eq!(scene.echo.closed[0].0, gone);
    assert_eq!(scene.server.clients(), 5);
    scene.echo(50, &[300]);
}

#[test]
fn every_call_ends_when_the_server_is_gone() {
    let mut scene = Scene::new(ServerConfig::default(), 3);
    for caller in &mut scene.callers {
        for number in 0..4 {
            caller.call(LATER, &body(number, 32)).unwrap();
        }
    }
    scene.until(|scene| scene.echo.kept.len() == 12);
    let Scene { server, mut callers, .. } = scene;
    drop(server);
    let start = std::time::Instant::now();
    while callers.iter().any(|caller| caller.seen.closed.is_none()) {
        for caller in &mut callers {
            caller.poll();
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody notices");
    }
    for caller in &mut callers {
        assert_eq!(caller.seen.ended.len(), 4);
        assert!(caller.seen.ended.values().all(|(status, _)| *status == Status::Unavailable));
        assert!(matches!(
            caller.seen.closed,
            Some(CloseReason::Failed(_) | CloseReason::PeerGone(_))
        ));
        assert!(!caller.call(ECHO, b"").unwrap_err().is_temporary());
    }
}

#[test]
fn places_for_clients_are_bounded_and_used_again() {
    let mut scene = Scene::new(ServerConfig { clients_max: 2, ..ServerConfig::default() }, 2);
    let port = softnic::open(&scene.nic).unwrap();
    let config = copyrpc_protocols::scalerpc::ClientConfig::default();
    let now_ns = os::clock::now_ns();
    let more =
        copyrpc_protocols::scalerpc::Client::open(port.clone(), config, 8, 4096, now_ns).unwrap();
    let refused = scene.server.accept(&more.invitation()).unwrap_err();
    assert!(refused.to_string().contains("all 2 places"), "{refused}");
    let first = scene.callers.remove(0).id;
    scene.server.close(first, CloseReason::Closed, &mut scene.echo);
    scene.join(&port);
    assert!(scene.callers[1].id != first && scene.callers[1].id.index() == first.index());
    scene.echo(20, &[32]);
}
