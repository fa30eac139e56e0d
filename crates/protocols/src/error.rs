//! One error type per operation.

use proto::Status;

use crate::{Protocol, erpc, scalerpc};

/// A request beyond the abilities of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Its packets have no room for the method's number.
    #[error("{protocol} has no method {method}; its highest is {max}")]
    Method {
        /// The protocol.
        protocol: Protocol,
        /// As asked for.
        method: u16,
        /// Possible.
        max: u16,
    },
    /// Its answers have no status.
    #[error("{protocol} cannot answer with `{status}`; put it into the body")]
    Status {
        /// The protocol.
        protocol: Protocol,
        /// Of the answer.
        status: Status,
    },
    /// Its messages are shorter.
    #[error("{protocol} carries bodies of up to {max_bytes} B, not of {len_bytes} B")]
    Length {
        /// The protocol.
        protocol: Protocol,
        /// Of the body.
        len_bytes: usize,
        /// Possible, as configured.
        max_bytes: usize,
    },
}

/// Why a caller or a server was not made, or the two did not become peers.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Copyrpc.
    #[error(transparent)]
    Copyrpc(#[from] rpc::OpenError),
    /// Copyrpc.
    #[error(transparent)]
    CopyrpcConnect(#[from] rpc::ConnectError),
    /// eRPC.
    #[error(transparent)]
    Erpc(#[from] erpc::OpenError),
    /// eRPC.
    #[error(transparent)]
    ErpcConnect(#[from] erpc::ConnectError),
    /// ScaleRPC.
    #[error(transparent)]
    Scalerpc(#[from] scalerpc::OpenError),
    /// ScaleRPC.
    #[error(transparent)]
    ScalerpcConnect(#[from] scalerpc::ConnectError),
    /// The message of the other side is of another protocol, or for another lane.
    #[error("the other side's greeting is broken: {0}")]
    Greeting(String),
}

/// Why a call was not made. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Poll, and try again.
    #[error("no room for another call; poll, then call again")]
    Busy,
    /// The protocol cannot do that.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// There is no such lane, or it has ended.
    #[error("the connection is gone: {0}")]
    Gone(String),
}

/// Why an answer was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The protocol cannot do that. The request still waits, if its token was given back.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// No caller waits.
    #[error("the answer has no receiver: {0}")]
    Gone(String),
    /// The token is of another protocol's server.
    #[error("the request is of another server")]
    Foreign,
}
