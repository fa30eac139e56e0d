//! The queues, behind one trait that is dispatched statically.

use copyrpc_inproc::spsc;

/// A bounded queue between two threads.
pub trait Peer: 'static {
    const NAME: &'static str;
    /// Whether both sides move slices.
    const HAS_SLICES: bool = false;
    type Tx<T: Copy + Send + 'static>: Send;
    type Rx<T: Copy + Send + 'static>: Send;

    fn channel<T: Copy + Send + 'static>(capacity: usize) -> (Self::Tx<T>, Self::Rx<T>);
    /// False if full.
    fn push<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, item: T) -> bool;
    fn pop<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>) -> Option<T>;

    fn push_slice<T: Copy + Send + 'static>(_tx: &mut Self::Tx<T>, _items: &[T]) -> usize {
        unreachable!("asked only where HAS_SLICES")
    }

    fn pop_slice<T: Copy + Send + 'static>(_rx: &mut Self::Rx<T>, _items: &mut [T]) -> usize {
        unreachable!("asked only where HAS_SLICES")
    }
}

macro_rules! ours {
    ($name:ident, $discipline:ty, $title:literal) => {
        pub enum $name {}

        impl Peer for $name {
            const NAME: &'static str = $title;
            const HAS_SLICES: bool = true;
            type Tx<T: Copy + Send + 'static> = spsc::Producer<T, $discipline>;
            type Rx<T: Copy + Send + 'static> = spsc::Consumer<T, $discipline>;

            fn channel<T: Copy + Send + 'static>(capacity: usize) -> (Self::Tx<T>, Self::Rx<T>) {
                // As many slots as the others have: some are kept in reserve.
                spsc::channel(capacity - capacity / 8 + 1)
            }

            #[inline(always)]
            fn push<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, item: T) -> bool {
                tx.push(item).is_ok()
            }

            #[inline(always)]
            fn pop<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>) -> Option<T> {
                rx.pop()
            }

            #[inline(always)]
            fn push_slice<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, items: &[T]) -> usize {
                tx.push_slice(items)
            }

            #[inline(always)]
            fn pop_slice<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>, items: &mut [T]) -> usize {
                rx.pop_slice(items)
            }
        }
    };
}

ours!(OurLamport, spsc::Lamport, "copyrpc lamport");
ours!(OurFastForward, spsc::FastForward, "copyrpc fastforward");
ours!(OurOnesided, spsc::Onesided, "copyrpc onesided");

pub enum Rtrb {}

impl Peer for Rtrb {
    const NAME: &'static str = "rtrb";
    const HAS_SLICES: bool = true;
    type Tx<T: Copy + Send + 'static> = rtrb::Producer<T>;
    type Rx<T: Copy + Send + 'static> = rtrb::Consumer<T>;

    fn channel<T: Copy + Send + 'static>(capacity: usize) -> (Self::Tx<T>, Self::Rx<T>) {
        rtrb::RingBuffer::new(capacity)
    }

    #[inline(always)]
    fn push<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, item: T) -> bool {
        tx.push(item).is_ok()
    }

    #[inline(always)]
    fn pop<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>) -> Option<T> {
        rx.pop().ok()
    }

    #[inline(always)]
    fn push_slice<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, items: &[T]) -> usize {
        tx.push_partial_slice(items).0.len()
    }

    #[inline(always)]
    fn pop_slice<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>, items: &mut [T]) -> usize {
        rx.pop_partial_slice(items).0.len()
    }
}

pub enum Ringbuf {}

impl Peer for Ringbuf {
    const NAME: &'static str = "ringbuf";
    const HAS_SLICES: bool = true;
    type Tx<T: Copy + Send + 'static> = ringbuf::HeapProd<T>;
    type Rx<T: Copy + Send + 'static> = ringbuf::HeapCons<T>;

    fn channel<T: Copy + Send + 'static>(capacity: usize) -> (Self::Tx<T>, Self::Rx<T>) {
        ringbuf::traits::Split::split(ringbuf::HeapRb::new(capacity))
    }

    #[inline(always)]
    fn push<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, item: T) -> bool {
        ringbuf::traits::Producer::try_push(tx, item).is_ok()
    }

    #[inline(always)]
    fn pop<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>) -> Option<T> {
        ringbuf::traits::Consumer::try_pop(rx)
    }

    #[inline(always)]
    fn push_slice<T: Copy + Send + 'static>(tx: &mut Self::Tx<T>, items: &[T]) -> usize {
        ringbuf::traits::Producer::push_slice(tx, items)
    }

    #[inline(always)]
    fn pop_slice<T: Copy + Send + 'static>(rx: &mut Self::Rx<T>, items: &mut [T]) -> usize {
        ringbuf::traits::Consumer::pop_slice(rx, items)
    }
}

macro_rules! channels {
    ($($name:ident, $title:literal: $tx:ident $rx:ident $new:path,
       |$t:ident, $item:ident| $push:expr, |$r:ident| $pop:expr;)*) => {$(
        pub enum $name {}

        impl Peer for $name {
            const NAME: &'static str = $title;
            type Tx<T: Copy + Send + 'static> = types::$tx<T>;
            type Rx<T: Copy + Send + 'static> = types::$rx<T>;

            fn channel<T: Copy + Send + 'static>(capacity: usize) -> (Self::Tx<T>, Self::Rx<T>) {
                $new(capacity)
            }

            #[inline(always)]
            fn push<T: Copy + Send + 'static>($t: &mut Self::Tx<T>, $item: T) -> bool {
                $push
            }

            #[inline(always)]
            fn pop<T: Copy + Send + 'static>($r: &mut Self::Rx<T>) -> Option<T> {
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
