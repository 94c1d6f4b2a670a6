//! `narrows agent`: negotiates compression for the programs of this host.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_host::manager::Manager;
use narrows_run::agent::{ALL, Agent, Settings};
use narrows_run::raise_descriptor_limit;
use narrows_watch::page::{self, Metrics};
use narrows_watch::{Describe, logs, outlet};

use crate::args::agent::AgentArgs;
use crate::cmd::run::service_port;

/// Descriptors reserved for the agent itself.
const DESCRIPTORS_KEPT: usize = 32;

/// Runs `narrows agent` until it is terminated.
pub(crate) fn run(args: &AgentArgs) -> Result<()> {
    logs::start("agent", &args.watch.log(), logs::usual(args.quiet, false))?;
    outlet::start(false)?;
    let metrics = Metrics::bind(args.watch.metrics.as_deref())?;
    let service = address(args.listen.as_deref())?;
    let descriptors_max = raise_descriptor_limit().saturating_sub(DESCRIPTORS_KEPT) / 2;
    let gateway = args.allow.iter().copied().filter(|port| *port != service.port()).collect();
    let policy = args.policy.clone().unwrap_or_default();
    if !matches!(policy.name(), "balance" | "fixed") {
        return Err(Error::misuse("--policy: a gateway supports only `balance` and `fixed:METHOD`").into());
    }
    let settings = Settings { service, always: true, descriptors_max, gateway, policy, talks: !args.quiet };
    let mut agent = Agent::open(settings).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => {
            anyhow!(
                "this user already has an agent for {service}: another `narrows agent`, or a `narrows run`; end it \
                     (narrows status lists it), or set NARROWS_PORT to another port at both ends"
            )
        }
        _ => anyhow::Error::from(e).context("cannot start the agent"),
    })?;
    agent.open_service().with_context(|| format!("cannot listen on {service}"))?;
    let watched = agent.watched();
    let describe: Describe = Arc::new(move || watched.status(&service.to_string()));
    page::publish(&describe);
    if let Some(metrics) = metrics.start(&describe)? {
        page::tell(&metrics, args.quiet);
    }
    Manager::of_process().ready(&format!("answering on {service}"));
    agent.run();
    Ok(())
}

/// Parses `ADDR:PORT`, `ADDR`, `:PORT` or `PORT`.
fn address(text: Option<&str>) -> Result<SocketAddr> {
    let port = service_port(None).map_err(|e| Error::misuse(e.to_string()))?;
    let Some(text) = text else { return Ok(SocketAddr::new(ALL, port)) };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let port = text.trim_start_matches(':').parse().ok().filter(|port| *port != 0);
    let port = port.context(Error::misuse(format!("--listen: '{text}' is not ADDR:PORT, such as 10.0.0.1:7701")))?;
    Ok(SocketAddr::new(ALL, port))
}
