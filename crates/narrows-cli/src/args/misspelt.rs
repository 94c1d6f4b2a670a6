//! Command lines without a command, whose first word may have been meant as one: the files behind it would be
//! compressed then, and with --rm removed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use narrows_host::words::{note, shown};

use super::named::{COMMANDS, is_command};

/// What people call what narrows does, and the command line that does it.
const HABITS: &[(&str, &str)] = &[
    ("compress", "narrows FILE"),
    ("encode", "narrows FILE"),
    ("zip", "narrows FILE"),
    ("decompress", "narrows -d FILE"),
    ("uncompress", "narrows -d FILE"),
    ("decode", "narrows -d FILE"),
    ("unzip", "narrows -d FILE"),
    ("test", "narrows -t FILE"),
    ("verify", "narrows check"),
    ("extract", "narrows unpack"),
    ("archive", "narrows pack"),
    ("create", "narrows pack"),
    ("info", "narrows inspect"),
    ("ls", "narrows list"),
    ("copy", "narrows cp"),
    ("scp", "narrows cp"),
    ("rsync", "narrows cp"),
    ("mirror", "narrows sync"),
    ("receive", "narrows recv"),
    ("server", "narrows serve"),
    ("proxy", "narrows tunnel"),
    ("umount", "umount FOLDER"),
    ("unmount", "umount FOLDER"),
    ("version", "narrows --version"),
];

/// Ends the program if the first word is neither an option nor a file.
pub(super) fn refuse_first(first: Option<&OsString>) {
    let Some(first) = first.filter(|first| !first.as_encoded_bytes().starts_with(b"-") && is_no_file(first)) else {
        return;
    };
    let advice = first.to_str().and_then(meant).map_or_else(String::new, |meant| format!(" did you mean `{meant}`?"));
    let first = shown(first.as_encoded_bytes());
    note(format_args!("{first} is neither a file nor a command;{advice} see narrows --help"));
    std::process::exit(2);
}

/// Ends the program if the first of several files behind options is none, but is or resembles a command.
pub(super) fn refuse_behind_options(files: &[PathBuf]) {
    let [first, _, ..] = files else { return };
    let meant = Some(first).filter(|first| is_no_file(first.as_os_str())).and_then(|first| meant(first.to_str()?));
    let Some(meant) = meant else { return };
    let first = shown(first.as_os_str().as_encoded_bytes());
    note(format_args!("{first} is no file; if you meant the command, it comes before its options: `{meant}`"));
    std::process::exit(2);
}

/// Whether a word is no file, and looks like a command: a path or an address does not.
fn is_no_file(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_missing = || path.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    !word.is_empty() && word != "-" && !word.as_encoded_bytes().contains(&b'/') && is_missing()
}

/// The command line that a word was meant for.
fn meant(word: &str) -> Option<String> {
    let habit = |word: &str| HABITS.iter().find(|(name, _)| *name == word).map(|(_, line)| (*line).to_owned());
    let of_command = |name: &str| format!("narrows {name}");
    let lower = word.to_lowercase();
    if is_command(&lower) {
        return Some(of_command(&lower));
    }
    let known = COMMANDS.iter().copied().chain(HABITS.iter().map(|(name, _)| *name));
    let name = habit(&lower).is_none().then(|| narrows_host::near::nearest(&lower, known)).flatten();
    habit(&lower).or_else(|| name.map(|name| habit(name).unwrap_or_else(|| of_command(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_the_commands_that_they_resemble() {
        for (word, line) in [
            ("chekc", Some("narrows check")),
            ("compres", Some("narrows FILE")),
            ("Compress", Some("narrows FILE")),
            ("decompress", Some("narrows -d FILE")),
            ("CP", Some("narrows cp")),
            ("rsync", Some("narrows cp")),
            ("unpakc", Some("narrows unpack")),
            ("cat", Some("narrows cat")),
            ("notes.txt", None),
            ("x", None),
        ] {
            assert_eq!(meant(word).as_deref(), line, "{word}");
        }
    }

    /// A file of the name of a habit is compressed; one of a command needs its folder.
    #[test]
    fn no_habit_is_a_command() {
        HABITS.iter().for_each(|(name, _)| assert!(!is_command(name), "{name}"));
    }
}
