//! The engine in virtual time: simulates a policy on given data, link, cores and receiver, and
//! computes how good any choice could have been.
//!
//! ```text
//! every method on every block --> table --> world: the real sender, the table's costs, a link and receiver as models
//!                                      \--> judge: the bound, and the best schedule found
//! ```
//!
//! The same table, conditions and policy give the same result bit for bit, on every machine.

#[cfg(test)]
mod examples;
pub mod judge;
pub mod limits;
pub mod measure;
pub mod overhead;
pub mod rng;
pub mod schedule;
pub mod sketch;
pub mod table;
pub mod world;
