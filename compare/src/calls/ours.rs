//! `copyrpc-ipc`, as `copyrpc bench ipc` measures it.

use copyrpc_bench::{
    calls::{CallSample, Calls, Shape},
    duo::DuoError,
};

use super::{Ground, Peer, Ready, Work};
use crate::Outcome;

pub const IPC: Peer = Peer { name: super::REFERENCE, serve, call, does: |_| true };

fn sample(ground: &Ground<'_>) -> CallSample {
    let Work { len_bytes, in_flight } = ground.work;
    let shape = match u16::try_from(in_flight) {
        Ok(1) => Shape::RoundTrip,
        depth => Shape::Window(depth.unwrap_or(u16::MAX)),
    };
    CallSample {
        calls: Calls { len_bytes, clients: 1, shape },
        // 30 ms, more or less.
        count: if len_bytes > 1000 { 40_000 } else { 200_000 * in_flight.min(4) as u64 },
        number: ground.number,
        socket: ground.directory.join("ipc"),
    }
}

fn serve(ground: &Ground<'_>, ready: Ready<'_>) -> Outcome<()> {
    Ok(sample(ground).respond(ground.board, &mut || ready(0).map_err(|_| DuoError::PeerGone))?)
}

fn call(ground: &Ground<'_>, _: u16) -> Outcome<f64> {
    let value = sample(ground).initiate(ground.board)?;
    Ok(if ground.work.in_flight == 1 { value } else { 1e3 / value })
}
