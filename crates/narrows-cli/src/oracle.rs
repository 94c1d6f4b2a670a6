//! `narrows oracle`: what is attainable with given data on a given link.
//!
//! ```text
//! input -> bytes -> cache or measuring -> table -> judge (virtual time) -> show (table, JSON), page
//!                                  energy ---------^
//! ```

pub(crate) mod cache;
pub(crate) mod energy;
pub(crate) mod input;
pub(crate) mod judge;
pub(crate) mod page;
pub(crate) mod show;
