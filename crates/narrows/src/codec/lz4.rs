//! LZ4 blocks, without the frame format. Level `-a` is the fast encoder with acceleration `a`,
//! level `h > 0` the slow one (HC) with effort `h`; one decoder reads both.

use super::liblz4::{self, FastState, LinkedTable, SlowState, WINDOW_LEN, window};
use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

/// Maximum acceleration: beyond it almost no match is found, and nothing more is gained.
const ACCEL_MAX: Level = 64;
const HC_MAX: Level = 12;

const LEVELS: &[Level] = &[-64, -32, -16, -8, -4, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[
    (-64, 0.65, 0.21),
    (-16, 1.16, 0.34),
    (-8, 1.37, 0.35),
    (-1, 1.76, 0.36),
    (1, 4.5, 0.35),
    (3, 9.7, 0.33),
    (9, 23.2, 0.32),
    (12, 70.0, 0.31),
];

#[derive(Debug)]
pub(super) struct Lz4;

impl Codec for Lz4 {
    fn id(&self) -> CodecId {
        CodecId::LZ4
    }

    fn name(&self) -> &'static str {
        "lz4"
    }

    fn levels(&self) -> &'static [Level] {
        LEVELS
    }

    fn has_level(&self, level: Level) -> bool {
        (-ACCEL_MAX..=-1).contains(&level) || (1..=HC_MAX).contains(&level)
    }

    fn default_level(&self) -> Level {
        -1
    }

    fn parse_level(&self, key: &str, value: &str) -> Option<Level> {
        let number: Level = value.parse().ok()?;
        let level = match key {
            "accel" if number > 0 => -number,
            "hc" if number > 0 => number,
            "level" => number,
            _ => return None,
        };
        self.has_level(level).then_some(level)
    }

    fn print_level(&self, level: Level) -> String {
        if level < 0 { format!("accel={}", level.unsigned_abs()) } else { format!("hc={level}") }
    }

    fn settings(&self) -> String {
        format!("accel=1 to {ACCEL_MAX}, hc=1 to {HC_MAX}")
    }

    fn can_link(&self) -> bool {
        true
    }

    fn encoder_memory(&self, level: Level, _raw_len: usize, _history_len: usize) -> usize {
        liblz4::fast_state_len() + if level > 0 { liblz4::slow_state_len() } else { 0 }
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        interpolate(SPEEDS, level)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Lz4Encoder::default())
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Lz4Decoder)
    }
}

#[derive(Default)]
struct Lz4Encoder {
    fast: FastState,
    /// Made at its first use.
    slow: Option<SlowState>,
    /// Made only for linked messages; one for each of the flows that a thread has at a time. The
    /// latest used is last.
    hot: Vec<Hot>,
}

/// A table kept from the latest linked message of a flow, with that message and its history:
/// loading it again would take longer than encoding the next message.
struct Hot {
    table: LinkedTable,
    /// History and messages in a row; the table refers to the bytes from `begin` to `end`.
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    accel: Level,
    /// Output of the encoder, with room for the longest encoding.
    wire: Box<[u8]>,
}

/// Maximum number of tables that an encoder keeps, each of 16 KiB and its bytes. Few dialogues
/// alternate on one thread.
const HOT_TABLES: usize = 4;
/// Maximum length of a block that uses a kept table. A longer one would push most of the history
/// out, and takes long anyway.
const HOT_MAX: usize = 8 << 10;
/// Minimum history: the library ignores dictionaries of less than 8 bytes.
const HOT_WINDOW_MIN: usize = 64;

impl Encoder for Lz4Encoder {
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        if level > 0 {
            return self.slow.get_or_insert_default().encode(history, raw, out, level.min(HC_MAX));
        }
        let (window, accel) = (window(history), -level.clamp(-ACCEL_MAX, -1));
        if window.len() >= HOT_WINDOW_MIN && !raw.is_empty() && raw.len() <= HOT_MAX {
            return self.hot_for(window, raw.len(), accel).encode(window, raw, out, accel);
        }
        self.fast.encode(window, raw, out, accel)
    }
}

impl Lz4Encoder {
    /// The table that holds this history, else one that may be replaced.
    fn hot_for(&mut self, window: &[u8], raw_len: usize, accel: Level) -> &mut Hot {
        let at = self.hot.iter().rposition(|h| h.goes_on(window, raw_len, accel));
        let hot = match at {
            Some(at) => self.hot.remove(at),
            None if self.hot.len() < HOT_TABLES => Hot::new(),
            None => self.hot.remove(0),
        };
        self.hot.push(hot);
        let last = self.hot.len() - 1;
        &mut self.hot[last]
    }
}

struct Lz4Decoder;

impl Decoder for Lz4Decoder {
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        liblz4::decode(history, wire, out)
    }
}

impl Hot {
    fn new() -> Self {
        let (bytes, wire) = (vec![0; 2 * WINDOW_LEN].into(), vec![0; LinkedTable::bound(HOT_MAX)].into());
        Self { table: LinkedTable::default(), bytes, begin: 0, end: 0, accel: 0, wire }
    }

    /// Whether the latest message belonged to this flow, which its history shows, and there is room
    /// for one more.
    fn goes_on(&self, window: &[u8], raw_len: usize, accel: Level) -> bool {
        let known = &self.bytes[self.begin..self.end];
        self.accel == accel && self.end + raw_len <= self.bytes.len() && known.ends_with(window)
    }

    fn encode(&mut self, window: &[u8], raw: &[u8], out: &mut [u8], accel: Level) -> Option<usize> {
        if !self.goes_on(window, raw.len(), accel) {
            self.bytes[..window.len()].copy_from_slice(window);
            self.end = window.len();
            self.table.forget();
        }
        self.accel = accel;
        self.begin = self.end - window.len();
        let raw_at = self.end;
        self.end += raw.len();
        self.bytes[raw_at..self.end].copy_from_slice(raw);
        let known = &mut self.bytes[self.begin..self.end];
        let wire_len = self.table.encode(known, window.len(), WINDOW_LEN, accel, &mut self.wire)?;
        out.get_mut(..wire_len)?.copy_from_slice(&self.wire[..wire_len]);
        Some(wire_len)
    }
}

pub(super) const ENTRY: &dyn Codec = &Lz4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of a kind, as a protocol would have them.
    fn message(kind: usize, n: usize) -> Vec<u8> {
        let fields = (0..20 + n % 7).map(|i| format!("field-{kind}-{i}=value {}; ", (n * 7919 + i * 31 * kind) % 977));
        fields.collect::<String>().into_bytes()
    }

    /// Flows share the encoder of a thread, each with its own history. Whatever was encoded in
    /// between, even without success, every message can be decoded with its flow's history alone.
    #[test]
    fn messages_of_many_flows_are_decoded_with_the_history_of_their_own() {
        let (mut encoder, mut decoder) = (Lz4.encoder(), Lz4.decoder());
        let mut histories = vec![Vec::new(); 3];
        let (mut raw_bytes, mut wire_bytes) = (0, 0);
        for n in 0..3000 {
            // Runs of one flow, so that tables are hot, and changes between flows.
            let flow = if n % 50 < 40 { n / 50 % 3 } else { n % 3 };
            let history_len = [200, 8 << 10, 64 << 10][flow];
            let history: &mut Vec<u8> = &mut histories[flow];
            history.drain(..history.len().saturating_sub(history_len));
            let raw = match n % 11 {
                10 => vec![n as u8; 1 + n % 5],
                9 => message(flow, n).repeat(1 + n % 12),
                _ => message(flow, n),
            };
            let level = if n % 200 < 190 { -1 } else { -4 };
            let mut out = vec![0; 2 * raw.len() + 64];
            if n % 17 == 0 {
                assert_eq!(encoder.encode(level, history, &raw, &mut out[..1]), None);
            }
            let wire_len = encoder.encode(level, history, &raw, &mut out).unwrap();
            let mut decoded = vec![0; raw.len()];
            assert_eq!(decoder.decode(history, &out[..wire_len], &mut decoded), Ok(raw.len()), "message {n}");
            assert!(decoded == raw, "message {n}");
            (raw_bytes, wire_bytes) = (raw_bytes + raw.len(), wire_bytes + wire_len);
            history.extend_from_slice(&raw);
        }
        // Without history they shrink to 0.6.
        assert!(3 * wire_bytes < raw_bytes, "{wire_bytes} of {raw_bytes}");
    }

    #[test]
    fn a_table_that_goes_on_finds_what_a_fresh_one_finds() {
        let mut hot = Lz4Encoder::default();
        let mut history = Vec::new();
        let (mut hot_bytes, mut fresh_bytes, mut cold) = (0, 0, 0);
        for n in 0..500 {
            let raw = message(1, n);
            let mut out = vec![0; 2 * raw.len()];
            let went_on = hot.hot.iter().filter(|h| h.goes_on(&history, raw.len(), 1)).count();
            // But where the bytes of the table are at their end, once in some hundred messages, and
            // for the first two.
            cold += usize::from(went_on == 0);
            hot_bytes += hot.encode(-1, &history, &raw, &mut out).unwrap();
            fresh_bytes += Lz4.encoder().encode(-1, &history, &raw, &mut out).unwrap();
            history.extend_from_slice(&raw);
            history.drain(..history.len().saturating_sub(8 << 10));
        }
        assert!(hot_bytes <= fresh_bytes, "{hot_bytes} and {fresh_bytes}");
        assert!(cold < 10, "{cold} of 500 began anew");
    }
}
