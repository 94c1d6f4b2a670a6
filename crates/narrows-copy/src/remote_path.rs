//! Expansion of remote paths as by a login shell: `~` in sources and targets, and wildcards in
//! sources.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use globset::{GlobBuilder, GlobMatcher};
use narrows_host::wildcard::with_plain_braces;

/// Maximum number of files that one pattern may match; more should be copied as a folder.
const FOUND_MAX: usize = 100_000;

/// A name with the wildcards `*`, `?` and `[...]`; `\` makes the next character literal.
#[derive(Debug, Clone)]
pub struct Pattern {
    matcher: GlobMatcher,
    /// The pattern begins with a dot: as in shells, only such a pattern matches names with a
    /// leading dot.
    dot: bool,
}

impl Pattern {
    /// Parses a name; `None` if it has no wildcards.
    pub fn parse(name: &[u8]) -> Option<Self> {
        if !name.iter().any(|b| b"*?[".contains(b)) {
            return None;
        }
        let text = with_plain_braces(std::str::from_utf8(name).ok()?);
        let matcher = GlobBuilder::new(&text).literal_separator(true).backslash_escape(true).build().ok()?;
        Some(Self { matcher: matcher.compile_matcher(), dot: name.starts_with(b".") || name.starts_with(b"\\.") })
    }

    /// Whether the pattern matches a name.
    pub fn matches(&self, name: &[u8]) -> bool {
        (self.dot || !name.starts_with(b".")) && self.matcher.is_match(Path::new(std::ffi::OsStr::from_bytes(name)))
    }
}

/// Whether a path has wildcards, so that it may name several sources.
pub fn has_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().split(|b| *b == b'/').any(|name| Pattern::parse(name).is_some())
}

/// Replaces a leading `~` or `~user` with the home folder.
pub fn at_home(path: &Path) -> io::Result<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"~") else { return Ok(path.to_path_buf()) };
    let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    let (user, rest) = rest.split_at(end);
    let home = if user.is_empty() { std::env::var_os("HOME") } else { home_of(user)? };
    let home = home.filter(|home| !home.is_empty()).ok_or_else(|| {
        let user = String::from_utf8_lossy(user);
        io::Error::new(io::ErrorKind::NotFound, format!("there is no home folder ~{user}"))
    })?;
    let mut whole = home.into_vec();
    whole.extend_from_slice(rest);
    Ok(OsString::from_vec(whole).into())
}

/// The home folder of a user as found by the shell, which uses the user database of the host.
fn home_of(user: &[u8]) -> io::Result<Option<OsString>> {
    // No characters that are special to the shell.
    if !user.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b)) {
        return Ok(None);
    }
    let line = format!("printf %s ~{}", String::from_utf8_lossy(user));
    let said = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    Ok(Some(said.stdout).filter(|home| home.starts_with(b"/")).map(OsString::from_vec))
}

/// The paths that match a pattern, in order; the path itself if a file has exactly that name, or if
/// nothing matches.
pub fn expand(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !has_pattern(path) || path.symlink_metadata().is_ok() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    for (number, name) in path.as_os_str().as_bytes().split(|b| *b == b'/').enumerate() {
        let pattern = Pattern::parse(name);
        let mut next = Vec::new();
        for before in found {
            let joined = |name: &[u8]| {
                let slash: &[u8] = if number > 0 { b"/" } else { b"" };
                [&before, slash, name].concat()
            };
            let Some(pattern) = &pattern else {
                next.push(joined(name));
                continue;
            };
            let mut names = names(&joined(b""));
            names.retain(|name| pattern.matches(name));
            names.sort_unstable();
            next.extend(names.iter().map(|name| joined(name)));
            if next.len() > FOUND_MAX {
                return Err(io::Error::other(format!("it matches more than {FOUND_MAX} files; copy their folder")));
            }
        }
        found = next;
    }
    found.retain(|path| as_path(path).symlink_metadata().is_ok());
    if found.is_empty() {
        return Ok(vec![path.to_path_buf()]);
    }
    Ok(found.into_iter().map(|path| OsString::from_vec(path).into()).collect())
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// The names in a folder; none if it cannot be read, as in shells.
fn names(folder: &[u8]) -> Vec<Vec<u8>> {
    let folder = if folder.is_empty() { Path::new(".") } else { as_path(folder) };
    let list = folder.read_dir().into_iter().flatten().flatten();
    list.map(|entry| entry.file_name().into_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_of_any_bytes_as_shells_do() {
        let matches = |pattern: &str, name: &[u8]| Pattern::parse(pattern.as_bytes()).unwrap().matches(name);
        assert!(matches("*", b"\xff\xfe") && matches("*.log", b"a.log") && matches("?[a-c]", b"xb"));
        assert!(!matches("*", b".hidden") && matches(".*", b".hidden") && !matches("*.log", b"a.txt"));
        assert!(matches("a\\**", b"a*b") && !matches("a\\**", b"ab") && matches("{x}*", b"{x}y"));
        // Of braces a `\` changes nothing: they stand for themselves.
        assert!(matches("\\{x,\\}*", b"{x,}y") && !matches("\\{x,y\\}*", b"\\x") && matches("[{]*", b"{x"));
        assert!(!matches("[{]*", b"\\x") && matches("\\\\{*", b"\\{x"));
        for plain in ["name", "a{b,c}", ""] {
            assert!(Pattern::parse(plain.as_bytes()).is_none(), "{plain}");
        }
    }

    #[test]
    fn what_is_there_is_named_in_order_and_what_is_not_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/1.c", "a/2.c", "a/x.h", "[odd].c", "a/.c"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let named = |pattern: &str| -> Vec<String> {
            let found = expand(&dir.path().join(pattern)).unwrap();
            let own = |p: PathBuf| p.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned();
            found.into_iter().map(own).collect()
        };
        assert_eq!(named("*/*.c"), ["a/2.c", "b/1.c"]);
        assert_eq!(named("[odd].c"), ["[odd].c"], "a name that is there is meant");
        assert_eq!(named("no*"), ["no*"]);
        assert_eq!(named("a/x.h"), ["a/x.h"]);
        assert_eq!(expand(&dir.path().join("*/")).unwrap().len(), 2, "folders");
    }

    #[test]
    fn a_tilde_is_a_home_folder() {
        let home = std::env::var("HOME").unwrap_or_default();
        if !home.is_empty() {
            assert_eq!(at_home(Path::new("~/x")).unwrap(), PathBuf::from(format!("{home}/x")));
        }
        assert_eq!(at_home(Path::new("~root/x")).unwrap().file_name().unwrap(), "x");
        assert_eq!(at_home(Path::new("a/~/x")).unwrap(), PathBuf::from("a/~/x"));
        for bad in ["~no-such-user-here/x", "~$(reboot)/x", "~;x"] {
            assert!(at_home(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
