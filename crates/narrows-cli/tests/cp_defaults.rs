//! The file with default options of `cp` and `sync`.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::*;

fn run(home: &Path, config: Option<&Path>, args: &[&str]) -> Output {
    let mut command = narrows(home);
    command.current_dir(home).env_remove("NARROWS_CONFIG").env("XDG_CONFIG_HOME", home.join("config"));
    command.envs(config.map(|path| ("NARROWS_CONFIG", path)));
    finish(command.args(args).spawn().unwrap())
}

/// A folder with a source, and a configuration with this text.
fn world(text: &str) -> tempfile::TempDir {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("config/narrows")).unwrap();
    fs::write(h.join("config/narrows/config.toml"), text).unwrap();
    fs::create_dir(h.join("from")).unwrap();
    fs::write(h.join("from/a"), "a").unwrap();
    fs::write(h.join("from/b.o"), "b").unwrap();
    home
}

#[test]
fn options_of_the_file_count_unless_they_are_switched_off() {
    let home = world("[cp]\noptions = [\"-r\", \"--exclude\", \"*.o\", \"--fsync\", \"none\"]\n");
    let h = home.path();
    let output = run(h, None, &["cp", "from/", "one"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(h.join("one/a").exists() && !h.join("one/b.o").exists());
    // The command line counts more.
    let output = run(h, None, &["cp", "--fsync", "each", "from/", "two"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = run(h, None, &["cp", "--no-config", "from/", "three"]);
    assert_eq!(code(&output), 2, "no -r: {}", stderr(&output));
    let other = h.join("other.toml");
    fs::write(&other, "[cp]\noptions = [\"-r\"]\n").unwrap();
    let output = run(h, Some(&other), &["cp", "from/", "four"]);
    assert!(code(&output) == 0 && h.join("four/b.o").exists(), "{}", stderr(&output));
    let output = run(h, Some(Path::new("")), &["cp", "from/", "five"]);
    assert_eq!(code(&output), 2, "the empty variable is no file: {}", stderr(&output));
    let output = run(h, Some(&h.join("none")), &["cp", "-r", "from/", "six"]);
    assert!(code(&output) == 2 && stderr(&output).contains("cannot read"), "{}", stderr(&output));
    // Other commands have no defaults, so a bad file does not disturb them.
    fs::write(&other, "no toml").unwrap();
    let output = run(h, Some(&other), &["doctor", "--help"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = run(h, Some(&other), &["cp", "-r", "from/", "seven"]);
    assert!(code(&output) == 2 && stderr(&output).contains("other.toml: "), "{}", stderr(&output));
    assert!(!h.join("seven").exists());
}

#[test]
fn a_host_has_options_of_its_own() {
    let home = world("[hosts.far]\noptions = [\"--rsh\", \"./shell\", \"--remote-narrows\", \"narrows-of-far\"]\n");
    let h = home.path();
    let shell = h.join("shell");
    fs::write(&shell, "#!/bin/sh\necho \"$@\" >> words\nexit 255\n").unwrap();
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (place, reached) in [("far:x", true), ("me@far:x", true), ("near:x", false)] {
        let _ = fs::remove_file(h.join("words"));
        let output = run(h, None, &["cp", "-e", "./none", "from/a", place]);
        assert_ne!(code(&output), 0, "the command line counts more: {}", stderr(&output));
        assert!(!h.join("words").exists(), "{place}");
        let mut args = vec!["cp", "from/a", place];
        if !reached {
            args.extend(["-e", "./none"]);
        }
        run(h, None, &args);
        let words = fs::read_to_string(h.join("words")).unwrap_or_default();
        assert_eq!(words.contains("narrows-of-far serve --stdio"), reached, "{place}: {words}");
    }
}

/// Its words become a part of the command line: a value too many would be a source of every copy.
#[test]
fn words_that_would_be_paths_and_files_that_everybody_writes_are_refused() {
    for options in ["[\"-r\", \"4\"]", "[\"-r\", \"--exclude\"]"] {
        let home = world(&format!("[cp]\noptions = {options}\n"));
        let output = run(home.path(), None, &["cp", "from/", "to"]);
        assert_eq!(code(&output), 2, "{options}: {}", stderr(&output));
        assert!(stderr(&output).contains("a value too many or too few"), "{options}: {}", stderr(&output));
    }
    let home = world("[cp]\noptions = [\"-r\"]\n");
    let path = home.path().join("config/narrows/config.toml");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o646)).unwrap();
    let output = run(home.path(), None, &["cp", "from/", "to"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("chmod o-w"), "{}", stderr(&output));
}
