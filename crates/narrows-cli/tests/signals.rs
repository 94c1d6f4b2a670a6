//! Signals end commands on files and packs, whatever they wait for, and leave nothing half done.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common::copies::partials;
use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};

/// Waits until it is so.
fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE, "it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(home: &Path, args: &[&str]) -> Child {
    narrows(home).current_dir(home).args(args).spawn().unwrap()
}

fn good(home: &Path, args: &[&str]) {
    let output = finish(start(home, args));
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
}

fn ends_by(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    // Whatever it has written is not read.
    let stdout = child.stdout.take();
    let output = finish(child);
    drop(stdout);
    assert_eq!(code(&output), -1, "it ends by the signal: {}", stderr(&output));
}

/// Whether a program has a file open.
fn has_open(child: &Child, path: &Path) -> bool {
    let folder = format!("/proc/{}/fd", child.id());
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| to == path)
}

/// Whether it is the part of a file that the next run goes on with.
fn is_partial(path: &Path) -> bool {
    path.file_name().unwrap().as_encoded_bytes().starts_with(b".narrows-")
}

fn tree(home: &Path) {
    fs::create_dir(home.join("tree")).unwrap();
    for i in 0..60 {
        fs::write(home.join(format!("tree/{i:02}")), [&random(1 << 20)[..], &[i]].concat()).unwrap();
    }
}

#[test]
fn what_reads_files_ends() {
    let home = home();
    let h = home.path();
    tree(h);
    good(h, &["pack", "tree", "-o", "x.nrw"]);
    fs::write(h.join("f"), text(60 << 20)).unwrap();
    good(h, &["f"]);
    for (file, signal) in [("x.nrw", Signal::INT), ("f.nrw", Signal::TERM)] {
        // So often that it is not done before the signal comes.
        let child = start(h, &[&["check"][..], &[file; 200]].concat());
        until(|| has_open(&child, &h.join(file)));
        ends_by(child, signal);
    }
    for (to, args) in [("some", vec!["unpack", "x.nrw", "tree"]), ("all", vec!["unpack", "x.nrw"])] {
        fs::create_dir(h.join(to)).unwrap();
        let ends = || {
            let child = start(h, &[&args[..], &["--fsync", "each", "-f", "-C", to]].concat());
            until(|| has_open(&child, &h.join("x.nrw")));
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            let output = finish(child);
            let _ = fs::remove_file(h.join(to).join("tree/00"));
            code(&output) == -1
        };
        // A signal may come when all is done already, but hardly so often.
        assert!((0..20).any(|_| ends()), "it ends by the signal");
        // What has its name is whole, and the rest comes when it is unpacked again.
        for path in fs::read_dir(h.join(to).join("tree")).into_iter().flatten().map(|e| e.unwrap().path()) {
            let of = fs::read(h.join("tree").join(path.file_name().unwrap()));
            assert!(is_partial(&path) || fs::read(&path).unwrap() == of.unwrap(), "{path:?}");
        }
        good(h, &["unpack", "x.nrw", "-C", to]);
        assert_eq!(entries(&h.join(to).join("tree")).len(), 60);
        assert!(partials(&h.join(to)).is_empty());
    }
}

/// The reader of a pipe may have stopped for ever.
#[test]
fn what_writes_into_a_full_pipe_ends() {
    let home = home();
    let h = home.path();
    tree(h);
    fs::write(h.join("f"), text(20 << 20)).unwrap();
    good(h, &["f"]);
    for args in [
        &["pack", "tree", "-o", "-"][..],
        &["cat", "--range", "5-", "f.nrw"],
        &["cat", "--skip-damaged", "f.nrw"],
        &["cat", "f.nrw"],
        &["-dc", "f.nrw"],
    ] {
        let mut child = start(h, args);
        // What comes first says that it began.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        ends_by(child, Signal::INT);
    }
    // A pipe that is read gets everything.
    let output = finish_reading(start(h, &["cat", "--range", "5-", "f.nrw"]));
    assert!(output.stdout == text(20 << 20)[5..]);
}

/// A block of the densest methods takes seconds; nobody waits for it.
#[test]
fn blocks_in_work_are_left_at_a_signal() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    // Two blocks, which are in work at once.
    fs::write(h.join("tree/f"), text(4 << 20)).unwrap();
    for args in [
        &["--mode", "archive", "tree/f", "-o", "out"][..],
        &["--mode", "archive", "--format", "zstd", "tree/f", "-o", "out"],
        &["pack", "--mode", "archive", "tree", "-o", "out"],
    ] {
        let whole = cpu_ticks(start(h, args), |_| ());
        fs::remove_file(h.join("out")).unwrap();
        let left = cpu_ticks(start(h, args), |child| {
            until(|| has_open(child, &h.join("tree/f")));
            kill_process(Pid::from_child(child), Signal::INT).unwrap();
        });
        assert!(left < whole / 2, "{args:?}: {left} of {whole}");
        assert_eq!(entries(h).len(), 1, "{args:?}");
    }
}

/// The input is there, nothing is half done, and what was to be replaced is as it was.
#[test]
fn a_signal_leaves_the_files_as_they_were() {
    let home = home();
    let h = home.path();
    fs::write(h.join("f"), text(8 << 20)).unwrap();
    good(h, &["-1", "f", "-o", "packed.nrw"]);
    fs::write(h.join("f.nrw"), "old").unwrap();
    fs::write(h.join("packed"), "old").unwrap();
    for (args, input, old) in [
        (&["pipe", "-19", "--rm", "-f", "f"][..], "f", "f.nrw"),
        (&["pipe", "-df", "--rm", "packed.nrw"], "packed.nrw", "packed"),
    ] {
        let before = fs::read(h.join(input)).unwrap();
        // A signal may come when all is done already, but hardly so often.
        let ends = || {
            let child = start(h, args);
            wait_until_it_writes_in(h, 0, &child);
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            let output = finish(child);
            let ended = code(&output) == -1;
            if !ended {
                fs::write(h.join(input), &before).unwrap();
                fs::write(h.join(old), "old").unwrap();
            }
            ended
        };
        assert!((0..20).any(|_| ends()), "it ends by the signal");
        assert!(fs::read(h.join(input)).unwrap() == before && fs::read(h.join(old)).unwrap() == b"old", "{args:?}");
        assert_eq!(entries(h).len(), 4, "{args:?}");
    }
}

/// The processor time of a program until it ends, in ticks.
fn cpu_ticks(mut child: Child, then: impl Fn(&Child)) -> u64 {
    then(&child);
    let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields = |stat: String| stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect::<Vec<_>>();
    until(|| fields(stat())[0] == "Z");
    let [user, system] = [11, 12].map(|i| fields(stat())[i].parse::<u64>().unwrap());
    child.wait().unwrap();
    user + system
}
