//! Names that a file system takes for one although they differ: in case, in the Unicode form of
//! their characters, or in dots and spaces at their end. Such file systems are those of Windows and
//! macOS, wherever they are mounted, and folders of Linux with the attribute `casefold`.
//!
//! What is compared is always names: such file systems give one file as many inode numbers as they
//! like.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use icu_normalizer::DecomposingNormalizerBorrowed;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::listing::each_name;
use crate::partial_name::{PREFIX, SUFFIX, hash, mark};
use crate::tree::{Tree, split};

/// Why an entry is refused whose name is one with another's.
pub const ALIKE: &str = "its file system takes this name for that of another entry of this copy, from which it \
    differs only in case, in the form of its characters or in dots at its end; rename one of them";

/// The paths of a copy, by their hashes, in every spelling. A collision of hashes only keeps a file that
/// could be stored or removed.
#[derive(Debug, Default)]
pub struct Spellings {
    seen: HashSet<u64>,
    /// Of those of `seen` that are not folded themselves.
    folded: HashSet<u64>,
    /// Folded paths that have more than one spelling.
    several: HashSet<u64>,
    /// Whether folders take spellings for one, by the hash of their paths. Only those that were asked about.
    folders: HashMap<u64, bool>,
}

/// What was known of a path that is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// Nothing.
    New,
    /// It was added before.
    Again,
    /// Another spelling of it was.
    Alike,
}

impl Spellings {
    /// Adds a path.
    pub fn add(&mut self, path: &[u8]) -> Added {
        let own = xxh3_64(path);
        let fold = fold_hash(path);
        let is_alike = self.is_folded_known(fold, own);
        if !self.seen.insert(own) {
            return Added::Again;
        }
        if fold != own {
            self.folded.insert(fold);
        }
        if !is_alike {
            return Added::New;
        }
        self.several.insert(fold);
        Added::Alike
    }

    /// Whether exactly this path was added.
    pub fn has(&self, path: &[u8]) -> bool {
        self.seen.contains(&xxh3_64(path))
    }

    /// Whether this path was added, in whatever spelling.
    pub fn has_alike(&self, path: &[u8]) -> bool {
        let fold = fold_hash(path);
        self.folded.contains(&fold) || self.seen.contains(&fold)
    }

    /// Whether a path that is [`Added::Alike`] is one with the other at the target. `folds` says whether a
    /// folder takes spellings for one.
    pub fn is_one(&mut self, path: &[u8], mut folds: impl FnMut(&[u8]) -> bool) -> bool {
        let fold = folded(path);
        let (mut hash, mut from) = (Xxh3::new(), 0);
        ends(path).zip(ends(&fold)).any(|(end, fold_end)| {
            hash.update(&fold[from..fold_end]);
            from = fold_end;
            self.several.contains(&hash.digest()) && self.folds(split(&path[..end]).0, &mut folds)
        })
    }

    /// Whether the folder `path` takes spellings for one. It is asked once.
    pub fn folds(&mut self, path: &[u8], folds: impl FnOnce(&[u8]) -> bool) -> bool {
        *self.folders.entry(xxh3_64(path)).or_insert_with(|| folds(path))
    }

    fn is_folded_known(&self, fold: u64, own: u64) -> bool {
        self.folded.contains(&fold) || fold != own && self.seen.contains(&fold)
    }
}

/// Where the components of a path end.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> {
    path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at).chain([path.len()])
}

/// The same number for all spellings of a path.
pub(crate) fn fold_hash(path: &[u8]) -> u64 {
    xxh3_64(&folded(path))
}

/// The same for all spellings of a path that some file system takes for one. It equates a few names
/// that a given one tells apart, since each has rules of its own.
pub(crate) fn folded(path: &[u8]) -> Cow<'_, [u8]> {
    let is_end = |at: usize| path.get(at + 1).is_none_or(|next| *next == b'/');
    let is_plain = |(at, b): (usize, &u8)| match b {
        b'.' | b' ' => !is_end(at),
        b => b.is_ascii() && !b.is_ascii_uppercase(),
    };
    if path.iter().enumerate().all(is_plain) {
        return Cow::Borrowed(path);
    }
    let parts: Vec<Vec<u8>> = path.split(|b| *b == b'/').map(folded_name).collect();
    Cow::Owned(parts.join(&b'/'))
}

fn folded_name(name: &[u8]) -> Vec<u8> {
    let len = name.iter().rposition(|b| !matches!(b, b'.' | b' ')).map_or(0, |at| at + 1);
    let name = &name[..len];
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_ascii() => {
            let nfd = DecomposingNormalizerBorrowed::new_nfd();
            let apart = nfd.normalize(text);
            // Upper case has one form of `ß` and `ss`, and of the two small sigmas; but the capital `ẞ` is its
            // own, so lower case comes before that too.
            let chars = apart.chars().filter(|c| !is_ignored(*c)).flat_map(char::to_lowercase);
            let folded: String = chars.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
            nfd.normalize(&folded).into_owned().into_bytes()
        }
        _ => name.to_ascii_lowercase(),
    }
}

/// Characters that case folding of Linux and HFS+ pass over.
fn is_ignored(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// As [`folds`], of a folder below a tree; of the one above it where it is missing.
pub(crate) fn folds_at(tree: &mut Tree, path: &[u8], writes: bool) -> bool {
    let mut path = path;
    loop {
        match tree.folder(path) {
            Ok(folder) => return folds(&folder, writes),
            Err(e) if e.kind() == io::ErrorKind::NotFound && !path.is_empty() => path = split(path).0,
            Err(_) => return false,
        }
    }
}

/// Whether a folder takes different spellings of a name for one. `writes`: a file may be created in it for
/// a moment; otherwise a name that is there tells.
pub(crate) fn folds(folder: &OwnedFd, writes: bool) -> bool {
    // Only letters of ASCII, then one that has two forms in Unicode.
    match writes.then(|| is_one(folder, "", "")).flatten() {
        Some(is_one_case) => is_one_case || is_one(folder, "\u{e9}", "e\u{301}").unwrap_or(false),
        None => folds_listed(folder).unwrap_or(false),
    }
}

/// Whether both names are one in a folder.
pub(crate) fn are_one(folder: &OwnedFd, a: &OsStr, b: &OsStr) -> bool {
    a == b || folded(a.as_bytes()) == folded(b.as_bytes()) && folds(folder, true)
}

/// Whether a file with this end of its name is found by another one, or by another case if both are empty.
/// `None`: none can be created.
fn is_one(folder: &OwnedFd, end: &str, other: &str) -> Option<bool> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    let own = [PREFIX, hash(&random).as_bytes(), SUFFIX].concat();
    let made = [&own, end.as_bytes()].concat();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, &made[..], flags, Mode::RUSR | Mode::WUSR).ok()?;
    // As any file that is not whole: other copies leave it alone now, and remove it if this one is killed.
    mark(&file);
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let sought = if end.is_empty() { swapped(&own) } else { [&own, other.as_bytes()].concat() };
    let is_one = is_found(folder, &sought);
    let _ = rustix::fs::unlinkat(folder, &made[..], AtFlags::empty());
    Some(is_one)
}

/// The same by a name that is there: what is found by another spelling, and is not listed so, is that.
fn folds_listed(folder: &OwnedFd) -> io::Result<bool> {
    let mut other = None;
    each_name(folder, |name| {
        other = Some(swapped(name.as_bytes())).filter(|other| other != name.as_bytes());
        if other.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let Some(other) = other.filter(|other| is_found(folder, other)) else { return Ok(false) };
    let mut is_listed = false;
    each_name(folder, |name| {
        is_listed = name.as_bytes() == other;
        if is_listed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(!is_listed)
}

fn is_found(folder: impl AsFd, name: &[u8]) -> bool {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => true,
        Err(Errno::NOENT) => false,
        // Something is there that cannot be examined.
        Err(e) => e == Errno::ACCESS,
    }
}

fn swapped(name: &[u8]) -> Vec<u8> {
    let swap = |b: &u8| if b.is_ascii_lowercase() { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() };
    name.iter().map(swap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_that_some_file_system_takes_for_one_are_alike_and_others_are_not() {
        for (a, b) in [
            ("readme", "README"),
            ("Dir/a", "dir/A"),
            ("\u{e9}t\u{e9}", "E\u{301}te\u{301}"),
            ("stra\u{df}e", "STRASSE"),
            ("STRA\u{1e9e}E", "strasse"),
            ("\u{1e9e}", "\u{df}"),
            ("\u{3c3}\u{3c2}", "\u{3a3}\u{3a3}"),
            ("a.", "a"),
            ("a. /b", "A/b"),
            ("a\u{200d}b", "ab"),
            ("\u{212b}", "\u{c5}"),
        ] {
            assert_eq!(folded(a.as_bytes()), folded(b.as_bytes()), "{a} {b}");
        }
        for (a, b) in [("a", "b"), ("a/b", "ab"), (".a", "a"), ("a.b", "ab"), ("\u{e9}", "e"), ("a b", "ab")] {
            assert_ne!(folded(a.as_bytes()), folded(b.as_bytes()), "{a} {b}");
        }
        assert_ne!(folded(b"\xff"), folded(b"\xfe"), "what is no text has no letters but those of ASCII");
        assert_eq!(folded(b"A\xff"), folded(b"a\xff"));
    }

    #[test]
    fn a_second_spelling_is_noticed_in_any_order_and_asked_about_once() {
        for (a, b) in [("d/a", "d/A"), ("d/A", "d/a"), ("d/Aa", "d/aA")] {
            let mut all = Spellings::default();
            assert_eq!(
                [a, b, a, "d/b"].map(|path| all.add(path.as_bytes())),
                [Added::New, Added::Alike, Added::Again, Added::New]
            );
            let mut asked = Vec::new();
            let mut ask = |folds: bool| {
                all.is_one(b.as_bytes(), |folder| {
                    asked.push(folder.to_vec());
                    folds
                })
            };
            assert!(ask(true) && ask(false));
            assert_eq!(asked, [b"d"]);
            let upper = a.to_uppercase();
            assert!(all.has(a.as_bytes()) && !all.has(b"D/c") && !all.has_alike(b"D/c"));
            assert!(!all.has(upper.as_bytes()) && all.has_alike(upper.as_bytes()));
        }
        // Where only the folders differ, the one that they are in is asked.
        let mut all = Spellings::default();
        for path in ["x/D", "x/D/a", "x/d", "x/d/a"] {
            all.add(path.as_bytes());
        }
        assert!(all.is_one(b"x/d/a", |folder| folder == b"x") && !all.is_one(b"y", |_| true));
    }

    #[test]
    fn a_folder_that_tells_spellings_apart_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        assert!(!folds(&folder, true) && !folds(&folder, false));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(dir.path().join("a"), "").unwrap();
        assert!(!folds(&folder, false) && !are_one(&folder, OsStr::new("a"), OsStr::new("A")));
    }
}
