//! A sample of a file, a folder or stdin: pieces spread evenly over all of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use narrows_host::files;
use narrows_plan::config;
use narrows_sim::sketch::spread;

/// Length of a piece: four blocks, so that a piece says something about its surroundings too.
pub const PIECE: usize = 512 << 10;
/// Files that are looked at. More do not change the sample much, and their names take memory.
const FILES_MAX: usize = 100_000;
/// Entries of one folder that are looked at, most of which may be no files.
const ENTRIES_MAX: usize = 4 * FILES_MAX;
/// Time for looking for files, which on a network file system may take longer than measuring.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Folders deeper than this are a mistake or an attack.
const DEPTH_MAX: usize = 128;

/// The pieces, and how they were taken.
#[derive(Default)]
pub struct Sample {
    pub pieces: Vec<Vec<u8>>,
    /// Bytes that the pieces were taken from.
    pub total_len: u64,
    /// Files with data that these bytes are in.
    pub files: u64,
    /// Files and folders that could not be read.
    pub unreadable: usize,
    /// Whether there was more than was looked at.
    pub is_cut: bool,
}

impl Sample {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// At most `len` bytes of `path`; - is stdin, of which it is the beginning. It is an error if there
    /// are none.
    ///
    /// # Errors
    /// It cannot be read, or has no data.
    pub fn of(path: &Path, len: usize) -> Result<Self> {
        let sample = Self::within(path, len, None)?;
        if sample.is_empty() {
            let skipped = if sample.unreadable > 0 { " that can be read" } else { "" };
            bail!(
                "{} contains no data{skipped}",
                if files::is_dash(path) { "stdin".into() } else { path.display().to_string() }
            );
        }
        Ok(sample)
    }

    /// The same, of which one half of `within` is for looking and the other for reading. It may be empty.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn within(path: &Path, len: usize, within: Option<Duration>) -> Result<Self> {
        let cannot = || format!("cannot read {}", path.display());
        let look_max = within.map_or(LOOK_MAX, |within| within / 2);
        let mut sample = Self::default();
        if files::is_dash(path) {
            let mut bytes = Vec::new();
            files::stdin()?.take(len as u64 + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
            sample.is_cut = bytes.len() > len;
            bytes.truncate(len);
            sample.total_len = bytes.len() as u64;
            sample.pieces = bytes.chunks(PIECE).map(<[u8]>::to_vec).collect();
        } else {
            let kind = fs::metadata(path).with_context(cannot)?;
            let files = if kind.is_dir() {
                fs::read_dir(path).with_context(cannot)?;
                sample.look(path, look_max)
            } else if kind.is_file() {
                // An error here is one of the path that was named.
                File::open(path).with_context(cannot)?;
                vec![(path.to_owned(), kind.len())]
            } else {
                bail!("{} is neither a file nor a folder", path.display());
            };
            sample.take(&files, len, within.map(|within| Instant::now() + within / 2));
        }
        Ok(sample)
    }

    /// Every file below a folder with its length, by name. Links and devices are skipped.
    fn look(&mut self, folder: &Path, look_max: Duration) -> Vec<(PathBuf, u64)> {
        let begun = Instant::now();
        let mut files = Vec::new();
        let mut folders = vec![(folder.to_owned(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let Ok(list) = fs::read_dir(&folder) else {
                self.unreadable += 1;
                continue;
            };
            for (seen, entry) in list.enumerate() {
                if files.len() >= FILES_MAX || seen >= ENTRIES_MAX || begun.elapsed() > look_max {
                    self.is_cut = true;
                    break;
                }
                let Ok(entry) = entry else { continue };
                let Ok(data) = entry.metadata() else { continue };
                if data.is_dir() && depth < DEPTH_MAX && folders.len() < FILES_MAX {
                    folders.push((entry.path(), depth + 1));
                } else if data.is_dir() {
                    self.is_cut = true;
                } else if data.is_file() && data.len() > 0 {
                    files.push((entry.path(), data.len()));
                }
            }
        }
        // By name, so that the same data give the same sample.
        files.sort();
        files
    }

    /// Pieces at equal distances of the files one after the other. After `until` no further one is
    /// read, and those that were are still spread.
    fn take(&mut self, files: &[(PathBuf, u64)], len: usize, until: Option<Instant>) {
        self.files = files.len() as u64;
        self.total_len = files.iter().map(|f| f.1).sum();
        let count = (len / PIECE).max(1) as u64;
        let whole = self.total_len <= len as u64;
        let count = if whole { self.total_len.div_ceil(PIECE as u64) } else { count };
        let piece_len = if whole { PIECE } else { PIECE.min(len) };
        let mut reader = Reader { files, index: 0, before: 0, open: None, failed: BTreeSet::new() };
        let order = if until.is_some() { spread(count as usize) } else { (0..count as usize).collect() };
        let mut pieces = Vec::new();
        for index in order {
            if !pieces.is_empty() && until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let i = index as u64;
            // The middle of the i-th of `count` equal parts, or simply the next piece.
            let middle = (u128::from(self.total_len) * u128::from(2 * i + 1) / u128::from(2 * count)) as u64;
            let at = if whole { i * PIECE as u64 } else { middle.saturating_sub(piece_len as u64 / 2) };
            let piece = reader.piece(at, piece_len);
            if !piece.is_empty() {
                pieces.push((index, piece));
            }
        }
        self.unreadable += reader.failed.len();
        pieces.sort_by_key(|piece| piece.0);
        self.pieces.extend(pieces.into_iter().map(|piece| piece.1));
    }
}

/// Reads files that lie one after the other; quickest at growing offsets.
struct Reader<'a> {
    files: &'a [(PathBuf, u64)],
    index: usize,
    /// Bytes of the files before `index`.
    before: u64,
    /// The file at `index`, if it was opened; `None` inside if that failed.
    open: Option<Option<File>>,
    /// Files that could not be opened.
    failed: BTreeSet<usize>,
}

impl Reader<'_> {
    /// `len` bytes from `at`; fewer at the end, and where files cannot be read or became shorter.
    fn piece(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut piece = Vec::with_capacity(len);
        let mut at = at;
        if at < self.before {
            (self.index, self.before, self.open) = (0, 0, None);
        }
        while let Some((path, file_len)) = self.files.get(self.index) {
            if at >= self.before + file_len {
                self.before += file_len;
                self.index += 1;
                self.open = None;
                continue;
            }
            if piece.len() == len {
                break;
            }
            let file = self.open.get_or_insert_with(|| {
                let file = File::open(path).ok();
                if file.is_none() {
                    self.failed.insert(self.index);
                }
                file
            });
            let wanted = (len - piece.len()).min((self.before + file_len - at) as usize);
            let from = piece.len();
            piece.resize(from + wanted, 0);
            let read = file.as_ref().map_or(0, |f| read_at(f, &mut piece[from..], at - self.before));
            piece.truncate(from + read);
            at += wanted as u64;
        }
        piece
    }
}

fn read_at(file: &File, out: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// Names of the classes: the last part of each path, with a number where two are alike.
pub fn class_names(paths: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let real = path.canonicalize().ok();
        let last = path.file_name().or_else(|| real.as_deref().and_then(Path::file_name));
        let name = if files::is_dash(path) { "stdin".into() } else { last.unwrap_or_default().to_string_lossy() };
        let name: String = name.chars().filter(|c| config::is_visible(*c)).take(config::NAME_MAX - 4).collect();
        let name = if name.is_empty() { "data".to_owned() } else { name };
        let with = |i: usize| if i == 1 { name.clone() } else { format!("{name} {i}") };
        let free = (1..).map(with).find(|n| !names.contains(n)).unwrap_or_default();
        names.push(free);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_has_to_end_early_is_spread_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let bytes: Vec<u8> = (0..16u8).flat_map(|i| vec![i; PIECE]).collect();
        fs::write(&file, bytes).unwrap();
        let all = Sample::within(&file, 64 << 20, Some(Duration::from_secs(60))).unwrap();
        let first: Vec<u8> = all.pieces.iter().map(|piece| piece[0]).collect();
        assert_eq!((first, all.files), ((0..16).collect(), 1));
        let one = Sample::within(&file, 64 << 20, Some(Duration::ZERO)).unwrap();
        assert_eq!((one.pieces.len(), one.total_len), (1, 16 * PIECE as u64));
        let empty = tempfile::tempdir().unwrap();
        let none = Sample::within(empty.path(), 1 << 20, Some(Duration::ZERO)).unwrap();
        assert_eq!((none.len(), none.files), (0, 0));
    }

    #[test]
    fn a_folder_is_sampled_evenly_whatever_the_lengths_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("b")).unwrap();
        fs::write(at("a"), vec![1; 3 * PIECE]).unwrap();
        for i in 0..100 {
            fs::write(at(&format!("b/{i:03}")), vec![2; PIECE / 50]).unwrap();
        }
        fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("c")).unwrap();
        let whole = Sample::of(folder.path(), 64 << 20).unwrap();
        assert_eq!((whole.len() as u64, whole.is_cut), (whole.total_len, false));
        assert!(whole.pieces.iter().rev().skip(1).all(|p| p.len() == PIECE));
        let some = Sample::of(folder.path(), 2 * PIECE).unwrap();
        assert_eq!(some.pieces.len(), 2);
        let ones: usize = some.pieces.iter().flatten().filter(|b| **b == 1).count();
        assert!(some.len() == 2 * PIECE && ones > PIECE / 2 && ones < 3 * PIECE / 2, "{ones}");
        let little = Sample::of(folder.path(), 100).unwrap();
        assert_eq!(little.len(), 100);
    }

    #[test]
    fn without_data_there_is_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Sample::of(folder.path(), 100).is_err(), "an empty folder");
        assert!(Sample::of(&folder.path().join("none"), 100).is_err());
        assert!(Sample::of(Path::new("/dev/null"), 100).is_err());
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        assert!(Sample::of(&empty, 100).is_err());
    }
}
