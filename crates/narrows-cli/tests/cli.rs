//! The program from the command line: round trips, damage, exit codes, faults. Every test fails if
//! a partial file is left.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::*;

#[test]
fn pipe_gives_back_every_kind_of_data_under_every_policy() {
    let home = home();
    let data = [text(400_000), random(200_000), vec![0; 300_000]].concat();
    for policy in [
        "balance",
        "fixed:store",
        "fixed:lz4:link",
        "fixed:lz4:hc=9",
        "fixed:zstd:level=3,link",
        "fixed:zlib",
        "fixed:bzip2",
        "fixed:xz",
        "fixed:snappy",
        "messages",
        "storage",
        "adoc",
        "datacomp",
        "stall",
    ] {
        let packed = filter(home.path(), &["pipe", "--policy", policy, "--index"], &data);
        assert_eq!(code(&packed), 0, "{policy}: {}", stderr(&packed));
        let back = filter(home.path(), &["pipe", "-d"], &packed.stdout);
        assert!(back.stdout == data && code(&back) == 0, "{policy}");
        assert_eq!(code(&filter(home.path(), &["pipe", "-t"], &packed.stdout)), 0);
        let seen = filter(home.path(), &["inspect", "-", "--json"], &packed.stdout);
        let json: serde_json::Value = serde_json::from_slice(&seen.stdout).unwrap();
        assert_eq!((json["complete"].as_bool(), json["raw_bytes"].as_u64()), (Some(true), Some(900_000)));
    }
    for len in [0, 1] {
        let packed = filter(home.path(), &["pipe"], &text(len));
        assert_eq!(filter(home.path(), &["pipe", "-d"], &packed.stdout).stdout, text(len));
    }
}

#[test]
fn a_file_is_as_small_as_that_of_zstd() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let raw = [text(5_000_000), random(1_000_000), text(700_000)].concat();
    let input = folder.path().join("raw");
    fs::write(&input, &raw).unwrap();
    let most = zstd::encode_all(&raw[..], 3).unwrap().len() as f64 * 1.03;
    let (named, redirected) = (folder.path().join("named"), folder.path().join("redirected"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    // With two threads, blocks have their maximum length.
    assert_eq!(code(&filter(home.path(), &["pipe", "-T2", &path(&input), "-o", &path(&named)], &[])), 0);
    let to = fs::File::create(&redirected).unwrap();
    let mut child = narrows(home.path()).args(["pipe", "-T2"]).stdin(Stdio::piped()).stdout(to).spawn().unwrap();
    // In pieces, like the output of a program that writes lines.
    let mut stdin = child.stdin.take().unwrap();
    raw.chunks(3000).for_each(|piece| stdin.write_all(piece).unwrap());
    drop(stdin);
    assert_eq!(code(&finish(child)), 0);
    for file in [named, redirected] {
        let len = file.metadata().unwrap().len();
        assert!((len as f64) < most, "{}: {len} bytes, {most} at most", file.display());
        assert!(filter(home.path(), &["pipe", "-dc", &path(&file)], &[]).stdout == raw);
    }
}

#[test]
fn a_damaged_stream_leaves_no_output_file() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let packed = filter(home.path(), &["pipe"], &text(500_000)).stdout;
    let target = folder.path().join("out");
    let args = ["pipe", "-d", "-o", target.to_str().unwrap()];
    assert_one_line_error(&filter(home.path(), &args, &packed[..packed.len() - 50]), 3);
    assert!(entries(folder.path()).is_empty());
    assert_eq!(code(&filter(home.path(), &args, &packed)), 0);
    assert_eq!(entries(folder.path()), [target]);
}

#[test]
fn send_and_recv_carry_a_file() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let data = [text(3_000_000), random(1_000_000)].concat();
    fs::write(&source, &data).unwrap();
    for policy in ["balance", "fixed:zstd:link"] {
        let (recv, address) = listen(home.path(), &["-o", target.to_str().unwrap(), "--fsync"]);
        let send = narrows(home.path())
            .args(["send", source.to_str().unwrap(), &address, "--json", "--policy", policy])
            .spawn()
            .unwrap();
        let sent = finish(send);
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        let received = finish(recv);
        assert_eq!(code(&received), 0, "{}", stderr(&received));
        assert!(fs::read(&target).unwrap() == data);
        let json: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
        assert_eq!(json["raw_bytes"].as_u64(), Some(4_000_000));
        // The methods of `balance` on loopback depend on the host; those of a fixed policy do not.
        assert!(policy == "balance" || json["ratio"].as_f64().unwrap() > 1.5);
    }
    assert_eq!(entries(folder.path()).len(), 2, "no temporary is left");
}

/// Half of what was encoded or sent would be of before, with the length and time of after.
#[test]
fn a_source_that_is_written_in_place_with_its_time_put_back_is_told_by_send_and_array_encode() {
    use std::os::unix::fs::FileExt;
    let home = home();
    let source = home.path().join("source");
    let name = source.to_str().unwrap();
    for sends in [true, false] {
        fs::write(&source, random(if sends { 60 << 20 } else { 8 << 20 })).unwrap();
        let ends = |mut reader: Child, sender: Option<Child>| {
            // Nobody reads on: the source is being read then.
            let mut stdout = reader.stdout.take().unwrap();
            let mut first = vec![0; 1000];
            stdout.read_exact(&mut first).unwrap();
            let file = fs::File::options().write(true).open(&source).unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(b"new", 0).unwrap();
            file.set_modified(before).unwrap();
            reader.stdout = Some(stdout);
            let sender = sender.map(|sender| std::thread::spawn(move || finish(sender)));
            let read = finish_reading(reader);
            sender.map_or(read, |sender| sender.join().unwrap())
        };
        let output = if sends {
            let (recv, address) = listen(home.path(), &[]);
            let send = narrows(home.path()).args(["send", name, &address, "-q"]).spawn().unwrap();
            ends(recv, Some(send))
        } else {
            let args = ["array", "encode", name, "--type", "f32", "--shape", "2097152", "--quiet"];
            ends(narrows(home.path()).args(args).spawn().unwrap(), None)
        };
        assert_eq!(code(&output), 1, "{sends}: {}", stderr(&output));
        assert!(stderr(&output).contains("it changed while it was read"), "{sends}: {}", stderr(&output));
    }
}

#[test]
fn recv_to_stdout_and_send_from_stdin() {
    let home = home();
    let (recv, address) = listen(home.path(), &[]);
    let reader = std::thread::spawn(move || finish(recv));
    let sent = filter(home.path(), &["send", "-", &address, "-q"], &text(40_000));
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    assert!(reader.join().unwrap().stdout == text(40_000));
}

#[test]
fn a_side_that_is_killed_fails_the_other_and_leaves_nothing() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    // Killed sender, whose stdin stays open.
    let (recv, address) = listen(home.path(), &["-o", target.to_str().unwrap()]);
    let mut send = narrows(home.path()).args(["send", "-", &address]).stdin(Stdio::piped()).spawn().unwrap();
    send.stdin.as_mut().unwrap().write_all(&random(2_000_000)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    send.kill().unwrap();
    send.wait().unwrap();
    let received = finish(recv);
    assert_ne!(code(&received), 0);
    assert!(entries(folder.path()).is_empty(), "no partial file");
    // Killed receiver.
    let (mut recv, address) = listen(home.path(), &["-o", target.to_str().unwrap()]);
    let mut send = narrows(home.path()).args(["send", "-", &address, "-q"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = send.stdin.take().unwrap();
    stdin.write_all(&random(100_000)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    recv.kill().unwrap();
    recv.wait().unwrap();
    let feeder = std::thread::spawn(move || while stdin.write_all(&random(100_000)).is_ok() {});
    assert_one_line_error(&finish(send), 1);
    feeder.join().unwrap();
    assert!(!target.exists());
}

#[test]
fn a_signal_leaves_no_partial_file() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let (recv, address) = listen(home.path(), &["-o", target.to_str().unwrap()]);
    let mut send = narrows(home.path()).args(["send", "-", &address, "-q"]).stdin(Stdio::piped()).spawn().unwrap();
    send.stdin.as_mut().unwrap().write_all(&random(500_000)).unwrap();
    wait_until_it_writes_in(folder.path(), 0, &recv);
    Command::new("kill").args(["-INT", &recv.id().to_string()]).status().unwrap();
    assert_ne!(code(&finish(recv)), 0);
    assert_ne!(code(&finish(send)), 0);
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn a_full_disk_and_a_forbidden_place_are_told_on_both_sides() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::write(&source, random(3_000_000)).unwrap();
    let (recv, address) = listen(home.path(), &["-o", "/dev/full"]);
    let sent = finish(narrows(home.path()).args(["send", source.to_str().unwrap(), &address, "-q"]).spawn().unwrap());
    assert_one_line_error(&sent, 1);
    assert!(stderr(&sent).contains("No space left"), "{}", stderr(&sent));
    assert!(stderr(&finish(recv)).contains("No space left"));
    let args = ["recv", "--listen", "127.0.0.1:0", "-o", folder.path().to_str().unwrap()];
    assert_one_line_error(&finish(narrows(home.path()).args(args).spawn().unwrap()), 1);
    let args = ["recv", "--listen", "127.0.0.1:0", "-o", "/nonexistent/folder/file"];
    assert_one_line_error(&finish(narrows(home.path()).args(args).spawn().unwrap()), 1);
}

#[test]
fn a_source_that_shrinks_or_grows_is_told() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    for grows in [false, true] {
        fs::write(&source, random(20_000_000)).unwrap();
        // Without a reader the program blocks until the file has changed.
        let mut child = narrows(home.path()).args(["pipe", "-c", source.to_str().unwrap()]).spawn().unwrap();
        let mut first = [0; 100];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let file = fs::File::options().append(true).open(&source).unwrap();
        file.set_len(if grows { 30_000_000 } else { 10_000_000 }).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_one_line_error(&output, 1);
        let what = if grows { "grew while it was read" } else { "shrank while it was read" };
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

#[test]
fn a_peer_that_stands_still_is_given_up() {
    let home = home();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let args = ["send", "/dev/zero", &address, "--timeout", "0.5", "-q", "--policy", "fixed:store"];
    let send = narrows(home.path()).args(args).spawn().unwrap();
    let _held = listener.accept().unwrap();
    let output = finish(send);
    assert_one_line_error(&output, 1);
    assert!(stderr(&output).contains("no progress"), "{}", stderr(&output));
}

#[test]
fn a_rubbish_calibration_is_ignored_and_a_good_one_is_used() {
    let home = home();
    let folder = home.path().join("narrows");
    fs::create_dir(&folder).unwrap();
    for rubbish in [&b"\xff\xfe\0rubbish"[..], b"narrows-calibration 1\nlz4 0.1", b""] {
        fs::write(folder.join("calibration"), rubbish).unwrap();
        let packed = filter(home.path(), &["pipe"], &text(100_000));
        assert_eq!((code(&packed), stderr(&packed).as_str()), (0, ""));
    }
    let measured = filter(home.path(), &["calibrate"], b"");
    assert_eq!(code(&measured), 0, "{}", stderr(&measured));
    assert_eq!(code(&filter(home.path(), &["calibrate", "--show"], b"")), 0);
    assert_eq!(code(&filter(home.path(), &["pipe", "-v"], &text(100_000))), 0);
}

#[test]
fn wrong_usage_says_what_is_right() {
    let home = home();
    for args in [
        &["pipe", "--policy", "nope"][..],
        &["pipe", "--policy", "fixed:zstd:level=99"],
        &["pipe", "--block-max", "1T"],
        &["pipe", "-z", "-t"],
        &["pipe", "--methods", "lz4", "-19"],
        &["pipe", "-t", "-o", "/dev/null"],
        &["send", "/dev/null", "nowhere"],
    ] {
        assert_eq!(code(&filter(home.path(), args, b"")), 2, "{args:?}");
    }
    for address in ["21742", ":21742", "localhost", "bogus", "127.0.0.1", "::1", "127.0.0.1:70000"] {
        let place = format!("tcp://{address}");
        for args in [
            &["recv", "--listen", address, "-o", "/dev/null"][..],
            &["recv", "--listen", &place, "-o", "/dev/null"],
            &["serve", "--insecure", "--dir", ".", "--listen", address],
            &["send", "/dev/null", &place],
        ] {
            let refused = filter(home.path(), args, b"");
            assert_eq!(code(&refused), 2, "{args:?}: {}", stderr(&refused));
            assert!(stderr(&refused).contains("HOST:PORT"), "{args:?}: {}", stderr(&refused));
        }
    }
    for args in [&["serve"][..], &["serve", "--dir", "."], &["serve", "--insecure"]] {
        let refused = filter(home.path(), args, b"");
        assert_one_line_error(&refused, 2);
        assert!(stderr(&refused).contains("--listen HOST:PORT and --dir DIR"), "{args:?}: {}", stderr(&refused));
    }
    let missing = filter(home.path(), &["pipe", "/no/such/file"], b"");
    assert_one_line_error(&missing, 1);
    let refused = filter(home.path(), &["send", "/dev/null", "tcp://127.0.0.1:1", "-q"], b"");
    assert_one_line_error(&refused, 1);
}

#[test]
fn inspect_says_verified_of_whole_streams_only() {
    let home = home();
    let inspect = |bytes: &[u8], flags: &[&str]| {
        let output = filter(home.path(), &[&["inspect", "-", "--json"], flags].concat(), bytes);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (code(&output), json["complete"].as_bool(), json["verified"].as_bool())
    };
    let whole = filter(home.path(), &["pipe", "--policy", "fixed:store"], &random(400_000)).stdout;
    let mut damaged = whole.clone();
    damaged[200_000] ^= 1;
    assert_eq!(inspect(&whole, &[]), (0, Some(true), Some(true)));
    assert_eq!(inspect(&whole, &["--no-verify"]), (0, Some(true), Some(false)));
    for bad in [&b""[..], b"no stream at all", &damaged, &whole[..300_000], &[&whole[..], b"more"].concat()] {
        assert_eq!(inspect(bad, &[]), (3, Some(false), Some(false)));
    }
}

#[test]
fn every_report_names_method_and_codec() {
    let home = home();
    let data = text(600_000);
    let packed = filter(home.path(), &["pipe", "--policy", "fixed:zstd:level=3,link", "--json"], &data);
    let unpacked = filter(home.path(), &["pipe", "-d", "--json"], &packed.stdout);
    let seen = filter(home.path(), &["inspect", "-", "--json"], &packed.stdout);
    for report in [&packed.stderr, &unpacked.stderr, &seen.stdout] {
        let json: serde_json::Value = serde_json::from_slice(report).unwrap();
        let mix = json["mix"].as_array().unwrap();
        assert!(!mix.is_empty() && mix.iter().all(|row| row["codec"] == "zstd"), "{json}");
        assert!(mix.iter().all(|row| row["method"].as_str().is_some_and(|m| m.starts_with("zstd"))), "{json}");
    }
}

#[test]
fn a_trace_has_a_json_line_for_every_decision() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let output = filter(home.path(), &["pipe", "--trace", trace.to_str().unwrap(), "--json"], &text(2_000_000));
    let summary: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    let lines = fs::read_to_string(&trace).unwrap();
    let choices = lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    assert_eq!(choices.filter(|c| c["event"] == "choose").count() as u64, summary["frames"].as_u64().unwrap());
}

#[test]
fn a_trace_is_replayed_with_the_same_methods_at_the_same_places() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let (first, again) = (folder.path().join("first"), folder.path().join("again"));
    let data = [text(1_500_000), random(300_000), text(700_000)].concat();
    let run = |policy: &str, trace: &std::path::Path| {
        let packed = filter(home.path(), &["pipe", "--policy", policy, "--trace", trace.to_str().unwrap()], &data);
        assert_eq!(code(&packed), 0, "{}", stderr(&packed));
        assert!(filter(home.path(), &["pipe", "-d"], &packed.stdout).stdout == data);
        let lines = fs::read_to_string(trace).unwrap();
        let events = lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        let choices = events.filter(|e| e["event"] == "choose");
        choices.map(|c| (c["raw_offset"].as_u64().unwrap(), c["method"].to_string())).collect::<Vec<_>>()
    };
    let chosen = run("balance", &first);
    let replayed = run(&format!("replay:{}", first.display()), &again);
    // If bytes arrive later than in the recorded run, a block is cut in two.
    assert!(chosen.iter().all(|c| replayed.contains(c)), "{chosen:?}, then {replayed:?}");
    let missing = filter(home.path(), &["pipe", "--policy", "replay:/no/such/file"], b"x");
    assert_one_line_error(&missing, 1);
}

#[test]
fn what_datacomp_learned_is_kept_in_its_table() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let table = folder.path().join("table");
    let policy = |mode: &str| format!("datacomp:table={}{mode}", table.display());
    let run = |policy: &str| code(&filter(home.path(), &["pipe", "--policy", policy], &text(900_000)));
    assert_ne!(run(&policy(",mode=read")), 0, "there is none yet");
    assert_eq!(run(&policy("")), 0);
    let first = fs::read(&table).unwrap();
    assert_eq!(run(&policy("")), 0);
    let second = fs::read(&table).unwrap();
    assert!(first.len() == second.len() && first != second);
    assert_eq!(run(&policy(",mode=read")), 0);
    assert!(fs::read(&table).unwrap() == second);
    fs::write(&table, "something else").unwrap();
    assert_ne!(run(&policy("")), 0);
    assert_eq!(fs::read(&table).unwrap(), b"something else", "and is left as it was");
}

#[test]
fn an_output_that_is_an_input_too_is_refused_under_whatever_name() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let content = text(100_000);
    fs::write(at("a"), &content).unwrap();
    fs::hard_link(at("a"), at("hard")).unwrap();
    std::os::unix::fs::symlink("a", at("soft")).unwrap();
    let refused = |line: &str| {
        let line = line.replace("narrows", env!("CARGO_BIN_EXE_narrows"));
        let child = narrows_shell(home.path(), &line, folder.path());
        assert_one_line_error(&child, 2);
        assert!(stderr(&child).contains("is input and output"), "{line}: {}", stderr(&child));
        assert_eq!(entries(folder.path()).len(), 3, "{line}: a file is left");
    };
    for name in ["a", "hard", "soft"] {
        refused(&format!("narrows pipe a -o {name}"));
        refused(&format!("narrows pipe -o {name} < a"));
        refused(&format!("narrows pipe -c a >> {name}"));
        refused(&format!("narrows pipe < a >> {name}"));
        refused(&format!("narrows pipe -d a -o {name}"));
        refused(&format!("narrows pipe a -o /dev/null --trace {name}"));
        refused(&format!("narrows send a tcp://127.0.0.1:1 --trace {name}"));
        refused(&format!("narrows oracle --link 10mbit a --html {name}"));
        assert!(fs::read(at("a")).unwrap() == content && fs::read(at(name)).unwrap() == content, "{name}");
    }
    // A file that the shell has truncated is lost, but is not silently replaced by an empty stream.
    fs::write(at("b"), &content).unwrap();
    fs::remove_file(at("soft")).unwrap();
    refused("narrows pipe -c b > b");
    // Devices may be input and output at once, and --test writes nothing.
    for line in ["narrows pipe /dev/null -o /dev/null", "narrows pipe < /dev/null > /dev/null"] {
        let output = narrows_shell(home.path(), &line.replace("narrows", env!("CARGO_BIN_EXE_narrows")), folder.path());
        assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
    }
}

/// Runs a shell command line in a folder.
fn narrows_shell(home: &std::path::Path, line: &str, folder: &std::path::Path) -> std::process::Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder).env("XDG_CACHE_HOME", home).stdin(Stdio::null());
    finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}
