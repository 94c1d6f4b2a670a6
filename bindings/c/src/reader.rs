//! A stream that is read from a descriptor.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use narrows::stream;

use crate::channel::{Sink, await_verdict};
use crate::handles::{Held, Stop, Table};
use crate::memory::Room;
use crate::options::{CLOSE_FD, ONE_WAY, StreamOptions};
use crate::status::{Failure, Result, Status};
use crate::sys::{self, Direction};
use crate::writer::{Shared, start};

pub(crate) struct Reader {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
    owned: Option<OwnedFd>,
}

impl Reader {
    pub(crate) fn open(fd: i32, options: &StreamOptions) -> Result<Self> {
        options.check("reader", ONE_WAY | CLOSE_FD, false)?;
        let receive = options.receive(sys::is_file(fd)?);
        let link = sys::link(fd, Direction::Read, options.has(ONE_WAY))?;
        let shared = Shared::new()?;
        let (sink, ended) = (Sink(Arc::clone(&shared.channel)), Arc::clone(&shared.channel));
        let control = Arc::clone(&shared.control);
        let driver = start("narrows-receive", &shared.channel, move || {
            stream::receive_then(sink, link, receive.control(&control), || await_verdict(&ended)).map(drop)
        })?;
        // Last, since a failure leaves the descriptor open.
        let owned = options.has(CLOSE_FD).then(|| sys::take_over(fd));
        Ok(Self { shared, driver: Some(driver), owned })
    }

    /// Waits for at least one byte. 0 at the end of a stream that was received completely.
    pub(crate) fn read(&self, room: &mut Room) -> Result<usize> {
        self.shared.channel.take(room)
    }

    pub(crate) fn totals(&self) -> (u64, u64) {
        let summary = self.shared.control.receive_summary();
        (summary.raw_bytes, summary.wire_bytes)
    }

    /// Tells the sender whether everything is stored: yes if the end was read. Sets the final
    /// totals, also of a stream that failed.
    pub(crate) fn close(mut self, totals: &mut Option<(u64, u64)>) -> Result<()> {
        let heard = self.shared.channel.conclude();
        if !heard {
            self.shared.control.stop();
        }
        let outcome = self.shared.channel.outcome();
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
        *totals = Some(self.totals());
        drop(self.owned.take());
        match outcome {
            // This side aborted the stream, so the driver's error says nothing.
            Err(e) if !heard && e.status == Status::NARROWS_ERROR_IO => Err(Failure::new(
                Status::NARROWS_ERROR_TRUNCATED,
                "the reader was closed before the end of the stream was read; the sender was told",
            )),
            outcome => outcome,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Dropped without close: its threads must not wait for anybody.
        if self.driver.is_some() {
            let _ = self.shared.stop();
        }
    }
}

impl Held for Reader {
    const KIND: u8 = 2;
    const NAME: &'static str = "reader";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Reader> = Table::new();
        &TABLE
    }
    fn check(&self) -> Result<()> {
        self.shared.check()
    }
    fn stopper(&self) -> Option<Arc<dyn Stop>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Stop>)
    }
}
