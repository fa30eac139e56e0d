//! iceoryx2, request and response, polled: slices of bytes.

use copyrpc_bench::calls::NumberedMessage;
use iceoryx2::{
    config::Config, pending_response::PendingResponse, port::client::Client, prelude::*,
    service::port_factory::request_response::PortFactory,
};

use super::{Ground, Listening, NUMBER_BYTES, Peer, is_right, timed};
use crate::{Fallible, leftovers::prefix};

pub const REQUEST_RESPONSE: Peer = Peer {
    name: "iceoryx2 request-response",
    serve,
    call: |ground, _| call(ground),
    lacks: |_| None,
};

/// Calls per reading of the clock.
const BATCH: usize = 64;

type Service = PortFactory<ipc::Service, [u8], (), [u8], ()>;
type Caller = Client<ipc::Service, [u8], (), [u8], ()>;
type Pending = PendingResponse<ipc::Service, [u8], (), [u8], ()>;

fn open(ground: &Ground<'_>) -> Fallible<(Node<ipc::Service>, Service)> {
    set_log_level(LogLevel::Error);
    let (mut config, folder) = (Config::default(), &ground.sample.folder);
    config.global.prefix = FileName::new(prefix(folder).as_bytes())?;
    config.global.set_root_path(&Path::new(folder.as_os_str().as_encoded_bytes())?);
    let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
    let name = ground.sample.number.to_string();
    let window = ground.work.in_flight + 1;
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .request_response::<[u8], [u8]>()
        .max_active_requests_per_client(window)
        .max_loaned_requests(window)
        .open_or_create()?;
    Ok((node, service))
}

fn serve(ground: &Ground<'_>, ready: Listening<'_>) -> Fallible<()> {
    let (_node, service) = open(ground)?;
    let answer_bytes = ground.work.answer_bytes();
    let server = service.server_builder().initial_max_slice_len(answer_bytes).create()?;
    let (message, mut compared) = (NumberedMessage::new(ground.work.len_bytes), 0);
    ready(0)?;
    while !ground.is_over() {
        while let Some(request) = server.receive()? {
            if ground.work.is_one_way && !is_right(&message, request.payload(), compared) {
                return Err(format!("request {compared} is wrong").into());
            }
            compared += 1;
            let answer = request.loan_slice_uninit(answer_bytes)?;
            answer.write_from_slice(&request.payload()[..answer_bytes]).send()?;
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn send(client: &Caller, request: &[u8]) -> Fallible<Pending> {
    Ok(client.loan_slice_uninit(request.len())?.write_from_slice(request).send()?)
}

fn check(pending: &Pending, message: &NumberedMessage, number: u64) -> Fallible<()> {
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
fn call(ground: &Ground<'_>) -> Fallible<f64> {
    let (_node, service) = open(ground)?;
    let work = ground.work;
    let client = service.client_builder().initial_max_slice_len(work.len_bytes).create()?;
    let (mut message, expected) = (
        NumberedMessage::new(work.len_bytes),
        NumberedMessage::new(work.answer_bytes().max(NUMBER_BYTES)),
    );
    let mut pending = std::collections::VecDeque::new();
    let mut number = 0;
    let batch = work.batch(BATCH);
    timed(work, batch, || {
        for _ in 0..batch {
            while pending.len() < work.in_flight {
                number += 1;
                pending.push_back((number, send(&client, message.stamp(number))?));
            }
            if let Some((number, oldest)) = pending.pop_front() {
                check(&oldest, &expected, number)?;
            }
        }
        Ok(())
    })
}
