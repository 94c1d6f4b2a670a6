//! Configuration of message ends from Python arguments.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use narrows::message::{Carrier, Delivery, MessageConfig};
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup};
use narrows::{Error, Result};
use pyo3::prelude::*;

use super::Dictionary;

/// Arguments common to all message classes.
pub(crate) struct Settings<'py> {
    pub(crate) delivery: &'py str,
    pub(crate) borders: bool,
    pub(crate) duplex: bool,
    pub(crate) message_max: usize,
    pub(crate) history: usize,
    pub(crate) dictionary_max: usize,
    pub(crate) slots: usize,
    pub(crate) epoch: Option<u64>,
    pub(crate) check_all: bool,
    pub(crate) seed: Option<PyRef<'py, Dictionary>>,
    pub(crate) known: Vec<PyRef<'py, Dictionary>>,
}

impl Settings<'_> {
    pub(crate) fn config(self) -> Result<MessageConfig> {
        let delivery = match self.delivery {
            "ordered" => Delivery::Ordered,
            "unordered" => Delivery::Unordered,
            "fanout" => Delivery::Fanout,
            other => {
                return Err(Error::misuse(format!(
                    "delivery must be 'ordered', 'unordered' or 'fanout', not '{other}'"
                )));
            }
        };
        let mut known: Vec<_> = self.known.iter().map(|d| Arc::clone(&d.0)).collect();
        let seed = self.seed.map(|d| Arc::clone(&d.0));
        // An end that starts with the seed also knows it.
        known.extend(seed.clone());
        Ok(MessageConfig {
            carrier: Carrier { delivery, borders: self.borders },
            duplex: self.duplex,
            message_max: self.message_max,
            history: self.history,
            dictionary_max: self.dictionary_max,
            slots: self.slots,
            epoch: self.epoch.unwrap_or_else(new_epoch),
            check_all: self.check_all,
            seed,
            known,
        })
    }
}

/// A random number of 64 bits, which no other connection and not the other end has.
pub(crate) fn new_epoch() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(crate) fn policy(spec: &str) -> Result<Box<dyn Policy>> {
    let spec = narrows_classic::policies().parse(spec)?;
    if let Some(file) = spec.file() {
        return Err(Error::misuse(format!("policies with a file such as {file} do not apply to messages")));
    }
    Ok(spec.build(&PolicySetup::new(1, Prior::shipped())))
}
