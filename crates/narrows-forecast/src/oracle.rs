//! The attainable rate for given data on a given link.
//!
//! ```text
//! input -> bytes -> cache or measuring -> table -> judge (virtual time) -> show (table, JSON), page
//!                                  energy ---------^
//! ```

pub mod cache;
pub mod energy;
pub mod input;
pub mod judge;
pub mod page;
pub mod show;
