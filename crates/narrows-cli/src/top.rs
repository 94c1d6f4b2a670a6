//! `narrows top`: what runs, live. `world` turns answers of processes into rates, `frame` draws them
//! as lines, `screen` is the terminal. Only `screen` and `cmd/top.rs` have I/O.

pub(crate) mod frame;
pub(crate) mod graph;
pub(crate) mod picture;
pub(crate) mod screen;
pub(crate) mod view;
pub(crate) mod world;
