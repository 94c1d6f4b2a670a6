//! From the figures of link, hosts and folder to a prediction, and its forms of
//! output. What happens on the link is in `narrows_copy::measure`.

pub mod folder;
pub mod page;
pub mod predict;
pub mod show;
