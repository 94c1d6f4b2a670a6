//! The parser of the one command that a command line names. To build those of all commands takes as long as to
//! send 50 KB at 1 Gbit/s, and touches a megabyte.

use std::ffi::OsString;

use clap::Args as ClapArgs;

use super::{Args, Command};

/// The names of all commands, in the order of the help.
pub(super) const COMMANDS: &[&str] = &[
    "pipe",
    "file",
    "cat",
    "list",
    "check",
    "pack",
    "unpack",
    "mount",
    "repack",
    "cp",
    "sync",
    "serve",
    "run",
    "agent",
    "status",
    "top",
    "tunnel",
    "send",
    "recv",
    "inspect",
    "demo",
    "oracle",
    "plan",
    "array",
    "hdf5",
    "measure",
    "ping",
    "bench",
    "train",
    "calibrate",
    "doctor",
    "completions",
    "man",
];

pub(super) fn is_command(word: &str) -> bool {
    COMMANDS.contains(&word)
}

/// Whether the user's file has options for the command, which come before those of the command line.
pub(super) fn has_defaults(words: &[OsString]) -> bool {
    words.get(1).is_some_and(|word| word == "cp" || word == "sync")
}

/// A valid command line that begins with a command. Everything else, such as wrong usage and help, is `None`, and
/// so for the whole parser, and so are commands with commands of their own.
pub(super) fn args(words: &[OsString]) -> Option<Args> {
    let (name, rest) = words.get(1..)?.split_first()?;
    let command = match name.to_str()? {
        "pipe" => Command::Pipe(Box::new(of(rest)?)),
        "cat" => Command::Cat(of(rest)?),
        "list" => Command::List(of(rest)?),
        "check" => Command::Check(of(rest)?),
        "pack" => Command::Pack(of(rest)?),
        "unpack" => Command::Unpack(of(rest)?),
        "mount" => Command::Mount(of(rest)?),
        "cp" => Command::Cp(Box::new(of(rest)?)),
        "sync" => Command::Sync(Box::new(of(rest)?)),
        "serve" => Command::Serve(of(rest)?),
        "run" => Command::Run(of(rest)?),
        "status" => Command::Status(of(rest)?),
        "send" => Command::Send(of(rest)?),
        "recv" => Command::Recv(of(rest)?),
        "inspect" => Command::Inspect(of(rest)?),
        "ping" => Command::Ping(of(rest)?),
        _ => return None,
    };
    Some(Args { command })
}

fn of<T: ClapArgs>(words: &[OsString]) -> Option<T> {
    let parser = T::augment_args(clap::Command::new("narrows").no_binary_name(true));
    T::from_arg_matches(&parser.try_get_matches_from(words).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_names_are_those_of_the_whole_parser() {
        let whole = Args::command();
        let names: Vec<_> = whole.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(names, COMMANDS);
        assert!(whole.get_subcommands().all(|command| command.get_all_aliases().next().is_none()));
    }

    /// The whole parser, which answers as for all commands, gets the rest.
    #[test]
    fn valid_lines_only_are_taken() {
        let of = |line: &str| {
            let words: Vec<_> = format!("narrows {line}").split(' ').map(OsString::from).collect();
            args(&words).map(|args| args.command)
        };
        let Some(Command::Send(send)) = of("send -q FILE tcp://127.0.0.1:7700 --policy fixed:lz4 -T 3") else {
            panic!()
        };
        assert_eq!((send.to.as_str(), send.flow.threads), ("tcp://127.0.0.1:7700", Some(3)));
        assert!(send.verbosity.quiet && send.flow.policy.is_some() && send.file.ends_with("FILE"));
        let Some(Command::Recv(recv)) = of("recv --listen 127.0.0.1:0 -o OUT") else { panic!() };
        assert!(recv.listen == "127.0.0.1:0" && recv.output.is_some_and(|path| path.ends_with("OUT")));
        assert!(matches!(of("pipe -d"), Some(Command::Pipe(args)) if args.file.decompress));
        assert!(matches!(of("cp -r a b"), Some(Command::Cp(args)) if args.recursive && args.paths.len() == 2));
        assert!(of("run true --help").is_some(), "the help of another program");
        for line in ["cat", "cat a", "list a", "check a", "pack -o p a", "unpack p", "mount p d", "sync a b", "status"]
        {
            assert!(of(line).is_some(), "{line}");
        }
        for line in [
            "send",
            "send --help",
            "send FILE",
            "pipe -h",
            "pipe --version",
            "recv --port 1",
            "cp a b --nothing",
            "cat --nothing",
            "cat --help",
            "help cat",
            "--help",
            "catt a",
            "tunnel",
        ] {
            assert!(of(line).is_none(), "{line}");
        }
        assert!(args(&[]).is_none() && args(&["narrows".into()]).is_none());
    }
}
