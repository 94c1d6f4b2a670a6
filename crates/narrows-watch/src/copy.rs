//! The status of a process that carries one copy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use narrows::stream::Control;

use crate::account::{Account, Times};
use crate::page::publish;
use crate::status::{Amounts, Connection, Progress, Status, Traffic};
use crate::{Describe, process};

/// A process that carries one copy.
pub struct OneCopy {
    pub kind: &'static str,
    pub program: String,
    /// The other end; empty within one host.
    pub peer: String,
    /// The other end began it.
    pub accepted: bool,
    pub outcome: &'static str,
    pub control: Arc<Control>,
}

/// Lets others watch a copy. A second copy of this process takes the place of the first one.
pub fn publish_copy(copy: OneCopy, progress: impl Fn() -> Option<Progress> + Send + Sync + 'static) {
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
