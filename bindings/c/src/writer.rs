//! A stream that is written to a descriptor: the application's thread hands bytes to threads of the
//! library, which encode and send them.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use narrows::stream::{self, Control};

use crate::channel::{Channel, Source};
use crate::handles::{Held, Stop, Table};
use crate::options::{CLOSE_FD, INDEX, NO_CHECK, ONE_WAY, StreamOptions};
use crate::status::{Failure, Result};
use crate::sys::{self, Direction};

pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// `None` once joined.
    driver: Option<JoinHandle<()>>,
    owned: Option<OwnedFd>,
}

pub(crate) struct Shared {
    pub(crate) channel: Arc<Channel>,
    pub(crate) control: Arc<Control>,
    /// The process that has the threads, as [`sys::forks`].
    process: u32,
}

impl Shared {
    pub(crate) fn new() -> Result<Arc<Self>> {
        sys::count_forks()?;
        Ok(Arc::new(Self { channel: Arc::default(), control: Arc::default(), process: sys::forks() }))
    }

    /// An error in a child of `fork`. It has none of the threads, and may have inherited a lock
    /// that one of them held, so it must not touch the stream.
    pub(crate) fn check(&self) -> Result<()> {
        if self.process == sys::forks() {
            return Ok(());
        }
        Err(Failure::misuse("this stream belongs to the process that opened it: open streams after fork"))
    }
}

impl Stop for Shared {
    fn stop(&self) -> Result<()> {
        self.check()?;
        self.control.stop();
        self.channel.stop();
        Ok(())
    }
}

/// Starts the thread of a stream. Whoever waits for it is told how it ended, even if it panics.
pub(crate) fn start(
    name: &str,
    channel: &Arc<Channel>,
    run: impl FnOnce() -> narrows::Result<()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    let channel = Arc::clone(channel);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        sys::block_signals();
        let result = catch_unwind(AssertUnwindSafe(run));
        channel.finish(match result {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::internal()),
        });
    });
    thread.map_err(Failure::from)
}

impl Writer {
    pub(crate) fn open(fd: i32, options: &StreamOptions) -> Result<Self> {
        options.check("writer", ONE_WAY | CLOSE_FD | NO_CHECK | INDEX, true)?;
        let send = options.send()?;
        let link = sys::link(fd, Direction::Write, options.has(ONE_WAY))?;
        let shared = Shared::new()?;
        let (source, control) = (Source(Arc::clone(&shared.channel)), Arc::clone(&shared.control));
        let send = send.control(&control);
        let driver = start("narrows-send", &shared.channel, move || stream::send(source, link, send).map(drop))?;
        // Last, since a failure leaves the descriptor open.
        let owned = options.has(CLOSE_FD).then(|| sys::take_over(fd));
        Ok(Self { shared, driver: Some(driver), owned })
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        self.shared.channel.put_all(bytes)
    }

    pub(crate) fn totals(&self) -> (u64, u64) {
        let summary = self.shared.control.send_summary();
        (summary.raw_bytes, summary.wire_bytes)
    }

    /// Waits until the reader has everything, or until it is sent if nothing comes back. Sets the
    /// final totals, also of a stream that failed.
    pub(crate) fn close(mut self, totals: &mut Option<(u64, u64)>) -> Result<()> {
        self.shared.channel.end();
        let outcome = self.shared.channel.outcome();
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
        *totals = Some(self.totals());
        drop(self.owned.take());
        outcome
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Dropped without close: its threads must not wait for anybody.
        if self.driver.is_some() {
            let _ = self.shared.stop();
        }
    }
}

impl Held for Writer {
    const KIND: u8 = 1;
    const NAME: &'static str = "writer";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Writer> = Table::new();
        &TABLE
    }
    fn check(&self) -> Result<()> {
        self.shared.check()
    }
    fn stopper(&self) -> Option<Arc<dyn Stop>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Stop>)
    }
}
