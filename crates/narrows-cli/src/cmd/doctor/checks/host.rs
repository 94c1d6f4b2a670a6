//! The host: its cores, memory, descriptors and ports, and whether the codecs work on it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::{fs, thread};

use narrows::codec::{CODECS, Codec, Contexts};
use narrows::stream;
use narrows_host::means;
use narrows_tunnel::service as tunnel;

use super::Check;
use crate::cmd::run;
use crate::report;

/// Memory below which flows get less than they may use: those of one process take under 64 MiB, with
/// four threads of the slowest methods.
const MEMORY_MIN: u64 = 64 << 20;
/// Descriptors below which copies of many files flush them more often than is quick.
const DESCRIPTORS_MIN: usize = 1024;

/// Whether each codec gives back what it took.
pub(super) fn codecs() -> Check {
    const NAME: &str = "codecs";
    let raw: Vec<u8> = (0..2000u32).flat_map(|i| format!("{} GET /item/{}\n", i / 7, i % 50).into_bytes()).collect();
    let broken: Vec<_> = CODECS.iter().filter(|codec| !gives_back(**codec, &raw)).map(|codec| codec.name()).collect();
    if broken.is_empty() {
        return Check::ok(NAME, format!("all {} give back what they took", CODECS.len()));
    }
    let found = format!("wrong bytes from {}", broken.join(", "));
    Check::missing(NAME, found, "this build or this machine is faulty: install another build, and test the memory")
}

fn gives_back(codec: &dyn Codec, raw: &[u8]) -> bool {
    let mut contexts = Contexts::default();
    let (mut wire, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
    // A codec that does not shrink the data leaves it to others.
    let encoded = contexts.encoder(codec).encode(codec.default_level(), &[], raw, &mut wire);
    encoded.is_none_or(|len| {
        let decoded = contexts.decoder(codec).decode(&[], &wire[..len], &mut back);
        decoded == Ok(raw.len()) && back == raw
    })
}

pub(super) fn threads() -> Check {
    const NAME: &str = "threads";
    match thread::Builder::new().spawn(|| ()) {
        Ok(thread) => {
            let _ = thread.join();
            Check::ok(NAME, "can be started")
        }
        Err(e) => Check::missing(NAME, e.to_string(), "raise the limit on processes (ulimit -u, TasksMax=)"),
    }
}

pub(super) fn cores() -> Check {
    const NAME: &str = "cores";
    match stream::cores() {
        1 => Check::limited(NAME, "1", "it encodes and sends in turn; give the process more (taskset, CPUQuota=)"),
        n => Check::ok(NAME, n.to_string()),
    }
}

pub(super) fn memory() -> Check {
    let bytes = means::memory();
    let found = report::bytes(bytes as f64);
    if bytes < MEMORY_MIN {
        return Check::limited("memory", found, "give the process 64 MiB or more (ulimit -v, MemoryMax=)");
    }
    Check::ok("memory", found)
}

pub(super) fn descriptors() -> Check {
    let n = means::descriptors();
    if n < DESCRIPTORS_MIN {
        let advice = format!("give the process {DESCRIPTORS_MIN} or more (ulimit -Hn, LimitNOFILE=)");
        return Check::limited("descriptors", n.to_string(), advice);
    }
    Check::ok("descriptors", n.to_string())
}

/// The ports that servers listen on without another word.
pub(super) fn ports() -> Check {
    const NAME: &str = "ports";
    let service = match run::service_port(None) {
        Ok(port) => port,
        Err(e) => return Check::limited(NAME, e.to_string(), "set NARROWS_PORT to a port, the same on all hosts"),
    };
    let ports = [
        (narrows_copy::direct::PORT, "serve", "--listen"),
        (service, "run, agent", "NARROWS_PORT on all hosts"),
        (tunnel::PORT, "tunnel, ping", "--listen"),
    ];
    let mut advice = Vec::new();
    let mut found = Vec::new();
    for (port, whose, another) in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => found.push(format!("{port} ({whose}) free")),
            Err(e) if e.kind() == ErrorKind::AddrInUse && port == service && agent_listens() => {
                found.push(format!("{port} ({whose}) has an agent"));
            }
            Err(e) => {
                let why = if e.kind() == ErrorKind::AddrInUse { "in use".to_owned() } else { e.to_string() };
                found.push(format!("{port} ({whose}) {why}"));
                advice.push(format!("{port}: another port by {another}"));
            }
        }
    }
    let found = found.join(", ");
    if advice.is_empty() { Check::ok(NAME, found) } else { Check::limited(NAME, found, advice.join("; ")) }
}

/// Whether an agent of some user listens for supervisors, at an abstract name.
fn agent_listens() -> bool {
    fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains("@narrows-agent:"))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn this_machine_works() {
        assert_eq!([codecs().state, threads().state], [State::Ok; 2]);
        assert!(cores().found.parse::<usize>().unwrap() > 0);
    }
}
