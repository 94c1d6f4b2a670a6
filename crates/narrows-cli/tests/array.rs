//! `narrows array`: .npy files and raw elements there and back, and what it says of wrong input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn narrows(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_narrows"))
        .arg("array")
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the program starts")
}

#[test]
fn arrays_come_back_exactly_or_within_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..60_000).map(|i| (i as f32 / 300.0).sin() * 20.0 + (i % 7) as f32 / 9.0).collect();
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(folder.path().join("a.f32"), &raw).unwrap();
    let run = |args: &[&str]| {
        let output = narrows(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    };
    run(&["encode", "a.f32", "--type", "f32", "--shape", "200,300", "-o", "a.nra"]);
    assert_eq!(run(&["decode", "a.nra", "--raw"]).stdout, raw);
    let npy = run(&["decode", "a.nra"]).stdout;
    assert_eq!(npy.len(), 128 + raw.len());
    fs::write(folder.path().join("a.npy"), &npy).unwrap();
    let said = run(&["encode", "a.npy", "--abs", "0.01", "-o", "b.nra", "--chunk", "64K"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("worst error"));
    let decoded = run(&["decode", "b.nra", "--raw"]).stdout;
    for (x, y) in values.iter().zip(decoded.chunks_exact(4)) {
        let y = f32::from_le_bytes(y.try_into().unwrap());
        assert!((f64::from(*x) - f64::from(y)).abs() <= 0.01);
    }
    let sizes = ["a.nra", "b.nra"].map(|f| fs::metadata(folder.path().join(f)).unwrap().len());
    assert!(sizes[1] * 2 < sizes[0] && sizes[0] < raw.len() as u64, "{sizes:?}");
    let table = String::from_utf8(run(&["bench", "a.npy"]).stdout).unwrap();
    assert!(table.contains("(chosen)") && table.contains("pco 8"), "{table}");
}

#[test]
fn wrong_input_has_the_exit_status_of_its_kind_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x"), [0; 50]).unwrap();
    let status = |args: &[&str]| narrows(folder.path(), args).status.code();
    assert_eq!(status(&["encode", "x", "--type", "f32", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "--type", "f32", "--shape", "3,3", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "--type", "f32", "--shape", "30", "-o", "y"]), Some(3));
    assert_eq!(status(&["encode", "x", "--type", "r50", "--abs", "-1", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "-o", "y"]), Some(3));
    assert_eq!(status(&["decode", "x", "-o", "y"]), Some(3));
    assert_eq!(status(&["encode", "gone", "-o", "y"]), Some(1));
    assert!(!folder.path().join("y").exists());
}
