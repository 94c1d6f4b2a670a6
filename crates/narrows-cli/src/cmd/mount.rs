//! `narrows mount`: a pack as a folder.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows_file::OpenOptions;
use narrows_host::{follow, signals};
use narrows_pack::Pack;
use narrows_pack::mount::Mounted;

use crate::args::pack::MountArgs;
use crate::place::{self, Place};
use crate::report;
use crate::transfer::Transfer;

/// Time after which a signal is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What the process in the background says when it is mounted.
const READY: &[u8] = b"ready\n";

/// Runs `narrows mount`.
pub(crate) fn run(args: &MountArgs) -> Result<ExitCode> {
    if args.foreground || args.tells { here(args) } else { in_background(args) }
}

/// Starts this program once more, in the background, and waits until it has mounted.
fn in_background(args: &MountArgs) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--tells").args(args.allow_other.then_some("--allow-other"));
    command.args(args.nonempty.then_some("--nonempty"));
    command
        .arg("--cache")
        .arg(args.cache.to_string())
        .args(args.store.words())
        .arg("--")
        .arg(&args.file)
        .arg(&args.directory);
    // Signals of the keyboard are for the foreground.
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.by_ref().take(READY.len() as u64).read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // It has said why.
    let status = child.wait()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).max(1)))
}

fn here(args: &MountArgs) -> Result<ExitCode> {
    let transfer = Transfer::begin()?;
    let place = Place::parse(&args.file)?;
    let name = place.to_string();
    let source = place::open_read(&place, &args.store)?;
    let pack = Pack::open_with(source, OpenOptions::default().cache_max(args.cache));
    let pack = pack.map_err(|e| anyhow::Error::from(e).context(name.clone()))?;
    let shown = args.directory.display();
    let cannot = || format!("cannot mount on {shown}");
    let folder = follow::to_end(&args.directory).and_then(|place| place.path.canonicalize()).with_context(cannot)?;
    if !folder.metadata().with_context(cannot)?.is_dir() {
        return Err(anyhow!("cannot mount on {shown}: it is no folder"));
    }
    if !args.nonempty && folder.read_dir().is_ok_and(|mut names| names.next().is_some()) {
        return Err(anyhow!(
            "cannot mount on {shown}: it is not empty; give an empty folder, or --nonempty to hide what is in it"
        ));
    }
    let source = match &place {
        Place::Path(path) => path.canonicalize().map_or(name, |path| path.display().to_string()),
        Place::Object(_) => name,
    };
    let mounted = Mounted::new(pack, &folder, &source, args.allow_other);
    let mounted = mounted.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            anyhow!("cannot mount on {shown}: there is no /dev/fuse, or no fusermount3 (package fuse3): {e}")
        }
        _ => anyhow::Error::from(e).context(format!("cannot mount on {shown}")),
    })?;
    let unmounter = mounted.unmounter();
    let watch = move || {
        let mut told = false;
        // Until it can be unmounted: another mount may lie on it.
        loop {
            std::thread::sleep(LOOK_EVERY);
            match signals::received().map(|_| unmounter.unmount()) {
                None => {}
                Some(Ok(())) => break,
                Some(Err(e)) if !told => {
                    told = true;
                    report::note(format_args!("cannot unmount yet: {e}"));
                }
                Some(Err(_)) => {}
            }
        }
    };
    std::thread::Builder::new().name("narrows-watch".into()).spawn(watch)?;
    if args.tells {
        let mut output = io::stdout();
        output.write_all(READY).and_then(|()| output.flush())?;
        leave_terminal()?;
    }
    mounted.run().with_context(|| format!("the mount on {shown} ended"))?;
    drop(transfer);
    Ok(ExitCode::SUCCESS)
}

/// Lets go of what the caller may wait for, and of its folder.
fn leave_terminal() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // Without it, a hang-up of the terminal would end it.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")
}
