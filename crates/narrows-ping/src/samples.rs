//! Messages in files, as training samples for dictionaries.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use narrows::message::MESSAGE_MAX;
use narrows::{Error, ErrorKind};
use narrows_host::files;
use xxhash_rust::xxh3::xxh3_128;

/// Maximum number of files: ten times as many as a dictionary needs if each is one message. More
/// suggest that the wrong folder was named.
const FILES_MAX: usize = 100_000;
/// Maximum length read: a thousand times the longest dictionary; more data does not change the
/// result. It is held in memory, and training on it takes two seconds.
const BYTES_MAX: usize = 64 << 20;
/// Maximum depth of folders, which protects the stack; deeper ones are a mistake or an attack.
const DEPTH_MAX: usize = 128;
/// Bytes of the length in front of each message of a `.msgs` file.
const LEN_BYTES: usize = 4;

/// Layout of the messages in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The file is one message.
    One,
    /// Each message is preceded by its length.
    Lengths,
    /// Each line is a message: text, JSON lines.
    Lines,
}

impl Layout {
    /// The layout by the extension of the file; `lines` applies to files whose extension does not
    /// say.
    pub fn of(path: &Path, lines: bool) -> Self {
        match path.extension().and_then(|e| e.to_str()) {
            Some("msgs") => Self::Lengths,
            Some("jsonl" | "ndjson") => Self::Lines,
            _ if lines => Self::Lines,
            _ => Self::One,
        }
    }
}

/// Distinct messages, in the order in which they were read.
#[derive(Default)]
pub struct Samples {
    /// The messages.
    pub messages: Vec<Vec<u8>>,
    /// Number of messages skipped because they came before.
    pub repeated: usize,
    /// Whether the input exceeded a limit, so that not all was read.
    pub is_cut: bool,
    /// Files whose extension does not say have a message in each line.
    lines: bool,
    seen: HashSet<u128>,
    /// Device and inode of the files that were read.
    read: HashSet<(u64, u64)>,
    files: usize,
    bytes: usize,
}

impl Samples {
    /// Reads files and folders as `narrows train` does; with `lines`, each line of a file is a
    /// message.
    ///
    /// # Errors
    /// A file cannot be read, or is no file of messages.
    pub fn read(paths: &[PathBuf], lines: bool) -> Result<Self> {
        let mut samples = Self { lines, ..Self::default() };
        for path in paths {
            let kind = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
            if kind.is_dir() { samples.folder(path, 0)? } else { samples.file(path)? }
        }
        Ok(samples)
    }

    /// Whether `path` is one of the files that were read, under whatever name.
    pub fn has_read(&self, path: &Path) -> bool {
        files::identity(path.metadata().ok()).is_some_and(|file| self.read.contains(&file))
    }

    /// Reads the files of a folder in the order of their names. A file that cannot be read is an
    /// error.
    fn folder(&mut self, folder: &Path, depth: usize) -> Result<()> {
        let cannot = || format!("cannot read {}", folder.display());
        if depth > DEPTH_MAX {
            bail!("{}: folders are nested more than {DEPTH_MAX} deep", folder.display());
        }
        let list = fs::read_dir(folder).with_context(cannot)?;
        let mut paths: Vec<_> = list.map(|e| Ok(e?.path())).collect::<io::Result<_>>().with_context(cannot)?;
        paths.sort();
        for path in paths {
            if self.is_cut {
                return Ok(());
            }
            let kind = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if kind.is_dir() {
                self.folder(&path, depth + 1)?;
            } else if kind.is_file() {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        self.files += 1;
        if self.files > FILES_MAX || self.bytes >= BYTES_MAX {
            self.is_cut = true;
            return Ok(());
        }
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        self.read.extend(files::identity(file.metadata().ok()));
        let layout = Layout::of(path, self.lines);
        let room = if layout == Layout::One { MESSAGE_MAX } else { BYTES_MAX - self.bytes };
        let mut bytes = Vec::new();
        // One byte beyond the limit shows that the file is longer.
        file.take(room as u64 + 1).read_to_end(&mut bytes).with_context(cannot)?;
        self.bytes += bytes.len();
        let is_whole = bytes.len() <= room;
        self.is_cut |= !is_whole && layout != Layout::One;
        match layout {
            Layout::One => self.message(&bytes),
            Layout::Lines => split_lines(&bytes).for_each(|line| self.message(line)),
            Layout::Lengths => {
                return self
                    .list(&bytes, is_whole)
                    .with_context(|| format!("{} is no file of messages", path.display()));
            }
        }
        Ok(())
    }

    fn list(&mut self, mut rest: &[u8], is_whole: bool) -> Result<(), Error> {
        for number in 1.. {
            match split_message(rest, number) {
                _ if rest.is_empty() => break,
                Ok((message, behind)) => {
                    self.message(message);
                    rest = behind;
                }
                Err(e) if e.kind == ErrorKind::Truncated && !is_whole => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Adds a message, truncated to [`MESSAGE_MAX`], unless it is empty or came before.
    fn message(&mut self, message: &[u8]) {
        let message = &message[..message.len().min(MESSAGE_MAX)];
        if message.is_empty() {
            return;
        }
        if self.seen.insert(xxh3_128(message)) {
            self.messages.push(message.to_vec());
        } else {
            self.repeated += 1;
        }
    }
}

/// Splits the rest of a `.msgs` file into its first message and what follows; `number` is for the
/// error.
///
/// # Errors
/// It is cut off or too long.
pub fn split_message(rest: &[u8], number: usize) -> Result<(&[u8], &[u8]), Error> {
    let cut = || Error::truncated(format!("it ends in the middle of message {number}"));
    let (len, behind) = rest.split_first_chunk::<LEN_BYTES>().ok_or_else(cut)?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > MESSAGE_MAX {
        return Err(Error::limit(format!("message {number} has {len} bytes; the longest message has {MESSAGE_MAX}")));
    }
    behind.split_at_checked(len).ok_or_else(cut)
}

/// The lines of a file, without line ends and empty lines.
pub fn split_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(messages: &[&[u8]]) -> Vec<u8> {
        messages.iter().flat_map(|m| [&(m.len() as u32).to_le_bytes()[..], m].concat()).collect()
    }

    #[test]
    fn messages_come_from_lists_files_and_folders_and_each_but_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("b")).unwrap();
        fs::write(at("b/one"), "one").unwrap();
        fs::write(at("a.msgs"), list(&[b"two", b"", b"one", b"three"])).unwrap();
        fs::write(at("empty"), "").unwrap();
        fs::write(at("z"), vec![7; MESSAGE_MAX + 9]).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        let samples = Samples::read(&[folder.path().to_owned()], false).unwrap();
        assert_eq!(samples.messages, [&b"two"[..], b"one", b"three", &[7; MESSAGE_MAX]]);
        assert_eq!((samples.repeated, samples.is_cut), (1, false));
        assert!(Samples::read(&[at("none")], false).is_err());
    }

    #[test]
    fn lines_are_messages_where_the_name_or_the_flag_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let long = "x".repeat(MESSAGE_MAX + 9);
        let text = format!("{{\"a\": 1}}\r\n\n{{\"a\": 2}}\n{{\"a\": 1}}\n{long}\nlast");
        let expected = ["{\"a\": 1}", "{\"a\": 2}", &long[..MESSAGE_MAX], "last"];
        fs::write(at("a.jsonl"), &text).unwrap();
        fs::write(at("b.log"), &text).unwrap();
        for (name, flag) in [("a.jsonl", false), ("a.jsonl", true), ("b.log", true)] {
            let samples = Samples::read(&[at(name)], flag).unwrap();
            assert_eq!(samples.messages, expected.map(str::as_bytes), "{name}");
            assert_eq!((samples.repeated, samples.is_cut), (1, false), "{name}");
        }
        assert_eq!(Samples::read(&[at("b.log")], false).unwrap().messages.len(), 1);
        // The name is stronger: such a file has lengths.
        fs::write(at("c.msgs"), list(&[b"a\nb"])).unwrap();
        assert_eq!(Samples::read(&[at("c.msgs")], true).unwrap().messages, [b"a\nb"]);
        assert_eq!(split_lines(b"").count(), 0);
    }

    #[test]
    fn a_damaged_list_is_an_error_that_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.msgs");
        let try_with = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Samples::read(std::slice::from_ref(&path), false).map(|s| s.messages.len()).map_err(|e| format!("{e:#}"))
        };
        let good = list(&[b"abc", b"defg"]);
        assert_eq!(try_with(&good), Ok(2));
        for cut in [1, 5, 8, 10, 13] {
            let number = if cut < 7 { "message 1" } else { "message 2" };
            let error = try_with(&good[..cut]).unwrap_err();
            assert!(error.contains("x.msgs") && error.contains(number), "{cut}: {error}");
        }
        assert!(try_with(&u32::MAX.to_le_bytes()).unwrap_err().contains("the longest message"));
    }

    #[test]
    fn what_has_no_end_is_cut() {
        let samples = Samples::read(&["/dev/zero".into()], false).unwrap();
        assert_eq!(samples.messages.len(), 1);
        let mut samples = Samples { bytes: BYTES_MAX, ..Samples::default() };
        samples.file(Path::new("/dev/zero")).unwrap();
        assert!(samples.is_cut && samples.messages.is_empty());
        let mut samples = Samples { files: FILES_MAX, ..Samples::default() };
        samples.file(Path::new("/dev/zero")).unwrap();
        assert!(samples.is_cut && samples.messages.is_empty());
    }
}
