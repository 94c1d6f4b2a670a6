//! Blocks of a comm that workers decode to where they belong.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::block::Block;
use narrows::codec::{CodecId, Contexts};
use narrows::frame::BlockHeader;
use narrows::pool::Queue;
use narrows::{Error, Result};

use super::hub::Signal;
use crate::buffer::Target;

/// Workers that fall behind are heard of again when so many encoded bytes are left.
const RESUME_LEN: usize = 4 << 20;
/// A stored block of up to this length is checked at once: a worker takes as long to wake.
const CHECKED_HERE_MAX: usize = 128 << 10;

/// A whole frame.
pub(super) struct Job {
    pub(super) header: BlockHeader,
    /// Empty if the block is stored: then the raw bytes are there already.
    pub(super) body: Block,
    pub(super) parts: Vec<Target>,
    pub(super) raw_offset: u64,
}

pub(super) struct Decoding {
    jobs: AtomicUsize,
    /// Encoded bytes of these jobs.
    waiting: AtomicUsize,
    failed: Mutex<Option<Error>>,
    signal: Signal,
}

impl Decoding {
    pub(super) fn new(signal: Signal) -> Self {
        Self { jobs: AtomicUsize::new(0), waiting: AtomicUsize::new(0), failed: Mutex::new(None), signal }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0
    }

    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// The first failure.
    pub(super) fn check(&self) -> Result<()> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn fail(&self, error: Error) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.signal.give();
    }

    pub(super) fn submit(this: &Arc<Self>, queue: &Queue, job: Job) {
        let len = job.body.len();
        this.jobs.fetch_add(1, Ordering::AcqRel);
        this.waiting.fetch_add(len, Ordering::AcqRel);
        let here = len == 0 && job.header.wire_len <= CHECKED_HERE_MAX;
        let decoding = Arc::clone(this);
        let task = Box::new(move |contexts: &mut Contexts| {
            let done = job.run(contexts);
            decoding.finish(len, done);
        });
        let refused = if here { Some(task as narrows::pool::Task) } else { queue.submit(task).err() };
        if let Some(task) = refused {
            task(&mut Contexts::default());
        }
    }

    fn finish(&self, len: usize, done: Result<()>) {
        let before = self.waiting.fetch_sub(len, Ordering::AcqRel);
        let last = self.jobs.fetch_sub(1, Ordering::AcqRel) == 1;
        match done {
            Err(error) => self.fail(error),
            Ok(()) if last || before > RESUME_LEN && before - len <= RESUME_LEN => self.signal.give(),
            Ok(()) => {}
        }
    }
}

impl Job {
    fn run(mut self, contexts: &mut Contexts) -> Result<()> {
        if self.header.codec != CodecId::STORE {
            self.expand(contexts)?;
        }
        let Some(check) = self.header.check else { return Ok(()) };
        let parts: Vec<&[u8]> = self.parts.iter().map(Target::bytes).collect();
        let body_hash = self.header.body_hash(&self.body);
        if self.header.check_of_parts(parts.into_iter(), body_hash, self.raw_offset) == check {
            Ok(())
        } else {
            Err(Error::corrupt("a block does not match its check"))
        }
    }

    fn expand(&mut self, contexts: &mut Contexts) -> Result<()> {
        let unknown = || Error::unsupported(format!("this program has no codec {}", self.header.codec.0));
        let codec = self.header.codec.codec().ok_or_else(unknown)?;
        let decoder = contexts.decoder(codec);
        let raw_len = self.header.raw_len.unwrap_or(0);
        let decoded = match &mut self.parts[..] {
            [part] => decoder.decode(&[], &self.body, part.bytes_mut()),
            parts => {
                let mut raw = vec![0; raw_len];
                let decoded = decoder.decode(&[], &self.body, &mut raw);
                let mut rest = &raw[..];
                for part in parts {
                    let (head, tail) = rest.split_at(part.len());
                    part.bytes_mut().copy_from_slice(head);
                    rest = tail;
                }
                decoded
            }
        };
        match decoded {
            Ok(len) if len == raw_len => Ok(()),
            _ => Err(Error::corrupt(format!("a block of codec {} does not decode", codec.name()))),
        }
    }
}
