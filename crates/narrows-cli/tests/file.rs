//! `narrows FILE`, `cat`, `list`, `check`: the habits of `zstd` with the same command lines, and what
//! only an index can do.

mod habits;
mod links;

use std::fs::{self, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::calls::{Failing, with_failing};
use crate::common::{narrows, wait_until_it_writes_in};

fn sample(len: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut out = Vec::with_capacity(len + 60);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = state >> 33;
        out.extend(format!("{} request {} took {} ms\n", n % 7, n % 1013, n % 89).bytes());
    }
    out.truncate(len);
    out
}

fn run(folder: &Path, args: &[&str]) -> Output {
    narrows(folder).current_dir(folder).args(args).output().unwrap()
}

fn good(folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// What a disk cannot store is no output: the source stays, and a file that adapts gets no name.
#[test]
fn errors_of_the_disk_are_told() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    fs::write(at("a"), sample(3 << 20)).unwrap();
    good(home.path(), &["a", "-o", "b.nrw"]);
    let fails = |call: i64, args: &[&str]| {
        let failing = [Failing::All(call)];
        let output = with_failing(&failing, libc::EIO, || run(home.path(), args))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("cannot write"), "{args:?}: {said}");
        Some(())
    };
    let all = [
        fails(libc::SYS_fsync, &["--rm", "a"]),
        fails(libc::SYS_fsync, &["--rm", "a", "--format", "zstd"]),
        fails(libc::SYS_fsync, &["--rm", "-d", "b.nrw"]),
        fails(libc::SYS_sync_file_range, &["--adapt", "a", "-o", "c.nrw"]),
    ];
    assert!(at("a").exists() && at("b.nrw").exists());
    assert!(all.iter().any(Option::is_none) || !at("c.nrw").exists());
}

#[test]
fn a_file_that_appears_meanwhile_is_not_replaced() {
    let home = folder();
    let out = home.path().join("out");
    for force in [false, true] {
        let mut command = narrows(home.path());
        command.current_dir(home.path()).args(["-o", "out"]).args(force.then_some("-f")).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_until_it_writes_in(home.path(), 0, &child);
        fs::write(&out, "mine").unwrap();
        drop(child.stdin.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), force);
        assert_eq!(fs::read(&out).unwrap() == b"mine", !force);
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("already exists; use -f"), !force);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }
}

#[test]
fn mode_and_times_are_kept_and_nothing_is_overwritten() {
    let home = folder();
    let (a, packed) = (home.path().join("a"), home.path().join("a.nrw"));
    fs::write(&a, sample(100_000)).unwrap();
    fs::set_permissions(&a, fs::Permissions::from_mode(0o640)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&a).unwrap().set_modified(time).unwrap();
    good(home.path(), &["a"]);
    let kept = |path: &Path| {
        let data = path.metadata().unwrap();
        (data.permissions().mode() & 0o7777, data.modified().unwrap())
    };
    assert_eq!(kept(&packed), (0o640, time));
    let output = run(home.path(), &["a"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("-f to overwrite"));
    fs::remove_file(&a).unwrap();
    good(home.path(), &["-d", "a.nrw"]);
    assert_eq!(kept(&a), (0o640, time));
    assert_eq!(fs::read(&a).unwrap(), sample(100_000));
}

#[test]
fn cat_writes_ranges_of_every_format_that_can_have_them() {
    let home = folder();
    let raw = sample(700_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["a"]);
    good(home.path(), &["--format", "zstd", "a"]);
    let mut names = vec!["a.nrw", "a.zst"];
    if narrows_test::has("gzip") {
        assert!(Command::new("gzip").current_dir(home.path()).args(["-k", "a"]).status().unwrap().success());
        names.push("a.gz");
    }
    for name in names {
        assert!(good(home.path(), &["cat", name]) == raw, "{name}");
        assert_eq!(good(home.path(), &["cat", "--range", "0-0", name]), raw[..1]);
        assert_eq!(good(home.path(), &["cat", "--range", "300000-300099", name]), raw[300_000..300_100]);
        assert_eq!(good(home.path(), &["cat", "--range", "699990-", name]), raw[699_990..]);
        assert_eq!(good(home.path(), &["cat", "--range", "699999-800000", name]), raw[699_999..]);
        for range in ["700000-800000", "700000-", "800000-800000"] {
            let output = run(home.path(), &["cat", "--range", range, name]);
            crate::common::assert_one_line_error(&output, 2);
            let said = crate::common::stderr(&output);
            assert!(said.contains("the file has 700000 bytes"), "{said}");
            assert!(output.stdout.is_empty());
        }
    }
    assert_eq!(good(home.path(), &["cat", "--range=-10", "a.nrw"]), raw[699_990..]);
    assert_eq!(run(home.path(), &["cat", "--range", "9-8", "a.nrw"]).status.code(), Some(2));
}

#[test]
fn check_lists_damage_and_cat_reads_around_it() {
    let home = folder();
    let raw = sample(1_000_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["--block-max", "64K", "a"]);
    assert!(
        String::from_utf8(good(home.path(), &["check", "--sums", "a.nrw"])).unwrap().contains("good, 1000000 bytes")
    );
    let path = home.path().join("a.nrw");
    let mut bytes = fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let output = run(home.path(), &["check", "a.nrw"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("bytes 0-65535 are damaged"));
    assert_eq!(run(home.path(), &["cat", "a.nrw"]).status.code(), Some(3));
    let output = run(home.path(), &["cat", "--skip-damaged", "a.nrw"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, raw[65_536..]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("bytes 0-65535 are missing"));
    // A file that breaks off gets an index of what is whole.
    bytes[1000] ^= 1;
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(run(home.path(), &["cat", "a.nrw"]).status.code(), Some(3));
    assert_eq!(run(home.path(), &["check", "a.nrw"]).status.code(), Some(3));
    let output = run(home.path(), &["check", "--repair-index", "a.nrw"]);
    let part = good(home.path(), &["cat", "a.nrw"]);
    assert!(part.len() > 300_000 && raw.starts_with(&part));
    // What the file has is whole, but it is not all that was written.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("whatever was behind byte {} is missing", part.len())), "{said}");
    assert!(!said.contains("good") && !said.contains("may help"), "{said}");
    good(home.path(), &["check", "a.nrw"]);
}

#[test]
fn a_repair_of_an_index_alone_is_good() {
    let home = folder();
    fs::write(home.path().join("a"), sample(1_000_000)).unwrap();
    good(home.path(), &["--block-max", "64K", "a"]);
    let whole = fs::read(home.path().join("a.nrw")).unwrap();
    let mut packed = whole.clone();
    // Within the sums or the index, after all blocks and before the end frame.
    let at = packed.len() - 100;
    packed[at] ^= 1;
    fs::write(home.path().join("a.nrw"), &packed).unwrap();
    assert_eq!(run(home.path(), &["check", "a.nrw"]).status.code(), Some(3));
    assert!(String::from_utf8(good(home.path(), &["check", "--repair-index", "a.nrw"])).unwrap().contains("good"));
    assert!(fs::read(home.path().join("a.nrw")).unwrap() == whole);
}

#[test]
fn commands_and_files_are_told_apart() {
    let home = folder();
    fs::write(home.path().join("cat"), sample(1000)).unwrap();
    good(home.path(), &["./cat"]);
    assert!(home.path().join("cat.nrw").exists());
    for args in [&["-d", "pingg"][..], &["-k", "pingg"], &["file", "pingg"], &["./pingg"], &["check", "pingg"]] {
        let output = run(home.path(), args);
        crate::common::assert_one_line_error(&output, 1);
        assert!(crate::common::stderr(&output).contains("pingg: No such file"), "{args:?}");
    }
    assert_eq!(run(home.path(), &["--no-such-option"]).status.code(), Some(2));
    assert_eq!(run(home.path(), &["-o", "x", "a", "b"]).status.code(), Some(2));
    assert!(String::from_utf8(good(home.path(), &["--help"])).unwrap().contains("Commands"));
}

/// The files after a misspelt command are left alone.
#[test]
fn a_first_word_that_is_neither_a_command_nor_a_file_stops_everything() {
    let home = folder();
    let raw = sample(1000);
    fs::write(home.path().join("f"), &raw).unwrap();
    for (args, meant) in [
        (&["chekc", "f"][..], Some("`narrows check`")),
        (&["compres", "--rm", "f"], Some("`narrows FILE`")),
        (&["Compress", "f"], Some("`narrows FILE`")),
        (&["decompress", "--sums", "f"], Some("`narrows -d FILE`")),
        (&["pingg"], Some("`narrows ping`")),
        (&["notes.txt", "f"], None),
        // A command after its options.
        (&["--rm", "check", "f"], Some("`narrows check`")),
        (&["-k", "chekc", "f"], Some("`narrows check`")),
    ] {
        let output = run(home.path(), args);
        crate::common::assert_one_line_error(&output, 2);
        let said = crate::common::stderr(&output);
        assert_eq!(said.contains("mean"), meant.is_some(), "{args:?}: {said}");
        assert!(said.contains(meant.unwrap_or("is neither a file nor a command; see")), "{args:?}: {said}");
        assert_eq!(crate::common::entries(home.path()), [home.path().join("f")], "{args:?}");
        assert!(fs::read(home.path().join("f")).unwrap() == raw);
    }
    // What can be nothing but a file costs only itself; -- says that it is one.
    for args in [&["./chekc", "f"][..], &["-k", "--", "check", "f"], &["file", "chekc", "f"]] {
        let output = run(home.path(), args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(crate::common::stderr(&output).contains("No such file"));
        fs::remove_file(home.path().join("f.nrw")).unwrap();
    }
}

/// What is not there is told before anything is written or removed.
#[test]
fn all_files_are_looked_at_before_the_first_one_is_removed() {
    let home = folder();
    for name in ["a", "b"] {
        fs::write(home.path().join(name), sample(1000)).unwrap();
    }
    let output = run(home.path(), &["-v", "--rm", "a", "nothing", "b"]);
    let said = crate::common::stderr(&output);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(lines[0].contains("cannot read nothing: No such file"), "{said}");
    assert!(lines[1].contains("a: ") && lines[2].contains("b: "), "{said}");
    assert!(home.path().join("a.nrw").exists() && home.path().join("b.nrw").exists());
    assert!(!home.path().join("a").exists(), "as with zstd, the others had their turn");
}

/// As with zstd: a variable of a script that is not set costs its own file only.
#[test]
fn an_empty_name_is_a_file_that_is_not_there() {
    let home = folder();
    fs::write(home.path().join("a"), sample(1000)).unwrap();
    for args in [
        &["-q", "", "a"][..],
        &["-t", "", "a.nrw"],
        &["cat", "", "a.nrw"],
        &["list", "", "a.nrw"],
        &["check", "", "a.nrw"],
    ] {
        let output = run(home.path(), args);
        crate::common::assert_one_line_error(&output, 1);
        assert!(crate::common::stderr(&output).contains("the name of a file is empty"), "{args:?}");
        assert!(home.path().join("a.nrw").exists());
        assert_eq!(output.stdout.is_empty(), args[0].starts_with('-'), "{args:?}: the other file had its turn");
    }
}

/// A damaged byte in the middle looks like a stream that breaks off there.
#[test]
fn a_repair_keeps_what_it_leaves_out() {
    let home = folder();
    fs::write(home.path().join("a"), sample(3_000_000)).unwrap();
    good(home.path(), &["--block-max", "64K", "a"]);
    let mut packed = fs::read(home.path().join("a.nrw")).unwrap();
    let end = packed.len();
    let first = end / 2;
    packed[end - 10] ^= 1;
    // Headers of all frames from there on: none of them parses.
    packed[first..end - 5000].fill(0xff);
    fs::write(home.path().join("a.nrw"), &packed).unwrap();
    // The block in whose body the damage begins is kept, and is damaged.
    assert_eq!(run(home.path(), &["check", "--repair-index", "a.nrw"]).status.code(), Some(3));
    assert!(fs::read(home.path().join("a.nrw.damaged")).unwrap() == packed);
    assert!(fs::metadata(home.path().join("a.nrw")).unwrap().len() < end as u64);
    // An earlier one is not overwritten.
    fs::write(home.path().join("a.nrw"), &packed).unwrap();
    let again = run(home.path(), &["check", "--repair-index", "a.nrw"]);
    assert!(!again.status.success() && fs::read(home.path().join("a.nrw")).unwrap() == packed);
}

#[test]
fn a_damaged_preface_is_found_although_the_index_has_a_copy() {
    let home = folder();
    fs::write(home.path().join("a"), sample(300_000)).unwrap();
    good(home.path(), &["a"]);
    let whole = fs::read(home.path().join("a.nrw")).unwrap();
    fs::write(home.path().join("a.nrw"), [b"X", &whole[1..]].concat()).unwrap();
    assert_eq!(run(home.path(), &["check", "a.nrw"]).status.code(), Some(3));
    good(home.path(), &["check", "--repair-index", "a.nrw"]);
    assert!(fs::read(home.path().join("a.nrw")).unwrap() == whole);
}

#[test]
fn a_file_that_refers_far_back_is_read_where_memory_for_it_is_allowed() {
    let home = folder();
    // Repeats 140 MiB back, farther than the default.
    let noise: Vec<u8> =
        (0..1u32 << 20).flat_map(|i| (u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3).to_le_bytes()).collect();
    let raw = [&noise[..], &vec![0; 140 << 20], &noise].concat();
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["pipe", "--long=28", "a", "-o", "a.nrw"]);
    let refused = run(home.path(), &["cat", "a.nrw"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("allow it with --long=28"));
    assert!(good(home.path(), &["cat", "--long=28", "a.nrw"]) == raw);
    good(home.path(), &["-d", "-o", "back", "a.nrw"]);
    assert!(fs::read(home.path().join("back")).unwrap() == raw);
    assert_eq!(run(home.path(), &["check", "--long=28", "a.nrw"]).status.code(), Some(0));
}

#[test]
fn an_input_is_not_removed_where_no_file_was_made_of_it() {
    let home = folder();
    fs::write(home.path().join("a"), sample(3000)).unwrap();
    assert!(!run(home.path(), &["--rm", "-o", "/dev/null", "a"]).status.success());
    assert!(home.path().join("a").exists());
}

#[test]
fn two_inputs_do_not_become_one_output_although_files_may_be_overwritten() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    for name in ["x", "y", "out"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("x/a"), sample(3000)).unwrap();
    fs::write(at("y/a"), "another one").unwrap();
    for args in [&["x/a", "y/a"][..], &["-r", "x", "y"]] {
        let output = run(home.path(), &[&["-f", "--rm", "--output-dir-flat", "out"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(at("x/a").exists() && at("y/a").exists());
    }
    good(home.path(), &["--format", "zstd", "x/a"]);
    good(home.path(), &["y/a", "-o", "x/a.nrw"]);
    fs::remove_file(at("x/a")).unwrap();
    let output = run(home.path(), &["-d", "-f", "--rm", "x/a.zst", "./y/../x/a.nrw"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(at("x/a.zst").exists() && at("x/a.nrw").exists());
    good(home.path(), &["-f", "y/a", "y/a", "-c"]);
}

#[test]
fn a_link_that_takes_the_place_of_a_folder_does_not_lead_elsewhere() {
    for (made, precious) in [(&["--mode", "archive"][..], "x"), (&["-f", "--mode", "archive"], "x"), (&["-d"], "x.nrw")]
    {
        let home = folder();
        let at = |name: &str| home.path().join(name);
        for name in ["tree/sub", "elsewhere"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("tree/a"), sample(8 << 20)).unwrap();
        fs::write(at("elsewhere/x"), sample(3000)).unwrap();
        if made == ["-d"] {
            fs::write(at("tree/a"), sample(32 << 20)).unwrap();
            good(home.path(), &["--rm", "tree/a", "elsewhere/x"]);
        }
        fs::copy(at("elsewhere").join(precious), at("tree/sub").join(precious)).unwrap();
        let mut command = narrows(home.path());
        let args = [made, &["-r", "--rm", "tree"]].concat();
        let child = command.current_dir(home.path()).args(args).stderr(Stdio::piped()).spawn().unwrap();
        wait_until_it_writes_in(&at("tree"), 1, &child);
        fs::rename(at("tree/sub"), at("tree/.sub")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", at("tree/sub")).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("tree/sub/x"), "{said}");
        let left: Vec<_> = fs::read_dir(at("elsewhere")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [precious], "{made:?}");
        assert!(!at("tree/a").exists() || made == ["-d"], "the rest was done");
    }
}

#[test]
fn damage_in_other_formats_is_not_skipped_and_has_a_status_of_its_own() {
    let home = folder();
    fs::write(home.path().join("a"), sample(300_000)).unwrap();
    good(home.path(), &["--format", "zstd", "a"]);
    let output = run(home.path(), &["cat", "--skip-damaged", "a.zst"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What another program writes meanwhile is in no output, or only half of it: the source is all that is left.
#[test]
fn a_source_that_changes_while_it_is_read_stays_and_is_told() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    fs::write(at("packed"), sample(100 << 20)).unwrap();
    good(home.path(), &["packed", "-o", "packed.nrw"]);
    for args in [
        &["--mode", "archive", "a", "-o", "out/x"][..],
        &["--mode", "archive", "--rm", "a", "-o", "out/x"],
        &["--mode", "archive", "--format", "zstd", "--rm", "a", "-o", "out/x"],
        &["-d", "--rm", "b.nrw", "-o", "out/x"],
    ] {
        // On a loaded machine the program may be through before the test writes: another try.
        let mut tries = 0..10;
        let source = at(if args.contains(&"a") { "a" } else { "b.nrw" });
        let (output, before) = loop {
            fs::write(at("a"), sample(8 << 20)).unwrap();
            fs::copy(at("packed.nrw"), at("b.nrw")).unwrap();
            let _ = fs::remove_dir_all(at("out"));
            fs::create_dir(at("out")).unwrap();
            let mut command = narrows(home.path());
            let child = command.current_dir(home.path()).args(args).stderr(Stdio::piped()).spawn().unwrap();
            wait_until_it_writes_in(&at("out"), 1, &child);
            // Length and time are as before, as after a write within a tick of the clock.
            let file = match fs::File::options().write(true).open(&source) {
                Ok(file) => file,
                Err(_) if tries.next().is_some() => {
                    child.wait_with_output().unwrap();
                    continue;
                }
                Err(e) => panic!("{args:?}: {e}"),
            };
            let before = file.metadata().unwrap();
            // Another byte than any of these files begins with.
            file.write_at(b"\0", 0).unwrap();
            file.set_times(FileTimes::new().set_modified(before.modified().unwrap())).unwrap();
            let output = child.wait_with_output().unwrap();
            if output.status.code() != Some(0) || tries.next().is_none() {
                break (output, before);
            }
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("changed while it was read"), "{args:?}: {said}");
        assert_eq!(fs::metadata(&source).unwrap().ino(), before.ino());
        assert_eq!(fs::read_dir(at("out")).unwrap().count(), 0, "{args:?}");
    }
}

/// A new mode or name changes no byte.
#[test]
fn a_source_of_which_only_the_status_changes_is_no_other() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    fs::write(at("packed"), sample(40 << 20)).unwrap();
    good(home.path(), &["packed", "-o", "packed.nrw"]);
    for args in [&["--mode", "archive", "--rm", "a", "-o", "out/x"][..], &["-d", "--rm", "b.nrw", "-o", "out/x"]] {
        let source = at(if args.contains(&"a") { "a" } else { "b.nrw" });
        fs::write(at("a"), sample(4 << 20)).unwrap();
        fs::copy(at("packed.nrw"), at("b.nrw")).unwrap();
        let _ = fs::remove_dir_all(at("out"));
        fs::create_dir(at("out")).unwrap();
        let mut command = narrows(home.path());
        let child = command.current_dir(home.path()).args(args).stderr(Stdio::piped()).spawn().unwrap();
        wait_until_it_writes_in(&at("out"), 1, &child);
        fs::set_permissions(&source, fs::Permissions::from_mode(0o604)).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!source.exists() && at("out/x").exists(), "{args:?}");
    }
}

#[test]
fn a_range_of_another_format_is_right_or_an_error() {
    if !narrows_test::has("bzip2") {
        return;
    }
    let home = folder();
    fs::write(home.path().join("a"), sample(900_000)).unwrap();
    assert!(Command::new("bzip2").arg(home.path().join("a")).status().unwrap().success());
    let mut packed = fs::read(home.path().join("a.bz2")).unwrap();
    let at = packed.len() / 3;
    packed[at] ^= 0xa5;
    fs::write(home.path().join("a.bz2"), packed).unwrap();
    assert_eq!(run(home.path(), &["cat", "--range", "10-20", "a.bz2"]).status.code(), Some(3));
}

/// What is after the check of the range is not decoded, however much it is.
#[test]
fn a_range_of_another_format_ends_with_the_frame_or_member_that_has_it() {
    let home = folder();
    let raw = sample(300_000);
    for (program, name) in [("zstd", "a.zst"), ("gzip", "a.gz"), ("bzip2", "a.bz2")] {
        if !narrows_test::has(program) {
            continue;
        }
        fs::write(home.path().join("a"), &raw).unwrap();
        let packed = Command::new(program).current_dir(home.path()).args(["-c", "a"]).output().unwrap().stdout;
        let mut bytes = [&packed[..], &packed].concat();
        let in_second = packed.len() * 3 / 2;
        bytes[in_second..].iter_mut().for_each(|byte| *byte ^= 0xa5);
        fs::write(home.path().join(name), &bytes).unwrap();
        for (range, part) in [("0-9", &raw[..10]), ("299000-299999", &raw[299_000..])] {
            assert_eq!(good(home.path(), &["cat", "--range", range, name]), part, "{name}");
        }
        assert_eq!(run(home.path(), &["cat", "--range", "-5", name]).status.code(), Some(3), "{name}: to the end");
        let output = run(home.path(), &["cat", "--range", "299000-300000", name]);
        assert_eq!(output.status.code(), Some(3), "{name}: a byte of the second one");
        fs::write(home.path().join(name), &packed[..packed.len() - 2]).unwrap();
        assert_eq!(run(home.path(), &["cat", "--range", "0-9", name]).status.code(), Some(3), "{name}: cut");
        fs::write(home.path().join(name), &packed).unwrap();
        for (range, part) in [("-200000", &raw[100_000..]), ("-1", &raw[299_999..]), ("-900000", &raw[..])] {
            assert_eq!(good(home.path(), &["cat", "--range", range, name]), part, "{name}");
        }
        let output = run(home.path(), &["cat", "--range", "-99999999", name]);
        assert_eq!(output.status.code(), Some(2), "{name}: more than is kept");
    }
}

/// One file that is fine, one that is damaged (3), one that is not there (1 in a folder): by any
/// command, in any order, with the status of the worst.
#[test]
fn of_several_files_each_has_its_turn_and_the_highest_status_counts() {
    let home = folder();
    let raw = sample(100_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["a"]);
    let mut packed = fs::read(home.path().join("a.nrw")).unwrap();
    packed.truncate(packed.len() / 2);
    fs::write(home.path().join("cut.nrw"), packed).unwrap();
    for command in [&["-t"][..], &["-dc"], &["cat"], &["cat", "--range", "0-99999"], &["list"], &["check"]] {
        for (files, expected) in [
            (&["a.nrw"][..], 0),
            (&["./none.nrw"], 1),
            (&["cut.nrw"], 3),
            (&["./none.nrw", "a.nrw"], 1),
            (&["a.nrw", "./none.nrw"], 1),
            (&["cut.nrw", "./none.nrw", "a.nrw"], 3),
            (&["./none.nrw", "cut.nrw", "a.nrw"], 3),
            (&["a.nrw", "./none.nrw", "cut.nrw"], 3),
        ] {
            let output = run(home.path(), &[command, files].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(expected), "{command:?} {files:?}: {said}");
            assert_eq!(said.contains("none.nrw"), files.contains(&"./none.nrw"), "{command:?} {files:?}: {said}");
            // What is fine is there, whatever comes before it.
            if files.contains(&"a.nrw") && (command[0] == "cat" || command[0] == "-dc") {
                let found = output.stdout.len() >= raw.len() && output.stdout.windows(raw.len()).any(|w| w == raw);
                assert!(found, "{command:?} {files:?}");
            }
        }
    }
}

#[test]
fn what_is_no_file_is_not_listed_and_the_error_says_what_to_do() {
    let home = folder();
    fs::write(home.path().join("a"), sample(1000)).unwrap();
    good(home.path(), &["a"]);
    let packed = fs::read(home.path().join("a.nrw")).unwrap();
    for args in [&["-l"][..], &["-l", "-"], &["list"], &["list", "-"], &["list", "/dev/stdin"], &["pipe", "-l"]] {
        let output = crate::common::filter(home.path(), args, &packed);
        crate::common::assert_one_line_error(&output, 1);
        let said = crate::common::stderr(&output);
        assert!(said.contains("only files are listed; save it first"), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let listed = good(home.path(), &["list", "a.nrw"]);
    assert!(!listed.is_empty());
    assert_eq!(good(home.path(), &["pipe", "-l", "a.nrw"]), listed);
}

#[test]
fn zeros_behind_a_gzip_file_are_padding_and_other_bytes_are_an_error() {
    if !narrows_test::has("gzip") {
        return;
    }
    let home = folder();
    let raw = sample(300_000);
    fs::write(home.path().join("a"), &raw).unwrap();
    assert!(Command::new("gzip").current_dir(home.path()).args(["-k", "a"]).status().unwrap().success());
    let packed = fs::read(home.path().join("a.gz")).unwrap();
    // After one member and two, up to the block of a tape; longer than what is read at once.
    for (members, zeros) in [(1, 1), (1, 10_240), (2, 512), (1, 1 << 20)] {
        let padded = [packed.repeat(members), vec![0; zeros]].concat();
        fs::write(home.path().join("a.gz"), &padded).unwrap();
        assert!(good(home.path(), &["cat", "a.gz"]) == raw.repeat(members), "{members} {zeros}");
        assert_eq!(good(home.path(), &["cat", "--range", "5-9", "a.gz"]), raw[5..10]);
        good(home.path(), &["-t", "a.gz"]);
        fs::write(home.path().join("a.gz"), [&padded[..], b"x"].concat()).unwrap();
        assert_eq!(run(home.path(), &["cat", "a.gz"]).status.code(), Some(3));
    }
    fs::write(home.path().join("a.gz"), [&packed[..packed.len() - 4], &[0; 512]].concat()).unwrap();
    assert_eq!(run(home.path(), &["cat", "a.gz"]).status.code(), Some(3));
}

#[test]
fn a_zstd_window_that_takes_much_memory_is_said_with_the_option_that_allows_it() {
    let home = folder();
    for (long, size) in [(28, "256 MiB"), (31, "2048 MiB")] {
        // A frame that states its window, and one raw block of three bytes.
        let packed = [&[0x28, 0xb5, 0x2f, 0xfd, 0, (long - 10) << 3][..], &[3 << 3 | 1, 0, 0], b"raw"].concat();
        fs::write(home.path().join("a.zst"), packed).unwrap();
        for command in
            [&["cat", "a.zst"][..], &["cat", "--range", "0-1", "a.zst"], &["-dc", "a.zst"], &["check", "a.zst"]]
        {
            let output = run(home.path(), command);
            crate::common::assert_one_line_error(&output, 3);
            let said = crate::common::stderr(&output);
            assert!(said.contains(size) && said.contains(&format!("--long={long}")), "{command:?}: {said}");
            if long == 28 {
                good(home.path(), &[command, &["--long=28"]].concat());
            }
        }
    }
}

#[test]
fn runs_of_zeros_become_holes_in_new_files_and_nowhere_else() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    let disk_bytes = |name: &str| fs::metadata(at(name)).unwrap().blocks() * 512;
    let middle = [&[0; 1_048_577][..], &sample(100_003), &[0; 3_000_005], b"end"].concat();
    let last = [&sample(5000)[..], &[0; 2_000_000]].concat();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for (name, raw, data_max) in [("middle", middle, 150_000), ("last", last, 20_000), ("all", vec![0; 1 << 20], 0)] {
        fs::write(at("a"), &raw).unwrap();
        let mut packed = vec!["a.nrw"];
        good(home.path(), &["-f", "a"]);
        if narrows_test::has("gzip") {
            assert!(Command::new("gzip").current_dir(home.path()).args(["-kf", "a"]).status().unwrap().success());
            packed.push("a.gz");
        }
        for packed in packed {
            fs::File::options().write(true).open(at(packed)).unwrap().set_modified(time).unwrap();
            for line in [&["-df", "-o", "b", packed][..], &["pipe", "-df", "-o", "b", packed]] {
                good(home.path(), line);
                // With its length, also where it ends with a hole.
                assert!(fs::read(at("b")).unwrap() == raw, "{name} {line:?}");
                assert!(disk_bytes("b") <= data_max + (64 << 10), "{name} {line:?}: {}", disk_bytes("b"));
            }
            good(home.path(), &["-df", "-o", "b", packed]);
            assert_eq!(fs::metadata(at("b")).unwrap().modified().unwrap(), time, "{name}");
            good(home.path(), &["-df", "--no-sparse", "-o", "b", packed]);
            assert!(disk_bytes("b") >= raw.len() as u64 && fs::read(at("b")).unwrap() == raw, "{name}");
            assert!(good(home.path(), &["-dc", packed]) == raw, "{name}");
            // After what is there.
            fs::write(at("b"), "before").unwrap();
            let append = fs::File::options().append(true).open(at("b")).unwrap();
            let mut command = narrows(home.path());
            assert!(command.current_dir(home.path()).args(["-dc", packed]).stdout(append).status().unwrap().success());
            assert!(fs::read(at("b")).unwrap() == [b"before", &raw[..]].concat(), "{name}");
        }
    }
}

#[test]
fn hints_say_how_a_file_is_stored_and_the_command_line_is_stronger() {
    let home = folder();
    let raw = sample(600_000);
    for name in ["a", "b.raw", "c.log"] {
        fs::write(home.path().join(name), &raw).unwrap();
    }
    let rules = "[[hint]]\nfiles = '*.raw'\nnever = true\n\n[[hint]]\nfiles = '*.log'\nmethods = 'lz4'\n";
    fs::write(home.path().join(".narrows.toml"), rules).unwrap();
    let len = |name: &str, args: &[&str]| {
        good(home.path(), &[&["-f", name], args].concat());
        assert!(good(home.path(), &["-dc", &format!("{name}.nrw")]) == raw);
        home.path().join(format!("{name}.nrw")).metadata().unwrap().len()
    };
    let plain = len("a", &[]);
    assert!(len("b.raw", &[]) >= raw.len() as u64, "never");
    assert_eq!(len("b.raw", &["--mode", "balanced"]), plain);
    let lz4 = len("c.log", &[]);
    assert!(lz4 > plain && lz4 == len("a", &["--hint", "methods=lz4"]));
    assert!(len("a", &["--hint", "never"]) >= raw.len() as u64);
    assert!(len("a", &["--decode-rate", "1500MB/s"]) > plain, "zstd decodes slower");
    for bad in [&["--hint", "loud"][..], &["--hint", ""], &["--decode-rate", "fast"], &["--adapt", "--mode", "fast"]] {
        assert_eq!(run(home.path(), &[&["-f", "a"], bad].concat()).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn images_in_a_file_are_recompressed_and_come_back() {
    let home = folder();
    let [image, other, cut_off] = [8, 9, 10].map(|seed| narrows_test::jpeg(500, 400, true, seed));
    let raw = [&sample(300_000)[..], &image, &sample(1000), &cut_off[..9000], &other].concat();
    let len = |args: &[&str]| {
        fs::write(home.path().join("a"), &raw).unwrap();
        good(home.path(), &[&["-f", "a"], args].concat());
        good(home.path(), &["check", "a.nrw"]);
        assert!(good(home.path(), &["-dc", "a.nrw"]) == raw);
        let within = 300_000 + image.len() / 2;
        let range = format!("{within}-{}", within + 99);
        assert!(good(home.path(), &["cat", "--range", &range, "a.nrw"]) == raw[within..within + 100]);
        home.path().join("a.nrw").metadata().unwrap().len()
    };
    let (plain, images) = (len(&[]), len(&["--images"]));
    assert!(images < plain, "{images} {plain}");
    assert!(len(&["--hint", "images=true"]) < plain);
    for bad in [&["--images", "--adapt"][..], &["--images", "--policy", "balance"], &["--hint", "images=1"]] {
        assert_eq!(run(home.path(), &[&["-f", "a"], bad].concat()).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn adapted_files_are_files_as_others() {
    let home = folder();
    let raw = sample(3 << 20);
    fs::write(home.path().join("a"), &raw).unwrap();
    good(home.path(), &["--adapt", "a"]);
    assert!(good(home.path(), &["-dc", "a.nrw"]) == raw);
    assert!(good(home.path(), &["cat", "--range", "2000000-2000099", "a.nrw"]) == raw[2_000_000..2_000_100]);
    good(home.path(), &["check", "--sums", "a.nrw"]);
    assert!(home.path().join("a.nrw").metadata().unwrap().len() < raw.len() as u64 + 4096);
}

/// In a folder where others may write, a pipe, device or link may stand where the output is to be.
#[test]
fn outputs_beside_inputs_follow_nothing_and_write_into_nothing() {
    let home = folder();
    let at = |name: &str| home.path().join(name);
    fs::write(at("a"), sample(10_000)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("a.nrw"), rustix::fs::Mode::from_bits_truncate(0o666)).unwrap();
    for (options, words) in [(&["a"][..], "already exists"), (&["-f", "a"], "not a regular file")] {
        let output = run(home.path(), options);
        crate::common::assert_one_line_error(&output, 1);
        assert!(crate::common::stderr(&output).contains(words), "{options:?}");
    }
    fs::remove_file(at("a.nrw")).unwrap();
    for to in ["/dev/full", "elsewhere"] {
        std::os::unix::fs::symlink(to, at("a.nrw")).unwrap();
        crate::common::assert_one_line_error(&run(home.path(), &["a"]), 1);
        good(home.path(), &["-f", "a"]);
        assert!(at("a.nrw").symlink_metadata().unwrap().is_file() && !at("elsewhere").exists(), "the link is replaced");
        fs::remove_file(at("a.nrw")).unwrap();
    }
}
