//! What is said to the person who asked for it: one line for each connection.

use rustix::io::Errno;

use super::connection::Connection;
use super::wire::{RawAddress, Reason, host_and_port};
use crate::report;

pub(crate) struct Talk {
    pub(crate) verbose: bool,
}

impl Talk {
    pub(crate) fn ended(&self, connection: &Connection, error: Option<Errno>) {
        if !self.verbose {
            return;
        }
        let (out, back) = connection.bytes();
        let which = if connection.accepted { "from" } else { "to" };
        let end = error.map_or(String::new(), |e| format!("; {}", words(e)));
        let (out, back) = (report::bytes(out as f64), report::bytes(back as f64));
        report::note(format_args!("{which} {}: passed, {out} out, {back} in{end}", address(&connection.peer)));
    }

    pub(crate) fn plain(&self, peer: &RawAddress, reason: i32) {
        if self.verbose {
            report::note(format_args!("with {}: plain ({})", address(peer), Reason::words(reason)));
        }
    }
}

fn words(error: Errno) -> String {
    report::without_os_numbers(&std::io::Error::from(error).to_string())
}

fn address(raw: &RawAddress) -> String {
    host_and_port(raw).map_or("an unknown peer".into(), |(host, port)| {
        std::net::SocketAddr::new(host.to_canonical(), port).to_string()
    })
}
