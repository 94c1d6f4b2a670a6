//! `narrows check` for files with arrays: what it prints, its exit status, the page, wrong usage.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn narrows(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_narrows")).args(args).current_dir(folder).output().expect("the program starts")
}

fn text(output: &Output) -> (Option<i32>, String) {
    let words = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(words).unwrap())
}

/// A folder with an array of 60 x 100 as `a.npy`, `a.raw`, and as `a.nra` within .01.
fn example() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |i: i32| ((f64::from(i) / 40.0).sin() * 20.0) as f32;
    let raw: Vec<u8> = (0..6000).flat_map(|i| at(i).to_le_bytes()).collect();
    fs::write(folder.path().join("a.raw"), &raw).unwrap();
    let input = ["--type", "f32", "--shape", "60,100", "--chunk", "8K"];
    let encode = |options: &[&str], to: &str| {
        let args = [&["array", "encode", "a.raw", "-o", to], &input[..], options].concat();
        assert!(narrows(folder.path(), &args).status.success());
    };
    encode(&["--abs", "0.01"], "a.nra");
    encode(&[], "exact.nra");
    let npy = narrows(folder.path(), &["array", "decode", "exact.nra"]).stdout;
    fs::write(folder.path().join("a.npy"), npy).unwrap();
    folder
}

#[test]
fn a_good_file_is_described_and_compared() {
    let folder = example();
    let check = |args: &[&str]| text(&narrows(folder.path(), &[&["check"], args].concat()));
    let (status, words) = check(&["a.nra"]);
    assert_eq!(status, Some(0), "{words}");
    for part in ["file of chunks, 1 variable,", "(array)", "60x100", "20x100", "abs 0.01", "3 chunks of Narrows"] {
        assert!(words.contains(part), "{part} is not in:\n{words}");
    }
    assert!(!words.contains('\x1b'), "a pipe gets no colours");
    for original in ["a.npy", "a.raw", "exact.nra"] {
        let (status, words) = check(&["a.nra", "--against", original]);
        assert!(status == Some(0) && words.contains("the bound holds"), "{original}: {words}");
    }
    let (status, words) = check(&["--json", "--against", "a.npy", "a.nra"]);
    let json: Value = serde_json::from_str(&words).unwrap();
    let variable = &json["variables"][0];
    assert_eq!((status, &json["good"], &variable["bound"]["abs"][1]), (Some(0), &true.into(), &0.01.into()));
    let (stated, seen) = (variable["worst_abs"].as_f64().unwrap(), variable["against"]["worst_abs"].as_f64().unwrap());
    assert!(0.0 < seen && seen <= stated && stated <= 0.01, "{json}");
    let (_, words) = check(&["--quiet", "a.nra"]);
    assert_eq!(words, "");
}

#[test]
fn damage_and_broken_bounds_are_status_3() {
    let folder = example();
    let check = |args: &[&str]| text(&narrows(folder.path(), &[&["check"], args].concat()));
    let mut raw = fs::read(folder.path().join("a.raw")).unwrap();
    let at = raw.len() - 100;
    raw[at..at + 4].copy_from_slice(&1e3f32.to_le_bytes());
    fs::write(folder.path().join("other.raw"), &raw).unwrap();
    let (status, words) = check(&["a.nra", "--against", "other.raw"]);
    assert!(status == Some(3) && words.contains("BROKEN: 1 of 6000") && words.contains("[40, 0]"), "{words}");
    let (status, words) = check(&["exact.nra", "--against", "other.raw", "--quiet"]);
    assert!(status == Some(3) && words.contains("BROKEN"), "{words}");
    let mut bytes = fs::read(folder.path().join("a.nra")).unwrap();
    let last = bytes.len() - 5;
    bytes[last] ^= 4;
    fs::write(folder.path().join("bad.nra"), &bytes).unwrap();
    let (status, words) = check(&["bad.nra"]);
    assert!(status == Some(3) && words.contains("chunk at [40, 0] is damaged"), "{words}");
    fs::write(folder.path().join("short.nra"), &bytes[..bytes.len() / 2]).unwrap();
    let (status, words) = check(&["short.nra"]);
    assert!(status == Some(3) && words.contains("ends before its array"), "{words}");
}

#[test]
fn the_page_stands_alone() {
    let folder = example();
    let output = narrows(folder.path(), &["check", "--html", "a.html", "--against", "a.npy", "a.nra", "-q"]);
    assert_eq!(text(&output), (Some(0), String::new()));
    let page = fs::read_to_string(folder.path().join("a.html")).unwrap();
    assert_eq!(page.matches("<figure>").count(), 3, "field, error, spectrum");
    assert!(page.contains("data:image/png;base64,") && page.contains("Power spectral density"));
    for fetched in ["<script", "href=\"http", "src=", "url(", "NaN", "inf"] {
        assert!(!page.contains(fetched) || fetched == "NaN" && page.contains("fill values, NaN"), "{fetched}");
    }
}

#[test]
fn wrong_usage_says_what_to_do() {
    let folder = example();
    let check = |args: &[&str]| text(&narrows(folder.path(), &[&["check"], args].concat()));
    fs::write(folder.path().join("old.nc"), b"CDF\x01\0\0\0\0\0\0\0\0").unwrap();
    fs::write(folder.path().join("text"), b"hello").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for (args, status, part) in [
        (&["old.nc"][..], 3, "classic NetCDF"),
        (&["folder"], 3, "no Zarr store"),
        (&["a.nra", "--variable", "t"], 2, "no variable t"),
        (&["a.nra", "--against", "text"], 2, "60 x 100 elements of f32"),
        (&["text", "--against", "a.npy"], 2, "files with arrays"),
        (&["a.nra", "a.nra", "--html", "x"], 2, "one file"),
        (&["a.nra", "--repair-index", "--html", "x"], 2, "cannot be used"),
        (&["a.nra", "--against", "missing"], 1, "missing"),
    ] {
        let (found, words) = check(args);
        assert!(found == Some(status) && words.contains(part), "{args:?}: {found:?}: {words}");
    }
}
