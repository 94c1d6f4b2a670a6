//! Options of `zstd`, `gzip` and `xz` that narrows has no use for: what to use instead.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Ends the program because of a wrong command line.
pub(super) fn refuse(error: &clap::Error) -> ! {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    if let Some(advice) = about_port(error).or_else(|| advice(error, &words)) {
        narrows_host::words::note(advice);
        std::process::exit(2);
    }
    error.exit()
}

/// Flags of `cp` without values, among which rsync's users write `h`, as in `-avh`.
const FLAGS: &str = "rRapztlHAXSogvqnuLxibc0D";

/// A command line without the `h` of `-avh`, which asks rsync for readable numbers and would ask for help
/// here. `-h` alone does.
pub(super) fn without_readable(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "cp" || word == "sync") {
        for word in words.iter_mut().skip(2).take_while(|word| *word != "--") {
            let flags = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|flags| flags.len() > 1);
            if let Some(flags) = flags.filter(|flags| flags.chars().all(|c| c == 'h' || FLAGS.contains(c))) {
                *word = format!("-{}", flags.replace('h', "")).into();
            }
        }
    }
    words
}

/// The word behind an `-i` that is a private key: scp's `-i KEY`, by which the key would be copied.
pub(super) fn key_as_source(words: &[OsString]) -> Option<&OsString> {
    if words.get(1).is_none_or(|word| word != "cp" && word != "sync") {
        return None;
    }
    let behind = words.windows(2).skip(1).take_while(|pair| pair[0] != "--").filter(|pair| pair[0] == "-i");
    behind.map(|pair| &pair[1]).find(|word| {
        let mut head = [0; 64];
        let path = std::path::Path::new(word);
        let is_file = path.metadata().is_ok_and(|data| data.is_file());
        let mut read = || std::io::Read::read(&mut std::fs::File::open(path).ok()?, &mut head).ok();
        is_file && read().is_some_and(|len| String::from_utf8_lossy(&head[..len]).contains("PRIVATE KEY"))
    })
}

/// What to do about `-P` without a port, which is an option of rsync.
fn about_port(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_port = option.starts_with("-P ") && error.kind() != ErrorKind::UnknownArgument;
    is_port.then(|| {
        "-P takes a port, as scp does; rsync's -P, progress and resuming, is always on: leave it out".to_owned()
    })
}

fn advice(error: &clap::Error, words: &[impl AsRef<str>]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let unknown = unknown.split_once('=').map_or(unknown.as_str(), |(name, _)| name);
    let first = words.first()?.as_ref();
    let level = words.iter().find_map(|word| level(word.as_ref())).filter(|_| unknown.len() == 2);
    let is_level = unknown.ends_with(|c: char| c.is_ascii_digit());
    match (first, level.filter(|_| is_level)) {
        ("pipe", Some(level)) => Some(format!(
            "-{level}: pipe has no levels, it adapts; leave it out, or fix the method with --policy fixed:zstd:level={level}"
        )),
        // Other commands than `file`, which `narrows FILE` is, have options of their own.
        (command, _) if command != "file" && super::is_command(command) => None,
        (_, Some(level)) => {
            let mode = match level {
                0..=1 => "use --mode fast",
                2..=9 => "leave it out, which is --mode balanced",
                _ => "use --mode archive",
            };
            Some(format!("-{level}: narrows has no levels; {mode} (of fast, balanced, archive)"))
        }
        _ => instead(unknown).map(|text| format!("{unknown} is no option of narrows; {text}")),
    }
}

/// The level in a word such as `-19` or `-dc3`.
fn level(word: &str) -> Option<u32> {
    let flags = word.strip_prefix('-')?.trim_start_matches(|c: char| c.is_ascii_alphabetic() && c != 'T' && c != 'o');
    let end = flags.find(|c: char| !c.is_ascii_digit()).unwrap_or(flags.len());
    flags[..end].parse().ok()
}

fn instead(option: &str) -> Option<&'static str> {
    Some(match option {
        "--fast" => "use --mode fast",
        "--ultra" | "--best" | "--extreme" | "-e" => "use --mode archive",
        "-r" | "--recursive" => {
            "pack a folder with tar -I narrows, or its files with find DIR -type f -exec narrows {} +"
        }
        "--check" | "-C" => "leave it out: checks are on unless --no-check is given",
        "-D" => "leave it out: files have no dictionaries, only messages have (narrows train)",
        "-M" | "--memory" | "--memlimit" | "--memlimit-decompress" => "use --long=LOG, with which -d takes 2^LOG bytes",
        "-S" | "--suffix" => "use -o FILE",
        "-n" | "-N" | "--name" | "--no-name" => "leave it out: names are not stored",
        "-b" => "use narrows bench codecs",
        "-B" | "--block-size" => "use --block-max SIZE",
        "-p" | "--processes" => "use -T N",
        "--single-thread" => "use -T 1",
        "--auto-threads" => "leave it out, or use -T 0",
        "-F" => "use --format narrows|zstd",
        "-H" => "use --help",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_numbers_are_no_request_for_help() {
        let of = |line: &str| {
            let words = without_readable(line.split(' ').map(OsString::from).collect());
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("narrows cp -avh a b"), "narrows cp -av a b");
        for same in [
            "narrows cp -h",
            "narrows cp -e ssh a b",
            "narrows cp -essh a b",
            "narrows cp -- -avh b",
            "narrows pipe -ch",
        ] {
            assert_eq!(of(same), same);
        }
    }

    #[test]
    fn levels_are_found_in_the_words_that_have_them_and_in_no_others() {
        for (word, found) in [
            ("-1", Some(1)),
            ("-19", Some(19)),
            ("-dc3", Some(3)),
            ("-9e", Some(9)),
            ("-3T4", Some(3)),
            ("-T4", None),
            ("-o1", None),
            ("--mode", None),
            ("file1", None),
            ("-", None),
            ("-99999999999", None),
        ] {
            assert_eq!(level(word), found, "{word}");
        }
    }
}
