//! Locations of sources and targets: `path`, `[user@]host:path` as for scp and rsync,
//! `ssh://[user@]host[:port]/path`, or `narrows://host[:port]/path`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Default port of a server; not assigned by IANA.
pub const PORT: u16 = 7700;

const DIRECT: &[u8] = b"narrows://";
const SSH: &[u8] = b"ssh://";

/// A location of a source or target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On this host.
    Local(PathBuf),
    /// On a host that is reached through a remote shell.
    Ssh {
        /// `[user@]host`, as ssh takes it.
        host: OsString,
        /// The port if the location names one; otherwise the configuration of ssh applies.
        port: Option<u16>,
        path: PathBuf,
    },
    /// A `narrows serve --listen`; `path` is below the folder that it serves.
    Direct { host: String, port: u16, path: PathBuf },
}

impl Place {
    /// Parses a location. A colon makes it remote unless a slash comes before it; `[::1]:path`
    /// names an address with colons.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        if let Some(rest) = bytes.strip_prefix(DIRECT) {
            return Self::parse_direct(rest)
                .ok_or_else(|| format!("'{}' is not a valid address; write narrows://HOST:PORT/PATH", text.display()));
        }
        if let Some(rest) = bytes.strip_prefix(SSH) {
            return Self::parse_ssh(rest).ok_or_else(|| {
                format!("'{}' is not a valid address; write ssh://[USER@]HOST[:PORT]/PATH", text.display())
            });
        }
        Self::check_scheme(text)?;
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
        Ok(Self::ssh(host, None, &bytes[host_end + 1..]))
    }

    fn ssh(host: Vec<u8>, port: Option<u16>, path: &[u8]) -> Self {
        let mut path = path.to_vec();
        if path.is_empty() {
            // As with scp, an empty path is the home folder on that host.
            path.push(b'.');
        } else if path[0] == b'~' && !path.contains(&b'/') {
            // The name of a home folder is unknown here, so its contents are meant.
            path.push(b'/');
        }
        Self::Ssh { host: OsString::from_vec(host), port, path: PathBuf::from(OsString::from_vec(path)) }
    }

    /// Refuses schemes of other programs and misspelt ones, so that they are not taken for host
    /// names.
    fn check_scheme(text: &OsStr) -> Result<(), String> {
        let bytes = text.as_bytes();
        let name_len = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)).count();
        let (name, rest) = bytes.split_at(name_len);
        let write = "write HOST:PATH, ssh://[USER@]HOST[:PORT]/PATH or narrows://HOST[:PORT]/PATH";
        let text = text.display();
        match name {
            _ if name.is_empty() => Ok(()),
            b"tcp" if rest.starts_with(b"://") => {
                Err(format!("'{text}': tcp:// is for send and recv; for cp {write}, or ./ before the name of a file"))
            }
            _ if rest.starts_with(b"://") => {
                Err(format!("'{text}' is not an address that cp supports; {write}, or ./ before the name of a file"))
            }
            b"narrows" | b"ssh" if rest.starts_with(b":/") => {
                let name = String::from_utf8_lossy(name);
                Err(format!("'{text}' lacks a slash: {name}://HOST/PATH; for a host of that name write [{name}]:/PATH"))
            }
            _ => Ok(()),
        }
    }

    /// Parses `ssh://` as git and curl do: the path is absolute, or relative to a home folder after
    /// `/~`; `%XX` is a byte.
    fn parse_ssh(rest: &[u8]) -> Option<Self> {
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (server, path) = rest.split_at(slash);
        let (user, server) = match server.iter().rposition(|b| *b == b'@') {
            Some(at) => (&server[..=at], &server[at + 1..]),
            None => (&server[..0], server),
        };
        let (host, port) = host_and_port(std::str::from_utf8(server).ok()?)?;
        let host = [&unescaped(user)?, host.as_bytes()].concat();
        let path = unescaped(path)?;
        let path = if path.starts_with(b"/~") { &path[1..] } else { &path };
        (!host.starts_with(b"-")).then(|| Self::ssh(host, port, path))
    }

    /// Parses `narrows://`. The path is taken literally, without escapes, since names may contain
    /// any bytes.
    fn parse_direct(rest: &[u8]) -> Option<Self> {
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (server, path) = rest.split_at(slash);
        let server = std::str::from_utf8(server).ok()?;
        let (host, port) = host_and_port(server)?;
        let port = port.unwrap_or(PORT);
        let path = if path.is_empty() { b"/" } else { path };
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        Some(Self::Direct { host: host.to_owned(), port, path })
    }

    /// The same location, at this port unless it names one itself.
    #[must_use]
    pub fn with_port(self, given: Option<u16>) -> Self {
        match self {
            Self::Ssh { host, port, path } => Self::Ssh { host, port: port.or(given), path },
            Self::Direct { host, port: PORT, path } => Self::Direct { host, port: given.unwrap_or(PORT), path },
            other => other,
        }
    }

    /// The path on its host.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::Local(path) | Self::Ssh { path, .. } | Self::Direct { path, .. } => path,
        }
    }

    /// Whether both locations are reached over the same connection.
    pub fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(_), Self::Local(_)) => true,
            (Self::Ssh { host: a, port: p, .. }, Self::Ssh { host: b, port: q, .. }) => a == b && p == q,
            (Self::Direct { host: a, port: p, .. }, Self::Direct { host: b, port: q, .. }) => a == b && p == q,
            _ => false,
        }
    }
}

/// Splits `host`, `host:port`, `[address]` or `[address]:port`.
fn host_and_port(server: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match server.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => Some(port.parse().ok().filter(|port| *port != 0)?),
        None => None,
    };
    (!host.is_empty()).then_some((host, port))
}

/// Decodes `%XX`; `None` if an escape is malformed or a zero byte.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            let value = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|value| *value != 0)?;
            bytes.push(value);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_scp_reads_them() {
        let local = |p: &str| Ok(Place::Local(p.into()));
        let ssh = |h: &str, p: &str| Ok(Place::Ssh { host: h.into(), port: None, path: p.into() });
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
            ("host:~", ssh("host", "~/")),
            ("host:~me/x", ssh("host", "~me/x")),
            ("[narrows]:/x", ssh("narrows", "/x")),
            ("narrows:x", ssh("narrows", "x")),
            ("tcp:x", ssh("tcp", "x")),
            ("./tcp://x", local("./tcp://x")),
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

    #[test]
    fn addresses_of_ssh_are_read_as_git_and_curl_read_them() {
        let ssh = |h: &str, port, p: &str| Ok(Place::Ssh { host: h.into(), port, path: p.into() });
        for (text, place) in [
            ("ssh://host/a/b", ssh("host", None, "/a/b")),
            ("ssh://me@host:2222/a%20b/", ssh("me@host", Some(2222), "/a b/")),
            ("ssh://host/~/x", ssh("host", None, "~/x")),
            ("ssh://host/~me/x", ssh("host", None, "~me/x")),
            ("ssh://host/~", ssh("host", None, "~/")),
            ("ssh://host", ssh("host", None, ".")),
            ("ssh://me@[fe80::1]:22/x", ssh("me@fe80::1", Some(22), "/x")),
        ] {
            assert_eq!(Place::parse(OsStr::new(text)), place, "{text}");
        }
        for bad in ["ssh://", "ssh:///x", "ssh://h:/x", "ssh://h:0/x", "ssh://-oX/x", "ssh://h/%zz", "ssh://h/%00"] {
            assert!(Place::parse(OsStr::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_looks_like_another_address_is_no_host() {
        for (text, words) in [
            ("tcp://host:7700/x", "for send and recv"),
            ("http://host/x", "is not an address that cp supports"),
            ("sftp://host/x", "ssh://"),
            ("narrows:/host/x", "lacks a slash"),
            ("ssh:/host/x", "[ssh]:/PATH"),
        ] {
            let error = Place::parse(OsStr::new(text)).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
