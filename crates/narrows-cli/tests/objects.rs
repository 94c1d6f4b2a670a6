//! Objects: `cat`, `list`, `check`, `narrows FILE` and `cp` with a real S3-compatible server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use crate::common::calls::{Failing, with_failing};
use crate::common::store::{Bucket, Fault, Request};
use crate::common::{assert_one_line_error, code, finish, finish_reading, random, stderr, text};
use narrows_object::{Condition, CreateOptions, ObjectFile, ObjectWriter, Options, Store, Url};

fn run(bucket: &Bucket, args: &[&str]) -> Output {
    finish_reading(bucket.narrows(args).spawn().unwrap())
}

#[track_caller]
fn good(bucket: &Bucket, args: &[&str]) -> Output {
    let output = run(bucket, args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    output
}

fn set_mtime(path: &Path, seconds: u64, nanos: u32) {
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(seconds, nanos);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// The goal: 2 round trips for the first byte of any offset. One finds length and index, one reads.
#[test]
fn any_byte_costs_two_requests() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    let raw = text(24 << 20);
    fs::write(&file, &raw).unwrap();
    for mode in ["fast", "balanced", "archive"] {
        let url = bucket.url(&format!("{mode}.nrw"));
        // Half of it, since archives of 24 MB take long to make.
        let len = if mode == "archive" { 5 << 20 } else { raw.len() };
        fs::write(&file, &raw[..len]).unwrap();
        good(&bucket, &["--mode", mode, file.to_str().unwrap(), "-o", &url]);
        for at in [0, 1, len / 3, len / 2, len * 4 / 5, len - 1] {
            bucket.requests();
            let range = format!("{at}-{at}");
            let output = good(&bucket, &["cat", "--range", &range, &url]);
            assert_eq!(output.stdout, &raw[at..=at], "{mode} {range}");
            let requests = bucket.requests();
            assert!(requests.len() <= 2 && requests.iter().all(|r| r.method == "GET"), "{mode} {range}: {requests:?}");
            // All but the first are about the same object.
            assert!(requests[1..].iter().all(|r| r.header("if-match").is_some()), "{requests:?}");
        }
        bucket.requests();
        let output = good(&bucket, &["list", "--json", &url]);
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["uncompressed"], &row["index"]), (&len.into(), &"stored".into()));
        // The end has the index. Whether it is a pack is said by the last bytes of the content, whose run
        // the load of the machine makes long or short: longer than the end costs one more request.
        assert!(bucket.requests().len() <= 2, "a list needs the index and the last run only");
    }
}

#[test]
fn objects_are_read_as_files_are() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    let raw = [text(9 << 20), random(3 << 20)].concat();
    fs::write(&file, &raw).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    set_mtime(&file, 1_234_567_890, 5_000_000);
    let (name, url) = (file.to_str().unwrap(), bucket.url("dir/data.nrw"));
    good(&bucket, &[name, "-o", &url]);
    assert_one_line_error(&run(&bucket, &[name, "-o", &url]), 1);
    good(&bucket, &["-f", name, "-o", &url]);
    assert_eq!(good(&bucket, &["cat", &url]).stdout, raw);
    assert_eq!(good(&bucket, &["cat", "--range", "-5", &url]).stdout, &raw[raw.len() - 5..]);
    assert_eq!(good(&bucket, &["-dc", &url]).stdout, raw);
    good(&bucket, &["-t", &url]);
    let said = good(&bucket, &["check", &url]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("good, 12582912 bytes"));
    let back = dir.path().join("back");
    good(&bucket, &["-d", &url, "-o", back.to_str().unwrap()]);
    let data = back.metadata().unwrap();
    assert_eq!((data.mode() & 0o7777, data.mtime(), data.mtime_nsec()), (0o640, 1_234_567_890, 5_000_000));
    assert_eq!(fs::read(&back).unwrap(), raw);
    assert_one_line_error(&run(&bucket, &["-d", &url, "-o", back.to_str().unwrap()]), 1);
    // What was stored is a file as any other.
    fs::write(dir.path().join("x.nrw"), bucket.get("dir/data.nrw").unwrap()).unwrap();
    let local = dir.path().join("x.nrw");
    assert_eq!(good(&bucket, &["cat", local.to_str().unwrap()]).stdout, raw);
    // Other formats are read too, and damage has its status.
    good(&bucket, &["--format", "zstd", name, "-o", &bucket.url("data.zst")]);
    assert_eq!(good(&bucket, &["cat", &bucket.url("data.zst")]).stdout, raw);
    assert_eq!(
        good(&bucket, &["cat", "--range", "5000000-5000009", &bucket.url("data.zst")]).stdout,
        &raw[5_000_000..5_000_010]
    );
    let mut bytes = bucket.get("dir/data.nrw").unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    bucket.put("bad.nrw", &bytes);
    assert_eq!(code(&run(&bucket, &["check", &bucket.url("bad.nrw")])), 3);
    assert_eq!(code(&run(&bucket, &["cat", &bucket.url("bad.nrw")])), 3);
    bucket.put("empty", b"");
    bucket.put("words", b"no stream");
    for key in ["empty", "words"] {
        for command in ["cat", "list", "check"] {
            let output = run(&bucket, &[command, &bucket.url(key)]);
            assert_one_line_error(&output, 3);
        }
    }
}

/// A tree goes to a store and comes back; a second copy sends what changed.
#[test]
fn trees_go_and_come_back() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    fs::create_dir(tree.join("hollow")).unwrap();
    let files = [
        ("a.txt", text(300_000)),
        ("sub/r.bin", random(200_000)),
        ("sub/deep/empty", Vec::new()),
        ("sub/ä b#%+.nrw", text(9)),
    ];
    for (i, (name, raw)) in files.iter().enumerate() {
        fs::write(tree.join(name), raw).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o600 + i as u32)).unwrap();
        set_mtime(&tree.join(name), 1_000_000_000 + i as u64, 7 * i as u32);
    }
    symlink("a.txt", tree.join("link")).unwrap();
    fs::hard_link(tree.join("a.txt"), tree.join("same")).unwrap();
    let (tree_name, url) = (tree.to_str().unwrap().to_owned(), bucket.url("backup"));
    let put = |args: &[&str]| {
        let all = [&["cp", "-r", "--json"], args, &[&tree_name, &url]].concat();
        let output = good(&bucket, &all);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let said = put(&[]);
    assert_eq!((said["files"].as_u64(), said["files_failed"].as_u64()), (Some(5), Some(0)), "{said}");
    let lost = said["not_kept"].as_str().unwrap();
    assert_eq!(lost, "empty folders of 1, hard links of 1, symbolic links of 1");
    let mut keys = bucket.keys();
    keys.sort();
    assert_eq!(keys.len(), 5);
    assert!(keys.contains(&"backup/tree/sub/deep/empty.nrw".to_owned()), "{keys:?}");
    assert!(bucket.get("backup/tree/a.txt.nrw").unwrap().len() < 150_000, "it is compressed");

    bucket.requests();
    let said = put(&[]);
    assert_eq!((said["files"].as_u64(), said["files_same"].as_u64()), (Some(0), Some(5)), "{said}");
    assert!(bucket.requests().iter().all(|r| r.method != "PUT" && r.method != "POST"), "nothing is sent again");
    fs::write(tree.join("sub/r.bin"), b"new").unwrap();
    fs::remove_file(tree.join("same")).unwrap();
    assert_eq!(put(&["-n"])["files"].as_u64(), Some(1));
    assert_eq!(put(&["-n", "--delete"])["deleted"].as_u64(), Some(1));
    assert_eq!(bucket.keys().len(), 5, "a dry run changes nothing");
    assert_eq!(put(&["--exclude", "*.bin"])["files"].as_u64(), Some(0));
    bucket.put("backup/tree/keep.me", b"x");
    bucket.put("backup/beside", b"x");
    let said = put(&["--delete", "--exclude", "keep.*"]);
    assert_eq!((said["files"].as_u64(), said["deleted"].as_u64()), (Some(1), Some(1)), "{said}");
    let mut keys = bucket.keys();
    keys.sort();
    assert_eq!(keys.len(), 6, "{keys:?}");
    assert!(!keys.iter().any(|key| key.contains("same")) && keys.contains(&"backup/beside".to_owned()));

    let back = dir.path().join("back");
    let back_name = back.to_str().unwrap().to_owned();
    let get = |args: &[&str]| {
        let source = bucket.url("backup/tree/");
        let all = [&["cp", "-r", "--json"], args, &[&source, &back_name]].concat();
        let output = good(&bucket, &all);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(get(&[])["files"].as_u64(), Some(5));
    for (name, _) in &files {
        let (a, b) = (tree.join(name).metadata().unwrap(), back.join(name).metadata().unwrap());
        assert_eq!(fs::read(tree.join(name)).unwrap(), fs::read(back.join(name)).unwrap(), "{name}");
        assert_eq!((a.mode(), a.mtime(), a.mtime_nsec()), (b.mode(), b.mtime(), b.mtime_nsec()), "{name}");
    }
    assert_eq!(fs::read(back.join("keep.me")).unwrap(), b"x", "an object of another program comes as it is");
    let said = get(&[]);
    assert_eq!((said["files"].as_u64(), said["files_same"].as_u64()), (Some(0), Some(5)), "{said}");
    fs::write(back.join("extra"), "x").unwrap();
    fs::write(back.join("a.txt"), "changed").unwrap();
    let said = get(&["--delete"]);
    assert_eq!((said["files"].as_u64(), said["deleted"].as_u64()), (Some(1), Some(1)), "{said}");
    assert_eq!(fs::read(back.join("a.txt")).unwrap(), files[0].1);
}

/// What is left out of a copy is not removed either, whatever name it has there.
#[test]
fn files_of_objects_that_are_left_out_stay() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    ["a", "b.txt"].iter().for_each(|name| fs::write(from.join(name), name).unwrap());
    good(&bucket, &["cp", "-r", &format!("{}/", from.display()), &bucket.url("t/")]);
    let to = to.to_str().unwrap();
    good(&bucket, &["cp", "-r", &bucket.url("t/"), to]);
    fs::write(Path::new(to).join("other"), "other").unwrap();
    for pattern in ["*.nrw", "a.nrw", "a"] {
        good(&bucket, &["cp", "-r", "--delete", "--exclude", pattern, &bucket.url("t/"), to]);
        assert!(["a", "b.txt"].iter().all(|name| Path::new(to).join(name).exists()), "{pattern}");
    }
    assert!(!Path::new(to).join("other").exists());
}

/// The names of files are on the disk too.
#[test]
fn names_that_cannot_be_flushed_are_told_of() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    bucket.put("t/a", b"a");
    for (fsync, is_good) in [("each", false), ("batch", false), ("none", true)] {
        let to = dir.path().join(fsync);
        let url = bucket.url("t/");
        let get = || run(&bucket, &["cp", "-r", "--fsync", fsync, &url, to.to_str().unwrap()]);
        let Some(output) = with_failing(&[Failing::All(libc::SYS_syncfs)], libc::EIO, get) else { return };
        assert_eq!(code(&output) == 0, is_good, "{fsync}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("cannot flush the names"), !is_good, "{}", stderr(&output));
    }
}

#[test]
fn single_files_have_the_names_that_are_given() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let raw = text(100_000);
    fs::write(at("f"), &raw).unwrap();
    good(&bucket, &["cp", &at("f"), &bucket.url("x")]);
    good(&bucket, &["cp", &at("f"), &bucket.url("y.nrw")]);
    good(&bucket, &["cp", &at("f"), &bucket.url("dir/")]);
    good(&bucket, &["cp", "--plain", &at("f"), &bucket.url("p")]);
    let mut keys = bucket.keys();
    keys.sort();
    assert_eq!(keys, ["dir/f.nrw", "p", "x.nrw", "y.nrw.nrw"]);
    assert_eq!(bucket.get("p").unwrap(), raw);
    for (key, name, to) in [("x", "x", "1/"), ("y.nrw", "y.nrw", "2/"), ("p", "other", "3/other"), ("dir/f", "f", "4/")]
    {
        let target = at(to);
        fs::create_dir(Path::new(&target).ancestors().find(|p| p.parent() == Some(dir.path())).unwrap()).unwrap();
        good(&bucket, &["cp", &bucket.url(key), &target]);
        let found = if to.ends_with('/') { format!("{target}{name}") } else { target };
        assert_eq!(fs::read(&found).unwrap(), raw, "{key}");
    }
    let piped = crate::common::store_filter(&mut bucket.narrows(&["cp", "-", &bucket.url("piped")]), &raw);
    assert_eq!(code(&piped), 0, "{}", stderr(&piped));
    assert_eq!(good(&bucket, &["cp", &bucket.url("piped"), "-"]).stdout, raw);
    assert_eq!(good(&bucket, &["cat", &bucket.url("piped.nrw")]).stdout, raw);
    assert_one_line_error(&run(&bucket, &["cp", &bucket.url("dir/"), &at("5")]), 2);
    assert_one_line_error(&run(&bucket, &["cp", &bucket.url("x"), &bucket.url("z")]), 2);
    assert_one_line_error(&run(&bucket, &["cp", &bucket.url("none"), &at("5")]), 1);
}

/// A name stands for one file, whatever it ends in; where it would stand for two, nobody guesses.
#[test]
fn no_name_stands_for_two_files() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("one"), "one").unwrap();
    // Of another length: equal ones of the same moment are taken for the same.
    fs::write(at("two"), "the other").unwrap();
    good(&bucket, &["cp", &at("one"), &bucket.url("x")]);
    good(&bucket, &["cp", &at("two"), &bucket.url("x.nrw")]);
    let piped = crate::common::store_filter(&mut bucket.narrows(&["cp", "-", &bucket.url("piped.nrw")]), b"piped");
    assert_eq!(code(&piped), 0, "{}", stderr(&piped));
    let mut keys = bucket.keys();
    keys.sort();
    assert_eq!(keys, ["piped.nrw.nrw", "x.nrw", "x.nrw.nrw"]);
    for (name, raw) in [("x", "one"), ("x.nrw", "the other"), ("x.nrw.nrw", "the other"), ("piped.nrw", "piped")] {
        assert_eq!(good(&bucket, &["cp", &bucket.url(name), "-"]).stdout, raw.as_bytes(), "{name}");
        good(&bucket, &["cp", &bucket.url(name), &at("back")]);
        assert_eq!(fs::read(at("back")).unwrap(), raw.as_bytes(), "{name}");
    }
    good(&bucket, &["cp", "--plain", &at("two"), &bucket.url("x")]);
    for target in ["-", &at("back")] {
        let output = run(&bucket, &["cp", &bucket.url("x"), target]);
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("x.nrw are both there"), "{}", stderr(&output));
    }
    // What has the suffix and is of another program is not decoded by chance.
    bucket.put("other.nrw", b"other");
    assert_one_line_error(&run(&bucket, &["cp", &bucket.url("other"), "-"]), 1);
    assert_eq!(good(&bucket, &["cp", &bucket.url("other.nrw"), "-"]).stdout, b"other");
    // The longest names of files have longer keys.
    let (long, tree) = ("n".repeat(255), dir.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(&long), "long").unwrap();
    good(&bucket, &["cp", "-r", tree.to_str().unwrap(), &bucket.url("")]);
    for _ in 0..2 {
        good(&bucket, &["cp", "-r", &bucket.url("tree/"), &at("tree-back")]);
        assert_eq!(fs::read(dir.path().join("tree-back").join(&long)).unwrap(), b"long");
    }
}

/// Keys and metadata of a store are the words of anybody.
#[test]
fn hostile_keys_and_metadata_stay_in_the_folder() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    symlink("..", target.join("up")).unwrap();
    bucket.put("t/good", b"good");
    bucket.put("t/up/escaped", b"bad");
    bucket.put("t/file", b"file");
    bucket.put("t/file/below", b"bad");
    bucket.put(&format!("t/{}", "long".repeat(70)), b"bad");
    bucket.put("t/.narrows-0123456789abcdef01234567.partial", b"a file");
    // Servers that know no folders take any name; this client writes it as it is.
    for odd in ["t/%2e%2e/%2e%2e/odd", "t//odd", "t/%2e/odd"] {
        bucket.put(odd, b"bad");
    }
    let stream = {
        let raw = dir.path().join("raw");
        fs::write(&raw, text(50_000)).unwrap();
        good(&bucket, &["cp", raw.to_str().unwrap(), &bucket.url("t/twice")]);
        bucket.get("t/twice.nrw").unwrap()
    };
    bucket.put("t/twice", b"collides");
    let lying = [
        ("mode", "x-amz-meta-narrows-mode", "7777"),
        ("len", "x-amz-meta-narrows-len", "18446744073709551615"),
        ("time", "x-amz-meta-narrows-mtime", "9223372036854775807.999999999"),
    ];
    for (name, header, value) in lying {
        let headers = [("x-amz-meta-narrows-form", "nrw"), (header, value)];
        assert_eq!(bucket.ask_with("PUT", &format!("t/{name}.nrw"), &headers, &stream).0, 200);
    }
    let output = run(&bucket, &["cp", "-r", &bucket.url("t/"), target.to_str().unwrap()]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(fs::read(target.join("good")).unwrap(), b"good");
    assert_eq!(target.join("mode").metadata().unwrap().mode() & 0o7000 & !0o1000, 0, "no set-id bits from a store");
    assert!(!target.join("len").exists(), "its length is not that of its metadata");
    assert!(!dir.path().join("escaped").exists());
    let mut outside: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    outside.sort();
    assert_eq!(outside, ["raw", "target"]);
    let names: Vec<_> = fs::read_dir(&target).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.ends_with(".partial")).count(), 1, "a file as others: {names:?}");
    let text = stderr(&output);
    for word in ["up/escaped", "longlong", "t/twice", "len"] {
        let word = word.trim_start_matches("t/");
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "x").unwrap();
    let (file, url) = (file.to_str().unwrap(), bucket.url("k"));
    let commands: [&[&str]; 4] =
        [&["cat", &url], &["cp", file, &url], &["cp", "-r", &bucket.url("d/"), "."], &[file, "-o", &url]];
    for args in commands {
        let mut none = bucket.bare(args);
        let output = finish(none.env("AWS_ENDPOINT_URL", &bucket.endpoint).spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("no credentials for s3://"), "{}", stderr(&output));
        let output = finish(bucket.bare(args).env("AWS_PROFILE", "nobody").spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("no profile 'nobody'"), "{}", stderr(&output));
        let refused = "<Error><Code>InvalidAccessKeyId</Code><Message>It does not exist.</Message></Error>";
        bucket.faults(move |_, _| Fault::Status(403, refused));
        let output = run(&bucket, args);
        assert_one_line_error(&output, 1);
        // A HEAD has no body that says more.
        assert!(stderr(&output).contains("credentials"), "{}", stderr(&output));
        bucket.faults(|_, _| Fault::Pass);
        // A port that nobody listens on.
        let nobody = format!("http://127.0.0.1:{}", crate::common::free_port());
        let output = finish(bucket.narrows(args).env("AWS_ENDPOINT_URL", nobody).spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("cannot connect"), "{}", stderr(&output));
        let renamed: Vec<String> = args.iter().map(|a| a.replace(&bucket.name, "no-such-bucket-here")).collect();
        let renamed: Vec<&str> = renamed.iter().map(String::as_str).collect();
        let output = run(&bucket, &renamed);
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("no bucket named no-such-bucket-here"), "{}", stderr(&output));
    }
    good(&bucket, &["cp", file, &url]);
    let said = good(&bucket, &["cp", file, &url]);
    assert!(!stderr(&said).contains("ratio"), "nothing was copied: {}", stderr(&said));
    let piped = crate::common::store_filter(&mut bucket.narrows(&["check", "-"]), b"x");
    assert_one_line_error(&piped, 1);
    assert!(stderr(&piped).contains("only files are checked"), "{}", stderr(&piped));
    for command in ["cat", "list", "check"] {
        let output = run(&bucket, &[command, &url]);
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("no such object") && stderr(&output).contains("/k.nrw is there"));
        for (place, what) in [("", "a bucket"), ("d/", "a prefix")] {
            let output = run(&bucket, &[command, &bucket.url(place)]);
            assert_one_line_error(&output, 2);
            assert!(stderr(&output).contains(what), "{}", stderr(&output));
        }
    }
    for bad in ["s3://", "s3:///k", "gs://b@c/k"] {
        assert_one_line_error(&run(&bucket, &["cat", bad]), 2);
    }
    // Keys from the files of the AWS tools.
    fs::create_dir(bucket.home().join(".aws")).unwrap();
    let config =
        format!("[profile p]\nendpoint_url = {}\naws_access_key_id = a\naws_secret_access_key = b\n", bucket.endpoint);
    fs::write(bucket.home().join(".aws/config"), config).unwrap();
    let output = finish(bucket.bare(&["cp", file, &url]).env("AWS_PROFILE", "p").spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

fn store(bucket: &Bucket) -> Store {
    let url = Url::parse(bucket.url("").as_bytes()).unwrap().unwrap();
    let options = Options {
        endpoint: Some(bucket.endpoint.clone()),
        key: Some(("test".into(), "test".into())),
        ..Options::default()
    };
    Store::open(&url, &options).unwrap()
}

fn write(store: &Store, key: &str, condition: Condition, raw: &[u8]) -> std::io::Result<narrows_object::Created> {
    use std::io::Write;
    let mut writer = ObjectWriter::create(store, key, CreateOptions { condition, ..CreateOptions::default() })?;
    writer.write_all(raw)?;
    writer.finish()
}

/// One request or many: the condition decides at the end, and a lost race changes nothing.
#[test]
fn conditions_hold_for_short_and_long_objects() {
    let Some(bucket) = Bucket::new() else { return };
    let store = store(&bucket);
    for len in [1000, 20 << 20] {
        let key = format!("k{len}");
        let (one, two) = (random(len), text(len));
        let first = write(&store, &key, Condition::Create, &one).unwrap();
        assert_eq!(first.len, len as u64);
        let error = write(&store, &key, Condition::Create, &two).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        let second = write(&store, &key, Condition::IfMatch(first.version.clone()), &two).unwrap();
        let completes = |r: &Request| match len {
            1000 => r.method == "PUT",
            _ => r.method == "POST" && r.target.contains("uploadId="),
        };
        let conditions: Vec<_> = bucket.requests().into_iter().filter(completes).collect();
        assert!(conditions.iter().any(|r| r.header("if-none-match") == Some("*")), "{conditions:?}");
        assert_eq!(conditions.last().unwrap().header("if-match"), first.version.etag.as_deref());
        assert!(write(&store, &key, Condition::IfMatch(first.version), &one).is_err());
        assert_eq!(bucket.get(&key).unwrap(), two);
        assert_eq!(store.head(&key).unwrap().unwrap().object.version.etag, second.version.etag);
        assert!(bucket.unfinished().is_empty());
    }
    // Somebody takes the name while it is written, after it was looked at.
    let taken = {
        use std::io::Write;
        let options = CreateOptions { condition: Condition::Create, ..CreateOptions::default() };
        let mut writer = ObjectWriter::create(&store, "race", options).unwrap();
        writer.write_all(&random(20 << 20)).unwrap();
        bucket.put("race", b"first");
        writer.finish()
    };
    assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(bucket.get("race").unwrap(), b"first");
    assert!(bucket.unfinished().is_empty());
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_an_error() {
    use narrows_file::ReadAt;
    let Some(bucket) = Bucket::new() else { return };
    let store = store(&bucket);
    bucket.put("k", &random(2 << 20));
    let file = ObjectFile::new(&store, "k").unwrap();
    let mut buf = [0; 100];
    file.read_exact_at(&mut buf, 5).unwrap();
    bucket.put("k", &text(2 << 20));
    let error = file.read_exact_at(&mut buf, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("replaced while it was read"), "{error}");
    assert_eq!(ReadAt::len(&ObjectFile::new(&store, "k").unwrap()).unwrap(), 2 << 20);
}

/// No offset in such an object can be added to.
#[test]
fn impossible_lengths_are_refused() {
    use narrows_file::ReadAt;
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut reader = BufReader::new(client.try_clone().unwrap());
            let (mut line, mut range) = (String::new(), String::new());
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                if let Some(asked) = line.to_ascii_lowercase().trim().strip_prefix("range: bytes=") {
                    range = asked.to_owned();
                }
                line.clear();
            }
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {range}/{}\r\nContent-Length: 100\r\n\
                 Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: \"a\"\r\nConnection: close\r\n\r\n",
                u64::MAX
            );
            let _ = client.write_all(&[head.as_bytes(), &[7; 100]].concat());
        }
    });
    let options = Options { endpoint: Some(endpoint), key: Some(("a".into(), "b".into())), ..Options::default() };
    let store = Store::open(&Url::parse(b"s3://bucket").unwrap().unwrap(), &options).unwrap();
    let file = ObjectFile::new(&store, "k").unwrap();
    let at = u64::MAX - 1 - (64 << 10);
    let error = file.read_at(&mut [0; 100], at).unwrap_err();
    assert!(error.to_string().contains("2^63"), "{error}");
}

/// Parts have whole frames, so that a frame can be replaced without the others.
#[test]
fn parts_end_where_frames_end() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, random(30 << 20)).unwrap();
    bucket.requests();
    good(&bucket, &[file.to_str().unwrap(), "-o", &bucket.url("f.nrw")]);
    let is_part = |r: &&Request| r.method == "PUT" && r.target.contains("partNumber=");
    let number = |r: &Request| {
        let (_, rest) = r.target.split_once("partNumber=").unwrap();
        rest.split('&').next().unwrap().parse::<u32>().unwrap()
    };
    let mut parts: Vec<_> = bucket.requests().iter().filter(is_part).map(|r| (number(r), r.body_len as u64)).collect();
    parts.sort_unstable();
    assert!(parts.len() >= 3, "{parts:?}");
    let stored = narrows_file::File::open(bucket.get("f.nrw").unwrap()).unwrap();
    let member = &stored.members()[0];
    let ends: Vec<u64> = (0..member.blocks()).map(|i| member.entry(i).unwrap().wire_end).collect();
    let mut at = 0;
    for (_, len) in &parts[..parts.len() - 1] {
        at += len;
        assert!(ends.contains(&at), "a part ends at {at}, within a frame");
    }
}

/// Damage is told apart from a link that fails, which the same command may pass the next time.
#[test]
fn damaged_objects_have_the_status_of_damage() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), text(1 << 20)).unwrap();
    for name in ["good", "cut", "flipped"] {
        run(&bucket, &["cp", dir.path().join("f").to_str().unwrap(), &bucket.url(&format!("n/{name}"))]);
    }
    let whole = bucket.get("n/good.nrw").unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let len = (1u64 << 20).to_string();
    let headers = [("x-amz-meta-narrows-form", "nrw"), ("x-amz-meta-narrows-len", &len)];
    for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("flipped", &flipped[..])] {
        assert_eq!(bucket.ask_with("PUT", &format!("n/{name}.nrw"), &headers, bytes).0, 200);
    }
    let out = dir.path().join("out");
    for name in ["cut", "flipped"] {
        for target in [out.to_str().unwrap(), "-"] {
            let output = run(&bucket, &["cp", &bucket.url(&format!("n/{name}")), target]);
            let said = stderr(&output);
            assert_eq!(code(&output), 3, "{name} {target}: {said}");
            assert!(!said.contains("resume") && said.contains(name), "{name} {target}: {said}");
            assert!(!out.exists());
        }
    }
    let output = run(&bucket, &["cp", "-r", &bucket.url("n/"), out.to_str().unwrap()]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(fs::read(out.join("good")).unwrap(), text(1 << 20));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(&out).unwrap();
    assert_eq!(bucket.ask("DELETE", "n/good.nrw", b"").0, 204);
    let output = run(&bucket, &["cp", "-r", &bucket.url("n/"), out.to_str().unwrap()]);
    assert_eq!(code(&output), 3, "also if nothing is whole: {}", stderr(&output));
}
