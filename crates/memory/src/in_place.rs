//! Messages in memory that others may access: read where they lie, filled where they are read.

use core::{fmt, marker::PhantomData, ops::Range, ptr::NonNull};
use std::io;

use crate::copy;

/// Zeros that the unfilled end of a message is made of.
const ZEROS: [u8; 256] = [0; 256];

/// The bytes of a message where they lie, which others may write at any time.
///
/// Nothing can be had of them but copies, and two copies of one byte may differ: copy once, check the copy,
/// use the copy.
///
/// ```
/// # use copyrpc_memory::LentBytes;
/// let lent = LentBytes::from(&b"a name and 64 KiB"[..]);
/// let mut name = [0; 6];
/// assert_eq!(lent.copy_to(&mut name), 6);
/// assert_eq!(name, *b"a name");
/// ```
///
/// No slice can be formed of them:
///
/// ```compile_fail
/// fn slice(lent: copyrpc_memory::LentBytes<'_>) -> &[u8] {
///     &lent
/// }
/// ```
#[derive(Clone, Copy)]
pub struct LentBytes<'a> {
    base: NonNull<u8>,
    len_bytes: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: bytes that belong to no thread, loaded by tolerant copies only.
unsafe impl Send for LentBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for LentBytes<'_> {}

impl<'a> LentBytes<'a> {
    /// Lends bytes.
    ///
    /// # Safety
    ///
    /// There are `len_bytes` mapped bytes at `base` as long as `'a` lasts, that nobody accesses through an
    /// exclusive reference to plain data, and that no [`Filler`] of this process fills.
    #[inline]
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, len_bytes: usize) -> Self {
        Self { base, len_bytes, memory: PhantomData }
    }

    /// First byte: for copies of [`crate::copy`] and to lend again.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Bytes of a range; `None` if it is not inside.
    #[inline]
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        let len_bytes = range.end.checked_sub(range.start)?;
        if range.end > self.len_bytes {
            return None;
        }
        // SAFETY: in, or one past, the same bytes.
        let base = unsafe { self.base.add(range.start) };
        Some(Self { base, len_bytes, ..*self })
    }

    /// Copies as many bytes as there are and as fit, and returns their number.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let len_bytes = self.len_bytes.min(to.len());
        // SAFETY: so many bytes, mapped while `'a` lasts; others may write them meanwhile.
        unsafe { copy::copy_in(&mut to[..len_bytes], self.base.as_ptr()) };
        len_bytes
    }

    /// Appends a copy, without clearing the memory for it first.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len_bytes);
        let spare = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `spare` is private and has room for as many bytes; the source is mapped while `'a` lasts.
        unsafe { copy::copy_between(spare, self.base.as_ptr(), self.len_bytes) };
        // SAFETY: that many bytes behind the length were just written.
        unsafe { to.set_len(to.len() + self.len_bytes) };
    }

    /// A private copy.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }
}

impl<'a> From<&'a [u8]> for LentBytes<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a slice is mapped, and nobody has an exclusive reference to it meanwhile.
        unsafe { Self::new(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

impl fmt::Debug for LentBytes<'_> {
    /// Its length alone: the bytes may change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBytes").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

/// More bytes than are left of a message. Nothing was put.
///
/// ```
/// # use copyrpc_memory as copyrpc;
/// use copyrpc::{Filler, Overfull};
///
/// let refused = Filler::from(&mut [0; 2][..]).put(b"abc");
/// assert_eq!(refused, Err(Overfull { len_bytes: 3, left_bytes: 2 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} B do not fit in the {left_bytes} B that are left of the message")]
pub struct Overfull {
    /// Bytes that were to be put.
    pub len_bytes: usize,
    /// Bytes that are left.
    pub left_bytes: usize,
}

/// Fills a message where its receiver will read it, from its first byte to its last.
///
/// What is put is stored at once, and cannot be read back: others may write the memory meanwhile. Bytes that
/// are never put are zeros.
///
/// ```
/// # use copyrpc_memory as copyrpc;
/// use copyrpc::Filler;
///
/// let mut room = [0; 8];
/// let mut body = Filler::from(&mut room[..]);
/// body.put(b"copy")?;
/// body.put(b"rpc")?;
/// assert_eq!(room, *b"copyrpc\0");
/// # Ok::<(), copyrpc::Overfull>(())
/// ```
#[derive(Debug)]
pub struct Filler<'a> {
    to: *mut u8,
    left_bytes: usize,
    is_given_up: bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a mut [u8]> for Filler<'a> {
    /// Fills memory of this process.
    fn from(room: &'a mut [u8]) -> Self {
        let (to, left_bytes) = (room.as_mut_ptr(), room.len());
        Self { to, left_bytes, is_given_up: false, memory: PhantomData }
    }
}

impl Filler<'_> {
    /// Fills `len_bytes` bytes.
    ///
    /// # Safety
    ///
    /// There are so many mapped, writable bytes at `to` while the result lives, that nobody accesses through
    /// a reference to plain data, and that no other filler and no [`LentBytes`] of this process has.
    #[inline]
    #[must_use]
    pub unsafe fn new(to: *mut u8, len_bytes: usize) -> Self {
        Self { to, left_bytes: len_bytes, is_given_up: false, memory: PhantomData }
    }

    /// Bytes that are left to be put.
    #[inline]
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Puts bytes behind those that were put before.
    ///
    /// # Errors
    ///
    /// [`Overfull`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Overfull> {
        let to = self.advance(bytes.len())?;
        // SAFETY: so many bytes were left, and are this filler's.
        unsafe { copy::copy_out_body(to, bytes) };
        Ok(())
    }

    /// Puts bytes that others may write meanwhile: one copy, and none of them is believed.
    ///
    /// # Errors
    ///
    /// [`Overfull`].
    #[inline]
    pub fn put_lent(&mut self, bytes: LentBytes<'_>) -> Result<(), Overfull> {
        let to = self.advance(bytes.len())?;
        // SAFETY: so many bytes were left, and are this filler's alone, so that they do not overlap what is
        // lent, which is mapped while it is.
        unsafe { copy::copy_between_body(to, bytes.base.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The same of bytes of a region.
    ///
    /// # Errors
    ///
    /// [`Overfull`].
    ///
    /// # Panics
    ///
    /// If they are those that are filled.
    #[cfg(not(loom))] // Nothing that loom runs has spans.
    pub fn put_span(&mut self, bytes: crate::Span<'_>) -> Result<(), Overfull> {
        let (from, len_bytes) = (bytes.as_ptr().as_ptr().cast_const(), bytes.len());
        let to = self.advance(len_bytes)?;
        let distance = to.addr().abs_diff(from.addr());
        assert!(distance >= len_bytes, "a copy of bytes to themselves");
        // SAFETY: so many bytes were left, and are this filler's; the span's are mapped while it lives, and they do not
        // overlap.
        unsafe { copy::copy_between_body(to, from, len_bytes) };
        Ok(())
    }

    /// Takes the address of the next bytes.
    #[inline]
    fn advance(&mut self, len_bytes: usize) -> Result<*mut u8, Overfull> {
        let left_bytes = self.left_bytes;
        let to = self.to;
        self.left_bytes =
            left_bytes.checked_sub(len_bytes).ok_or(Overfull { len_bytes, left_bytes })?;
        self.to = to.wrapping_add(len_bytes);
        Ok(to)
    }

    /// Takes all that is left, to be written by code that has no reference to it, such as another language's,
    /// before the message is sent. Bytes that are not written are what they were.
    #[must_use]
    pub fn take_room(&mut self) -> *mut [u8] {
        let len_bytes = core::mem::take(&mut self.left_bytes);
        core::ptr::slice_from_raw_parts_mut(self.to, len_bytes)
    }

    /// The message cannot be filled: it is not sent, where that can still be chosen.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Whether the message [cannot be filled](Self::give_up).
    #[inline]
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Puts zeros to the end.
    #[inline]
    pub fn finish(mut self) {
        while self.left_bytes > 0 {
            let len_bytes = self.left_bytes.min(ZEROS.len());
            let Ok(()) = self.put(&ZEROS[..len_bytes]) else { return };
        }
    }
}

impl io::Write for Filler<'_> {
    /// Puts as many bytes as are left: none at the end of the message.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len_bytes = bytes.len().min(self.left_bytes);
        self.put(&bytes[..len_bytes]).map_err(io::Error::other)?;
        Ok(len_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{io::Write as _, thread};

    use super::*;
    use crate::{
        Region,
        sync::{AtomicBool, AtomicU64, Ordering},
    };

    fn filler(region: &Region, len_bytes: usize) -> Filler<'_> {
        assert!(region.len() >= len_bytes);
        // SAFETY: inside the region, which is accessed by copies and atomics only.
        unsafe { Filler::new(region.as_ptr().as_ptr(), len_bytes) }
    }

    fn lent(region: &Region, len_bytes: usize) -> LentBytes<'_> {
        assert!(region.len() >= len_bytes);
        // SAFETY: as above; the fillers of these tests are gone by then.
        unsafe { LentBytes::new(region.as_ptr(), len_bytes) }
    }

    #[test]
    fn room_that_is_taken_is_all_that_is_left_and_stays_as_it_is_written() {
        let region = Region::heap(64).unwrap();
        let mut filler = filler(&region, 24);
        filler.put(&[1; 8]).unwrap();
        let room = filler.take_room();
        assert_eq!((room.len(), filler.left_bytes()), (16, 0));
        assert_eq!(filler.put(&[2]), Err(Overfull { len_bytes: 1, left_bytes: 0 }));
        // SAFETY: the room is this test's until the filler is finished.
        unsafe { room.cast::<[u8; 16]>().write([3; 16]) };
        filler.finish();
        assert_eq!(lent(&region, 24).to_vec(), [[1; 8], [3; 8], [3; 8]].concat());
    }

    #[test]
    fn what_is_put_is_lent_and_the_rest_is_zeros() {
        let region = Region::heap(1024).unwrap();
        region.whole().copy_out(&vec![0xa5; region.len()]).unwrap();
        let mut message = filler(&region, 600);
        message.put(b"head ").unwrap();
        message.put_lent(LentBytes::from(&b"body"[..])).unwrap();
        assert_eq!(message.left_bytes(), 591);
        message.finish();
        let mut expected = b"head body".to_vec();
        expected.resize(600, 0);
        assert_eq!(lent(&region, 600).to_vec(), expected);
        assert_eq!(lent(&region, 601).to_vec()[600], 0xa5, "nothing behind it was touched");
    }

    #[test]
    fn bytes_of_a_region_are_put_if_there_is_room_and_not_into_themselves() {
        let [from, to] = [(), ()].map(|()| Region::heap(1024).unwrap());
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(600).collect();
        from.whole().sub(8, 600).unwrap().copy_out(&bytes).unwrap();
        let part = |at: usize, len_bytes| from.whole().sub(8 + at, len_bytes).unwrap();
        let mut message = filler(&to, 601);
        message.put(b"-").unwrap();
        assert_eq!(message.put_span(part(0, 0)), Ok(()));
        assert_eq!(message.put_span(part(0, 300)), Ok(()));
        assert_eq!(message.put_span(part(300, 300)), Ok(()));
        assert_eq!(message.put_span(part(0, 1)), Err(Overfull { len_bytes: 1, left_bytes: 0 }));
        assert_eq!(lent(&to, 601).to_vec(), [b"-", &bytes[..]].concat());
        let overlap = std::panic::catch_unwind(|| filler(&from, 100).put_span(part(0, 100)));
        assert!(overlap.is_err());
    }

    #[test]
    fn bytes_that_are_lent_fill_a_span_and_not_that_of_themselves() {
        let [from, to] = [(), ()].map(|()| Region::heap(1024).unwrap());
        let bytes: Vec<u8> = (1..=u8::MAX).cycle().take(700).collect();
        from.whole().sub(0, 700).unwrap().copy_out(&bytes).unwrap();
        // Around whole lines, at their starts and between.
        for (at, len_bytes) in [(0, 700), (64, 64), (3, 61), (1, 700), (63, 1), (5, 0), (8, 200)] {
            for is_registered in [false, true] {
                to.whole().zero().unwrap();
                let span = to.whole().sub(at, len_bytes).unwrap();
                span.copy_lent(lent(&from, len_bytes), is_registered).unwrap();
                let found = lent(&to, 1024).to_vec();
                assert_eq!(found[at..at + len_bytes], bytes[..len_bytes], "{at} {len_bytes}");
                let around = found[..at].iter().chain(&found[at + len_bytes..]);
                assert!(around.into_iter().all(|byte| *byte == 0), "{at} {len_bytes}");
            }
        }
        let overlap = std::panic::catch_unwind(|| {
            from.whole().sub(99, 100).unwrap().copy_lent(lent(&from, 100), false)
        });
        assert!(overlap.is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused_whole_or_cut_by_write() {
        let region = Region::heap(64).unwrap();
        let mut message = filler(&region, 4);
        assert_eq!(message.put(b"12345"), Err(Overfull { len_bytes: 5, left_bytes: 4 }));
        assert!(message.put_lent(LentBytes::from(&b"12345"[..])).is_err());
        assert_eq!(message.write(b"12345").unwrap(), 4);
        assert!(message.write_all(b"5").is_err());
        message.finish();
        assert_eq!(lent(&region, 5).to_vec(), b"1234\0");
    }

    #[test]
    fn ranges_are_checked() {
        let lent = LentBytes::from(&b"0123456789"[..]);
        assert_eq!(lent.get(2..5).unwrap().to_vec(), b"234");
        assert!(lent.get(10..10).is_some_and(|none| none.is_empty()));
        let backwards = Range { start: 5, end: 4 };
        assert!(lent.get(8..11).is_none() && lent.get(backwards).is_none());
        assert!(lent.get(usize::MAX..usize::MAX).is_none());
        let (mut short, mut long) = ([0; 3], [7; 12]);
        assert_eq!((lent.copy_to(&mut short), lent.copy_to(&mut long)), (3, 10));
        assert_eq!((&short, &long), (b"012", b"0123456789\x07\x07"));
        let mut appended = b"and ".to_vec();
        lent.append_to(&mut appended);
        assert_eq!(appended, b"and 0123456789");
    }

    /// Copies of bytes that change are torn at most: each of their words is one that was written. Miri takes
    /// plain copies for races here, so it does not run this.
    #[cfg(not(miri))]
    #[test]
    fn bytes_that_change_meanwhile_are_copied_once() {
        let region = Region::heap(4096).unwrap();
        let words = region.shared_slice::<AtomicU64>(0, 512).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in (0..=255u8).cycle() {
                    for word in words {
                        word.store(u64::from_ne_bytes([round; 8]), Ordering::Relaxed);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut copy = [0; 4096];
            for _ in 0..2000 {
                lent(&region, 4096).copy_to(&mut copy);
                let (words, _) = copy.as_chunks::<8>();
                assert!(words.iter().all(|word| *word == [word[0]; 8]));
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
