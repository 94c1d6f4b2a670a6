//! `narrows tunnel`: connections of one network that continue in another.

use std::process::ExitCode;

use anyhow::Result;
use narrows_tunnel::service;

use crate::args::tunnel::{TunnelArgs, TunnelCommand};

/// Runs `narrows tunnel` until it is over or a signal comes.
pub(crate) fn run(args: &TunnelArgs) -> Result<ExitCode> {
    match &args.command {
        Some(TunnelCommand::CheckConfig { file }) => service::check_config(file),
        None => service::run(&args.options()),
    }
}
