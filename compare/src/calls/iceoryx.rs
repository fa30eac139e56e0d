//! iceoryx2, request and response, polled; requests and answers of the sizes that are compiled in.

use copyrpc_bench::calls::Message;
use iceoryx2::{
    config::Config, pending_response::PendingResponse, port::client::Client, prelude::*,
    service::port_factory::request_response::PortFactory,
};

use super::{Ground, Peer, Ready, Work, timed};
use crate::Outcome;

pub const REQUEST_RESPONSE: Peer = Peer {
    name: "iceoryx2 request-response",
    serve: |ground, ready| match ground.work.len_bytes {
        8 => serve::<8>(ground, ready),
        56 => serve::<56>(ground, ready),
        _ => serve::<4096>(ground, ready),
    },
    call: |ground, _| match ground.work.len_bytes {
        8 => call::<8>(ground),
        56 => call::<56>(ground),
        _ => call::<4096>(ground),
    },
    does: |Work { len_bytes, .. }| [8, 56, 4096].contains(&len_bytes),
};

/// Calls per reading of the clock.
const BATCH: usize = 64;
/// Calls in flight, at most.
const WINDOW_MAX: usize = 64;

type Bytes<const N: usize> = [u8; N];
type Service<const N: usize> = PortFactory<ipc::Service, Bytes<N>, (), Bytes<N>, ()>;
type Caller<const N: usize> = Client<ipc::Service, Bytes<N>, (), Bytes<N>, ()>;
type Pending<const N: usize> = PendingResponse<ipc::Service, Bytes<N>, (), Bytes<N>, ()>;

/// What begins the names of its files, those in shared memory included.
fn prefix(directory: &std::path::Path) -> String {
    format!("{}_", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes what it leaves in shared memory after all its nodes are gone.
pub fn clean(directory: &std::path::Path) {
    let prefix = prefix(directory);
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // Somebody else may have been faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn open<const N: usize>(ground: &Ground<'_>) -> Outcome<(Node<ipc::Service>, Service<N>)> {
    set_log_level(LogLevel::Error);
    let mut config = Config::default();
    config.global.prefix = FileName::new(prefix(ground.directory).as_bytes())?;
    config.global.set_root_path(&Path::new(ground.directory.as_os_str().as_encoded_bytes())?);
    let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
    let name = ground.number.to_string();
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .request_response::<Bytes<N>, Bytes<N>>()
        .max_active_requests_per_client(WINDOW_MAX)
        .max_loaned_requests(WINDOW_MAX)
        .open_or_create()?;
    Ok((node, service))
}

fn serve<const N: usize>(ground: &Ground<'_>, ready: Ready<'_>) -> Outcome<()> {
    let (_node, service) = open::<N>(ground)?;
    let server = service.server_builder().create()?;
    ready(0)?;
    while !ground.is_over() {
        while let Some(request) = server.receive()? {
            request.loan_uninit()?.write_payload(*request).send()?;
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn send<const N: usize>(client: &Caller<N>, request: &[u8]) -> Outcome<Pending<N>> {
    let mut payload = [0; N];
    payload.copy_from_slice(request);
    Ok(client.loan_uninit()?.write_payload(payload).send()?)
}

fn check<const N: usize>(pending: &Pending<N>, message: &Message, number: u64) -> Outcome<()> {
    loop {
        if let Some(answer) = pending.receive()? {
            return match message.is(number, answer.payload()) {
                true => Ok(()),
                false => Err(format!("answer {number} is not its request").into()),
            };
        }
        std::hint::spin_loop();
    }
}

/// A window slides: an answer is taken, the next request is sent.
fn call<const N: usize>(ground: &Ground<'_>) -> Outcome<f64> {
    let (_node, service) = open::<N>(ground)?;
    let client = service.client_builder().create()?;
    let mut message = Message::new(N);
    let mut pending = std::collections::VecDeque::new();
    let mut number = 0;
    timed(BATCH, || {
        for _ in 0..BATCH {
            while pending.len() < ground.work.in_flight {
                number += 1;
                pending.push_back((number, send(&client, message.stamp(number))?));
            }
            if let Some((number, oldest)) = pending.pop_front() {
                check(&oldest, &message, number)?;
            }
        }
        Ok(())
    })
}
