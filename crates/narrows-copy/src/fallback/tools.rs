//! The tar and zstd of both ends, and the options with which they are compatible.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::error::{Blame, Error, Result};

/// Script for a POSIX shell that reports the tools of a host.
pub(super) const ASK: &str = include_str!("ask.sh");
/// Prefix of the messages of a script to this program.
pub(super) const MARK: &str = "narrows-tar ";
/// Options to preserve the attributes that `cp` preserves; without them GNU tar sets only user
/// attributes.
const GNU_XATTRS: [&str; 5] = [
    "--acls",
    "--xattrs",
    "--xattrs-include=user.*",
    "--xattrs-include=trusted.*",
    "--xattrs-include=security.capability",
];
/// zstd level, which costs about as much as the encryption of ssh.
pub(super) const LEVEL: i32 = 3;

/// Options with which tar reads names, separated by zero bytes, from the file that follows.
pub(super) const LIST_FLAGS: [&str; 2] = ["--no-recursion", "--null"];

/// Kind of a tar program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gnu,
    /// bsdtar of libarchive, as on macOS and FreeBSD.
    Bsd,
    /// Another one, such as that of busybox, with old formats and few options.
    Other,
}

/// The tools of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tools {
    pub(super) kind: Kind,
    xattrs: bool,
    pub(super) zstd: bool,
}

impl Tools {
    /// The tools of this host.
    pub(super) fn here() -> Result<Self> {
        let mut sh = Command::new("sh");
        sh.arg("-c").arg(ASK).stdin(Stdio::null()).stderr(Stdio::null());
        let said = sh.output().blame_for(Error::Program, "cannot start sh")?;
        let said = String::from_utf8_lossy(&said.stdout);
        let found = said.lines().find_map(|line| line.strip_prefix(MARK)?.strip_prefix("has "));
        let found = found.ok_or_else(|| Error::Program("sh on this host does not work".into()))?;
        Self::parse(found)?.ok_or_else(|| Error::Program("there is no tar on this host; install it".into()))
    }

    /// Parses an answer such as `gnu yes yes`; `None` if there is no tar.
    pub(super) fn parse(said: &str) -> Result<Option<Self>> {
        let words: Vec<_> = said.split_ascii_whitespace().collect();
        let [tar, xattrs, zstd] = words[..] else {
            return Err(Error::Protocol("the remote shell gave an unexpected answer".into()));
        };
        let kind = match tar {
            "gnu" => Kind::Gnu,
            "bsd" => Kind::Bsd,
            "none" => return Ok(None),
            _ => Kind::Other,
        };
        Ok(Some(Self { kind, xattrs: xattrs == "yes", zstd: zstd == "yes" }))
    }

    /// Options to pack everything that both ends support.
    pub(super) fn pack_flags(self, to: Self) -> Vec<&'static str> {
        let newer = to.kind != Kind::Other;
        let mut flags = match (self.kind, newer) {
            // Access and change times would take a third of the space, and cannot be restored.
            (Kind::Gnu, true) => vec!["--format=posix", "--pax-option=delete=atime,delete=ctime", "--sparse"],
            (Kind::Gnu, false) => vec!["--format=gnu"],
            (Kind::Bsd, true) => vec!["--format=pax"],
            (Kind::Bsd, false) => vec!["--format=gnutar"],
            (Kind::Other, _) => return Vec::new(),
        };
        flags.push("--numeric-owner");
        if self.kind == Kind::Gnu {
            // Otherwise tar takes a backslash in a name for an escape.
            flags.push("--no-unquote");
        }
        flags.extend(self.xattr_flags(to));
        flags
    }

    /// Options to unpack an archive from a host with the tools `from`.
    pub(super) fn unpack_flags(self, from: Self) -> Vec<&'static str> {
        let mut flags = match self.kind {
            // With a wrong clock, tar would print a warning for each file.
            Kind::Gnu => vec!["--numeric-owner", "--no-unquote", "--delay-directory-restore", "--warning=no-timestamp"],
            Kind::Bsd => vec!["--numeric-owner"],
            Kind::Other => Vec::new(),
        };
        flags.extend(self.xattr_flags(from));
        flags
    }

    fn xattr_flags(self, other: Self) -> &'static [&'static str] {
        match self.kind {
            _ if !(self.xattrs && other.xattrs) => &[],
            Kind::Gnu => &GNU_XATTRS,
            _ => &GNU_XATTRS[..2],
        }
    }

    /// The attributes that are lost on the way to a host with the tools `to`.
    pub(super) fn losses(self, to: Self) -> Option<&'static str> {
        match (self.kind, to.kind) {
            (_, Kind::Other) => {
                Some("times of folders, parts of seconds, extended attributes, access control lists, holes")
            }
            (Kind::Other, _) => Some("parts of seconds, extended attributes, access control lists, holes"),
            _ if self.xattrs && to.xattrs => None,
            _ => Some("extended attributes, access control lists"),
        }
    }

    /// Shell functions for `store.sh` on the host that has these tools.
    pub(super) fn store_functions(self, from: Self) -> String {
        let pack_folders = match self.kind {
            Kind::Other => "find . \"$@\" -type d -exec tar -c -f - --no-recursion {} +".to_owned(),
            _ => {
                let flags = quoted_all(&[&self.pack_flags(self)[..], &LIST_FLAGS].concat());
                format!("find . \"$@\" -type d -print0 | tar -c -f -{flags} -T -")
            }
        };
        format!(
            "unsqueeze() {{ {}; }}\nunpack() {{ tar -x -p -f -{} \"$@\"; }}\npack_folders() {{ {pack_folders}; }}\n",
            if self.zstd { "zstd -q -d -c" } else { "cat" },
            quoted_all(&self.unpack_flags(from)),
        )
    }

    /// Shell functions for `pack.sh` on the host that has these tools.
    pub(super) fn pack_functions(self, to: Self, follow: bool) -> String {
        format!(
            "pack() {{ tar -c -f -{}{} \"$@\"; }}\nsqueeze() {{ {}; }}\n",
            quoted_all(&self.pack_flags(to)),
            if follow { " -h" } else { "" },
            if self.zstd { format!("zstd -q -{LEVEL} -T4 -c") } else { "cat".to_owned() },
        )
    }
}

fn quoted_all(flags: &[&str]) -> String {
    flags.iter().map(|flag| format!(" '{flag}'")).collect()
}

/// Appends `name='value'` for a shell, with any bytes in the value.
pub(super) fn assignment(name: &str, value: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b"='");
    for &byte in value {
        match byte {
            b'\'' => to.extend_from_slice(b"'\\''"),
            _ => to.push(byte),
        }
    }
    to.extend_from_slice(b"'\n");
}

/// The path in a form that no program takes for an option.
pub(super) fn flag_safe(path: &OsStr) -> Vec<u8> {
    let bytes = path.as_bytes();
    let prefix = if bytes.starts_with(b"/") || bytes.starts_with(b"~") { &b""[..] } else { b"./" };
    [prefix, bytes].concat()
}
