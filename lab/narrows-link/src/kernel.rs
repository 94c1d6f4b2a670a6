//! Kernel settings, made by `ip` and `tc`: congestion control, and the links of the kernel's
//! backend: tbf for the rate, netem for everything else.

use std::process::Stdio;
use std::time::Duration;

use crate::keeper::{DEVICE, NETWORK};
use crate::profile::{Direction, Profile};
use crate::{Emulation, Error, Side};

/// Burst of tbf; with less than two full packets it would stall on its timer at small MTUs.
const BURST_BYTES: u64 = 5000;

pub(crate) fn shape(emulation: &Emulation, profile: &Profile) -> Result<(), Error> {
    possible(profile)?;
    let round_trip = profile.up.delay + profile.down.delay;
    for (side, direction) in [(Side::Client, &profile.up), (Side::Server, &profile.down)] {
        // Remove the previous discipline; there may be none.
        let _ = tc(emulation, side, &["qdisc", "del", "dev", DEVICE, "root"]);
        let queue = direction.queue_bytes(round_trip, profile.mtu);
        let netem = netem(direction, queue / u64::from(profile.mtu) + 1);
        if let Some(rate) = direction.rate_bits_per_s {
            let (rate, queue) = (format!("{rate}bit"), queue.to_string());
            let burst = direction.burst_bytes.max(BURST_BYTES).max(2 * u64::from(profile.mtu)).to_string();
            let mut args = vec!["qdisc", "add", "dev", DEVICE];
            args.extend(if netem.is_empty() { vec!["root"] } else { vec!["parent", "1:1"] });
            args.extend(["tbf", "rate", &rate, "burst", &burst, "limit", &queue]);
            if !netem.is_empty() {
                add_netem(emulation, side, &netem)?;
            }
            tc(emulation, side, &args).map_err(|why| Error::Missing(format!("tc cannot set tbf: {why}")))?;
        } else if !netem.is_empty() {
            add_netem(emulation, side, &netem)?;
        }
    }
    Ok(())
}

fn possible(profile: &Profile) -> Result<(), Error> {
    let cannot = |what: &str| Err(Error::Missing(format!("--backend kernel cannot do {what}; leave it out")));
    if !profile.steps.is_empty() || profile.repeat.is_some() {
        return cannot("changes over time");
    }
    for direction in [&profile.up, &profile.down] {
        if direction.trace.is_some() {
            return cannot("traces");
        }
        // netem sends each packet at its own time, so packets overtake each other.
        if !direction.jitter.is_zero() && !direction.reorder {
            return cannot("jitter that keeps the order of packets (with reorder=yes it can)");
        }
    }
    Ok(())
}

fn netem(direction: &Direction, packets: u64) -> Vec<String> {
    let mut args = Vec::new();
    let us = |time: Duration| format!("{}us", time.as_micros());
    if !direction.delay.is_zero() {
        args.extend(["delay".into(), us(direction.delay)]);
        if !direction.jitter.is_zero() {
            args.push(us(direction.jitter));
        }
    }
    let loss = direction.loss;
    if loss.enter > 0.0 {
        let percent = |p: f64| format!("{}%", p * 100.0);
        args.extend(["loss".into(), "gemodel".into(), percent(loss.enter), percent(loss.leave)]);
        args.extend([percent(loss.in_bad), percent(loss.in_good)]);
    } else if loss.in_good > 0.0 {
        args.extend(["loss".into(), format!("{}%", loss.in_good * 100.0)]);
    }
    if !args.is_empty() {
        // netem's limit includes packets in flight, not only the queue.
        let travelling = direction.mean_bits_per_s().map_or(1e5, |r| r / 8.0 * direction.delay.as_secs_f64() / 500.0);
        args.extend(["limit".into(), (packets + travelling as u64 + 1000).to_string()]);
    }
    args
}

fn add_netem(emulation: &Emulation, side: Side, netem: &[String]) -> Result<(), Error> {
    let mut args = vec!["qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "netem"];
    args.extend(netem.iter().map(String::as_str));
    tc(emulation, side, &args).map_err(|why| {
        Error::Missing(format!(
            "delay and loss need netem, which this kernel or tc does not have ({why}); leave --backend kernel out"
        ))
    })
}

/// Sets the congestion control of all connections across the link. A namespace may not set its own
/// default, but may set one for a route.
pub(crate) fn set_congestion(emulation: &Emulation, name: &str) -> Result<(), Error> {
    for side in [Side::Client, Side::Server] {
        let address = emulation.address(side).to_string();
        let args = ["route", "change", NETWORK, "dev", DEVICE, "src", &address, "congctl", name];
        call(emulation, side, "ip", &args).map_err(|why| {
            Error::Missing(format!(
                "cannot set the congestion control '{name}': {why}; \
                 /proc/sys/net/ipv4/tcp_available_congestion_control lists what there is"
            ))
        })?;
    }
    Ok(())
}

fn tc(emulation: &Emulation, side: Side, args: &[&str]) -> Result<(), String> {
    call(emulation, side, "tc", args)
}

fn call(emulation: &Emulation, side: Side, program: &str, args: &[&str]) -> Result<(), String> {
    let mut command = emulation.command_with(side, program, true);
    let output = command.args(args).stdin(Stdio::null()).output().map_err(|e| format!("cannot run {program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().next().unwrap_or("no word").trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_would_do_otherwise_is_refused() {
        for (text, why) in [
            ("rate=1mbit;1s:rate=2mbit", Some("changes over time")),
            ("down.trace=lte-down", Some("traces")),
            ("delay=5ms,jitter=1ms", Some("keeps the order")),
            ("delay=5ms,up.jitter=1ms,down.reorder=yes", Some("keeps the order")),
            ("delay=5ms,jitter=1ms,reorder=yes", None),
            ("wifi", None),
        ] {
            let error = possible(&text.parse().unwrap()).map_err(|e| e.to_string()).err();
            assert_eq!(error.is_some(), why.is_some(), "{text}: {error:?}");
            assert!(error.is_none_or(|e| e.contains(why.unwrap_or_default())), "{text}");
        }
    }
}
