//! Inputs and outputs of commands: those of the host, and sources that end at a signal.

mod stopping;

pub(crate) use narrows_host::files::*;
pub(crate) use stopping::Stopping;
