//! Addresses of workers, and the text by which they travel.
//!
//! ```text
//! 1.13.1 : 0123456789abcdef : hexadecimal digits of what UCX made
//! version  FNV-1a of the bytes
//! ```
//!
//! UCX reads an address without knowing its length. So an address is made by a worker, or parsed from text that says
//! which version made it, and that no accident has changed. Text of an adversary is not to be parsed.

use core::{fmt, str::FromStr};

/// Where a worker is reached.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UcxAddress {
    version: String,
    bytes: Box<[u8]>,
}

/// Text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not of the form above, or not as it was written.
    #[error("`{0}` is no address of UCX, or was changed on its way")]
    Text(String),
    /// Of another version of the library, which may write addresses differently.
    #[error("the peer has UCX {theirs}, this process {ours}: install one version on both")]
    Version {
        /// That of the text.
        theirs: String,
        /// That of this process.
        ours: String,
    },
}

/// Characters of a wrong text that an error shows.
const SHOWN_MAX: usize = 32;

impl UcxAddress {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { version: crate::ucp::version().unwrap_or_default(), bytes: bytes.into() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn parse(text: &str) -> Option<Self> {
        let (version, rest) = text.split_once(':')?;
        let (sum, digits) = rest.split_once(':')?;
        let pairs = digits.as_bytes().chunks(2);
        let bytes = pairs
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok())
            .collect::<Option<Box<[u8]>>>()?;
        let address = Self { version: version.to_owned(), bytes };
        let is_same =
            u64::from_str_radix(sum, 16) == Ok(address.sum()) && !address.bytes.is_empty();
        // One text per address: digits are as they are written below.
        (is_same && address.to_string() == text).then_some(address)
    }

    fn sum(&self) -> u64 {
        let fnv = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv)
    }
}

impl FromStr for UcxAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress::Text(text.chars().take(SHOWN_MAX).collect());
        let address = Self::parse(text).ok_or_else(bad)?;
        match crate::ucp::version() {
            Ok(ours) if ours != address.version => {
                Err(BadAddress::Version { theirs: address.version, ours })
            }
            _ => Ok(address),
        }
    }
}

impl fmt::Display for UcxAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}:", self.version, self.sum())?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UcxAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UcxAddress({} B of UCX {})", self.bytes.len(), self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_was_written_and_not_otherwise() {
        let address = UcxAddress::new(&[0, 1, 0xfe, 255]);
        let text = address.to_string();
        assert_eq!(text.parse(), Ok(address.clone()));
        let other = UcxAddress { version: "0.0.0".to_owned(), ..address };
        if let Ok(ours) = crate::ucp::version() {
            let theirs = "0.0.0".to_owned();
            assert_eq!(
                other.to_string().parse::<UcxAddress>(),
                Err(BadAddress::Version { theirs, ours })
            );
        }
        let upper = text.replace("fe", "FE");
        for bad in ["", "moon", "a:b:c", &text[..text.len() - 2], &text.replace("fe", "fd"), &upper]
        {
            assert!(matches!(bad.parse::<UcxAddress>(), Err(BadAddress::Text(_))), "{bad}");
        }
    }
}
