//! Protocol between the supervisor of `narrows run` and the library that it preloads into programs.
//!
//! It uses `core` only: no heap, and nothing but decoding can fail.

#![cfg_attr(not(test), no_std)]

pub mod kinds;
pub mod wire;
