//! `narrows run`: runs an unmodified program whose connections are compressed.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, anyhow};

use crate::args::run::{EngineName, RunArgs, SupervisorPlace};
use crate::{flow, report};
use narrows_host::calibration;
use narrows_run::compressor::Compressor;
use narrows_run::launch::{Interception, Launch};
use narrows_run::negotiator::{SERVICE_PORT, Service};
use narrows_run::scope::Direct;
use narrows_run::supervisor::Settings;
use narrows_run::{agent, scope};

/// Exit status if `narrows run` itself fails, as of other program wrappers; 126 and 127 concern the
/// program.
const OWN_FAILURE: u8 = 125;

/// Runs `narrows run` and returns the exit status of the program.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let parent = match args.supervisor {
        SupervisorPlace::Parent => Some(true),
        SupervisorPlace::Detached => Some(false),
        SupervisorPlace::Auto => None,
    };
    let interception = match args.engine {
        EngineName::Auto => Interception::Auto,
        EngineName::Preload => Interception::Preload,
        EngineName::Seccomp => Interception::Seccomp,
    };
    let launch = match launch(args, interception, parent) {
        Ok(launch) => launch,
        Err(error) => {
            report::note(report::one_line(&error));
            return ExitCode::from(2);
        }
    };
    launch.run().unwrap_or_else(|error| {
        report::note(report::one_line(&error.into()));
        ExitCode::from(OWN_FAILURE)
    })
}

fn launch(args: &RunArgs, interception: Interception, parent: Option<bool>) -> Result<Launch<'_>> {
    let mut scope = scope::build(&args.only, &args.except, args.loopback)?;
    // Within this host frames gain nothing, unless the options ask for them.
    scope.within |= args.policy.is_some() || !args.peer.is_empty() || args.accept_direct;
    let direct = Direct::new(&args.peer, args.accept_direct)?;
    let port = service_port(args.service_port)?;
    let service = Service { port, address: args.service_address.unwrap_or(agent::ALL), may_serve: !args.no_agent };
    let policy = args.policy.clone().map(flow::with_file).transpose()?;
    let compressor = Arc::new(Compressor::new(policy, calibration::load(args.verbose)));
    let program = args.command.first().map(|c| c.display().to_string()).unwrap_or_default();
    let gateways = scope::gateways(&args.via_gateway)?;
    let settings = Settings { verbose: args.verbose, service, direct, compressor, program };
    let keeps_mptcp = args.keep_mptcp;
    Ok(Launch { command: &args.command, scope, keeps_mptcp, settings, gateways, interception, parent })
}

/// The service port: that of the option, of `NARROWS_PORT`, or the default.
pub(crate) fn service_port(flag: Option<u16>) -> Result<u16> {
    let Some(text) = env::var_os("NARROWS_PORT").filter(|_| flag.is_none()) else {
        return Ok(flag.unwrap_or(SERVICE_PORT));
    };
    let port = text.to_str().and_then(|t| t.parse().ok()).filter(|port| *port != 0);
    port.ok_or_else(|| anyhow!("NARROWS_PORT: '{}' is not a port, such as {SERVICE_PORT}", text.display()))
}
