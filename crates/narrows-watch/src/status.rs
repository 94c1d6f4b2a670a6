//! The status of a process: one JSON document, the same for all kinds of processes.
//!
//! Its keys are those that `narrows status --json` had for `run` from the beginning, and more. A key
//! never changes its meaning. Unknown keys are skipped and missing ones are zero, so that programs of
//! different versions understand one another.

use narrows::policy::print_method;
use narrows::receiver::RecvSummary;
use serde::{Deserialize, Serialize};

use super::account::{Account, MethodAmount, Times};
use super::metric::Families;

/// Version of the document, which grows if a reader could misunderstand it.
pub const VERSION: u32 = 1;
/// Connections in a document at most; further ones are only counted. A document of so many has some
/// 5 MB.
pub const LISTED_MAX: usize = 10_000;
/// Methods listed for a direction of a connection.
const NAMED_MAX: usize = 3;

/// A process at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: u32,
    /// `tunnel`, `agent`, `run`, `serve` or `cp`.
    pub kind: String,
    pub pid: i32,
    pub user: u32,
    /// What it does: the program of `run`, the folder of `serve`, the forwards of `tunnel`.
    pub program: String,
    /// Version of the program.
    pub narrows: String,
    pub age_s: f64,
    /// CPU time of the process.
    pub cpu_s: f64,
    /// Resident memory.
    pub memory_bytes: u64,
    /// Live connections, flows or copies.
    pub connections: Vec<Connection>,
    /// Further ones that are not listed.
    pub connections_left_out: u64,
    /// Those that are over.
    pub ended: Amounts,
    /// All of them, live and over.
    pub totals: Amounts,
    pub outcomes: Vec<Outcome>,
    /// Methods of what it sent.
    pub methods: Vec<MethodAmount>,
    /// Where its sending flows spent their time.
    pub times: Times,
    /// What only this kind of process has.
    pub metrics: Families,
}

/// Numbers of connections and bytes. *Out* is from this process to the link, *back* from there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amounts {
    pub connections: u64,
    pub failed: u64,
    pub out_raw_bytes: u64,
    pub out_wire_bytes: u64,
    pub back_raw_bytes: u64,
    pub back_wire_bytes: u64,
}

impl Amounts {
    /// Adds the bytes of a connection.
    pub fn add(&mut self, connection: &Connection) {
        self.out_raw_bytes += connection.out.raw_bytes;
        self.out_wire_bytes += connection.out.wire_bytes;
        self.back_raw_bytes += connection.back.raw_bytes;
        self.back_wire_bytes += connection.back.wire_bytes;
    }
}

/// How many connections had an outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub outcome: String,
    pub connections: u64,
}

/// A live connection, flow or copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Unique within the process, and in its log.
    pub id: u64,
    /// Whom this process talks to, or where the connection came from.
    pub peer: String,
    /// Where it goes on to, if that is another place.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The other side began it.
    pub accepted: bool,
    pub age_s: f64,
    /// Such as `compressed`, or `plain` and why.
    pub outcome: String,
    pub encrypted: bool,
    pub within_host: bool,
    pub out: Traffic,
    pub back: Traffic,
    /// Of what is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// How far a copy is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// One direction of a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    pub raw_bytes: u64,
    pub wire_bytes: u64,
    pub ratio: f64,
    /// It carries frames.
    pub framed: bool,
    /// Methods of the bytes in frames, of received ones the codecs; the largest first.
    pub methods: Vec<Share>,
}

/// A method's share of the raw bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    pub name: String,
    pub share_percent: u8,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    pub files: u64,
    pub files_total: u64,
    pub bytes: u64,
    /// 0 while it is not known.
    pub bytes_total: u64,
}

impl Traffic {
    /// `mix`: raw bytes by method, if the direction carries frames.
    pub fn new(raw_bytes: u64, wire_bytes: u64, mix: Option<Vec<(u64, String)>>) -> Self {
        let framed = mix.is_some();
        let mut mix = mix.unwrap_or_default();
        mix.sort_by(|a, b| b.cmp(a));
        let all: u64 = mix.iter().map(|row| row.0).sum();
        let share = |n: u64| ((100 * u128::from(n) + u128::from(all / 2)) / u128::from(all.max(1))) as u8;
        let shares = mix.into_iter().map(|(n, name)| Share { name, share_percent: share(n) });
        let methods = shares.filter(|row| row.share_percent > 0).take(NAMED_MAX).collect();
        Self { raw_bytes, wire_bytes, ratio: raw_bytes as f64 / wire_bytes.max(1) as f64, framed, methods }
    }

    /// What an account says was sent, beside these bytes.
    pub fn sent(raw_bytes: u64, wire_bytes: u64, account: &Account) -> Self {
        let mix = account.mix.iter().map(|row| (row.raw_bytes, print_method(row.method, row.linked)));
        Self::new(raw_bytes, wire_bytes, (!account.mix.is_empty()).then(|| mix.collect()))
    }

    /// What a receiver says.
    pub fn received(raw_bytes: u64, wire_bytes: u64, summary: Option<&RecvSummary>) -> Self {
        let name = |row: &narrows::receiver::RecvMixRow| row.codec.codec().map_or("unknown", |c| c.name()).to_owned();
        let mix = summary.map(|s| s.mix.iter().map(|row| (row.raw_bytes, name(row))).collect());
        Self::new(raw_bytes, wire_bytes, mix)
    }
}

impl Status {
    /// A process of this kind that lists no more connections than a document may have: those with the
    /// most bytes.
    pub fn with_connections(mut self, mut connections: Vec<Connection>) -> Self {
        if connections.len() > LISTED_MAX {
            let bytes = |c: &Connection| std::cmp::Reverse(c.out.raw_bytes.saturating_add(c.back.raw_bytes));
            connections.select_nth_unstable_by_key(LISTED_MAX, bytes);
            self.connections_left_out = (connections.len() - LISTED_MAX) as u64;
            connections.truncate(LISTED_MAX);
        }
        connections.sort_by(|a, b| b.age_s.total_cmp(&a.age_s).then(a.id.cmp(&b.id)));
        self.connections = connections;
        self
    }

    /// Puts what its flows sent into it.
    pub fn with_account(mut self, account: &Account) -> Self {
        self.methods = account.methods();
        self.times = account.times;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_the_small_ones_left_out() {
        let mix = vec![(1, "c".to_string()), (600, "a".into()), (399, "b".into())];
        let traffic = Traffic::new(1000, 100, Some(mix));
        let shares: Vec<_> = traffic.methods.iter().map(|s| (s.name.as_str(), s.share_percent)).collect();
        assert_eq!(shares, [("a", 60), ("b", 40)]);
        assert!(!Traffic::new(5, 5, None).framed);
        assert_eq!(Traffic::new(0, 32, Some(vec![])).methods, []);
    }

    #[test]
    fn the_document_of_another_version_is_understood() {
        let old = r#"{"pid":7,"program":"x","connections":[{"id":1,"peer":"h","new":[1]}],"ended":{"connections":3},"later":{}}"#;
        let status: Status = serde_json::from_str(old).unwrap();
        assert_eq!((status.pid, status.connections[0].peer.as_str(), status.ended.connections), (7, "h", 3));
        assert_eq!(status.version, 0);
    }

    /// Programs read these keys: one that is gone or renamed breaks them.
    #[test]
    fn the_keys_stay() {
        let connection = Connection {
            target: "t".into(),
            times: Some(Times::default()),
            progress: Some(Progress::default()),
            out: Traffic::new(1, 1, Some(vec![(1, "lz4".into())])),
            ..Connection::default()
        };
        let status = Status {
            connections: vec![connection],
            outcomes: vec![Outcome::default()],
            methods: vec![MethodAmount::default()],
            ..Status::default()
        };
        let json = serde_json::to_value(&status).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&json),
            "age_s connections connections_left_out cpu_s ended kind memory_bytes methods metrics narrows outcomes pid \
             program times totals user version"
        );
        assert_eq!(
            keys(&json["connections"][0]),
            "accepted age_s back encrypted id out outcome peer progress target times within_host"
        );
        assert_eq!(keys(&json["connections"][0]["out"]), "framed methods ratio raw_bytes wire_bytes");
        assert_eq!(keys(&json["connections"][0]["out"]["methods"][0]), "name share_percent");
        assert_eq!(keys(&json["connections"][0]["progress"]), "bytes bytes_total files files_total");
        let amounts = "back_raw_bytes back_wire_bytes connections failed out_raw_bytes out_wire_bytes";
        assert_eq!((keys(&json["ended"]), keys(&json["totals"])), (amounts.into(), amounts.into()));
        assert_eq!(keys(&json["outcomes"][0]), "connections outcome");
        assert_eq!(keys(&json["methods"][0]), "frames name raw_bytes wire_bytes");
        assert_eq!(
            keys(&json["times"]),
            "confirm_ns decode_cpu_ns decode_threads encode_cpu_ns idle_ns link_busy_ns link_dry_ns rate_bytes_per_s \
             receiver_blocked_ns receiver_limited_ns search_idle_ns"
        );
    }

    #[test]
    fn a_document_has_a_limit() {
        let connection = |id: u64| Connection { id, out: Traffic::new(id, id, None), ..Connection::default() };
        let status = Status::default().with_connections((0..LISTED_MAX as u64 + 5).map(connection).collect());
        assert_eq!((status.connections.len(), status.connections_left_out), (LISTED_MAX, 5));
        assert!(status.connections.iter().all(|c| c.id >= 5), "those with the most bytes stay");
        assert!(serde_json::to_vec(&status).unwrap().len() < 8 << 20);
    }
}
