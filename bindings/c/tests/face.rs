//! C programs against what `make install` installs: compiled with warnings as errors, linked to the
//! shared and to the static library, and run, also under valgrind if it is there.

use std::io::{self, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;
use std::{env, fs};

use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows_file::{Mode, WriteOptions, Writer};
use narrows_test::{has, lacks};

const STRICT: [&str; 6] = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The installed tree, which lasts as long as the tests.
fn installed() -> &'static Path {
    static TREE: OnceLock<tempfile::TempDir> = OnceLock::new();
    TREE.get_or_init(|| {
        let tree = tempfile::tempdir().unwrap();
        let built = built();
        let make = Command::new("make")
            .args(["-s", "-C", here().to_str().unwrap(), "install", "PREFIX=/opt/narrows", "STRIP=true"])
            .arg(format!("DESTDIR={}", tree.path().display()))
            .arg(format!("BUILT={}", built.display()))
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .output()
            .unwrap();
        succeeded("make install", &make);
        tree
    })
    .path()
}

/// The folder of the libraries that Cargo built for these tests.
fn built() -> PathBuf {
    let exe = env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    let age = |folder: &Path| -> Option<SystemTime> {
        folder.join("libnarrows_c.a").metadata().ok()?;
        folder.join("libnarrows_c.so").metadata().ok()?.modified().ok()
    };
    let folders = [deps.to_path_buf(), deps.parent().unwrap().to_path_buf()];
    let newest = folders.into_iter().filter(|f| age(f).is_some()).max_by_key(|f| age(f));
    newest.expect("cargo built no libraries: cargo build -p narrows-c")
}

fn lib() -> PathBuf {
    installed().join("opt/narrows/lib")
}

fn include() -> PathBuf {
    installed().join("opt/narrows/include")
}

#[track_caller]
fn succeeded(what: &str, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    Shared,
    Static,
    /// Fully static: the program needs no library at run time.
    Whole,
}

/// Libs.private of narrows.pc: what the static library needs.
fn needed() -> Vec<String> {
    let text = fs::read_to_string(lib().join("pkgconfig/narrows.pc")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("Libs.private:"));
    line.expect("narrows.pc has Libs.private").split_whitespace().map(str::to_owned).collect()
}

/// Source files of a program: for one in `tests/c`, all of that folder.
fn sources(source: &str) -> Vec<PathBuf> {
    let main = here().join(source);
    if !source.starts_with("tests/") {
        return vec![main];
    }
    let folder = fs::read_dir(main.parent().unwrap()).unwrap().map(|f| f.unwrap().path());
    folder.filter(|f| f.extension().is_some_and(|e| e == "c")).collect()
}

/// Compiles a program of this folder, once.
fn program(source: &str, linked: Linked) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let name = format!("{}-{linked:?}", Path::new(source).file_stem().unwrap().display());
    let path = installed().join(name);
    let _guard = ONE_AT_A_TIME.lock();
    if path.exists() {
        return path;
    }
    let mut cc = Command::new("cc");
    cc.args(STRICT).args(["-std=c11", "-pthread"]).args(sources(source)).arg("-I").arg(include()).arg("-o").arg(&path);
    match linked {
        Linked::Shared => {
            cc.arg("-L").arg(lib()).arg("-lnarrows").arg(format!("-Wl,-rpath,{}", lib().display()));
        }
        Linked::Static => {
            cc.arg("-L").arg(lib()).arg("-l:libnarrows.a").args(needed());
        }
        Linked::Whole => {
            cc.arg("-static").arg("-L").arg(lib()).arg("-lnarrows").args(needed());
        }
    }
    succeeded(source, &cc.output().unwrap());
    path
}

fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    succeeded(&format!("{} {arguments:?}", program.display()), &output);
}

#[test]
fn the_header_is_c_and_cpp() {
    let standards =
        [("cc", "-std=c89"), ("cc", "-std=c11"), ("cc", "-std=c17"), ("c++", "-std=c++11"), ("c++", "-std=c++20")];
    for (compiler, standard) in standards {
        let language = if compiler == "cc" { "c" } else { "c++" };
        let mut check = Command::new(compiler);
        check.args(STRICT).args([standard, "-fsyntax-only", "-x", language]).arg(include().join("narrows.h"));
        succeeded(&format!("{compiler} {standard}"), &check.output().unwrap());
    }
}

#[test]
fn what_is_installed_is_found_by_its_names() {
    let link = fs::read_link(lib().join("libnarrows.so")).unwrap();
    assert_eq!(link, Path::new("libnarrows.so.0"));
    let bytes = fs::read(lib().join("libnarrows.so.0")).unwrap();
    assert!(bytes.windows(16).any(|w| w == b"libnarrows.so.0\0"), "the library has no soname");
    let text = fs::read_to_string(lib().join("pkgconfig/narrows.pc")).unwrap();
    assert!(!text.contains('@') && text.contains("prefix=/opt/narrows\n") && text.contains("Version: 0."), "{text}");
    if has("pkg-config") {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "narrows"]).env("PKG_CONFIG_PATH", lib().join("pkgconfig"));
        let answer = ask.output().unwrap();
        succeeded("pkg-config", &answer);
        let answer = String::from_utf8(answer.stdout).unwrap();
        assert!(answer.contains("-I/opt/narrows/include") && answer.contains("-lnarrows"), "{answer}");
    }
}

/// The library exports only the functions of the header: an application may have its own zstd.
#[test]
fn the_shared_library_shows_its_own_names_only() {
    if !has("nm") {
        return;
    }
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(lib().join("libnarrows.so.0")).output().unwrap();
    succeeded("nm", &output);
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text.lines().filter_map(|l| l.split_whitespace().last()).collect();
    // The node of the version itself is one of the names.
    let names: Vec<_> = names.into_iter().filter(|n| *n != "NARROWS_0.1").collect();
    assert!(names.iter().all(|n| n.ends_with("@@NARROWS_0.1")), "{names:?}");
    let names: Vec<_> = names.iter().filter_map(|n| n.split('@').next()).collect();
    let others: Vec<_> = names.iter().filter(|n| !n.starts_with("narrows_")).collect();
    assert!(others.is_empty(), "{others:?}");
    let header = fs::read_to_string(include().join("narrows.h")).unwrap();
    for name in &names {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    let declared = header.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(');
    for name in declared.filter_map(|w| w.strip_suffix('(').filter(|w| w.starts_with("narrows_"))) {
        assert!(names.contains(&name), "the library lacks {name}");
    }
    assert!(names.len() > 30);
}

#[test]
fn c_programs_with_the_shared_library() {
    run(&program("tests/c/face.c", Linked::Shared), &[]);
}

#[test]
fn c_programs_with_the_static_library() {
    run(&program("tests/c/face.c", Linked::Static), &[]);
}

#[test]
fn a_program_without_shared_libraries() {
    let libc = Command::new("cc").arg("-print-file-name=libc.a").output().unwrap().stdout;
    if !Path::new(String::from_utf8(libc).unwrap().trim()).exists() {
        return lacks("libc.a");
    }
    run(&program("examples/ping.c", Linked::Whole), &["100"]);
}

#[test]
fn valgrind_finds_nothing() {
    if !has("valgrind") {
        return;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    valgrind.args(["--show-leak-kinds=definite", "--fair-sched=try"]);
    succeeded("valgrind", &valgrind.arg(program("tests/c/face.c", Linked::Shared)).output().unwrap());
}

#[test]
fn examples_run() {
    run(&program("examples/ping.c", Linked::Shared), &["500"]);
    run(&program("examples/poll.c", Linked::Shared), &["3000000"]);
    run(&program("examples/poll.c", Linked::Shared), &["0"]);
    let (send, receive) = (program("examples/send.c", Linked::Shared), program("examples/receive.c", Linked::Static));
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let data: Vec<u8> = (0..700_000_u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
    fs::write(&from, &data).unwrap();
    let mut receiver = Command::new(receive).arg("0").arg(&to).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    let mut out = receiver.stdout.take().unwrap();
    while !port.ends_with('\n') {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        port.push(byte[0].into());
    }
    run(&send, &["127.0.0.1", port.trim(), from.to_str().unwrap()]);
    assert!(receiver.wait().unwrap().success());
    assert!(fs::read(&to).unwrap() == data);
    for (port, words) in [("no-such-service", "no-such-service"), ("1", "refused")] {
        let refused = Command::new(&send).args(["127.0.0.1", port, from.to_str().unwrap()]).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(1) && said.contains(words) && !said.contains("Success"), "{said}");
    }
    let usage = Command::new(send).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn received(link: Link) -> Vec<u8> {
    let sink = Sink::default();
    stream::receive(sink.clone(), link, ReceiveOptions::default().threads(2)).unwrap();
    sink.0.lock().unwrap().clone()
}

/// The engine reads what C writes, and vice versa.
#[test]
fn streams_of_c_and_of_the_engine_are_the_same() {
    let face = program("tests/c/face.c", Linked::Shared);
    let data = Command::new(&face).arg("--raw").output().unwrap().stdout;
    assert!(data.len() > 1_000_000);
    let encoded = Command::new(&face).arg("--encoded").output().unwrap().stdout;
    assert!(encoded.len() < data.len() && received(Link::reader(Cursor::new(encoded))) == data);

    let start = |arguments: &[&str]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(&face).args(arguments).stdin(OwnedFd::from(theirs)).spawn().unwrap();
        (Link::unix(ours).unwrap(), child)
    };
    let (link, mut writer) = start(&["--writer", "balance"]);
    assert!(received(link) == data);
    assert!(writer.wait().unwrap().success());

    let (link, mut reader) = start(&["--reader"]);
    stream::send(Cursor::new(data), link, SendOptions::default().threads(2)).unwrap();
    assert!(reader.wait().unwrap().success());
}

/// A file of the engine, as the program makes them.
fn stored(raw: &[u8], options: WriteOptions) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), options).unwrap();
    writer.write_all(raw).unwrap();
    writer.finish().unwrap().0
}

/// C reads at any byte what the engine writes.
#[test]
fn files_of_the_engine_are_read_at_any_byte() {
    let face = program("tests/c/face.c", Linked::Shared);
    let data = Command::new(&face).arg("--raw").output().unwrap().stdout;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.nrw");
    let small = WriteOptions::default().policy("fixed:zstd:level=3,link".parse().unwrap());
    let small = small.block_max(10_000).run_len(50_000);
    for options in [WriteOptions::default(), WriteOptions::default().mode(Mode::Archive), small] {
        fs::write(&path, stored(&data, options)).unwrap();
        run(&face, &["--file", path.to_str().unwrap()]);
    }
}

#[test]
fn the_example_prints_ranges() {
    let pread = program("examples/pread.c", Linked::Static);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.nrw");
    let raw: Vec<u8> = (0..700_000_u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
    let options = || WriteOptions::default().policy("fixed:lz4".parse().unwrap()).block_max(100_000);
    let mut bytes = stored(&raw, options());
    fs::write(&path, &bytes).unwrap();
    let print = |range: &str| Command::new(&pread).arg(&path).arg(range).output().unwrap();
    let len = raw.len();
    for (range, expected) in [
        ("0-0", &raw[..1]),
        ("5-1000004", &raw[5..1_000_005]),
        ("2799990-9999999", &raw[len - 10..]),
        ("2799990-", &raw[len - 10..]),
        ("-300", &raw[len - 300..]),
        ("-9999999", &raw[..]),
        ("9999999-", &[][..]),
        ("0-18446744073709551615", &raw[..]),
    ] {
        let output = print(range);
        succeeded(range, &output);
        assert!(output.stdout == expected, "{range}");
    }
    for range in ["", "5", "7-3", "-", "a-b", "3-4x", "0-99999999999999999999"] {
        let output = print(range);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{range}");
    }
    // The bytes before a damaged place, then a line with what is wrong and where.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let output = print("0-");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("file.nrw") && said.contains("frame"), "{said}");
    assert!(!output.stdout.is_empty() && raw.starts_with(&output.stdout) && output.stdout.len() < len);
}

/// What a file needs beyond the limits is said at once, with the option that allows it.
#[test]
fn a_file_that_refers_far_back_needs_the_option() {
    let pread = program("examples/pread.c", Linked::Static);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.nrw");
    let sink = Sink::default();
    let options = SendOptions::default().reach(256 << 20).search_always(true).index(true);
    stream::send(Cursor::new(vec![7; 100_000]), Link::writer(sink.clone()), options).unwrap();
    fs::write(&path, &*sink.0.lock().unwrap()).unwrap();
    let output = Command::new(&pread).arg(&path).arg("0-9").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("268435456 bytes: set narrows_file_options.reach_max"));
}
