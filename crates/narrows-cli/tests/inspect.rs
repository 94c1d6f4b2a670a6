//! `narrows inspect`: what it prints of whole, damaged and hostile streams.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use narrows::codec::CodecId;
use narrows::frame::{BlockHeader, HeaderBytes, Preface, Role, feature};
use serde_json::Value;

use crate::common::*;

fn streams() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../narrows/tests/streams");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "nrw"));
    paths.sort();
    paths
}

fn inspect(bytes: &[u8], flags: &[&str]) -> Output {
    let home = home();
    filter(home.path(), &[&["inspect", "-"], flags].concat(), bytes)
}

fn json(bytes: &[u8], flags: &[&str]) -> Value {
    serde_json::from_slice(&inspect(bytes, &[&["--json"], flags].concat()).stdout).unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn every_stored_stream_is_complete_and_its_frames_lie_end_to_end() {
    let paths = streams();
    assert!(paths.len() >= 11, "{paths:?}");
    for path in paths {
        let stream = fs::read(&path).unwrap();
        for flags in [&["--frames"][..], &["--frames", "--no-verify"]] {
            let seen = json(&stream, flags);
            let name = path.display();
            assert_eq!((&seen["complete"], &seen["error"]), (&true.into(), &Value::Null), "{name}");
            let raw_len = match path.file_name().and_then(|name| name.to_str()) {
                Some("v1-split-numbers.nrw") => 65_544,
                Some("v1-base64-mails.nrw") => 38_878,
                Some("v1-lepton-colour.nrw") => 1846,
                Some("v1-lepton-grey.nrw") => 1195,
                _ => 17_000,
            };
            assert_eq!((&seen["raw_bytes"], &seen["wire_bytes"]), (&raw_len.into(), &stream.len().into()), "{name}");
            let end = seen["rows"].as_array().unwrap().iter().fold(32, |at, row| {
                assert_eq!(row["wire_offset"], at, "{name}");
                at + row["wire_len"].as_u64().unwrap()
            });
            assert_eq!(end, stream.len() as u64, "{name}");
        }
    }
}

#[test]
fn what_precedes_an_error_is_listed_and_the_first_error_counts() {
    let home = home();
    let pipe = ["pipe", "--policy", "fixed:zstd:link", "--block-max", "4K", "--history", "64K"];
    let whole = filter(home.path(), &pipe, &text(40_000)).stdout;
    let rows = json(&whole, &["--frames"])["rows"].as_array().unwrap().clone();
    let at = |row: &Value| row["wire_offset"].as_u64().unwrap() as usize;
    // The third frame does not decode, and the fourth has no header.
    let mut damaged = whole.clone();
    damaged[at(&rows[3]) - 1] ^= 0x10;
    damaged[at(&rows[3])] = 0;
    let seen = json(&damaged, &["--frames"]);
    assert_eq!(seen["rows"].as_array().unwrap()[..], rows[..2]);
    assert_eq!((&seen["frames"], &seen["wire_bytes"]), (&2.into(), &at(&rows[2]).into()));
    let place = format!("(frame 2, at byte {} of the stream)", at(&rows[2]));
    assert!(seen["error"].as_str().unwrap().ends_with(&place), "{seen}");
    // By headers only, the fourth is the first.
    let shallow = json(&damaged, &["--frames", "--no-verify"]);
    assert_eq!(shallow["rows"].as_array().unwrap()[..], rows[..3]);
    let place = format!("this is not the beginning of a frame (frame 3, at byte {} of the stream)", at(&rows[3]));
    assert_eq!(shallow["error"], place);
    // In words.
    let output = inspect(&damaged, &["--frames"]);
    assert_one_line_error(&output, 3);
    let words = printed(&output);
    assert!(words.starts_with(&format!("{:>12} zstd", 32)) && words.ends_with("NOT complete\n"), "{words}");
    assert!(words.contains("format 1, blocks up to 4096 bytes, history 65536 bytes, checks on"), "{words}");
    for (end, error) in [(at(&rows[2]) + 3, "the stream ends before its end frame"), (0, "the stream is empty")] {
        let cut = inspect(&whole[..end], &[]);
        assert_one_line_error(&cut, 3);
        assert!(stderr(&cut).contains(error), "{}", stderr(&cut));
    }
    // A file that is no stream has no frames.
    assert!(stderr(&inspect(b"no stream", &[])).ends_with("this is not a Narrows stream\n"));
}

#[test]
fn the_reverse_direction_and_an_empty_message_are_refused_as_by_every_receiver() {
    let preface = Preface {
        role: Role::Sender,
        critical: feature::MESSAGES,
        optional: 0,
        check: false,
        block_max: 64 << 10,
        history: 0,
        reach: 0,
        codecs: 0xff,
    };
    let reverse = inspect(&HeaderBytes::preface(&Preface { role: Role::Receiver, ..preface }), &[]);
    assert_one_line_error(&reverse, 3);
    assert!(stderr(&reverse).contains("the other side is a receiver too"), "{}", stderr(&reverse));
    assert!(printed(&reverse).contains("no checks"), "{}", printed(&reverse));
    // A message that is a zstd frame of nothing.
    let body = [0x20, 0, 1, 0, 0];
    let header = BlockHeader::message(CodecId::ZSTD, false, body.len());
    let empty = [&HeaderBytes::preface(&preface)[..], &header.encode(None), &body].concat();
    let output = inspect(&empty, &[]);
    assert_one_line_error(&output, 3);
    assert!(stderr(&output).contains("a block of codec zstd does not decode"), "{}", stderr(&output));
}

#[test]
fn streams_behind_one_another_are_shown_as_one_file() {
    let home = home();
    let [one, two] = [&["pipe", "--block-max", "64K", "-"][..], &["pipe", "--no-check", "--block-max", "128K", "-"]]
        .map(|pipe| filter(home.path(), pipe, &text(300_000)).stdout);
    let both = [&one[..], &two, &one].concat();
    for flags in [&["--frames"][..], &["--frames", "--no-verify"]] {
        let seen = json(&both, flags);
        assert_eq!((&seen["complete"], &seen["error"], &seen["streams"]), (&true.into(), &Value::Null, &3.into()));
        assert_eq!((&seen["raw_bytes"], &seen["wire_bytes"]), (&900_000.into(), &both.len().into()));
        // The last stream's rows are those of the first, at their places in the file.
        let rows = seen["rows"].as_array().unwrap();
        let of_one = json(&one, flags)["rows"].as_array().unwrap().clone();
        let begin = (one.len() + two.len()) as u64;
        for (first, last) in of_one.iter().zip(&rows[rows.len() - of_one.len()..]) {
            assert_eq!(first["wire_offset"].as_u64().unwrap() + begin, last["wire_offset"].as_u64().unwrap());
        }
    }
    let words = printed(&inspect(&both, &[]));
    assert!(words.contains("2 of 3 streams: format 1, blocks up to 65536 bytes"), "{words}");
    assert!(words.contains("1 of 3 streams: format 1, blocks up to 131072 bytes"), "{words}");
    assert!(words.ends_with("complete; every block decodes\n"), "{words}");
    // The second one is cut off, or is none.
    for (bytes, error) in [
        (&both[..one.len() + two.len() - 10], "-, stream 2: the stream ends"),
        (&[&one[..], b"more"].concat(), "stream 2"),
    ] {
        let output = inspect(bytes, &[]);
        assert_one_line_error(&output, 3);
        assert!(stderr(&output).contains(error) && printed(&output).ends_with("NOT complete\n"), "{}", stderr(&output));
    }
}
