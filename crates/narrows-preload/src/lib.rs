//! The library that `narrows run` preloads into a program: it hands each TCP connection to the
//! supervisor and leaves a unix socket in its place.
//!
//! Data never passes through here. `read`, `write`, `poll`, `epoll_wait`, `close` and `fork` are
//! not hooked: the unix socket under the program's descriptor number behaves as they need. The
//! hooks see connections begin (`connect`, `accept`), and answer what a unix socket cannot (names,
//! options). Each makes the real call first, and looks only at sockets that are, or may become,
//! ours. No heap, no lock, no thread, no descriptor that outlives a call; errno stays as the real
//! call left it, because all our own calls are raw (`sys.rs`).
//!
//! The exported symbols are in `hooks` and `spawn.rs`; they handle the program's pointers and call
//! plain functions of the other modules. `narrows-run-wire` is the protocol shared with the
//! supervisor.

#![cfg_attr(test, allow(dead_code, reason = "symbols are not exported from tests, so nothing calls them"))]

mod begin;
mod control;
mod freestanding;
mod hooks;
mod marks;
mod next;
mod options;
mod receive;
mod registrations;
mod rings;
mod setup;
mod spawn;
mod start;
mod swap;
mod sys;

use narrows_run_wire::{kinds, wire};
