//! Runs copies and compares trees.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use super::*;

/// A remote shell that runs its command locally, after printing a greeting as login shells do.
pub(crate) fn shell(folder: &Path) -> PathBuf {
    let path = folder.join("shell");
    fs::write(&path, "#!/bin/sh\nshift\nprintf 'Welcome\\nto this host\\n'\nexec sh -c \"$*\"\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn cp_command(home: &Path, shell: &Path) -> Command {
    let mut command = narrows(home);
    command.arg("cp").arg("-e").arg(shell).args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
    command
}

pub(crate) fn cp(home: &Path, args: &[&OsStr]) -> Output {
    finish(cp_command(home, &shell(home)).args(args).spawn().unwrap())
}

pub(crate) fn remote(path: &Path) -> std::ffi::OsString {
    let mut place = std::ffi::OsString::from("host:");
    place.push(path);
    place
}

/// Everything that a copy preserves, as text by path.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        // Servers that are shutting down may remove their temporary files meanwhile.
        let Ok(data) = path.symlink_metadata() else { continue };
        let own = path.strip_prefix(root).unwrap().to_path_buf();
        let mut words = format!("mode {:o} mtime {}.{:09}", data.mode(), data.mtime(), data.mtime_nsec());
        if data.is_symlink() {
            words += &format!(" -> {}", fs::read_link(&path).unwrap().display());
        } else if data.is_file() {
            let first = names.entry((data.dev(), data.ino())).or_insert_with(|| own.clone()).clone();
            let Ok(content) = fs::read(&path) else { continue };
            let sparse = data.blocks() * 512 < data.len();
            words += &format!(" {} bytes, sum {}, same as {first:?}, sparse {sparse}", data.len(), sum(&content));
            words += &format!(", attribute {:?}", attribute(&path));
        } else if data.is_dir() {
            left.extend(entries(&path));
            left.sort();
            left.reverse();
        }
        all.insert(own, words);
    }
    all
}

pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |h: u64, b| h.wrapping_mul(1_099_511_628_211) ^ u64::from(*b))
}

pub(crate) fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let len = rustix::fs::getxattr(path, "user.narrows", &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

pub(crate) fn set_mtime(path: &Path, s: i64, ns: u32) {
    let at = if s >= 0 {
        SystemTime::UNIX_EPOCH + Duration::new(s as u64, ns)
    } else {
        SystemTime::UNIX_EPOCH - Duration::new(s.unsigned_abs(), 0) + Duration::new(0, ns)
    };
    File::open(path).unwrap().set_modified(at).unwrap();
}

/// A tree with metadata that most tools do not fully preserve.
pub(crate) fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("a/text"), text(300_000)).unwrap();
    fs::write(root.join("a/b/random"), random(200_000)).unwrap();
    fs::write(root.join("a/b/c/nothing"), "").unwrap();
    fs::hard_link(root.join("a/text"), root.join("a/b/another name")).unwrap();
    symlink("a/text", root.join("link")).unwrap();
    symlink("../not/there", root.join("dangling")).unwrap();
    symlink("a", root.join("link to folder")).unwrap();
    let holes = File::create(root.join("holes")).unwrap();
    holes.set_len(8 << 20).unwrap();
    holes.write_all_at(b"in the middle", 5 << 20).unwrap();
    for name in [&b"new\nline"[..], b"not \xff utf-8", b"-rf", b" blank ", &[b'x'; 250], b"colon:name"] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let _ = rustix::fs::setxattr(root.join("a/text"), "user.narrows", b"kept \0 too", rustix::fs::XattrFlags::empty());
    fs::set_permissions(root.join("a/b/random"), fs::Permissions::from_mode(0o1751)).unwrap();
    set_mtime(&root.join("a/b/random"), 1_234_567_890, 123_456_789);
    set_mtime(&root.join("-rf"), -86_400, 5);
    fs::create_dir(root.join("read-only")).unwrap();
    fs::write(root.join("read-only/file"), "in it").unwrap();
    fs::set_permissions(root.join("read-only/file"), fs::Permissions::from_mode(0o400)).unwrap();
    set_mtime(&root.join("read-only"), 1_000_000_000, 1);
    fs::set_permissions(root.join("read-only"), fs::Permissions::from_mode(0o555)).unwrap();
    set_mtime(root, 1_100_000_000, 999_999_999);
}

/// Makes the test's folder removable for any user.
pub(crate) fn unlock(root: &Path) {
    let _ = fs::set_permissions(root.join("read-only"), fs::Permissions::from_mode(0o755));
}

/// The name of a temporary file of narrows for a target; `attempt`: empty, or a number after a dash.
pub(crate) fn partial_name(target: &str, attempt: &str) -> String {
    let hash = &blake3::hash(target.as_bytes()).to_hex()[..16];
    let check = &blake3::hash(format!(".narrows-{hash}.partial").as_bytes()).to_hex()[..8];
    format!(".narrows-{hash}{check}{attempt}.partial")
}

/// Writes what a killed copy would leave, with the mark of narrows.
pub(crate) fn leave_partial(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    mark_partial(path);
}

/// Makes a file one of narrows, where files have attributes.
pub(crate) fn mark_partial(path: &Path) {
    let _ = rustix::fs::setxattr(path, "user.narrows.partial", b"1", rustix::fs::XattrFlags::empty());
}

/// Whether files in a folder have attributes, by which narrows knows its own.
pub(crate) fn has_attributes(folder: &Path) -> bool {
    let path = folder.join("attribute");
    leave_partial(&path, b"");
    let is_set = rustix::fs::getxattr(&path, "user.narrows.partial", &mut [0u8; 8][..]).is_ok();
    fs::remove_file(&path).unwrap();
    is_set
}

pub(crate) fn partials(root: &Path) -> Vec<PathBuf> {
    snapshot(root).into_keys().filter(|p| p.to_string_lossy().contains(".narrows-")).collect()
}

pub(crate) fn json(output: &Output) -> serde_json::Value {
    assert_eq!(code(output), 0, "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}
