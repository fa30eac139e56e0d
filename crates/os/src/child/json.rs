//! Typed messages.

use serde::{Serialize, de::DeserializeOwned};

use super::{Channel, ChannelError};

/// Why no typed message was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The message is of another type: the two processes are not of the same version.
    #[error("the other process sent a message of another type: {0}")]
    Type(#[from] serde_json::Error),
}

impl Channel {
    /// Sends one message as JSON.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub fn send_json(
        &mut self,
        message: &impl Serialize,
        deadline_ns: u64,
    ) -> Result<(), MessageError> {
        Ok(self.send(&serde_json::to_vec(message)?, deadline_ns)?)
    }

    /// Waits for the next message, which is JSON.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub fn recv_json<T: DeserializeOwned>(&mut self, deadline_ns: u64) -> Result<T, MessageError> {
        Ok(serde_json::from_slice(&self.recv(deadline_ns)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_message_of_another_type_is_refused_and_the_next_one_received() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        let mut theirs = Channel::new(theirs);
        theirs.send_json(&("core", 1_u8), clock::NOW).unwrap();
        theirs.send_json(&("core", 2_u8), clock::NOW).unwrap();
        let refused = ours.recv_json::<u8>(clock::NOW);
        assert!(matches!(refused, Err(MessageError::Type(_))), "{refused:?}");
        assert_eq!(ours.recv_json::<(String, u8)>(clock::NOW).unwrap(), ("core".to_owned(), 2));
        let silent = ours.recv_json::<u8>(clock::NOW);
        assert!(matches!(silent, Err(MessageError::Channel(ChannelError::TimedOut))));
    }
}
