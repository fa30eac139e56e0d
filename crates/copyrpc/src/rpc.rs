//! Calls over a NIC of one's own: a [`Worker`] per thread, no daemon.
//!
//! The NIC is anything that implements [`verbs::Nic`]: module `nic` opens one by name.
//!
//! ```
//! # #[cfg(feature = "nic")] {
//! use copyrpc::{
//!     nic::{Opener, soft::SoftOpener},
//!     rpc::{Body, Call, CallEnd, Config, Handler, Request, Status, Worker, now_ns, verbs::Nic},
//! };
//!
//! struct Echo;
//! impl<N: Nic> Handler<N> for Echo {
//!     fn request(&mut self, worker: &mut Worker<N>, request: Request, body: Body<'_, N>) {
//!         // An answer always has a place; it fails only if the caller is gone.
//!         let _ = worker.reply(request.token, Status::Ok, &body.bytes());
//!     }
//!     fn ended(&mut self, _: &mut Worker<N>, _: u64, _: CallEnd<'_, N>) {}
//! }
//!
//! struct Answer(Option<(Status, Vec<u8>)>);
//! impl<N: Nic> Handler<N> for Answer {
//!     fn request(&mut self, _: &mut Worker<N>, _: Request, _: Body<'_, N>) {}
//!     fn ended(&mut self, _: &mut Worker<N>, _: u64, end: CallEnd<'_, N>) {
//!         self.0 = Some((end.status(), end.bytes().into_owned()));
//!     }
//! }
//!
//! let nic = SoftOpener::default();
//! let mut server = Worker::open(nic.open()?, Config::default(), now_ns())?;
//! let mut client = Worker::open(nic.open()?, Config::default(), now_ns())?;
//! // Each tells the other where it is: here by a variable, elsewhere by a socket or a file.
//! let (to_client, from_server) = server.invite()?;
//! let (to_server, from_client) = client.invite()?;
//! server.connect(to_client, &from_client)?;
//! client.connect(to_server, &from_server)?;
//!
//! client.call(to_server, &Call::default(), b"hello")?;
//! let mut answer = Answer(None);
//! while answer.0.is_none() {
//!     server.poll(now_ns(), &mut Echo);
//!     client.poll(now_ns(), &mut answer); // the call ends here, at its deadline at the latest
//! }
//! assert_eq!(answer.0, Some((Status::Ok, b"hello".to_vec())));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use os::clock::{PollClock, now_ns};
#[doc(no_inline)]
pub use rpc::*;
pub use verbs;
