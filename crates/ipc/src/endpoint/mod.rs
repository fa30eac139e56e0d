//! Both endpoints of a session: clients and the server. Compiled without loom, which checks the
//! words that both share and nothing of the operating system.

pub(crate) mod client;
pub(crate) mod fork;
#[doc(hidden)]
pub mod half;
#[doc(hidden)]
pub mod handshake;
pub(crate) mod lifeline;
pub(crate) mod memory;
pub(crate) mod poller;
pub(crate) mod server;
pub(crate) mod status;

#[doc(hidden)]
pub use server::{call_table, large};

pub use client::{
    blocking::BlockingClient,
    calls::CallId,
    connection::ConnectError,
    pipelined::{PipelinedClient, SubmitError},
    session::{ClientConfig, Newcomer, NewcomerState, Terms},
};
pub use half::EAGER_BYTES_MAX;
pub use handshake::{HandshakeError, RefuseReason};
pub use lifeline::Lifeline;
pub use os::idle::{IdleStep, Wait};
pub use server::{
    BindError, ClientCensus, ClientId, ClientProcess, ConfigError, Introducer, Introduction,
    LentRequest, OpenRequest, Rejection, Rejections, Replies, ReplyError, ReplyToken, Request,
    RequestId, Server, ServerConfig, Stats, TakenBytes, TakenRequest,
};
pub use status::{CallError, CallOutcome, EvictReason, Failed, LentOutcome};

/// Client and server without an operating system: for simulators, which give them memory and time.
///
/// ```
/// use copyrpc_ipc::{
///     ServerConfig,
///     sans_os::{ClientCore, OpenRequest, ServerCore},
/// };
///
/// let mut server = ServerCore::on_heap(ServerConfig::default())?;
/// let (_, welcome, memory) = server.admit_on_heap()?.expect("a slot is free");
/// let mut client = ClientCore::new(&welcome, memory, 0);
/// client.submit(b"ping", 1_000_000, "context").unwrap();
/// assert!(!client.flush(), "the server does not sleep");
/// while let Some(OpenRequest { id, payload, replies }) = server.take() {
///     replies.reply(id, payload)?;
/// }
/// let polled = client.poll(&mut |context, response| {
///     assert_eq!((context, response), ("context", Ok(&b"ping"[..])));
/// });
/// assert_eq!(polled.ended, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod sans_os {
    pub use super::{
        client::core::{ClientCore, Polled},
        handshake::Welcome,
        memory::{ClientMemory, ServerMemory},
        server::{
            OpenRequest, Replies, RequestId,
            core::{HeapError, Notice, ServerCore},
            introduction::{IntroducerMessage, read as read_introducer},
        },
    };
}
