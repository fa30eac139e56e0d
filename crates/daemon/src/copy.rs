//! Copies whose length somebody else chose.

/// A copy, unless there is no memory for it: that is no reason for a daemon to end.
pub(super) fn copied(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}
