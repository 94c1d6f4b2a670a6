//! `narrows cp` and `serve` with a hostile peer: nothing is written outside the target, nothing is
//! stored that was not asked for, and the terminal never shows unescaped bytes of the peer.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use narrows::entry::{Answer, Chunk, Entry, EntryKind, Record, RecordParser, RecordWriter};
use narrows::entry::{CHUNK_LEN_MAX, CHUNKS_MAX, DIGEST_LEN, EndState, PATH_LEN_MAX};
use narrows::policy::PolicySpec;
use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows::transport::Link;

use crate::common::copies::*;
use crate::common::*;

/// An entry stream of a hostile sender.
#[derive(Default)]
struct Stream {
    writer: RecordWriter,
    out: Vec<u8>,
}

impl Stream {
    fn entry(&mut self, path: &str, kind: EntryKind) -> u64 {
        let path = path.as_bytes().to_vec();
        let entry = Entry { path, kind, mode: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_ns: 0, xattrs: Vec::new() };
        self.writer.entry(&entry, &mut self.out).unwrap()
    }

    fn file(&mut self, path: &str, len: u64) -> u64 {
        self.entry(path, EntryKind::File { len, linked: true })
    }

    /// Adds a valid file.
    fn honest(&mut self, path: &str, content: &[u8]) -> u64 {
        let id = self.file(path, content.len() as u64);
        self.content(id, content);
        id
    }

    fn content(&mut self, id: u64, content: &[u8]) {
        self.writer.begin(id, &mut self.out);
        self.writer.data(content, &mut self.out);
        self.end(content);
    }

    fn end(&mut self, content: &[u8]) {
        self.writer.end(EndState::Whole, blake3::hash(content).as_bytes(), &mut self.out);
    }

    /// Adds a folder whose path is written unchanged.
    fn raw_folder(&mut self, path: &[u8]) {
        let mut body = vec![0];
        put_varint(&mut body, path.len());
        body.extend_from_slice(path);
        body.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0]);
        self.out.push(1);
        put_varint(&mut self.out, body.len());
        self.out.extend(body);
    }

    fn finished(mut self) -> Vec<u8> {
        self.writer.finish(&mut self.out);
        self.out
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Sends records as the program does; returns the answers.
fn send(records: Vec<u8>, write: File, read: File) -> (narrows::Result<()>, Vec<Answer>) {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&answers);
    let on_note = move |note: &[u8]| {
        Answer::parse_all(note, |answer| {
            heard.lock().unwrap().push(answer);
            Ok(())
        })
    };
    let options =
        SendOptions::new(PolicySpec::store()).threads(1).stall_timeout(Some(PATIENCE)).on_note(Box::new(on_note));
    let (link, _bond) = Link::pipes(write, read).bonded().unwrap();
    let sent = stream::send(Cursor::new(records), link, options).map(drop);
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    (sent, answers)
}

/// A client that has the server store these records in `target`.
fn put(home: &Path, target: &Path, records: Vec<u8>) -> (narrows::Result<()>, Vec<Answer>, Output) {
    let mut server = narrows(home).args(["serve", "--stdio"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = File::from(OwnedFd::from(server.stdin.take().unwrap()));
    let output = File::from(OwnedFd::from(server.stdout.take().unwrap()));
    let words = serde_json::json!({
        "version": 1,
        "session": "00".repeat(16),
        "task": "put",
        "target": target.to_str().unwrap(),
    });
    let words = words.to_string();
    let mut request = b"\x93NRSV\r\n\x1a".to_vec();
    request.extend_from_slice(&(words.len() as u32).to_le_bytes());
    request.extend_from_slice(words.as_bytes());
    input.write_all(&request).unwrap();
    let (sent, answers) = send(records, input, output);
    (sent, answers, finish(server))
}

/// Copies `source` from a server that sends these records whatever it is asked for.
fn get(home: &Path, flags: &[&str], source: &str, target: &Path, records: Vec<u8>) -> Output {
    get_and(home, flags, source, target, records, "exit 1")
}

/// The same; whoever asks once more gets what `again` starts.
fn get_and(home: &Path, flags: &[&str], source: &str, target: &Path, records: Vec<u8>, again: &str) -> Output {
    for name in ["up", "down"] {
        let _ = fs::remove_file(home.join(name));
        assert!(Command::new("mkfifo").arg(home.join(name)).status().unwrap().success());
    }
    let shell = home.join("fake");
    let _ = fs::remove_file(home.join("asked"));
    let lines = "[ -e asked ] || { : > asked; exec 3<&0; cat <&3 > up & exec cat down; }";
    fs::write(&shell, format!("#!/bin/sh\ncd \"${{0%/*}}\"\n{lines}\n{again}\n")).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = cp_command(home, &shell);
    let child = command.args(["--carriers", "1"]).args(flags).arg(format!("host:{source}")).arg(target).spawn();
    let (up, down) = (home.join("up"), home.join("down"));
    let server = std::thread::spawn(move || {
        let (mut read, write) = (File::open(up).unwrap(), File::create(down).unwrap());
        let mut head = [0; 12];
        read.read_exact(&mut head).unwrap();
        let len = u32::from_le_bytes(head[8..].try_into().unwrap());
        io::copy(&mut (&mut read).take(len.into()), &mut io::sink()).unwrap();
        drop(send(records, write, read));
    });
    let output = finish(child.unwrap());
    server.join().unwrap();
    output
}

/// A target, and beside it a folder that must not change.
fn folders(home: &Path) -> (PathBuf, PathBuf) {
    let (target, outside) = (home.join("t/target"), home.join("t/outside"));
    fs::create_dir_all(&target).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    set_mtime(&outside.join("file"), 1_000_000_000, 0);
    (target, outside)
}

#[test]
fn paths_that_lead_out_end_the_copy() {
    let home = home();
    let (target, _) = folders(home.path());
    let before = snapshot(&home.path().join("t"));
    let long = [b'x'; 256];
    let deep = b"x/".repeat(PATH_LEN_MAX / 2 + 1);
    for path in [&b".."[..], b"../up", b"/up", b"a/../../up", b"a//b", b"a/", b".", b"a\0b", &long, &deep] {
        let mut bad = Stream::default();
        bad.raw_folder(path);
        let (sent, _, output) = put(home.path(), &target, bad.out.clone());
        // The client was told, and prints it.
        assert_eq!((code(&output), stderr(&output).as_str()), (1, ""), "{path:?}");
        assert!(sent.is_err(), "{path:?}");
        let output = get(home.path(), &["-r"], "/there/.", &target, bad.out);
        assert_eq!(code(&output), 1, "{path:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert_eq!(snapshot(&home.path().join("t")), before, "{path:?}");
    }
}

#[test]
fn what_is_no_file_of_its_own_fails_alone() {
    let home = home();
    let (target, outside) = folders(home.path());
    let before = snapshot(&outside);
    symlink(&outside, target.join("planted")).unwrap();
    fs::create_dir(target.join("folder")).unwrap();
    fs::write(target.join("folder/kept"), "x").unwrap();
    fs::write(target.join("old"), random(1 << 20)).unwrap();

    let mut s = Stream::default();
    let mut failing = Vec::new();
    // Links that lead out of the target, and files below them.
    let link = s.entry("link", EntryKind::Symlink { target: b"../outside".to_vec() });
    for path in ["link/file", "planted/file", "link/new", "planted/new"] {
        failing.push(s.honest(path, b"hostile"));
    }
    for path in ["link", "planted", "link/folder", "planted/folder"] {
        failing.push(s.entry(path, EntryKind::Folder));
    }
    failing.push(s.entry("planted/link", EntryKind::Symlink { target: b"x".to_vec() }));
    // The same name twice.
    failing.push(s.honest("link", b"through the link"));
    // Hard links to entries that are not files of this copy.
    for (path, of) in [("hard 1", link), ("hard 2", failing[0]), ("planted/hard", link)] {
        failing.push(s.entry(path, EntryKind::HardLink { of }));
    }
    // Files in place of a folder, and kinds that were not allowed.
    failing.push(s.honest("folder", b"a file"));
    failing.push(s.entry("fifo", EntryKind::Fifo));
    failing.push(s.entry("device", EntryKind::CharDevice { major: 1, minor: 5 }));
    // Lengths that differ from the content.
    for (path, len, content) in [("longer", 5, &b"longer"[..]), ("shorter", 5, b"no"), ("huge", u64::MAX, b"x")] {
        let id = s.file(path, len);
        s.content(id, content);
        failing.push(id);
    }
    let id = s.file("endless hole", u64::MAX);
    s.writer.begin(id, &mut s.out);
    (0..3).for_each(|_| s.writer.hole(u64::MAX, &mut s.out));
    s.writer.data(b"behind the end of every file", &mut s.out);
    s.end(b"behind the end of every file");
    failing.push(id);
    // Content with a wrong digest.
    let id = s.file("wrong digest", 1);
    s.writer.begin(id, &mut s.out);
    s.writer.data(b"x", &mut s.out);
    s.writer.end(EndState::Whole, &[7; DIGEST_LEN], &mut s.out);
    failing.push(id);
    // Chunks of an earlier state, with other content than they stand for.
    let id = s.file("old", 2 << 20);
    for _ in 0..3 {
        let chunks = vec![Chunk { len: CHUNK_LEN_MAX, hash: 7 }; CHUNKS_MAX];
        s.writer.chunks(id, &chunks, &mut s.out);
    }
    s.content(id, b"other");
    failing.push(id);
    // Chunks of an entry that is not a file, and content that is sent twice or for no entry.
    s.writer.chunks(link, &[Chunk { len: 1, hash: 1 }], &mut s.out);
    s.content(link, b"of a link");
    let good = s.honest("good", b"good");
    s.content(good, b"another");
    // It is a file as others.
    s.honest(".narrows-000000000000000000000000.partial", b"named as a temporary file");

    let (sent, answers, output) = put(home.path(), &target, s.finished());
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{sent:?}");
    sent.unwrap();
    let mut failed: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Failed { id, .. } | Answer::NotStored { id, .. } => Some(*id),
            _ => None,
        })
        .collect();
    failed.sort_unstable();
    failing.sort_unstable();
    assert_eq!(failed, failing, "{answers:?}");
    assert_eq!(snapshot(&outside), before);
    assert_eq!(fs::read(target.join("good")).unwrap(), b"good");
    assert!(fs::read(target.join("old")).unwrap() == random(1 << 20));
    assert!(target.join("link").is_symlink() && target.join("planted").is_symlink());
    assert_eq!(entries(&target).len(), 6, "{:?}", entries(&target));
}

#[test]
fn a_server_stores_only_what_it_was_asked_for() {
    let home = home();
    let (target, outside) = folders(home.path());
    // The first that was not asked for ends the copy, whatever comes after it.
    let refused = |flags: &[&str], path: &str, kind: EntryKind, words: &str| {
        let mut s = Stream::default();
        s.entry("wanted", EntryKind::Folder);
        let content = if let EntryKind::File { .. } = kind { Some(b"hostile") } else { None };
        let id = s.entry(path, kind);
        content.iter().for_each(|content| s.content(id, *content));
        s.honest("wanted/behind", b"hostile");
        let output = get(home.path(), flags, "/there/wanted", &target, s.finished());
        let said = stderr(&output);
        assert_eq!(code(&output), 1, "{flags:?} {path}: {said}");
        assert!(said.contains(words) && said.contains("do not trust it"), "{flags:?} {path}: {said}");
        let _ = fs::remove_dir_all(target.join("wanted"));
        assert_eq!(entries(&target).len(), 0, "{flags:?} {path}");
    };
    let file = || EntryKind::File { len: 7, linked: false };
    let link = || EntryKind::Symlink { target: b"x".to_vec() };
    let plain = &["-r", "--exclude", ".ssh", "--exclude", "*.rc"];
    for (path, kind) in [(".bashrc", file()), ("", EntryKind::Folder), ("other", EntryKind::Folder)] {
        refused(&["-r"], path, kind, "which was not asked for");
    }
    for (path, kind) in [
        ("wanted/a.rc", file()),
        ("wanted/.ssh", EntryKind::Folder),
        ("wanted/.ssh/keys", file()),
        ("wanted/.ssh", link()),
    ] {
        refused(plain, path, kind, "which the patterns of this copy leave out");
    }
    refused(&["-r", "-L"], "wanted/link", link(), "a symbolic link");
    refused(&["-rn"], "wanted/file", file(), "this is a dry run");
    let mut s = Stream::default();
    s.entry("wanted", EntryKind::Folder);
    s.honest("wanted/good", b"good");
    s.entry("wanted/fifo", EntryKind::Fifo);
    s.entry("wanted/link", EntryKind::Symlink { target: outside.to_str().unwrap().into() });
    s.honest("wanted/link/file", b"hostile");
    s.entry("wanted/stream", EntryKind::Stream);
    s.writer.failed("cannot read \u{1b}]0;title\u{7} \u{202e}txt.exe\n\rwith lines", &mut s.out);
    let output = get(home.path(), &["-r"], "/there/wanted", &target, s.finished());
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for words in [
        "skipped wanted/fifo: it is a fifo",
        "cannot store wanted/link/file: ",
        "\\u{1b}]0;title\\u{7} \\u{202e}txt.exe\\n\\rwith lines\n",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains(['\u{1b}', '\u{7}', '\u{202e}', '\r']), "{said}");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"untouched");
    assert_eq!(entries(&target).len(), 1);
    assert_eq!(fs::read(target.join("wanted/good")).unwrap(), b"good");

    // For a single file, only a file is stored, under the given name.
    for (path, kind) in [("wanted", EntryKind::Folder), ("wanted", link()), ("wanted/x", file())] {
        let mut s = Stream::default();
        s.entry(path, kind);
        let output = get(home.path(), &[], "/there/wanted", &target.join("name"), s.finished());
        assert!(code(&output) == 1 && stderr(&output).contains("not asked for"), "{path}: {}", stderr(&output));
    }
    let mut s = Stream::default();
    s.honest("wanted", b"good");
    s.honest("wanted", b"hostile");
    let output = get(home.path(), &[], "/there/wanted", &target.join("name"), s.finished());
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(fs::read(target.join("name")).unwrap(), b"good");
    assert_eq!(entries(&target).len(), 2);
}

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_refusal_is_known_by_its_number_and_to_older_programs_by_its_words() {
    const WORDS: &str = "this server keeps files as they come; copy with --store-compressed";
    let home = home();
    let kept = home.path().join("kept");
    fs::create_dir(&kept).unwrap();
    let ask = |task: &str, codes: bool| {
        let mut server =
            narrows(home.path()).args(["serve", "--stdio", "--store-as-is"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = File::from(OwnedFd::from(server.stdin.take().unwrap()));
        let output = File::from(OwnedFd::from(server.stdout.take().unwrap()));
        let mut words = serde_json::json!({
            "version": 1,
            "session": "00".repeat(16),
            "task": task,
            "target": kept.to_str().unwrap(),
            "sources": [kept.to_str().unwrap()],
            "exclude": [],
        });
        if codes {
            words["codes"] = true.into();
        }
        let words = words.to_string();
        input.write_all(b"\x93NRSV\r\n\x1a").unwrap();
        input.write_all(&(words.len() as u32).to_le_bytes()).unwrap();
        input.write_all(words.as_bytes()).unwrap();
        (server, input, output)
    };
    for codes in [true, false] {
        let (server, input, output) = ask("put", codes);
        let mut s = Stream::default();
        s.honest("file", b"content");
        let (sent, answers) = send(s.finished(), input, output);
        finish(server);
        assert!(sent.unwrap_err().to_string().contains(WORDS));
        let expected = if codes { vec![Answer::Refused { code: 1, text: WORDS.into() }] } else { Vec::new() };
        assert_eq!(answers, expected);

        let (server, input, output) = ask("get", codes);
        let (link, _bond) = Link::pipes(input, output).bonded().unwrap();
        let sink = Kept::default();
        stream::receive(sink.clone(), link, ReceiveOptions::default().stall_timeout(Some(PATIENCE))).unwrap();
        finish(server);
        let mut records = Vec::new();
        let each = |record: Record<'_>| {
            records.push(format!("{record:?}"));
            Ok(())
        };
        RecordParser::default().push(&sink.0.lock().unwrap(), each).unwrap();
        let text = WORDS.to_owned();
        let first = if codes { Record::Refused { code: 1, text } } else { Record::Failed { text } };
        assert_eq!(records, [format!("{first:?}"), format!("{:?}", Record::Finish { entries: 0 })]);
    }
    // A client goes by the number, whatever the words are.
    fs::write(home.path().join("x"), "content of x").unwrap();
    let (x, target) = (home.path().join("x"), home.path().join("back"));
    let again = format!("exec '{}' serve --stdio --store-as-is", env!("CARGO_BIN_EXE_narrows"));
    let stored = cp(home.path(), &[OsStr::new("--store-compressed"), x.as_os_str(), &remote(&kept.join("x"))]);
    assert_eq!(code(&stored), 0, "{}", stderr(&stored));
    for (number, is_known) in [(1, true), (2, false)] {
        let _ = fs::remove_file(&target);
        let mut s = Stream::default();
        s.writer.refused(number, "in other words", &mut s.out);
        let source = kept.join("x");
        let output = get_and(home.path(), &[], source.to_str().unwrap(), &target, s.finished(), &again);
        match is_known {
            true => assert_eq!(fs::read_to_string(&target).unwrap(), "content of x", "{}", stderr(&output)),
            false => assert!(code(&output) == 1 && stderr(&output).contains("in other words"), "{}", stderr(&output)),
        }
    }
}

/// An honest server sends each file, or a reason why not.
#[test]
fn a_file_that_a_server_keeps_back_without_a_word_is_no_success() {
    let home = home();
    let h = home.path();
    let kept_back = |how: &str| {
        let mut s = Stream::default();
        if how != "nothing" {
            let id = s.file("file", 5);
            if how != "announced" {
                s.writer.begin(id, &mut s.out);
                s.writer.data(b"he", &mut s.out);
                s.writer.end(EndState::Partial, &[0; DIGEST_LEN], &mut s.out);
            }
            if how == "told" {
                s.writer.failed("cannot read it", &mut s.out);
            }
        }
        s.finished()
    };
    for (flags, how) in
        [(&[][..], "nothing"), (&[], "announced"), (&[], "given up"), (&["-r"], "announced"), (&["-r"], "given up")]
    {
        let (target, _) = folders(h);
        let output = get(h, flags, "file", &target, kept_back(how));
        assert_eq!(code(&output), 2, "{flags:?} {how}: {}", stderr(&output));
        assert!(stderr(&output).contains("1 did not arrive"), "{flags:?} {how}: {}", stderr(&output));
    }
    let (target, _) = folders(h);
    let output = get(h, &[], "file", &target, kept_back("told"));
    assert!(code(&output) == 2 && !stderr(&output).contains("did not arrive"), "{}", stderr(&output));
}

#[test]
fn names_of_any_bytes_and_lengths_arrive() {
    use std::os::unix::ffi::OsStrExt;
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let longest = "x".repeat(255);
    fs::create_dir_all(a.join(&longest)).unwrap();
    let names = [
        &b"new\nline"[..],
        b"\xff\xfe\x80",
        b"-rf",
        b"--delete",
        b"...",
        b"~",
        b"$(touch x)",
        b"\x1b[2J",
        "\u{202e}gpj.exe".as_bytes(),
        b"host:file",
        b" ",
        b"*",
        longest.as_bytes(),
    ];
    for name in names {
        fs::write(a.join(&longest).join(OsStr::from_bytes(name)), name).unwrap();
    }
    let flags = [OsStr::new("-rv")];
    for (from, to) in [(a.join("").into_os_string(), remote(&b)), (remote(&b.join("")), home.path().join("c").into())] {
        let output = cp(home.path(), &[&flags[..], &[&*from, &*to]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let said = String::from_utf8(output.stdout).unwrap();
        // One line more for the folder that they are in.
        assert_eq!(said.lines().count(), names.len() + 1, "{said}");
        assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said}");
    }
    assert_eq!(snapshot(&a), snapshot(&home.path().join("c")));
    // Names on the command line that look like flags or places.
    let inner = a.join(&longest);
    for name in ["-rf", "--delete", "host:file"] {
        let mut command = cp_command(&inner, &shell(home.path()));
        command.current_dir(&inner).arg("--").arg(format!("./{name}")).arg(remote(&home.path().join("one")));
        let output = finish(command.spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(fs::read(home.path().join("one")).unwrap(), name.as_bytes());
        fs::remove_file(home.path().join("one")).unwrap();
    }
}

#[test]
fn what_repeats_more_than_there_is_is_asked_for_again_or_not_stored() {
    let home = home();
    let (target, _) = folders(home.path());
    let mut bad = Stream::default();
    let first = bad.honest("first", b"0123456789");
    let mut repeating = |path: &str, len: u64, id: Option<u64>, runs: &[(u64, u32)]| {
        let own = bad.file(path, len);
        bad.writer.begin(own, &mut bad.out);
        bad.writer.data(b"own", &mut bad.out);
        runs.iter().for_each(|(offset, len)| bad.writer.repeat(id.unwrap_or(own), *offset, *len, &mut bad.out));
        bad.end(b"own345");
        own
    };
    // Short files are not remembered, so the repeated one is found in its temporary file.
    let good = repeating("good", 6, Some(first), &[(3, 3)]);
    let beyond = repeating("beyond", 6, Some(first), &[(8, 3)]);
    let wrong = repeating("wrong", 6, Some(first), &[(4, 3)]);
    let long = repeating("long", 6, Some(first), &[(0, 10), (0, 10)]);
    let itself = repeating("itself", 6, None, &[(1, 3)]);
    let endless = repeating("endless", 6, None, &[(0, 3), (0, 3), (0, 6)]);
    let again = bad.file("not sent", 1);
    bad.content(wrong, b"own345");
    bad.writer.begin(long, &mut bad.out);
    bad.writer.repeat(again, 0, 1, &mut bad.out);
    bad.end(b"");
    bad.honest("last", b"last");
    let (sent, answers, output) = put(home.path(), &target, bad.finished());
    assert!(sent.is_ok(), "{sent:?} {}", stderr(&output));
    let wanted_again = |of| answers.iter().filter(|a| matches!(a, Answer::Again { id, .. } if *id == of)).count();
    let not_stored = |of| answers.iter().any(|a| matches!(a, Answer::NotStored { id, .. } if *id == of));
    assert!(answers.contains(&Answer::Whole { id: good }), "{answers:?}");
    assert_eq!([beyond, wrong, long, itself].map(wanted_again), [1, 1, 2, 0]);
    assert!(not_stored(itself) && not_stored(endless) && !not_stored(wrong));
    assert_eq!(fs::read(target.join("good")).unwrap(), b"own345");
    assert_eq!(fs::read(target.join("wrong")).unwrap(), b"own345");
    let mut names: Vec<_> = entries(&target).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["first", "good", "last", "wrong"]);
}
