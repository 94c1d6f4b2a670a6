//! Signals to the processes that run at a side.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::sys;

/// Polling interval for the end of a process group.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ends a child that leads its own process group, and the group: SIGTERM, then SIGKILL after
/// `patience`. The whole group has that time, however soon the child ends.
pub fn end_group(child: &mut Child, patience: Duration) {
    let group = -(child.id() as i32);
    let _ = sys::kill(group, libc::SIGTERM);
    let begun = Instant::now();
    loop {
        // An ended child belongs to the group until it is reaped.
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

/// Ignores Ctrl-C and Ctrl-\ in this process, so that only the command that was started before gets
/// them, as in a shell.
pub fn leave_terminal_signals_to_children() {
    sys::leave_terminal_signals_to_children();
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{ChildStdout, Command, Stdio};

    use super::*;

    /// The leader ends at SIGTERM at once; another process of its group runs `at_term` first.
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
        // End of file: the killed process held the last write end of the pipe.
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
}
