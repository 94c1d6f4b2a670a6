//! Objects over a link with faults: nothing is lost, nothing half has a name, no upload is left.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::store::{Bucket, Fault, Request};
use crate::common::{
    PATIENCE, assert_one_line_error, code, finish_reading, random, stderr, text, wait_until_it_writes_in,
};
use rustix::process::{Pid, Signal, kill_process};

fn run(bucket: &Bucket, args: &[&str]) -> Output {
    finish_reading(bucket.narrows(args).spawn().unwrap())
}

/// What a link or a store may do to a request, once.
const FAULTS: [Fault; 8] = [
    Fault::Status(500, "<Error><Code>InternalError</Code><Message>Try again.</Message></Error>"),
    Fault::Status(503, "<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"),
    Fault::CutRequest(0),
    Fault::CutRequest(100_000),
    Fault::CutAnswer(0),
    Fault::CutAnswer(40),
    Fault::LoseAnswer,
    Fault::Delay(300),
];

/// Every request of a copy meets every fault once; the copy is as without them.
#[test]
fn single_faults_cost_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    // Two parts and more.
    let raw = [random(18 << 20), text(1 << 20)].concat();
    fs::write(&file, &raw).unwrap();
    let file = file.to_str().unwrap();
    let mut hit = [0; 4];
    for (i, fault) in FAULTS.into_iter().enumerate() {
        for nth in [0, 1, 2, 4, 5] {
            let (name, url) = (bucket.url(&format!("{i}-{nth}")), bucket.url(&format!("{i}-{nth}.nrw")));
            bucket.faults(move |n, _| if n == nth { fault } else { Fault::Pass });
            let output = run(&bucket, &["cp", file, &name]);
            assert_eq!(code(&output), 0, "{fault:?} at {nth}: {}", stderr(&output));
            let requests = bucket.requests();
            let kind = |r: &Request| match (
                r.method.as_str(),
                r.target.contains("uploads"),
                r.target.contains("partNumber"),
            ) {
                ("POST", true, _) => 0,
                ("PUT", _, true) => 1,
                ("POST", ..) => 2,
                _ => 3,
            };
            hit[kind(&requests[nth])] += 1;
            bucket.faults(move |n, _| if n == nth { fault } else { Fault::Pass });
            let output = run(&bucket, &["cat", &url]);
            assert_eq!(code(&output), 0, "{fault:?} at {nth}: {}", stderr(&output));
            assert!(output.stdout == raw, "{fault:?} at {nth}");
        }
    }
    assert!(hit[..3].iter().all(|n| *n > 0), "begin, parts and end met faults: {hit:?}");
    // Of an upload that began twice because the answer to the first request was lost, nobody knows the
    // first one: the second request of a copy, after the question whether the object is there.
    let left = bucket.unfinished();
    let unknown = |key: &String| {
        ["2-", "3-", "4-", "5-", "6-"].iter().any(|before| key.starts_with(before)) && key.ends_with("-1.nrw")
    };
    assert!(left.iter().all(unknown), "{left:?}");
}

/// Where it stays broken, one line says so; there is no object and no upload.
#[test]
fn lasting_faults_leave_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, random(18 << 20)).unwrap();
    let file = file.to_str().unwrap();
    for (i, fault) in [FAULTS[1], FAULTS[2]].into_iter().enumerate() {
        let url = bucket.url(&format!("long{i}.nrw"));
        // The second part never gets through.
        bucket.faults(move |_, r| if r.target.contains("partNumber=2") { fault } else { Fault::Pass });
        let output = run(&bucket, &[file, "-o", &url]);
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("cannot write s3://"), "{}", stderr(&output));
        assert!(bucket.keys().is_empty() && bucket.unfinished().is_empty(), "{fault:?}");
    }
    bucket.put("k", &random(1 << 20));
    bucket.faults(|_, r| if r.method == "GET" { FAULTS[1] } else { Fault::Pass });
    let target = dir.path().join("target");
    let output = run(&bucket, &["cp", &bucket.url("k"), target.to_str().unwrap()]);
    assert_one_line_error(&output, 1);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["f"], "nothing has the name, and nothing is left beside it");
}

/// Of a tree, what can be copied is copied, and the next run brings the rest.
#[test]
fn a_file_that_fails_does_not_stop_the_others() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("t");
    fs::create_dir(&tree).unwrap();
    for i in 0..5 {
        fs::write(tree.join(format!("f{i}")), text(1000 + i)).unwrap();
    }
    let tree = tree.to_str().unwrap();
    let denied = "<Error><Code>AccessDenied</Code><Message>Not this one.</Message></Error>";
    bucket.faults(move |_, r| if r.target.contains("f3") { Fault::Status(403, denied) } else { Fault::Pass });
    let output = run(&bucket, &["cp", "-r", "--delete", tree, &bucket.url("b")]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("f3") && stderr(&output).contains("AccessDenied"), "{}", stderr(&output));
    assert_eq!(bucket.keys().len(), 4);
    bucket.faults(|_, _| Fault::Pass);
    let output = run(&bucket, &["cp", "-r", tree, &bucket.url("b")]);
    assert!(stderr(&output).contains("1 file, 4 already there"), "{}", stderr(&output));
}

/// A signal ends a copy in order: the upload is removed.
#[test]
fn a_signal_leaves_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, random(40 << 20)).unwrap();
    let packed = dir.path().join("packed.nrw");
    let output = run(&bucket, &[file.to_str().unwrap(), "-o", packed.to_str().unwrap()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let begun = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&begun);
    bucket.faults(move |_, r| {
        if r.target.contains("partNumber=3") {
            seen.store(true, Ordering::Relaxed);
        }
        if r.target.contains("partNumber") { Fault::Delay(700) } else { Fault::Pass }
    });
    let (file, packed) = (file.to_str().unwrap(), packed.to_str().unwrap());
    for args in [vec!["cp", file, "URL"], vec![file, "-o", "URL"], vec!["-d", packed, "-o", "URL"]] {
        begun.store(false, Ordering::Relaxed);
        let url = bucket.url("f.nrw");
        let args: Vec<&str> = args.into_iter().map(|arg| if arg == "URL" { url.as_str() } else { arg }).collect();
        let child = bucket.narrows(&args).spawn().unwrap();
        let waits = Instant::now();
        while !begun.load(Ordering::Relaxed) && waits.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = finish_reading(child);
        assert_eq!(code(&output), -1, "it ends by the signal: {}", stderr(&output));
        assert!(bucket.keys().is_empty() && bucket.unfinished().is_empty(), "{args:?}");
    }
}

/// The same for an output of this host: nothing of it is left.
#[test]
fn a_signal_while_an_object_is_read_leaves_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = bucket.home().join("f");
    fs::write(&file, random(60 << 20)).unwrap();
    let output = run(&bucket, &[file.to_str().unwrap(), "-o", &bucket.url("f.nrw")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    bucket.faults(|n, _| if n > 6 { Fault::Delay(300) } else { Fault::Pass });
    for _ in 0..5 {
        let out = dir.path().join("out");
        let child = bucket.narrows(&["-d", &bucket.url("f.nrw"), "-o", out.to_str().unwrap()]).spawn().unwrap();
        wait_until_it_writes_in(dir.path(), 1 << 20, &child);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = finish_reading(child);
        assert_eq!(code(&output), -1, "it ends by the signal: {}", stderr(&output));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// Its object would have the time of one state and bytes of another.
#[test]
fn a_file_that_changes_is_not_stored_and_is_a_failure() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (long, other) = (dir.path().join("long"), dir.path().join("other"));
    fs::write(&long, random(40 << 20)).unwrap();
    fs::write(&other, "other").unwrap();
    let growing = long.clone();
    bucket.faults(move |_, r| {
        if r.target.contains("partNumber") {
            fs::OpenOptions::new().append(true).open(&growing).unwrap().set_len(41 << 20).unwrap();
        }
        Fault::Pass
    });
    let output = run(&bucket, &["cp", long.to_str().unwrap(), &bucket.url("x")]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("was not stored"), "{}", stderr(&output));
    assert!(bucket.keys().is_empty() && bucket.unfinished().is_empty());
    fs::File::options().write(true).open(&long).unwrap().set_len(40 << 20).unwrap();
    let output = run(&bucket, &["cp", "-r", dir.path().to_str().unwrap(), &bucket.url("")]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(bucket.keys().len(), 1);
}

/// A write whose time is put back shows; a new mode is no other content.
#[test]
fn a_file_that_is_written_in_place_with_its_time_put_back_is_not_stored_and_a_new_mode_is_no_matter() {
    let Some(bucket) = Bucket::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long");
    fs::write(&long, random(40 << 20)).unwrap();
    for (form, writes) in [(&[][..], true), (&["--plain"], true), (&[], false), (&["--plain"], false)] {
        let path = long.clone();
        let once = std::sync::Once::new();
        // A part of the copy before may come late.
        let key = format!("{}{writes}", form.len());
        let part_of = key.clone();
        bucket.faults(move |_, r| {
            if r.target.contains(&part_of) && r.target.contains("partNumber") {
                once.call_once(|| {
                    let file = fs::File::options().write(true).open(&path).unwrap();
                    let before = file.metadata().unwrap().modified().unwrap();
                    file.set_permissions(fs::Permissions::from_mode(0o604)).unwrap();
                    if writes {
                        file.write_all_at(b"new", 0).unwrap();
                        file.set_modified(before).unwrap();
                    }
                });
            }
            Fault::Pass
        });
        fs::set_permissions(&long, fs::Permissions::from_mode(0o644)).unwrap();
        fs::File::options().write(true).open(&long).unwrap().write_all_at(b"old", 0).unwrap();
        let output = run(&bucket, &[&["cp"], form, &[long.to_str().unwrap(), &bucket.url(&key)]].concat());
        assert_eq!(code(&output), if writes { 2 } else { 0 }, "{form:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("was not stored"), writes, "{form:?}: {}", stderr(&output));
        assert_eq!(bucket.keys().len(), usize::from(!writes) * if form.is_empty() { 1 } else { 2 });
    }
}

/// Opening a named pipe waits for its writer.
#[test]
fn a_pipe_that_takes_the_place_of_a_file_is_not_waited_for() {
    let Some(bucket) = Bucket::new() else { return };
    if !narrows_test::has("mkfifo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    ["a", "b"].iter().for_each(|name| fs::write(dir.path().join(name), name).unwrap());
    let b = dir.path().join("b");
    bucket.faults(move |_, r| {
        if r.method == "PUT" && r.target.contains("a.nrw") && b.is_file() {
            // The folder was walked long ago.
            std::thread::sleep(Duration::from_millis(300));
            fs::remove_file(&b).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&b).status().unwrap().success());
        }
        Fault::Pass
    });
    let from = format!("{}/", dir.path().display());
    let output = run(&bucket, &["cp", "-r", "--transfers", "1", &from, &bucket.url("t/")]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot copy b: it is not a file any more"), "{}", stderr(&output));
}
