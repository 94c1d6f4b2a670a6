//! `narrows cp` of files with holes that change: what crosses the link, and what stays a hole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::common::copies::*;
use crate::common::relay::{Hold, Relay, await_that};
use crate::common::*;

/// Length of the image.
const LEN: u64 = 96 << 20;
/// Its data: most of what lies between the holes shrinks by no method.
const DATA: [(u64, usize); 3] = [(1 << 20, 20 << 20), (40 << 20, 4 << 20), (60 << 20, 300_000)];
/// What one list of the chunks of that data, and of its holes, takes on the link.
const LIST_LEN: u64 = 100_000;

fn put_image(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(LEN).unwrap();
    let mut bytes = &random(30 << 20)[..];
    for (at, len) in DATA {
        file.write_all_at(&bytes[..len], at).unwrap();
        bytes = &bytes[len..];
    }
}

fn places(a: &Path, b: &Path, pull: bool) -> [OsString; 2] {
    if pull { [remote(a), b.into()] } else { [a.into(), remote(b)] }
}

#[test]
fn of_a_file_with_holes_that_changed_a_little_little_is_sent_and_holes_stay_holes() {
    type Change = fn(&File);
    let written: Change = |file| file.write_all_at(b"changed", 7_000_001).unwrap();
    let filled: Change = |file| file.write_all_at(&text(200_000), 80 << 20).unwrap();
    let emptied: Change = |file| {
        // The data of the second range goes: the file is rewritten without it.
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, 40 << 20, 4 << 20).unwrap();
    };
    let longer: Change = |file| file.set_len(LEN + (64 << 20)).unwrap();
    let none: Change = |file| {
        file.set_len(0).unwrap();
        file.set_len(LEN).unwrap();
    };
    for pull in [false, true] {
        let home = home();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        put_image(&a);
        let places = places(&a, &b, pull);
        let copy = || json(&cp(home.path(), &[OsStr::new("--json"), &places[0], &places[1]]));
        assert!(copy()["wire_bytes"].as_u64().unwrap() > 24 << 20);
        for (what, change, more) in [
            ("written", written, 0),
            ("filled", filled, 200_000),
            ("emptied", emptied, 100_000),
            ("longer", longer, 0),
            ("none", none, 0),
        ] {
            let file = File::options().write(true).open(&a).unwrap();
            change(&file);
            drop(file);
            let json = copy();
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{pull} {what}");
            let wire = json["wire_bytes"].as_u64().unwrap();
            assert!(wire < LIST_LEN + more, "{pull} {what}: {json}");
            // As far as the file system says it exactly.
            let [there, here] = [&b, &a].map(|path| fs::metadata(path).unwrap().blocks() * 512);
            assert!(there <= here + (128 << 10), "{pull} {what}: {there} {here}");
        }
    }
}

#[test]
fn what_came_of_a_file_with_holes_before_the_link_broke_is_not_sent_again() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    put_image(&a);
    let relay = Relay::new(home.path(), Hold::Up(16 << 20));
    let mut copy = cp_command(home.path(), &relay.shell());
    copy.arg(&a).arg(remote(&b));
    let output = relay.run(copy, |_| relay.await_held(), |client| signal(client, "-KILL"));
    assert_ne!(code(&output), 0, "{}", stderr(&output));
    // It keeps what arrived.
    let server = format!("/proc/{}", relay.server().unwrap().as_raw_nonzero());
    await_that("the server to end", || !Path::new(&server).exists());
    let json = json(&cp(home.path(), &[OsStr::new("--json"), a.as_os_str(), &remote(&b)]));
    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
    assert!(json["wire_bytes"].as_u64().unwrap() < 20 << 20, "{json}");
}
