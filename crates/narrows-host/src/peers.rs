//! Memory of peers: the link and the kinds of data of earlier transfers, stored between runs in the
//! cache folder of the user.
//!
//! Peers are named by a keyed hash, so the file lists no hosts; whoever has the file and guesses a
//! host can check the guess. Processes that store at the same time replace the file one after the
//! other: each file is whole, and the last one wins.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use narrows::monitor::expectation::{Expectation, Kind, PeerLink};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{cache, whole, words};

mod text;

use text::{FILE_MAX, Peers};

/// Set to anything but `0`, it switches the memory off, as `--no-memory` does.
pub const SWITCH: &str = "NARROWS_NO_MEMORY";

/// The memory of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    name: String,
    verbose: bool,
}

impl Peer {
    /// A host reached over TCP. The port belongs to its name only where it is this host, since a port
    /// of this host may be a tunnel to any other.
    pub fn tcp(host: &str, port: u16) -> Self {
        let host = host.trim_matches(['[', ']']).to_lowercase();
        let tunnel = host == "localhost" || host == "::1" || host.starts_with("127.");
        Self::named(if tunnel { format!("tcp {host} {port}") } else { format!("tcp {host}") })
    }

    /// A host reached by a remote shell: `[user@]host`, the port if one is given, and the command.
    pub fn shell(host: &str, port: Option<u16>, command: &str) -> Self {
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host).to_lowercase();
        let port = port.map(|port| format!(" {port}")).unwrap_or_default();
        Self::named(format!("shell {host}{port} {command}"))
    }

    fn named(name: String) -> Self {
        Self { name, verbose: false }
    }

    /// Whether problems with the file are reported.
    #[must_use]
    pub fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// What earlier transfers to this peer found. `None` if there is nothing, or nothing valid: the
    /// program works without it.
    pub fn recall(&self) -> Option<Expectation> {
        load(&path()?, self.verbose)?.recall(&self.name, today())
    }

    /// Keeps what a transfer found. A failure does not affect the transfer.
    pub fn remember(&self, link: Option<PeerLink>, kinds: &[Kind]) {
        if link.is_none() && kinds.is_empty() {
            return;
        }
        let path = path().context("there is no home folder to keep it in");
        if let Err(e) = path.and_then(|path| self.store(&path, link, kinds))
            && self.verbose
        {
            words::note(format_args!("the memory of peers was not updated: {}", words::one_line(&e)));
        }
    }

    fn store(&self, path: &Path, link: Option<PeerLink>, kinds: &[Kind]) -> Result<()> {
        let folder = path.parent().context("the cache folder has no name")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Writing into a fifo of that name would wait for a reader.
        ensure!(fs::metadata(path).map_or(true, |data| data.is_file()), "{} is not a file", path.display());
        // One that is damaged was reported when it was read.
        let mut peers = match load(path, false) {
            Some(peers) => peers,
            None => Peers::new(salt()?),
        };
        if !peers.remember(&self.name, link, kinds, today()) {
            return Ok(());
        }
        whole::write_private(path, peers.to_text().as_bytes())
    }
}

/// Whether the environment switches the memory off.
pub fn is_switched_off() -> bool {
    std::env::var_os(SWITCH).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Path of the file; `None` if there is no cache folder.
pub fn path() -> Option<PathBuf> {
    Some(cache::folder()?.join("peers"))
}

/// The stored memory. `None` if it is missing or not whole and valid; then none of it is used.
fn load(path: &Path, verbose: bool) -> Option<Peers> {
    // A fifo of that name would never end.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    let peers = Peers::parse(&bytes);
    if peers.is_none() && verbose {
        words::note(format_args!(
            "{}: this is no whole memory of peers of this version; it is ignored",
            path.display()
        ));
    }
    peers
}

fn salt() -> Result<[u8; 32]> {
    let mut salt = [0; 32];
    let len = getrandom(&mut salt[..], GetRandomFlags::empty()).context("the system gives no random bytes")?;
    ensure!(len == salt.len(), "the system gives no random bytes");
    Ok(salt)
}

/// Days since 1970.
fn today() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| (since.as_secs() / 86_400) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_the_host_and_on_this_host_the_port_too() {
        assert_eq!(Peer::tcp("Example.org", 7700), Peer::tcp("example.org", 7701));
        assert_ne!(Peer::tcp("example.org", 7700), Peer::tcp("example.com", 7700));
        assert_ne!(Peer::tcp("127.0.0.1", 7700), Peer::tcp("127.0.0.1", 7701));
        assert_ne!(Peer::tcp("[::1]", 7700), Peer::tcp("[::1]", 7701));
        assert_eq!(Peer::shell("me@host", None, "ssh"), Peer::shell("you@host", None, "ssh"));
        assert_ne!(Peer::shell("host", None, "ssh"), Peer::shell("host", None, "ssh -J jump"));
        assert_ne!(Peer::shell("host", None, "ssh"), Peer::shell("host", Some(2222), "ssh"));
        assert_ne!(Peer::shell("host", None, "ssh").name, Peer::tcp("host", 22).name);
    }

    fn link(rate_bytes_per_s: f64) -> Option<PeerLink> {
        Some(PeerLink { rate_bytes_per_s, rtt_ns: None })
    }

    #[test]
    fn processes_that_store_at_once_leave_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("peers");
        std::thread::scope(|scope| {
            for n in 0..4u16 {
                let path = &path;
                scope.spawn(move || {
                    let peer = Peer::tcp("127.0.0.1", n);
                    for _ in 0..25 {
                        peer.store(path, link(1e6), &[]).unwrap();
                        assert!(load(path, false).is_some(), "half a file was seen");
                    }
                });
            }
        });
        let peers = load(&path, false).unwrap();
        assert!((0..4).any(|n| peers.recall(&Peer::tcp("127.0.0.1", n).name, today()).is_some()));
    }

    #[test]
    fn what_is_no_memory_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let peer = Peer::tcp("host", 1);
        for (i, bytes) in [&b""[..], b"narrows-peers 1\n", &[0; 300_000], b"\xff\xfe"].iter().enumerate() {
            let path = folder.path().join(i.to_string());
            fs::write(&path, bytes).unwrap();
            assert_eq!(load(&path, true), None);
            peer.store(&path, link(1e6), &[]).unwrap();
            assert_eq!(load(&path, true).unwrap().recall(&peer.name, today()).unwrap().link, link(1e6));
        }
        assert_eq!(load(folder.path(), true), None, "a folder");
        assert!(peer.store(folder.path(), link(1e6), &[]).is_err());
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(load(&pipe, true), None, "a fifo is not waited for");
        assert!(peer.store(&pipe, link(1e6), &[]).is_err());
    }
}
