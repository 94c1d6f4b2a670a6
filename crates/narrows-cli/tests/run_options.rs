//! Every socket option and every ioctl request, on a swapped descriptor and on a TCP socket: the
//! same answers, but for a short list.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{asks_kernel, code, finish, finish_reading, narrows, stderr};
use narrows_test::has;

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).to_str().unwrap().to_string()
}

fn run(flags: &[&str], name: &str, more: &[&str]) -> Command {
    let mut narrows = narrows(Path::new("/nonexistent"));
    narrows.args(["run", "--no-agent", "--service-port", "1", "--loopback", "-v"]).args(flags);
    narrows.args(["--", "python3", &script(name)]).args(more);
    narrows
}

/// Options that differ with both engines, and why.
const DIFFER: &[(&str, &str)] = &[
    ("set SOCKET 18", "SO_RCVLOWAT: TCP takes no more than half of its buffer"),
    ("set SOCKET 26", "SO_ATTACH_FILTER: it lies in the program's memory"),
    ("set SOCKET 50", "SO_ATTACH_BPF: it is a descriptor of the program"),
    ("set SOCKET 51", "SO_ATTACH_REUSEPORT_CBPF: as SO_ATTACH_FILTER"),
    ("set SOCKET 52", "SO_ATTACH_REUSEPORT_EBPF: as SO_ATTACH_BPF"),
    ("set SOCKET 29", "SO_TIMESTAMP: calls on data would say more; refused"),
    ("set SOCKET 35", "SO_TIMESTAMPNS: the same"),
    ("set SOCKET 37", "SO_TIMESTAMPING: the same"),
    ("set SOCKET 60", "SO_ZEROCOPY: the same"),
    ("set SOCKET 63", "SO_TIMESTAMP with longer seconds"),
    ("set SOCKET 64", "SO_TIMESTAMPNS with longer seconds"),
    ("set SOCKET 65", "SO_TIMESTAMPING with longer seconds"),
    ("set TCP 14", "TCP_MD5SIG: bytes of the supervisor would be signed; refused"),
    ("set TCP 19", "TCP_REPAIR: the supervisor moves bytes meanwhile; refused"),
    ("get TCP 27", "TCP_SAVE_SYN: it is set on listeners, because the SYN is the proof of a claim"),
    ("set TCP 27", "the same"),
    ("get TCP 28", "TCP_SAVED_SYN: it is there until the supervisor has read it"),
    ("set TCP 28", "the same"),
    ("set TCP 31", "TCP_ULP: bytes of the supervisor would be encrypted; refused"),
    ("set TCP 32", "TCP_MD5SIG_EXT: as TCP_MD5SIG"),
    ("get TCP 35", "TCP_ZEROCOPY_RECEIVE: it maps memory of the program"),
    ("set TCP 35", "the same"),
    ("set TCP 36", "TCP_INQ: calls on data would say more; refused"),
    ("set TCP 38", "TCP_AO_ADD_KEY: as TCP_MD5SIG, where the kernel has it"),
    ("set TCP 39", "TCP_AO_DEL_KEY: the same"),
    ("set TCP 40", "TCP_AO_INFO: the same"),
];

/// Requests that also differ with the second engine, which copies an argument of `ioctl` only if
/// its layout is known, as for addresses of interfaces.
const DIFFER_BY_SECCOMP: &[(&str, &str)] = &[
    ("ioctl SIOCGSTAMP", "when the last packet came, which TCP does not say either (ENOENT)"),
    ("ioctl SIOCGSTAMPNS", "the same"),
    ("ioctl SIOCGSTAMP_NEW", "the same"),
    ("ioctl SIOCGSTAMPNS_NEW", "the same"),
    ("ioctl SIOCGIFPFLAGS", "is refused by TCP with another error"),
    ("ioctl SIOCRTMSG", "the same"),
    ("ioctl SIOCUNIXFILE", "the same"),
    ("ioctl SIOCGARP", "a matter of any other socket of the internet"),
    ("ioctl SIOCDARP", "the same"),
    ("ioctl SIOCSARP", "the same"),
    ("ioctl SIOCSIFADDR", "the same"),
    ("ioctl SIOCSIFNETMASK", "the same"),
    ("ioctl SIOCDIFADDR", "the same"),
    ("ioctl SIOCSIFFLAGS", "the same"),
];

/// The subject of a line of `every.py`, its first words.
fn about(line: &str) -> String {
    let words: Vec<_> = line.split(' ').skip(1).collect();
    words[..if words[0] == "ioctl" { 2 } else { 3 }].join(" ")
}

fn assert_differs_by(flags: &[&str], more: &[&str], known: &[&[(&str, &str)]]) {
    let native = Command::new("python3").arg(script("every.py")).args(more).output().unwrap();
    // The output is more than a pipe holds.
    let words = tempfile::NamedTempFile::new().unwrap();
    let swapped = finish_reading(run(flags, "every.py", more).stderr(words.reopen().unwrap()).spawn().unwrap());
    let said = fs::read_to_string(words.path()).unwrap();
    let passed = |way: &str| said.lines().filter(|l| l.starts_with(way)).count();
    assert!(code(&swapped) == 0 && passed("narrows: to ") > 400 && passed("narrows: from ") > 400, "{flags:?}: {said}");
    let (native, swapped) = (String::from_utf8(native.stdout).unwrap(), String::from_utf8(swapped.stdout).unwrap());
    assert!(native.lines().count() > 1400 && native.lines().count() == swapped.lines().count());
    let known: BTreeSet<_> = known.iter().flat_map(|list| list.iter().map(|(about, _)| *about)).collect();
    let differ = native.lines().zip(swapped.lines()).filter(|(a, b)| a != b && !known.contains(&*about(a)));
    let differ: Vec<_> = differ.map(|(a, b)| format!("{a}\n{b}")).collect();
    assert!(differ.is_empty(), "{flags:?}: {} lines\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn every_option_answers_as_of_tcp() {
    if has("python3") {
        assert_differs_by(&["--engine=preload"], &[], &[DIFFER]);
    }
}

/// A root supervisor could set options that the program may not.
#[test]
fn every_option_answers_whom_it_would_answer() {
    if !rustix::process::geteuid().is_root() {
        narrows_test::skip("this is another user already");
    } else if has("python3") {
        assert_differs_by(&["--engine=preload"], &["nobody"], &[DIFFER]);
        if asks_kernel() {
            assert_differs_by(&["--engine=seccomp"], &["nobody"], &[DIFFER, DIFFER_BY_SECCOMP]);
        }
    }
}

#[test]
fn every_option_answers_as_of_tcp_where_the_kernel_asks() {
    if has("python3") && asks_kernel() {
        assert_differs_by(&["--engine=seccomp"], &[], &[DIFFER, DIFFER_BY_SECCOMP]);
    }
}

/// While the pump is busy with bulk, options are answered without it.
#[test]
fn options_are_answered_while_bytes_wait() {
    if !has("python3") {
        return;
    }
    for engine in ["--engine=preload", "--engine=seccomp"] {
        if engine == "--engine=seccomp" && !asks_kernel() {
            continue;
        }
        let output = finish(run(&["--supervisor=parent", engine], "asked.py", &[]).spawn().unwrap());
        let said = String::from_utf8_lossy(&output.stdout);
        if let Some(why) = said.strip_prefix("skipped: ") {
            narrows_test::skip(why.trim());
        } else {
            assert_eq!(said, "fine\n", "{engine}: {}", stderr(&output));
        }
    }
}
