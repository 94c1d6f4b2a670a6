//! `--long`: what came before in a stream crosses as copies.

use std::fs;

use serde_json::Value;

use crate::common::*;

#[test]
fn a_file_that_repeats_far_back_takes_half_and_comes_back() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let stream = folder.path().join("stream");
    let path = stream.to_str().unwrap();
    let data = [random(5_000_000), text(100_000), random(5_000_000)].concat();
    let packed = |long: &[&str]| {
        let output = filter(home.path(), &[&["pipe", "-fo", path, "--json"], long].concat(), &data);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let json: Value = serde_json::from_str(stderr(&output).lines().last().unwrap()).unwrap();
        (fs::metadata(&stream).unwrap().len(), json["copied_bytes"].as_u64().unwrap())
    };
    let (plain, none) = packed(&[]);
    assert!(plain > 10_000_000 && none == 0);
    let (long, copied) = packed(&["--long"]);
    assert!(long < 5_100_000 && copied > 4_990_000, "{long} bytes, {copied} copied");
    let back = |args: &[&str]| filter(home.path(), &[&["pipe", "-c", path], args].concat(), &[]);
    assert!(back(&["-d"]).stdout == data);
    let shown = filter(home.path(), &["inspect", path], &[]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("copies from up to 134217728 bytes back") && shown.contains("zstd,copy"), "{shown}");
    // A stream that needs more than a reader keeps is refused, whatever it contains.
    packed(&["--long=28"]);
    let refused = back(&["-d"]);
    assert_one_line_error(&refused, 3);
    assert!(stderr(&refused).contains("--long=28") && refused.stdout.is_empty(), "{}", stderr(&refused));
    assert!(back(&["-d", "--long=28"]).stdout == data);
    assert_eq!(code(&back(&["-t", "--long=28"])), 0);
}

#[test]
fn a_file_states_no_longer_reach_than_it_has_bytes_and_none_if_it_is_short() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let [source, stream] = ["source", "stream"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    for (len, words) in [(5_000_000, Some("copies from up to 8388608 bytes back")), (1_000_000, None)] {
        let data = random(len / 2).repeat(2);
        fs::write(&source, &data).unwrap();
        let packed = filter(home.path(), &["pipe", "-f", "--long=30", &source, "-o", &stream], &[]);
        assert_eq!(code(&packed), 0, "{}", stderr(&packed));
        let shown = String::from_utf8(filter(home.path(), &["inspect", &stream], &[]).stdout).unwrap();
        assert_eq!(shown.contains("copies from"), words.is_some(), "{shown}");
        assert!(shown.contains(words.unwrap_or_default()), "{shown}");
        assert!(filter(home.path(), &["pipe", "-dc", &stream], &[]).stdout == data);
    }
}

#[test]
fn a_file_is_written_whatever_the_reach_and_the_link_may_have_no_checks() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let [stream, target] = ["stream", "target"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let data = random(5_000_000).repeat(2);
    for (check, codes) in [(&["-q"][..], [0, 0]), (&["--no-check"], [3, 0])] {
        // Of stdin the length is unknown.
        let packed = filter(home.path(), &[&["pipe", "-f", "--long=30", "-o", &stream], check].concat(), &data);
        assert_eq!(code(&packed), 0, "{}", stderr(&packed));
        // Without checks nothing would tell that the file was changed, and memory has its limit.
        for (long, expected) in [("-q", codes[0]), ("--long=30", codes[1])] {
            let _ = fs::remove_file(&target);
            let back = filter(home.path(), &["pipe", "-d", &stream, "-o", &target, long], &[]);
            assert_eq!(code(&back), expected, "{check:?} {long}: {}", stderr(&back));
            assert_eq!(fs::read(&target).is_ok_and(|bytes| bytes == data), expected == 0);
        }
    }
}

#[test]
fn over_a_link_the_smaller_reach_of_both_ends_holds() {
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let [source, target] = ["source", "target"].map(|name| folder.path().join(name));
    let data = [random(3_000_000), random(3_000_000)].concat();
    fs::write(&source, &data).unwrap();
    for (ours, theirs) in [("--long", "--long=27"), ("--long=30", "--long=20"), ("-q", "--long=20")] {
        let (recv, address) = listen(home.path(), &["-o", target.to_str().unwrap(), theirs]);
        let send = narrows(home.path()).args(["send", source.to_str().unwrap(), &address, ours]).spawn().unwrap();
        let (sent, received) = (finish(send), finish(recv));
        assert_eq!((code(&sent), code(&received)), (0, 0), "{}{}", stderr(&sent), stderr(&received));
        assert!(fs::read(&target).unwrap() == data, "{ours} {theirs}");
    }
}

#[test]
fn a_reach_that_the_format_does_not_have_is_wrong_usage() {
    let home = home();
    for wrong in ["--long=19", "--long=31", "--long=", "--long=x"] {
        for command in [&["pipe"][..], &["send", "-", "tcp://127.0.0.1:1"], &["recv", "--listen", "127.0.0.1:0"]] {
            let output = filter(home.path(), &[command, &[wrong]].concat(), &[]);
            assert_eq!(code(&output), 2, "{command:?} {wrong}: {}", stderr(&output));
        }
    }
}
