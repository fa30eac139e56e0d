//! Values to bytes and back.

use std::borrow::Cow;

/// Why a value has no bytes, or bytes are no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(pub Cow<'static, str>);

/// A codec that writes values of type `T`.
pub trait Encode<T> {
    /// Appends a value.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError>;
}

/// A codec that reads values of type `T`. It gets bytes of strangers, and must not panic.
pub trait Decode<T> {
    /// Reads a value that is all there is.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    fn decode(bytes: &[u8]) -> Result<T, CodecError>;
}

/// `postcard`: compact, and the same on every machine.
#[cfg(feature = "postcard")]
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

#[cfg(feature = "postcard")]
impl<T: serde::Serialize> Encode<T> for Postcard {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        let buffer = std::mem::take(into);
        *into = postcard::to_extend(value, buffer).map_err(of_postcard)?;
        Ok(())
    }
}

#[cfg(feature = "postcard")]
impl<T: serde::de::DeserializeOwned> Decode<T> for Postcard {
    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        match postcard::take_from_bytes(bytes).map_err(of_postcard)? {
            (value, []) => Ok(value),
            (_, rest) => Err(CodecError(format!("{} bytes too many", rest.len()).into())),
        }
    }
}

#[cfg(feature = "postcard")]
fn of_postcard(error: postcard::Error) -> CodecError {
    CodecError(error.to_string().into())
}

/// Bytes as they are.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Encode<Vec<u8>> for Raw {
    fn encode(value: &Vec<u8>, into: &mut Vec<u8>) -> Result<(), CodecError> {
        into.extend_from_slice(value);
        Ok(())
    }
}

impl Decode<Vec<u8>> for Raw {
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.to_vec())
    }
}

/// The arguments of a method that has one.
impl Encode<(Vec<u8>,)> for Raw {
    fn encode(value: &(Vec<u8>,), into: &mut Vec<u8>) -> Result<(), CodecError> {
        <Self as Encode<Vec<u8>>>::encode(&value.0, into)
    }
}

impl Decode<(Vec<u8>,)> for Raw {
    fn decode(bytes: &[u8]) -> Result<(Vec<u8>,), CodecError> {
        Ok((bytes.to_vec(),))
    }
}
