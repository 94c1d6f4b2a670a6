//! `narrows oracle` from the command line: tables, JSON, schedule, page, cache, bad input, signals.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::calls::with_fatal;
use narrows_test::skip;
use serde_json::Value;

/// 700 KB of test data: text, numbers, random-looking bytes, and a tail shorter than a block.
fn data() -> Vec<u8> {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let words = ["link ", "block ", "of the ", "window ", "price ", "and\n"];
    let mut out: Vec<u8> = Vec::new();
    while out.len() < 300_000 {
        out.extend_from_slice(words[draw() as usize % words.len()].as_bytes());
    }
    while out.len() < 500_000 {
        out.extend_from_slice(&(draw() % 3000).to_le_bytes());
    }
    out.extend((0..200_001).map(|_| draw() as u8));
    out
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(place.at("data"), data()).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The oracle with a private cache, few methods and few cores.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
        command.arg("oracle").args(args).env("XDG_CACHE_HOME", self.at("cache")).current_dir(self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let methods = ["--methods", "store,constant,lz4,zstd:level=1,zstd:level=6", "--cores", "2"];
        self.command(&[&methods, args].concat()).output().unwrap()
    }

    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[&["--json"], args].concat())).unwrap()
    }

    fn cached(&self) -> Vec<PathBuf> {
        let list = fs::read_dir(self.at("cache/narrows/oracle"));
        list.map_or_else(|_| Vec::new(), |l| l.map(|e| e.unwrap().path()).collect())
    }
}

fn row<'a>(link: &'a Value, kind: &str) -> &'a Value {
    link["rows"].as_array().unwrap().iter().find(|r| r["kind"] == kind).unwrap()
}

#[test]
fn a_table_for_each_rate_has_every_row() {
    let place = Place::new();
    let text = place.good(&["--link", "1mbit,200mbit", "data"]);
    for words in ["1 Mbit/s ", "200 Mbit/s ", "lower bound", "best schedule, T*", "best fixed: ", "plain", "balance"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(text.matches("best single method by time").count(), 2);
}

#[test]
fn nothing_is_better_than_the_bound_and_the_second_time_is_remembered() {
    let place = Place::new();
    let args = ["--link", "1mbit,30mbit,2gbit", "--policy", "balance", "--policy", "fixed:zstd:level=6", "data"];
    let first = place.json(&args);
    assert_eq!(first["from_cache"], false);
    assert_eq!(first["raw_bytes"], data().len());
    for link in first["links"].as_array().unwrap() {
        let bound = row(link, "bound");
        let best = row(link, "schedule")["seconds"].as_f64().unwrap();
        for other in link["rows"].as_array().unwrap() {
            for figure in ["seconds", "wire_bytes", "cpu_s"] {
                // Byte counts are rounded to integers.
                let slack = if figure == "wire_bytes" { 1.0 } else { 1e-9 };
                let (a, b) = (other[figure].as_f64().unwrap(), bound[figure].as_f64().unwrap());
                assert!(a >= b - slack, "{figure}: {other} against {bound}");
            }
        }
        assert!(best <= row(link, "plain")["seconds"].as_f64().unwrap());
        assert_eq!(link["rows"].as_array().unwrap().iter().filter(|r| r["kind"] == "policy").count(), 2);
    }
    assert_eq!(place.cached().len(), 1);
    let mut second = place.json(&args);
    assert_eq!(second["from_cache"], true);
    second["from_cache"] = false.into();
    assert_eq!(first, second, "the same question has the same answer, to the last digit");
    assert_eq!(place.cached().len(), 1);

    // Garbage in the cache is measured again; other methods have their own cache file.
    fs::write(&place.cached()[0], "rubbish").unwrap();
    assert_eq!(place.json(&args)["from_cache"], false);
    place.good(&["--link", "1mbit", "--policy", "stall:min=2,max=2", "data"]);
    assert_eq!(place.cached().len(), 2);
}

#[test]
fn methods_that_need_no_measuring_are_enough() {
    let place = Place::new();
    for methods in ["store", "constant", "store,constant"] {
        let run = || {
            let args = ["--methods", methods, "--json", "--link", "1mbit", "--html", "page.html", "data"];
            let output = place.command(&args).output().unwrap();
            assert!(output.status.success(), "{methods}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let json = run();
        assert_eq!(json["methods"].as_array().unwrap().len(), 0);
        let wire_bytes = |kind: &str| row(&json["links"][0], kind)["wire_bytes"].as_u64().unwrap();
        assert!(wire_bytes("plain").abs_diff(wire_bytes("policy")) < 1000, "but for headers it is the same: {json}");
        assert_eq!(run()["from_cache"], true);
    }
}

/// Linked blocks have costs of their own: they are smaller, and no policy beats the bound with them.
#[test]
fn what_links_blocks_is_judged() {
    let place = Place::new();
    fs::write(place.at("linked.txt"), "32768 zstd:level=1\n32768 zstd:level=1 linked\n").unwrap();
    fs::write(place.at("plain.txt"), "32768 zstd:level=1\n").unwrap();
    let policies = ["fixed:zstd:level=1,link", "replay:linked.txt", "replay:plain.txt"];
    // Noise that comes again at a distance longer than a block and shorter than the history.
    let noise = &data()[600_000..640_000];
    fs::write(place.at("again"), noise.repeat(10)).unwrap();
    let args = policies.iter().flat_map(|p| ["--policy", p]).chain(["--link", "1mbit", "again"]);
    let json = place.json(&args.collect::<Vec<_>>());
    let rows = json["links"][0]["rows"].as_array().unwrap();
    let of = |name: &str, figure: &str| rows.iter().find(|r| r["name"] == name).unwrap()[figure].as_f64().unwrap();
    assert!(of("replay:linked.txt", "wire_bytes") < 0.6 * of("replay:plain.txt", "wire_bytes"), "{json}");
    for policy in policies {
        assert!(of(policy, "seconds") >= of("lower bound", "seconds") - 1e-9, "{policy}: {json}");
    }
}

#[test]
fn no_cache_remembers_nothing() {
    let place = Place::new();
    assert_eq!(place.json(&["--no-cache", "data"])["from_cache"], false);
    assert!(place.cached().is_empty());
}

#[test]
fn a_schedule_that_was_written_is_replayed() {
    let place = Place::new();
    place.good(&["--link", "50mbit", "--replay", "best.txt", "data"]);
    let schedule: narrows_classic::Schedule =
        narrows_classic::Schedule::parse(&fs::read_to_string(place.at("best.txt")).unwrap()).unwrap();
    assert_eq!(schedule.blocks().iter().map(|b| b.raw_len).sum::<usize>(), data().len());
    let again = place.json(&["--link", "50mbit", "--policy", "replay:best.txt", "data"]);
    let link = &again["links"][0];
    let (best, replayed) = (row(link, "schedule"), row(link, "policy"));
    let share = best["wire_bytes"].as_f64().unwrap() / replayed["wire_bytes"].as_f64().unwrap();
    assert!((0.98..1.02).contains(&share), "{best} against {replayed}");
    // The schedule also controls a real flow.
    let pipe = |args: &[&str]| {
        let narrows = Command::new(env!("CARGO_BIN_EXE_narrows"))
            .arg("pipe")
            .args(args)
            .current_dir(place.folder.path())
            .status();
        assert!(narrows.unwrap().success());
    };
    pipe(&["-q", "--policy", "replay:best.txt", "data", "-o", "data.nrw"]);
    pipe(&["-q", "-d", "data.nrw", "-o", "back"]);
    assert_eq!(fs::read(place.at("back")).unwrap(), data());
    assert_eq!(place.run(&["--link", "1mbit,2mbit", "--replay", "x", "data"]).status.code(), Some(2));
}

#[test]
fn the_page_is_whole_and_needs_nothing_from_elsewhere() {
    let place = Place::new();
    place.good(&["--link", "50mbit", "--html", "page.html", "data"]);
    let page = fs::read_to_string(place.at("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert_well_formed(page.strip_prefix("<!DOCTYPE html>\n").unwrap());
    assert_eq!(page.matches("<svg ").count(), 3);
    assert_eq!(page.matches("<figcaption>").count(), 3);
    for words in ["MB/s", "Ratio", "Position in the data, MB", "Link rate, Mbit/s", "balance", "zstd:level=6"] {
        assert!(page.contains(words), "{words}");
    }
    for bad in ["<script", "src=", "href=", "url(", "@import", "NaN", "inf "] {
        assert!(!page.contains(bad), "{bad}");
    }
}

/// Asserts that every tag is closed, in order.
fn assert_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn folders_and_stdin_are_data_too() {
    let place = Place::new();
    fs::create_dir(place.at("folder")).unwrap();
    fs::write(place.at("folder/1"), &data()[..300_000]).unwrap();
    fs::write(place.at("folder/2"), &data()[300_000..]).unwrap();
    let from_folder = place.json(&["--link", "1mbit", "folder"]);
    let mut whole = place.json(&["--link", "1mbit", "data"]);
    assert_eq!(whole["from_cache"], true, "it is the content that counts");
    whole["path"] = "folder".into();
    whole["from_cache"] = false.into();
    assert_eq!(whole, from_folder);

    let stdin = fs::File::open(place.at("data")).unwrap();
    let cut = place.command(&["--methods", "lz4", "--max-len", "10K", "--json", "-"]).stdin(stdin).output().unwrap();
    let json: Value = serde_json::from_slice(&cut.stdout).unwrap();
    assert_eq!((json["raw_bytes"].as_u64(), json["is_cut"].as_bool()), (Some(10 << 10), Some(true)));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("only the first 10.0 KiB"));
}

#[test]
fn bad_input_is_one_line_and_a_status() {
    let place = Place::new();
    fs::write(place.at("empty"), "").unwrap();
    fs::create_dir(place.at("hollow")).unwrap();
    for path in ["empty", "hollow", "none"] {
        let output = place.run(&[path]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), words.lines().count()), (Some(1), 1), "{path}: {words}");
        assert!(words.contains(path), "{words}");
    }
    for bad in [
        &["--link", "6mbyte"][..],
        &["--link", "0"],
        &["--link", "-5mbit"],
        &["--link", "nanmbit"],
        &["--cores", "0"],
        &["--cores", "100000"],
        &["--methods", "zip"],
        &["--policy", "what"],
        &["--max-len", "0"],
    ] {
        let output = place.command(&[bad, &["data"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(place.cached().is_empty());
}

#[test]
fn one_byte_and_zeros_are_answered() {
    let place = Place::new();
    fs::write(place.at("one"), "x").unwrap();
    fs::write(place.at("zeros"), vec![0; 600_000]).unwrap();
    place.good(&["--link", "1mbit", "--html", "one.html", "one"]);
    let zeros = place.json(&["--link", "1mbit", "zeros"]);
    let best = row(&zeros["links"][0], "schedule");
    assert!(best["wire_bytes"].as_u64().unwrap() < 1000, "{best}");
}

#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let place = Place::new();
    // Long enough that it is still measuring: xz of 24 MB takes many seconds.
    let noise: Vec<u8> = data().iter().cycle().take(24 << 20).copied().collect();
    fs::write(place.at("long"), noise).unwrap();
    for signal in ["-TERM", "-KILL"] {
        let args =
            ["--methods", "xz,zstd:level=19", "--html", "page.html", "--replay", "r.txt", "--link", "1mbit", "long"];
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        crate::common::signal(&child, signal);
        assert!(!child.wait().unwrap().success());
        assert!(place.cached().is_empty());
        assert_eq!(names(place.folder.path()), ["data", "long"]);
    }
}

/// Killed just before the rename, a moment that a timed test would not hit.
#[test]
fn a_run_that_is_killed_while_it_writes_leaves_nothing_or_what_the_next_one_removes() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let args = ["--methods", "lz4", "--link", "50mbit", "--replay", "r.txt", "--html", "page.html"];
        let mut command = place.command(&[&args, more, &["data"]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().signal()
    };
    for more in [&[][..], &["--no-cache"]] {
        let Some(signal) = with_fatal(&[libc::SYS_linkat], || run(more)) else { return };
        if signal.is_none() {
            return skip("this file system has no nameless files");
        }
        assert_eq!(signal, Some(libc::SIGSYS));
        assert!(place.cached().is_empty());
        assert!(names(place.folder.path()).iter().all(|n| n == "data" || n == "cache"));
    }
    assert_eq!(run(&["--no-cache"]), None);
    let first = fs::read(place.at("r.txt")).unwrap();
    // An existing file is replaced, which briefly needs a second name.
    let renames = [libc::SYS_renameat, libc::SYS_renameat2];
    #[cfg(target_arch = "x86_64")]
    let renames = [&renames[..], &[libc::SYS_rename]].concat();
    assert_eq!(with_fatal(&renames, || run(&["--no-cache"])), Some(Some(libc::SIGSYS)));
    assert_eq!(fs::read(place.at("r.txt")).unwrap(), first);
    assert!(place.at(".r.txt.narrows-part").exists(), "the test meets the moment");
    assert_eq!(run(&["--no-cache"]), None);
    assert!(names(place.folder.path()).iter().all(|n| ["cache", "data", "page.html", "r.txt"].contains(&n.as_str())));
}

fn names(folder: &Path) -> Vec<String> {
    let list = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = list.collect();
    names.sort();
    names
}

/// What takes long gives an estimate at once, and what was measured when its time is over.
#[test]
fn data_that_takes_long_has_an_estimate_and_an_end() {
    let place = Place::new();
    let long = data().repeat(30);
    fs::write(place.at("long"), &long).unwrap();
    let run = |args: &[&str]| {
        let few = ["--methods", "store,lz4", "--cores", "2", "--link", "10mbit", "--policy", "fixed:lz4", "long"];
        let output = place.command(&[&few, args].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (table, said) = run(&["--time", "0.001"]);
    let estimate = said.lines().next().unwrap();
    assert!(estimate.contains("first estimate, from 128.0 KiB: 10 Mbit/s: plain "), "{said}");
    assert!(said.contains("--time 0 measures all"), "{said}");
    assert!(table.starts_with("long: 20.0 MiB, by "), "{table}");
    let json: Value = serde_json::from_str(&run(&["--time", "0.001", "--json"]).0).unwrap();
    let measured = json["measured_bytes"].as_u64().unwrap();
    assert_eq!(json["raw_bytes"], long.len());
    assert!((1..long.len() as u64).contains(&measured), "{json}");
    assert!(place.cached().is_empty(), "a part is not kept");
    // The rest is taken to be like it: the same kinds of data in the same shares.
    let wire_bytes = |json: &Value| row(&json["links"][0], "policy")["wire_bytes"].as_f64().unwrap();
    let part = wire_bytes(&json);
    assert!(part > long.len() as f64 / 10.0 && part <= long.len() as f64, "{part}");
    let (all, said) = run(&["--time", "0", "--json"]);
    let json: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(json["measured_bytes"], long.len());
    assert!(said.contains("first estimate") && !said.contains("--time"), "{said}");
    assert_eq!(place.cached().len(), 1);
    assert!(run(&["--quiet", "--no-cache"]).1.is_empty());
    for device in ["/dev/zero", "/dev/null"] {
        let output = place.run(&[device]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("it is a device"), "{device}");
    }
    let zero = fs::File::open("/dev/zero").unwrap();
    let output = place.command(&["--max-len", "1M", "-"]).stdin(zero).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(place.run(&["--time", "5", "--replay", "x", "--link", "1mbit", "data"]).status.code(), Some(2));
}
