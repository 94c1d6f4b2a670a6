//! How processes that run for long are watched: their status socket and the page of metrics.

use std::net::{TcpListener, ToSocketAddrs};

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_watch::{Describe, answer, http};

use crate::report;

/// The address of a metrics page, bound before anything else begins.
pub(crate) struct Metrics(Option<TcpListener>);

impl Metrics {
    /// Listens at the address of `--metrics`, if there is one.
    pub(crate) fn bind(address: Option<&str>) -> Result<Self> {
        let Some(address) = address else { return Ok(Self(None)) };
        let wrong = || Error::misuse(format!("--metrics: '{address}' is not ADDR:PORT, such as 127.0.0.1:9710"));
        let full = match address.parse::<u16>() {
            Ok(port) => format!("127.0.0.1:{port}"),
            Err(_) => address.to_owned(),
        };
        full.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()).ok_or_else(wrong)?;
        let cannot = || format!("cannot serve metrics on {address}");
        let mut failed = anyhow!("the name has no address");
        for address in full.to_socket_addrs().with_context(cannot)? {
            match TcpListener::bind(address) {
                Ok(listener) => return Ok(Self(Some(listener))),
                Err(e) => failed = e.into(),
            }
        }
        Err(failed.context(cannot()))
    }

    /// Answers from here on; the address that was bound.
    pub(crate) fn start(self, describe: &Describe) -> Result<Option<String>> {
        let Some(listener) = self.0 else { return Ok(None) };
        let address = listener.local_addr()?.to_string();
        http::start(listener, describe.clone())?;
        Ok(Some(address))
    }
}

/// Lets `narrows status` and `narrows top` find this process.
pub(crate) fn publish(describe: &Describe) {
    // A process works without it; another one of the same number may be in another container.
    let _ = answer::start(describe.clone());
}

/// Tells where the page is; scripts that let the system choose the port read it here.
pub(crate) fn tell(address: &str, quiet: bool) {
    if !quiet {
        report::note(format_args!("metrics on http://{address}/metrics"));
    }
}
