//! Typed messages.

use serde::{Serialize, de::DeserializeOwned};

use super::{ChannelError, ChildChannel};

/// Why no typed message was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum TypedMessageError {
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The message is of another type: the two processes are not of the same version.
    #[error("the other process sent a message of another type: {0}")]
    Type(#[from] serde_json::Error),
}

/// A value from JSON text, by the parser of [`ChildChannel::recv_json`]: each kind of input is a parser of its own for each
/// type.
///
/// # Errors
///
/// The text is no JSON, or no value of this type.
pub fn from_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}

impl ChildChannel {
    /// Sends one message as JSON.
    ///
    /// # Errors
    ///
    /// [`TypedMessageError`].
    pub fn send_json(
        &mut self,
        message: &impl Serialize,
        deadline_ns: u64,
    ) -> Result<(), TypedMessageError> {
        Ok(self.send(&serde_json::to_vec(message)?, deadline_ns)?)
    }

    /// Waits for the next message, which is JSON.
    ///
    /// # Errors
    ///
    /// [`TypedMessageError`].
    pub fn recv_json<T: DeserializeOwned>(
        &mut self,
        deadline_ns: u64,
    ) -> Result<T, TypedMessageError> {
        Ok(serde_json::from_slice(&self.recv(deadline_ns)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_message_of_another_type_is_refused_and_the_next_one_received() {
        let (mut ours, theirs) = ChildChannel::pair().unwrap();
        let mut theirs = ChildChannel::new(theirs);
        theirs.send_json(&("core", 1_u8), clock::NOW).unwrap();
        theirs.send_json(&("core", 2_u8), clock::NOW).unwrap();
        let refused = ours.recv_json::<u8>(clock::NOW);
        assert!(matches!(refused, Err(TypedMessageError::Type(_))), "{refused:?}");
        assert_eq!(ours.recv_json::<(String, u8)>(clock::NOW).unwrap(), ("core".to_owned(), 2));
        let silent = ours.recv_json::<u8>(clock::NOW);
        assert!(matches!(silent, Err(TypedMessageError::Channel(ChannelError::TimedOut))));
    }
}
