//! The begin of a program and of its forked children.

use crate::wire::Kind;
use crate::{control, freestanding, marks, next, setup};

/// Constructor, called by the loader.
pub(crate) extern "C" fn start() {
    freestanding::resolve();
    next::resolve();
    if setup::read() {
        freestanding::at_fork(forked, forked_child);
        control::post(Kind::Hello, |_| ());
    }
}

/// Fork handler in the parent: sockets created before may be shared from here on.
pub(crate) extern "C" fn forked() {
    marks::next_generation();
}

pub(crate) extern "C" fn forked_child() {
    marks::next_generation();
    crate::swap::close_temporaries();
    control::post(Kind::Hello, |_| ());
}
