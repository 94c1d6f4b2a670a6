//! Addresses as they are typed.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_host::words;

/// Default port of an acceptor; not assigned by IANA.
pub const PORT: u16 = 7702;

/// `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
pub(super) fn host_and_port(address: &str) -> Result<(String, u16)> {
    let shown = words::shown(address.as_bytes());
    let wrong = || Error::misuse(format!("narrows://{shown} is not narrows://HOST:PORT"));
    let address = address.trim_end_matches('/');
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong())? };
    // With a zone, such as fe80::1%eth0.
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || ".-_:%".contains(c));
    if is_host && port != 0 { Ok((host.to_owned(), port)) } else { Err(wrong().into()) }
}

/// Whether it ends as an address with a port does, and is not of version 6 alone.
pub(super) fn has_port(to: &str) -> bool {
    let port = to.rsplit_once(':').filter(|(host, _)| !host.is_empty() && (!host.contains(':') || host.ends_with(']')));
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

pub(super) fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let cannot = || format!("cannot listen on {address}");
    if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(Error::misuse(format!("{}: it is not ADDR:PORT, such as 0.0.0.0:{PORT}", cannot())).into());
    }
    let found: Vec<_> = address.to_socket_addrs().with_context(cannot)?.collect();
    if found.is_empty() { Err(anyhow!("{}: the name has no address", cannot())) } else { Ok(found) }
}
