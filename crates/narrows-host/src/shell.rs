//! The program that reaches another host: ssh, or the one of `-e`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// The command of a remote shell, with additional options if it is ssh.
///
/// # Errors
/// Why these are no words of a command.
pub fn command(shell: &OsStr) -> Result<Command, String> {
    let wrong = |what: &str| format!("the remote shell of -e {what}");
    let words = shlex::bytes::split(shell.as_bytes()).ok_or_else(|| wrong("has a quote that does not end"))?;
    let mut words = words.into_iter().map(OsString::from_vec);
    let program = words.next().ok_or_else(|| wrong("is empty"))?;
    let mut command = Command::new(program);
    command.args(words);
    if is_ssh(&command) {
        // Compressing twice costs time and saves nothing; no terminal and no forwarded agent are needed.
        command.args(["-o", "Compression=no", "-T", "-a", "-x"]);
    }
    Ok(command)
}

/// The words of [`command`].
///
/// # Errors
/// Those of [`command`].
pub fn words(shell: &OsStr) -> Result<Vec<OsString>, String> {
    let command = command(shell)?;
    Ok([command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_owned).collect())
}

/// Whether a command starts ssh.
pub fn is_ssh(command: &Command) -> bool {
    Path::new(command.get_program()).file_name() == Some(OsStr::new("ssh"))
}
