//! `narrows hdf5`: the folder of the filter, and parameters for other programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn narrows(program: &Path, args: &[&str]) -> Output {
    loop {
        match Command::new(program).arg("hdf5").args(args).output() {
            // A child of another test may hold the copied program open for writing, until it starts its own.
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            output => return output.expect("the program starts"),
        }
    }
}

fn said(args: &[&str]) -> String {
    let output = narrows(Path::new(env!("CARGO_BIN_EXE_narrows")), args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn parameters_are_what_each_program_takes() {
    assert_eq!(said(&["--params"]), "32768,1");
    assert_eq!(said(&["--repack", "--mode", "fast"]), "UD=32768,1,1,257");
    let (low, high) = (0.01f64.to_bits() as u32, (0.01f64.to_bits() >> 32) as u32);
    assert_eq!(said(&["--params", "--abs", "0.01"]), format!("32768,65537,{low},{high}"));
    let fill = 1e20f64.to_bits();
    let words = format!("{},3,{},{}", 1 | 1 << 12 | 1 << 20, fill as u32, fill >> 32);
    assert_eq!(said(&["--repack", "--digits", "3", "--fill", "1e20"]), format!("UD=32768,1,4,{words}"));
}

#[test]
fn fill_values_are_taken_as_numbers_are_written() {
    for fill in ["-1e+20", "-1E-5", "-.5", "-inf", "-9999", "nan"] {
        let bits = fill.parse::<f64>().unwrap().to_bits();
        let words = format!("{},{},{}", 1 | 1 << 12, bits as u32, bits >> 32);
        assert_eq!(said(&["--params", "--fill", fill]), format!("32768,{words}"));
    }
    assert_eq!(said(&["--params", "--encode-rate", "200MB/s"]), format!("32768,{},{}", 1 | 1 << 22, 2e8f32.to_bits()));
}

#[test]
fn the_folder_is_found_beside_the_program_and_below_a_prefix() {
    let tree = tempfile::tempdir().unwrap();
    let bin = tree.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("narrows");
    fs::copy(env!("CARGO_BIN_EXE_narrows"), &program).unwrap();
    let output = narrows(&program, &["--path"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("libnarrows_hdf5.so") && text.contains("make install"), "{text}");
    for folder in [tree.path().join("lib/narrows/hdf5"), bin.join("hdf5")] {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libnarrows_hdf5.so"), "").unwrap();
        let output = narrows(&program, &["--path"]);
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(Path::new(told.trim_end()), folder.canonicalize().unwrap());
    }
}

#[test]
fn wrong_usage_has_status_2() {
    let fails = |args: &[&str]| narrows(Path::new(env!("CARGO_BIN_EXE_narrows")), args).status.code();
    assert_eq!(fails(&[]), Some(2));
    assert_eq!(fails(&["--path", "--params"]), Some(2));
    assert_eq!(fails(&["--params", "--abs", "-1"]), Some(2));
    assert_eq!(fails(&["--params", "--fill", "1", "--fill", "2", "--fill", "3", "--fill", "4"]), Some(2));
}
