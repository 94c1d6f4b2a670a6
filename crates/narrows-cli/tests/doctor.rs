//! `narrows doctor`: what it says is so, and it fails only where nothing would work.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::common::*;

fn doctor(home: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = narrows(home);
    command.arg("doctor").args(args).env("XDG_STATE_HOME", home).env_remove("HDF5_PLUGIN_PATH");
    finish(command.envs(variables.iter().copied()).spawn().unwrap())
}

fn checks(home: &Path, variables: &[(&str, &str)]) -> Value {
    let output = doctor(home, variables, &["--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["works"], true);
    json["checks"].clone()
}

fn check(checks: &Value, name: &str) -> Value {
    let found = checks.as_array().unwrap().iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {checks}")).clone()
}

#[test]
fn each_part_has_a_line_and_what_is_wrong_says_what_to_do() {
    let home = home();
    let all = checks(home.path(), &[]);
    for name in ["codecs", "threads"] {
        assert!(check(&all, name)["state"] == "ok" && check(&all, name)["needed"] == true);
    }
    for row in all.as_array().unwrap() {
        assert!(["ok", "limited", "missing"].contains(&row["state"].as_str().unwrap()), "{row}");
        assert!(row["state"] == "ok" || !row["advice"].as_str().unwrap().is_empty(), "{row}");
        assert!(!row["found"].as_str().unwrap().contains('\n'), "{row}");
    }
    let output = doctor(home.path(), &[], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["cores", "ports", "preload", "seccomp", "mount", "ssh", "hdf5"] {
        assert!(text.lines().any(|line| line.split_whitespace().nth(1) == Some(name)), "{name}: {text}");
    }
    assert!(entries(home.path()).is_empty(), "nothing is stored");
}

#[test]
fn it_finds_the_calibration_and_its_age() {
    let home = home();
    assert_eq!(check(&checks(home.path(), &[]), "calibration")["state"], "missing");
    let folder = home.path().join("narrows");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("calibration"), "nonsense").unwrap();
    assert_eq!(check(&checks(home.path(), &[]), "calibration")["state"], "limited");
    assert_eq!(code(&finish(narrows(home.path()).arg("calibrate").spawn().unwrap())), 0);
    let file = fs::File::options().write(true).open(folder.join("calibration")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3 * 86_400 + 60)).unwrap();
    let found = check(&checks(home.path(), &[]), "calibration");
    assert!(found["state"] == "ok" && found["found"].as_str().unwrap().ends_with("3 days old"), "{found}");
}

#[test]
fn it_finds_what_is_in_the_way() {
    let home = home();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let all = checks(
        home.path(),
        &[
            ("XDG_CACHE_HOME", file),
            ("XDG_STATE_HOME", file),
            ("TMPDIR", file),
            ("NARROWS_PORT", &port),
            ("NARROWS_PRELOAD", "/nowhere"),
            ("PATH", "/nowhere"),
        ],
    );
    for name in ["cache", "keys", "temporary"] {
        let found = check(&all, name);
        assert!(found["state"] == "limited" && found["found"].as_str().unwrap().contains("no folder"), "{found}");
    }
    let ports = check(&all, "ports");
    assert!(ports["state"] == "limited" && ports["advice"].as_str().unwrap().contains(&port), "{ports}");
    for name in ["preload", "ssh", "tar"] {
        assert_eq!(check(&all, name)["state"], "missing", "{name}");
    }
}

#[test]
fn the_library_of_run_is_tried() {
    let home = home();
    let found = check(&checks(home.path(), &[]), "preload");
    assert_eq!(found["state"], "ok", "{found}");
    let no_library = home.path().join("libnarrows_preload.so");
    fs::write(&no_library, "no library").unwrap();
    let found = check(&checks(home.path(), &[("NARROWS_PRELOAD", no_library.to_str().unwrap())]), "preload");
    assert!(found["state"] == "missing" && found["found"].as_str().unwrap().contains("not loaded"), "{found}");
}
