//! Folders that the program writes, and what it keeps in them.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use narrows_host::{cache, calibration};
use narrows_trust::keys;
use rustix::fs::{Access, access};

use super::Check;
use crate::report;

pub(super) fn temporary() -> Check {
    let folder = env::temp_dir();
    let advice = "set TMPDIR to a folder that can be written; repack of objects needs it";
    of_folder("temporary", &folder, advice)
}

pub(super) fn cache() -> Check {
    const ADVICE: &str = "set XDG_CACHE_HOME to a folder that can be written; without it each transfer begins knowing \
                          nothing of this host and its peers";
    match cache::folder() {
        Some(folder) => of_folder("cache", &folder, ADVICE),
        None => Check::limited("cache", "neither XDG_CACHE_HOME nor HOME is set", ADVICE),
    }
}

pub(super) fn calibration() -> Check {
    const NAME: &str = "calibration";
    const ADVICE: &str = "narrows calibrate measures this host; the first transfer that lasts a second does so too";
    let Some(data) = calibration::path().and_then(|path| fs::metadata(path).ok()) else {
        return Check::missing(NAME, "not measured yet", ADVICE);
    };
    let Some(calibration) = calibration::load(false) else {
        return Check::limited(NAME, "what is stored is of another version or damaged", ADVICE);
    };
    let age = data.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
    Check::ok(NAME, format!("{}, {}", report::count(calibration.rows().len(), "method", "methods"), of_age(age)))
}

/// Where `serve` and `tunnel` keep their keys.
pub(super) fn keys() -> Check {
    const ADVICE: &str = "set XDG_STATE_HOME to a folder that can be written, or name a file with --key-file; serve and \
                          tunnel with --listen need it";
    match keys::path_of_user(keys::SERVE) {
        Ok(path) => of_folder("keys", path.parent().unwrap_or(Path::new("/")), ADVICE),
        Err(_) => Check::limited("keys", "neither XDG_STATE_HOME nor HOME is set", ADVICE),
    }
}

/// Whether files can be made in the folder, or the folder itself, which is made when it is needed.
fn of_folder(name: &'static str, folder: &Path, advice: &str) -> Check {
    let shown = folder.display();
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Check::limited(name, format!("{shown}: {} is no folder", existing.display()), advice);
    }
    match access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::ok(name, shown.to_string()),
        Err(e) => {
            let why = std::io::Error::from(e).to_string();
            let why = narrows_host::words::without_os_numbers(&why);
            Check::limited(name, format!("{shown} cannot be written: {why}"), advice)
        }
    }
}

fn of_age(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => "measured within the hour".to_owned(),
        hours @ 1..48 => format!("{hours} h old"),
        hours => format!("{} days old", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_folder_counts_by_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of_folder("x", &root.path().join("a/b"), "do").state, State::Ok);
        fs::write(root.path().join("file"), "").unwrap();
        let check = of_folder("x", &root.path().join("file/b"), "do");
        assert!(check.state == State::Limited && check.advice.as_deref() == Some("do") && !check.fails());
        assert!(check.found.contains("is no folder"), "{}", check.found);
    }

    #[test]
    fn ages_have_the_unit_that_matters() {
        let words = [10, 3700, 48 * 3600].map(|s| of_age(Duration::from_secs(s)));
        assert_eq!(words, ["measured within the hour", "1 h old", "2 days old"]);
    }
}
