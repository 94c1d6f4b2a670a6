//! This process, as the system sees it.

use std::time::{Duration, SystemTime};

use rustix::process::{geteuid, getpid};
use rustix::time::{ClockId, clock_gettime};

use super::status::{Status, VERSION};

/// The part of the status that all kinds of processes have. `age` is the time since it began to work.
pub fn status(kind: &str, program: &str, age: Duration) -> Status {
    Status {
        version: VERSION,
        kind: kind.into(),
        pid: getpid().as_raw_pid(),
        user: geteuid().as_raw(),
        program: program.into(),
        narrows: env!("CARGO_PKG_VERSION").into(),
        age_s: age.as_secs_f64(),
        cpu_s: cpu_s(),
        memory_bytes: memory_bytes().unwrap_or(0),
        ..Status::default()
    }
}

/// CPU time of all threads.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resident memory.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Open descriptors.
pub(crate) fn descriptors() -> Option<usize> {
    // The folder itself is open meanwhile.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// When a process began that has this age, in seconds since 1970.
pub(crate) fn started_s(age_s: f64) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs_f64() - age_s).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let status = status("tunnel", "p", Duration::from_millis(1500));
        assert_eq!((status.pid, status.age_s), (std::process::id() as i32, 1.5));
        assert!(status.memory_bytes > 1 << 16 && status.cpu_s >= 0.0 && descriptors().unwrap() >= 3);
    }
}
