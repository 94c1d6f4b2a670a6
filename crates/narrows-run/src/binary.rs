//! Kind of program: whether the library can be loaded into a command.
//!
//! Follows the kernel and the shell: PATH, `#!` lines, ELF headers. A file that cannot be read or
//! makes no sense is `Usual`: the kernel will report what is wrong with it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{getegid, geteuid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The library can be loaded.
    Usual,
    /// The library cannot be loaded, or would see no calls; why.
    Unhooked(&'static str),
    /// Neither the library nor the filter works with it; why.
    Unreachable(&'static str),
}

/// The kernel's limits: bytes read of the first line, and scripts followed.
const LINE_MAX: usize = 256;
const SCRIPTS_MAX: usize = 5;
/// Search path without a PATH, as in libc.
const USUAL_PATH: &str = "/bin:/usr/bin";
/// Limits above those of real programs; a file that claims more is not read further.
const SEGMENTS_MAX: usize = 256;
const SECTIONS_MAX: usize = 4096;
const NAMES_MAX: usize = 1 << 20;

pub(crate) fn kind(command: &OsStr) -> Kind {
    let Some(mut path) = find(command) else { return Kind::Usual };
    for _ in 0..SCRIPTS_MAX {
        // Opening a named pipe would wait for its other end.
        let opened = path.is_file().then(|| File::open(&path));
        let Some(Ok(file)) = opened else { return Kind::Usual };
        if is_privileged(&path, &file) {
            return Kind::Unreachable("it is setuid, setgid or has capabilities");
        }
        let head = read(&file, 0, LINE_MAX);
        if head.starts_with(b"\x7fELF") {
            return of_elf(&file).unwrap_or(Kind::Usual);
        }
        match interpreter(&head) {
            Some(next) => path = next,
            None => return Kind::Usual,
        }
    }
    Kind::Usual
}

/// The file that the command would run.
pub(crate) fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let places = env::var_os("PATH").unwrap_or_else(|| OsString::from(USUAL_PATH));
    env::split_paths(&places).map(|p| p.join(command)).find(|p| p.is_file() && access(p, Access::EXEC_OK).is_ok())
}

/// The interpreter of a `#!` line; for `env`, the program that it starts.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|b| *b == b'\n').next()?;
    let mut words = line.split(|b| *b == b' ' || *b == b'\t').filter(|w| !w.is_empty()).map(OsStr::from_bytes);
    let program = Path::new(words.next()?);
    if program.file_name() == Some(OsStr::new("env")) {
        let is_name = |w: &&OsStr| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'=');
        return words.find(is_name).and_then(find);
    }
    Some(program.to_path_buf())
}

/// Whether the file gives its process more rights than this one has: then the loader ignores
/// LD_PRELOAD.
fn is_privileged(path: &Path, file: &File) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let (user, group) = (geteuid(), getegid());
    let sets_user = meta.mode() & 0o4000 != 0 && meta.uid() != user.as_raw();
    let sets_group = meta.mode() & 0o2010 == 0o2010 && meta.gid() != group.as_raw();
    // File capabilities give root nothing.
    let has_capabilities = || rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok();
    sets_user || sets_group || !user.is_root() && has_capabilities()
}

/// Up to `len` bytes at `at`; fewer if the file ends, none if it cannot be read.
fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut got = 0;
    while got < len {
        match file.read_at(&mut bytes[got..], at.saturating_add(got as u64)) {
            Ok(n) if n > 0 => got += n,
            _ => break,
        }
    }
    bytes.truncate(got);
    bytes
}

/// Reads an `N`-byte number of a little-endian ELF file.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(N)?)?;
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(part);
    Some(u64::from_le_bytes(whole))
}

#[cfg(target_arch = "aarch64")]
const MACHINE: u64 = 183;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u64 = 62;
const INTERPRETER: u64 = 3;
/// SHT_DYNAMIC and DT_NEEDED.
const DYNAMIC: u64 = 6;
const NEEDED: u64 = 1;

/// `None` if the headers make no sense.
fn of_elf(file: &File) -> Option<Kind> {
    let head = read(file, 0, 64);
    // Class and byte order: 64 bits, little-endian.
    if head.get(4..6)? != [2, 1] || number::<2>(&head, 18)? != MACHINE {
        return Some(Kind::Unreachable("it is for another kind of processor than narrows"));
    }
    let Some(interpreter) = loader(file, &head) else { return Some(Kind::Unhooked("it is linked statically")) };
    if interpreter.windows(7).any(|w| w == b"ld-musl") {
        return Some(Kind::Unhooked("it uses another C library"));
    }
    if needs_to_be_first(file, &head) == Some(true) {
        return Some(Kind::Unhooked("it is built with a sanitizer, whose library must be loaded first"));
    }
    if has_section(file, &head, b".go.buildinfo") == Some(true) {
        return Some(Kind::Unhooked("it is written in Go"));
    }
    Some(Kind::Usual)
}

/// Whether it needs a sanitizer runtime, which ends the program when another library is preloaded
/// before it.
fn needs_to_be_first(file: &File, head: &[u8]) -> Option<bool> {
    let section = |index: usize, table: &[u8]| -> Option<Vec<u8>> {
        let section = table.chunks_exact(64).nth(index)?;
        let len = (number::<8>(section, 32)? as usize).min(NAMES_MAX);
        Some(read(file, number::<8>(section, 24)?, len))
    };
    let table = sections(file, head)?;
    let dynamic = table.chunks_exact(64).position(|s| number::<4>(s, 4) == Some(DYNAMIC))?;
    let names = section(number::<4>(table.get(dynamic * 64..)?, 40)? as usize, &table)?;
    let entries = section(dynamic, &table)?;
    let mut needed = entries.chunks_exact(16).filter(|e| number::<8>(e, 0) == Some(NEEDED));
    Some(needed.any(|entry| {
        let name = number::<8>(entry, 8).and_then(|at| names.get(at as usize..)).unwrap_or_default();
        name.starts_with(b"libasan.so") || name.starts_with(b"libtsan.so")
    }))
}

/// The section table.
fn sections(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    let (at, size, count) = (number::<8>(head, 40)?, number::<2>(head, 58)? as usize, number::<2>(head, 60)? as usize);
    (size == 64).then(|| read(file, at, size * count.min(SECTIONS_MAX)))
}

/// The path of its loader, from the PT_INTERP segment.
fn loader(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    let (at, size, count) = (number::<8>(head, 32)?, number::<2>(head, 54)? as usize, number::<2>(head, 56)? as usize);
    if size != 56 {
        return None;
    }
    let table = read(file, at, size * count.min(SEGMENTS_MAX));
    let segment = table.chunks_exact(size).find(|s| number::<4>(s, 0) == Some(INTERPRETER))?;
    let len = (number::<8>(segment, 32)? as usize).min(LINE_MAX);
    Some(read(file, number::<8>(segment, 8)?, len))
}

fn has_section(file: &File, head: &[u8], wanted: &[u8]) -> Option<bool> {
    let table = sections(file, head)?;
    let names = table.chunks_exact(64).nth(number::<2>(head, 62)? as usize)?;
    let len = (number::<8>(names, 32)? as usize).min(NAMES_MAX);
    let names = read(file, number::<8>(names, 24)?, len);
    Some(table.chunks_exact(64).any(|section| {
        let name = number::<4>(section, 0).and_then(|at| names.get(at as usize..)).unwrap_or_default();
        name.strip_prefix(wanted).is_some_and(|rest| rest.first() == Some(&0))
    }))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A small ELF file, optionally with a loader and a section of that name.
    fn elf(class: u8, loader: Option<&str>, section: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        bytes[18..20].copy_from_slice(&(MACHINE as u16).to_le_bytes());
        if let Some(loader) = loader {
            bytes[32] = 64;
            bytes[54] = 56;
            bytes[56] = 1;
            let mut segment = vec![0; 56];
            segment[0] = INTERPRETER as u8;
            segment[8] = 120;
            segment[32] = loader.len() as u8 + 1;
            bytes.extend_from_slice(&segment);
            bytes.extend_from_slice(loader.as_bytes());
            bytes.push(0);
        }
        if let Some(name) = section {
            let names_at = bytes.len();
            bytes.push(0);
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
            let at = bytes.len();
            bytes[40..48].copy_from_slice(&(at as u64).to_le_bytes());
            (bytes[58], bytes[60], bytes[62]) = (64, 2, 1);
            let mut sections = vec![0; 128];
            sections[0] = 1;
            sections[64 + 24..64 + 32].copy_from_slice(&(names_at as u64).to_le_bytes());
            sections[64 + 32] = name.len() as u8 + 2;
            bytes.extend_from_slice(&sections);
        }
        bytes
    }

    fn kind_of(bytes: &[u8], mode: u32) -> Kind {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        kind(path.as_os_str())
    }

    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn programs_are_told_apart_by_their_headers() {
        let kind_of = |bytes: &[u8]| kind_of(bytes, 0o755);
        assert_eq!(kind_of(&elf(2, Some(GLIBC), None)), Kind::Usual);
        assert_eq!(kind_of(&elf(2, Some(GLIBC), Some(".go.buildinfos"))), Kind::Usual);
        assert_eq!(kind_of(&elf(2, None, None)), Kind::Unhooked("it is linked statically"));
        assert_eq!(kind_of(&elf(2, Some(GLIBC), Some(".go.buildinfo"))), Kind::Unhooked("it is written in Go"));
        let musl = elf(2, Some("/lib/ld-musl-x86_64.so.1"), None);
        assert_eq!(kind_of(&musl), Kind::Unhooked("it uses another C library"));
        assert!(matches!(kind_of(&elf(1, Some("/lib/ld-linux.so.2"), None)), Kind::Unreachable(_)));
        let mut foreign = elf(2, Some(GLIBC), None);
        foreign[18] = 40;
        assert!(matches!(kind_of(&foreign), Kind::Unreachable(_)));
    }

    /// Uses real binaries, if there is a compiler with that sanitizer.
    #[test]
    fn what_a_sanitizer_checks_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("program.c");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        for (flag, is_usual) in [("-O0", true), ("-fsanitize=address", false)] {
            let path = folder.path().join("program");
            let made = std::process::Command::new("gcc").arg(flag).arg(&source).arg("-o").arg(&path).output();
            if made.is_ok_and(|o| o.status.success()) {
                assert_eq!(kind(path.as_os_str()) == Kind::Usual, is_usual, "{flag}");
            }
        }
    }

    #[test]
    fn scripts_are_what_their_interpreter_is() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path.to_str().unwrap().to_string()
        };
        let still = put("still", &elf(2, None, None));
        let first = put("first", format!("#! {still} -x\nrest").as_bytes());
        let second = put("second", format!("#!{first}").as_bytes());
        assert_eq!(kind(OsStr::new(&second)), Kind::Unhooked("it is linked statically"));
        let by_env = put("by_env", format!("#!/usr/bin/env -S A=b {still} x\n").as_bytes());
        assert_eq!(kind(OsStr::new(&by_env)), Kind::Unhooked("it is linked statically"));
        // A cycle of scripts ends, and so does an empty `#!` line.
        let circle = folder.path().join("circle");
        put("circle", format!("#!{}\n", circle.display()).as_bytes());
        assert_eq!(kind(circle.as_os_str()), Kind::Usual);
        assert_eq!(kind(OsStr::new(&put("empty", b"#!"))), Kind::Usual);
        // A named pipe is not waited for.
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o700.into(), 0).unwrap();
        assert_eq!(kind(pipe.as_os_str()), Kind::Usual);
        assert_eq!(kind(OsStr::new(&put("words", b"echo hello"))), Kind::Usual);
        assert_eq!(kind(OsStr::new("there-is-no-such-program")), Kind::Usual);
        assert_eq!(kind(OsStr::new("sh")), Kind::Usual);
    }

    #[test]
    fn who_gets_more_rights_is_left_alone() {
        // Setuid to the user's own id gives no new rights.
        assert_eq!(kind_of(&elf(2, Some(GLIBC), None), 0o4755), Kind::Usual);
        if geteuid().is_root() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("program");
            fs::write(&path, elf(2, Some(GLIBC), None)).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            for (mode, privileged) in [(0o4755, true), (0o2755, true), (0o2745, false), (0o755, false)] {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                assert_eq!(matches!(kind(path.as_os_str()), Kind::Unreachable(_)), privileged, "{mode:o}");
            }
        }
    }

    /// Headers are untrusted input: any wrong or missing byte must be survived.
    #[test]
    fn hostile_headers_are_survived() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        for good in [elf(2, Some(GLIBC), Some(".go.buildinfo")), elf(2, None, None)] {
            for at in 0..good.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bad = good.clone();
                    bad[at] = value;
                    fs::write(&path, &bad).unwrap();
                    let _ = kind(path.as_os_str());
                }
                fs::write(&path, &good[..at]).unwrap();
                let _ = kind(path.as_os_str());
            }
            let mut worst = good.clone();
            worst[24..64].fill(0xff);
            fs::write(&path, &worst).unwrap();
            let _ = kind(path.as_os_str());
        }
    }
}
