//! Where something is: `path`, `[user@]host:path` as scp and rsync know it, or `narrows://host[:port]/path`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::direct::PORT;

const SCHEME: &[u8] = b"narrows://";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Ssh {
        /// `[user@]host`, as ssh takes it.
        host: OsString,
        path: PathBuf,
    },
    /// A `narrows serve --listen`; `path` is below the folder that it serves.
    Direct {
        host: String,
        port: u16,
        path: PathBuf,
    },
}

impl Place {
    /// A colon makes a place remote unless a slash comes before it; `[::1]:path` names an address with colons.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        if let Some(rest) = bytes.strip_prefix(SCHEME) {
            return Self::parse_direct(rest).ok_or_else(|| {
                format!("'{}' is no place on a server; write narrows://HOST:PORT/PATH", text.display())
            });
        }
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

    /// The path is taken as it stands, without the escapes of other addresses: names have any bytes.
    fn parse_direct(rest: &[u8]) -> Option<Self> {
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (server, path) = rest.split_at(slash);
        let server = std::str::from_utf8(server).ok()?;
        let (host, port) = match server.strip_prefix('[') {
            Some(inner) => inner.split_once(']').map(|(host, after)| (host, after.strip_prefix(':')))?,
            None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Some(PORT), |p| p.parse().ok())?;
        let path = if path.is_empty() { b"/" } else { path };
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        (!host.is_empty() && port != 0).then(|| Self::Direct { host: host.to_owned(), port, path })
    }

    /// The path, wherever it is.
    pub(crate) fn path(&self) -> &PathBuf {
        match self {
            Self::Local(path) | Self::Ssh { path, .. } | Self::Direct { path, .. } => path,
        }
    }

    /// Whether both are reached by the same connection.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(_), Self::Local(_)) => true,
            (Self::Ssh { host: a, .. }, Self::Ssh { host: b, .. }) => a == b,
            (Self::Direct { host: a, port: p, .. }, Self::Direct { host: b, port: q, .. }) => a == b && p == q,
            _ => false,
        }
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
        let direct = |h: &str, port: u16, p: &str| Ok(Place::Direct { host: h.into(), port, path: p.into() });
        for (text, place) in [
            ("narrows://host:1234/a/b c/", direct("host", 1234, "/a/b c/")),
            ("narrows://host", direct("host", PORT, "/")),
            ("narrows://[::1]:9/%20", direct("::1", 9, "/%20")),
            ("narrows://[::1]/x", direct("::1", PORT, "/x")),
        ] {
            assert_eq!(Place::parse(OsStr::new(text)), place, "{text}");
        }
        for bad in
            ["narrows://", "narrows:///x", "narrows://h:/x", "narrows://h:0/", "narrows://h:70000/", "narrows://[::1/"]
        {
            assert!(Place::parse(OsStr::new(bad)).is_err(), "{bad}");
        }
        assert!(Place::parse(OsStr::new(":file")).is_err());
        assert!(Place::parse(OsStr::new("-oProxyCommand=x:file")).is_err(), "ssh would take it for a flag");
    }
}
