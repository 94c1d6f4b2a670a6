//! Where a flow goes, and where a listener is (docs/format.md, section 21.3).

use std::fmt;
use std::path::PathBuf;

use narrows::{Error, Result};

use super::frame::FLOW_MAX;

/// Longest name of a host, as in DNS and SOCKS.
pub const HOST_MAX: usize = 255;
/// Longest path of a unix socket on Linux.
pub const PATH_MAX: usize = 107;
/// Longest address of a client as text.
const CLIENT_MAX: usize = 64;

const TCP: u8 = 0;
const UNIX: u8 = 1;
const LISTENER: u8 = 2;

/// An address that can be connected to or listened on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A name or an address, and a port. To listen: an empty host is the loopback address, `*` all
    /// addresses.
    Tcp { host: String, port: u16 },
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Where a flow goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// To an address of the acceptor's network.
    Endpoint(Endpoint),
    /// To where the dialer wants the connections of one of its listeners.
    Listener {
        /// Number of the listener.
        number: u64,
        /// Address of the client, as text.
        client: String,
    },
}

impl Endpoint {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tcp { host, port } => {
                out.push(TCP);
                out.extend_from_slice(&port.to_le_bytes());
                out.extend_from_slice(host.as_bytes());
            }
            Self::Unix(path) => {
                out.push(UNIX);
                out.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
        }
    }

    /// The body of a listen frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads the body of a listen frame. `bind`: the host may be empty.
    ///
    /// # Errors
    /// `Corrupt`
    pub fn parse(body: &[u8], bind: bool) -> Result<Self> {
        match body {
            [TCP, p0, p1, host @ ..] if host.len() <= HOST_MAX && (bind || !host.is_empty()) => {
                let host = std::str::from_utf8(host).ok().filter(|h| !h.contains('\0'));
                let host = host.ok_or_else(|| Error::corrupt("the name of a host is no text"))?;
                Ok(Self::Tcp { host: host.into(), port: u16::from_le_bytes([*p0, *p1]) })
            }
            [UNIX, path @ ..] if (1..=PATH_MAX).contains(&path.len()) && !path.contains(&0) => {
                use std::os::unix::ffi::OsStrExt;
                Ok(Self::Unix(std::ffi::OsStr::from_bytes(path).into()))
            }
            _ => Err(Error::corrupt("a frame has no valid address")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } if host.is_empty() => write!(f, "localhost:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => f.write_str(&path.to_string_lossy()),
        }
    }
}

impl Target {
    /// The body of an open frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Endpoint(endpoint) => endpoint.put(&mut out),
            Self::Listener { number, client } => {
                out.push(LISTENER);
                out.extend_from_slice(&number.to_le_bytes()[..6]);
                out.extend_from_slice(&client.as_bytes()[..client.len().min(CLIENT_MAX)]);
            }
        }
        out
    }

    /// Reads the body of an open frame.
    ///
    /// # Errors
    /// `Corrupt`
    pub fn parse(body: &[u8]) -> Result<Self> {
        let [LISTENER, n0, n1, n2, n3, n4, n5, client @ ..] = body else {
            return Ok(Self::Endpoint(Endpoint::parse(body, false)?));
        };
        let number = u64::from_le_bytes([*n0, *n1, *n2, *n3, *n4, *n5, 0, 0]);
        debug_assert!(number <= FLOW_MAX);
        match std::str::from_utf8(client) {
            Ok(client) if client.len() <= CLIENT_MAX => Ok(Self::Listener { number, client: client.into() }),
            _ => Err(Error::corrupt("the address of a client is no text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    #[test]
    fn targets_come_back_as_they_were() {
        let long = "h".repeat(HOST_MAX);
        let path = Endpoint::Unix(format!("/{}", "p".repeat(PATH_MAX - 1)).into());
        for target in [
            Target::Endpoint(tcp("db.example", 5432)),
            Target::Endpoint(tcp(&long, 65535)),
            Target::Endpoint(path.clone()),
            Target::Listener { number: FLOW_MAX, client: "[::1]:80".into() },
            Target::Listener { number: 0, client: String::new() },
        ] {
            assert_eq!(Target::parse(&target.to_bytes()).unwrap(), target);
        }
        for bind in [tcp("", 0), tcp("*", 80), path] {
            assert_eq!(Endpoint::parse(&bind.to_bytes(), true).unwrap(), bind);
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        let long = [&[0, 80, 0][..], &[b'h'; HOST_MAX + 1]].concat();
        let long_path = [&[1][..], &[b'p'; PATH_MAX + 1]].concat();
        let client = [&[2, 1, 0, 0, 0, 0, 0][..], &[b'c'; CLIENT_MAX + 1]].concat();
        let bad: [&[u8]; 11] = [
            b"",
            &[0],
            &[0, 1, 0],
            &[0, 1, 0, 0xff],
            &[0, 1, 0, b'a', 0],
            &[1],
            &[1, b'/', 0],
            &[3, 0, 0, 0],
            &long,
            &long_path,
            &client,
        ];
        for body in bad {
            assert!(Target::parse(body).is_err(), "{body:?}");
        }
        assert!(Target::parse(&[2, 0, 0, 0]).is_err());
    }
}
