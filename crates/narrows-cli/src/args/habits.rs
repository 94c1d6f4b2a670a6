//! Options of `zstd`, `gzip`, `xz`, `rsync` and `scp` that narrows has no use for: what to use instead.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use narrows_host::near::nearest;

use crate::files::{StdoutClosed, stdout_is_given};

/// Options that are never a tip: they remove or overwrite something, or protection.
const NO_TIPS: &[&str] = &["rm", "delete", "remove-source-files", "force", "yes", "insecure"];

/// Ends the program because of a wrong command line for `parser`, or one that asks for help.
pub(super) fn refuse(mut error: clap::Error, parser: clap::Command) -> ! {
    if !error.use_stderr() {
        show(|| error.print());
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    if let Some(advice) = about_port(&error).or_else(|| advice(&error, &words)) {
        narrows_host::words::note(advice);
        std::process::exit(2);
    }
    set_tips(&mut error, parser, &words);
    error.exit()
}

/// Prints the help or version that was asked for, and ends. Who redirects it wants to know if it is not all
/// there.
pub(super) fn show(print: impl FnOnce() -> io::Result<()>) -> ! {
    let shown = || -> anyhow::Result<()> {
        stdout_is_given()?;
        match print().and_then(|()| io::stdout().flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
            result => anyhow::Context::context(result, "cannot write stdout"),
        }
    };
    match shown() {
        Ok(()) => std::process::exit(0),
        Err(e) if e.is::<StdoutClosed>() => narrows_host::signals::die_of_closed_pipe(),
        Err(e) => {
            narrows_host::words::note(crate::report::one_line(&e));
            std::process::exit(1);
        }
    }
}

/// Replaces clap's tips, which are words that share some letters with the wrong one, by such as are near.
fn set_tips(error: &mut clap::Error, mut parser: clap::Command, words: &[impl AsRef<str>]) {
    let of_clap = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    // The usage line has the option that clap suggests.
    let has_tip = of_clap.map(|kind| error.remove(kind).is_some()).contains(&true);
    error.remove(ContextKind::Suggested);
    parser.build();
    let mut command = &mut parser;
    for word in words {
        if command.find_subcommand(word.as_ref()).is_none() {
            break;
        }
        command = command.find_subcommand_mut(word.as_ref()).expect("it was found");
    }
    if has_tip && error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    let text = |kind| if let Some(ContextValue::String(text)) = error.get(kind) { Some(text.clone()) } else { None };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(unknown) = text(ContextKind::InvalidArg) else { return };
            let Some(unknown) = unknown.strip_prefix("--") else { return };
            let unknown = unknown.split_once('=').map_or(unknown, |(name, _)| name);
            let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let names = args.filter_map(clap::Arg::get_long_and_visible_aliases).flatten();
            if let Some(near) = nearest(unknown, names.filter(|name| !NO_TIPS.contains(name))) {
                error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{near}")));
            }
        }
        ErrorKind::InvalidSubcommand => {
            let Some(unknown) = text(ContextKind::InvalidSubcommand) else { return };
            if let Some(near) = nearest(&unknown, command.get_subcommands().map(clap::Command::get_name)) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.to_owned()));
            }
        }
        ErrorKind::InvalidValue => {
            let Some(unknown) = text(ContextKind::InvalidValue) else { return };
            let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) else { return };
            if let Some(near) = nearest(&unknown, valid.iter().map(String::as_str)).map(str::to_owned) {
                error.insert(ContextKind::SuggestedValue, ContextValue::String(near));
            }
        }
        _ => {}
    }
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

/// The option of ssh in an `-o NAME=VALUE` or `-oNAME=VALUE`, as scp takes it; alone the value would be copied.
pub(super) fn ssh_option(words: &[OsString]) -> Option<&str> {
    if words.get(1).is_none_or(|word| word != "cp" && word != "sync") {
        return None;
    }
    let is_option = |text: &&str| {
        let name = text.split_once('=').map_or("", |(name, _)| name);
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let own = words.iter().skip(2).take_while(|word| *word != "--").collect::<Vec<_>>();
    let apart = own.windows(2).filter(|pair| pair[0] == "-o").map(|pair| pair[1]);
    let apart = apart.filter(|word| std::path::Path::new(word).symlink_metadata().is_err());
    let apart = apart.filter_map(|word| word.to_str());
    let joined = own.iter().filter_map(|word| word.to_str()?.strip_prefix("-o"));
    apart.chain(joined).find(is_option)
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
    let (command, text) = match first {
        "cp" | "sync" => (format!("narrows {first}"), instead_in_copies(unknown)?),
        // Other commands than these, which `narrows FILE` is, have options of their own.
        _ if first != "file" && first != "pipe" && super::named::is_command(first) => return None,
        _ => ("narrows".to_owned(), instead(unknown)?),
    };
    Some(format!("{unknown} is no option of {command}; {text}"))
}

/// Of `rsync` and `scp`.
fn instead_in_copies(option: &str) -> Option<&'static str> {
    Some(match option {
        "-C" => "scp's, compression, is always on: leave it out; for rsync's, which leaves files out, use --exclude",
        "--cvs-exclude" | "--filter" | "--exclude-from" | "--include-from" | "-f" | "-F" => {
            "use --exclude and --include; scp's -F FILE is -e 'ssh -F FILE'"
        }
        "--chmod" | "--chown" | "--usermap" | "--groupmap" => {
            "modes are those of the source, owners too for root: change them at the target when all is copied"
        }
        "--relative" => "use --files-from, which keeps the paths that it lists",
        "--inplace" | "--append" | "--append-verify" | "--whole-file" | "-W" => {
            "leave it out: of changed files only what differs is sent, and they get their names when they are whole"
        }
        "--compare-dest" | "--copy-dest" => "use --link-dest DIR",
        "--delete-before" | "--delete-during" | "--delete-after" | "--delete-delay" | "--del" => {
            "the only way of --delete here is when everything is stored"
        }
        "--ignore-times" | "-I" => "use --checksum, which compares contents",
        "--temp-dir" | "-T" => "use --partial-dir DIR",
        "--rsync-path" => "use --remote-narrows PROGRAM",
        "--port" => "use -P PORT",
        "--stats" | "--info" | "--out-format" | "--log-format" => "use -v, -i or --json",
        "--contimeout" => "use --timeout SECONDS",
        "-J" => "use -e 'ssh -J HOST'",
        "-4" | "-6" => "use -e 'ssh -4' or -e 'ssh -6'",
        _ => return None,
    })
}

fn instead(option: &str) -> Option<&'static str> {
    Some(match option {
        "--extreme" | "-e" => "use --mode archive",
        "-D" => "leave it out: files have no dictionaries, only messages have (narrows train)",
        "-M" | "--memory" | "--memlimit" | "--memlimit-decompress" => "use --long=LOG, with which -d takes 2^LOG bytes",
        "-S" | "--suffix" => "use -o FILE",
        "-N" | "--name" => "leave it out: names are not stored",
        "-b" => "use narrows bench codecs",
        "-B" | "--block-size" => "use --block-max SIZE",
        "-p" | "--processes" => "use -T N",
        "--output-dir-mirror" => "use --output-dir-flat DIR, or narrows cp",
        "--auto-threads" => "leave it out, or use -T 0",
        "-F" => "use --format narrows|zstd",
        "--stream-size" | "--size-hint" => "leave it out: nothing depends on a length that is not known",
        "--exclude-compressed" => "leave it out: blocks that do not shrink are stored as they are",
        "--patch-from" => "use narrows cp, which sends what differs from the file that is there",
        "--filelist" | "--files" => "use xargs narrows",
        "--pass-through" => "use -dcf",
        "--asyncio" | "--no-asyncio" | "--rsyncable" | "--no-dictID" => "leave it out",
        "--train" => "use narrows train",
        "-H" => "use --help",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ssh_are_known_from_flags_of_rsync() {
        let of = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            ssh_option(&words).map(str::to_owned)
        };
        for line in ["narrows cp -o Port=22 a h:", "narrows sync a h: -oPort=22", "narrows cp -r -o BatchMode=yes a b"]
        {
            assert!(of(line).is_some_and(|option| line.contains(&option) && option.contains('=')), "{line}");
        }
        for line in [
            "narrows cp -o a b=c",
            "narrows cp -ogD A=b c",
            "narrows cp -e ssh -o src/A=b c",
            "narrows cp -- -o A=b",
            "narrows pipe -o A=b",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

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
}
