//! What people type for `zstd`, `gzip` and `tar`: the same command lines, typed for `narrows`, `narrows pipe` and that
//! program, leave the same files, with the same content, mode, owner and time, and the same bytes on stdout.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::{folder, good, run, sample};
use crate::common;

/// What a command line left.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    is_good: bool,
    files: Vec<Kept>,
    /// The raw bytes came out, and how often.
    raw: Option<usize>,
}

/// A file, and what there is of it: whether it is the raw bytes, mode, owner, group and time.
type Kept = (String, Option<bool>, u32, (u32, u32), Option<SystemTime>);

/// Command lines that are typed for the same files, for programs whose suffix differs.
struct Place {
    suffix: &'static str,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Long ago, so that a file that got another time is noticed.
fn time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

impl Place {
    fn new(suffix: &'static str, words: &[&str]) -> Self {
        let raw = sample(40_000);
        let mut child = command(Path::new("/"), words).arg("-c").spawn().unwrap();
        child.stdin.take().unwrap().write_all(&raw).unwrap();
        let packed = child.wait_with_output().unwrap().stdout;
        assert!(!packed.is_empty());
        Self { suffix, raw, packed }
    }

    /// Runs a line in a fresh folder.
    fn left_by(&self, words: &[&str], line: &[&str]) -> Left {
        let home = folder();
        let at = |name: &str| home.path().join(name.replace("SUFFIX", self.suffix));
        for name in ["tree/deep", "packs/deep", "linked", "out"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let raw = ["a", "b", "exists", "tree/x", "tree/deep/y", "linked/x", "./-odd name\n"];
        let packed = ["packedSUFFIX", "existsSUFFIX", "nosuffix", "packs/xSUFFIX", "packs/deep/ySUFFIX"];
        raw.iter().for_each(|name| fs::write(at(name), &self.raw).unwrap());
        packed.iter().for_each(|name| fs::write(at(name), &self.packed).unwrap());
        fs::write(at("twiceSUFFIX"), self.packed.repeat(2)).unwrap();
        fs::write(at("cutSUFFIX"), &self.packed[..self.packed.len() - 9]).unwrap();
        fs::write(at("zero"), "").unwrap();
        for name in raw.iter().chain(&packed).chain(&["twiceSUFFIX", "zero"]) {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o640)).unwrap();
            // Only root may.
            let _ = chown(at(name), Some(1234), Some(1235));
            fs::File::options().write(true).open(at(name)).unwrap().set_modified(time()).unwrap();
        }
        fs::hard_link(at("b"), at("other name of b")).unwrap();
        symlink("b", at("link")).unwrap();
        symlink("../b", at("linked/link")).unwrap();
        let mut command = command(home.path(), words);
        let args = line.iter().map(|word| word.replace("SUFFIX", self.suffix));
        let output = command.args(args).stdin(Stdio::null()).output().unwrap();
        let mut files = Vec::new();
        self.look(home.path(), home.path(), &mut files);
        files.sort();
        let raw = output.stdout.len().is_multiple_of(self.raw.len()).then(|| output.stdout.len() / self.raw.len());
        // What a list looks like is each program's own.
        let raw = raw.filter(|n| output.stdout == self.raw.repeat(*n) && line[0] != "-l");
        Left { is_good: output.status.success(), files, raw }
    }

    fn look(&self, home: &Path, folder: &Path, files: &mut Vec<Kept>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, data) = (entry.path(), entry.metadata().unwrap());
            if data.is_dir() {
                self.look(home, &path, files);
                continue;
            }
            let name = path.strip_prefix(home).unwrap().to_str().unwrap().replace(self.suffix, "SUFFIX");
            let is_raw = (!data.is_symlink()).then(|| fs::read(&path).unwrap() == self.raw);
            let mode = if data.is_symlink() { 0 } else { data.mode() & 0o7777 };
            // That of `cut` is of today.
            let time = data.modified().ok().filter(|time| *time < SystemTime::now() - Duration::from_secs(999_999));
            files.push((name, is_raw, mode, (data.uid(), data.gid()), time));
        }
    }
}

/// A program, without what the user's own settings say.
fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.current_dir(folder).args(&words[1..]).env("XDG_CACHE_HOME", "/nonexistent").env("NARROWS_CONFIG", "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

const NARROWS: &str = env!("CARGO_BIN_EXE_narrows");

#[test]
fn the_same_command_lines_as_of_zstd_leave_the_same_files() {
    if !narrows_test::has("zstd") {
        return;
    }
    let (ours, theirs) = (Place::new(".nrw", &[NARROWS, "pipe"]), Place::new(".zst", &["zstd"]));
    let lines: &[&[&str]] = &[
        &["a"],
        &["-k", "a"],
        &["--rm", "a"],
        &["--rm", "-k", "a"],
        &["-k", "--rm", "a"],
        &["a", "b"],
        &["-q", "a", "b"],
        &["-o", "new", "a"],
        &["-o", "exists", "a"],
        &["-f", "-o", "exists", "a"],
        &["-fo", "exists", "a"],
        &["-f", "a"],
        &["-z", "a"],
        &["-1", "a"],
        &["-19", "a"],
        &["-19", "-T0", "--rm", "a"],
        &["-T2", "-3k", "a"],
        &["--fast", "a"],
        &["--fast=5", "a"],
        &["--ultra", "-22", "a"],
        &["-v", "a"],
        &["--no-progress", "-C", "a"],
        &["--long", "a"],
        &["--long=27", "a"],
        &["nothing"],
        &["a", "nothing", "b"],
        &["--rm", "a", "nothing", "b"],
        &["exists"],
        &["exists", "a"],
        &["zero"],
        &["-f", "exists"],
        &["a", "a"],
        &["--", "-odd name\n"],
        &["./-odd name\n"],
        &["b"],
        &["--rm", "b"],
        &["link"],
        &["-f", "link"],
        &["tree"],
        &["tree", "a"],
        &["-r", "tree"],
        &["-r", "--rm", "tree", "a"],
        &["-r", "linked"],
        &["-r", "-d", "packs"],
        &["-d", "-r", "--rm", "packs"],
        &["--output-dir-flat", "out", "a", "tree/x"],
        &["-d", "--output-dir-flat", "out", "packedSUFFIX", "packs/xSUFFIX"],
        &["/dev/null"],
        &["-d", "aSUFFIX"],
        &["-d", "packedSUFFIX"],
        &["-dk", "packedSUFFIX"],
        &["--decompress", "packedSUFFIX"],
        &["--uncompress", "packedSUFFIX"],
        &["-d", "-o", "new", "packedSUFFIX"],
        &["-d", "--rm", "packedSUFFIX"],
        &["-d", "b"],
        &["-d", "nosuffix"],
        &["-d", "-o", "new", "nosuffix"],
        &["-d", "twiceSUFFIX"],
        &["-d", "cutSUFFIX"],
        &["-d", "--rm", "cutSUFFIX", "packedSUFFIX"],
        &["-d", "existsSUFFIX"],
        &["-d", "-f", "existsSUFFIX"],
        &["-dc", "packedSUFFIX"],
        &["-dc", "--rm", "packedSUFFIX"],
        &["-cd", "packedSUFFIX", "twiceSUFFIX"],
        &["-d", "--stdout", "nosuffix"],
        &["-dc", "a"],
        &["-dcf", "a"],
        &["-dcf", "packedSUFFIX", "a"],
        &["-df", "-"],
        &["-t", "packedSUFFIX"],
        &["-t", "packedSUFFIX", "twiceSUFFIX"],
        &["-t", "packedSUFFIX", "cutSUFFIX"],
        &["-t", "b"],
        &["-l", "packedSUFFIX"],
        &["-l", "packedSUFFIX", "twiceSUFFIX"],
        &["-l", "b"],
        &["-l", "nothing"],
    ];
    for line in lines {
        let expected = theirs.left_by(&["zstd"], line);
        assert_eq!(ours.left_by(&[NARROWS, "pipe"], line), expected, "pipe {line:?}");
        assert_eq!(ours.left_by(&[NARROWS], line), expected, "{line:?}");
    }
}

/// But that `gzip` removes its input, which here `--rm` does.
#[test]
fn the_same_command_lines_as_of_gzip_leave_the_same_files() {
    if !narrows_test::has("gzip") {
        return;
    }
    let (ours, theirs) = (Place::new(".nrw", &[NARROWS, "pipe"]), Place::new(".gz", &["gzip", "-n"]));
    let lines: &[&[&str]] = &[
        &["a"],
        &["a", "zero"],
        &["-k", "a", "zero"],
        &["-9", "a"],
        &["--best", "a"],
        &["-1", "a"],
        &["--fast", "a"],
        &["-9n", "a"],
        &["-kf", "exists"],
        &["-k", "exists"],
        &["-c", "nothing"],
        &["-k", "nothing", "a"],
        &["-r", "tree"],
        &["-kr", "tree", "packs"],
        &["-d", "packedSUFFIX"],
        &["-dk", "packedSUFFIX"],
        &["-d", "cutSUFFIX"],
        &["-dr", "packs", "tree"],
        &["-dc", "packedSUFFIX", "twiceSUFFIX"],
        &["-dc", "link"],
        &["-dcf", "a"],
        &["-dt", "packedSUFFIX"],
        &["-t", "packedSUFFIX", "cutSUFFIX"],
        &["-tr", "packs"],
        &["-l", "packedSUFFIX"],
        &["-d", "link"],
    ];
    for line in lines {
        let expected = theirs.left_by(&["gzip"], line);
        assert_eq!(ours.left_by(&[NARROWS, "pipe", "--rm"], line), expected, "{line:?}");
    }
    // A link that was passed over is a failure, also beside other files.
    assert!(!ours.left_by(&[NARROWS, "pipe"], &["link", "a"]).is_good);
}

/// The group and the owner are those of the input, as far as the user may; the mode is never wider.
#[test]
fn a_user_who_is_not_the_owner_gives_no_group_more_than_it_had() {
    if !rustix::process::geteuid().is_root() {
        return narrows_test::skip("needs root, to become somebody else");
    }
    if !narrows_test::has("setpriv") {
        return;
    }
    let home = folder();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let other = ["setpriv", "--reuid=1234", "--regid=1235", "--clear-groups", NARROWS];
    if !command(home.path(), &other).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return narrows_test::skip("this cannot be run as another user");
    }
    for (mode, kept) in [(0o644, 0o644), (0o664, 0o644), (0o4755, 0o755)] {
        let (a, packed) = (home.path().join("a"), home.path().join("a.nrw"));
        let _ = fs::remove_file(&packed);
        fs::write(&a, sample(1000)).unwrap();
        fs::set_permissions(&a, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = command(home.path(), &other);
        let output = command.args(["pipe", "a"]).output().unwrap();
        assert!(output.status.success(), "{}", common::stderr(&output));
        let data = packed.metadata().unwrap();
        assert_eq!((data.mode() & 0o7777, data.uid(), data.gid()), (kept, 1234, 1235), "{mode:o}");
    }
}

#[test]
fn tar_creates_lists_and_extracts_through_narrows() {
    if !narrows_test::has("tar") {
        return;
    }
    let home = folder();
    fs::create_dir(home.path().join("dir")).unwrap();
    fs::write(home.path().join("dir/file"), sample(300_000)).unwrap();
    let tar = |args: &[&str]| {
        let output = Command::new("tar").current_dir(home.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for words in ["", " -19", " -1 -T2", " pipe", " pipe -19", " -v"] {
        let program = format!("{NARROWS}{words}");
        let long = format!("--use-compress-program={program}");
        tar(&["-I", &program, "-cf", "dir.tar.nrw", "dir"]);
        assert_eq!(tar(&["-I", &program, "-tf", "dir.tar.nrw"]), "dir/\ndir/file\n");
        tar(&[&long, "-cf", "again.tar.nrw", "dir"]);
        fs::remove_dir_all(home.path().join("dir")).unwrap();
        tar(&[&long, "-xf", "dir.tar.nrw"]);
        assert_eq!(fs::read(home.path().join("dir/file")).unwrap(), sample(300_000), "{words}");
        good(home.path(), &["-t", "again.tar.nrw", "dir.tar.nrw"]);
    }
    tar(&["-I", NARROWS, "-cf", "dir.tar.nrw", "dir"]);
    let list = String::from_utf8(good(home.path(), &["list", "--json", "dir.tar.nrw"])).unwrap();
    assert!(list.contains("\"index\":\"stored\"") && list.contains("\"check\":\"XXH3\""), "{list}");
}

#[test]
fn options_of_zstd_and_xz_are_taken_or_said_what_to_use_instead() {
    let home = folder();
    let raw = sample(10_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["a"]);
    for line in [
        &["-T0"][..],
        &["--threads=0"],
        &["-qq"],
        &["-vvk"],
        &["-k", "-k"],
        &["-zc", "-c"],
        &["--no-progress", "-q"],
        &["--sparse"],
        &["-k19"],
        &["-3T4"],
        &["-C"],
        &["-n"],
        &["--single-thread"],
        &["-19", "-1"],
        &["file", "-T0"],
        &["pipe", "-T0", "-9"],
    ] {
        let packed = good(home.path(), &[line, &["-f", "--stdout", "a"]].concat());
        assert!(common::filter(home.path(), &["-dc", "-T0", "-19"], &packed).stdout == raw, "{line:?}");
    }
    for command in [&["cat", "-T0", "a.nrw"][..], &["check", "-T0", "a.nrw"], &["pipe", "-T0", "-dc", "a.nrw"]] {
        good(home.path(), command);
    }
    for (option, advice) in [
        ("-9e", "use --mode archive"),
        ("-S", "use -o FILE"),
        ("-M512", "use --long=LOG"),
        ("-D", "only messages have"),
        ("-N", "names are not stored"),
        ("--output-dir-mirror", "--output-dir-flat"),
    ] {
        for line in [&[option, "a"][..], &["-T4", option, "a"], &["file", option, "a"], &["pipe", option, "a"]] {
            let output = run(home.path(), line);
            common::assert_one_line_error(&output, 2);
            let said = common::stderr(&output);
            assert!(said.contains(advice) && said.lines().count() == 1, "{line:?}: {said}");
        }
    }
    // A tip is near or there is none, and it never removes anything.
    for (line, tip) in [
        (&["--stream-size=4", "a"][..], None),
        (&["--nonsense", "a"], None),
        (&["--recursiv", "a"], Some("'--recursive'")),
        (&["--outptu", "x", "a"], Some("'--output'")),
        (&["--rmm", "a"], None),
        (&["--forec", "a"], None),
        (&["-J", "a"], None),
        (&["--mode", "archiv", "a"], Some("'archive'")),
        (&["--mode", "worst", "a"], None),
        (&["cp", "--chmod=a", "a", "b"], None),
        (&["cp", "-C", "a", "b"], None),
        (&["cp", "-Q", "a", "b"], None),
        (&["cp", "--delte", "a", "b"], None),
        (&["cp", "--remove-source-file", "a", "b"], None),
        (&["cp", "--recursiv", "a", "b"], Some("'--recursive'")),
        (&["array", "encdoe", "a"], Some("'encode'")),
        (&["array", "compress", "a"], None),
    ] {
        let output = run(home.path(), line);
        let said = common::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
        assert_eq!(said.contains("tip:"), tip.is_some(), "{line:?}: {said}");
        assert!(said.contains(tip.unwrap_or_default()), "{line:?}: {said}");
        let usage = said.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
        assert!(!usage.contains("--rm") && !usage.contains("--methods"), "{line:?}: {said}");
    }
    for (line, advice) in [
        (&["cp", "--chmod=a", "a", "b"][..], "change them at the target"),
        (&["cp", "-C", "a", "b"], "is always on: leave it out"),
        (&["sync", "--exclude-from=x", "a", "b"], "use --exclude"),
        (&["--stream-size=4", "a"], "leave it out"),
    ] {
        let said = common::stderr(&run(home.path(), line));
        assert!(said.contains(advice) && said.lines().count() == 1, "{line:?}: {said}");
    }
    // Commands have options of their own, and a word of theirs is no level.
    assert!(common::stderr(&run(home.path(), &["cat", "-r", "a.nrw"])).contains("unexpected argument"));
}

#[test]
fn levels_are_modes_wherever_the_bytes_go() {
    let home = folder();
    let raw = sample(150_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    for command in [&["-c", "a"][..], &["pipe", "-c", "a"]] {
        let of = |more: &[&str]| good(home.path(), &[command, more].concat()).len();
        // How light the methods of a rate are depends on how busy this host is; those of archives are always the same.
        let archive = of(&["--mode", "archive"]);
        for level in ["-19", "--best", "--ultra", "-10"] {
            let more = if level == "--ultra" { &["--ultra", "-22"][..] } else { &[level] };
            assert_eq!(of(more), archive, "{command:?} {level}");
        }
        for lighter in [&["-1"][..], &["--fast=3"], &["-3"], &["-19", "-1"], &[]] {
            assert!(of(lighter) > archive, "{command:?} {lighter:?}");
        }
    }
    // A filter into a pipe, which adapts without a level.
    let archive = common::filter(home.path(), &["pipe", "-19"], &raw).stdout;
    let fast = common::filter(home.path(), &["pipe", "-1"], &raw).stdout;
    assert!(archive.len() < fast.len());
    assert_eq!(run(home.path(), &["-19", "--mode", "fast", "a"]).status.code(), Some(2));
    // As by zstd, one that is too high is told and taken for the highest, and what is no level is refused.
    for level in ["-23", "-99"] {
        let output = run(home.path(), &[level, "-c", "a"]);
        let told = format!("there is no level {}; it is taken for 22", &level[1..]);
        assert!(output.status.success() && common::stderr(&output).contains(&told), "{}", common::stderr(&output));
        assert_eq!(output.stdout, good(home.path(), &["-22", "-c", "a"]));
        assert!(run(home.path(), &[level, "-qc", "a"]).stderr.is_empty());
    }
    assert!(run(home.path(), &["-22", "-c", "a"]).stderr.is_empty());
    for line in [&["-99999999999", "a"][..], &["--fast=0", "a"], &["--fast=99999999999", "a"], &["--fast=", "a"]] {
        assert_eq!(run(home.path(), line).status.code(), Some(2), "{line:?}");
    }
}

/// What `narrows FILE` writes, `narrows pipe FILE` writes.
#[test]
fn a_file_is_the_same_by_whatever_command() {
    let home = folder();
    fs::write(home.path().join("a"), sample(700_000)).unwrap();
    good(home.path(), &["a", "-o", "file"]);
    good(home.path(), &["pipe", "a"]);
    assert!(fs::read(home.path().join("a.nrw")).unwrap() == fs::read(home.path().join("file")).unwrap());
    // Also where it is encoded as a flow, it has an index.
    good(home.path(), &["pipe", "-f", "--methods", "lz4", "a"]);
    let list = String::from_utf8(good(home.path(), &["pipe", "-l", "--json", "a.nrw", "file"])).unwrap();
    let rows: Vec<serde_json::Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["index"], &rows[2]["files"]), (3, &"stored".into(), &2.into()));
    assert_eq!(rows[2]["uncompressed"], 1_400_000);
    let said = common::stderr(&run(home.path(), &["pipe", "-f", "--json", "a"]));
    assert!(said.contains("\"file\":\"a\""), "{said}");
}

/// A full disk leaves the old file, or none, and the input.
#[test]
fn what_finds_no_room_is_no_file() {
    let home = folder();
    fs::write(home.path().join("a"), common::random(400_000)).unwrap();
    fs::write(home.path().join("b"), "small").unwrap();
    let line = format!("ulimit -f 100; exec '{NARROWS}' pipe --rm a b");
    let output = command(home.path(), &["sh", "-c", &line]).output().unwrap();
    common::assert_one_line_error(&output, 1);
    assert!(common::stderr(&output).contains("cannot write a.nrw: File too large"), "{}", common::stderr(&output));
    let mut left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a", "b.nrw"]);
}
