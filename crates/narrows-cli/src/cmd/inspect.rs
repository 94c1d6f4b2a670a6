//! `narrows inspect`: shows the structure of a stream and reports the first error in it.

use std::collections::VecDeque;
use std::io::Read;

use anyhow::Result;
use narrows::codec::Contexts;
use narrows::frame::{
    self, BlockHeader, ControlHeader, ControlKind, EndTotals, Header, PREFACE_LEN, Preface, ReadLimits, chain_digest,
};
use narrows::{Error, ErrorKind};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::files::Source;
use crate::report;

/// Read length.
const PIECE: usize = 256 << 10;

/// Runs `narrows inspect`.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let file = Source::open(Some(&args.file))?;
    let name = file.name();
    let mut stream = Inspection::new(file, !args.no_verify);
    let mut rows = Vec::new();
    let mut printed = Ok(());
    let result = stream.read_all(|row| {
        if args.frames && args.json {
            rows.push(row.json());
        } else if args.frames && printed.is_ok() {
            printed = report::out(row.line());
        }
    });
    printed?;
    if args.json {
        report::out(stream.json(args.frames.then_some(rows), result.as_ref().err()))?;
    } else {
        stream.print(result.is_ok())?;
    }
    result.map_err(|e| match e.kind {
        ErrorKind::Io => name.blame(e),
        _ => anyhow::Error::from(e).context(args.file.display().to_string()),
    })
}

struct Inspection {
    file: Source,
    verify: bool,
    buffer: Vec<u8>,
    at: usize,
    wire_offset: u64,
    raw_offset: u64,
    frames: u64,
    digest: u64,
    history: VecDeque<u8>,
    history_len: usize,
    contexts: Contexts,
    preface: Option<Preface>,
    mix: Vec<(String, u64, u64, u64)>,
    ended: bool,
}

/// One frame of the listing.
struct Row {
    wire_offset: u64,
    kind: String,
    linked: bool,
    raw_len: usize,
    wire_len: usize,
}

impl Row {
    fn line(&self) -> String {
        let ratio = self.raw_len as f64 / self.wire_len.max(1) as f64;
        let linked = if self.linked { "linked" } else { "" };
        let Self { wire_offset, kind, raw_len, wire_len, .. } = self;
        format!("{wire_offset:>12} {kind:<10} {linked:<6} {raw_len:>9} raw {wire_len:>9} wire {ratio:>8.2}")
    }

    fn json(&self) -> Value {
        let Self { wire_offset, kind, linked, raw_len, wire_len } = self;
        json!({"wire_offset": wire_offset, "kind": kind, "linked": linked, "raw_len": raw_len, "wire_len": wire_len})
    }
}

impl Inspection {
    fn new(file: Source, verify: bool) -> Self {
        Self {
            file,
            verify,
            buffer: Vec::new(),
            at: 0,
            wire_offset: 0,
            raw_offset: 0,
            frames: 0,
            digest: 0,
            history: VecDeque::new(),
            history_len: 0,
            contexts: Contexts::default(),
            preface: None,
            mix: Vec::new(),
            ended: false,
        }
    }

    fn read_all(&mut self, mut show: impl FnMut(&Row)) -> Result<(), Error> {
        let preface = loop {
            if let Some(preface) = Preface::parse(&self.buffer[self.at..])? {
                break preface;
            }
            self.more()?;
        };
        self.advance(PREFACE_LEN);
        self.preface = Some(preface);
        self.history_len = preface.history;
        let limits = ReadLimits {
            block_max: preface.block_max,
            history: preface.history,
            codecs: preface.codecs & frame::codecs_of_this_build(),
            check: preface.check,
            messages: preface.critical & frame::feature::MESSAGES != 0,
        };
        while !self.ended {
            let (wire_offset, frames) = (self.wire_offset, self.frames);
            let row = self.read_frame(&limits).map_err(|e| e.at(wire_offset, frames))?;
            show(&row);
        }
        if self.at < self.buffer.len() || self.fill()? > 0 {
            return Err(Error::corrupt("there are bytes after the end of the stream").at(self.wire_offset, self.frames));
        }
        Ok(())
    }

    fn read_frame(&mut self, limits: &ReadLimits) -> Result<Row, Error> {
        let header = loop {
            if let Some(header) = frame::parse_header(&self.buffer[self.at..], limits)? {
                break header;
            }
            self.more()?;
        };
        match header {
            Header::Block(h) => self.block(&h),
            Header::Control(h) => self.control(&h),
        }
    }

    fn block(&mut self, h: &BlockHeader) -> Result<Row, Error> {
        let wire_len = h.header_len() + h.wire_len;
        while self.buffer.len() - self.at < wire_len {
            self.more()?;
        }
        let codec = h.codec.codec().ok_or_else(|| Error::unsupported(format!("codec {}", h.codec.0)))?;
        let row_kind = codec.name().to_string();
        let mut raw_len = h.raw_len.unwrap_or(0);
        if self.verify {
            let body = &self.buffer[self.at + h.header_len()..self.at + wire_len];
            let mut raw = vec![0; h.raw_len.unwrap_or(frame::MESSAGE_MAX)];
            let history: &[u8] = if h.linked { self.history.make_contiguous() } else { &[] };
            let decoded = self.contexts.decoder(codec).decode(history, body, &mut raw);
            match decoded {
                Ok(n) if h.raw_len.is_none_or(|len| len == n) => raw.truncate(n),
                _ => return Err(Error::corrupt(format!("a block of codec {} does not decode", codec.name()))),
            }
            if h.check.is_some_and(|check| check != h.check_of(&raw, body, self.raw_offset)) {
                return Err(Error::corrupt("a block does not match its check"));
            }
            raw_len = raw.len();
            let keep = raw.len().saturating_sub(self.history_len);
            self.history.extend(&raw[keep..]);
            let excess = self.history.len().saturating_sub(self.history_len);
            self.history.drain(..excess);
        }
        if let Some(check) = h.check {
            self.digest = chain_digest(self.digest, check);
        }
        let row = Row { wire_offset: self.wire_offset, kind: row_kind, linked: h.linked, raw_len, wire_len };
        self.frames += 1;
        self.raw_offset += raw_len as u64;
        self.advance(wire_len);
        let name = if h.linked { format!("{},link", row.kind) } else { row.kind.clone() };
        match self.mix.iter_mut().find(|m| m.0 == name) {
            Some(m) => (m.1, m.2, m.3) = (m.1 + 1, m.2 + raw_len as u64, m.3 + wire_len as u64),
            None => self.mix.push((name, 1, raw_len as u64, wire_len as u64)),
        }
        Ok(row)
    }

    fn control(&mut self, h: &ControlHeader) -> Result<Row, Error> {
        let wire_len = h.header_len + h.body_len;
        while self.buffer.len() - self.at < wire_len {
            self.more()?;
        }
        let body = &self.buffer[self.at + h.header_len..self.at + wire_len];
        h.verify(body, self.raw_offset)?;
        match h.kind {
            ControlKind::Reset => self.history.clear(),
            ControlKind::End => {
                let totals = EndTotals::parse(body)?;
                if (totals.raw_total, totals.wire_total, totals.digest)
                    != (self.raw_offset, self.wire_offset, self.digest)
                {
                    return Err(Error::corrupt("the totals of the end frame do not match the stream"));
                }
                self.ended = true;
            }
            ControlKind::Index | ControlKind::Unknown(_) => {}
            ControlKind::Feedback | ControlKind::Close | ControlKind::Note => {
                return Err(Error::corrupt("a frame that only a receiver sends"));
            }
        }
        let kind = format!("{:?}", h.kind).to_lowercase();
        let row = Row { wire_offset: self.wire_offset, kind, linked: false, raw_len: 0, wire_len };
        self.advance(wire_len);
        Ok(row)
    }

    fn advance(&mut self, len: usize) {
        self.at += len;
        self.wire_offset += len as u64;
    }

    fn more(&mut self) -> Result<(), Error> {
        if self.fill()? > 0 {
            return Ok(());
        }
        let nothing = self.wire_offset == 0 && self.buffer.is_empty();
        let text = if nothing { "the stream is empty" } else { "the stream ends before its end frame" };
        Err(Error::truncated(text).at(self.wire_offset, self.frames))
    }

    fn fill(&mut self) -> Result<usize, Error> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let len = self.buffer.len();
        self.buffer.resize(len + PIECE, 0);
        let read = self
            .file
            .read(&mut self.buffer[len..])
            .map_err(|e| Error { source: Some(e), ..Error::new(ErrorKind::Io, "cannot read") });
        let n = *read.as_ref().unwrap_or(&0);
        self.buffer.truncate(len + n);
        read
    }

    fn print(&self, whole: bool) -> Result<()> {
        let Some(p) = &self.preface else { return Ok(()) };
        let check = if p.check { "checks on" } else { "no checks" };
        let (version, block_max, history) = (frame::VERSION, p.block_max, p.history);
        report::out(format_args!(
            "format {version}, blocks up to {block_max} bytes, history {history} bytes, {check}"
        ))?;
        let row = |name: &str, frames: u64, raw: u64, wire: u64| {
            let ratio = raw as f64 / wire.max(1) as f64;
            report::out(format_args!("{name:<14} {frames:>8} {raw:>14} {wire:>14} {ratio:>8.2}"))
        };
        let head = ["method", "frames", "raw bytes", "wire bytes", "ratio"];
        report::out(format_args!("{:<14} {:>8} {:>14} {:>14} {:>8}", head[0], head[1], head[2], head[3], head[4]))?;
        for (name, frames, raw, wire) in &self.mix {
            row(name, *frames, *raw, *wire)?;
        }
        row("total", self.frames, self.raw_offset, self.wire_offset)?;
        report::out(match (whole, self.verify, p.check) {
            (true, true, true) => "complete; every block decodes and matches its check",
            (true, true, false) => "complete; every block decodes",
            (true, false, _) => "complete by its headers; blocks were not decoded",
            (false, ..) => "NOT complete",
        })
    }

    fn json(&self, rows: Option<Vec<Value>>, error: Option<&Error>) -> Value {
        let mix: Vec<_> = self
            .mix
            .iter()
            .map(|(name, frames, raw, wire)| {
                let codec = name.split(',').next();
                json!({"method": name, "codec": codec, "frames": frames, "raw_bytes": raw, "wire_bytes": wire})
            })
            .collect();
        let whole = self.ended && error.is_none();
        json!({
            "complete": whole,
            "verified": whole && self.verify,
            "raw_bytes": self.raw_offset,
            "wire_bytes": self.wire_offset,
            "ratio": self.raw_offset as f64 / self.wire_offset.max(1) as f64,
            "frames": self.frames,
            "mix": mix,
            "rows": rows,
            "error": error.map(ToString::to_string),
        })
    }
}
