//! Notes on stderr with `-v`: one line for each connection.

use rustix::io::Errno;

use super::account::{LiveConnection, Outcome, Traffic};
use super::wire::{RawAddress, Reason, host_and_port};
use narrows_host::words;

pub struct Talk {
    pub verbose: bool,
}

impl Talk {
    pub fn ended(&self, connection: &LiveConnection, error: Option<Errno>, refused: Option<&str>) {
        if !self.verbose {
            return;
        }
        let which = if connection.accepted { "from" } else { "to" };
        let (outcome, out, back) = (&connection.outcome, &connection.out, &connection.back);
        let bytes = match outcome {
            Outcome::Plain(_) => {
                let (out, back) = (words::bytes(out.raw_bytes as f64), words::bytes(back.raw_bytes as f64));
                format!("passed {out} out, {back} in")
            }
            _ => {
                let why = if connection.within_host { "; stored, since both ends are this host" } else { "" };
                format!("out {}; in {}{why}", direction(out), direction(back))
            }
        };
        let end = match (refused, error) {
            (Some(why), _) => format!("; reset, since {why}"),
            (None, Some(error)) => format!("; {}", words(error)),
            (None, None) => String::new(),
        };
        words::note(format_args!("{which} {}: {outcome}; {bytes}{end}", address(&connection.peer)));
    }

    pub fn plain(&self, peer: &RawAddress, reason: i32) {
        if self.verbose {
            words::note(format_args!("with {}: plain ({})", address(peer), Reason::words(reason)));
        }
    }
}

/// `50.0 MiB, wire 12.1 MiB, ratio 4.13, 97 % zstd:level=1, 3 % store`
fn direction(traffic: &Traffic) -> String {
    let raw = words::bytes(traffic.raw_bytes as f64);
    if !traffic.framed {
        return format!("{raw} plain");
    }
    let methods: String = traffic.methods.iter().map(|(name, share)| format!(", {share} % {name}")).collect();
    format!("{raw}, {}{methods}", words::wire(traffic.raw_bytes, traffic.wire_bytes))
}

fn words(error: Errno) -> String {
    words::without_os_numbers(&std::io::Error::from(error).to_string())
}

fn address(raw: &RawAddress) -> String {
    host_and_port(raw).map_or("an unknown peer".into(), |(host, port)| {
        std::net::SocketAddr::new(host.to_canonical(), port).to_string()
    })
}
