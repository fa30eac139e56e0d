//! Results that are longer than an answer: pieces, each asked for by a call.
//!
//! ```text
//! request  StreamHead │ cursor │ body      the first one without a cursor
//! answer   StreamHead │ cursor │ piece     no cursor: it was the last one
//! ```
//!
//! A *cursor* says where the next piece begins, in the service's own terms: a key, an offset. The service keeps
//! nothing between two calls, so a caller that goes costs nothing, a slow one delays no other, and any
//! process behind the service's name can give the next piece.

use std::time::Duration;

use proto::Status;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use crate::{CallError, Client, To};

/// Longest cursor.
pub const CURSOR_BYTES_MAX: usize = 1024;

/// First in requests for pieces, and in pieces.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StreamHead {
    /// Tells requests for pieces from others.
    magic: U32,
    /// [`HAS_CURSOR`], or 0.
    flags: U16,
    /// Bytes of the cursor.
    cursor_bytes: U16,
}

const MAGIC: u32 = u32::from_le_bytes(*b"cRst");
const HAS_CURSOR: u16 = 1;

fn head(cursor: Option<&[u8]>) -> StreamHead {
    let cursor_bytes = u16::try_from(cursor.map_or(0, <[u8]>::len)).unwrap_or(u16::MAX);
    let flags = if cursor.is_some() { HAS_CURSOR } else { 0 };
    StreamHead { magic: MAGIC.into(), flags: flags.into(), cursor_bytes: cursor_bytes.into() }
}

/// The cursor, if there is one, and what follows it.
fn split(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (head, rest) = StreamHead::read_from_prefix(bytes).ok()?;
    let (cursor, rest) = rest.split_at_checked(head.cursor_bytes.get().into())?;
    let has_cursor = head.flags.get() & HAS_CURSOR != 0;
    let makes_sense = head.magic.get() == MAGIC
        && cursor.len() <= CURSOR_BYTES_MAX
        && (has_cursor || cursor.is_empty());
    makes_sense.then_some((has_cursor.then_some(cursor), rest))
}

/// A result in pieces: see [`Client::stream`].
#[derive(Debug)]
pub struct Stream<'a> {
    client: &'a mut Client,
    to: To,
    body: Vec<u8>,
    timeout: Duration,
    /// Where the next piece begins; `None`: at the beginning.
    cursor: Option<Vec<u8>>,
    is_over: bool,
}

impl Client {
    /// Asks a method for its result in pieces, each of which is a call with a deadline of `timeout`.
    pub fn stream(&mut self, to: To, body: &[u8], timeout: Duration) -> Stream<'_> {
        let (body, cursor) = (body.to_vec(), None);
        Stream { client: self, to, body, timeout, cursor, is_over: false }
    }
}

impl Stream<'_> {
    /// The next piece; `None` after the last one. After an error that may be asked again.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        if self.is_over {
            return Ok(None);
        }
        let head = head(self.cursor.as_deref());
        let cursor = self.cursor.as_deref().unwrap_or_default();
        let request = [head.as_bytes(), cursor, &self.body].concat();
        let answer = self.client.call_within(self.to, &request, self.timeout)?;
        // What answers like this does not know of pieces.
        let (cursor, piece) = split(answer).ok_or(CallError::Unanswered(Status::DataLoss))?;
        self.is_over = cursor.is_none();
        self.cursor = cursor.map(<[u8]>::to_vec);
        Ok(Some(piece.to_vec()))
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Vec<u8>, CallError>;

    /// The next piece; an error ends it.
    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.next_piece();
        self.is_over |= piece.is_err();
        piece.transpose()
    }
}

/// Answers a request for a piece: `serve` gets the cursor, none for the first piece, and the body, appends the
/// piece, and returns the cursor of the next one, none if this is the last.
///
/// # Errors
///
/// What `serve` returns instead; [`Status::InvalidArgument`] for a request that is for no piece.
pub fn serve_piece(
    request: &[u8],
    answer: &mut Vec<u8>,
    serve: impl FnOnce(Option<&[u8]>, &[u8], &mut Vec<u8>) -> Result<Option<Vec<u8>>, Status>,
) -> Status {
    let Some((cursor, body)) = split(request) else { return Status::InvalidArgument };
    let mut piece = Vec::new();
    let next = match serve(cursor, body, &mut piece) {
        Ok(next) => next,
        Err(status) => return status,
    };
    if next.as_ref().is_some_and(|cursor| cursor.len() > CURSOR_BYTES_MAX) {
        return Status::Internal;
    }
    answer.extend_from_slice(head(next.as_deref()).as_bytes());
    answer.extend_from_slice(next.as_deref().unwrap_or_default());
    answer.extend_from_slice(&piece);
    Status::Ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_cursors_arrive_and_nonsense_does_not() {
        let request = [head(Some(b"at 7")).as_bytes(), b"at 7", b"body"].concat();
        let mut answer = Vec::new();
        let status = serve_piece(&request, &mut answer, |cursor, body, piece| {
            assert_eq!((cursor, body), (Some(&b"at 7"[..]), &b"body"[..]));
            piece.extend_from_slice(b"piece");
            Ok(Some(b"at 8".to_vec()))
        });
        assert_eq!(status, Status::Ok);
        assert_eq!(split(&answer), Some((Some(&b"at 8"[..]), &b"piece"[..])));
        answer.clear();
        let last = serve_piece(head(None).as_bytes(), &mut answer, |cursor, _, _| {
            assert_eq!(cursor, None);
            Ok(None)
        });
        assert_eq!((last, split(&answer)), (Status::Ok, Some((None, &b""[..]))));
        let too_long = |_: Option<&[u8]>, _: &[u8], _: &mut Vec<u8>| Ok(Some(vec![0; 1025]));
        assert_eq!(serve_piece(head(None).as_bytes(), &mut answer, too_long), Status::Internal);
        let mut cut = head(Some(b"1234")).as_bytes().to_vec();
        for nonsense in [&b"any other request"[..], b"", &cut] {
            let status = serve_piece(nonsense, &mut answer, |_, _, _| unreachable!());
            assert_eq!(status, Status::InvalidArgument);
        }
        cut[4] = 0;
        cut.extend_from_slice(b"1234");
        assert_eq!(split(&cut), None, "a cursor that is said not to be there");
    }
}
