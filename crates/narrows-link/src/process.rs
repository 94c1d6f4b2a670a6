//! Processes that run at a side.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::sys;

/// How soon it is seen that the last one has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ends a child that leads a process group of its own, and the group: politely, then after `patience` for good. All of the
/// group have that time, however soon the child ends.
pub fn end_group(child: &mut Child, patience: Duration) {
    let group = -(child.id() as i32);
    let _ = sys::kill(group, libc::SIGTERM);
    let begun = Instant::now();
    loop {
        // It is one of the group until it is reaped.
        let _ = child.try_wait();
        if sys::kill(group, 0).is_err_and(|e| e.raw_os_error() == Some(libc::ESRCH)) {
            break;
        }
        if begun.elapsed() >= patience {
            let _ = sys::kill(group, libc::SIGKILL);
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // A child may have left its group.
    let _ = child.kill();
    let _ = child.wait();
}

/// From now on Ctrl-C and Ctrl-\ are for the command that was started before, as in a shell.
pub fn leave_terminal_signals_to_children() {
    sys::leave_terminal_signals_to_children();
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{ChildStdout, Command, Stdio};

    use super::*;

    /// The leader ends at SIGTERM at once, another one of its group does `at_term` first.
    fn group(at_term: &str) -> (Child, ChildStdout) {
        let script = format!("(trap '{at_term}' TERM; echo up; while :; do sleep 0.01; done) & wait");
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = sh.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 3]).unwrap();
        (child, stdout)
    }

    #[test]
    fn all_of_a_group_have_time_to_end() {
        let (mut child, mut stdout) = group("sleep 0.3; echo done; exit");
        end_group(&mut child, Duration::from_secs(20));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "done\n");
    }

    #[test]
    fn who_does_not_end_is_ended() {
        let (mut child, mut stdout) = group("");
        end_group(&mut child, Duration::from_millis(50));
        // Its end of the pipe was the last one.
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
}
