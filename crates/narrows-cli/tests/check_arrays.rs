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
    let (status, words) = check(&["bad.nra", "--against", "a.raw"]);
    assert!(status == Some(3) && words.contains("is damaged") && !words.contains("bound holds"), "{words}");
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
    fs::write(folder.path().join("empty.h5"), b"").unwrap();
    fs::write(folder.path().join("zeros.h5"), [0; 4096]).unwrap();
    fs::write(folder.path().join("flipped.h5"), [&b"\x89HDF\r\n\x1a\n\xfd"[..], &[0; 4096]].concat()).unwrap();
    fs::write(folder.path().join("text"), b"hello").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for (args, status, part) in [
        (&["old.nc"][..], 1, "classic NetCDF file (CDF-1), not HDF5"),
        (&["old.nc"], 1, "ncdump and netCDF4 read it"),
        (&["a.nra", "--against", "old.nc"], 1, "classic NetCDF"),
        (&["empty.h5"], 3, "empty, and so not an HDF5 file"),
        (&["a.nra", "--against", "empty.h5"], 3, "not an HDF5 file, or damaged"),
        (&["empty.h5", "--against", "a.npy"], 3, "not an HDF5 file, or damaged"),
        (&["zeros.h5"], 3, "not an HDF5 file, or damaged"),
        (&["flipped.h5"], 3, "not an HDF5 file, or damaged at its beginning: its superblock says version 253"),
        (&["folder"], 1, "no Zarr store: it has no .zgroup"),
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

/// Name, type, and chunks; `None` is a chunk that is not there.
type Array<'a> = (&'a str, &'a str, [Option<&'a [u8]>; 2]);

/// A store of version 2 with arrays of two elements in chunks of one.
fn zarr(root: &Path, arrays: &[Array<'_>]) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for (name, dtype, chunks) in arrays {
        let folder = root.join(name);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            r#"{{"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": {dtype}, "order": "C", "filters": null,
                "compressor": null, "fill_value": null}}"#
        );
        fs::write(folder.join(".zarray"), text).unwrap();
        for (i, chunk) in chunks.iter().enumerate() {
            if let Some(bytes) = chunk {
                fs::write(folder.join(i.to_string()), bytes).unwrap();
            }
        }
    }
}

const F4: &str = r#""<f4""#;

#[test]
fn what_was_not_looked_at_is_said_and_not_good() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let one = 1f32.to_le_bytes();
    let whole = [Some(&one[..]), Some(&one[..])];
    zarr(&root.join("a.zarr"), &[("t", F4, whole), ("z", F4, whole)]);
    zarr(&root.join("more.zarr"), &[("t", F4, whole), ("u", F4, whole), ("z", F4, whole)]);
    zarr(&root.join("piped.zarr"), &[("t", F4, [Some(&one), None]), ("z", F4, whole)]);
    let made = Command::new("mkfifo").arg(root.join("piped.zarr/t/1")).status().unwrap();
    assert!(made.success());
    zarr(&root.join("linked.zarr"), &[("t", F4, whole)]);
    std::os::unix::fs::symlink(root.join("a.zarr/z"), root.join("linked.zarr/z")).unwrap();
    let wide = [one, one].concat();
    let wide = [Some(&wide[..]), Some(&wide[..])];
    let kinds = [("r", r#"[["a", "<i4"], ["b", "<f4"]]"#, wide), ("t", F4, whole)];
    zarr(&root.join("record.zarr"), &kinds);
    zarr(&root.join("number.zarr"), &[("r", r#""<f8""#, wide), ("t", F4, whole)]);
    let check = |args: &[&str]| text(&narrows(root, &[&["check"], args].concat()));
    for (args, part) in [
        (&["piped.zarr"][..], "not read: t/1: it is a pipe"),
        (&["linked.zarr"], "not read: z: it is a link to a folder"),
        (&["a.zarr", "--against", "piped.zarr"], "not compared: a part of it is not read: t/1"),
        (&["a.zarr", "--against", "more.zarr"], "not compared: only the original has u"),
        (&["more.zarr", "--against", "a.zarr"], "not compared: the original has no such variable"),
        (&["record.zarr", "--against", "number.zarr"], "not compared: record of 8 with f64: only numbers, and text"),
    ] {
        let (status, words) = check(args);
        assert!(status == Some(1) && words.contains(part) && !words.contains("good:"), "{args:?}: {status:?}: {words}");
        let (status, words) = check(&[args, &["--quiet"]].concat());
        assert!(status == Some(1) && words.contains(part), "quiet {args:?}: {status:?}: {words}");
        let (status, words) = check(&[args, &["--json"]].concat());
        let json: Value = serde_json::from_str(&words).unwrap();
        let said = (status, json["good"].as_bool(), json["damaged"].as_bool());
        assert_eq!(said, (Some(1), Some(false), Some(false)), "{args:?}: {words}");
        let variables = json["variables"].as_array().unwrap().iter();
        let mut listed = variables.chain([&json]).flat_map(|of| of["unseen"].as_array().unwrap());
        let part = part.split(": ").last().unwrap();
        assert!(listed.any(|line| line.as_str().unwrap().contains(part)), "{args:?}: {words}");
    }
    let text_of = |bytes: [&'static [u8]; 2]| [("s", r#""|S3""#, bytes.map(Some))];
    zarr(&root.join("text.zarr"), &text_of([b"abc", b"de\0"]));
    zarr(&root.join("other.zarr"), &text_of([b"abc", b"dE!"]));
    let (status, words) = check(&["text.zarr", "--against", "text.zarr"]);
    assert!(status == Some(0) && words.contains("same as the original"), "{words}");
    let (status, words) = check(&["text.zarr", "--against", "other.zarr"]);
    assert!(status == Some(0) && words.contains("2 of 6 bytes of text differ"), "{words}");
    for args in [
        &["a.zarr", "--against", "a.zarr"][..],
        &["more.zarr", "--variable", "t", "--against", "a.zarr"],
        &["piped.zarr", "--variable", "z"],
    ] {
        let (status, words) = check(args);
        assert!(status == Some(0) && words.contains("good:"), "{args:?}: {words}");
    }
    // Damage that hides variables is no wrong usage.
    zarr(&root.join("hidden.zarr"), &[("t", F4, whole)]);
    fs::write(root.join("hidden.zarr/t/.zarray"), "{").unwrap();
    fs::rename(root.join("hidden.zarr/t"), root.join("hidden.zarr/v")).unwrap();
    zarr(&root.join("none.zarr"), &[]);
    zarr(&root.join("else.zarr"), &[("y", F4, whole), ("x", F4, whole)]);
    for (args, wanted) in [("hidden.zarr", 3), ("none.zarr", 3), ("else.zarr", 2)] {
        let (status, words) = check(&[args, "--against", "a.zarr"]);
        assert!(status == Some(wanted), "{args}: {status:?}: {words}");
    }
    let (status, words) = check(&["none.zarr"]);
    assert!(status == Some(0) && words.contains("nothing was checked") && !words.contains("good:"), "{words}");
    let made = Command::new("mkfifo").arg(root.join("a.raw")).status().unwrap();
    assert!(made.success());
    let (status, words) = check(&["a.zarr", "--variable", "t", "--against", "a.raw"]);
    assert!(status == Some(1) && words.contains("only files are read"), "{words}");
}

#[test]
fn a_value_that_marks_what_is_missing_must_not_change() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let raw: Vec<u8> = (0..600)
        .flat_map(|i: i32| if i % 3 == 0 { -9999f32 } else { 280.0 + i as f32 / 1000.0 }.to_le_bytes())
        .collect();
    fs::write(root.join("a.raw"), &raw).unwrap();
    let store = |name: &str, files: &[(&str, &str)], chunk: &str| {
        fs::create_dir_all(root.join(name).join(chunk).parent().unwrap()).unwrap();
        for (file, text) in files {
            fs::write(root.join(name).join(file), text).unwrap();
        }
        fs::write(root.join(name).join(chunk), &raw).unwrap();
    };
    let two = |fill: &str| {
        format!(
            r#"{{"zarr_format": 2, "shape": [600], "chunks": [600], "dtype": "<f4", "order": "C", "filters": null,
                "compressor": null, "fill_value": {fill}}}"#
        )
    };
    let three = r#"{"zarr_format": 3, "node_type": "array", "shape": [600], "data_type": "float32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [600]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"_FillValue": "AAAAAICHw8A="}}"#;
    store("fill.zarr", &[(".zarray", &two("-9999.0"))], "0");
    store("named.zarr", &[(".zarray", &two("0")), (".zattrs", r#"{"missing_value": [1, -9999]}"#)], "0");
    store("none.zarr", &[(".zarray", &two("0"))], "0");
    store("three.zarr", &[("zarr.json", three)], "c/0");
    for (file, fill) in [("moved.nra", &[][..]), ("kept.nra", &["--fill", "-9.999E+3"])] {
        let args = [&["array", "encode", "a.raw", "--type", "f32", "--rel", "0.01", "-o", file], fill].concat();
        let output = narrows(root, &args);
        assert!(output.status.success(), "{}", text(&output).1);
    }
    for original in ["fill.zarr", "named.zarr", "three.zarr"] {
        let (status, words) = text(&narrows(root, &["check", "moved.nra", "--against", original]));
        assert!(status == Some(3) && words.contains("mark what is missing"), "{original}: {words}");
        let (status, words) = text(&narrows(root, &["check", "kept.nra", "--against", original]));
        assert!(status == Some(0) && words.contains("the bound holds"), "{original}: {words}");
        let json = narrows(root, &["check", "--json", "moved.nra", "--against", original]).stdout;
        let json: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["variables"][0]["against"]["missing_changed"], 200, "{json}");
    }
    let (status, words) = text(&narrows(root, &["check", "moved.nra", "--against", "none.zarr"]));
    assert!(status == Some(0) && words.contains("the bound holds"), "nobody says what is missing: {words}");
}
