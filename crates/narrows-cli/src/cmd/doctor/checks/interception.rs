//! The checks of `narrows doctor` on interception: preloading and seccomp notifications.

use std::env;
use std::fs;
use std::io;
use std::process::{Command, Stdio};

use narrows_run::launch;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::Check;

pub(super) fn preload() -> Check {
    const NAME: &str = "preload";
    let value = match launch::preload() {
        Ok(value) => value,
        Err(e) => return Check::missing(NAME, "run cannot load its library into programs", e.to_string()),
    };
    let shown = value.display().to_string();
    // A usual program that shows what it has loaded.
    let output = Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", &value).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            if String::from_utf8_lossy(&output.stdout).contains(launch::LIBRARY) {
                return Check::ok(NAME, shown);
            }
            let said = String::from_utf8_lossy(&output.stderr);
            let why = said.lines().next().unwrap_or("the loader of cat takes no LD_PRELOAD");
            let advice = "install the library that belongs to this system's C library; run --engine=seccomp needs none";
            Check::missing(NAME, format!("{shown} is not loaded: {why}"), advice)
        }
        _ => Check::limited(NAME, format!("{shown}, not tried"), "cat and /proc are needed to try it"),
    }
}

pub(super) fn seccomp() -> Check {
    const NAME: &str = "seccomp";
    const WHAT: &str = "run leaves the connections of static and Go programs plain";
    if !launch::kernel_asks() {
        let advice = "a kernel from 5.0 on, and in containers a profile that allows seccomp() and user notifications";
        return Check::missing(NAME, format!("{WHAT}: the kernel does not notify"), advice);
    }
    if let Err(e) = looks_into_child() {
        let e = narrows_host::words::without_os_numbers(&e.to_string());
        let advice = "allow pidfd_getfd, which needs the rights of ptrace (in containers CAP_SYS_PTRACE; \
                      kernel.yama.ptrace_scope 0 or 1)";
        return Check::missing(NAME, format!("{WHAT}: no looking into their processes: {e}"), advice);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let found = match scope.trim() {
        "1" if !rustix::process::geteuid().is_root() => "works; the supervisor is the parent of the program (Yama)",
        _ => "works",
    };
    Check::ok(NAME, found)
}

/// What a supervisor does with its programs: takes a descriptor of another process.
fn looks_into_child() -> io::Result<()> {
    // Waits for its stdin.
    let mut command = Command::new(env::current_exe()?);
    command.args(["pipe", "-t"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let looked = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|process| pidfd_getfd(process, 0, PidfdGetfdFlags::empty()));
    let _ = child.kill();
    child.wait()?;
    looked.map(drop).map_err(io::Error::from)
}
