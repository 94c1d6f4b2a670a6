//! The blocking driver: moves bytes between an engine, the source or sink, and a link, and runs jobs on a pool.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::policy::Policy;
use crate::receiver::{ReceiverConfig, RecvSummary};
use crate::sender::{SenderConfig, Summary};
use crate::transport::Link;

/// How a flow is seen and stopped from other threads.
#[derive(Default)]
pub struct Control {}

impl Control {
    /// Makes the transfer end soon with an error; for SIGINT.
    pub fn stop(&self) {}

    /// Totals so far.
    pub fn send_summary(&self) -> Summary {
        todo!()
    }

    pub fn receive_summary(&self) -> RecvSummary {
        todo!()
    }
}

pub struct SendOptions {
    pub sender: SenderConfig,
    pub policy: Box<dyn Policy>,
    /// Worker threads that encode, besides the threads that read and write.
    pub threads: usize,
    /// Give up when the link takes nothing, or a duplex peer confirms nothing, for this long.
    pub stall_timeout: Option<Duration>,
    /// Gets every decision as a JSON line.
    pub trace: Option<Box<dyn Write + Send>>,
}

pub struct ReceiveOptions {
    pub receiver: ReceiverConfig,
    pub threads: usize,
    pub stall_timeout: Option<Duration>,
}

/// Sends everything that `source` gives. On a duplex link it returns when the receiver has confirmed that all is
/// stored. Also gives the policy back, with what it learned.
pub fn send(
    source: impl Read + Send + 'static,
    link: Link,
    options: SendOptions,
    control: &Arc<Control>,
) -> Result<(Summary, Box<dyn Policy>)> {
    let _ = (source, link, options, control);
    todo!()
}

/// Receives one stream into `sink`. `commit` is called after the last byte was written and before the sender is told
/// that all is stored: the place for fsync and rename. Its error is sent to the peer.
pub fn receive(
    sink: impl Write + Send + 'static,
    link: Link,
    options: ReceiveOptions,
    commit: impl FnOnce() -> std::io::Result<()>,
    control: &Arc<Control>,
) -> Result<RecvSummary> {
    let _ = (sink, link, options, commit, control);
    todo!()
}
