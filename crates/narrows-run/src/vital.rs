//! Vital threads: those without which a supervisor would live on but do nothing.

use std::io::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::thread::Builder;

/// Starts one. If it panics the process aborts: its sockets reset as they close, so programs and
/// peers see an error, where otherwise they would wait for ever.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            abort();
        }
    };
    Builder::new().name(name.into()).spawn(guarded).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    const INSIDE: &str = "NARROWS_TEST_VITAL_PANIC";

    #[test]
    fn a_panic_in_a_vital_thread_ends_the_process() {
        if std::env::var_os(INSIDE).is_some() {
            super::start("vital", || panic!("for the test")).unwrap();
            std::thread::sleep(Duration::from_secs(20));
            return;
        }
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "vital::tests::a_panic_in_a_vital_thread_ends_the_process"])
            .env(INSIDE, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGABRT));
    }
}
