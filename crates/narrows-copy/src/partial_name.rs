//! Files that are not whole yet: their names, `.narrows-HASH.partial`, and the mark that tells them from a
//! file of the user with such a name.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

pub(crate) const PREFIX: &[u8] = b".narrows-";
pub(crate) const SUFFIX: &[u8] = b".partial";
/// Number of hexadecimal digits of the hash of the target's name.
const TARGET_LEN: usize = 16;
/// Number of those of its hash: no other file gets such a name by chance, which has to do where there are no
/// attributes.
const CHECK_LEN: usize = 8;
/// Number of both.
pub(crate) const HASH_LEN: usize = TARGET_LEN + CHECK_LEN;
/// The attribute of a temporary file, which goes when the file gets its name. No copy keeps it.
pub(crate) const MARK: &[u8] = b"user.narrows.partial";

/// The hexadecimal digits in the names of temporary files for a target.
pub(crate) fn hash(target: &[u8]) -> String {
    let mut hash = blake3::hash(target).to_hex()[..TARGET_LEN].to_owned();
    hash += &check(hash.as_bytes());
    hash
}

fn check(hash: &[u8]) -> String {
    blake3::hash(&[PREFIX, hash, SUFFIX].concat()).to_hex()[..CHECK_LEN].to_owned()
}

/// Whether this is the name of a temporary file of narrows. Whether the file is one, its mark says.
pub(crate) fn is_partial(name: &[u8]) -> bool {
    digits(name).is_some_and(|digits| {
        let (hash, own) = digits.split_at(TARGET_LEN);
        check(hash).as_bytes() == own
    })
}

/// The same for versions of narrows without a check in the name and without marks.
pub(crate) fn looks_partial(name: &[u8]) -> bool {
    digits(name).is_some()
}

/// The digits of a hash, and perhaps a number after them.
fn digits(name: &[u8]) -> Option<&[u8]> {
    let inner = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (digits, rest) = inner.split_at_checked(HASH_LEN)?;
    let is_hash = digits.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    let is_number = |number: &[u8]| !number.is_empty() && number.iter().all(u8::is_ascii_alphanumeric);
    let is_end = rest.is_empty() || rest.strip_prefix(b"-").is_some_and(is_number);
    (is_hash && is_end).then_some(digits)
}

/// Marks a temporary file; returns whether that can be done here.
pub(crate) fn mark(file: impl AsFd) -> bool {
    rustix::fs::fsetxattr(file, MARK, b"1", XattrFlags::empty()).is_ok()
}

/// Takes the mark away from a file that has its name.
pub(crate) fn unmark(file: impl AsFd) {
    let _ = rustix::fs::fremovexattr(file, MARK);
}

/// Whether a file has the mark, or may have none where it is. An empty one may have been killed before it got its
/// mark, and holds nothing of anyone.
pub(crate) fn is_marked(file: impl AsFd) -> bool {
    match rustix::fs::fgetxattr(&file, MARK, &mut [0u8; 8][..]) {
        Ok(_) | Err(Errno::RANGE) => true,
        Err(Errno::NODATA) => rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_size == 0),
        // Linux has one number for this and for `ENOTSUP`.
        Err(e) => matches!(e, Errno::OPNOTSUPP | Errno::NOSYS),
    }
}

/// Whether a file in a folder is a temporary one of narrows.
pub(crate) fn is_own(folder: impl AsFd, name: &OsStr) -> bool {
    is_partial(name.as_bytes()) && open_file(&folder, name, OFlags::RDONLY).is_some_and(|file| is_marked(&file))
}

/// Opens a file as far as that is allowed. Anything may have such a name; only a file is a remain.
pub(crate) fn open_file(folder: impl AsFd, name: &OsStr, access: OFlags) -> Option<OwnedFd> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat(&folder, name, flags | access, Mode::empty());
    let file = match open(access) {
        // The usual case.
        Err(Errno::NOENT) => return None,
        opened => opened.or_else(|_| open(OFlags::RDONLY)).ok()?,
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_look_like_ours_are_others() {
        let own = hash(b"target");
        let name = |digits: &str, number: &str| format!(".narrows-{digits}{number}.partial").into_bytes();
        assert!(is_partial(&name(&own, "")) && is_partial(&name(&own, "-7")));
        for digits in ["0123456789abcdef01234567", &blake3::hash(b"target").to_hex()[..HASH_LEN]] {
            assert!(!is_partial(&name(digits, "")) && looks_partial(&name(digits, "-7")), "{digits}");
        }
        for other in ["", "0123456789abcdef", "0123456789abcdef0123456g", &format!("{own}0"), &own.to_uppercase()] {
            assert!(!is_partial(&name(other, "")) && !looks_partial(&name(other, "")), "{other}");
        }
        assert!(!is_partial(&name(&own, "-")) && !is_partial(&name(&own, "-a/b")) && !is_partial(own.as_bytes()));
    }
}
