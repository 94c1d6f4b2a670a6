//! Files of other formats, which are decoded from their beginning up to any byte.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use narrows::block::Block;
use narrows::{Error, Result};
use narrows_file::decode::damaged;
use narrows_file::foreign::{self, Format};
use pyo3::prelude::*;

use super::source::{Onward, Source, carried};

/// Bytes that are passed over at a time.
const SKIP_LEN: usize = 128 << 10;
/// Bytes passed over after which Python may handle signals.
const SIGNALS_EVERY: u64 = 16 << 20;

pub(super) struct Forward {
    format: Format,
    source: Arc<Source>,
    /// A decoder that nobody uses. Each call takes it out, so that no lock is held while the source is
    /// read, and makes its own if there is none.
    idle: Mutex<Option<Place>>,
    raw_len: OnceLock<u64>,
}

struct Place {
    decoder: Box<dyn foreign::Decoder>,
    at: u64,
}

impl Forward {
    pub(super) fn new(format: Format, source: &Arc<Source>) -> Self {
        Self { format, source: Arc::clone(source), idle: Mutex::default(), raw_len: OnceLock::new() }
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Raw bytes from `offset` on, `most` at most; none only at the end.
    pub(super) fn piece(&self, offset: u64, most: usize) -> Result<Block> {
        if self.raw_len.get().is_some_and(|len| offset >= *len) {
            return Ok(Block::default());
        }
        let mut place = self.take(offset)?;
        let mut piece = Vec::new();
        if self.skip(&mut place, offset)? {
            piece.resize(most, 0);
            let n = self.read(&mut place, &mut piece)?;
            piece.truncate(n);
        }
        *self.idle() = Some(place);
        Ok(Block::from_vec(piece))
    }

    /// `offset`, or the end if that comes before.
    pub(super) fn place(&self, offset: u64) -> Result<u64> {
        if let Some(len) = self.raw_len.get() {
            return Ok(offset.min(*len));
        }
        // A place before one that was reached is there; what is read next leads to it.
        if self.idle().as_ref().is_some_and(|place| offset <= place.at) {
            return Ok(offset);
        }
        let mut place = self.take(offset)?;
        self.skip(&mut place, offset)?;
        let at = place.at;
        *self.idle() = Some(place);
        Ok(at)
    }

    fn take(&self, offset: u64) -> Result<Place> {
        if let Some(place) = self.idle().take().filter(|place| place.at <= offset) {
            return Ok(place);
        }
        let mut source = Onward { source: Arc::clone(&self.source), at: 0 };
        let begin = foreign::peek(&mut source)?;
        let decoder = foreign::decoder(self.format, begin, source)?;
        Ok(Place { decoder, at: 0 })
    }

    /// Goes to `offset`. False if the end comes before.
    fn skip(&self, place: &mut Place, offset: u64) -> Result<bool> {
        if place.at == offset {
            return Ok(true);
        }
        let mut scratch = vec![0; SKIP_LEN];
        let mut signals_at = place.at + SIGNALS_EVERY;
        while place.at < offset {
            let most = (offset - place.at).min(SKIP_LEN as u64) as usize;
            if self.read(place, &mut scratch[..most])? == 0 {
                return Ok(false);
            }
            if place.at >= signals_at {
                Python::attach(|py| py.check_signals()).map_err(carried)?;
                signals_at = place.at + SIGNALS_EVERY;
            }
        }
        Ok(true)
    }

    fn read(&self, place: &mut Place, buf: &mut [u8]) -> Result<usize> {
        loop {
            match place.decoder.read(buf) {
                Ok(n) => {
                    place.at += n as u64;
                    if n == 0 && !buf.is_empty() {
                        let _ = self.raw_len.set(place.at);
                    }
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.get_ref().is_some_and(|inner| inner.is::<PyErr>()) => return Err(Error::from(e)),
                Err(e) => return Err(damaged(place.decoder.format(), e)),
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Option<Place>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
