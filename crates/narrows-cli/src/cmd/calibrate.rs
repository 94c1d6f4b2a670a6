//! `narrows calibrate`: measures the speed of this host.

use anyhow::{Context, Result};
use narrows::calibration::Calibration;

use crate::args::CalibrateArgs;
use crate::report;
use narrows_host::calibration;

/// Runs `narrows calibrate`.
pub(crate) fn run(args: &CalibrateArgs) -> Result<()> {
    if args.show {
        let calibration = calibration::load(true).context("nothing is stored; run `narrows calibrate`")?;
        return print(&calibration);
    }
    let calibration = calibration::measure(&|| false).context("the measurement was stopped")?;
    let path = calibration::store(&calibration)?;
    print(&calibration)?;
    report::note(format_args!("stored in {}", path.display()));
    Ok(())
}

fn print(calibration: &Calibration) -> Result<()> {
    report::out(format_args!("{:<16} {:>8} {:>8}   time against the reference host", "method", "encode", "decode"))?;
    for (method, encode, decode) in calibration.rows() {
        report::out(format_args!("{:<16} {:>7.2}x {:>7.2}x", method.to_string(), encode.exp(), decode.exp()))?;
    }
    Ok(())
}
