//! What a provider asks of its daemon.

/// What a call to the daemon asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A request.
    Work,
    /// Requests that nobody waits for any more.
    Watch,
    /// A sign that the daemon has read what was sent before.
    Sign,
}
