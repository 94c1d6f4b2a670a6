//! Where programs race: this host's loopback device, or two hosts with an emulated link between them.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The two ends of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// Plain loopback in the words of `--link`.
pub(crate) const NONE: &str = "none";

pub(crate) enum Net {
    Local,
}

impl Net {
    /// The sender is the client, unless data goes `down`.
    pub(crate) fn start(profile: &str, down: bool) -> Result<Self> {
        let _ = down;
        anyhow::ensure!(profile == NONE, "there is no link '{profile}'");
        Ok(Self::Local)
    }

    pub(crate) fn check(profile: &str) -> Result<(), String> {
        if profile == NONE { Ok(()) } else { Err("there is no such link".into()) }
    }

    /// What plain could carry in a second, where that is limited.
    pub(crate) fn bytes_per_s(_profile: &str, _down: bool) -> Option<f64> {
        None
    }

    /// Of the receiver.
    pub(crate) fn address(&self) -> String {
        "127.0.0.1".into()
    }

    pub(crate) fn command(&self, _end: End, program: &str) -> Command {
        Command::new(program)
    }

    /// Nobody listens there yet. A new one every time: the last one may still wait for stray packets.
    pub(crate) fn free_port(&self) -> Result<u16> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        match self {
            Self::Local => {
                let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
                Ok(listener.local_addr()?.port())
            }
            #[allow(unreachable_patterns)]
            _ => Ok(20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000),
        }
    }
}
