//! `narrows repack`: files get smaller and stay what they were, whatever kills it.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::*;
use rustix::fs::XattrFlags;

fn run(folder: &Path, args: &[&str]) -> Output {
    narrows(folder).current_dir(folder).args(args).output().unwrap()
}

fn good(folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output.stdout
}

/// Text that zstd makes smaller in long blocks; another one for each seed.
fn sample(len: usize, seed: usize) -> Vec<u8> {
    let mut out = format!("{seed}\n").repeat(3).into_bytes();
    let mut state = seed as u64;
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = state >> 33;
        out.extend(format!("{} request {} took {} ms\n", n % 7, n % 1013, n % 89).bytes());
    }
    out.truncate(len);
    out
}

/// The objects of `--json`: one for each file, and the totals.
fn json(folder: &Path, args: &[&str]) -> (Vec<serde_json::Value>, serde_json::Value) {
    let out = good(folder, &[&["repack", "--json"], args].concat());
    let mut lines: Vec<serde_json::Value> =
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let totals = lines.pop().unwrap();
    (lines, totals)
}

fn pack(folder: &Path, name: &str, raw: &[u8], args: &[&str]) -> PathBuf {
    fs::write(folder.join(name), raw).unwrap();
    good(folder, &[&["--rm", name], args].concat());
    folder.join(format!("{name}.nrw"))
}

#[test]
fn a_file_gets_smaller_and_keeps_all_it_had() {
    let home = home();
    let folder = home.path();
    let raw = sample(900_000, 1);
    let path = pack(folder, "a", &raw, &[]);
    let at_once = pack(folder, "b", &raw, &["--mode", "archive"]);
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let has_attributes = rustix::fs::setxattr(&path, "user.other", b"stays\0", XattrFlags::empty()).is_ok();
    File::open(&path).unwrap().set_times(FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
    let before = path.metadata().unwrap();
    good(folder, &["repack", "a.nrw"]);
    let after = path.metadata().unwrap();
    assert!(after.len() < before.len(), "{} {}", after.len(), before.len());
    assert!(after.len().abs_diff(at_once.metadata().unwrap().len()) * 100 <= after.len());
    let state = |d: &fs::Metadata| (d.mode(), d.uid(), d.gid(), d.mtime(), d.mtime_nsec(), d.nlink());
    assert_eq!(state(&after), state(&before));
    assert_eq!(after.accessed().unwrap(), time);
    if has_attributes {
        let mut value = [0; 10];
        let len = rustix::fs::getxattr(&path, "user.other", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"stays\0");
    }
    assert_eq!(entries(folder).iter().filter(|p| p.to_string_lossy().contains("part")).count(), 0);
    assert!(good(folder, &["-dc", "a.nrw"]) == raw);
    good(folder, &["check", "--sums", "a.nrw"]);
}

#[test]
fn a_tree_is_done_once() {
    let home = home();
    let tree = home.path().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    for (i, name) in ["x", "deep/y", "deep/er/z"].iter().enumerate() {
        pack(&tree, name, &sample(200_000, i), &[]);
    }
    let noise = pack(&tree, "noise", &random(100_000), &[]);
    pack(&tree, "archived", &sample(200_000, 9), &["--mode", "archive"]);
    fs::write(tree.join("deep/other"), "x").unwrap();
    symlink("x.nrw", tree.join("link.nrw")).unwrap();
    let (_, planned) = json(home.path(), &["--dry-run", "tree"]);
    assert_eq!((planned["would"].as_u64(), planned["before"].as_u64()), (Some(4), Some(1)));
    let (files, totals) = json(home.path(), &["tree"]);
    assert_eq!(files.len(), 5, "{files:?}");
    let count = |what: &str| totals[what].as_u64().unwrap();
    assert_eq!((count("smaller"), count("no_gain"), count("before"), count("others")), (3, 1, 1, 2), "{totals}");
    let state = |path: &Path| (path.metadata().unwrap().ino(), fs::read(path).unwrap());
    let before: Vec<_> = ["x.nrw", "deep/y.nrw", "noise.nrw"].iter().map(|name| state(&tree.join(name))).collect();
    let (_, again) = json(home.path(), &["tree"]);
    assert_eq!((again["before"].as_u64(), again["smaller"].as_u64()), (Some(5), Some(0)), "{again}");
    let after: Vec<_> = ["x.nrw", "deep/y.nrw", "noise.nrw"].iter().map(|name| state(&tree.join(name))).collect();
    assert!(before == after);
    // Another content under the name is another file, whatever its attributes say.
    fs::write(&noise, fs::read(pack(&tree, "n", &random(90_000), &[])).unwrap()).unwrap();
    let (_, changed) = json(home.path(), &[noise.to_str().unwrap()]);
    assert_eq!(changed["no_gain"].as_u64(), Some(1), "{changed}");
}

#[test]
fn the_second_run_reads_only_the_ends_of_files() {
    if !narrows_test::has("strace") {
        return;
    }
    let home = home();
    let path = pack(home.path(), "a", &sample(900_000, 1), &[]);
    good(home.path(), &["repack", "a.nrw"]);
    let len = path.metadata().unwrap().len();
    let trace = home.path().join("trace");
    let output = std::process::Command::new("strace")
        .args(["-f", "-y", "-e", "trace=read,pread64,readv,preadv,preadv2,mmap", "-o"])
        .arg(&trace)
        .args([env!("CARGO_BIN_EXE_narrows"), "repack"])
        .arg(&path)
        .output()
        .unwrap();
    let trace = fs::read_to_string(trace).unwrap_or_default();
    if !output.status.success() && !trace.contains("exited") {
        narrows_test::skip("processes cannot be traced here");
        return;
    }
    let reads: Vec<_> = trace.lines().filter(|line| line.contains("a.nrw>")).collect();
    assert!(!reads.is_empty(), "the trace has the reads:\n{trace}");
    assert!(reads.iter().all(|line| line.contains(&format!(", 56, {})", len - 56))), "{reads:?}");
}

#[test]
fn what_must_not_be_touched_is_left() {
    let home = home();
    let folder = home.path();
    let raw = sample(300_000, 1);
    let damaged = pack(folder, "damaged", &raw, &[]);
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let cut = pack(folder, "cut", &raw, &[]);
    let whole = fs::read(&cut).unwrap();
    fs::write(&cut, &whole[..whole.len() - 10_000]).unwrap();
    let names = pack(folder, "names", &raw, &[]);
    fs::hard_link(&names, folder.join("other")).unwrap();
    pack(folder, "unchecked", &raw, &["--no-check"]);
    good(folder, &["--format", "zstd", "-o", "zstd.nrw", "-f", "other"]);
    fs::write(folder.join("good"), &raw).unwrap();
    good(folder, &["good"]);
    let all = ["damaged.nrw", "cut.nrw", "names.nrw", "unchecked.nrw", "zstd.nrw"];
    let before: Vec<_> = all.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    let output = run(folder, &["repack", "."]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    for name in ["damaged.nrw", "cut.nrw"] {
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
    }
    let after: Vec<_> = all.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    assert!(before == after);
    assert!(good(folder, &["-dc", "good.nrw"]) == raw);
    let (files, _) = json(folder, &["names.nrw", "unchecked.nrw", "zstd.nrw"]);
    assert!(files.iter().all(|file| file["result"] == "left" && file["why"].is_string()), "{files:?}");
    assert_one_line_error(&run(folder, &["repack", "-q", "nothing.nrw"]), 1);
    assert_eq!(code(&run(folder, &["repack"])), 2);
    assert_eq!(code(&run(folder, &["repack", "--budget", "soon", "."])), 2);
}

#[test]
fn hints_are_followed() {
    let home = home();
    let folder = home.path();
    for name in ["never", "exact", "plain", "light"] {
        pack(folder, name, &sample(300_000, 1), &["--mode", "fast"]);
    }
    let rules = "[[hint]]\nfiles = 'never.*'\nnever = true\n\n[[hint]]\nfiles = 'exact.nrw'\nmethods = 'lz4'\n
[[hint]]\nfiles = 'light.nrw'\nmode = 'balanced'\n";
    fs::write(folder.join(".narrows.toml"), rules).unwrap();
    let (files, totals) = json(folder, &["."]);
    assert_eq!((totals["left"].as_u64(), totals["smaller"].as_u64()), (Some(2), Some(2)), "{files:?}");
    let (_, totals) = json(folder, &["."]);
    assert_eq!(totals["before"].as_u64(), Some(2), "balanced is enough for one of them");
    // The command line is stronger.
    let (_, totals) = json(folder, &["--mode", "archive", "."]);
    assert_eq!((totals["left"].as_u64(), totals["smaller"].as_u64()), (Some(0), Some(3)), "{totals}");
    fs::write(folder.join(".narrows.toml"), "[[hint]]\nfiles = '*'\nmode = 'slow'\n").unwrap();
    let output = run(folder, &["repack", "-q", "plain.nrw"]);
    assert_one_line_error(&output, 2);
    assert!(stderr(&output).contains(".narrows.toml: line 3: "), "{}", stderr(&output));
}

#[test]
fn the_budget_keeps_other_files_from_their_turn() {
    let home = home();
    pack(home.path(), "a", &sample(200_000, 1), &[]);
    let (files, totals) = json(home.path(), &["--budget", "0s", "."]);
    assert!(files.is_empty() && totals["complete"] == false, "{totals}");
    let (_, totals) = json(home.path(), &["--budget", "1h", "."]);
    assert!(totals["smaller"] == 1 && totals["complete"] == true, "{totals}");
}

#[test]
fn a_signal_ends_it_at_once_and_nothing_is_left_behind() {
    let home = home();
    let raw = sample(12 << 20, 1);
    let path = pack(home.path(), "a", &raw, &[]);
    let before = fs::read(&path).unwrap();
    for args in [&["repack", "a.nrw"][..], &["repack", "--idle", "a.nrw"]] {
        let child = narrows(home.path()).current_dir(home.path()).args(args).stderr(Stdio::piped()).spawn().unwrap();
        wait_until_signals_are_caught(&child);
        signal(&child, "-TERM");
        let output = finish(child);
        assert_eq!(output.status.signal(), Some(15), "{}", stderr(&output));
        assert!(fs::read(&path).unwrap() == before);
        assert_eq!(entries(home.path()).iter().filter(|p| p.is_file()).count(), 1, "{:?}", entries(home.path()));
    }
}

#[test]
fn it_may_be_killed_at_any_moment() {
    killed(12);
}

#[test]
#[ignore = "200 kills take a minute; 12 are made above, and `make test-full` runs this"]
fn it_may_be_killed_200_times() {
    killed(200);
}

fn killed(rounds: u32) {
    let home = home();
    let tree = home.path().join("tree");
    let raws: Vec<_> = (0..6).map(|i| sample(60_000 + 90_000 * i, i)).collect();
    let (mut killed, mut state) = (0, 88_172_645_463_325_252u64);
    while killed < rounds {
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir(&tree).unwrap();
        for (i, raw) in raws.iter().enumerate() {
            pack(&tree, &i.to_string(), raw, &[]);
        }
        let olds: Vec<_> = (0..raws.len()).map(|i| fs::read(tree.join(format!("{i}.nrw"))).unwrap()).collect();
        // How long an undisturbed run takes is not asked: a run that ends by itself does no harm.
        loop {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let mut child =
                narrows(home.path()).args(["repack", "-q"]).arg(&tree).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(state % 400_000));
            child.kill().unwrap();
            let status = child.wait().unwrap();
            for (i, (raw, old)) in raws.iter().zip(&olds).enumerate() {
                let path = tree.join(format!("{i}.nrw"));
                let now = fs::read(&path).unwrap();
                if now != *old {
                    assert!(now.len() < old.len());
                    let file = narrows_file::File::open(&now[..]).unwrap();
                    let mut found = vec![0; raw.len()];
                    assert_eq!(file.read_at(&mut found, 0).unwrap(), raw.len());
                    assert!(found == *raw, "{i} after {killed} kills");
                }
            }
            if status.signal().is_none() {
                break;
            }
            killed += 1;
            if killed >= rounds {
                break;
            }
        }
        let output = narrows(home.path()).args(["repack", "-q"]).arg(&tree).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let names: Vec<_> = entries(&tree);
        assert_eq!(names.len(), raws.len(), "nothing is left behind: {names:?}");
        let (_, totals) = json(home.path(), &["tree"]);
        assert_eq!(totals["before"].as_u64(), Some(raws.len() as u64), "{totals}");
    }
}
