//! A file of streams that several threads read at any byte.

use std::path::Path;
use std::sync::Arc;

use narrows::frame::{BASELINE_BLOCK_MAX, feature};
use narrows::{Error, ErrorKind};
use narrows_file::foreign::{self, Format};
use narrows_file::{Member, OpenOptions, ReadAt};

use crate::handles::{Held, Table};
use crate::memory::Room;
use crate::status::{Failure, Result, Status};
use crate::sys;

pub(crate) type Source = Arc<dyn ReadAt>;

const CACHE_MAX: usize = 16 << 20;
const REACH_MAX: usize = 128 << 20;

/// Options of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOptions {
    cache_max: usize,
    block_max: usize,
    reach_max: usize,
}

impl FileOptions {
    /// Zeros are the defaults, which the header states.
    pub(crate) fn new(cache_max: usize, block_max: usize, reach_max: usize) -> Self {
        let or = |given: usize, default: usize| if given > 0 { given } else { default };
        Self {
            cache_max: or(cache_max, CACHE_MAX),
            block_max: or(block_max, BASELINE_BLOCK_MAX),
            reach_max: or(reach_max, REACH_MAX),
        }
    }

    fn open(self, source: Source) -> narrows::Result<narrows_file::File<Source>> {
        let options = OpenOptions::default().cache_max(self.cache_max);
        options.block_max(self.block_max).reach_max(self.reach_max).open(source)
    }

    /// Refuses at once what no block of the stream could be read with.
    fn check(self, member: &Member) -> Result<()> {
        let refused = |what: &str, needed: usize, option: &str| {
            let text = format!("{what} {needed} bytes: set narrows_file_options.{option} to that");
            Err(Failure::new(Status::NARROWS_ERROR_LIMIT, text))
        };
        let preface = &member.preface;
        if preface.block_max > self.block_max {
            return refused("the file has blocks of up to", preface.block_max, "block_max");
        }
        if preface.critical & feature::COPIES != 0 && preface.reach > self.reach_max {
            return refused("the file refers back by up to", preface.reach, "reach_max");
        }
        Ok(())
    }
}

/// Copies share the file.
#[derive(Clone)]
pub(crate) struct File(Arc<Inner>);

struct Inner {
    file: narrows_file::File<Source>,
    /// For error messages: the path, if there is one.
    name: Option<String>,
    /// The process that opened it, as [`sys::forks`].
    process: u32,
}

impl File {
    pub(crate) fn open_path(path: &Path, options: FileOptions) -> Result<Self> {
        // An error is one line, whatever a name contains.
        let name = path.display().to_string().replace(char::is_control, "?");
        let source = sys::open(path).map_err(|e| named(Some(&name), e))?;
        Self::open(Arc::new(source), Some(name), options)
    }

    pub(crate) fn open_fd(fd: i32, options: FileOptions) -> Result<Self> {
        Self::open(Arc::new(sys::file(fd)?), None, options)
    }

    pub(crate) fn open(source: Source, name: Option<String>, options: FileOptions) -> Result<Self> {
        sys::count_forks()?;
        let open = || {
            let file = options.open(Arc::clone(&source));
            let file = file.map_err(|e| another_format(&source, &e).unwrap_or_else(|| failure(e)))?;
            file.members().iter().try_for_each(|member| options.check(member))?;
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self(Arc::new(Inner { file, name, process: sys::forks() }))),
            Err(e) => Err(named(name.as_deref(), e)),
        }
    }

    /// Raw length in bytes, below 2^63.
    pub(crate) fn raw_len(&self) -> u64 {
        self.0.file.raw_len()
    }

    /// Fills `room` with the raw bytes from `offset` on, if there are so many. What stands before a
    /// damaged block is put there too.
    pub(crate) fn read(&self, room: &mut Room, offset: u64) -> Result<()> {
        let mut at = offset;
        while room.len() > 0 {
            let block = self.0.file.block_at(at).map_err(|e| named(self.0.name.as_deref(), failure(e)))?;
            let Some(block) = block else { break };
            at += room.put(&block) as u64;
        }
        Ok(())
    }
}

/// The failure of a source that begins as a file of another format, and so fails as one of narrows.
fn another_format(source: &Source, error: &Error) -> Option<Failure> {
    if !matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated) {
        return None;
    }
    let format = foreign::format_at(source).ok()?.filter(|format| *format != Format::Narrows)?;
    let text = format!("this is a {} file, and only those of narrows are read at any byte", format.name());
    Some(Failure::new(Status::NARROWS_ERROR_UNSUPPORTED, format!("{text}: `narrows cat` decodes it")))
}

fn failure(error: Error) -> Failure {
    let is_end = |e: &std::io::Error| e.kind() == std::io::ErrorKind::UnexpectedEof;
    if error.kind == ErrorKind::Io && error.source.as_ref().is_some_and(is_end) {
        let text =
            "there are fewer bytes than the file's length: it was cut since it was opened, or the length is wrong";
        return Failure::new(Status::NARROWS_ERROR_TRUNCATED, text);
    }
    error.into()
}

fn named(name: Option<&str>, failure: Failure) -> Failure {
    match name {
        Some(name) => Failure { text: format!("{name}: {}", failure.text), ..failure },
        None => failure,
    }
}

impl Held for File {
    const KIND: u8 = 8;
    const NAME: &'static str = "file";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<File> = Table::new();
        &TABLE
    }
    /// A child of `fork` may have inherited a lock that a thread of its parent held.
    fn check(&self) -> Result<()> {
        if self.0.process == sys::forks() {
            return Ok(());
        }
        Err(Failure::misuse("this file belongs to the process that opened it: open files after fork"))
    }
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
