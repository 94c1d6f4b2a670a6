//! The page of metrics of this process, and where other programs find its status.

use std::net::{TcpListener, ToSocketAddrs};

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_host::words;

use crate::{Describe, answer, scrape};

/// The address of a metrics page, bound before anything else begins.
pub struct Metrics(Option<TcpListener>);

impl Metrics {
    /// Listens at the address of `--metrics`, if there is one.
    ///
    /// # Errors
    /// It is no address, or cannot be had.
    pub fn bind(address: Option<&str>) -> Result<Self> {
        let Some(address) = address else { return Ok(Self(None)) };
        let wrong = || Error::misuse(format!("--metrics: '{address}' is not ADDR:PORT, such as 127.0.0.1:9710"));
        let full = full_address(address).ok_or_else(wrong)?;
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
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(self, describe: &Describe) -> Result<Option<String>> {
        let Some(listener) = self.0 else { return Ok(None) };
        let address = listener.local_addr()?.to_string();
        scrape::start(listener, describe.clone())?;
        Ok(Some(address))
    }
}

/// The address of `--metrics` with its host; `None` if it is none.
pub fn full_address(address: &str) -> Option<String> {
    let full = match address.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => address.to_owned(),
    };
    let is_one = full.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    is_one.then_some(full)
}

/// Lets `narrows status` and `narrows top` find this process.
pub fn publish(describe: &Describe) {
    // A process works without it; another one of the same number may be in another container.
    let _ = answer::start(describe.clone());
}

/// Tells where the page is; scripts that let the system choose the port read it here.
pub fn tell(address: &str, quiet: bool) {
    if !quiet {
        words::note(format_args!("metrics on http://{address}/metrics"));
    }
}
