//! Congestion control, as a session may choose it: [`Timely`] computes a rate from round trips, and [`Carousel`]
//! says when a session that sends at a rate may send next.

mod carousel;
mod timely;

pub use carousel::{Carousel, Pacer};
pub use timely::{Timely, TimelyConfig};
