//! Why a work request failed.

use core::fmt;

/// Defines the syndromes with their codes and their meaning for people.
macro_rules! syndromes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Syndrome of an error CQE (`MLX5_CQE_SYNDROME_*`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Syndrome {
            $($(#[$doc])* $name,)*
            /// A code that the manual does not list.
            Other(u8),
        }

        impl Syndrome {
            /// Every syndrome that has a name.
            pub const NAMED: &[Self] = &[$(Self::$name,)*];

            /// Names a code. Every code has exactly one name.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::Other(code),
                }
            }

            /// The code in byte 55 of the CQE.
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }
        }

        impl fmt::Display for Syndrome {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Other(code) => write!(f, "unknown syndrome {code:#04x}"),
                }
            }
        }
    };
}

syndromes! {
    /// A message longer than the receive WQE, or than the path's limit.
    LocalLength = 0x01, "local length error";
    /// A WQE that makes no sense on its queue pair.
    LocalQpOperation = 0x02, "local queue pair operation error";
    /// A local key, range or permission that does not fit the request.
    LocalProtection = 0x04, "local protection error";
    /// The queue pair was already in the error state: the request was not tried.
    Flushed = 0x05, "flushed: the queue pair is in the error state";
    /// Binding a memory window failed.
    MemoryWindowBind = 0x06, "memory window bind error";
    /// The peer's answer was out of protocol.
    BadResponse = 0x10, "bad response from the peer";
    /// An incoming operation touched local memory that it must not.
    LocalAccess = 0x11, "local access error";
    /// The peer found the request malformed or not enabled.
    RemoteInvalidRequest = 0x12, "the peer rejected the request as invalid";
    /// The peer's key, range or permission does not fit the request.
    RemoteAccess = 0x13, "the peer refused access to its memory";
    /// The peer failed to carry the request out.
    RemoteOperation = 0x14, "the peer failed to carry the request out";
    /// The peer did not acknowledge within the retry limit: it is gone, or the path is.
    RetryExceeded = 0x15, "no acknowledgement from the peer within the retry limit";
    /// The peer posted no receive WQE within the retry limit.
    RnrRetryExceeded = 0x16, "the peer had no receive posted within the retry limit";
    /// The peer aborted the operation.
    RemoteAborted = 0x22, "the peer aborted the operation";
}
