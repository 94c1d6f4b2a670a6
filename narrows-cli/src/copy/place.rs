//! Where something is: `path`, or `[user@]host:path` as scp and rsync know it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Ssh {
        /// `[user@]host`, as ssh takes it.
        host: OsString,
        path: PathBuf,
    },
}

impl Place {
    /// A colon makes a place remote unless a slash comes before it; `[::1]:path` names an address with colons.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let local = || Ok(Self::Local(PathBuf::from(text)));
        let host_end = match bytes.iter().position(|b| *b == b'[') {
            Some(open) if !bytes[..open].iter().any(|b| matches!(b, b'/' | b':')) => {
                match bytes.windows(2).position(|w| w == b"]:") {
                    Some(close) if close > open => close + 1,
                    _ => return local(),
                }
            }
            _ => match bytes.iter().position(|b| matches!(b, b'/' | b':')) {
                Some(at) if bytes[at] == b':' => at,
                _ => return local(),
            },
        };
        let host: Vec<u8> = bytes[..host_end].iter().copied().filter(|b| !matches!(b, b'[' | b']')).collect();
        if host.is_empty() || host.starts_with(b"-") {
            return Err(format!(
                "'{}' has no host before the colon; for a file of that name write ./ before it",
                text.display()
            ));
        }
        let path = &bytes[host_end + 1..];
        // As with scp, nothing after the colon is the home folder there.
        let path = if path.is_empty() { b"." } else { path };
        Ok(Self::Ssh { host: OsString::from_vec(host), path: PathBuf::from(OsString::from_vec(path.to_vec())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_scp_reads_them() {
        let local = |p: &str| Ok(Place::Local(p.into()));
        let ssh = |h: &str, p: &str| Ok(Place::Ssh { host: h.into(), path: p.into() });
        for (text, place) in [
            ("file", local("file")),
            ("./a:b", local("./a:b")),
            ("/x/a:b", local("/x/a:b")),
            ("host:file", ssh("host", "file")),
            ("me@host:/abs/with:colon", ssh("me@host", "/abs/with:colon")),
            ("host:", ssh("host", ".")),
            ("[::1]:file", ssh("::1", "file")),
            ("me@[fe80::1]:dir/", ssh("me@fe80::1", "dir/")),
            ("[odd]name", local("[odd]name")),
        ] {
            assert_eq!(Place::parse(OsStr::new(text)), place, "{text}");
        }
        assert!(Place::parse(OsStr::new(":file")).is_err());
        assert!(Place::parse(OsStr::new("-oProxyCommand=x:file")).is_err(), "ssh would take it for a flag");
    }
}
