//! `narrows inspect`: shows the structure of the streams in a file, and reports the first error in it.

use std::io::Read;

use anyhow::Result;
use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Here};
use narrows::frame::{self, ControlKind, PREFACE_LEN, Preface};
use narrows::receiver::{Depth, ObservedKind, Receiver, ReceiverConfig};
use narrows::{Error, ErrorKind};
use narrows_file::Split;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::files::Source;
use crate::report;

/// Read length.
const PIECE: usize = 256 << 10;

/// Limit of the bytes held by the receiver, of which any lets one block pass: the next frame is not
/// parsed before the one before it is decoded, so that errors come in the order of the stream.
const ONE_FRAME: usize = 1;

/// Beginning of the object that `--frames --json` prints. Rows are printed as they come: a stream of
/// five bytes a frame would take hundreds of times its length in memory.
const ROWS: &str = "{\"rows\":[";

/// Most prefaces that are told apart. A file has one kind unless several programs wrote it.
const PREFACES_MAX: usize = 16;

/// Runs `narrows inspect`.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let file = Source::open(Some(&args.file))?;
    let name = file.name();
    let mut stream = Inspection::new(file, !args.no_verify);
    let mut printed = Ok(());
    let mut rows = 0;
    let result = stream.read_all(|row| {
        if !args.frames || printed.is_err() {
            return;
        }
        printed = match (args.json, rows) {
            (false, _) => report::out(row.line()),
            (true, 0) => report::out(format_args!("{ROWS}{}", row.json())),
            (true, _) => report::out(format_args!(",{}", row.json())),
        };
        rows += 1;
    });
    printed?;
    if args.json {
        let mut json = stream.json(result.as_ref().err());
        if args.frames {
            let begin = if rows == 0 { ROWS } else { "" };
            report::out(format_args!("{begin}],{}", &json.to_string()[1..]))?;
        } else {
            json["rows"] = Value::Null;
            report::out(json)?;
        }
    } else {
        stream.print(result.is_ok())?;
    }
    result.map_err(|e| match (e.kind, stream.streams) {
        (ErrorKind::Io, _) => name.blame(e),
        (_, 1) => anyhow::Error::from(e).context(args.file.display().to_string()),
        (_, n) => anyhow::Error::from(e).context(format!("{}, stream {n}", args.file.display())),
    })
}

/// A file on its way through a receiver that is observed.
struct Inspection {
    file: Split<Source>,
    pool: BufferPool,
    /// Of the stream in hand.
    decoding: Decoding,
    contexts: Contexts,
    verify: bool,
    /// Streams that were begun.
    streams: u64,
    /// Prefaces that differ, and how many streams have each.
    prefaces: Vec<(Preface, u64)>,
    /// Bytes of the file before the stream in hand.
    wire_begin: u64,
    /// Bytes of the file up to the end of the last good frame.
    wire_offset: u64,
    /// Frames of the streams before.
    frames_before: u64,
    raw_offset: u64,
    frames: u64,
    mix: Vec<(String, u64, u64, u64)>,
    ended: bool,
}

/// One frame of the listing.
struct Row {
    wire_offset: u64,
    kind: String,
    linked: bool,
    copies: bool,
    raw_len: usize,
    wire_len: usize,
}

impl Row {
    fn line(&self) -> String {
        let ratio = self.raw_len as f64 / self.wire_len.max(1) as f64;
        let how = match (self.linked, self.copies) {
            (false, false) => "",
            (true, false) => "linked",
            (false, true) => "copies",
            (true, true) => "linked, copies",
        };
        let Self { wire_offset, kind, raw_len, wire_len, .. } = self;
        format!("{wire_offset:>12} {kind:<10} {how:<6} {raw_len:>9} raw {wire_len:>9} wire {ratio:>8.2}")
    }

    fn json(&self) -> Value {
        let Self { wire_offset, kind, linked, copies, raw_len, wire_len } = self;
        json!({
            "wire_offset": wire_offset,
            "kind": kind,
            "linked": linked,
            "copies": copies,
            "raw_len": raw_len,
            "wire_len": wire_len,
        })
    }
}

fn decoding(pool: &BufferPool, verify: bool) -> Decoding {
    let config = ReceiverConfig {
        block_max: frame::BLOCK_MAX_HARD,
        history_max: frame::HISTORY_MAX_HARD,
        // Without checks nothing is decoded, so nothing has to be kept.
        reach_max: frame::REACH_MAX_HARD,
        memory_max: ONE_FRAME,
        images: true,
        ..ReceiverConfig::default()
    };
    let mut receiver = Receiver::new(config, pool.clone());
    receiver.observe(if verify { Depth::Blocks } else { Depth::Headers });
    Decoding::new(receiver)
}

impl Inspection {
    fn new(file: Source, verify: bool) -> Self {
        let pool = BufferPool::default();
        Self {
            file: Split::new(Vec::new(), file),
            decoding: decoding(&pool, verify),
            pool,
            contexts: Contexts::default(),
            verify,
            streams: 1,
            prefaces: Vec::new(),
            wire_begin: 0,
            wire_offset: 0,
            frames_before: 0,
            raw_offset: 0,
            frames: 0,
            mix: Vec::new(),
            ended: false,
        }
    }

    fn read_all(&mut self, mut show: impl FnMut(&Row)) -> Result<(), Error> {
        loop {
            let result = self.read_stream(&mut show);
            self.keep_preface();
            result?;
            if !self.file.has_ended() || !self.file.next_stream()? {
                return Ok(());
            }
            self.streams += 1;
            self.wire_begin = self.wire_offset;
            self.frames_before = self.frames;
            self.ended = false;
            self.decoding = decoding(&self.pool, self.verify);
        }
    }

    fn keep_preface(&mut self) {
        let Some(preface) = self.decoding.preface() else { return };
        if let Some((_, streams)) = self.prefaces.iter_mut().find(|(known, _)| known == preface) {
            *streams += 1;
        } else if self.prefaces.len() < PREFACES_MAX {
            self.prefaces.push((*preface, 1));
        }
    }

    fn read_stream(&mut self, show: &mut impl FnMut(&Row)) -> Result<(), Error> {
        loop {
            let piece = self.piece()?;
            if piece.is_empty() {
                return self.decoding.close();
            }
            let mut taken = self.decoding.receive(piece);
            loop {
                let passed = taken.and_then(|()| self.decode());
                self.take_rows(show);
                passed.map_err(|e| self.with_place(e))?;
                if !self.decoding.has_unparsed() {
                    break;
                }
                taken = self.decoding.resume();
            }
        }
    }

    /// The next bytes of the file, none at its end.
    fn piece(&mut self) -> Result<Block, Error> {
        let mut buffer = self.pool.get(PIECE);
        let read = self.file.read(&mut buffer.bytes_mut()[..PIECE]).map_err(|e| {
            let error = Error::system("cannot read", e);
            let inside = self.decoding.preface().is_some() && !self.ended;
            if inside { error.at(self.wire_offset - self.wire_begin, self.frames - self.frames_before) } else { error }
        })?;
        let piece = buffer.freeze(read);
        self.pool.recycle(&piece);
        Ok(piece)
    }

    /// Decodes what was received. The raw bytes are dropped: their check was all.
    fn decode(&mut self) -> Result<(), Error> {
        let here = &mut Here { contexts: &mut self.contexts, buffers: &self.pool };
        self.decoding.work(Budget::ALL, here)?;
        while self.decoding.read().is_some() {}
        Ok(())
    }

    fn take_rows(&mut self, show: &mut impl FnMut(&Row)) {
        if self.decoding.preface().is_some() {
            self.wire_offset = self.wire_offset.max(self.wire_begin + PREFACE_LEN as u64);
        }
        while let Some(seen) = self.decoding.poll_observed() {
            let (wire_offset, wire_len) = (self.wire_begin + seen.wire_offset, seen.wire_len);
            let row = match seen.kind {
                ObservedKind::Block { codec, linked, copies, raw_len } => {
                    let kind = codec.codec().map_or("unknown", |c| c.name()).to_string();
                    let row = Row { wire_offset, kind, linked, copies, raw_len, wire_len };
                    self.count(&row);
                    row
                }
                ObservedKind::Control(kind) => {
                    self.ended |= kind == ControlKind::End;
                    let kind = format!("{kind:?}").to_lowercase();
                    Row { wire_offset, kind, linked: false, copies: false, raw_len: 0, wire_len }
                }
            };
            self.wire_offset = wire_offset + wire_len as u64;
            show(&row);
        }
    }

    fn count(&mut self, block: &Row) {
        let (raw_len, wire_len) = (block.raw_len as u64, block.wire_len as u64);
        self.frames += 1;
        self.raw_offset += raw_len;
        let [linked, copies] =
            [(block.linked, ",link"), (block.copies, ",copy")].map(|(is, name)| if is { name } else { "" });
        let name = format!("{}{linked}{copies}", block.kind);
        match self.mix.iter_mut().find(|m| m.0 == name) {
            Some(m) => (m.1, m.2, m.3) = (m.1 + 1, m.2 + raw_len, m.3 + wire_len),
            None => self.mix.push((name, 1, raw_len, wire_len)),
        }
    }

    /// A file that is no stream has no place to name.
    fn with_place(&self, error: Error) -> Error {
        match self.decoding.preface() {
            Some(_) => error,
            None => error.with_place(None, None),
        }
    }

    fn print(&self, whole: bool) -> Result<()> {
        if self.prefaces.is_empty() {
            return Ok(());
        }
        for (p, streams) in &self.prefaces {
            let check = if p.check { "checks on" } else { "no checks" };
            let (version, block_max, history) = (frame::VERSION, p.block_max, p.history);
            let copies =
                if p.reach > 0 { format!(", copies from up to {} bytes back", p.reach) } else { String::new() };
            let streams =
                if self.streams > 1 { format!("{streams} of {} streams: ", self.streams) } else { String::new() };
            report::out(format_args!(
                "{streams}format {version}, blocks up to {block_max} bytes, history {history} bytes, {check}{copies}"
            ))?;
        }
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
        let check = self.prefaces.iter().all(|(p, _)| p.check);
        report::out(match (whole, self.verify, check) {
            (true, true, true) => "complete; every block decodes and matches its check",
            (true, true, false) => "complete; every block decodes",
            (true, false, _) => "complete by its headers; blocks were not decoded",
            (false, ..) => "NOT complete",
        })
    }

    fn json(&self, error: Option<&Error>) -> Value {
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
            "streams": self.streams,
            "raw_bytes": self.raw_offset,
            "wire_bytes": self.wire_offset,
            "ratio": self.raw_offset as f64 / self.wire_offset.max(1) as f64,
            "frames": self.frames,
            "mix": mix,
            "error": error.map(ToString::to_string),
        })
    }
}
