//! Options of a stream, from C to the engine.

use std::fs;
use std::time::Duration;

use narrows::block::BufferPool;
use narrows::flow::Encoding;
use narrows::frame::BASELINE_HISTORY;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup, PolicySpec};
use narrows::stream::{self, ReceiveOptions, SendOptions};

use crate::status::{Failure, Result, Status};

/// A trace has 500 bytes a block: this is half a million blocks, 64 GB in blocks of 128 KiB.
const POLICY_FILE_MAX: u64 = 256 << 20;
/// More threads than any host has cores: a mistake of the caller.
const THREADS_MAX: u32 = 1024;

/// Raw bytes between the places of an indexed file where a reader can begin, if blocks refer to
/// earlier ones: as `narrows FILE` does.
const RUN_LEN: u64 = 4 << 20;

pub(crate) const ONE_WAY: u32 = 1;
pub(crate) const CLOSE_FD: u32 = 2;
pub(crate) const NO_CHECK: u32 = 4;
pub(crate) const INDEX: u32 = 8;

/// Options of a stream; zeros are the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamOptions {
    pub(crate) policy: Option<String>,
    pub(crate) flags: u32,
    pub(crate) threads: u32,
    pub(crate) stall_timeout_ms: u32,
    pub(crate) raw_len: u64,
}

impl StreamOptions {
    /// Refuses options that do not apply to `what`.
    pub(crate) fn check(&self, what: &str, flags: u32, encodes: bool) -> Result<()> {
        if self.flags & !flags != 0 {
            return Err(Failure::misuse(format!("flags {:#x} do not apply to {what}s", self.flags & !flags)));
        }
        if !encodes && (self.policy.is_some() || self.raw_len != 0) {
            return Err(Failure::misuse(format!("policy and raw_len do not apply to {what}s")));
        }
        if self.threads > THREADS_MAX {
            return Err(Failure::misuse(format!(
                "{} threads are more than the maximum of {THREADS_MAX}",
                self.threads
            )));
        }
        Ok(())
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Options for encoding on threads of the library.
    pub(crate) fn send(&self) -> Result<SendOptions> {
        let threads = if self.threads > 0 { self.threads as usize } else { stream::encoders() };
        Ok(self.options()?.threads(threads).stall_timeout(self.stall_timeout()))
    }

    /// A flow that is encoded on the caller's thread.
    pub(crate) fn encoding(&self, pool: &BufferPool) -> Result<Encoding> {
        Ok(self.options()?.threads(1).encoding(pool))
    }

    fn options(&self) -> Result<SendOptions> {
        let policy = policy(self.policy.as_deref().unwrap_or("balance"))?;
        // A program may have many flows open, so each keeps little.
        let history = if policy.links() { BASELINE_HISTORY } else { 0 };
        let options = SendOptions::new(policy).history(history);
        let raw_len = (self.raw_len > 0).then_some(self.raw_len);
        let run_len = if self.has(INDEX) { RUN_LEN } else { 0 };
        // What C has written goes at once, whatever the policy.
        let options = options.gather_ns(0).check(!self.has(NO_CHECK)).index(self.has(INDEX)).run_len(run_len);
        Ok(options.raw_len(raw_len))
    }

    /// `has_end`: the source has an end of its own, as a file does. A pipe has none while a program
    /// keeps its other end open.
    pub(crate) fn receive(&self, has_end: bool) -> ReceiveOptions {
        let threads = if self.threads > 0 { self.threads as usize } else { stream::cores() };
        let options = ReceiveOptions::default().ends_at_frame(!has_end).images(has_end).threads(threads);
        options.stall_timeout(self.stall_timeout())
    }

    fn stall_timeout(&self) -> Option<Duration> {
        (self.stall_timeout_ms > 0).then(|| Duration::from_millis(self.stall_timeout_ms.into()))
    }
}

/// The policy of a message flow; `messages` if none is named.
pub(crate) fn messages_policy(text: Option<&str>) -> Result<Box<dyn Policy>> {
    Ok(policy(text.unwrap_or("messages"))?.build(&PolicySetup::new(1, Prior::shipped())))
}

/// Parses and builds a person writes it, with the contents of its file.
pub(crate) fn policy(text: &str) -> Result<PolicySpec> {
    let spec = narrows_classic::policies().parse(text)?;
    if spec.keeps() {
        return Err(Failure::misuse(format!("the library does not write tables: use {spec},mode=read")));
    }
    match spec.file() {
        None => Ok(spec),
        Some(path) => {
            let about = |e: &dyn std::fmt::Display| format!("cannot read {path} for the policy {spec}: {e}");
            let io = |e: std::io::Error| Failure::new(Status::NARROWS_ERROR_IO, about(&e));
            let len = fs::metadata(path).map_err(io)?.len();
            if len > POLICY_FILE_MAX {
                return Err(Failure::new(Status::NARROWS_ERROR_LIMIT, about(&"the file is too large")));
            }
            Ok(spec.load(&fs::read(path).map_err(io)?)?)
        }
    }
}
