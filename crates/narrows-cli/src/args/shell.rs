//! Command-line definitions of `narrows completions` and `narrows man`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

#[derive(ClapArgs)]
#[command(after_long_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(ClapArgs)]
#[command(after_long_help = MAN_HELP)]
pub(crate) struct ManArgs {
    /// Folder that gets one page for each command; it is made if it is missing [default: the page of
    /// the program goes to stdout]
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

const COMPLETIONS_HELP: &str = "\
Prints a script that completes commands and options. Packages install it; by hand:

EXAMPLES
  narrows completions bash >~/.local/share/bash-completion/completions/narrows
  narrows completions zsh >~/.zfunc/_narrows
  narrows completions fish >~/.config/fish/completions/narrows.fish";

const MAN_HELP: &str = "\
The pages say what --help says. Their date is today, or that of SOURCE_DATE_EPOCH if it is set, so that packages can be built \
again with the same bytes.

EXAMPLES
  narrows man | man -l -
  narrows man ~/.local/share/man/man1";
