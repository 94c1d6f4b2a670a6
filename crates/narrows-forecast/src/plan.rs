//! The plan for a site: samples of data, measured methods, and the forms of output.

pub mod defaults;
pub mod measure;
pub mod page;
pub mod sample;
pub mod show;
