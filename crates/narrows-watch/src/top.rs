//! What runs, live: the page of `narrows top`. `world` turns answers of processes into rates, `frame` draws them
//! as lines, `screen` is the terminal. `live` asks and shows; only it and `screen` have I/O.

mod frame;
mod graph;
mod live;
mod picture;
mod screen;
mod view;
mod world;

pub use live::{Options, print, watch};
pub use view::Sort;
