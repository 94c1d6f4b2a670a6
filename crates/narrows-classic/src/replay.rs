//! `replay`: repeats the choices of a schedule or of a recorded trace, whatever the link and the
//! CPU do.
//!
//! A schedule is text with one line per block: raw length, method, and `linked` if the block is
//! linked. Empty lines and text after a `#` are ignored:
//!
//! ```text
//! # narrows-replay 1
//! 8192 store
//! 131072 zstd:level=1
//! 131072 lz4:accel=16 linked
//! ```
//!
//! It also reads the JSON lines of `--trace`. The offset of the next block gives a block's length.

use std::fmt;
use std::sync::Arc;

use narrows::codec::{Codecs, Method};
use narrows::monitor::View;
use narrows::policy::{Choice, Policy, PolicySettings, PolicySetup, Registered};
use narrows::{Error, Result};

/// Maximum length that every receiver accepts (docs/format.md, section 6).
const BASELINE_BLOCK_MAX: usize = 2 << 20;
/// Maximum length of any block on the wire (docs/format.md, section 6).
const BLOCK_HARD_MAX: u64 = 64 << 20;
/// Four million blocks of 128 KiB are half a terabyte; their schedule takes 64 MiB of memory.
const BLOCKS_MAX: usize = 4 << 20;

/// One block of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Raw bytes.
    pub raw_len: usize,
    /// The method to encode with.
    pub method: Method,
    /// Encode with the flow's history as dictionary.
    pub linked: bool,
    /// Most bytes of history that a linked block refers to.
    pub history_len: usize,
}

impl Planned {
    /// A block that is not linked.
    pub fn alone(raw_len: usize, method: Method) -> Self {
        Self { raw_len, method, linked: false, history_len: usize::MAX }
    }
}

/// The blocks of a whole flow with their lengths and methods, decided in advance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule(Vec<Planned>);

impl Schedule {
    /// A schedule of these blocks, in their order.
    pub fn new(blocks: Vec<Planned>) -> Self {
        Self(blocks)
    }

    /// The blocks in their order.
    pub fn blocks(&self) -> &[Planned] {
        &self.0
    }

    /// Parses a schedule, or the trace of one flow, with methods of the library.
    ///
    /// # Errors
    /// A line is malformed, a block's length or method is invalid, the trace has more than one flow
    /// or lacks its beginning, or there are no blocks or too many.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, Codecs::shipped())
    }

    /// Parses a schedule, or the trace of one flow, with methods of these codecs.
    ///
    /// # Errors
    /// As [`Schedule::parse`].
    pub fn parse_with(text: &str, codecs: &Codecs) -> Result<Self> {
        let is_trace = text.trim_start().starts_with('{');
        let blocks = if is_trace { parse_trace(text, codecs)? } else { parse_schedule(text, codecs)? };
        if blocks.is_empty() {
            return Err(Error::misuse("the file has no block to replay"));
        }
        Ok(Self(blocks))
    }

    /// Every method once, in order of appearance; `store` is always there.
    pub fn methods(&self) -> Vec<Method> {
        let mut methods = vec![Method::STORE];
        for block in &self.0 {
            if !methods.contains(&block.method) {
                methods.push(block.method);
            }
        }
        methods
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# narrows-replay 1")?;
        for Planned { raw_len, method, linked, history_len } in &self.0 {
            match history_len {
                _ if !linked => writeln!(f, "{raw_len} {method}")?,
                &usize::MAX => writeln!(f, "{raw_len} {method} linked")?,
                _ => writeln!(f, "{raw_len} {method} linked {history_len}")?,
            }
        }
        Ok(())
    }
}

fn parse_schedule(text: &str, codecs: &Codecs) -> Result<Vec<Planned>> {
    let mut blocks = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(raw_len) = words.next() else { continue };
        let bad = || {
            Error::misuse(format!("line {}: '{line}' is not: raw length, method, perhaps 'linked', and bytes", i + 1))
        };
        let raw_len: u64 = raw_len.parse().map_err(|_| bad())?;
        let method = words.next().ok_or_else(bad)?;
        let (linked, history_len) = match (words.next(), words.next()) {
            (None, _) => (false, usize::MAX),
            (Some("linked"), None) => (true, usize::MAX),
            (Some("linked"), Some(len)) => (true, len.parse().map_err(|_| bad())?),
            _ => return Err(bad()),
        };
        if words.next().is_some() {
            return Err(bad());
        }
        push(&mut blocks, codecs, i, raw_len, method, (linked, history_len))?;
    }
    Ok(blocks)
}

/// A block of a trace whose length is not known until the next one's offset.
struct Begun<'a> {
    line: usize,
    raw_offset: u64,
    seq: u64,
    len_at_most: u64,
    method: &'a str,
    linked: bool,
    history_len: usize,
}

fn parse_trace(text: &str, codecs: &Codecs) -> Result<Vec<Planned>> {
    let mut blocks = Vec::new();
    let mut begun: Option<Begun<'_>> = None;
    let mut last_encoded = None;
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = || Error::misuse(format!("line {} is not a line of a trace", i + 1));
        let number = |key: &str| field(line, key).and_then(|v| v.parse::<u64>().ok()).ok_or_else(bad);
        match field(line, "event").ok_or_else(bad)? {
            "encoded" => last_encoded = Some((number("seq")?, number("raw_len")?)).max(last_encoded),
            "choose" => {
                let raw_offset = number("raw_offset")?;
                if let Some(b) = begun.take() {
                    let raw_len = raw_offset.checked_sub(b.raw_offset).filter(|len| *len > 0);
                    let raw_len = raw_len.ok_or_else(|| {
                        Error::misuse(format!("line {}: a second flow begins; replay takes the trace of one", i + 1))
                    })?;
                    push(&mut blocks, codecs, b.line, raw_len, b.method, (b.linked, b.history_len))?;
                } else if raw_offset > 0 {
                    return Err(Error::misuse("the trace lacks the beginning of its flow"));
                }
                begun = Some(Begun {
                    line: i,
                    raw_offset,
                    seq: number("seq")?,
                    len_at_most: number("block_len")?.min(number("gathered")?),
                    method: field(line, "method").ok_or_else(bad)?,
                    linked: field(line, "linked").ok_or_else(bad)? == "true",
                    // Traces of older versions have none.
                    history_len: number("history_len")
                        .ok()
                        .filter(|len| *len > 0)
                        .map_or(usize::MAX, |len| len as usize),
                });
            }
            _ => {}
        }
    }
    if let Some(b) = begun {
        let raw_len = last_encoded.filter(|e| e.0 == b.seq).map_or(b.len_at_most, |e| e.1);
        push(&mut blocks, codecs, b.line, raw_len, b.method, (b.linked, b.history_len))?;
    }
    Ok(blocks)
}

/// The value of a key in one flat JSON object. Traces have no escapes, and commas only in the
/// values of methods.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = line.find(&format!("\"{key}\":"))? + key.len() + 3;
    let value = &line[at..];
    match value.strip_prefix('"') {
        Some(text) => text.split('"').next(),
        None => value.split([',', '}']).next(),
    }
}

fn push(
    blocks: &mut Vec<Planned>,
    codecs: &Codecs,
    line: usize,
    raw_len: u64,
    method: &str,
    (linked, history_len): (bool, usize),
) -> Result<()> {
    let line = line + 1;
    if raw_len == 0 || raw_len > BLOCK_HARD_MAX {
        return Err(Error::misuse(format!("line {line}: a block has 1 to {BLOCK_HARD_MAX} bytes, not {raw_len}")));
    }
    let method = codecs.parse(method).map_err(|e| Error::misuse(format!("line {line}: {}", e.message)))?;
    if linked && !codecs.can_link(method) {
        return Err(Error::misuse(format!("line {line}: {} frames cannot be linked", codecs.of(method).name())));
    }
    if blocks.len() >= BLOCKS_MAX {
        return Err(Error::misuse(format!("line {line}: a schedule has at most {BLOCKS_MAX} blocks")));
    }
    blocks.push(Planned { raw_len: raw_len as usize, method, linked, history_len });
    Ok(())
}

/// The policy: repeats the choices of a schedule.
pub struct Replay {
    blocks: Vec<Planned>,
    len_max: usize,
    /// The block that contains the next raw byte, and the raw offset of its end.
    at: usize,
    end: u64,
    codecs: Codecs,
}

impl Replay {
    /// An empty schedule stores everything.
    pub fn new(schedule: Schedule, codecs: &Codecs) -> Self {
        let mut blocks = schedule.0;
        if blocks.is_empty() {
            blocks.push(Planned::alone(128 << 10, Method::STORE));
        }
        let len_max = blocks.iter().map(|b| b.raw_len).max().unwrap_or(1).max(1);
        let end = blocks[0].raw_len as u64;
        Self { blocks, len_max, at: 0, end, codecs: codecs.clone() }
    }
}

impl Policy for Replay {
    /// Goes by the offset of the next byte, not by the number of blocks. If fewer bytes have
    /// gathered than the schedule's block has, the rest follows with the same method, and later
    /// cuts are again at their scheduled offsets.
    fn choose(&mut self, view: &View<'_>) -> Choice {
        while view.raw_offset >= self.end && self.at + 1 < self.blocks.len() {
            self.at += 1;
            self.end = self.end.saturating_add(self.blocks[self.at].raw_len as u64);
        }
        let block = self.blocks[self.at];
        // After the end of the schedule the last method continues in blocks of the longest
        // scheduled length, since the last block may be a remainder.
        let len = self.end.checked_sub(view.raw_offset).filter(|l| *l > 0).map_or(self.len_max, |l| l as usize);
        let block_len = len.min(view.limits.block_max);
        let method = if view.limits.allows(block.method) { block.method } else { Method::STORE };
        let linked = block.linked && self.codecs.can_link(method);
        let encode_ns = self.codecs.encode_ns(method, block_len);
        Choice { linked, history_len: block.history_len, encode_ns, ..Choice::new(method, block_len) }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(self.len_max)
    }
}

#[derive(Debug)]
struct Settings {
    file: String,
    /// Contents of the file.
    schedule: Option<Schedule>,
    /// Those that the file may name.
    codecs: Codecs,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replay:{}", self.file)
    }
}

impl PolicySettings for Settings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Replay::new(self.schedule.clone().unwrap_or_default(), setup.codecs))
    }

    fn block_max(&self) -> usize {
        BASELINE_BLOCK_MAX
    }

    fn methods(&self) -> Vec<Method> {
        self.schedule.as_ref().map_or_else(|| vec![Method::STORE], Schedule::methods)
    }

    /// A schedule that is not loaded yet may have linked blocks.
    fn links(&self) -> bool {
        self.schedule.as_ref().is_none_or(|s| s.blocks().iter().any(|b| b.linked))
    }

    fn file(&self) -> Option<&str> {
        Some(&self.file)
    }

    fn load(&self, bytes: &[u8]) -> Result<Arc<dyn PolicySettings>> {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::misuse("a schedule or a trace is text"))?;
        let schedule = Some(Schedule::parse_with(text, &self.codecs)?);
        Ok(Arc::new(Self { file: self.file.clone(), schedule, codecs: self.codecs.clone() }))
    }
}

pub(crate) const ENTRY: Registered = Registered {
    name: "replay",
    usage: "replay:FILE",
    about: "repeats the choices of a schedule or of a trace",
    examples: &["replay:FILE"],
    parse: |rest, codecs| match rest.strip_prefix(':').filter(|file| !file.is_empty()) {
        Some(file) => Ok(Arc::new(Settings { file: file.to_owned(), schedule: None, codecs: codecs.clone() })),
        None => Err(Error::misuse("replay needs the file of a schedule or trace: replay:FILE")),
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_reads_as_it_prints() {
        let text = "# narrows-replay 1\n8192 store\n131072 zstd:level=1\n77 lz4:accel=16 linked\n";
        let schedule = Schedule::parse(text).unwrap();
        assert_eq!(schedule.to_string(), text);
        assert_eq!(schedule.methods(), [Method::STORE, Method::zstd(1), Method::lz4_accel(16)]);
        let spaced = "\n 8192\tstore # first\n\n131072 zstd:level=1\n77 lz4:accel=16  linked";
        assert_eq!(Schedule::parse(spaced).unwrap(), schedule);
    }

    #[test]
    fn what_is_no_schedule_is_named_by_line() {
        for (text, part) in [
            ("", "no block"),
            ("# nothing\n", "no block"),
            ("8192 store\nx zstd\n", "line 2"),
            ("0 store", "line 1"),
            ("9 store linked", "linked"),
            ("9 zstd link", "line 1"),
            ("9 zstd linked more", "line 1"),
            ("9", "line 1"),
            ("67108865 store", "67108864"),
            ("9 zstd:level=99", "level=99"),
            ("{\"event\":\"choose\",\"raw_offset\":5}", "beginning"),
            ("{\"event\":\"wait\"}", "no block"),
            ("{\"seq\":1}", "line 1"),
            ("{\"event\":\"choose\",\"raw_offset\":0}", "line 1"),
        ] {
            let message = Schedule::parse(text).unwrap_err().message;
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }

    /// Offsets 0, 8192 and 40960: blocks of 8192 and 32768, and a last one of which `encoded` tells
    /// the length.
    #[test]
    fn a_trace_tells_lengths_by_offsets() {
        let line = |seq: u64, offset: u64, method: &str| {
            format!(
                "{{\"event\":\"choose\",\"now_ns\":1,\"seq\":{seq},\"raw_offset\":{offset},\"gathered\":90000,\
                 \"method\":\"{method}\",\"linked\":{},\"block_len\":65536,\"encode_ns\":5,\"price\":0.5}}\n",
                seq == 1
            )
        };
        let mut text = line(0, 0, "store") + &line(1, 8192, "lz4:accel=16");
        text += "{\"event\":\"wait\",\"now_ns\":5,\"seq\":1,\"until_ns\":9}\n";
        text += &line(2, 40960, "zstd:level=1");
        let planned = |raw_len, method, linked| Planned { linked, ..Planned::alone(raw_len, method) };
        let mut expected = vec![
            planned(8192, Method::STORE, false),
            planned(32768, Method::lz4_accel(16), true),
            planned(65536, Method::zstd(1), false),
        ];
        assert_eq!(Schedule::parse(&text).unwrap().blocks(), expected);
        text += "{\"event\":\"encoded\",\"now_ns\":9,\"seq\":2,\"method\":\"zstd:level=1\",\"raw_len\":1000,\
                 \"wire_len\":500,\"wall_ns\":1,\"cpu_ns\":1,\"taken_over\":false}\n";
        expected[2].raw_len = 1000;
        assert_eq!(Schedule::parse(&text).unwrap().blocks(), expected);
        text += &line(0, 0, "store");
        assert!(Schedule::parse(&text).unwrap_err().message.contains("second flow"));
    }
}
