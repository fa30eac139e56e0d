//! `copyrpc-ipc`, as `copyrpc-lab bench ipc` measures it.

use copyrpc_bench::calls::{Calls, DEPTH, Shape};

use super::{CallWork, Ground, Listening, Peer};
use crate::Fallible;

pub const IPC: Peer = Peer { name: super::REFERENCE, serve, call, lacks: |_| None };

fn calls(ground: &Ground<'_>) -> Calls {
    let shape = match ground.work {
        CallWork { is_one_way: true, .. } => Shape::OneWay,
        CallWork { in_flight: 1, .. } => Shape::RoundTrip,
        CallWork { in_flight, .. } => Shape::Window(in_flight as u16),
    };
    Calls { len_bytes: ground.work.len_bytes, clients: 1, ring: DEPTH, shape }
}

fn serve(ground: &Ground<'_>, ready: Listening<'_>) -> Fallible<()> {
    Ok(calls(ground).respond(ground.shared, &ground.sample, &mut || {
        ready(0).map_err(|error| copyrpc_bench::Error::OutOfTurn(error.to_string()))
    })?)
}

fn call(ground: &Ground<'_>, _: u16) -> Fallible<f64> {
    let calls = calls(ground);
    let value = calls.initiate(ground.shared, &ground.sample)?;
    Ok(if matches!(calls.shape, Shape::Window(_)) { 1e3 / value } else { value })
}
