//! Whole servers and clients: in threads, in processes, and under hostile ones.

mod basics;
mod faults;
mod hostile;
mod in_place;
mod introduced;
mod introduction_kills;
mod large;
mod process;
mod replies;
mod rig;
