//! Reports of a tunnel, in words and as JSON.

use std::io;

use anyhow::Result;
use narrows_host::{output, words};
use narrows_trust::keys;
use narrows_watch::{logs, outlet};
use serde_json::json;

use super::options::Options;
use super::seen;
use crate::reason::Reason;
use crate::settings::Report;

/// Prints the token that dialers need.
pub(super) fn token(args: &Options, token: &str) -> Result<()> {
    if args.json {
        return outlet::json(json!({ "token": token }));
    }
    output::out(token)?;
    if keys::is_for_others(io::stdout()) {
        words::note(
            "the token was written to a file that other users may read, which clients refuse; use --token-out FILE",
        );
    }
    Ok(())
}

/// Tells what the tunnel reports.
pub(super) fn report(args: &Options, said: Report) -> Result<()> {
    if args.json {
        let line = match &said {
            Report::Serving { address } => Some(json!({ "serving": address })),
            Report::Listening { from, to } => Some(json!({ "listening": from, "to": to })),
            Report::RemoteListening { from, to } => Some(json!({ "remote": from, "to": to })),
            Report::Up => Some(json!({ "up": true })),
            Report::Lost { .. } => Some(json!({ "up": false })),
            Report::Refused { text } => Some(json!({ "refused": text })),
            Report::Unreached { to, reason, text } => {
                Some(json!({ "unreached": to, "reason": reason.to_string(), "why": text }))
            }
            _ => None,
        };
        line.map_or(Ok(()), outlet::json)?;
    }
    if logs::is_on() {
        seen::log(&said);
        return Ok(());
    }
    let (text, level) = match said {
        Report::Serving { address } => (format!("waiting for tunnels on {address}"), 1),
        Report::Listening { from, to } => (format!("{from} -> {to}"), 1),
        Report::RemoteListening { from, to } => (format!("other end: {from} -> {to}"), 1),
        Report::RemoteRefused { from, why } => (format!("the other end does not listen on {from}: {why}"), 0),
        Report::Up => ("the tunnel is up".into(), 1),
        Report::Lost { why } => (format!("the tunnel is lost: {why}; trying again"), 0),
        // A verbose end tells it as `Peer`.
        Report::Refused { text } => (text, if args.verbose { 3 } else { 1 }),
        // A verbose end tells each as `Flow`.
        Report::Unreached { to, reason, text } => (unreached(&to, reason, &text), if args.verbose { 3 } else { 1 }),
        Report::Flow { text } | Report::Peer { text } => (text, 2),
        Report::Missed { count } => {
            (format!("lost {}: there were too many", words::count(count, "message", "messages")), 1)
        }
        Report::Over { .. } | Report::Ended(_) => return Ok(()),
    };
    let most = if args.verbose { 2 } else { u8::from(!args.quiet) };
    if level <= most && !(args.json && level == 1) {
        words::note(text);
    }
    Ok(())
}

/// What is said of a target that was not reached, and what to do about it.
fn unreached(to: &str, reason: Reason, text: &str) -> String {
    let why = if text.is_empty() { reason.to_string() } else { text.to_owned() };
    let advice = match reason {
        Reason::Refused => "start what should listen there, or correct the target",
        Reason::Unreachable | Reason::Timeout => "check whether its host is up, and reached from there",
        Reason::Forbidden => "allow it at the other end, with --allow",
        Reason::Busy => "close some connections, or raise the limits of the other end",
        _ => "-v tells more",
    };
    format!("cannot reach {to}: {why}; {advice} (told once a minute for each target; -v tells all)")
}
