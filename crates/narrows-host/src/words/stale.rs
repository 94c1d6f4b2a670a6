//! Mounts in user space whose program was killed: every call that meets one fails, with an error that names sockets.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::shown;

/// What the standard library says of ENOTCONN, without the words for it, which are those of the system's language.
const NOT_CONNECTED: &str = "(os error 107)";

/// What to do about an error whose text is `text`, if that is about a path in such a mount.
pub(super) fn advice(text: &str) -> Option<String> {
    // It is that of sockets too.
    if !text.contains(NOT_CONNECTED) {
        return None;
    }
    let mounts = mounts(&fs::read("/proc/self/mountinfo").ok()?);
    let here = std::env::current_dir().unwrap_or_default();
    mounts.iter().find(|at| is_about(text, at, &here)).map(|at| ended(at))
}

/// What to do about an error of a file, whose path is not known here.
pub(super) fn advice_of(error: &io::Error) -> Option<String> {
    let is_stale = error.raw_os_error() == Some(libc::ENOTCONN);
    let mounts = is_stale.then(|| mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default()));
    match mounts.as_deref() {
        None | Some([]) => None,
        Some([at]) => Some(ended(at)),
        Some(_) => Some("it is in a mount whose program was killed; `umount` or `fusermount3 -u` ends that".into()),
    }
}

fn ended(at: &Path) -> String {
    let at = shown(at.as_os_str().as_encoded_bytes());
    format!("{at} is a mount whose program was killed; `umount {at}` or `fusermount3 -u {at}` ends it")
}

/// The places of mounts in user space, the latest first.
fn mounts(mountinfo: &[u8]) -> Vec<PathBuf> {
    let place = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let at = words.nth(4)?;
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        (kind == b"fuse" || kind.starts_with(b"fuse.")).then(|| unescaped(at))
    };
    mountinfo.split(|byte| *byte == b'\n').rev().filter_map(place).collect()
}

/// A path in which spaces and the like are written as `\040`.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// Whether a text names a path at or below `at`, or the end of it, as copies name entries.
fn is_about(text: &str, at: &Path, here: &Path) -> bool {
    let words = text.split([' ', ':', ',', ';', '\'', '`']).map(|word| word.trim_end_matches('/'));
    let names = |word: &str| !word.is_empty() && (here.join(word).starts_with(at) || at.ends_with(word));
    let ends = |end: &str| end.is_empty() || end.starts_with(['/', ' ', ':', ',', ';', '\'', '`']);
    let is_named = |at: &str| text.match_indices(at).any(|(begin, _)| ends(&text[begin + at.len()..]));
    here.starts_with(at) || at.to_str().is_some_and(is_named) || words.into_iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_such_mounts_are_known_and_no_others() {
        let text = b"22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
            40 28 0:45 / /mnt/a\\040b rw - fuse.narrows /x.nrw ro,user_id=0\n\
            41 28 0:46 / /home/u/m rw,nosuid shared:5 - fuse.sshfs h: rw\n";
        let places = mounts(text);
        assert_eq!(places, [Path::new("/home/u/m"), Path::new("/mnt/a b")]);
        for (text, found) in [
            ("cannot read /home/u/m/x: y", true),
            ("cannot read m/x: y", true),
            ("cannot examine u/m: y", true),
            ("cannot read m: y", true),
            ("cannot read /home/u/mm: y", false),
            ("cannot send to host: y", false),
        ] {
            assert_eq!(is_about(text, &places[0], Path::new("/home/u")), found, "{text}");
        }
        assert!(is_about("cannot read /mnt/a b/c: y", &places[1], Path::new("/")));
        assert!(is_about("cannot read c: y", &places[1], Path::new("/mnt/a b")));
        assert_eq!(advice("cannot read /home/u/m: Transport endpoint is not connected"), None, "no number");
        assert_eq!(advice("cannot send to host: Transport endpoint is not connected (os error 107)"), None);
    }
}
