//! Makes chosen system calls fail, or kill the program: a seccomp filter on the thread that starts
//! the program, which inherits it.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The calls that fail.
#[derive(Clone, Copy)]
pub(crate) enum Failing {
    /// All calls with this number.
    All(i64),
    /// Calls of `pread64` or `pwrite64` at this offset in bytes or after it.
    From(i64, u64),
}

/// Runs `run` on a thread whose programs get `errno` from these calls. If that is not possible,
/// records why and returns `None`.
#[track_caller]
pub(crate) fn with_failing<T: Send>(calls: &[Failing], errno: i32, run: impl FnOnce() -> T + Send) -> Option<T> {
    with(calls, SeccompAction::Errno(errno as u32), run)
}

/// Runs `run` on a thread whose programs are killed by these calls before the calls take effect.
#[track_caller]
pub(crate) fn with_fatal<T: Send>(calls: &[i64], run: impl FnOnce() -> T + Send) -> Option<T> {
    let calls: Vec<_> = calls.iter().map(|number| Failing::All(*number)).collect();
    with(&calls, SeccompAction::KillProcess, run)
}

#[track_caller]
fn with<T: Send>(calls: &[Failing], action: SeccompAction, run: impl FnOnce() -> T + Send) -> Option<T> {
    let Some(program) = program(calls, action) else {
        narrows_test::skip("no filters of system calls for this processor");
        return None;
    };
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| seccompiler::apply_filter(&program).map(|()| run()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    done.inspect_err(|e| narrows_test::skip(format!("system calls cannot be filtered here: {e}"))).ok()
}

fn program(calls: &[Failing], action: SeccompAction) -> Option<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).ok()?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in calls {
        match *call {
            Failing::All(number) => drop(rules.insert(number, Vec::new())),
            Failing::From(number, offset) => {
                let at = SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Ge, offset);
                rules.insert(number, vec![SeccompRule::new(vec![at.unwrap()]).unwrap()]);
            }
        }
    }
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch);
    filter.unwrap().try_into().ok()
}
