//! Files and folders of variables, whatever their format.

use std::io;
use std::path::Path;

use narrows::{Error, Result};
use narrows_array::{ByteOrder, Layout};

use crate::bytes::Bytes;
use crate::cut::to_row_major;
use crate::filter::{Decoded, Decoders, decode};
use crate::hdf5::{self, Hdf5};
use crate::variable::{Chunk, Place, Variable, product};
use crate::{plain, zarr};

/// Bytes at the beginning by which formats are told apart.
const PEEK: u64 = 8;
/// Longest user's block before an HDF5 file that is looked past.
const USER_MAX: u64 = 1 << 12;

/// An open file or folder.
pub struct Store {
    /// `HDF5`, `Zarr` and so on.
    pub format: &'static str,
    /// Its arrays, sorted by path.
    pub variables: Vec<Variable>,
    /// What may hold arrays and was not looked at, each with the reason.
    pub unseen: Vec<String>,
    source: Source,
}

enum Source {
    Hdf5(Hdf5),
    Zarr(zarr::Keys),
    Plain(Bytes),
}

impl Store {
    /// Opens what holds arrays: HDF5 and NetCDF-4, Zarr in a folder or a .zip file, .npy, files of chunks,
    /// single chunks. `None` if it is something else.
    ///
    /// # Errors
    /// It cannot be read, is damaged where its arrays are listed, or is a classic NetCDF file.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        if path.is_dir() {
            if !zarr::METADATA.iter().any(|name| path.join(name).is_file()) {
                let why = "it has no .zgroup, .zarray or zarr.json";
                return Err(Error::system("the folder is no Zarr store", io::Error::other(why)));
            }
            let (keys, variables, unseen) = zarr::open_folder(path)?;
            return Ok(Some(Self { format: "Zarr", variables, unseen, source: Source::Zarr(keys) }));
        }
        // Opening a named pipe would wait for its writer.
        if !path.metadata()?.is_file() {
            return Ok(None);
        }
        let bytes = Bytes::open(path)?;
        let begin = bytes.structure_up_to(0, PEEK)?;
        Self::of_bytes(&begin, bytes)
    }

    /// As [`Store::open`] for a file's bytes in memory.
    ///
    /// # Errors
    /// As there.
    pub fn of_memory(bytes: Vec<u8>) -> Result<Option<Self>> {
        let begin: Vec<u8> = bytes.iter().copied().take(PEEK as usize).collect();
        Self::of_bytes(&begin, Bytes::of_memory(bytes))
    }

    fn of_bytes(begin: &[u8], bytes: Bytes) -> Result<Option<Self>> {
        let plain = |format, variables, source| Self { format, variables, unseen: Vec::new(), source };
        let one = |format, bytes, variable| plain(format, vec![variable], Source::Plain(bytes));
        Ok(Some(match begin {
            _ if begin.starts_with(hdf5::MAGIC) || has_user_block(&bytes)? => {
                let (file, variables) = Hdf5::open(bytes)?;
                plain("HDF5", variables, Source::Hdf5(file))
            }
            [b'P', b'K', 3 | 5, 4 | 6, ..] => {
                let (keys, variables, unseen) = zarr::open_zip(bytes)?;
                Self { format: "Zarr", variables, unseen, source: Source::Zarr(keys) }
            }
            [b'C', b'D', b'F', version @ (1 | 2 | 5), ..] => return Err(classic(*version)),
            [b'N', b'r', b'A', b'S', ..] => {
                let variable = plain::chunks(&bytes)?;
                one("file of chunks", bytes, variable)
            }
            [b'N', b'r', b'A', ..] => {
                let variable = plain::chunk(&bytes)?;
                one("chunk", bytes, variable)
            }
            _ if begin.starts_with(&narrows_array::npy::MAGIC[..]) => {
                let variable = plain::npy(&bytes)?;
                one("npy", bytes, variable)
            }
            _ => return Ok(None),
        }))
    }

    /// Opens elements without a header, of the type and shape of another variable.
    ///
    /// # Errors
    /// It cannot be read, or is not of the length.
    pub fn raw(path: &Path, like: &Variable) -> Result<Self> {
        let bytes = Bytes::open(path)?;
        let variable = plain::raw(&bytes, like)?;
        let (variables, unseen) = (vec![variable], Vec::new());
        Ok(Self { format: "raw elements", variables, unseen, source: Source::Plain(bytes) })
    }

    /// The stored chunks of one of its variables; the whole of it if it has none.
    ///
    /// # Errors
    /// The index of the chunks is damaged.
    pub fn chunks(&self, variable: &Variable) -> Result<Vec<Chunk>> {
        let whole = |at, len| vec![Chunk { origin: vec![0; variable.shape.len()], len, skipped: 0, at, key: None }];
        match (&variable.place, &self.source) {
            (Place::Nowhere, _) => Ok(Vec::new()),
            (Place::Inline(bytes), _) => Ok(whole(0, bytes.len() as u64)),
            (Place::Run(at), _) => Ok(whole(*at, variable.raw_bytes())),
            (Place::List(chunks), _) => Ok(chunks.clone()),
            (Place::Hdf5(index), Source::Hdf5(file)) => index.chunks(file, variable),
            (Place::Zarr(chunking), Source::Zarr(keys)) => chunking.chunks(keys, variable),
            _ => Err(Error::misuse("the variable is of another file")),
        }
    }

    /// The bytes of a chunk as stored.
    ///
    /// # Errors
    /// The file is cut short.
    pub fn stored(&self, chunk: &Chunk) -> Result<Vec<u8>> {
        match &self.source {
            Source::Zarr(keys) => zarr::read(keys, chunk),
            Source::Hdf5(file) => file.bytes.read(chunk.at, chunk.len),
            Source::Plain(bytes) => bytes.read(chunk.at, chunk.len),
        }
    }

    /// Decodes a chunk, whose elements stay in its own order.
    ///
    /// # Errors
    /// The chunk is damaged, longer than its shape, or has a filter that is not known here.
    pub fn decode(&self, variable: &Variable, chunk: &Chunk, with: &mut Decoders) -> Result<Decoded> {
        let raw_len = variable.chunk_raw_len().ok_or_else(|| Error::limit("the variable's chunks are too long"))?;
        // What is stored is at most a little longer than the chunk, and else no reason to read it.
        let stored_max = crate::limits::room(raw_len) as u64;
        if chunk.len > stored_max {
            return Err(Error::corrupt(format!("the chunk has {} bytes for {raw_len} raw ones", chunk.len)));
        }
        let mut out = decode(&variable.filters, chunk.skipped, self.stored(chunk)?, raw_len, with)?;
        // Files of chunks have a shorter one at the end, others chunks that reach beyond the array.
        let least = match &variable.place {
            Place::List(_) => product(&variable.inner(&chunk.origin)) as usize * variable.element.bytes,
            _ => raw_len,
        };
        let is_right = out.bytes.len() == least || out.narrows.is_none() && out.bytes.len() > least;
        if !is_right {
            let len = out.bytes.len();
            return Err(Error::corrupt(format!("the chunk has {len} bytes, and its place in the array {least}")));
        }
        out.bytes.truncate(least);
        Ok(out)
    }

    /// Decodes a chunk into elements with the last axis fastest, in the order of the variable's bytes. Its
    /// shape is beside them: that of the chunks, or less in a file of chunks.
    ///
    /// # Errors
    /// As [`Store::decode`].
    pub(crate) fn elements(
        &self,
        variable: &Variable,
        chunk: &Chunk,
        with: &mut Decoders,
    ) -> Result<(Vec<u8>, Vec<u64>, Option<narrows_array::Info>)> {
        let mut decoded = self.decode(variable, chunk, with)?;
        let shape = match &variable.place {
            Place::List(_) => variable.inner(&chunk.origin),
            _ => variable.chunk.clone().unwrap_or_default(),
        };
        let mut axes = variable.axes.clone();
        let info = decoded.narrows.map(|n| n.0);
        if let Some(info) = &info {
            // A chunk with axes says their order itself, within what a transposition made of them before.
            if info.shape.len() > 1 && info.shape.len() == shape.len() {
                axes.clone_from(&variable.turned);
                if info.layout == Layout::ColumnMajor {
                    axes.reverse();
                }
            }
            if info.order != variable.element.order {
                swap(&mut decoded.bytes, variable);
            }
        }
        Ok((to_row_major(decoded.bytes, variable.element.bytes, &shape, &axes), shape, info))
    }

    /// Reads a part of an array that is in one piece: stored axes, row by row.
    pub(crate) fn run(&self, variable: &Variable, at: u64, len: u64) -> Result<Vec<u8>> {
        match (&variable.place, &self.source) {
            (Place::Inline(bytes), _) => {
                let part = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..len as usize));
                part.map(<[u8]>::to_vec).ok_or_else(|| Error::corrupt("the array is longer than what is stored"))
            }
            (Place::Run(begin), Source::Hdf5(Hdf5 { bytes, .. }) | Source::Plain(bytes)) => {
                bytes.read(begin.saturating_add(at), len)
            }
            _ => Err(Error::misuse("the variable is of another file")),
        }
    }
}

/// It is whole, but there is nothing that could be read here.
fn classic(version: u8) -> Error {
    let name = match version {
        1 => "CDF-1",
        2 => "CDF-2, 64-bit offsets",
        _ => "CDF-5, 64-bit data",
    };
    let why = "it has no chunks and no filters, and is not read here; ncdump and netCDF4 read it, and \
               `nccopy -k nc4 IN OUT` makes a file that is read here too";
    Error::system(format!("a classic NetCDF file ({name}), not HDF5"), io::Error::other(why))
}

/// Whether an HDF5 file begins after a short block of its user.
fn has_user_block(bytes: &Bytes) -> Result<bool> {
    let mut at = 512;
    while at <= USER_MAX && at < bytes.len {
        if bytes.structure_up_to(at, PEEK)?.starts_with(hdf5::MAGIC) {
            return Ok(true);
        }
        at *= 2;
    }
    Ok(false)
}

/// Reverses the bytes of each word.
fn swap(bytes: &mut [u8], variable: &Variable) {
    use narrows_array::Dtype;
    let width = match variable.element.dtype {
        Some(Dtype::C64 | Dtype::C128) => variable.element.bytes / 2,
        Some(Dtype::Record(_)) | None => 1,
        Some(_) => variable.element.bytes,
    };
    if width > 1 {
        bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
}

/// Whether a number's bytes begin with the highest.
pub(crate) fn is_big(variable: &Variable) -> bool {
    variable.element.order == ByteOrder::Big
}
