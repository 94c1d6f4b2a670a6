//! State of the host that the programs of Narrows share: calibration, what is remembered of peers,
//! memory and descriptors, priorities, signals, the service manager, hints about files, what files
//! were when they were read, inputs and outputs, files that appear whole, wildcards, words for people, and which
//! connections are encrypted.

pub mod bound;
pub mod cache;
pub mod calibration;
pub mod config;
pub mod encrypted;
pub mod file_state;
pub mod files;
pub mod follow;
pub mod hints;
pub mod idle;
pub mod lines;
pub mod manager;
pub mod means;
pub mod near;
pub mod output;
pub mod peers;
pub mod shares;
pub mod shell;
pub mod signals;
pub mod whole;
pub mod wildcard;
pub mod words;
