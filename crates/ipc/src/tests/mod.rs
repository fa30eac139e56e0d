//! Whole servers and clients: in threads, in processes, and under hostile ones.

mod basics;
mod faults;
mod hostile;
mod process;
mod rig;
