//! Packs in object stores, and objects that are recompressed, with a real S3-compatible server.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;

use crate::common::copies::{make_tree, snapshot, unlock};
use crate::common::store::{Bucket, Fault, Request};
use crate::common::view::mount;
use crate::common::{assert_one_line_error, code, finish_reading, random, stderr, text};
use narrows_pack::Pack;

fn run(bucket: &Bucket, args: &[&str]) -> Output {
    finish_reading(bucket.narrows(args).spawn().unwrap())
}

#[track_caller]
fn good(bucket: &Bucket, args: &[&str]) -> String {
    let output = run(bucket, args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_tree_goes_into_a_pack_of_a_store_and_comes_back() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (tree, url) = (dir.path().join("tree"), bucket.url("x.nrw"));
    make_tree(&tree);
    let before = snapshot(&tree);
    good(&bucket, &["pack", path(&tree), "-o", &url]);
    // Another one is refused, and the first one is kept.
    let stored = bucket.get("x.nrw").unwrap();
    assert_one_line_error(&run(&bucket, &["pack", path(&tree), "-o", &url]), 1);
    assert!(bucket.get("x.nrw").unwrap() == stored);
    good(&bucket, &["pack", path(&tree), "-f", "-o", &url]);
    let (all, some) = (dir.path().join("all"), dir.path().join("some"));
    [&all, &some].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    good(&bucket, &["unpack", &url, "-C", path(&all)]);
    assert_eq!(snapshot(&all.join("tree")), before);
    good(&bucket, &["unpack", &url, "tree", "-C", path(&some)]);
    assert_eq!(snapshot(&some.join("tree")), before);
    let local = dir.path().join("x.nrw");
    fs::write(&local, bucket.get("x.nrw").unwrap()).unwrap();
    assert_eq!(good(&bucket, &["list", "--json", &url]), good(&bucket, &["list", "--json", path(&local)]));
    // A copy of the object is the pack, not what is in its streams.
    let copy = dir.path().join("copy.nrw");
    good(&bucket, &["cp", &url, path(&copy)]);
    assert!(fs::read(&copy).unwrap() == fs::read(&local).unwrap());
    if let Some(mounted) = mount(&mut bucket.narrows(&[]), Path::new(&url), &dir.path().join("view")) {
        let words = |root: &Path| fs::read_dir(root).unwrap().count();
        assert_eq!(words(&dir.path().join("view/tree")), words(&tree));
        mounted.unmount();
    }
    [&tree, &all.join("tree"), &some.join("tree")].iter().for_each(|p| unlock(p));
    assert_one_line_error(&run(&bucket, &["unpack", &bucket.url("nothing.nrw")]), 1);
    assert_one_line_error(&run(&bucket, &["list", &bucket.url("nothing.nrw")]), 1);
    assert_one_line_error(&run(&bucket, &["pack", &url, "-o", path(&copy)]), 2);
}

/// A long pack: its parts are whole frames of both streams, its end comes last, one member of it is read
/// by few requests.
#[test]
fn parts_of_a_pack_are_whole_frames_and_one_member_needs_few_requests() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for (i, content) in random(30_000_000).chunks(2_000_000).enumerate() {
        fs::write(tree.join(format!("{i:02}")), content).unwrap();
    }
    fs::write(tree.join("words"), text(10_000)).unwrap();
    let url = bucket.url("long.nrw");
    bucket.requests();
    good(&bucket, &["pack", path(&tree), "-o", &url]);
    let seen = bucket.requests();
    let number = |r: &Request| r.target.split_once("partNumber=")?.1.split('&').next()?.parse::<u32>().ok();
    let mut parts: Vec<_> = seen.iter().filter_map(|r| Some((number(r)?, r.body_len as u64))).collect();
    parts.sort_unstable();
    assert!(parts.len() >= 3, "{parts:?}");
    assert!(seen.last().is_some_and(|r| r.method == "POST"), "the upload is completed last: {seen:?}");
    let stored = narrows_file::File::open(bucket.get("long.nrw").unwrap()).unwrap();
    let ends: Vec<u64> = stored
        .members()
        .iter()
        .flat_map(|m| (0..m.blocks()).map(|i| m.wire_begin + m.entry(i).unwrap().wire_end).chain([m.wire_end()]))
        .collect();
    let mut at = 0;
    for (_, len) in &parts[..parts.len() - 1] {
        at += len;
        assert!(ends.contains(&at), "a part ends at {at}, within a frame");
    }
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    bucket.requests();
    good(&bucket, &["unpack", &url, "tree/words", "-C", path(&to)]);
    let seen = bucket.requests();
    assert!(seen.len() <= 4, "{seen:?}");
    assert!(fs::read(to.join("tree/words")).unwrap() == text(10_000));
    // Whole: several ranges are on their way at once, each about the same version.
    bucket.requests();
    good(&bucket, &["unpack", &url, "-f", "-C", path(&to)]);
    let seen = bucket.requests();
    assert!(seen.len() > 5 && seen[1..].iter().all(|r| r.header("if-match").is_some()), "{seen:?}");
    assert!(fs::read(to.join("tree/07")).unwrap() == fs::read(tree.join("07")).unwrap());
}

/// A pack whose upload fails leaves nothing, under its name and beside it.
#[test]
fn a_pack_that_cannot_be_written_is_not_there() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("noise"), random(20 << 20)).unwrap();
    bucket.faults(|_, r| match r.target.contains("partNumber=2") {
        true => Fault::Status(403, "<Error><Code>AccessDenied</Code></Error>"),
        false => Fault::Pass,
    });
    let output = run(&bucket, &["pack", path(&dir.path().join("noise")), "-o", &bucket.url("x.nrw"), "-q"]);
    assert_one_line_error(&output, 1);
    bucket.faults(|_, _| Fault::Pass);
    assert!(bucket.keys().is_empty() && bucket.unfinished().is_empty());
}

fn repack(bucket: &Bucket, args: &[&str]) -> (Vec<serde_json::Value>, serde_json::Value) {
    let out = good(bucket, &[&["repack", "--json"], args].concat());
    let mut lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let totals = lines.pop().unwrap();
    (lines, totals)
}

fn metadata(bucket: &Bucket, key: &str) -> Vec<(String, String)> {
    let store = narrows_object::Options {
        endpoint: Some(bucket.endpoint.clone()),
        key: Some(("test".into(), "test".into())),
        ..narrows_object::Options::default()
    };
    let url = narrows_object::Url::parse(bucket.url(key).as_bytes()).unwrap().unwrap();
    let head = narrows_object::Store::open(&url, &store).unwrap().head(key).unwrap().unwrap();
    head.metadata.into_iter().filter(|(name, _)| name != "narrows-upload").collect()
}

#[test]
fn objects_below_a_key_get_smaller_and_are_done_once() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    let words = text(600_000);
    fs::write(tree.join("a"), &words).unwrap();
    fs::write(tree.join("deep/b"), &words[1000..]).unwrap();
    fs::write(tree.join("deep/noise"), random(100_000)).unwrap();
    good(&bucket, &["cp", "-r", path(&tree), &bucket.url("t")]);
    good(&bucket, &["pack", path(&tree), "-o", &bucket.url("t/p.nrw")]);
    good(&bucket, &["cp", "--plain", path(&tree.join("a")), &bucket.url("t/plain.nrw")]);
    bucket.put("t/other", b"of another program");
    bucket.put("u/away.nrw", b"not below the key");
    let keys = ["t/tree/a.nrw", "t/tree/deep/b.nrw", "t/tree/deep/noise.nrw", "t/p.nrw"];
    let kept: Vec<_> = keys.iter().map(|key| metadata(&bucket, key)).collect();
    let old: Vec<_> = keys.iter().map(|key| bucket.get(key).unwrap()).collect();
    let (_, planned) = repack(&bucket, &["--dry-run", &bucket.url("t")]);
    assert_eq!((planned["would"].as_u64(), planned["left"].as_u64()), (Some(4), Some(1)), "{planned}");
    assert!(keys.iter().zip(&old).all(|(key, old)| bucket.get(key).unwrap() == *old), "a dry run writes nothing");
    bucket.requests();
    let (_, totals) = repack(&bucket, &[&bucket.url("t")]);
    let count = |what: &str| totals[what].as_u64().unwrap();
    assert_eq!(
        (count("smaller"), count("no_gain"), count("left"), count("others"), count("failed")),
        (3, 1, 1, 1, 0),
        "{totals}"
    );
    let puts: Vec<Request> = bucket.requests().into_iter().filter(|r| r.method == "PUT").collect();
    assert!(puts.len() == 4 && puts.iter().all(|r| r.header("if-match").is_some()), "{puts:?}");
    let now: Vec<_> = keys.iter().map(|key| metadata(&bucket, key)).collect();
    assert_eq!(now, kept);
    for (key, raw) in [(keys[0], &words[..]), (keys[1], &words[1000..])] {
        assert!(run(&bucket, &["cat", &bucket.url(key)]).stdout == raw, "{key}");
    }
    let pack = Pack::open(bucket.get("t/p.nrw").unwrap()).unwrap();
    assert!(pack.find(b"tree/deep/b").unwrap().is_some());
    assert!(bucket.get("t/p.nrw").unwrap().len() < old[3].len());
    // A stream is not read from its end, so it is only told.
    for (args, status, told) in [
        (&["cat"][..], 0, "begins as a pack does"),
        (&["-dc"], 0, "begins as a pack does"),
        (&["cat", "--range", "0-9"], 2, "it is a pack"),
    ] {
        let output = run(&bucket, &[args, &[&bucket.url("t/p.nrw")]].concat());
        assert_eq!((code(&output), output.stdout.is_empty()), (status, status == 2), "{args:?}");
        assert!(stderr(&output).contains(told), "{args:?}: {}", stderr(&output));
    }
    // Again: ends are read, nothing is written.
    bucket.requests();
    let (_, totals) = repack(&bucket, &[&bucket.url("t/")]);
    assert_eq!((totals["before"].as_u64(), totals["smaller"].as_u64()), (Some(4), Some(0)), "{totals}");
    let seen = bucket.requests();
    assert!(seen.iter().all(|r| r.method == "GET"), "{seen:?}");
    assert_eq!(seen.iter().filter(|r| r.header("range").is_some()).count(), 5, "one for each object: {seen:?}");
    assert_eq!(bucket.get("u/away.nrw").unwrap(), b"not below the key");
    assert_one_line_error(&run(&bucket, &["repack", "-q", &bucket.url("nowhere")]), 1);
}

#[test]
fn an_object_that_is_replaced_meanwhile_is_left_and_told() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, text(600_000)).unwrap();
    good(&bucket, &["cp", path(&file), &bucket.url("a")]);
    good(&bucket, &["cp", path(&file), &bucket.url("b")]);
    // Somebody else writes between the last read and the write.
    let newer = Mutex::new(Some(()));
    let (server, name) = (bucket.url("a.nrw"), bucket.name.clone());
    let other = bucket.other();
    bucket.faults(move |_, r| {
        if r.method == "PUT" && r.target.contains("a.nrw") && newer.lock().unwrap().take().is_some() {
            other.put("a.nrw", b"newer");
        }
        Fault::Pass
    });
    let output = run(&bucket, &["repack", &bucket.url("")]);
    assert_eq!(code(&output), 1, "{server} {name}");
    let said = stderr(&output);
    assert!(said.contains("a.nrw") && said.contains("changed by somebody else meanwhile"), "{said}");
    assert!(said.contains("1 smaller") && said.contains("1 failed"), "{said}");
    assert_eq!(bucket.get("a.nrw").unwrap(), b"newer");
}

#[test]
fn damaged_objects_are_left_and_told() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, text(600_000)).unwrap();
    good(&bucket, &["cp", path(&file), &bucket.url("a")]);
    let mut bytes = bucket.get("a.nrw").unwrap();
    bytes[20_000] ^= 1;
    bucket.put("bad.nrw", &bytes);
    let output = run(&bucket, &["repack", "-q", &bucket.url("bad.nrw")]);
    assert_one_line_error(&output, 3);
    assert!(bucket.get("bad.nrw").unwrap() == bytes);
    bucket.put("words", b"no stream of narrows");
    assert_eq!(code(&run(&bucket, &["repack", &bucket.url("words")])), 3);
    assert_eq!(bucket.get("words").unwrap(), b"no stream of narrows");
}

/// Of files that become objects, each follows its own hint.
#[test]
fn files_follow_their_hints() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    let words = text(300_000);
    for name in ["a", "b.jpg", "deep/c.jpg"] {
        fs::write(tree.join(name), &words).unwrap();
    }
    fs::write(tree.join(".narrows.toml"), "[[hint]]\nfiles = \"*.jpg\"\nnever = true\n").unwrap();
    good(&bucket, &["cp", "-r", &format!("{}/", path(&tree)), &bucket.url("t")]);
    let len = |key: &str| bucket.get(key).unwrap().len();
    assert!(len("t/a.nrw") < words.len() / 2);
    assert!(len("t/b.jpg.nrw") > words.len() && len("t/deep/c.jpg.nrw") > words.len());
    // The command line counts, and a mode takes a `never` back.
    good(&bucket, &["cp", "-r", "--mode", "fast", &format!("{}/", path(&tree)), &bucket.url("u")]);
    assert!(len("u/deep/c.jpg.nrw") < words.len() / 2);
    let output =
        run(&bucket, &["cp", "--mode", "fast", "--policy", "balance", path(&tree.join("a")), &bucket.url("v")]);
    assert_one_line_error(&output, 2);
}
