//! Names of files that are not whole yet: `.narrows-HASH.partial`.

pub(crate) const PREFIX: &[u8] = b".narrows-";
pub(crate) const SUFFIX: &[u8] = b".partial";
/// Number of hexadecimal digits of the hash of the target's name.
pub(crate) const HASH_LEN: usize = 24;
/// Number of letters in the name of a staging folder of a copy with tar.
const WORK_LEN: usize = 16;

/// Whether this is the name of a temporary file of narrows (a hash, and perhaps a number) or of a
/// staging folder of a copy with tar. Similar names belong to files of the user.
pub(crate) fn is_partial(name: &[u8]) -> bool {
    let Some(inner) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else { return false };
    let is_hash = |hash: &[u8]| hash.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    match inner.split_at_checked(HASH_LEN) {
        Some((hash, b"")) => is_hash(hash),
        Some((hash, [b'-', number @ ..])) => {
            is_hash(hash) && !number.is_empty() && number.iter().all(u8::is_ascii_alphanumeric)
        }
        Some(_) => false,
        None => inner.len() == WORK_LEN && inner.iter().all(u8::is_ascii_alphanumeric),
    }
}
