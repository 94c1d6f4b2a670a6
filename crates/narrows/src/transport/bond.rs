//! Several connections that carry one stream: a single one may be held down by a window or a cipher that more of them are
//! not.
//!
//! Each direction of each carrier begins with [`GREETING`]; behind it come segments, pieces of the stream that say where they
//! belong (`docs/format.md`, section 9). A segment goes to the carrier that takes it; the reader puts them in order.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Link, ReadHalf, WriteHalf};
use crate::sys::{self, Interest};

mod incoming;
mod outgoing;
pub mod segments;

use incoming::InPart;
pub(super) use incoming::Incoming;
use outgoing::OutPart;
pub(super) use outgoing::Outgoing;
pub use segments::GREETING;

/// Carriers of one link: four fill what the window of one leaves empty on most links, eight on all but the longest.
pub const CARRIERS_MAX: usize = 8;

/// Adds carriers to a link while it is in use.
#[derive(Clone)]
pub struct Bond(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// There are halves that wait.
    any: [AtomicBool; 2],
    /// Carriers that were added, and those of which the peer has been heard.
    added: AtomicUsize,
    heard: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    write: Vec<OutPart>,
    read: Vec<InPart>,
}

const WRITE: usize = 0;
const READ: usize = 1;

impl Link {
    /// Makes a duplex link the first carrier of a bond. The peer does the same.
    pub fn bonded(self) -> crate::Result<(Self, Bond)> {
        let bond = Bond(Arc::new(Shared {
            waiting: Mutex::default(),
            any: [const { AtomicBool::new(false) }; 2],
            added: AtomicUsize::new(0),
            heard: AtomicUsize::new(0),
        }));
        let relayed = self.write.as_ref().is_some_and(|half| half.relayed);
        bond.add(self)?;
        let (outgoing, incoming) = (Outgoing::new(Arc::clone(&bond.0)), Incoming::new(Arc::clone(&bond.0)));
        let mut write = WriteHalf::bond(outgoing);
        write.relayed = relayed;
        Ok((Self { write: Some(write), read: Some(ReadHalf::bond(incoming)) }, bond))
    }
}

impl Bond {
    /// # Errors
    /// If there are [`CARRIERS_MAX`] already, or the link has one direction only.
    pub fn add(&self, link: Link) -> crate::Result<()> {
        let Link { write: Some(write), read: Some(read) } = link else {
            return Err(crate::Error::misuse("a carrier needs both directions"));
        };
        let mut waiting = self.0.lock();
        if self.0.added.load(Ordering::Relaxed) == CARRIERS_MAX {
            return Err(crate::Error::limit("there are as many carriers as there may be"));
        }
        self.0.added.fetch_add(1, Ordering::Relaxed);
        // Nothing is entrusted to a carrier before its peer was heard, but to the first, or a round trip would be lost.
        let heard = Arc::new(AtomicBool::new(false));
        let first = self.0.added.load(Ordering::Relaxed) == 1;
        waiting.write.push(OutPart::new(write, first, Arc::clone(&heard)));
        waiting.read.push(InPart::new(read, first, heard));
        self.0.any.iter().for_each(|any| any.store(true, Ordering::Release));
        Ok(())
    }

    /// How many carriers the peer has greeted on.
    pub fn heard(&self) -> usize {
        self.0.heard.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one of the descriptors is ready before the time is over.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, read: bool, timeout: Duration) -> io::Result<bool> {
    let mut interests: [Option<Interest<'_>>; CARRIERS_MAX] = [None; CARRIERS_MAX];
    interests.iter_mut().zip(fds).for_each(|(i, fd)| *i = Some(Interest { fd, read, write: !read }));
    let Some(first) = interests[0] else {
        // Nobody to wait for: a moment, so that nothing turns without end.
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        return Ok(false);
    };
    let nothing = Interest { read: false, write: false, ..first };
    Ok(sys::poll(interests.map(|i| i.unwrap_or(nothing)), Some(timeout))?.contains(&true))
}
