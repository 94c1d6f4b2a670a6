//! `narrows completions`: a script for a shell.

use anyhow::Result;
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_complete::{Generator, generate};

use crate::args::shell::{CompletionsArgs, Shell};
use crate::{args, report};

/// Runs `narrows completions`.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let script = match args.shell {
        Shell::Bash => script(Bash),
        Shell::Zsh => script(Zsh),
        Shell::Fish => script(Fish),
    };
    report::out(String::from_utf8_lossy(&script).trim_end())
}

fn script(shell: impl Generator) -> Vec<u8> {
    // In memory: a failing write would be a panic.
    let mut script = Vec::new();
    generate(shell, &mut args::command(), "narrows", &mut script);
    script
}
