//! gRPC by tonic over HTTP/2: a service of one method, whose request and answer have one field of bytes. It is
//! written by hand as tonic's generator would, which needs `protoc`.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    task::{Context, Poll},
};

use bytes::Bytes;
use tonic::{
    Request, Response, Status,
    body::Body as HttpBody,
    client::Grpc as GrpcClient,
    codegen::{Body, BoxFuture, Service, StdError, http},
    server::{Grpc as GrpcServer, NamedService, UnaryService},
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use super::tasks::{Rival, RivalError, Store};

/// `message Bytes { bytes bytes = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
}

const PATH: &str = "/kv.Keys/CarryOut";

/// `service Keys { rpc CarryOut(Message) returns (Message); }`
#[derive(Clone)]
struct Keys(Store);

impl NamedService for Keys {
    const NAME: &'static str = "kv.Keys";
}

impl UnaryService<Message> for Keys {
    type Response = Message;
    type Future = std::future::Ready<Result<Response<Message>, Status>>;

    fn call(&mut self, request: Request<Message>) -> Self::Future {
        let bytes = self.0.serve(&request.get_ref().bytes).into();
        std::future::ready(Ok(Response::new(Message { bytes })))
    }
}

impl<B> Service<http::Request<B>> for Keys
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<HttpBody>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let keys = self.clone();
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            Ok(GrpcServer::new(ProstCodec::default()).unary(keys, request).await)
        })
    }
}

/// tonic.
pub enum Grpc {}

impl Rival for Grpc {
    type Connection = Channel;

    async fn serve(listener: TcpListener, store: Store) -> Result<(), RivalError> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(Server::builder().add_service(Keys(store)).serve_with_incoming(incoming).await?)
    }

    async fn connect(to: SocketAddr) -> Result<Channel, RivalError> {
        let endpoint = Endpoint::from_shared(format!("http://{to}"))?;
        Ok(endpoint.tcp_nodelay(true).connect().await?)
    }

    async fn call(caller: Channel, bytes: Bytes) -> Result<Bytes, RivalError> {
        let mut client = GrpcClient::new(caller);
        client.ready().await?;
        let (request, path) =
            (Request::new(Message { bytes }), http::uri::PathAndQuery::from_static(PATH));
        let response = client.unary(request, path, ProstCodec::default()).await?;
        let Message { bytes } = response.into_inner();
        Ok(bytes)
    }
}
