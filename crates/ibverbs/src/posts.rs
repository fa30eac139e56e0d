//! Requests of a queue from posting to retirement, in the library's form.

use core::{ffi::c_int, ptr};

use crate::abi::{RecvWr, SendWr, Sge};

/// A request of the library, which are handed over as a linked list.
pub(crate) trait Request: Copy {
    /// An entry of the ring that holds no request.
    const EMPTY: Self;
    /// Its number.
    fn id(&self) -> u64;
    /// Links the request behind it, and says where its entries are.
    fn link(&mut self, next: *mut Self, sg_list: *mut Sge);
}

impl Request for SendWr {
    const EMPTY: Self = Self {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        target: crate::abi::Target { none: [0; 4] },
        rest: [0; 7],
    };

    fn id(&self) -> u64 {
        self.wr_id
    }

    fn link(&mut self, next: *mut Self, sg_list: *mut Sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

impl Request for RecvWr {
    const EMPTY: Self =
        Self { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };

    fn id(&self) -> u64 {
        self.wr_id
    }

    fn link(&mut self, next: *mut Self, sg_list: *mut Sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

/// Requests by their index modulo 2¹⁶, posted, then rung, then retired, each in order.
///
/// The library copies a request when it is handed over, so a slot is free again as soon as the device has
/// completed what was in it.
pub(crate) struct Posts<W> {
    wrs: Box<[W]>,
    /// `sges_max` of each request.
    sges: Box<[Sge]>,
    sges_max: u8,
    requests: u16,
    /// Slots, a power of two, less one.
    mask: u16,
    posted: u16,
    rung: u16,
    retired: u16,
}

// SAFETY: the pointers in requests are written right before the library reads them, and are not looked at
// afterwards.
unsafe impl<W: Request> Send for Posts<W> {}
// SAFETY: `&Posts` gives access to counters alone.
unsafe impl<W: Request> Sync for Posts<W> {}

impl<W> core::fmt::Debug for Posts<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { requests, posted, rung, retired, .. } = self;
        write!(
            f,
            "Posts {{ {requests} requests, {posted} posted, {rung} rung, {retired} retired }}"
        )
    }
}

impl<W: Request> Posts<W> {
    /// Room for `requests`, of 1 to 2¹⁵.
    pub(crate) fn new(requests: u16, sges_max: u8) -> Self {
        let slots = usize::from(requests).next_power_of_two();
        Self {
            wrs: vec![W::EMPTY; slots].into_boxed_slice(),
            sges: vec![Sge::default(); slots * usize::from(sges_max)].into_boxed_slice(),
            sges_max,
            requests,
            mask: u16::try_from(slots - 1).unwrap_or(u16::MAX),
            posted: 0,
            rung: 0,
            retired: 0,
        }
    }

    pub(crate) fn requests(&self) -> u16 {
        self.requests
    }

    pub(crate) fn sges_max(&self) -> u8 {
        self.sges_max
    }

    fn outstanding(&self) -> u16 {
        self.posted.wrapping_sub(self.retired)
    }

    /// Requests that can be posted.
    #[inline]
    pub(crate) fn free(&self) -> u16 {
        self.requests - self.outstanding()
    }

    /// Index of the next request.
    #[inline]
    pub(crate) fn next_index(&self) -> u16 {
        self.posted
    }

    /// Slot of the next request.
    #[inline]
    pub(crate) fn next_slot(&self) -> usize {
        usize::from(self.posted & self.mask)
    }

    /// Posts the next request, whose entries are those of `sges` that have bytes. There is room for both.
    #[inline]
    pub(crate) fn post(&mut self, request: W, sges: impl Iterator<Item = Sge>) {
        let slot = self.next_slot();
        self.wrs[slot] = request;
        let begin = slot * usize::from(self.sges_max);
        let room = &mut self.sges[begin..begin + usize::from(self.sges_max)];
        room.iter_mut().zip(sges).for_each(|(entry, sge)| *entry = sge);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Hands everything that was posted to `hand_over`, as one list. Returns the numbers of requests that
    /// were not taken.
    #[inline]
    pub(crate) fn ring(
        &mut self,
        hand_over: impl FnOnce(*mut W, *mut *mut W) -> c_int,
    ) -> Vec<u64> {
        if self.rung == self.posted {
            return Vec::new();
        }
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        let slot = |index: u16| usize::from(index & self.mask);
        let mut next = ptr::null_mut();
        let mut index = self.posted;
        while index != self.rung {
            index = index.wrapping_sub(1);
            let at = slot(index);
            let own = wrs.wrapping_add(at);
            // SAFETY: a slot of this queue, which nobody else refers to.
            unsafe { &mut *own }.link(next, sges.wrapping_add(at * usize::from(self.sges_max)));
            next = own;
        }
        let mut first_bad = next;
        let is_taken = hand_over(next, &raw mut first_bad) == 0;
        let rung = core::mem::replace(&mut self.rung, self.posted);
        if is_taken {
            return Vec::new();
        }
        let left = (0..self.posted.wrapping_sub(rung)).map(|nth| rung.wrapping_add(nth));
        let left = left.skip_while(|&index| wrs.wrapping_add(slot(index)) != first_bad);
        left.map(|index| self.wrs[slot(index)].id()).collect()
    }

    /// Gives back the request with `index`, and all before it. An index that is not outstanding, such as that
    /// of a completion from before a reset, changes nothing.
    #[inline]
    pub(crate) fn retire(&mut self, index: u16) {
        let ahead = index.wrapping_sub(self.retired);
        if ahead < self.rung.wrapping_sub(self.retired) {
            self.retired = index.wrapping_add(1);
        }
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        (self.posted, self.rung, self.retired) = (0, 0, 0);
    }
}

/// Entries of a list that have bytes: one of none means 2 GiB to some devices.
#[inline]
pub(crate) fn entries(sges: &[verbs::Sge]) -> impl Iterator<Item = Sge> + Clone {
    sges.iter().filter(|sge| sge.len_bytes > 0).map(|sge| Sge {
        addr: sge.addr,
        length: sge.len_bytes,
        lkey: sge.lkey.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64) -> RecvWr {
        RecvWr { wr_id: id, num_sge: 1, ..RecvWr::EMPTY }
    }

    fn sge(addr: u64) -> Sge {
        Sge { addr, length: 1, lkey: 0 }
    }

    /// The numbers and first entries of a list.
    fn read(mut list: *mut RecvWr) -> Vec<(u64, u64)> {
        let mut seen = Vec::new();
        while !list.is_null() {
            // SAFETY: the list of a queue that is handing it over.
            let request = unsafe { *list };
            // SAFETY: each request of these tests has one entry.
            seen.push((request.wr_id, unsafe { (*request.sg_list).addr }));
            list = request.next;
        }
        seen
    }

    #[test]
    fn lists_are_handed_over_in_order_across_the_end_of_the_slots() {
        let mut posts = Posts::<RecvWr>::new(3, 2);
        let mut next = 0;
        for round in 0..40 {
            let count = 1 + round % 3;
            let expected: Vec<_> = (0..count).map(|nth| (next + nth, 100 + next + nth)).collect();
            for &(id, addr) in &expected {
                assert_eq!(u64::from(posts.next_index()), id);
                posts.post(request(id), [sge(addr)].into_iter());
            }
            next += count;
            let left = posts.ring(|list, _| {
                assert_eq!(read(list), expected);
                0
            });
            assert!(left.is_empty());
            assert!(posts.ring(|_, _| panic!("nothing was posted")).is_empty());
            posts.retire(u16::try_from(next - 1).unwrap());
            assert_eq!(posts.free(), 3);
        }
    }

    #[test]
    fn indices_wrap_and_stale_ones_change_nothing() {
        let mut posts = Posts::<RecvWr>::new(4, 1);
        (posts.posted, posts.rung, posts.retired) = (0xfffe, 0xfffe, 0xfffe);
        for id in 0..4 {
            posts.post(request(id), [sge(0)].into_iter());
        }
        posts.retire(0xffff);
        assert_eq!(posts.free(), 0, "nothing was rung");
        assert!(posts.ring(|_, _| 0).is_empty());
        posts.retire(0xfffd);
        posts.retire(2);
        assert_eq!(posts.free(), 0, "neither is outstanding");
        posts.retire(0);
        assert_eq!(posts.free(), 3);
        posts.reset();
        assert_eq!((posts.free(), posts.next_index()), (4, 0));
    }

    #[test]
    fn what_was_not_taken_is_told() {
        let mut posts = Posts::<RecvWr>::new(4, 1);
        for id in 10..14 {
            posts.post(request(id), [sge(0)].into_iter());
        }
        let left = posts.ring(|list, bad| {
            // SAFETY: the second of four requests.
            let second = unsafe { (*list).next };
            // SAFETY: a pointer to write to.
            unsafe { *bad = second };
            12
        });
        assert_eq!(left, [11, 12, 13]);
    }
}
