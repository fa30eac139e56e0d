//! Values to bytes and back.

use std::borrow::Cow;

use client::{Filler, LentBytes};

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

    /// How many bytes [`fill`](Self::fill) puts for a value; `None`, as by default: the value is encoded to
    /// private memory first, and copied from there.
    fn len_bytes(value: &T) -> Option<usize> {
        let _ = value;
        None
    }

    /// Puts a value where its receiver reads it: as many bytes as [`len_bytes`](Self::len_bytes) said just
    /// before, the same as those of [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// [`CodecError`]. Then nothing of it is sent: the call that was to carry the value fails with
    /// [`TypedError::Encode`](crate::typed::TypedError::Encode), and an answer becomes
    /// [`Status::Internal`](client::Status::Internal).
    fn fill(value: &T, into: &mut Filler<'_>) -> Result<(), CodecError> {
        let mut bytes = Vec::new();
        Self::encode(value, &mut bytes)?;
        put(into, &bytes)
    }
}

fn put(into: &mut Filler<'_>, bytes: &[u8]) -> Result<(), CodecError> {
    into.put(bytes).map_err(|full| CodecError(full.to_string().into()))
}

/// A codec that reads values of type `T`. It gets bytes of strangers, and must not panic.
pub trait Decode<T> {
    /// Reads a value that is all there is.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    fn decode(bytes: &[u8]) -> Result<T, CodecError>;

    /// Reads a value that is all there is of bytes that others may write meanwhile. By default it is read from a
    /// private copy, which `scratch` has the memory for.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    fn decode_lent(bytes: LentBytes<'_>, scratch: &mut Vec<u8>) -> Result<T, CodecError> {
        scratch.clear();
        bytes.append_to(scratch);
        Self::decode(scratch)
    }
}

/// `postcard`: compact, and the same on every machine. It writes byte by byte, and so to private memory first.
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl<T: serde::Serialize> Encode<T> for Postcard {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        let buffer = std::mem::take(into);
        *into = postcard::to_extend(value, buffer).map_err(of_postcard)?;
        Ok(())
    }
}

impl<T: serde::de::DeserializeOwned> Decode<T> for Postcard {
    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        match postcard::take_from_bytes(bytes).map_err(of_postcard)? {
            (value, []) => Ok(value),
            (_, rest) => Err(CodecError(format!("{} bytes too many", rest.len()).into())),
        }
    }
}

fn of_postcard(error: postcard::Error) -> CodecError {
    CodecError(error.to_string().into())
}

/// JSON, for callers and services that do not have the definition: the arguments of a method are an array, those of a
/// method without arguments `null`, and its value is a value.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize> Encode<T> for Json {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        serde_json::to_writer(into, value).map_err(of_json)
    }
}

#[cfg(feature = "json")]
impl<T: serde::de::DeserializeOwned> Decode<T> for Json {
    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        serde_json::from_slice(bytes).map_err(of_json)
    }
}

#[cfg(feature = "json")]
fn of_json(error: serde_json::Error) -> CodecError {
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

    fn len_bytes(value: &Vec<u8>) -> Option<usize> {
        Some(value.len())
    }

    fn fill(value: &Vec<u8>, into: &mut Filler<'_>) -> Result<(), CodecError> {
        put(into, value)
    }
}

impl Decode<Vec<u8>> for Raw {
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.to_vec())
    }

    fn decode_lent(bytes: LentBytes<'_>, _: &mut Vec<u8>) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.to_vec())
    }
}

/// The arguments of a method that has one.
impl Encode<(Vec<u8>,)> for Raw {
    fn encode(value: &(Vec<u8>,), into: &mut Vec<u8>) -> Result<(), CodecError> {
        <Self as Encode<Vec<u8>>>::encode(&value.0, into)
    }

    fn len_bytes(value: &(Vec<u8>,)) -> Option<usize> {
        <Self as Encode<Vec<u8>>>::len_bytes(&value.0)
    }

    fn fill(value: &(Vec<u8>,), into: &mut Filler<'_>) -> Result<(), CodecError> {
        <Self as Encode<Vec<u8>>>::fill(&value.0, into)
    }
}

impl Decode<(Vec<u8>,)> for Raw {
    fn decode(bytes: &[u8]) -> Result<(Vec<u8>,), CodecError> {
        Ok((bytes.to_vec(),))
    }
}
