//! Converts command-line options to the options of a flow.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows::calibration::Calibration;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::frame::BASELINE_HISTORY;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicyData, PolicySetup, PolicySpec};
use narrows::sender::SenderConfig;
use narrows::stream::{self, SendOptions};

use crate::args::FlowArgs;
use crate::files;

/// Maximum length of a prior. The built-in one has 30 KB for eleven methods; a policy takes at most
/// 16 methods.
const PRIOR_FILE_MAX: u64 = 1 << 20;
/// Maximum length of a file for a policy. A trace has 500 bytes per block, so this is half a
/// million blocks, or 64 GB in blocks of 128 KiB.
const POLICY_FILE_MAX: u64 = 256 << 20;

/// Number of decoding threads.
pub(crate) fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(stream::cores, usize::from)
}

/// The options for sending a flow; `timeout` in seconds, 0 for none.
pub(crate) fn send_options(args: &FlowArgs, calibration: Option<&Calibration>, timeout: f64) -> Result<SendOptions> {
    let threads = args.threads.map_or_else(stream::encoders, usize::from);
    let spec = spec(args);
    let block_max = spec.block_max();
    let history = args.history.unwrap_or(if spec.links(None) { BASELINE_HISTORY } else { 0 });
    let trace = match &args.trace {
        Some(path) => Some(Box::new(files::create(path)?) as Box<dyn Write + Send>),
        None => None,
    };
    Ok(SendOptions {
        sender: SenderConfig {
            block_max: args.block_max.unwrap_or(block_max),
            history,
            gather_ns: spec.gather_ns(),
            ..SenderConfig::default()
        },
        policy: policy(args, threads, calibration)?,
        threads,
        stall_timeout: seconds(timeout),
        trace,
        on_note: None,
    })
}

/// The requested policy, or `balance`.
pub(crate) fn spec(args: &FlowArgs) -> PolicySpec {
    args.policy.clone().unwrap_or(PolicySpec::Balance)
}

/// Builds the policy.
pub(crate) fn policy(args: &FlowArgs, cores: usize, calibration: Option<&Calibration>) -> Result<Box<dyn Policy>> {
    let methods: &[Method] = args.methods.as_ref().map_or(DEFAULT_METHODS, |l| &l.0);
    let own = args.prior.as_deref().map(read_prior).transpose()?;
    let prior = own.as_ref().unwrap_or(Prior::shipped());
    let spec = spec(args);
    let file = read_policy_file(&spec)?;
    Ok(spec.build(&PolicySetup { methods, cores, prior, calibration, file: file.as_ref() }))
}

/// Reads the file of a policy that has one; `None` if it has none, or if it will be created.
pub(crate) fn read_policy_file(spec: &PolicySpec) -> Result<Option<PolicyData>> {
    let Some(path) = spec.file().map(Path::new) else { return Ok(None) };
    if spec.keeps() && !path.exists() {
        return Ok(None);
    }
    let about = || format!("cannot use {} for --policy {spec}", path.display());
    let len = fs::metadata(path).with_context(about)?.len();
    ensure!(len <= POLICY_FILE_MAX, "{} is too long for --policy {spec}", path.display());
    Ok(Some(spec.read_file(&fs::read(path).with_context(about)?).with_context(about)?))
}

/// Stores what the policy learned in its file, if it has one.
pub(crate) fn keep(args: &FlowArgs, policy: &dyn Policy) -> Result<()> {
    let spec = spec(args);
    let (Some(path), Some(bytes)) = (spec.file().map(Path::new), policy.save()) else { return Ok(()) };
    files::write_whole(path, &bytes).with_context(|| format!("cannot keep what {spec} learned"))
}

fn read_prior(path: &Path) -> Result<Prior> {
    let about = || format!("cannot use the prior {}", path.display());
    let len = fs::metadata(path).with_context(about)?.len();
    ensure!(len <= PRIOR_FILE_MAX, "{} is too long for a prior", path.display());
    Prior::parse(&fs::read_to_string(path).with_context(about)?).with_context(about)
}

/// A time limit; 0 means none.
pub(crate) fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero())
}
