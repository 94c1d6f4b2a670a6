//! Bonds: several connections that carry one stream, for links on which a window or a cipher limits
//! a single connection.
//!
//! Each direction of each carrier begins with [`GREETING`]; segments follow, pieces of the stream
//! with their offset (`docs/format.md`, section 9). A segment goes to any carrier that accepts it;
//! the reader puts them in order.

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

/// Most carriers of one link: four fill what the window of one leaves unused on most links, eight
/// on all but the longest.
pub const CARRIERS_MAX: usize = 8;

/// Adds carriers to a link while it is in use.
#[derive(Clone)]
pub struct Bond(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// Whether halves wait to be adopted, for writing and for reading.
    any: [AtomicBool; 2],
    /// Number of carriers added, and of those on which the peer has greeted.
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
    ///
    /// # Errors
    /// `Misuse` if the link has only one direction.
    #[doc(hidden)]
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
    /// Adds a carrier.
    ///
    /// # Errors
    /// `Limit` if there are [`CARRIERS_MAX`] already, `Misuse` if the link has only one direction.
    pub fn add(&self, link: Link) -> crate::Result<()> {
        let Link { write: Some(write), read: Some(read) } = link else {
            return Err(crate::Error::misuse("a carrier needs both directions"));
        };
        let mut waiting = self.0.lock();
        if self.0.added.load(Ordering::Relaxed) == CARRIERS_MAX {
            return Err(crate::Error::limit("the link has the maximum number of carriers"));
        }
        self.0.added.fetch_add(1, Ordering::Relaxed);
        // A carrier gets no segments before its peer has greeted, except the first: waiting would
        // cost a round trip.
        let heard = Arc::new(AtomicBool::new(false));
        let first = self.0.added.load(Ordering::Relaxed) == 1;
        waiting.write.push(OutPart::new(write, first, Arc::clone(&heard)));
        waiting.read.push(InPart::new(read, first, heard));
        self.0.any.iter().for_each(|any| any.store(true, Ordering::Release));
        Ok(())
    }

    /// Number of carriers on which the peer has greeted.
    pub fn heard(&self) -> usize {
        self.0.heard.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until one of the descriptors is ready. False after the timeout.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, read: bool, timeout: Duration) -> io::Result<bool> {
    let mut interests: [Option<Interest<'_>>; CARRIERS_MAX] = [None; CARRIERS_MAX];
    interests.iter_mut().zip(fds).for_each(|(i, fd)| *i = Some(Interest { fd, read, write: !read }));
    let Some(first) = interests[0] else {
        // No descriptor to wait for: sleep briefly, so that the caller does not spin.
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        return Ok(false);
    };
    let nothing = Interest { read: false, write: false, ..first };
    Ok(sys::poll(interests.map(|i| i.unwrap_or(nothing)), Some(timeout))?.contains(&true))
}
