//! What a file has: streams of Narrows, zstd frames with a seek table, or another format.

use std::sync::Arc;

use narrows::block::Block;
use narrows::{Error, ErrorKind, Result};
use narrows_file::foreign::{Format, MAGIC_LEN};
use narrows_file::zstd_seekable::SeekableFile;
use narrows_file::{File, OpenOptions, ReadAt};
use pyo3::prelude::*;

use super::forward::Forward;
use super::source::Source;
use crate::error::{Kept, raised_or_passed};

/// Bytes that are decoded ahead.
pub(super) const AHEAD_LEN: usize = 8 << 20;
/// What was decoded ahead must stay: a block may keep a buffer of twice its length.
const CACHE_MAX: usize = 4 * AHEAD_LEN;
/// Bytes of zstd frames that are copied at a time.
const PIECE_LEN: usize = 128 << 10;

pub(super) enum Content {
    Streams {
        file: File<Arc<Source>>,
        /// Why it breaks off after what it has.
        broken: Option<Kept>,
    },
    Frames(SeekableFile<Arc<Source>>),
    Forward(Forward),
}

impl Content {
    pub(super) fn open(source: &Arc<Source>, threads: usize) -> Result<Self> {
        let mut begin = [0; MAGIC_LEN];
        let n = source.len()?.min(MAGIC_LEN as u64) as usize;
        source.read_exact_at(&mut begin[..n], 0)?;
        match Format::of(&begin[..n]) {
            None | Some(Format::Narrows) => Self::streams(source, threads),
            Some(Format::Zstd) => Ok(match SeekableFile::open(Arc::clone(source))? {
                Some(file) => Self::Frames(file),
                None => Self::Forward(Forward::new(Format::Zstd, source)),
            }),
            Some(format) => Ok(Self::Forward(Forward::new(format, source))),
        }
    }

    fn streams(source: &Arc<Source>, threads: usize) -> Result<Self> {
        let options = if threads > 1 { OpenOptions::default().cache_max(CACHE_MAX) } else { OpenOptions::default() };
        let error = match options.clone().open(Arc::clone(source)) {
            Ok(file) => return Ok(Self::Streams { file, broken: None }),
            Err(error) => error,
        };
        if !matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated) {
            return Err(error);
        }
        // Readers get what is whole, then the error, as from a pipe.
        match options.broken(true).open(Arc::clone(source)) {
            Ok(file) => Ok(Self::Streams { file, broken: Some(Kept::new(&error)) }),
            Err(e) if e.source.is_some() => Err(e),
            Err(_) => Err(error),
        }
    }

    /// The raw bytes that begin at `offset`: `most` at most, none only at the end.
    pub(super) fn piece(&self, offset: u64, most: usize) -> PyResult<Block> {
        match self {
            Self::Streams { file, broken } => {
                let Some(mut block) = file.block_at(offset).map_err(raised_or_passed)? else {
                    return broken.as_ref().map_or_else(|| Ok(Block::default()), |why| Err(why.raised()));
                };
                let n = block.len().min(most);
                Ok(block.split_to(n))
            }
            Self::Frames(file) => {
                let mut piece = vec![0; most.min(PIECE_LEN)];
                let n = file.read_at(&mut piece, offset).map_err(raised_or_passed)?;
                piece.truncate(n);
                Ok(Block::from_vec(piece))
            }
            Self::Forward(file) => file.piece(offset, most.min(PIECE_LEN)).map_err(raised_or_passed),
        }
    }

    /// Decodes what follows `offset` by several threads.
    pub(super) fn read_ahead(&self, offset: u64, len: usize, threads: usize) -> PyResult<()> {
        match self {
            Self::Streams { file, .. } if threads > 1 => {
                file.read_ahead(offset, len, threads).map_err(raised_or_passed)
            }
            _ => Ok(()),
        }
    }

    /// The raw length. It is found by decoding everything where a format does not state it.
    pub(super) fn len(&self) -> PyResult<u64> {
        self.place(u64::MAX)
    }

    /// `offset`, or the end if that comes before.
    pub(super) fn place(&self, offset: u64) -> PyResult<u64> {
        match self {
            Self::Streams { file, broken: Some(why) } if offset > file.raw_len() => Err(why.raised()),
            Self::Streams { file, .. } => Ok(offset.min(file.raw_len())),
            Self::Frames(file) => Ok(offset.min(file.raw_len())),
            Self::Forward(file) => file.place(offset).map_err(raised_or_passed),
        }
    }

    pub(super) fn format(&self) -> Format {
        match self {
            Self::Streams { .. } => Format::Narrows,
            Self::Frames(_) => Format::Zstd,
            Self::Forward(file) => file.format(),
        }
    }

    /// Whether [`Content::place`] decodes nothing.
    pub(super) fn states_len(&self) -> bool {
        !matches!(self, Self::Forward(_))
    }
}

/// The error of a file that another process opened.
pub(super) fn other_process() -> Error {
    Error::misuse("the file was opened in another process; open it again in this one")
}
