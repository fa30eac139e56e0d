//! The peers, behind the trait that is dispatched statically.

use copyrpc_bench::threads::{CAPACITY_ITEMS, Item, spsc_ring::Queue};

pub enum Rtrb {}

impl Queue for Rtrb {
    const NAME: &'static str = "rtrb";
    const HAS_SLICES: bool = true;
    type Tx<T: Item> = rtrb::Producer<T>;
    type Rx<T: Item> = rtrb::Consumer<T>;

    fn channel<T: Item>() -> (Self::Tx<T>, Self::Rx<T>) {
        rtrb::RingBuffer::new(CAPACITY_ITEMS)
    }

    #[inline(always)]
    fn push<T: Item>(tx: &mut Self::Tx<T>, item: T) -> bool {
        tx.push(item).is_ok()
    }

    #[inline(always)]
    fn pop<T: Item>(rx: &mut Self::Rx<T>) -> Option<T> {
        rx.pop().ok()
    }

    #[inline(always)]
    fn push_slice<T: Item>(tx: &mut Self::Tx<T>, items: &[T]) -> usize {
        tx.push_partial_slice(items).0.len()
    }

    #[inline(always)]
    fn pop_slice<T: Item>(rx: &mut Self::Rx<T>, items: &mut [T]) -> usize {
        rx.pop_partial_slice(items).0.len()
    }
}

pub enum Ringbuf {}

impl Queue for Ringbuf {
    const NAME: &'static str = "ringbuf";
    const HAS_SLICES: bool = true;
    type Tx<T: Item> = ringbuf::HeapProd<T>;
    type Rx<T: Item> = ringbuf::HeapCons<T>;

    fn channel<T: Item>() -> (Self::Tx<T>, Self::Rx<T>) {
        ringbuf::traits::Split::split(ringbuf::HeapRb::new(CAPACITY_ITEMS))
    }

    #[inline(always)]
    fn push<T: Item>(tx: &mut Self::Tx<T>, item: T) -> bool {
        ringbuf::traits::Producer::try_push(tx, item).is_ok()
    }

    #[inline(always)]
    fn pop<T: Item>(rx: &mut Self::Rx<T>) -> Option<T> {
        ringbuf::traits::Consumer::try_pop(rx)
    }

    #[inline(always)]
    fn push_slice<T: Item>(tx: &mut Self::Tx<T>, items: &[T]) -> usize {
        ringbuf::traits::Producer::push_slice(tx, items)
    }

    #[inline(always)]
    fn pop_slice<T: Item>(rx: &mut Self::Rx<T>, items: &mut [T]) -> usize {
        ringbuf::traits::Consumer::pop_slice(rx, items)
    }
}

macro_rules! channels {
    ($($name:ident, $title:literal: $tx:ident $rx:ident $new:path,
       |$t:ident, $item:ident| $push:expr, |$r:ident| $pop:expr;)*) => {$(
        pub enum $name {}

        impl Queue for $name {
            const NAME: &'static str = $title;
            type Tx<T: Item> = types::$tx<T>;
            type Rx<T: Item> = types::$rx<T>;

            fn channel<T: Item>() -> (Self::Tx<T>, Self::Rx<T>) {
                $new(CAPACITY_ITEMS)
            }

            #[inline(always)]
            fn push<T: Item>($t: &mut Self::Tx<T>, $item: T) -> bool {
                $push
            }

            #[inline(always)]
            fn pop<T: Item>($r: &mut Self::Rx<T>) -> Option<T> {
                $pop
            }
        }
    )*};
}

mod types {
    pub use crossbeam_channel::{Receiver as ChannelRx, Sender as ChannelTx};
    pub use flume::{Receiver as FlumeRx, Sender as FlumeTx};
    pub use kanal::{Receiver as KanalRx, Sender as KanalTx};
    pub use std::sync::mpsc::{Receiver as StdRx, SyncSender as StdTx};

    pub type QueueTx<T> = std::sync::Arc<crossbeam_queue::ArrayQueue<T>>;
    pub type QueueRx<T> = std::sync::Arc<crossbeam_queue::ArrayQueue<T>>;
}

fn array_queue<T>(capacity: usize) -> (types::QueueTx<T>, types::QueueRx<T>) {
    let queue = std::sync::Arc::new(crossbeam_queue::ArrayQueue::new(capacity));
    (queue.clone(), queue)
}

channels! {
    CrossbeamQueue, "crossbeam ArrayQueue": QueueTx QueueRx array_queue,
        |tx, item| tx.push(item).is_ok(), |rx| rx.pop();
    CrossbeamChannel, "crossbeam-channel bounded": ChannelTx ChannelRx crossbeam_channel::bounded,
        |tx, item| tx.try_send(item).is_ok(), |rx| rx.try_recv().ok();
    StdMpsc, "std sync_channel": StdTx StdRx std::sync::mpsc::sync_channel,
        |tx, item| tx.try_send(item).is_ok(), |rx| rx.try_recv().ok();
    Flume, "flume bounded": FlumeTx FlumeRx flume::bounded,
        |tx, item| tx.try_send(item).is_ok(), |rx| rx.try_recv().ok();
    Kanal, "kanal bounded": KanalTx KanalRx kanal::bounded,
        |tx, item| tx.try_send(item) == Ok(true), |rx| rx.try_recv().ok().flatten();
}
