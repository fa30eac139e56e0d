//! Random bytes of the kernel.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;

/// A number used once.
pub type Nonce = [u8; NONCE_BYTES];

/// A fresh number.
///
/// # Panics
///
/// If the kernel has no random numbers to give: nothing that depends on them is then safe.
#[must_use]
pub fn nonce() -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < nonce.len() {
        match getrandom(&mut nonce[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => panic!("getrandom failed: {errno}"),
        }
    }
    nonce
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_differ() {
        assert_ne!(super::nonce(), super::nonce());
    }
}
