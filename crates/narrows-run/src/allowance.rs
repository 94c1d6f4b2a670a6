//! Backpressure: how many bytes a switched direction may take in from its program before they have
//! left, and from the network before the program has read them.
//!
//! A write that returns tells a program that its bytes are on their way, and programs time answers
//! from then. TCP limits the bytes that wait behind such a write by its send buffer, which the
//! kernel grows with the congestion window unless the program has set it. A direction in frames may
//! hold as much as TCP would, plus what the link takes in a short time, so that workers never run
//! dry. No I/O and no clock: times are arguments.

/// Time that frames may add to the age of bytes. People take answers under 0.1 s for immediate, and
/// the slowest methods need some tens of milliseconds per block.
const TIME_NS: f64 = 70e6;
/// The same where the program has limited its send buffer: enough to wake a worker and encode a
/// short block.
const TIME_BOUNDED_NS: f64 = 20e6;
/// Minimum that may be held: two blocks, one being sent and one being encoded. On a slow link it is
/// what the link takes in `LEAST_NS`, at least `LEAST_SLOW`.
const LEAST: usize = 32 << 10;
const LEAST_SLOW: usize = 8 << 10;
const LEAST_NS: f64 = 40e6;
/// Minimum while the link mostly waits for this end: then holding more makes no byte older, and
/// workers that seldom get a core have work when they do.
const LEAST_DRY: usize = 1 << 20;
const DRY_SHARE: f64 = 0.5;
const DRY_GAIN: f64 = 1.0 / 16.0;
/// TCP reports a socket as writable while a third of the buffer is free. The receiver has nothing
/// of a block before it has all of it, which makes bytes older by half a block, so a block is at
/// most a quarter of what is held.
const TCP_SHARE: f64 = 0.55;
const BLOCK_SHARE: usize = 4;
const BLOCK_LEAST: usize = 8 << 10;
/// Cap on the compression ratio. Data that shrinks more is runs of one byte, and then the link is
/// not the bottleneck.
const RATIO_MAX: f64 = 16.0;
/// Wire bytes over which the ratio is averaged, so that it follows recent data.
const RATIO_BYTES: f64 = 262_144.0;
/// Received bytes that may wait for the program: what it reads in `READ_NS`, but at least
/// `READ_LEAST`. The kernel's own buffer holds more at first.
const READ_NS: f64 = 100e6;
pub(crate) const READ_LEAST: usize = 128 << 10;
/// The limit while the program's reading pace is unknown.
const READ_FIRST: usize = 1 << 20;
/// Time without waiting after which a program counts as reading as fast as bytes come.
const READ_FORGET_NS: u64 = 500_000_000;

/// Sample length of the pace. Acknowledgements come in bursts, some a round trip apart, and a
/// sample averages over several.
const SAMPLE_NS: u64 = 40_000_000;
/// Time constant of the average: three samples replace most of it.
const MEMORY_NS: f64 = 80e6;

/// Pace: bytes per second that pass while more bytes wait.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pace {
    /// When bytes began to wait or the current sample began, and how many had passed by then.
    since: Option<(u64, f64)>,
    bytes_per_s: Option<f64>,
}

impl Pace {
    /// `passed` is the total so far. `waits`: more bytes wait, and did so since the previous call.
    pub(crate) fn look(&mut self, now_ns: u64, passed: f64, waits: bool) {
        let Some((since_ns, before)) = self.since.filter(|_| waits) else {
            self.since = waits.then_some((now_ns, passed));
            return;
        };
        let ns = now_ns.saturating_sub(since_ns);
        if ns < SAMPLE_NS {
            return;
        }
        let sample = (passed - before) / ns as f64 * 1e9;
        let gain = ns as f64 / (ns as f64 + MEMORY_NS);
        self.bytes_per_s = Some(self.bytes_per_s.map_or(sample, |known| known + gain * (sample - known)));
        self.since = Some((now_ns, passed));
    }

    /// Bytes that pass in `ns`; 0 while the pace is unknown.
    fn in_time(&self, ns: f64) -> f64 {
        self.bytes_per_s.map_or(0.0, |rate| rate * ns / 1e9)
    }
}

/// TCP's send buffer of this connection, which tells how much TCP would hold.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// SO_SNDBUF as the kernel counts it.
    pub len: usize,
    /// The program has set it.
    pub is_set: bool,
    /// TCP_NOTSENT_LOWAT, if the program has set it.
    pub unsent_max: Option<usize>,
}

/// Limit for bytes to the network.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    pace: Pace,
    /// Estimated raw bytes whose frames the peer's kernel has confirmed.
    left: f64,
    confirmed: u64,
    unconfirmed: u64,
    /// Raw and wire bytes of recent data.
    raw: f64,
    wire: f64,
    totals: (u64, u64),
    /// Share of looks at which the kernel had nothing left to send although something was held
    /// here.
    dry: f64,
    buffer: Buffer,
}

impl Allowance {
    /// Records the totals: raw bytes encoded so far, and the frame bytes they became.
    pub(crate) fn encoded(&mut self, raw: u64, wire: u64) {
        let (raw_before, wire_before) = std::mem::replace(&mut self.totals, (raw, wire));
        self.raw += (raw - raw_before) as f64;
        self.wire += (wire - wire_before) as f64;
        if self.wire > RATIO_BYTES {
            let share = RATIO_BYTES / self.wire;
            (self.raw, self.wire) = (share * self.raw, share * self.wire);
        }
    }

    /// Records that the kernel has taken `taken` frame bytes in total, of which `unconfirmed` are
    /// not confirmed. `waits`: since the previous call there were always bytes that had not left
    /// this host.
    pub(crate) fn sent(&mut self, now_ns: u64, taken: u64, unconfirmed: u64, waits: bool) {
        let confirmed = taken.saturating_sub(unconfirmed).max(self.confirmed);
        self.left += self.ratio() * (confirmed - self.confirmed) as f64;
        (self.confirmed, self.unconfirmed) = (confirmed, unconfirmed);
        self.pace.look(now_ns, self.left, waits);
    }

    /// Records a look while bytes are held here. `unsent`: the kernel had unsent bytes too.
    pub(crate) fn saw(&mut self, unsent: bool) {
        self.dry += DRY_GAIN * (f64::from(u8::from(!unsent)) - self.dry);
    }

    pub(crate) fn set_buffer(&mut self, buffer: Buffer) {
        self.buffer = buffer;
    }

    fn ratio(&self) -> f64 {
        if self.wire > 0.0 { (self.raw / self.wire).clamp(1.0, RATIO_MAX) } else { 1.0 }
    }

    /// Bytes from the program that may wait anywhere between its write and the link.
    pub(crate) fn max(&self) -> usize {
        let buffer = self.buffer;
        let mut by_tcp = (TCP_SHARE * buffer.len as f64 - self.unconfirmed as f64).max(0.0);
        let mut time_ns = TIME_NS;
        if let Some(unsent_max) = buffer.unsent_max {
            by_tcp = by_tcp.min(unsent_max as f64);
            time_ns = TIME_BOUNDED_NS;
        }
        if buffer.is_set {
            time_ns = TIME_BOUNDED_NS;
        }
        let dry = self.dry > DRY_SHARE && time_ns == TIME_NS;
        let least = if dry { LEAST_DRY } else { 0 };
        ((self.ratio() * by_tcp + self.pace.in_time(time_ns)) as usize).max(least)
    }

    /// How many of them the direction may hold itself when `queued` bytes wait in the program's
    /// socket.
    pub(crate) fn beside(&self, queued: usize) -> usize {
        self.max().saturating_sub(queued).max(self.least())
    }

    fn least(&self) -> usize {
        if self.pace.bytes_per_s.is_none() {
            return LEAST;
        }
        (self.pace.in_time(LEAST_NS) as usize).clamp(LEAST_SLOW, LEAST)
    }

    /// The longest block, once the pace is known.
    pub(crate) fn block_max(&self) -> usize {
        if self.pace.bytes_per_s.is_none() {
            return usize::MAX;
        }
        (self.max() / BLOCK_SHARE).max(BLOCK_LEAST)
    }
}

/// Limit for bytes to the program.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pace: Pace,
    waited_ns: u64,
}

impl Reading {
    /// `taken` is the total that the program has taken. `waits`: since the previous call more bytes
    /// waited all the time.
    pub(crate) fn took(&mut self, now_ns: u64, taken: u64, waits: bool) {
        self.pace.look(now_ns, taken as f64, waits);
        if waits {
            self.waited_ns = now_ns;
        } else if now_ns.saturating_sub(self.waited_ns) > READ_FORGET_NS {
            self.pace.bytes_per_s = None;
        }
    }

    /// Whether the program was not waited for lately.
    pub(crate) fn is_idle(&self) -> bool {
        self.pace.since.is_none() && self.pace.bytes_per_s.is_none()
    }

    /// Bytes that may wait for the program; `None` if it was not waited for lately.
    pub(crate) fn max(&self) -> Option<usize> {
        let first = self.pace.since.map(|_| READ_FIRST);
        self.pace.bytes_per_s.map(|_| (self.pace.in_time(READ_NS) as usize).max(READ_LEAST)).or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates a program that writes without end over a link of this rate. Returns the most bytes
    /// held, the bytes held at the end, and the raw bytes carried in ten seconds.
    fn run(rate: f64, ratio: f64, buffer: Buffer, queue: usize) -> (f64, f64, f64) {
        let mut allowance = Allowance::default();
        allowance.set_buffer(buffer);
        let (mut now_ns, mut taken_in, mut wire, mut confirmed) = (0, 0.0, 0.0, 0.0);
        let (mut most, mut held) = (0.0f64, 0.0);
        // What the congestion window allows beyond the confirmed bytes.
        let window = (rate * 0.05).max(15_000.0);
        while now_ns < 10_000 * MS {
            now_ns += MS;
            confirmed = f64::min(wire, confirmed + rate / 1000.0);
            let room = allowance.beside(queue) as f64 - held;
            let (take, send) = (room.max(0.0), (confirmed + window - wire).max(0.0));
            (taken_in, held) = (taken_in + take, held + take);
            let sent = f64::min(held / ratio, send);
            (wire, held) = (wire + sent, held - sent * ratio);
            allowance.encoded((wire * ratio) as u64, wire as u64);
            allowance.sent(now_ns, wire as u64, (wire - confirmed) as u64, held > 0.0 || wire > confirmed);
            most = most.max(held);
        }
        (most, held, confirmed * ratio)
    }

    const AUTO: Buffer = Buffer { len: 300_000, is_set: false, unsent_max: None };

    #[test]
    fn what_is_taken_in_beyond_what_left_is_what_tcp_holds_and_a_short_time_of_the_link() {
        for rate in [125e3, 750e3, 2.5e6, 12.5e6, 125e6] {
            for ratio in [1.0, 4.0] {
                let (most, in_the_end, carried) = run(rate, ratio, AUTO, 0);
                let bound = ratio * (AUTO.len as f64 + 0.1 * rate) + LEAST as f64;
                assert!(most < bound && in_the_end < bound, "{rate}, {ratio}: {most}, {in_the_end} of {bound}");
                // And the link never runs dry.
                assert!(carried > 0.99 * 10.0 * rate * ratio, "{rate}, {ratio}: {carried}");
            }
        }
    }

    #[test]
    fn what_the_program_has_bounded_stays_bounded() {
        let rate = 2.5e6;
        for buffer in [Buffer { len: 16_384, is_set: true, ..AUTO }, Buffer { unsent_max: Some(16_384), ..AUTO }] {
            let (most, _, carried) = run(rate, 1.0, buffer, 0);
            assert!(most < 16_384.0 + 0.03 * rate + LEAST as f64, "{buffer:?}: {most}");
            assert!(carried > 0.99 * 10.0 * rate, "{buffer:?}: {carried}");
        }
    }

    #[test]
    fn bytes_that_wait_before_it_count_and_some_are_held_in_any_case() {
        let (alone, _, _) = run(2.5e6, 1.0, AUTO, 0);
        let (beside, _, carried) = run(2.5e6, 1.0, AUTO, 100_000);
        assert!(beside < alone - 90_000.0, "{beside} for {alone}");
        let (least, _, still) = run(2.5e6, 1.0, AUTO, 10_000_000);
        assert!(least <= LEAST as f64, "{least}");
        assert!(carried.min(still) > 0.99 * 25e6);
        // On a slow link that is less than a block of a fast one.
        let (_, least, _) = run(125e3, 1.0, AUTO, 10_000_000);
        assert!(least <= LEAST_SLOW as f64, "{least}");
    }

    #[test]
    fn a_link_that_waits_for_this_end_makes_no_byte_older() {
        let mut allowance = Allowance::default();
        allowance.set_buffer(Buffer { len: 80_000, ..AUTO });
        let before = allowance.max();
        (0..100).for_each(|_| allowance.saw(false));
        assert_eq!(allowance.max(), LEAST_DRY);
        allowance.set_buffer(Buffer { len: 80_000, is_set: true, ..AUTO });
        assert_eq!(allowance.max(), before, "the program has bounded it");
        allowance.set_buffer(Buffer { len: 80_000, ..AUTO });
        (0..100).for_each(|_| allowance.saw(true));
        assert_eq!(allowance.max(), before);
    }

    #[test]
    fn a_link_that_changes_is_followed() {
        let mut pace = Pace::default();
        let mut passed = 0.0;
        for ms in 0..400u64 {
            passed += if ms < 200 { 10_000.0 } else { 100.0 };
            pace.look(ms * MS, passed, true);
            if ms == 199 {
                assert!((pace.in_time(1e9) / 10e6 - 1.0).abs() < 0.05, "{pace:?}");
            }
        }
        assert!(pace.in_time(1e9) < 3e6, "{pace:?}");
        // Without waiting bytes nothing is learned about the pace.
        pace.look(400 * MS, passed, false);
        let known = pace.in_time(1e9);
        for ms in 400..900u64 {
            pace.look(ms * MS, passed, ms % 30 != 0);
        }
        assert!((pace.in_time(1e9) - known).abs() < 1.0, "{pace:?}");
    }

    #[test]
    fn a_program_that_reads_slowly_has_little_waiting() {
        let mut reading = Reading::default();
        assert_eq!(reading.max(), None);
        reading.took(0, 0, true);
        assert_eq!(reading.max(), Some(READ_FIRST));
        for ms in 1..2000u64 {
            reading.took(ms * MS, ms * 10_000, true);
        }
        assert!((900_000..1_100_000).contains(&reading.max().unwrap()), "{reading:?}");
        for ms in 2000..9000u64 {
            reading.took(ms * MS, 20_000_000, true);
        }
        assert_eq!(reading.max(), Some(READ_LEAST));
        reading.took(9100 * MS, 20_000_000, false);
        assert_eq!(reading.max(), Some(READ_LEAST));
        reading.took(9700 * MS, 20_000_000, false);
        assert_eq!(reading.max(), None);
    }
}
