//! tarpc over TCP, with bincode: a service of one method, from bytes to bytes.

use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use futures::StreamExt as _;
use serde_bytes::ByteBuf;
use tarpc::{
    client, context,
    serde_transport::{self, Transport},
    server::{BaseChannel, Channel as _},
    tokio_serde::formats::Bincode,
    tokio_util::codec::LengthDelimitedCodec,
};
use tokio::net::TcpStream;

use super::tasks::{Rival, RivalError, Store};

#[tarpc::service]
pub trait Keys {
    /// Carries out a request of crate `kv`.
    async fn carry_out(request: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
struct Shard(Store);

impl Keys for Shard {
    async fn carry_out(self, _: context::Context, request: ByteBuf) -> ByteBuf {
        ByteBuf::from(self.0.serve(&request))
    }
}

/// tarpc.
pub enum Tarpc {}

/// Frames of a connection that does not wait for acknowledgements.
macro_rules! transport {
    ($stream:expr) => {{
        let stream: TcpStream = $stream;
        stream.set_nodelay(true)?;
        let frames = LengthDelimitedCodec::builder().new_framed(stream);
        serde_transport::new(frames, Bincode::default())
    }};
}

impl Rival for Tarpc {
    type Connection = KeysClient;

    async fn serve(listener: TcpListener, store: Store) -> Result<(), RivalError> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let transport: Transport<_, _, _, _> = transport!(listener.accept().await?.0);
            let calls = BaseChannel::with_defaults(transport).execute(Shard(store.clone()).serve());
            tokio::spawn(calls.for_each(|call| async move {
                tokio::spawn(call);
            }));
        }
    }

    async fn connect(to: SocketAddr) -> Result<KeysClient, RivalError> {
        let transport = transport!(TcpStream::connect(to).await?);
        Ok(KeysClient::new(client::Config::default(), transport).spawn())
    }

    async fn call(caller: KeysClient, request: Bytes) -> Result<Bytes, RivalError> {
        let request = ByteBuf::from(request);
        Ok(caller.carry_out(context::current(), request).await?.into_vec().into())
    }
}
