//! Damage, hostile streams, signals, silent and vanished peers: an error of one line, a nonzero
//! status, no partial file.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use narrows::codec::CodecId;
use narrows::frame::{BlockHeader, HeaderBytes, Preface, Role};

use crate::common::*;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// Runs `check` for each number below `n`, on a few threads, since each check starts a program.
fn each(n: usize, check: impl Fn(usize) + Sync) {
    const THREADS: usize = 4;
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            let check = &check;
            scope.spawn(move || (first..n).step_by(THREADS).for_each(check));
        }
    });
}

#[test]
fn a_stream_cut_at_any_byte_is_told() {
    let home = home();
    let raw = b"abcabcabcabcabcabcabcabcabcabcabcabc, and then something else";
    let packed = filter(home.path(), &["pipe", "--policy", "fixed:zstd"], raw).stdout;
    each(packed.len(), |end| {
        let output = filter(home.path(), &["pipe", "-d"], &packed[..end]);
        assert_one_line_error(&output, 3);
        assert!(raw.starts_with(&output.stdout), "cut at {end}");
        assert_one_line_error(&filter(home.path(), &["inspect", "-"], &packed[..end]), 3);
    });
}

/// Checked data is passed on, whether the damage was there from the start or appeared later.
#[test]
fn what_came_before_the_damage_is_delivered() {
    let home = home();
    let raw = text(2_000_000);
    let packed = filter(home.path(), &["pipe", "--policy", "fixed:zstd", "--block-max", "64KiB"], &raw).stdout;
    let (cut, mut damaged, mut longer) = (&packed[..packed.len() - 20], packed.clone(), packed.clone());
    let at = packed.len() / 2;
    damaged[at] ^= 1;
    longer.extend_from_slice(b"something else");
    each(30, |n| {
        let (bytes, least) = [(cut, 1_900_000), (&damaged, 800_000), (&longer, 2_000_000)][n % 3];
        let output = filter(home.path(), &["pipe", "-d"], bytes);
        assert_one_line_error(&output, 3);
        assert!(raw.starts_with(&output.stdout), "{n}");
        assert!(output.stdout.len() >= least, "{n}: {} bytes", output.stdout.len());
    });
}

/// Rust's standard library opens /dev/null in place of closed standard descriptors.
#[test]
fn descriptors_that_are_closed_are_no_empty_input_and_no_output() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), text(10_000)).unwrap();
    fs::write(h.join("packed"), filter(h, &["pipe"], &text(10_000)).stdout).unwrap();
    fs::write(h.join("keep"), "precious").unwrap();
    for (line, words) in [
        ("pipe -c file >&-", "cannot write stdout: it is closed"),
        ("pipe -dc packed >&-", "cannot write stdout: it is closed"),
        ("cp file - >&-", "cannot write stdout: it is closed"),
        ("recv --listen 127.0.0.1:0 >&-", "cannot write stdout: it is closed"),
        ("pipe -o made <&-", "cannot read stdin: it is closed"),
        ("cp - keep <&-", "cannot read stdin: it is closed"),
    ] {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("exec '{}' {line}", env!("CARGO_BIN_EXE_narrows")));
        shell
            .current_dir(h)
            .env("XDG_CACHE_HOME", h)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = finish(shell.spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains(words), "{line}: {}", stderr(&output));
    }
    assert_eq!(fs::read(h.join("keep")).unwrap(), b"precious");
    assert!(!h.join("made").exists());
}

#[test]
fn any_flipped_bit_is_told_and_nothing_false_is_delivered() {
    let home = home();
    let raw = b"abcabcabcabcabcabcabcabcabcabcabcabc, and then something else";
    let packed = filter(home.path(), &["pipe", "--policy", "fixed:lz4"], raw).stdout;
    each(packed.len() * 8, |bit| {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let output = filter(home.path(), &["pipe", "-d"], &damaged);
        assert_one_line_error(&output, 3);
        assert!(raw.starts_with(&output.stdout), "bit {bit}");
    });
    each(packed.len() * 8, |bit| {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_one_line_error(&filter(home.path(), &["inspect", "-"], &damaged), 3);
    });
}

#[test]
fn bytes_after_the_end_other_formats_and_newer_ones_are_told() {
    let home = home();
    let packed = filter(home.path(), &["pipe"], &text(5000)).stdout;
    let after = [&packed[..], b"x"].concat();
    let twice = [&packed[..], &packed[..]].concat();
    // Another stream after the first is read as the rest of the file.
    assert_eq!(code(&filter(home.path(), &["pipe", "-t"], &twice)), 0);
    assert_eq!(code(&filter(home.path(), &["inspect", "-"], &twice)), 0);
    for bad in [&after[..], b"this is no stream", b"NRW\x1a\x02 a later version", b"", b"NRW"] {
        assert_one_line_error(&filter(home.path(), &["pipe", "-t"], bad), 3);
        assert_one_line_error(&filter(home.path(), &["inspect", "-"], bad), 3);
    }
    let newer = filter(home.path(), &["pipe", "-d"], b"NRW\x1a\x02 a later version");
    assert!(stderr(&newer).contains("version 2"), "{}", stderr(&newer));
}

#[test]
fn headers_that_lie_and_bombs_are_refused() {
    let home = home();
    let preface = Preface {
        role: Role::Sender,
        critical: 0,
        optional: 0,
        check: true,
        block_max: 128 << 10,
        history: 0,
        reach: 0,
        codecs: 0xff,
    };
    let stream = |preface: &Preface, header: &BlockHeader, body: &[u8]| {
        [&HeaderBytes::preface(preface)[..], &header.encode(Some(0))[..], body].concat()
    };
    let data = |codec, raw_len, wire_len| BlockHeader::data(codec, false, raw_len, wire_len);
    let body = [0; 64];
    let hostile = [
        // Blocks longer than the preface declares, and than the check allows.
        stream(&preface, &data(CodecId::CONSTANT, 200 << 20, 1), &body),
        stream(&preface, &data(CodecId::CONSTANT, 128 << 10, 1), &body[..1]),
        stream(&preface, &data(CodecId::ZSTD, 128 << 10, 64), &body),
        stream(&preface, &data(CodecId::XZ, 128 << 10, 64), &body),
        // Contradicting lengths, an unknown codec, a link to missing history.
        stream(&preface, &data(CodecId::STORE, 64, 63), &body[..63]),
        stream(&preface, &data(CodecId::LZ4, 64, 64), &body),
        stream(&preface, &data(CodecId(31), 64, 32), &body[..32]),
        stream(&preface, &BlockHeader::data(CodecId::LZ4, true, 64, 32), &body[..32]),
        // Values beyond the limits of this reader.
        stream(&Preface { block_max: 64 << 20, ..preface }, &data(CodecId::CONSTANT, 64 << 20, 1), &body[..1]),
        stream(&Preface { history: 64 << 20, ..preface }, &data(CodecId::CONSTANT, 64, 1), &body[..1]),
        stream(&Preface { critical: 0x8000, ..preface }, &data(CodecId::CONSTANT, 64, 1), &body[..1]),
        stream(&Preface { role: Role::Receiver, ..preface }, &data(CodecId::CONSTANT, 64, 1), &body[..1]),
    ];
    for (i, bytes) in hostile.iter().enumerate() {
        let output = filter(home.path(), &["pipe", "-d"], bytes);
        assert_one_line_error(&output, 3);
        assert!(output.stdout.is_empty(), "{i}");
        assert_one_line_error(&filter(home.path(), &["inspect", "-"], bytes), 3);
    }
}

#[test]
fn a_reader_that_goes_away_ends_every_filter_quietly() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed");
    let args = ["pipe", "-o", packed.to_str().unwrap(), "--block-max", "1K", "--policy", "fixed:lz4"];
    assert_eq!(code(&filter(home.path(), &args, &text(20_000_000))), 0);
    for args in [
        &["pipe", "-c", "/dev/zero", "--policy", "fixed:store"][..],
        &["pipe", "-dc", packed.to_str().unwrap()],
        &["inspect", "--frames", packed.to_str().unwrap()],
    ] {
        let mut child = narrows(home.path()).args(args).spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = finish(child);
        assert_eq!((output.status.signal(), stderr(&output).as_str()), (Some(SIGPIPE), ""), "{args:?}");
    }
}

/// The window is full and nothing is written, so no write reveals that the reader is gone.
#[test]
fn a_reader_that_goes_away_while_nothing_is_written_ends_every_filter() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let args = ["pipe", "/dev/zero", "--policy", "fixed:store", "--block-max", "1000"];

    let mut child = narrows(home.path()).args(args).arg("-c").spawn().unwrap();
    let mut reader = File::from(OwnedFd::from(child.stdout.take().unwrap()));
    read_until_it_stands(&mut reader);
    drop(reader);
    let output = finish(child);
    assert_eq!((output.status.signal(), stderr(&output).as_str()), (Some(SIGPIPE), ""));

    let child = narrows(home.path()).args(args).arg("-o").arg(&fifo).spawn().unwrap();
    let mut reader = File::open(&fifo).unwrap();
    read_until_it_stands(&mut reader);
    drop(reader);
    let output = finish(child);
    assert_one_line_error(&output, 1);
    assert!(stderr(&output).contains("fifo: Broken pipe"), "{}", stderr(&output));
}

/// Reads the first bytes, then waits until the amount of data in the pipe is stable.
fn read_until_it_stands(pipe: &mut File) {
    pipe.read_exact(&mut [0; 10]).unwrap();
    let (begun, mut last) = (Instant::now(), 0);
    while begun.elapsed() < PATIENCE {
        let now = rustix::io::ioctl_fionread(&*pipe).unwrap();
        if now > 0 && now == last {
            return;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(150));
    }
}

/// Whether this process ignores a signal: a shell starts its background jobs so, and the program
/// inherits it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

#[test]
fn a_signal_ends_what_only_waits() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    // A receiver to which nobody connects.
    let (recv, _) = listen(home.path(), &["-o", target.to_str().unwrap()]);
    signal(&recv, "-TERM");
    assert_eq!(finish(recv).status.signal(), Some(SIGTERM));
    assert!(entries(folder.path()).is_empty());
    for (name, number) in [("-HUP", SIGHUP), ("-QUIT", SIGQUIT)] {
        if is_ignored(number) {
            continue;
        }
        let mut pipe = narrows(home.path()).arg("pipe").arg("-o").arg(&target).stdin(Stdio::piped()).spawn().unwrap();
        wait_until_signals_are_caught(&pipe);
        wait_until_it_writes_in(folder.path(), 0, &pipe);
        let silent = pipe.stdin.take();
        signal(&pipe, name);
        assert_eq!(finish(pipe).status.signal(), Some(number));
        assert!(entries(folder.path()).is_empty(), "{name}");
        drop(silent);
    }
    if is_ignored(SIGINT) {
        return;
    }
    // Nobody listens and the program retries; nobody reads the fifo; the input is silent.
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for args in [
        &["send", "/dev/null", "tcp://127.0.0.1:1", "--retry-connect", "1000"][..],
        &["pipe", "-o", fifo.to_str().unwrap()],
        &["pipe", "-c", fifo.to_str().unwrap()],
        &["pipe", "-d"],
    ] {
        let mut child = narrows(home.path()).args(args).stdin(Stdio::piped()).spawn().unwrap();
        // The program catches signals before it waits for anything, but not from its very start.
        wait_until_signals_are_caught(&child);
        let silent = child.stdin.take();
        signal(&child, "-INT");
        let output = finish(child);
        assert_eq!(output.status.signal(), Some(SIGINT), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{args:?}: {}", stderr(&output));
        drop(silent);
    }
}

#[test]
fn a_sender_that_is_silent_or_vanishes_leaves_no_file() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let packed = filter(home.path(), &["pipe"], &text(300_000)).stdout;
    for (bytes, hold, expected) in [(&packed[..0], true, 1), (&packed[..5000], true, 1), (&packed[..5000], false, 3)] {
        let (recv, address) = listen(home.path(), &["-o", target.to_str().unwrap(), "--timeout", "1", "-q"]);
        let mut socket = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        socket.write_all(bytes).unwrap();
        let held = hold.then_some(socket);
        assert_one_line_error(&finish(recv), expected);
        assert!(entries(folder.path()).is_empty());
        drop(held);
    }
}

#[test]
fn a_source_that_changes_under_send_is_told() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    for grows in [false, true] {
        // Longer than all buffers in between, so that reading has not ended when the first byte
        // arrives.
        let file = fs::File::create(&source).unwrap();
        file.set_len(256 << 20).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let args = ["send", source.to_str().unwrap(), &address, "-q", "--policy", "fixed:store"];
        let send = narrows(home.path()).args(args).spawn().unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 100]).unwrap();
        file.set_len(if grows { 300 << 20 } else { 200 << 20 }).unwrap();
        let drain = std::thread::spawn(move || std::io::copy(&mut socket, &mut std::io::sink()));
        let output = finish(send);
        assert_one_line_error(&output, 1);
        let what = if grows { "grew while it was read" } else { "shrank while it was read" };
        assert!(stderr(&output).contains(what) && stderr(&output).contains("source"), "{}", stderr(&output));
        let _ = drain.join().unwrap();
    }
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let home = home();
    for (args, input) in [
        (&["pipe", "-o", "/dev/full"][..], text(100_000)),
        (&["pipe", "-d", "-o", "/dev/full"], filter(home.path(), &["pipe"], &text(100_000)).stdout),
    ] {
        let output = filter(home.path(), args, &input);
        assert_one_line_error(&output, 1);
        assert_eq!(stderr(&output), "narrows: cannot write /dev/full: No space left on device\n");
    }
    let output = filter(home.path(), &["pipe", "-o", "/nonexistent/folder/file"], b"");
    assert_eq!(stderr(&output), "narrows: cannot write /nonexistent/folder/file: No such file or directory\n");
}

#[test]
fn a_file_that_may_not_be_so_long_is_told_and_leaves_nothing() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    fs::write(home.path().join("packed"), filter(home.path(), &["pipe"], &text(3_000_000)).stdout).unwrap();
    let line = format!("ulimit -f 100; exec '{}' pipe -d packed -o \"$0\"", env!("CARGO_BIN_EXE_narrows"));
    let mut shell = std::process::Command::new("sh");
    shell
        .arg("-c")
        .arg(line)
        .arg(folder.path().join("target"))
        .current_dir(home.path())
        .env("XDG_CACHE_HOME", home.path());
    let output = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_one_line_error(&output, 1);
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn a_link_to_nothing_names_the_file_that_is_made() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    fs::create_dir(folder.path().join("sub")).unwrap();
    symlink("sub/second", &link).unwrap();
    symlink("made", folder.path().join("sub/second")).unwrap();
    assert_eq!(code(&filter(home.path(), &["pipe", "-fo", link.to_str().unwrap()], b"new")), 0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(folder.path().join("sub/made").symlink_metadata().unwrap().is_file());
}

#[test]
fn a_replaced_file_keeps_its_place_and_its_readers() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("target", &link).unwrap();
    let packed = filter(home.path(), &["pipe"], b"new").stdout;
    let args = ["pipe", "-df", "-o", link.to_str().unwrap()];
    assert_one_line_error(&filter(home.path(), &args, &packed[..packed.len() - 1]), 3);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(code(&filter(home.path(), &args, &packed)), 0);
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

/// A stored block that is damaged is found by the thread that takes the blocks for the decoders.
/// What it has taken is still decoded, and the program ends.
#[test]
fn a_damaged_stored_block_behind_blocks_to_decode_ends_the_stream() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("stream");
    let raw: Vec<u8> = (0..40_000u32).flat_map(|i| format!("{} of {i}\n", i * i % 977).into_bytes()).collect();
    fs::write(home.path().join("raw"), &raw).unwrap();
    let program = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
        command.env("XDG_CACHE_HOME", home.path()).stdin(Stdio::null());
        command
    };
    let mut make = program();
    make.args(["pipe", "-q", "--policy", "fixed:zstd", "-o"]).arg(&path).arg(home.path().join("raw"));
    assert!(make.status().unwrap().success());
    let stream = fs::read(&path).unwrap();
    let rows = program().args(["inspect", "--frames", "--json"]).arg(&path).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    let second = rows["rows"][1]["wire_offset"].as_u64().unwrap() as usize;
    // A stored block of 10,000 bytes with a wrong check.
    let header = [0x01, 0x00, 0x90, 0x4e, 0x90, 0x4e, 0, 0, 0, 0, 0, 0, 0, 0];
    let damaged = [&stream[..second], &header, &[7; 10_000], &stream[second..]].concat();
    fs::write(&path, damaged).unwrap();
    let mut child = program().args(["pipe", "-dcq", "-T", "2"]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(!out.is_empty() && raw.starts_with(&out), "{} bytes", out.len());
}
