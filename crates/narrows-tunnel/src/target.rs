//! Where a flow goes, and where a listener is (docs/format.md, section 21.3).

use std::fmt;
use std::path::PathBuf;

use narrows::{Error, Result};

/// Longest name of a host, as in DNS and SOCKS.
pub const HOST_MAX: usize = 255;
/// Longest path of a unix socket on Linux.
pub const PATH_MAX: usize = 107;
/// Longest address of a client as text: that of an IPv6 address with a zone and a port.
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

/// Where a flow goes, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub to: To,
    /// Address of the client as text, if it has one.
    pub client: String,
}

/// Where a flow goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// To an address of the acceptor's network.
    Endpoint(Endpoint),
    /// To where the dialer wants the connections of the listener with this number.
    Listener(u64),
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
        let client = &self.client.as_bytes()[..self.client.len().min(CLIENT_MAX)];
        let mut out = vec![client.len() as u8];
        out.extend_from_slice(client);
        match &self.to {
            To::Endpoint(endpoint) => endpoint.put(&mut out),
            To::Listener(number) => {
                out.push(LISTENER);
                out.extend_from_slice(&number.to_le_bytes()[..6]);
            }
        }
        out
    }

    /// Reads the body of an open frame.
    ///
    /// # Errors
    /// `Corrupt`
    pub fn parse(body: &[u8]) -> Result<Self> {
        let parts = body.split_first().and_then(|(len, rest)| rest.split_at_checked(usize::from(*len)));
        let (client, to) = parts.ok_or_else(|| Error::corrupt("a flow has no target"))?;
        let client = std::str::from_utf8(client).ok().filter(|c| c.len() <= CLIENT_MAX);
        let client = client.ok_or_else(|| Error::corrupt("the address of a client is no text"))?.to_owned();
        let to = match to {
            [LISTENER, number @ ..] if number.len() == 6 => {
                let mut bytes = [0; 8];
                bytes[..6].copy_from_slice(number);
                To::Listener(u64::from_le_bytes(bytes))
            }
            endpoint => To::Endpoint(Endpoint::parse(endpoint, false)?),
        };
        Ok(Self { to, client })
    }
}

/// A target without the address of its client.
impl From<Endpoint> for Target {
    fn from(endpoint: Endpoint) -> Self {
        Self { to: To::Endpoint(endpoint), client: String::new() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            To::Endpoint(endpoint) => endpoint.fmt(f),
            To::Listener(number) => write!(f, "listener {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FLOW_MAX;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    #[test]
    fn targets_come_back_as_they_were() {
        let long = "h".repeat(HOST_MAX);
        let path = Endpoint::Unix(format!("/{}", "p".repeat(PATH_MAX - 1)).into());
        for to in [
            To::Endpoint(tcp("db.example", 5432)),
            To::Endpoint(tcp(&long, 65535)),
            To::Endpoint(path.clone()),
            To::Listener(FLOW_MAX),
            To::Listener(0),
        ] {
            for client in ["", "[::1]:80", &"c".repeat(CLIENT_MAX)] {
                let target = Target { to: to.clone(), client: client.into() };
                assert_eq!(Target::parse(&target.to_bytes()).unwrap(), target);
            }
        }
        for bind in [tcp("", 0), tcp("*", 80), path] {
            assert_eq!(Endpoint::parse(&bind.to_bytes(), true).unwrap(), bind);
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        let long = [&[0, 0, 80, 0][..], &[b'h'; HOST_MAX + 1]].concat();
        let long_path = [&[0, 1][..], &[b'p'; PATH_MAX + 1]].concat();
        let client = [&[CLIENT_MAX as u8 + 1][..], &[b'c'; CLIENT_MAX + 1], &[0, 80, 0, b'h']].concat();
        let bad: [&[u8]; 15] = [
            b"",
            &[0],
            &[1],
            &[5, b'c', 0, 1, 0, b'a'],
            &[1, 0xff, 0, 1, 0, b'a'],
            &[0, 0],
            &[0, 0, 1, 0],
            &[0, 0, 1, 0, 0xff],
            &[0, 0, 1, 0, b'a', 0],
            &[0, 1],
            &[0, 1, b'/', 0],
            &[0, 3, 0, 0, 0],
            &long,
            &long_path,
            &client,
        ];
        for body in bad {
            assert!(Target::parse(body).is_err(), "{body:?}");
        }
        assert!(Target::parse(&[0, 2, 0, 0, 0]).is_err());
        assert!(Target::parse(&[0, 2, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
