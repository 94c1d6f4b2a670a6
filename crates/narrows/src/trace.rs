//! The trace: every decision with its reason, as JSON lines.
//!
//! One object per line with fixed keys, numbers and plain ASCII strings only, so no escaping is
//! needed. Methods are printed as the codecs of the flow name them.

use std::fmt::Write;

use crate::codec::Codecs;
use crate::monitor::{LinkSample, View};
use crate::policy::{Choice, Outcome, Rescue};

/// Writes a choice: the view, the choice, and the policy's own figures.
pub fn choice(out: &mut String, codecs: &Codecs, view: &View<'_>, choice: &Choice, why: &[(&'static str, f64)]) {
    let _ = write!(
        out,
        "{{\"event\":\"choose\",\"now_ns\":{},\"busy_ns\":{},\"seq\":{},\"raw_offset\":{},\"gathered\":{},\"queue\":{},\
         \"unsent_bytes\":{},\"rate_bytes_per_s\":{:.0},\"rate_known\":{},\"cores\":{},\"jobs\":{},\
         \"method\":\"{}\",\"linked\":{},\"history_len\":{},\"block_len\":{},\"encode_ns\":{}",
        view.now_ns,
        view.busy_ns,
        view.seq,
        view.raw_offset,
        view.gathered,
        view.queue.len(),
        view.link.unsent_bytes,
        view.link.rate_bytes_per_s,
        view.link.known,
        view.cpu.cores,
        view.cpu.busy,
        codecs.print(choice.method),
        choice.linked,
        if choice.linked { choice.history_len.min(view.limits.history) } else { 0 },
        choice.block_len,
        choice.encode_ns,
    );
    for (key, value) in why {
        // JSON has no infinities; null stands for "no number".
        let _ = if value.is_finite() { write!(out, ",\"{key}\":{value:.6}") } else { write!(out, ",\"{key}\":null") };
    }
    out.push_str("}\n");
}

/// Writes the decision about a block that is late while the link is dry.
pub fn rescue(out: &mut String, codecs: &Codecs, now_ns: u64, seq: u64, decision: &Rescue) {
    let _ = match decision {
        Rescue::WaitUntil(t) => {
            writeln!(out, "{{\"event\":\"wait\",\"now_ns\":{now_ns},\"seq\":{seq},\"until_ns\":{t}}}")
        }
        Rescue::TakeOver(method) => {
            let method = codecs.print(*method);
            writeln!(out, "{{\"event\":\"rescue\",\"now_ns\":{now_ns},\"seq\":{seq},\"method\":\"{method}\"}}")
        }
    };
}

/// Writes the result of a choice: an encoded block, which was sent or had been taken over
/// meanwhile. Other outcomes are ignored.
pub fn outcome(out: &mut String, codecs: &Codecs, now_ns: u64, outcome: &Outcome) {
    let Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, taken_over } = outcome else { return };
    let method = codecs.print(*method);
    let _ = writeln!(
        out,
        "{{\"event\":\"encoded\",\"now_ns\":{now_ns},\"seq\":{seq},\"method\":\"{method}\",\"raw_len\":{raw_len},\
         \"wire_len\":{wire_len},\"wall_ns\":{wall_ns},\"cpu_ns\":{cpu_ns},\"taken_over\":{taken_over}}}"
    );
}

/// Writes an observation of the link, and the estimate after it. Observations that leave out a
/// figure write null.
pub fn link(out: &mut String, s: &LinkSample, rate_bytes_per_s: f64, known: bool) {
    let _ = write!(
        out,
        "{{\"event\":\"link\",\"begin_ns\":{},\"end_ns\":{},\"unsent_before\":{},\"unsent_after\":{},\"accepted\":{}",
        s.begin_ns, s.end_ns, s.unsent_before, s.unsent_after, s.accepted,
    );
    let optional = [
        ("busy_ns", s.busy_ns),
        ("unacked", s.unacked),
        ("delivery_bytes_per_s", s.delivery_bytes_per_s),
        ("rtt_ns", s.rtt_ns),
    ];
    for (key, value) in optional {
        let _ = match value {
            Some(value) => write!(out, ",\"{key}\":{value}"),
            None => write!(out, ",\"{key}\":null"),
        };
    }
    let _ = writeln!(out, ",\"rate_bytes_per_s\":{rate_bytes_per_s:.0},\"rate_known\":{known}}}");
}
