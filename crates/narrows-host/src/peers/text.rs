//! The memory of peers as text: a line for the version and one for the salt, a line for each peer and
//! one for each of its kinds of data, and a check of all of it.
//!
//! ```text
//! narrows-peers 1
//! salt 64 hex digits
//! peer HASH DAY RATE RTT                  bytes/s, ns; - if unknown; days since 1970
//! kind DAY FEATURES (7) [METHOD LOG-RATIO BLOCKS]...
//! check 16 hex digits
//! ```
//!
//! What a reader takes is bounded, and a text with anything else in it is invalid as a whole.

use std::fmt::Write;
use std::str::SplitAsciiWhitespace;

use narrows::codec::Method;
use narrows::monitor::data::Features;
use narrows::monitor::expectation::{Expectation, KINDS_MAX, Kind, KindRatio, PeerLink, RATIOS_MAX};

const MAGIC: &str = "narrows-peers 1";
/// Most bytes of the file: it is read before every transfer, which takes well under a millisecond.
pub(super) const FILE_MAX: usize = 128 << 10;
/// Most peers: more than a person sends to in a month.
const PEERS_MAX: usize = 64;
/// After a month a peer or kind of data is forgotten: by then links and files are others.
const DAYS_MAX: u32 = 30;
/// Rates in bytes/s that a link may have: 1 kbit/s to 800 Gbit/s, as in the link monitor.
const RATES: std::ops::RangeInclusive<f64> = 125.0..=100e9;
/// Round trips differ so much from flow to flow of the same link.
const RTT_NOISE_NS: u64 = 1_000_000;
/// A tenth more or less changes no choice.
const LOG_RATIO_NOISE: f32 = 0.1;
/// Longest round trip: a minute.
const RTT_MAX_NS: u64 = 60_000_000_000;
/// e^5 is a ratio of 148, beyond what is predicted for any block.
const LOG_RATIO_MAX: f32 = 5.0;

/// All that is remembered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Peers {
    salt: [u8; 32],
    rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    hash: u64,
    day: u32,
    link: Option<PeerLink>,
    /// Kinds with the day of their latest flow instead of their age.
    kinds: Vec<(u32, Kind)>,
}

impl Peers {
    pub(super) fn new(salt: [u8; 32]) -> Self {
        Self { salt, rows: Vec::new() }
    }

    /// What is known of a peer on this day.
    pub(super) fn recall(&self, name: &str, today: u32) -> Option<Expectation> {
        let hash = self.hash(name);
        let row = self.rows.iter().find(|row| row.hash == hash && is_recent(row.day, today))?;
        let recent = row.kinds.iter().filter(|(day, _)| is_recent(*day, today));
        let aged = recent.map(|(day, kind)| Kind { age_days: today.saturating_sub(*day), ..kind.clone() });
        Some(Expectation { link: row.link, kinds: aged.collect() })
    }

    /// Takes what a flow found of a peer. What it did not find stays as it was. Returns whether the next flow
    /// would notice: to replace the file takes as long as to send 30 KB at 1 Gbit/s.
    pub(super) fn remember(&mut self, name: &str, link: Option<PeerLink>, kinds: &[Kind], today: u32) -> bool {
        let hash = self.hash(name);
        let at = self.rows.iter().position(|row| row.hash == hash);
        let before = at.map(|i| self.rows.remove(i));
        let mut row = before.clone().unwrap_or(Row { hash, day: today, link: None, kinds: Vec::new() });
        row.day = today;
        row.link = link.filter(is_sane_link).or(row.link);
        if !kinds.is_empty() {
            let sane = kinds.iter().filter(|kind| is_sane(kind)).take(KINDS_MAX);
            let dated = |kind: &Kind| (today.saturating_sub(kind.age_days), Kind { age_days: 0, ..kind.clone() });
            row.kinds = sane.map(dated).collect();
        }
        row.kinds.retain(|(day, _)| is_recent(*day, today));
        // One far behind might be left out as the peer that was met longest ago.
        let is_news = at.is_none_or(|i| i >= PEERS_MAX / 2) || before.is_none_or(|before| row.differs(&before));
        self.rows.insert(0, row);
        self.rows.retain(|row| is_recent(row.day, today));
        self.rows.truncate(PEERS_MAX);
        is_news
    }

    /// The text, at most [`FILE_MAX`] bytes long: if need be, the peers that were met longest ago are
    /// left out.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{MAGIC}\nsalt {}\n", hex(&self.salt));
        let check_len = "check 0123456789abcdef\n".len();
        for row in &self.rows {
            let row = row.to_text();
            if text.len() + row.len() + check_len > FILE_MAX {
                break;
            }
            text += &row;
        }
        let _ = writeln!(text, "check {:016x}", check(text.as_bytes()));
        text
    }

    /// Parses the bytes of a file; `None` unless they are what [`Peers::to_text`] writes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= FILE_MAX)?;
        let (body, sum) = text.strip_suffix('\n')?.rsplit_once("\ncheck ")?;
        let checked = &text[..=body.len()];
        if sum.len() != 16 || u64::from_str_radix(sum, 16).ok()? != check(checked.as_bytes()) {
            return None;
        }
        let mut lines = checked.strip_prefix(MAGIC)?.strip_prefix('\n')?.lines();
        let mut peers = Self::new(unhex(lines.next()?.strip_prefix("salt ")?)?);
        for line in lines {
            match line.split_once(' ')? {
                ("peer", rest) if peers.rows.len() < PEERS_MAX => peers.rows.push(Row::parse(rest)?),
                ("kind", rest) => {
                    let row = peers.rows.last_mut().filter(|row| row.kinds.len() < KINDS_MAX)?;
                    row.kinds.push(parse_kind(rest)?);
                }
                _ => return None,
            }
        }
        Some(peers)
    }

    fn hash(&self, name: &str) -> u64 {
        first_8(&blake3::keyed_hash(&self.salt, name.as_bytes()))
    }
}

impl Row {
    /// Whether a flow that starts from this one would choose otherwise.
    fn differs(&self, before: &Self) -> bool {
        let link = match (self.link, before.link) {
            (Some(a), Some(b)) => {
                is_twice(a.rate_bytes_per_s, b.rate_bytes_per_s)
                    || a.rtt_ns.is_some() != b.rtt_ns.is_some()
                    || is_twice(
                        (a.rtt_ns.unwrap_or(0) + RTT_NOISE_NS) as f64,
                        (b.rtt_ns.unwrap_or(0) + RTT_NOISE_NS) as f64,
                    )
            }
            (a, b) => a != b,
        };
        let kind = |((day, a), (day_before, b)): (&(u32, Kind), &(u32, Kind))| {
            let ratio = |(a, b): (&KindRatio, &KindRatio)| {
                // Few blocks tell little, so twice as many are worth a note.
                a.method != b.method || (a.log_ratio - b.log_ratio).abs() > LOG_RATIO_NOISE || a.blocks / 2 >= b.blocks
            };
            day != day_before || a.ratios.len() != b.ratios.len() || a.ratios.iter().zip(&b.ratios).any(ratio)
        };
        self.day != before.day
            || link
            || self.kinds.len() != before.kinds.len()
            || self.kinds.iter().zip(&before.kinds).any(kind)
    }

    fn to_text(&self) -> String {
        let mut text = format!("peer {:016x} {}", self.hash, self.day);
        let rtt = self.link.and_then(|link| link.rtt_ns);
        let _ = match self.link {
            Some(link) => write!(text, " {:.0} ", link.rate_bytes_per_s),
            None => write!(text, " - "),
        };
        text += &rtt.map_or("-".to_owned(), |ns| ns.to_string());
        text.push('\n');
        for (day, kind) in &self.kinds {
            let f = &kind.features;
            let _ = write!(text, "kind {day}");
            for share in [f.entropy, f.repeats, f.equal_1, f.equal_4, f.equal_8, f.text, f.zero] {
                let _ = write!(text, " {share:.3}");
            }
            for r in kind.ratios.iter().take(RATIOS_MAX) {
                let _ = write!(text, " {} {:.3} {}", r.method, r.log_ratio, r.blocks);
            }
            text.push('\n');
        }
        text
    }

    fn parse(rest: &str) -> Option<Self> {
        let mut words = rest.split_ascii_whitespace();
        let hash = words.next().filter(|word| word.len() == 16)?;
        let hash = u64::from_str_radix(hash, 16).ok()?;
        let day = words.next()?.parse().ok()?;
        let (rate, rtt) = (words.next()?, words.next()?);
        let rtt_ns = if rtt == "-" { None } else { Some(rtt.parse().ok()?) };
        let link = match rate {
            "-" if rtt_ns.is_none() => None,
            rate => Some(PeerLink { rate_bytes_per_s: rate.parse().ok()?, rtt_ns }).filter(is_sane_link).map(Some)?,
        };
        words.next().is_none().then_some(Self { hash, day, link, kinds: Vec::new() })
    }
}

fn parse_kind(rest: &str) -> Option<(u32, Kind)> {
    let mut words = rest.split_ascii_whitespace();
    let day = words.next()?.parse().ok()?;
    let share = |words: &mut SplitAsciiWhitespace<'_>| words.next()?.parse::<f32>().ok();
    let features = Features {
        entropy: share(&mut words)?,
        repeats: share(&mut words)?,
        equal_1: share(&mut words)?,
        equal_4: share(&mut words)?,
        equal_8: share(&mut words)?,
        text: share(&mut words)?,
        zero: share(&mut words)?,
        log_len: 0.0,
    };
    let mut ratios = Vec::new();
    while let Some(method) = words.next() {
        let method: Method = method.parse().ok()?;
        ratios.push(KindRatio { method, log_ratio: words.next()?.parse().ok()?, blocks: words.next()?.parse().ok()? });
    }
    Some((day, Kind { features, age_days: 0, ratios })).filter(|(_, kind)| is_sane(kind))
}

fn is_twice(a: f64, b: f64) -> bool {
    a > 2.0 * b || b > 2.0 * a
}

fn is_sane_link(link: &PeerLink) -> bool {
    RATES.contains(&link.rate_bytes_per_s) && link.rtt_ns.is_none_or(|ns| ns <= RTT_MAX_NS)
}

fn is_sane(kind: &Kind) -> bool {
    let f = &kind.features;
    let shares = [f.entropy, f.repeats, f.equal_1, f.equal_4, f.equal_8, f.text, f.zero];
    shares.iter().all(|share| (0.0..=1.0).contains(share))
        && (1..=RATIOS_MAX).contains(&kind.ratios.len())
        && kind.ratios.iter().all(|r| (0.0..=LOG_RATIO_MAX).contains(&r.log_ratio) && r.blocks > 0)
}

/// A day beyond tomorrow is of a clock that was wrong.
fn is_recent(day: u32, today: u32) -> bool {
    day <= today.saturating_add(1) && today.saturating_sub(day) <= DAYS_MAX
}

fn check(bytes: &[u8]) -> u64 {
    first_8(&blake3::hash(bytes))
}

fn first_8(hash: &blake3::Hash) -> u64 {
    hash.as_bytes()[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
