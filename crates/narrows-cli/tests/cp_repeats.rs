//! `narrows cp` of repeated content: it crosses the link once, and the copies are correct.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::copies::*;
use crate::common::*;

#[test]
fn what_comes_again_in_the_same_file_or_in_another_crosses_the_link_once() {
    for pull in [false, true] {
        let home = home();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        fs::create_dir_all(a.join("folder/deep")).unwrap();
        let once = random(1 << 20);
        let twice = [&once[..300_000], b"between", &once[..300_000]].concat();
        fs::write(a.join("1 first"), &once).unwrap();
        fs::write(a.join("folder/2 same"), &once).unwrap();
        fs::write(a.join("folder/deep/3 moved"), [b"begin", &once[..], b"end"].concat()).unwrap();
        fs::write(a.join("folder/deep/4 twice"), twice).unwrap();
        // Small files, of which later ones repeat much earlier ones that already have their final
        // names.
        for i in 0..400usize {
            fs::write(a.join(format!("folder/s{i:03}")), &random(600_000)[i % 200 * 2000..][..2000]).unwrap();
        }
        // Holes between repeated content.
        let sparse = fs::File::create(a.join("folder/sparse")).unwrap();
        sparse.set_len(3 << 20).unwrap();
        (&sparse).write_all(&once[..100_000]).unwrap();
        let [from, to] = if pull {
            [remote(&a.join("")), b.clone().into_os_string()]
        } else {
            [a.join("").into_os_string(), remote(&b)]
        };
        let output = cp(home.path(), &["-r".as_ref(), "--json".as_ref(), &from, &to]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(snapshot(&a), snapshot(&b));
        assert_eq!(partials(&b), [] as [std::path::PathBuf; 0]);
        let (new, wire) = ((1 << 20) + 400_000, json(&output)["wire_bytes"].as_u64().unwrap());
        assert!(wire >= new && wire < new + 200_000, "{wire} bytes for {new} new ones");
        let all = (4 << 20) + 4 * 200_000;
        let repeated = json(&output)["repeated_bytes"].as_u64().unwrap();
        assert!(repeated > 2 << 20 && repeated < all, "{repeated} bytes of {all} repeated");
        // In words too.
        fs::remove_dir_all(&b).unwrap();
        let said = stderr(&cp(home.path(), &["-r".as_ref(), &from, &to]));
        assert!(said.contains("405 files"), "{said}");
        assert!(said.contains("MiB of repeats not sent again; "), "{said}");
    }
}

#[test]
fn what_goes_to_stdout_repeats_nothing() {
    let home = home();
    let a = home.path().join("a");
    let content = random(20_000).repeat(3);
    fs::write(&a, &content).unwrap();
    let output = cp(home.path(), &[&remote(&a), "-".as_ref()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(output.stdout == content);
}

#[test]
fn with_long_both_directions_give_the_same_tree_and_those_who_forbid_compression_get_none() {
    let home = home();
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    // Two releases, in which a word is changed everywhere: no chunk of the second is one of the first.
    let first = random(6_000_000);
    let mut second = first.clone();
    second.iter_mut().step_by(600).for_each(|byte| *byte ^= 1);
    fs::write(a.join("1 first"), &first).unwrap();
    fs::write(a.join("2 second"), &second).unwrap();
    for pull in [false, true] {
        let copied = |words: &[&str]| {
            let b = home.path().join("b");
            let _ = fs::remove_dir_all(&b);
            let [from, to] = if pull {
                [remote(&a.join("")), b.clone().into_os_string()]
            } else {
                [a.join("").into_os_string(), remote(&b)]
            };
            let words: Vec<&std::ffi::OsStr> = words.iter().map(|word| word.as_ref()).collect();
            let output = cp(home.path(), &[&["-r".as_ref(), "--json".as_ref(), &*from, &*to][..], &words].concat());
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert_eq!(snapshot(&a), snapshot(&b));
            json(&output)["wire_bytes"].as_u64().unwrap()
        };
        assert!(copied(&["--carriers=1"]) > 11_900_000);
        // Those who forbid compression get none.
        assert!(copied(&["--carriers=1", "--long", "--policy=fixed:store"]) > 11_900_000);
        // On a link within this host the search may rest; copies that it makes are right.
        let long = copied(&["--carriers=1", "--long"]);
        assert!(long < 12_100_000, "{long}");
        // A change of what is there crosses as before, with copies in the same flow.
        let b = home.path().join("b");
        fs::write(b.join("1 first"), &first[50_000..]).unwrap();
        fs::write(b.join("2 second"), [&second[..3_000_000], b"other", &second[3_000_000..]].concat()).unwrap();
        let [from, to] = if pull {
            [remote(&a.join("")), b.clone().into_os_string()]
        } else {
            [a.join("").into_os_string(), remote(&b)]
        };
        let output = cp(home.path(), &["-r".as_ref(), "--json".as_ref(), "--long".as_ref(), &from, &to]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(snapshot(&a), snapshot(&b));
        assert!(json(&output)["wire_bytes"].as_u64().unwrap() < 1_000_000);
    }
}

/// A remote shell that carries 400 kB/s in each direction.
fn slow_shell(folder: &Path) -> PathBuf {
    let slow = "import os, time\nwhile piece := os.read(0, 4096):\n time.sleep(len(piece) / 4e5)\n os.write(1, piece)";
    let path = folder.join("slow-shell");
    let text = format!("#!/bin/sh\nshift\nslow() {{ python3 -c '{slow}'; }}\nslow | sh -c \"$*\" | slow\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Images cross a slow link in fewer bytes and are stored as they were; nobody gets them who did not ask.
#[test]
fn images_are_recompressed_on_a_slow_link_and_come_back_bit_by_bit() {
    if !narrows_test::has("python3") {
        return;
    }
    let home = home();
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    for i in 0..6 {
        fs::write(a.join(format!("{i}.jpg")), narrows_test::jpeg(900, 700, i % 2 == 0, i)).unwrap();
    }
    // Within other bytes, as in an archive.
    let image = narrows_test::jpeg(320, 240, true, 77);
    fs::write(a.join("archive"), [&random(5000)[..], &image, &random(3000)].concat()).unwrap();
    let (slow, fast) = (slow_shell(home.path()), shell(home.path()));
    for pull in [false, true] {
        let copied = |shell: &Path, words: &[&str]| {
            let b = home.path().join("b");
            let _ = fs::remove_dir_all(&b);
            let [from, to] = if pull {
                [remote(&a.join("")), b.clone().into_os_string()]
            } else {
                [a.join("").into_os_string(), remote(&b)]
            };
            let mut command = cp_command(home.path(), shell);
            let output = finish(command.args(["-r", "--json"]).args(words).args([&from, &to]).spawn().unwrap());
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert_eq!(snapshot(&a), snapshot(&b));
            json(&output)
        };
        let lepton = |said: &serde_json::Value| said["mix"].to_string().contains("lepton");
        let (with, without) = (copied(&slow, &["--images"]), copied(&fast, &[]));
        assert!(lepton(&with), "{pull} {with}");
        assert!(with["wire_bytes"].as_u64() < without["wire_bytes"].as_u64(), "{pull} {with} {without}");
        assert!(!lepton(&without), "{pull} {without}");
    }
}
