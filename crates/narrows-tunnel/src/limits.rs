//! Limits of the protocol and of a process. Those of the protocol are in docs/format.md, section 21.

use narrows::stream::MEMORY_TOTAL;

/// Carriers of a session. Further ones gained nothing in copies, and each has windows of its own in
/// the kernels of both ends.
pub const CARRIERS_MAX: usize = 4;
/// Open flows of a session, and of a process: as many descriptors as a service may usually have,
/// less some for the rest.
pub const FLOWS_MAX: usize = 16_384;
/// Listeners that a dialer may ask for: each is a port of the acceptor.
pub const LISTENERS_MAX: usize = 64;
/// Bytes that a direction of a flow may carry before any credit: a request and its answer need no
/// round trip for credit, and a thousand flows that nobody reads hold 64 MiB.
pub const CREDIT_FIRST: u32 = 64 << 10;
/// Most credit that may be open in one direction: 1 Gbit/s over 130 ms.
pub const CREDIT_MAX: u32 = 16 << 20;
/// Credit above [`CREDIT_FIRST`] that all flows of a process may have open together: what their peers
/// may send at once if nobody reads it.
pub const CREDIT_TOTAL: usize = 512 << 20;
/// Frames without data that wait to be written to a carrier, in bytes. Beyond it nothing is read
/// from that carrier.
pub const CONTROL_MAX: usize = 256 << 10;
/// Bytes of one flow that may wait in a session: a few frames, so that choices stay fresh.
pub const QUEUE_MAX: usize = 256 << 10;
/// A flow that carried this much within `BULK_NS` is bulk: 1 MB/s.
pub const BULK_BYTES: u64 = 1 << 20;
pub const BULK_NS: u64 = 1_000_000_000;
/// Frames of calm flows for one of bulk, while both wait. Calm flows carry less than 1 MB/s each, so
/// a few hundred of them must not shut bulk out.
pub const CALM_SHARE: u32 = 8;
/// Short pieces of a direction that wait to be read or for a move: raw and coded ones that alternate
/// cannot be joined, and each costs some 70 bytes beside its own. A writer changes once in 5 s.
pub const PIECES_MAX: usize = 1024;
/// Connections whose handshake is under way: each costs a descriptor and a TLS state, and many more
/// clients than use one server come back at once when it has restarted. At the limit the oldest of the
/// host that has most of them makes room.
pub const STRANGERS_MAX: usize = 1024;
/// New carriers of one host: so many at once, and so many each second after that. A handshake is the
/// dearest thing that a stranger can ask for; sixteen dialers behind one address get their four
/// carriers at once.
pub const GREETINGS_PER_S: u32 = 64;
/// Handshakes that hosts begin which have not proved themselves lately: with some 0.5 ms each they leave
/// most of a core for flows, and a hundred clients of a server that restarted are back within a second.
/// A connection that says nothing is none.
pub const ALL_GREETINGS_BURST: u32 = 512;
pub const ALL_GREETINGS_PER_S: u32 = 512;
/// Connections and listeners that the peers at one host may ask for before the sockets are looked at
/// again: with some 0.1 ms each at most, other hosts wait a few milliseconds for one that asks without
/// end. What it asks for beyond that comes in the next turn.
pub const ASKS_AT_A_TIME: usize = 32;
/// The same for all hosts together: one client may have many addresses.
pub const ALL_ASKS_AT_A_TIME: usize = 2 * ASKS_AT_A_TIME;
/// Lines of a log about what one host was refused, in a second; then it has one that says how many more
/// there were. A person who looks for a fault sees enough of them.
pub const LINES_PER_S: u64 = 20;
/// Handshakes that are moved before flows get their turn again.
pub const STRANGERS_AT_A_TIME: usize = 8;
/// A host that had a client which proved itself is known for this time: those that come back each day
/// are, after a weekend too.
pub const KNOWN_NS: u64 = 4 * 24 * 3600 * 1_000_000_000;
/// Hosts whose rate is remembered; when they are more, all are forgotten.
pub const HOSTS_MAX: usize = 4096;
/// Sessions of a process, of which one host can have half of those that are free.
pub const SESSIONS_MAX: usize = 1024;
/// Names that are looked up at a time, each by a thread, of which one host can have half of those
/// that are free.
pub const LOOKUPS_MAX: usize = 64;
/// Names that are looked up or wait for it, shared in the same way, and names whose answers are kept:
/// a proxy of many people asks for hundreds at a time.
pub const NAMES_MAX: usize = 1024;
/// Carriers and listeners that all dialers have together, each a descriptor: one host can have half of
/// those that are free. All sessions have four carriers then, and as many listeners.
pub const ATTACHED_MAX: usize = 2 * SESSIONS_MAX * CARRIERS_MAX;
/// SOCKS clients and other connections that have not said where to yet; 10 s each. At the limit the
/// oldest of the host that has most of them makes room.
pub const UNDECIDED_MAX: usize = 1024;

/// Limits that the owner of an acceptor may set, also while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory that all flows may hold together, in bytes.
    pub memory: usize,
    /// Connections whose handshake is under way.
    pub strangers: usize,
    /// Connections that have not said where to yet.
    pub undecided: usize,
    /// Carriers and listeners of dialers. It does not change while the tunnel runs.
    pub attached: usize,
    /// New carriers of one host each second; as many at once.
    pub greetings_per_s: u32,
    /// New flows of one host each second, and as many at once; 0 is any number. Without it a host has
    /// the places that are free, and a service may have reasons to want fewer at a time.
    pub flows_per_s: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: MEMORY_TOTAL,
            strangers: STRANGERS_MAX,
            undecided: UNDECIDED_MAX,
            attached: ATTACHED_MAX,
            greetings_per_s: GREETINGS_PER_S,
            flows_per_s: 0,
        }
    }
}
