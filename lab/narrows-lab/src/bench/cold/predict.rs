//! Predictions for short transfers in virtual time, between two cold processes that share this
//! machine's cores with the link.

use anyhow::Result;
use narrows::codec::DEFAULT_METHODS;
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::PolicySetup;
use narrows::stream;
use narrows_sim::judge::possible;
use narrows_sim::table::{CLASSES, Table};
use narrows_sim::world::{self, Conditions, Host};

use crate::registry;

/// Payload of a TCP segment over the bytes that a shaper counts for it: 1,448 of 1,514.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;
/// Width of the search for the best schedule, and nanoseconds of a decision, as in `narrows oracle`.
const BEAM: usize = 16;
const DECISION_NS: f64 = 2000.0;

/// The policy in virtual time that stands for a tool; `None` for tools that it does not know.
pub(super) fn policy_of(tool: &str) -> Option<&str> {
    match tool.split_once(':') {
        None if tool == "narrows" => Some("balance"),
        None if tool == "nc" => Some("fixed:store"),
        Some(("narrows", policy)) => Some(policy),
        _ => None,
    }
}

/// Seconds from the start of the programs to their end, with `start_s` for an empty transfer.
pub(super) fn seconds(table: &Table, mbit: u32, policy: &str, start_s: f64) -> Result<f64> {
    let spec = registry::policy(policy)?;
    let setup = PolicySetup { methods: DEFAULT_METHODS, ..PolicySetup::new(stream::cores(), Prior::shipped()) };
    let conditions = conditions(table.len(), mbit, spec.block_max());
    let host = Host { start_ns: start_s * 1e9, ..host(mbit) };
    Ok(world::run_cold(table, &conditions, &host, spec.build(&setup)).seconds)
}

/// Seconds of the best schedule found on a link and cores of its own: nothing of it is cold.
pub(super) fn oracle(table: &Table, mbit: u32, start_s: f64) -> f64 {
    start_s + possible(table, &conditions(table.len(), mbit, CLASSES[3]), 3, BEAM).oracle
}

fn host(mbit: u32) -> Host {
    let burst_bytes = if mbit == 0 { 0.0 } else { Host::COLD.burst_bytes };
    Host { burst_bytes, ..Host::COLD }
}

fn conditions(len: usize, mbit: u32, block_max: usize) -> Conditions {
    let rate = if mbit == 0 { Host::COLD.line_bytes_per_s } else { f64::from(mbit) * 125_000.0 * PAYLOAD_SHARE };
    Conditions {
        len,
        cores: stream::cores(),
        decoders: stream::cores(),
        link: Speed::constant(rate),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(1.0),
        block_max,
        decision_ns: DECISION_NS,
        seed: 1,
        trace: false,
        expected_link: None,
    }
}
