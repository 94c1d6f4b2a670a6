//! `narrows plan`: samples of data, measured methods, and the forms of output.

pub(crate) mod measure;
pub(crate) mod page;
pub(crate) mod sample;
pub(crate) mod show;
