//! Key, length, time and version of an object, as its store reports them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::condition::Version;

/// An object, as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Stored bytes.
    pub len: u64,
    /// When it was written, by the clock of the store.
    pub written: SystemTime,
    /// Which content it has.
    pub version: Version,
}

/// An object and what was kept with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// As a list has it.
    pub object: Object,
    /// User metadata, by names in lower case.
    pub metadata: BTreeMap<String, String>,
}
