//! Files that are read at any byte.
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(non_camel_case_types, reason = "the names that C sees")]

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;

use ::narrows_file::ReadAt;

use super::{handle, no_handle, number};
use crate::file::{File, FileOptions};
use crate::handles::Held;
use crate::memory::{self, Plain, Room};
use crate::status::{Failure, Result, Status, enter, narrows_status};

/// No file is longer, and no offset or length from here on is meant: it was negative.
const LEN_MAX: u64 = i64::MAX as u64;

/// A file of one or more streams that is read at any byte, by any number of threads at once. A
/// handle, not a pointer to memory.
pub struct narrows_file {
    _opaque: [u8; 0],
}

/// Options of a file. Set struct_size to sizeof(narrows_file_options); all other members may be 0
/// for the defaults. NULL in place of the structure means all defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct narrows_file_options {
    /// sizeof(narrows_file_options).
    pub struct_size: usize,
    /// Bytes of decoded blocks that are kept in memory for later reads; 0 is 16 MiB. Fewer than a
    /// block has, such as 1, keep none.
    pub cache_max: usize,
    /// Longest block that is accepted, in bytes; 0 is 2 MiB.
    pub block_max: usize,
    /// Most bytes that are kept in memory for copies of what came before, as `--long` makes them; 0
    /// is 128 MiB. Files without such copies need none of it.
    pub reach_max: usize,
}

// SAFETY: integers.
unsafe impl Plain for narrows_file_options {}

/// Reads up to `len` bytes at `offset` of the compressed file into `buffer`, as pread does: returns
/// their number, 0 only at the end, or -1 with errno set. `user` is the pointer that the file was
/// opened with. It is called during narrows_file_open_source and narrows_file_pread only, on the
/// calling thread, and so by several threads at once if those read at once. It must return: no
/// longjmp, no C++ exception.
pub type narrows_file_source =
    Option<unsafe extern "C" fn(user: *mut c_void, buffer: *mut c_void, len: usize, offset: u64) -> isize>;

/// A function of the caller as a source.
struct Callback {
    pread: unsafe extern "C" fn(user: *mut c_void, buffer: *mut c_void, len: usize, offset: u64) -> isize,
    user: *mut c_void,
    len: u64,
}

// SAFETY: the pointer is only passed on, to a function that any thread may call, for which the caller
// of narrows_file_open_source answers.
unsafe impl Send for Callback {}
// SAFETY: the function may be called by several threads at once, for which the same caller answers.
unsafe impl Sync for Callback {}

impl ReadAt for Callback {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: `buf` has so many writable bytes, and the caller of narrows_file_open_source answers
        // for the function and its pointer until the file is closed.
        let n = unsafe { (self.pread)(self.user, buf.as_mut_ptr().cast(), buf.len(), offset) };
        match usize::try_from(n) {
            Ok(n) if n <= buf.len() => Ok(n),
            Ok(n) => Err(io::Error::other(format!("the source claims {n} bytes, and room was for {}", buf.len()))),
            Err(_) => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(0) => Err(io::Error::other("the source failed and set no errno")),
                e => Err(e),
            },
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }
}

/// Copies the options.
///
/// # Safety
/// As for [`memory::options`].
unsafe fn file_options(from: *const narrows_file_options) -> Result<FileOptions> {
    // SAFETY: as the caller of this function answers for.
    let given = unsafe { memory::options(from, "options")? };
    Ok(given.map_or(FileOptions::new(0, 0, 0), |o| FileOptions::new(o.cache_max, o.block_max, o.reach_max)))
}

/// Opens a file by its path, as `narrows FILE` makes them, or a writer or encoder with NARROWS_INDEX;
/// returns NULL on failure. A file without index is opened too, by one read for each of its blocks.
/// Only regular files can be read at any byte: for pipes and sockets there is narrows_reader_open. A
/// file that breaks off is refused: `narrows check --repair-index` makes what is whole readable. A
/// child of fork cannot use the file.
///
/// # Safety
/// `path` must be NULL or a NUL-terminated string. `options` must be NULL or point to a structure of
/// struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_file_open(
    path: *const c_char,
    options: *const narrows_file_options,
) -> *mut narrows_file {
    enter(
        || {
            // SAFETY: the caller answers for the string and the structure.
            let (path, options) = unsafe { (memory::path(path, "path")?, file_options(options)?) };
            File::table().open(|| File::open_path(path, options)).map(handle)
        },
        no_handle,
    )
}

/// As narrows_file_open, by a descriptor that is open for reading. The caller may close it, since
/// the file duplicates it. Its position is neither used nor changed.
///
/// # Safety
/// `options` must be NULL or point to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_file_open_fd(fd: c_int, options: *const narrows_file_options) -> *mut narrows_file {
    enter(
        || {
            // SAFETY: the caller answers for the structure.
            let options = unsafe { file_options(options)? };
            File::table().open(|| File::open_fd(fd, options)).map(handle)
        },
        no_handle,
    )
}

/// As narrows_file_open, by a function that reads the compressed file, of which there are `len`
/// bytes: from memory, from an object store. With an index, opening takes one call for the last 64
/// KiB, and a few more for large files. `user` must be valid until the file is closed.
///
/// # Safety
/// `source` must be NULL or a function as narrows_file_source says. `options` must be NULL or point
/// to a structure of struct_size bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_file_open_source(
    source: narrows_file_source,
    user: *mut c_void,
    len: u64,
    options: *const narrows_file_options,
) -> *mut narrows_file {
    enter(
        || {
            let pread = source.ok_or_else(|| Failure::misuse("source is a null pointer"))?;
            if len > LEN_MAX {
                return Err(Failure::misuse(format!(
                    "a length of {len} bytes is impossible: it may have been negative"
                )));
            }
            // SAFETY: the caller answers for the structure.
            let options = unsafe { file_options(options)? };
            File::table().open(|| File::open(Arc::new(Callback { pread, user, len }), None, options)).map(handle)
        },
        no_handle,
    )
}

/// Returns the length of the decompressed content in bytes, or a negative narrows_status.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_file_size(file: *mut narrows_file) -> i64 {
    enter(|| File::table().share(number(file), |f| Ok(f.raw_len() as i64)), |s| i64::from(s as i32))
}

/// Reads `len` bytes of the decompressed content at `offset` into `buffer`, fewer only at the end,
/// and stores their number in `read_len`: 0 at the end and behind it. Any number of threads may call
/// it at once. On failure `read_len` is the number of bytes before the damaged block, all of which
/// are right; the block gives none, and others can still be read. In files made with
/// NARROWS_NO_CHECK damage is not noticed.
///
/// # Safety
/// `buffer` must be NULL or have room for `len` bytes; `read_len` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_file_pread(
    file: *mut narrows_file,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
    read_len: *mut usize,
) -> narrows_status {
    enter(
        || {
            if read_len.is_null() {
                return Err(Failure::misuse("read_len is a null pointer"));
            }
            // SAFETY: the caller answers for the place and the room.
            let mut room = unsafe {
                memory::store(read_len, 0, "read_len")?;
                Room::new(buffer, len, "buffer")?
            };
            if offset > LEN_MAX {
                return Err(Failure::misuse(format!("an offset of {offset} is impossible: it may have been negative")));
            }
            let read = File::table().share(number(file), |f| f.read(&mut room, offset));
            // SAFETY: as above.
            unsafe { memory::store(read_len, len - room.len(), "read_len")? };
            read.map(|()| Status::NARROWS_OK)
        },
        |s| s,
    )
}

/// Closes the file. While another thread is in a call with it, it stays open and the call fails with
/// NARROWS_ERROR_BUSY.
#[unsafe(no_mangle)]
pub extern "C" fn narrows_file_close(file: *mut narrows_file) -> narrows_status {
    let drop_it = |f: File| {
        drop(f);
        Ok(())
    };
    enter(|| File::table().close(number(file), drop_it).map(|()| Status::NARROWS_OK), |s| s)
}
