//! Kernel objects behind small typed wrappers.
#![forbid(unsafe_code)]
