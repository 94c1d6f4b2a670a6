//! The status socket of processes that run for long, and their page of metrics.

use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows::stream::Control;
use narrows_watch::account::{Account, Times};
use narrows_watch::status::{Amounts, Connection, Progress, Status, Traffic};
use narrows_watch::{Describe, answer, process, scrape};

use crate::report;

/// The address of a metrics page, bound before anything else begins.
pub(crate) struct Metrics(Option<TcpListener>);

impl Metrics {
    /// Listens at the address of `--metrics`, if there is one.
    pub(crate) fn bind(address: Option<&str>) -> Result<Self> {
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
    pub(crate) fn start(self, describe: &Describe) -> Result<Option<String>> {
        let Some(listener) = self.0 else { return Ok(None) };
        let address = listener.local_addr()?.to_string();
        scrape::start(listener, describe.clone())?;
        Ok(Some(address))
    }
}

/// The address of `--metrics` with its host; `None` if it is none.
pub(crate) fn full_address(address: &str) -> Option<String> {
    let full = match address.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => address.to_owned(),
    };
    let is_one = full.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    is_one.then_some(full)
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

/// A process that carries one copy.
pub(crate) struct OneCopy {
    pub(crate) kind: &'static str,
    pub(crate) program: String,
    /// The other end; empty within one host.
    pub(crate) peer: String,
    /// The other end began it.
    pub(crate) accepted: bool,
    pub(crate) outcome: &'static str,
    pub(crate) control: Arc<Control>,
}

/// Lets others watch a copy. A second copy of this process takes the place of the first one.
pub(crate) fn publish_copy(copy: OneCopy, progress: impl Fn() -> Option<Progress> + Send + Sync + 'static) {
    static CURRENT: Mutex<Option<Describe>> = Mutex::new(None);
    let begun = Instant::now();
    let describe: Describe = Arc::new(move || copy.status(begun, progress()));
    let before = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).replace(describe);
    if before.is_none() {
        let current = || CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        publish(&(Arc::new(move || current().map_or_else(Status::default, |describe| describe())) as Describe));
    }
}

impl OneCopy {
    fn status(&self, begun: Instant, progress: Option<Progress>) -> Status {
        let (sent, received) = (self.control.send_summary(), self.control.receive_summary());
        let account = Account::of(&sent);
        let connection = Connection {
            id: 1,
            peer: if self.peer.is_empty() { "this host".into() } else { self.peer.clone() },
            accepted: self.accepted,
            age_s: begun.elapsed().as_secs_f64(),
            outcome: self.outcome.into(),
            within_host: self.peer.is_empty(),
            out: Traffic::sent(sent.crossed_raw_bytes, sent.crossed_wire_bytes, &account),
            back: Traffic::received(received.raw_bytes, received.wire_bytes, Some(&received)),
            times: (account.times != Times::default()).then_some(account.times),
            progress,
            ..Connection::default()
        };
        let mut totals = Amounts { connections: 1, ..Amounts::default() };
        totals.add(&connection);
        let status = process::status(self.kind, &self.program, begun.elapsed());
        Status { totals, ..status }.with_account(&account).with_connections(vec![connection])
    }
}
