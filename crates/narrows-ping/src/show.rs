//! Output of the figures as a table and as JSON.

use std::fmt::Write;

use narrows_host::words;
use serde_json::{Value, json};

use crate::client::Client;
use crate::figures::Trips;
use crate::messages::Set;
use crate::method::Method;

/// Measurements of a set: the round trips of each method in the order of the client's methods,
/// plain first.
pub struct Measured<'a> {
    pub set: &'a Set,
    pub trips: Vec<Trips>,
}

impl Measured<'_> {
    fn mean_len(&self) -> f64 {
        let bytes: usize = self.set.messages.iter().map(Vec::len).sum();
        bytes as f64 / self.set.messages.len().max(1) as f64
    }

    /// The figures as a table.
    pub fn table(&self, client: &Client) -> String {
        let (count, mean_len) = (self.set.messages.len(), self.mean_len());
        let of = match self.set.size {
            Some(size) => format!("of {}", words::count(size, "byte", "bytes")),
            None => format!("of {mean_len:.0} bytes on average"),
        };
        let wire = client.wire.map_or("as it is".to_owned(), |w| w.words());
        let mut text = format!(
            "{} {of}, {}; link {wire}\n",
            words::count(count, "message", "messages"),
            words::count(client.rounds, "round", "rounds")
        );
        let _ = write!(
            text,
            "{:<18} {:>7} {:>10} {:>10} {:>10} {:>11} {:>8}",
            "method", "ratio", "p50 us", "p90 us", "p99 us", "Mbit/s", "/ plain"
        );
        let plain = self.trips[0].figures();
        for (method, trips) in client.methods.iter().zip(&self.trips) {
            let f = trips.figures();
            let quotient = plain.round_trip_us / f.round_trip_us.max(1e-9);
            let _ = write!(
                text,
                "\n{:<18} {:>7.2} {:>10.1} {:>10.1} {:>10.1} {:>11.2} {:>8.2}",
                method.to_string(),
                f.ratio,
                f.p50_us,
                f.p90_us,
                f.p99_us,
                f.goodput_bytes_per_s * 8e-6,
                quotient
            );
            if *method == Method::Chosen {
                let _ = write!(text, "  {}", mix(trips));
            }
        }
        text
    }

    /// The figures as JSON.
    pub fn json(&self, client: &Client) -> Value {
        let plain = self.trips[0].figures();
        let rows: Vec<Value> = client
            .methods
            .iter()
            .zip(&self.trips)
            .map(|(method, trips)| {
                let f = trips.figures();
                json!({
                    "method": method.to_string(),
                    "ratio": f.ratio,
                    "raw_bytes": trips.raw_bytes,
                    "wire_bytes": trips.wire_bytes,
                    "wire_bytes_back": trips.back_bytes,
                    "p50_us": f.p50_us,
                    "p90_us": f.p90_us,
                    "p99_us": f.p99_us,
                    "round_trip_us": f.round_trip_us,
                    "goodput_bytes_per_s": f.goodput_bytes_per_s,
                    "throughput_bytes_per_s": f.throughput_bytes_per_s,
                    "quotient": plain.round_trip_us / f.round_trip_us.max(1e-9),
                    "mix": trips.mix,
                })
            })
            .collect();
        json!({
            "size": self.set.size,
            "messages": self.set.messages.len(),
            "mean_bytes": self.mean_len(),
            "rows": rows,
        })
    }
}

/// The shares of encodings, such as `97 % lz4:link, 3 % store`.
fn mix(trips: &Trips) -> String {
    let all: u64 = trips.mix.values().sum();
    let mut parts: Vec<_> = trips.mix.iter().map(|(name, n)| (*n, name)).collect();
    parts.sort_by(|a, b| b.cmp(a));
    let words = parts.iter().map(|(n, name)| format!("{:.0} % {name}", 100.0 * *n as f64 / all.max(1) as f64));
    words.collect::<Vec<_>>().join(", ")
}
