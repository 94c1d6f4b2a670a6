//! Limits of large hosts besides cores and link: memory, and the threads of which a flow has one.

use crate::limits::Limits;
use crate::table::Table;
use narrows::codec::Method;
use narrows::oracle::{Cost, Machine, Speed};

use super::{Conditions, Run};

/// Two hosts that a flow does not share with anybody. Times are of one core and, unlike those of a
/// [`super::Host`], of threads that run already.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hardware {
    /// Bytes that the memory of each end moves in a second for all of its cores: reads and writes.
    pub memory_bytes_per_s: f64,
    /// Nanoseconds of a thread that reads the source, for each raw byte.
    pub source_ns_per_byte: f64,
    /// Nanoseconds of a thread that writes a socket, for each byte of wire.
    pub write_ns_per_byte: f64,
    /// Nanoseconds of a thread that reads a socket, for each byte of wire.
    pub read_ns_per_byte: f64,
    /// Nanoseconds of a thread that writes the output, for each raw byte.
    pub sink_ns_per_byte: f64,
    /// Threads of each of these kinds. The engine has one; more stand for a flow over as many
    /// connections, of a source and an output that can be read and written at several places.
    pub threads: usize,
}

/// Bytes that cross the memory for each raw byte that is read of the source, or written to the output:
/// one copy.
const COPY_MOVES: f64 = 2.0;
/// The same for each byte of wire: the copy between a buffer and the kernel, and the adapter's own
/// access.
const SOCKET_MOVES: f64 = 3.0;

impl Hardware {
    /// Bytes that the memory moves while the source is read.
    pub(super) fn source_moves(raw_len: usize) -> f64 {
        COPY_MOVES * raw_len as f64
    }

    /// The same while a block is encoded or decoded: what is read, and what is written. A raw block is
    /// read once, for its check.
    pub(super) fn codec_moves(method: Method, raw_len: usize, wire_len: f64) -> f64 {
        raw_len as f64 + if method == Method::STORE { 0.0 } else { wire_len }
    }

    /// The same while bytes of wire go through a socket.
    pub(super) fn socket_moves(wire_len: f64) -> f64 {
        SOCKET_MOVES * wire_len
    }

    /// The least that one end moves for a block.
    fn least_moves(raw_len: f64, wire_len: f64) -> f64 {
        let encoded_len = if wire_len < raw_len { wire_len } else { 0.0 };
        (COPY_MOVES + 1.0) * raw_len + encoded_len + SOCKET_MOVES * wire_len
    }

    fn threads(&self) -> f64 {
        self.threads.max(1) as f64
    }

    /// The fastest that the threads with the connections let bytes of wire pass, in bytes per second.
    fn sockets_bytes_per_s(&self) -> f64 {
        self.threads() * 1e9 / self.write_ns_per_byte.max(self.read_ns_per_byte).max(1e-9)
    }

    /// Seconds that no flow between such hosts beats: the larger of three bounds. One is of cores and
    /// link, where reading the source and writing the socket take time of the cores and the threads of
    /// the connections bound the link; one of cores and memory; one of the threads at both ends. Speeds are those at the beginning.
    pub fn bound(&self, table: &Table, conditions: &Conditions) -> f64 {
        let limits = Limits::of(table, conditions.len, conditions.block_max);
        let machine = conditions.machine();
        let work_s = |raw_len: f64, c: &Cost| {
            c.encode_s + (raw_len * self.source_ns_per_byte + c.wire_len * self.write_ns_per_byte) * 1e-9
        };
        let rate = machine.link.at(0.0).min(self.sockets_bytes_per_s());
        let by_link = limits.with_costs(|n, c| Cost { encode_s: work_s(n, &c), ..c });
        let link_s = by_link.seconds(&Machine { link: Speed::constant(rate), ..machine.clone() });
        let by_memory = limits.with_costs(|n, c| {
            let moved = Self::least_moves(n, c.wire_len);
            Cost { encode_s: work_s(n, &c), wire_len: moved, ..c }
        });
        let memory = Speed::constant(self.memory_bytes_per_s);
        let memory_s = by_memory.seconds(&Machine { link: memory, ..machine });
        let single_s =
            conditions.len as f64 * self.source_ns_per_byte.max(self.sink_ns_per_byte) * 1e-9 / self.threads();
        link_s.max(memory_s).max(single_s)
    }

    /// Share of a run's time in which each resource was busy, in the order of the bytes.
    pub fn loads(&self, conditions: &Conditions, run: &Run) -> Vec<(&'static str, f64)> {
        let Run { seconds, summary, .. } = run;
        let (raw, wire) = (conditions.len as f64, summary.wire_bytes as f64);
        let threads = self.threads();
        let decide_s = run.jobs as f64 * conditions.decision_ns * 1e-9;
        let (source_s, write_s) = (raw * self.source_ns_per_byte * 1e-9, wire * self.write_ns_per_byte * 1e-9);
        let read_s = wire * self.read_ns_per_byte * 1e-9;
        let busy_s = [
            ("source", source_s / threads),
            ("decisions", decide_s),
            ("cores", (run.work_s() + decide_s + source_s + write_s) / conditions.cores.max(1) as f64),
            ("memory", run.moved[0] / self.memory_bytes_per_s),
            ("writer", write_s / threads),
            ("link", wire / conditions.link.at(0.0)),
            ("reader", read_s / threads),
            ("decoders", run.decode_s / conditions.decoders.max(1) as f64),
            ("receiver's memory", run.moved[1] / self.memory_bytes_per_s),
            ("sink", raw * self.sink_ns_per_byte * 1e-9 / threads),
        ];
        busy_s.into_iter().map(|(name, s)| (name, s / seconds)).collect()
    }
}

/// State of a run between such hosts.
pub(super) struct Threads {
    pub(super) hardware: Hardware,
    /// Reads of the source that have not returned, and the bytes that were asked for so far.
    pub(super) reading: usize,
    pub(super) asked: usize,
    /// Writes that have not returned.
    pub(super) writing: usize,
    /// The engine decides on one block at a time: until then on the latest.
    pub(super) deciding_until_ns: u64,
}

impl Threads {
    pub(super) fn new(hardware: Hardware) -> Self {
        Self { hardware, reading: 0, asked: 0, writing: 0, deciding_until_ns: 0 }
    }

    pub(super) fn may_write(&self) -> bool {
        self.writing < self.hardware.threads.max(1)
    }

    pub(super) fn may_read(&self) -> bool {
        self.reading < self.hardware.threads.max(1)
    }
}

/// Waiting lines of the receiving end: each serves one frame after the other. Seconds from which on they
/// are free.
pub(super) struct Lines {
    hardware: Hardware,
    read_s: f64,
    memory_s: f64,
    sink_s: f64,
    pub(super) moved: f64,
}

impl Lines {
    pub(super) fn new(hardware: Hardware) -> Self {
        Self { hardware, read_s: 0.0, memory_s: 0.0, sink_s: 0.0, moved: 0.0 }
    }

    /// When a frame that arrives at `now_s` has been read.
    pub(super) fn read(&mut self, now_s: f64, wire_len: u64) -> f64 {
        let read_ns = wire_len as f64 * self.hardware.read_ns_per_byte / self.hardware.threads();
        self.read_s = self.read_s.max(now_s) + read_ns * 1e-9;
        self.read_s
    }

    /// When the memory has moved all that a frame read at `read_s` needs, up to the output.
    pub(super) fn moves(&mut self, read_s: f64, method: Method, raw_len: usize, wire_len: u64) -> f64 {
        let wire_len = wire_len as f64;
        let moved = Hardware::socket_moves(wire_len)
            + Hardware::codec_moves(method, raw_len, wire_len)
            + COPY_MOVES * raw_len as f64;
        self.moved += moved;
        self.memory_s = self.memory_s.max(read_s) + moved / self.hardware.memory_bytes_per_s;
        self.memory_s
    }

    /// When a frame that was decoded at `decoded_s` is in the output.
    pub(super) fn write(&mut self, decoded_s: f64, raw_len: usize) -> f64 {
        let write_ns = raw_len as f64 * self.hardware.sink_ns_per_byte / self.hardware.threads();
        self.sink_s = self.sink_s.max(decoded_s) + write_ns * 1e-9;
        self.sink_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::table::{CLASSES, example};
    use crate::world::run_on;
    use narrows::block::Block;
    use narrows::monitor::cost::Prior;
    use narrows::policy::{PolicySetup, PolicySpec};

    const LEN: usize = 64 << 20;
    /// Without limits that 64 MiB would reach.
    const WIDE: Hardware = Hardware {
        memory_bytes_per_s: 1e13,
        source_ns_per_byte: 1e-6,
        write_ns_per_byte: 1e-6,
        read_ns_per_byte: 1e-6,
        sink_ns_per_byte: 1e-6,
        threads: 1,
    };

    fn conditions() -> Conditions {
        let one = Speed::constant(1.0);
        Conditions {
            len: LEN,
            cores: 8,
            decoders: 8,
            link: Speed::constant(100e9),
            cpu: one.clone(),
            receiver: one,
            block_max: 128 << 10,
            decision_ns: 0.0,
            seed: 1,
            trace: false,
            expected_link: None,
        }
    }

    fn noisy() -> Table {
        let mut table = example();
        let mut rng = Rng(1);
        table.bytes = Block::from_vec((0..table.len()).map(|_| rng.next_u64() as u8).collect());
        table
    }

    /// The seconds of a run, and the resource that was the busiest.
    fn busiest(hardware: &Hardware, conditions: &Conditions, spec: &str) -> (f64, &'static str) {
        let table = noisy();
        let methods = [Method::STORE, Method::lz4_accel(1), Method::zstd(3)];
        let setup = PolicySetup { methods: &methods, ..PolicySetup::new(conditions.cores, Prior::shipped()) };
        let run = run_on(&table, conditions, hardware, spec.parse::<PolicySpec>().unwrap().build(&setup));
        assert_eq!(run.summary.raw_bytes, LEN as u64);
        let bound_s = hardware.bound(&table, conditions);
        assert!(run.seconds > 0.99 * bound_s, "{spec}: {} below the bound of {bound_s}", run.seconds);
        let loads = hardware.loads(conditions, &run);
        assert!(loads.iter().all(|l| l.1 < 1.01), "{loads:?}");
        (run.seconds, loads.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0)
    }

    #[test]
    fn each_thread_of_which_there_is_one_bounds_plain() {
        let whole_s = LEN as f64 * 1e-9;
        for (hardware, name) in [
            (Hardware { source_ns_per_byte: 1.0, ..WIDE }, "source"),
            (Hardware { write_ns_per_byte: 1.0, ..WIDE }, "writer"),
            (Hardware { read_ns_per_byte: 1.0, ..WIDE }, "reader"),
            (Hardware { sink_ns_per_byte: 1.0, ..WIDE }, "sink"),
        ] {
            let (seconds, binds) = busiest(&hardware, &conditions(), "fixed:store");
            // A byte leaves as its copy begins: the last piece ends so much too early.
            assert!((0.99..1.1).contains(&(seconds / whole_s)), "{name}: {seconds}");
            assert_eq!(binds, name);
        }
        let four = Hardware { write_ns_per_byte: 1.0, threads: 4, ..WIDE };
        let (seconds, _) = busiest(&four, &conditions(), "fixed:store");
        assert!((0.247..0.3).contains(&(seconds / whole_s)), "{seconds}");
    }

    #[test]
    fn memory_bounds_both_ends() {
        // Plain moves six bytes for each: two when it is read, one for its check, three for the socket.
        let slow = Hardware { memory_bytes_per_s: 6e9, ..WIDE };
        let (seconds, binds) = busiest(&slow, &conditions(), "fixed:store");
        assert!((1.0..1.1).contains(&(seconds / (LEN as f64 * 1e-9))), "{seconds}");
        assert!(binds.contains("memory"), "{binds}");
    }

    #[test]
    fn decisions_are_made_one_at_a_time() {
        let blocks = LEN as f64 / CLASSES[2] as f64;
        let conditions = Conditions { decision_ns: 50e3, ..conditions() };
        let (seconds, binds) = busiest(&WIDE, &conditions, "fixed:store");
        assert!((1.0..1.1).contains(&(seconds / (blocks * 50e-6))), "{seconds} for {blocks} blocks");
        assert_eq!(binds, "decisions");
    }

    #[test]
    fn no_policy_beats_the_bound_of_any_hardware() {
        let mut rng = Rng(3);
        for _ in 0..8 {
            let hardware = Hardware {
                memory_bytes_per_s: 5e9 + 50e9 * rng.unit(),
                source_ns_per_byte: 0.3 * rng.unit(),
                write_ns_per_byte: 0.5 * rng.unit(),
                read_ns_per_byte: 0.5 * rng.unit(),
                sink_ns_per_byte: 0.3 * rng.unit(),
                threads: 1 + rng.below(3),
            };
            let cores = 1 + rng.below(32);
            let conditions = Conditions {
                cores,
                decoders: cores,
                link: Speed::constant(1e9 + 10e9 * rng.unit()),
                decision_ns: 2e3,
                ..conditions()
            };
            for spec in ["fixed:lz4", "balance"] {
                busiest(&hardware, &conditions, spec);
            }
        }
    }
}
