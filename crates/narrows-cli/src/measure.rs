//! `narrows measure`: from the figures of link, hosts and folder to a prediction, and its forms of
//! output. What happens on the link is in `narrows_copy::measure`.

pub(crate) mod folder;
pub(crate) mod page;
pub(crate) mod predict;
pub(crate) mod show;
