//! Boost's queue, by way of a shim in C++.
//!
//! Nothing is inlined across the two languages: each operation is a call, some 1 ns that the others
//! do not pay.

use std::{ffi::c_void, marker::PhantomData, mem::MaybeUninit, ptr::NonNull, sync::Arc};

use copyrpc_bench::threads::{CAPACITY_ITEMS, Item, spsc_ring::Queue as Peer};

macro_rules! shim {
    ($($size:literal: $new:ident $delete:ident $push:ident $push_one:ident $pop:ident $pop_one:ident;)*) => {
        unsafe extern "C" {$(
            fn $new(capacity: usize) -> *mut c_void;
            fn $delete(queue: *mut c_void);
            fn $push(queue: *mut c_void, items: *const c_void, count: usize) -> usize;
            fn $push_one(queue: *mut c_void, item: *const c_void) -> bool;
            fn $pop(queue: *mut c_void, items: *mut c_void, count: usize) -> usize;
            fn $pop_one(queue: *mut c_void, item: *mut c_void) -> bool;
        )*}

        const fn calls(item_bytes: usize) -> Calls {
            match item_bytes {
                $($size => Calls {
                    new: $new,
                    delete: $delete,
                    push: $push,
                    push_one: $push_one,
                    pop: $pop,
                    pop_one: $pop_one,
                },)*
                _ => panic!("the shim has no queue of such items"),
            }
        }
    };
}

shim! {
    8: boost_spsc_new_8 boost_spsc_delete_8 boost_spsc_push_8 boost_spsc_push_one_8 boost_spsc_pop_8
       boost_spsc_pop_one_8;
    64: boost_spsc_new_64 boost_spsc_delete_64 boost_spsc_push_64 boost_spsc_push_one_64
        boost_spsc_pop_64 boost_spsc_pop_one_64;
}

/// The shim for items of one size. Queues are made by `new`; items are as long as the size says.
struct Calls {
    new: unsafe extern "C" fn(usize) -> *mut c_void,
    delete: unsafe extern "C" fn(*mut c_void),
    push: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> usize,
    push_one: unsafe extern "C" fn(*mut c_void, *const c_void) -> bool,
    pop: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> usize,
    pop_one: unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool,
}

struct Queue<T> {
    queue: NonNull<c_void>,
    items: PhantomData<T>,
}

impl<T> Queue<T> {
    /// Known when compiled, so each call is direct.
    const CALLS: Calls = {
        assert!(align_of::<T>() == align_of::<u64>());
        calls(size_of::<T>())
    };

    fn new(capacity: usize) -> Self {
        // SAFETY: any capacity will do.
        let queue = unsafe { (Self::CALLS.new)(capacity) };
        Self { queue: NonNull::new(queue).expect("new does not return null"), items: PhantomData }
    }

    fn as_ptr(&self) -> *mut c_void {
        self.queue.as_ptr()
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and both ends are gone.
        unsafe { (Self::CALLS.delete)(self.as_ptr()) };
    }
}

// SAFETY: the queue moves items from one thread to another, and is used by one `Tx` and one `Rx`.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above; no `&T` is given out.
unsafe impl<T: Send> Sync for Queue<T> {}

pub struct Tx<T>(Arc<Queue<T>>);
pub struct Rx<T>(Arc<Queue<T>>);

pub enum Boost {}

impl Peer for Boost {
    const NAME: &'static str = "boost spsc_queue";
    const HAS_SLICES: bool = true;
    type Tx<T: Item> = Tx<T>;
    type Rx<T: Item> = Rx<T>;

    fn channel<T: Item>() -> (Tx<T>, Rx<T>) {
        let queue = Arc::new(Queue::new(CAPACITY_ITEMS));
        (Tx(queue.clone()), Rx(queue))
    }

    #[inline(always)]
    fn push<T: Item>(tx: &mut Tx<T>, item: T) -> bool {
        // SAFETY: there is one `Tx`, and the item is as long as the queue's.
        unsafe { (Queue::<T>::CALLS.push_one)(tx.0.as_ptr(), (&raw const item).cast()) }
    }

    #[inline(always)]
    fn pop<T: Item>(rx: &mut Rx<T>) -> Option<T> {
        let mut item = MaybeUninit::<T>::uninit();
        // SAFETY: there is one `Rx`, and the item is as long as the queue's.
        let found = unsafe { (Queue::<T>::CALLS.pop_one)(rx.0.as_ptr(), item.as_mut_ptr().cast()) };
        // SAFETY: the queue wrote it.
        found.then(|| unsafe { item.assume_init() })
    }

    #[inline(always)]
    fn push_slice<T: Item>(tx: &mut Tx<T>, items: &[T]) -> usize {
        // SAFETY: there is one `Tx`, and there are so many items.
        unsafe { (Queue::<T>::CALLS.push)(tx.0.as_ptr(), items.as_ptr().cast(), items.len()) }
    }

    #[inline(always)]
    fn pop_slice<T: Item>(rx: &mut Rx<T>, items: &mut [T]) -> usize {
        // SAFETY: there is one `Rx`, and there is room for so many items.
        unsafe { (Queue::<T>::CALLS.pop)(rx.0.as_ptr(), items.as_mut_ptr().cast(), items.len()) }
    }
}
