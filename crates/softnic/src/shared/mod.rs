//! What several processes change at once: five small protocols over atomics, and nothing else.
//!
//! Each takes references to atomics and so runs on mapped memory, on the heap under Miri, and under
//! loom. None blocks: a party that stops or dies at any instruction leaves a word that says who it
//! was, and the owner of the memory can finish or undo its step.
//!
//! | module | who | what |
//! |---|---|---|
//! | [`slots`] | any producer | take the next entry of a completion queue |
//! | [`claims`] | any sender | take the next receive of an RQ or SRQ |
//! | [`port_lock`] | any sender | be alone for some instructions |
//! | [`arm`] | consumer and producers | sleep on a completion queue without losing a wake-up |
//! | [`presence`] | executor and owner | know that nobody is inside an object any more |

pub mod arm;
pub mod claims;
pub mod port_lock;
pub mod presence;
pub mod slots;

/// Who holds a word: the LID of a port, or [`NOBODY`].
pub type Holder = u16;

/// LID 0 is not assigned to any port.
pub const NOBODY: Holder = 0;
