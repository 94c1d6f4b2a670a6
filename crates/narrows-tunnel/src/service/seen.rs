//! Status, metrics, traces and log of a tunnel.

use std::sync::Arc;

use anyhow::Result;
use narrows_watch::page::{self, Metrics};
use narrows_watch::{Describe, outlet, trace};
use serde_json::json;

use super::options::Options;
use crate::Tunnel;
use crate::settings::Report;

/// Lets others watch a tunnel that has begun.
pub(super) fn begin(args: &Options, tunnel: &Tunnel, metrics: Metrics) -> Result<()> {
    let (watcher, name) = (tunnel.watcher(), name(args));
    let traced = watcher.clone();
    let describe: Describe = Arc::new(move || watcher.status(&name));
    page::publish(&describe);
    // A tunnel works without it.
    let _ = trace::start(Arc::new(move |id, limit| traced.trace(id, limit)));
    if let Some(address) = metrics.start(&describe)? {
        if args.json {
            return outlet::json(json!({ "metrics": address }));
        }
        page::tell(&address, args.quiet);
    }
    Ok(())
}

/// What the tunnel does, in the words of its command line.
fn name(args: &Options) -> String {
    let each = |option: &'static str, texts: &[String]| {
        texts.iter().map(move |text| format!("{option} {text}")).collect::<Vec<_>>()
    };
    let mut words = [each("-L", &args.local), each("-R", &args.remote), each("-D", &args.dynamic)].concat();
    words.extend(args.to.as_ref().map(|to| to.to_string_lossy().into_owned()));
    words.extend(args.listen.as_ref().map(|address| format!("--listen {address}")));
    words.extend(args.stdio.then(|| "--stdio".to_owned()));
    words.join(" ")
}

/// Writes a report to the log.
pub(super) fn log(said: &Report) {
    match said {
        Report::Serving { address } => tracing::info!(target: "tunnel", address, "waiting for tunnels"),
        Report::Listening { from, to } => tracing::info!(target: "tunnel", from, to, "listening"),
        Report::RemoteListening { from, to } => tracing::info!(target: "tunnel", from, to, "the other end listens"),
        Report::RemoteRefused { from, why } => {
            tracing::warn!(target: "tunnel", from, why, "the other end does not listen");
        }
        Report::Up => tracing::info!(target: "tunnel", "the tunnel is up"),
        Report::Lost { why } => tracing::warn!(target: "tunnel", why, "the tunnel is lost; trying again"),
        Report::Flow { text } => tracing::info!(target: "flow", "{text}"),
        Report::Peer { text } => tracing::info!(target: "peer", "{text}"),
        Report::Ended(ended) => {
            let e = &**ended;
            let seconds = (e.lasted.as_secs_f64() * 1e6).round() / 1e6;
            let reason = e.reason.map_or_else(|| "closed".to_owned(), |reason| reason.to_string());
            tracing::info!(
                target: "flow",
                flow = e.id,
                from = e.from,
                to = e.to,
                seconds,
                raw_out = e.out[0],
                wire_out = e.out[1],
                raw_in = e.back[0],
                wire_in = e.back[1],
                reason,
                "ended"
            );
        }
        Report::Refused { text } => tracing::warn!(target: "tunnel", why = text, "turned somebody away"),
        Report::Missed { count } => tracing::warn!(target: "tunnel", count, "lines are lost: there were too many"),
        // It is a flow too.
        Report::Unreached { .. } | Report::Over { .. } => {}
    }
}
