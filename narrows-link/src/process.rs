//! Processes that run at a side.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::sys;

/// Ends a child that leads a process group of its own, and the group: politely, then after `patience` for good.
pub fn end_group(child: &mut Child, patience: Duration) {
    let group = -(child.id() as i32);
    let _ = sys::kill(group, libc::SIGTERM);
    let begun = Instant::now();
    while begun.elapsed() < patience && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = sys::kill(group, libc::SIGKILL);
    let _ = child.wait();
}

/// From now on Ctrl-C and Ctrl-\ are for the command that was started before, as in a shell.
pub fn leave_terminal_signals_to_children() {
    sys::leave_terminal_signals_to_children();
}
