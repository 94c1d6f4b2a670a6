//! Options of a stream, from C to the engine.

use std::fs;
use std::time::Duration;

use narrows::frame::BASELINE_HISTORY;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup, PolicySpec};
use narrows::receiver::ReceiverConfig;
use narrows::sender::SenderConfig;
use narrows::stream::{self, ReceiveOptions, SendOptions};

use crate::status::{Failure, Result, Status};

/// A trace has 500 bytes a block: this is half a million blocks, 64 GB in blocks of 128 KiB.
const POLICY_FILE_MAX: u64 = 256 << 20;
/// More threads than any host has cores: a mistake of the caller.
const THREADS_MAX: u32 = 1024;

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
        let (sender, policy) = self.sender(threads)?;
        Ok(SendOptions { sender, policy, threads, stall_timeout: self.stall_timeout(), trace: None, on_note: None })
    }

    /// Configuration and policy for encoding on the caller's thread.
    pub(crate) fn sender(&self, threads: usize) -> Result<(SenderConfig, Box<dyn Policy>)> {
        let chosen = policy(self.policy.as_deref().unwrap_or("balance"), threads)?;
        let config = SenderConfig {
            block_max: chosen.spec.block_max(),
            history: if chosen.spec.links(None) { BASELINE_HISTORY } else { 0 },
            check: !self.has(NO_CHECK),
            index: self.has(INDEX),
            raw_len: (self.raw_len > 0).then_some(self.raw_len),
            ..SenderConfig::default()
        };
        Ok((config, chosen.policy))
    }

    /// `has_end`: the source has an end of its own, as a file does. A pipe has none while a program
    /// keeps its other end open.
    pub(crate) fn receive(&self, has_end: bool) -> ReceiveOptions {
        let threads = if self.threads > 0 { self.threads as usize } else { stream::cores() };
        ReceiveOptions {
            receiver: ReceiverConfig { ends_at_frame: !has_end, ..ReceiverConfig::default() },
            threads,
            stall_timeout: self.stall_timeout(),
            notes: None,
        }
    }

    fn stall_timeout(&self) -> Option<Duration> {
        (self.stall_timeout_ms > 0).then(|| Duration::from_millis(self.stall_timeout_ms.into()))
    }
}

pub(crate) struct Chosen {
    pub(crate) spec: PolicySpec,
    pub(crate) policy: Box<dyn Policy>,
}

/// Parses and builds a policy.
pub(crate) fn policy(text: &str, cores: usize) -> Result<Chosen> {
    let spec: PolicySpec = text.parse()?;
    if spec.keeps() {
        return Err(Failure::misuse(format!("the library does not write tables: use {spec},mode=read")));
    }
    let file = match spec.file() {
        None => None,
        Some(path) => {
            let about = |e: &dyn std::fmt::Display| format!("cannot read {path} for the policy {spec}: {e}");
            let io = |e: std::io::Error| Failure::new(Status::NARROWS_ERROR_IO, about(&e));
            let len = fs::metadata(path).map_err(io)?.len();
            if len > POLICY_FILE_MAX {
                return Err(Failure::new(Status::NARROWS_ERROR_LIMIT, about(&"the file is too large")));
            }
            Some(spec.read_file(&fs::read(path).map_err(io)?)?)
        }
    };
    let setup = PolicySetup { file: file.as_ref(), ..PolicySetup::new(cores, Prior::shipped()) };
    Ok(Chosen { policy: spec.build(&setup), spec })
}
