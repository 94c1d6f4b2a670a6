//! Converts command-line options to the options of a flow.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows::calibration::Calibration;
use narrows::monitor::cost::Prior;
use narrows::policy::{Policy, PolicySpec};
use narrows::stream::{self, SendOptions};

use crate::args::FlowArgs;
use crate::files;

/// Maximum length of a prior. The built-in one has 30 KB for eleven methods; a policy takes at most
/// 16 methods.
const PRIOR_FILE_MAX: u64 = 1 << 20;
/// Maximum length of a file for a policy. A trace has 500 bytes per block, so this is half a
/// million blocks, or 64 GB in blocks of 128 KiB.
const POLICY_FILE_MAX: u64 = 256 << 20;

/// Number of decoding threads; 0 is the default.
pub(crate) fn threads(asked: Option<u16>) -> usize {
    asked.filter(|n| *n > 0).map_or_else(stream::cores, usize::from)
}

/// The options for sending a flow; `timeout` in seconds, 0 for none.
pub(crate) fn send_options(args: &FlowArgs, calibration: Option<&Calibration>, timeout: f64) -> Result<SendOptions> {
    let mut options = SendOptions::new(with_file(spec(args))?).calibration(calibration).stall_timeout(seconds(timeout));
    if let Some(threads) = args.threads.filter(|n| *n > 0) {
        options = options.threads(threads.into());
    }
    if let Some(methods) = &args.methods {
        options = options.methods(&methods.0);
    }
    if let Some(path) = &args.prior {
        options = options.prior(read_prior(path)?);
    }
    if let Some(raw_len) = args.block_max {
        options = options.block_max(raw_len);
    }
    if let Some(len) = args.history {
        options = options.history(len);
    }
    if let Some(path) = &args.trace {
        options = options.trace(Box::new(files::create(path)?));
    }
    Ok(options)
}

/// The requested policy, or `balance`.
pub(crate) fn spec(args: &FlowArgs) -> PolicySpec {
    args.policy.clone().unwrap_or_default()
}

/// The policy with the contents of its file, if it has one; `None` if it has none, or if it will be created.
pub(crate) fn with_file(spec: PolicySpec) -> Result<PolicySpec> {
    let Some(path) = spec.file().map(Path::new) else { return Ok(spec) };
    if spec.keeps() && !path.exists() {
        return Ok(spec);
    }
    let about = || format!("cannot use {} for --policy {spec}", path.display());
    let len = fs::metadata(path).with_context(about)?.len();
    ensure!(len <= POLICY_FILE_MAX, "{} is too long for --policy {spec}", path.display());
    spec.load(&fs::read(path).with_context(about)?).with_context(about)
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
