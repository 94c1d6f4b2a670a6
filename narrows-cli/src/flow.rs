//! From flags to a running flow: sources, sinks, options, signals.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows::calibration::Calibration;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::frame::BASELINE_HISTORY;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySetup, PolicySpec};
use narrows::sender::SenderConfig;
use narrows::stream::{self, Control, SendOptions};
use tempfile::NamedTempFile;

use crate::args::FlowArgs;

/// The longest blocks that `balance` ever wants; a fixed method gets what suits most of them.
const BALANCE_BLOCK_MAX: usize = 512 << 10;
const FIXED_BLOCK_MAX: usize = 128 << 10;

pub(crate) fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(stream::cores, usize::from)
}

pub(crate) fn send_options(args: &FlowArgs, calibration: Option<&Calibration>, timeout: f64) -> Result<SendOptions> {
    let threads = threads(args.threads);
    let (block_max, linked) = match args.policy {
        PolicySpec::Balance => (BALANCE_BLOCK_MAX, false),
        PolicySpec::Fixed { linked, .. } => (FIXED_BLOCK_MAX, linked),
    };
    let history = args.history.unwrap_or(if linked { BASELINE_HISTORY } else { 0 });
    let trace = match &args.trace {
        Some(path) => Some(Box::new(create(path)?) as Box<dyn Write + Send>),
        None => None,
    };
    Ok(SendOptions {
        sender: SenderConfig { block_max: args.block_max.unwrap_or(block_max), history, ..SenderConfig::default() },
        policy: policy(args, threads, calibration),
        threads,
        stall_timeout: seconds(timeout),
        trace,
    })
}

pub(crate) fn policy(args: &FlowArgs, cores: usize, calibration: Option<&Calibration>) -> Box<dyn Policy> {
    let methods: &[Method] = args.methods.as_ref().map_or(DEFAULT_METHODS, |l| &l.0);
    args.policy.build(&PolicySetup { methods, cores, prior: Prior::shipped(), calibration })
}

/// 0 = no limit.
pub(crate) fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero())
}

pub(crate) fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// stdin or stdout as a file, without the standard library's buffers and locks.
pub(crate) fn stdin() -> Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

pub(crate) fn stdout() -> Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// The reader of our standard output went away.
#[derive(Debug)]
pub(crate) struct StdoutClosed;

impl std::fmt::Display for StdoutClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader of the output went away")
    }
}

impl std::error::Error for StdoutClosed {}

/// A file that is read to its end and must not change meanwhile.
pub(crate) struct Source {
    file: File,
    name: String,
    expected: Option<u64>,
    read: u64,
}

impl Source {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|p| !is_dash(p)) else {
            return Ok(Self { file: stdin()?, name: "stdin".into(), expected: None, read: 0 });
        };
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
        let data = file.metadata()?;
        if data.is_dir() {
            return Err(anyhow!("cannot read {name}: it is a folder; pack it with tar and pipe that in"));
        }
        // Pipes, devices and files of /proc have no length to hold them to.
        let expected = (data.is_file() && data.len() > 0).then_some(data.len());
        Ok(Self { file, name, expected, read: 0 })
    }

    pub(crate) fn len(&self) -> Option<u64> {
        self.expected
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.read += n as u64;
        match self.expected {
            Some(len) if self.read > len || n == 0 && self.read < len => Err(io::Error::other(format!(
                "{} changed while it was read: it had {len} bytes, now {}",
                self.name,
                if self.read > len { "more" } else { "less" }
            ))),
            _ => Ok(n),
        }
    }
}

/// Where raw or wire bytes go. A regular file gets its name only when it is whole.
pub(crate) enum Target {
    Stdout,
    /// A device or a named pipe: written in place.
    Special(File),
    Whole {
        temporary: NamedTempFile,
        path: PathBuf,
    },
}

impl Target {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|p| !is_dash(p)) else { return Ok(Self::Stdout) };
        let cannot = || format!("cannot write {}", path.display());
        match path.metadata() {
            Ok(data) if data.is_dir() => return Err(anyhow!("{}: it is a folder", cannot())),
            Ok(data) if !data.is_file() => {
                return Ok(Self::Special(File::options().write(true).open(path).with_context(cannot)?));
            }
            _ => {}
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".narrows-")
            .suffix(".part")
            .permissions(permissions_for_new_files())
            .tempfile_in(folder)
            .with_context(cannot)?;
        Ok(Self::Whole { temporary, path: path.to_owned() })
    }

    pub(crate) fn file(&self) -> Result<File> {
        match self {
            Self::Stdout => stdout(),
            Self::Special(file) => Ok(file.try_clone()?),
            Self::Whole { temporary, .. } => Ok(temporary.as_file().try_clone()?),
        }
    }

    /// Everything was written: the file gets its name.
    pub(crate) fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::Special(_) => Ok(()),
            Self::Whole { temporary, path } => {
                if fsync {
                    temporary.as_file().sync_all()?;
                }
                temporary.persist(path).map(drop).map_err(|e| e.error)
            }
        }
    }
}

/// What `open` would give a new file; the process's umask is applied by the system.
fn permissions_for_new_files() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

/// SIGINT and SIGTERM stop the flow, so that temporaries go and the peer is told. A second one ends at once.
pub(crate) fn stop_on_signals(control: &Arc<Control>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    let control = Arc::clone(control);
    std::thread::spawn(move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                std::process::exit(128 + signal);
            }
            control.stop();
        }
    });
    Ok(())
}
