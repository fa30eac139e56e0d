//! Options of mlx5 beyond those of [`verbs`].

/// The options with which a [`Nic`](crate::Nic) makes its queues. Objects of one device may differ: each handle of
/// the device carries its own options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Size of the entries of completion queues.
    pub cqe_size: CqeSize,
    /// The doorbell mode of send queues.
    pub doorbell: DoorbellMode,
    /// Lets the device put small payloads into the completion instead of the buffers.
    pub scatter_to_cqe: bool,
}

/// Size of a completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CqeSize {
    /// 64 bytes; payloads up to 32 bytes can be scattered to the entry.
    #[default]
    B64,
    /// 128 bytes; payloads up to 64 bytes can be scattered to the entry.
    B128,
}

impl CqeSize {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

/// The way in which a send queue's doorbell is rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellMode {
    /// BlueFlame when a single small request is pending, else an 8-byte doorbell.
    #[default]
    Auto,
    /// Always the 8-byte doorbell.
    Plain,
}
