//! Symbolic links that another user put into a folder where everyone may write: an output goes through them if
//! the output of a shell does, which `fs.protected_symlinks` decides.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use super::{folder, sample};
use crate::common;

const NARROWS: &str = env!("CARGO_BIN_EXE_narrows");
const ALICE: u32 = 1234;
const MALLORY: u32 = 1235;

fn as_alice(home: &Path, line: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1234", "--regid=1234", "--clear-groups"]).args(line).current_dir(home);
    command.env("HOME", home.join("own")).env("XDG_CACHE_HOME", home.join("own")).env("NARROWS_CONFIG", "");
    command
}

#[test]
fn an_output_follows_links_of_others_only_if_that_of_a_shell_does() {
    if !rustix::process::geteuid().is_root() {
        return narrows_test::skip("needs root, to become two others");
    }
    if !narrows_test::has("setpriv") {
        return;
    }
    let home = folder();
    let at = |name: &str| home.path().join(name);
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if !as_alice(home.path(), &[NARROWS, "--version"]).output().is_ok_and(|output| output.status.success()) {
        return narrows_test::skip("this cannot be run as another user");
    }
    for (name, mode, owner) in [("own", 0o755, ALICE), ("shared", 0o1777, 0)] {
        fs::create_dir(at(name)).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        chown(at(name), Some(owner), Some(owner)).unwrap();
    }
    fs::write(at("f"), sample(2000)).unwrap();
    assert!(common::narrows(home.path()).arg("pipe").arg(at("f")).output().unwrap().status.success());
    // Whether something came through the link, to a file that is there or to one that is not.
    let came_through = |line: &[&str], exists: bool| {
        let (victim, link) = (at("own/victim"), at("shared/out"));
        let _ = fs::remove_file(&victim);
        if exists {
            fs::write(&victim, "precious").unwrap();
            chown(&victim, Some(ALICE), Some(ALICE)).unwrap();
        }
        symlink(&victim, &link).unwrap();
        lchown(&link, Some(MALLORY), Some(MALLORY)).unwrap();
        let output = as_alice(home.path(), line).output().unwrap();
        let came = if exists { fs::read(&victim).unwrap() != b"precious" } else { victim.exists() };
        // Whatever came through went there alone.
        assert!(link.symlink_metadata().is_ok_and(|data| data.is_symlink()), "{line:?}");
        assert_eq!(output.status.success(), came, "{line:?}: {}", common::stderr(&output));
        fs::remove_file(&link).unwrap();
        came
    };
    for exists in [true, false] {
        let expected = came_through(&["sh", "-c", "echo x > shared/out"], exists);
        let lines: [&[&str]; 7] = [
            &["pipe", "-q", "-f", "-o", "shared/out", "f"],
            &["pipe", "-q", "-d", "-f", "-o", "shared/out", "f.nrw"],
            &["-q", "-f", "-o", "shared/out", "f"],
            &["pack", "-q", "-f", "-o", "shared/out", "f"],
            &["array", "encode", "-q", "-f", "--type", "u8", "-o", "shared/out", "f"],
            &["pipe", "-q", "-c", "--trace", "shared/out", "f"],
            &["plan", "--json", "--html", "shared/out"],
        ];
        for line in lines {
            let line = [&[NARROWS], line].concat();
            assert_eq!(came_through(&line, exists), expected, "{line:?}");
        }
    }
}
