//! `narrows mount`.
use std::process::ExitCode;
use anyhow::Result;
use crate::args::pack::MountArgs;
pub(crate) fn run(_args: &MountArgs) -> Result<ExitCode> { anyhow::bail!("not yet") }
