//! State of the host that the programs of Narrows share: calibration, memory and descriptors,
//! signals, files that appear whole, and words for people.

pub mod calibration;
pub mod means;
pub mod shares;
pub mod signals;
pub mod whole;
pub mod words;
