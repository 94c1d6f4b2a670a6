//! The tools of a race, each with a line of shell for either end.
//!
//! `$FILE` is sent and stored as `$OUT`; the receiver's address is `$ADDR`, and it listens at
//! `$PORT` if it has its own line. `$SSH` and `$SCP` reach the race's OpenSSH server, `$TLS` and
//! `$TOKEN` its `narrows serve`.

use std::path::{Path, PathBuf};

use crate::registry;
use crate::units::parse_len;

/// The server that a tool needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// None: the tool has its own receiver.
    None,
    Ssh,
    Narrows,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) needs: Vec<&'static str>,
    pub(crate) server: Server,
    pub(crate) receive: String,
    pub(crate) send: String,
}

/// A program with the codecs of older systems, which ours does not have.
const OLDER: &str = "narrows-older";

/// Tools with their own TCP connection: name, required programs, receiver, sender.
const STREAMS: &[(&str, &[&str], &str, &str)] = &[
    ("nc", &["nc"], "nc -l $ADDR $PORT >$OUT", "nc -N $ADDR $PORT <$FILE"),
    ("socat", &["socat"], "socat -u TCP-LISTEN:$PORT,bind=$ADDR - >$OUT", "socat -u FILE:$FILE TCP:$ADDR:$PORT"),
    ("gzip", &["nc", "gzip"], "nc -l $ADDR $PORT | gzip -dc >$OUT", "gzip -c <$FILE | nc -N $ADDR $PORT"),
    ("lz4", &["nc", "lz4"], "nc -l $ADDR $PORT | lz4 -dcq >$OUT", "lz4 -cq <$FILE | nc -N $ADDR $PORT"),
    ("zstd-1", &["nc", "zstd"], "nc -l $ADDR $PORT | zstd -dcq >$OUT", "zstd -1 -cq -T0 <$FILE | nc -N $ADDR $PORT"),
    ("zstd-3", &["nc", "zstd"], "nc -l $ADDR $PORT | zstd -dcq >$OUT", "zstd -3 -cq -T0 <$FILE | nc -N $ADDR $PORT"),
    ("zstd-9", &["nc", "zstd"], "nc -l $ADDR $PORT | zstd -dcq >$OUT", "zstd -9 -cq -T0 <$FILE | nc -N $ADDR $PORT"),
    (
        "zstd-long",
        &["nc", "zstd"],
        "nc -l $ADDR $PORT | zstd -dcq --long=27 >$OUT",
        "zstd -3 -cq -T0 --long=27 <$FILE | nc -N $ADDR $PORT",
    ),
    ("cat", &["nc"], "nc -l $ADDR $PORT | cat >$OUT", "cat $FILE | nc -N $ADDR $PORT"),
    ("pipe", &["nc"], "nc -l $ADDR $PORT | $NARROWS pipe -d >$OUT", "$NARROWS pipe <$FILE | nc -N $ADDR $PORT"),
    (
        "zstd-adapt",
        &["nc", "zstd"],
        "nc -l $ADDR $PORT | zstd -dcq >$OUT",
        "zstd --adapt -cq -T0 <$FILE | nc -N $ADDR $PORT",
    ),
    // Both ends under `narrows run`; --loopback includes connections within a host.
    (
        "run",
        &["nc"],
        "$NARROWS run --loopback -- nc -l $ADDR $PORT >$OUT",
        "$NARROWS run --loopback -- nc -N $ADDR $PORT <$FILE",
    ),
    // One step after the other, as a user would type it.
    (
        "gzip-1-then-nc",
        &["nc", "gzip"],
        "nc -l $ADDR $PORT >$OUT.gz && gzip -dc $OUT.gz >$OUT",
        "gzip -1 -c <$FILE >$OUT.sent.gz && nc -N $ADDR $PORT <$OUT.sent.gz",
    ),
    (
        "gzip-9-then-nc",
        &["nc", "gzip"],
        "nc -l $ADDR $PORT >$OUT.gz && gzip -dc $OUT.gz >$OUT",
        "gzip -9 -c <$FILE >$OUT.sent.gz && nc -N $ADDR $PORT <$OUT.sent.gz",
    ),
];

/// Tools that use ssh: name, required programs, sender.
const COPIES: &[(&str, &[&str], &str)] = &[
    ("scp", &["scp"], "scp -q -F none $SCP $FILE $ADDR:$OUT"),
    ("scp-C", &["scp"], "scp -C -q -F none $SCP $FILE $ADDR:$OUT"),
    ("rsync", &["rsync"], "rsync -W -e \"$SSH\" $FILE $ADDR:$OUT"),
    ("rsync-z", &["rsync"], "rsync -W -z -e \"$SSH\" $FILE $ADDR:$OUT"),
    ("rsync-zstd", &["rsync"], "rsync -W --zc=zstd -e \"$SSH\" $FILE $ADDR:$OUT"),
    (
        "tar-zstd",
        &["tar", "zstd"],
        "tar -cf - -C $(dirname $FILE) $(basename $FILE) | zstd -1 -cq -T0 | $SSH $ADDR \"zstd -dcq | tar -xOf - >$OUT\"",
    ),
    ("narrows-cp", &[], "$NARROWS cp -q --fsync none -e \"$SSH\" --remote-narrows $NARROWS $FILE $ADDR:$OUT"),
];

/// Default of `--against`.
pub(crate) const PEERS: &str =
    "nc,socat,scp,scp-C,rsync,rsync-z,rsync-zstd,tar-zstd,zstd-1,zstd-3,zstd-adapt,lz4,gzip,narrows-cp,narrows-cp-tls";

const RECEIVE: &str = "$NARROWS recv --listen $ADDR:$PORT -o $OUT -q";
/// The equivalent of the library of Transparent flows (2023): one thread, zlib at its default
/// level, blocks of 204,800 bytes, or of the length in the name.
const LIBRARY: &str = "library";

impl Tool {
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let tool = |needs: &[&'static str], server, receive: &str, send: &str| Self {
            name: name.to_owned(),
            needs: needs.to_vec(),
            server,
            receive: receive.to_owned(),
            send: send.to_owned(),
        };
        if let Some(s) = STREAMS.iter().find(|s| s.0 == name) {
            return Ok(tool(s.1, Server::None, s.2, s.3));
        }
        if let Some(c) = COPIES.iter().find(|c| c.0 == name) {
            return Ok(tool(&[c.1, &["ssh", "ssh-keygen", "sshd"]].concat(), Server::Ssh, "", c.2));
        }
        if name == "narrows-cp-tls" {
            let line = "$NARROWS cp -q --fsync none --token-file $TOKEN $FILE narrows://$ADDR:$TLS$OUT";
            return Ok(tool(&[], Server::Narrows, "", line));
        }
        if let Some(rest) = name.strip_prefix(LIBRARY) {
            let len = rest.strip_prefix('-').or(Some("200K").filter(|_| rest.is_empty()));
            let len = len.filter(|l| parse_len(l).is_ok()).ok_or(format!("'{name}' has no length such as 64K"))?;
            let send = "$NARROWS send $FILE tcp://$ADDR:$PORT -q --retry-connect 5 --policy fixed:zlib:level=6 -T 1 --block-max";
            return Ok(tool(&[], Server::None, RECEIVE, &format!("{send} {len}")));
        }
        let policy = match name.split_once(':') {
            None if name == "narrows" => "balance",
            Some(("narrows", policy)) => policy,
            _ => {
                return Err(format!(
                    "there is no tool '{name}'; there are narrows, narrows:POLICY, run, library, library-LEN, {PEERS}, \
                     gzip-1-then-nc, gzip-9-then-nc, zstd-9, zstd-long, cat, pipe"
                ));
            }
        };
        let spec = registry::policy(policy).map_err(|e| format!("{e}"))?;
        let is_older = spec.name() == "fixed" && spec.methods().iter().any(|m| registry::is_older(m.codec));
        // Escape quotes: a policy has no characters special to a shell, but a file name in it may.
        let spec = spec.to_string().replace('\'', "'\\''");
        let send = format!("$NARROWS send $FILE tcp://$ADDR:$PORT -q --retry-connect 5 --policy '{spec}'");
        if is_older {
            let with = |line: &str| line.replace("$NARROWS", OLDER);
            return Ok(tool(&[OLDER], Server::None, &with(RECEIVE), &with(&send)));
        }
        Ok(tool(&[], Server::None, RECEIVE, &send))
    }

    /// The required programs that are not installed.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.needs.iter().copied().filter(|program| find(program).is_none()).collect()
    }
}

/// Path of a program, searched in PATH and in the folders of servers.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|p| !p.as_os_str().is_empty());
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let more = servers.into_iter().filter(|_| program == "sshd");
    folders.chain(more).map(|f| f.join(program)).find(|p| is_program(p))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_known_by_its_name() {
        for name in PEERS.split(',').chain([
            "narrows",
            "narrows:fixed:zstd:level=3",
            "gzip-9-then-nc",
            "library",
            "library-64K",
        ]) {
            let tool = Tool::parse(name).unwrap();
            assert_eq!(tool.name, name);
            assert!(
                tool.send.contains("$FILE") && (tool.receive.is_empty() == (tool.server != Server::None)),
                "{name}"
            );
            assert!(format!("{}{}", tool.receive, tool.send).contains("$OUT"));
        }
        for name in ["ncat", "", "narrows:", "narrows:fast", "narrowsx", "library-", "library64K", "library-x"] {
            assert!(Tool::parse(name).is_err(), "{name}");
        }
        assert!(find("sh").is_some() && find("no-such-program").is_none());
    }
}
