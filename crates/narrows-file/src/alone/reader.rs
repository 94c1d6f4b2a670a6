//! Reads the stream of one file as it comes, and compares all that can be compared without decoding.

use narrows::codec::CodecId;
use narrows::frame::{
    self, BlockHeader, ControlKind, EndTotals, Header, PREFACE_LEN, Preface, ReadLimits, chain_digest, parse_sums,
    put_varint,
};
use narrows::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

use super::{limits, stands_alone};

/// Most blocks of a file, as readers of files have it (section 14): 32 TiB of blocks of 512 KiB.
const BLOCKS_MAX: u64 = 64 << 20;

/// What comes out of a stream, in order.
#[derive(Debug)]
pub enum Event<'a> {
    /// A frame begins.
    Frame,
    /// A part of its body.
    Body(&'a [u8]),
    /// It ends; its raw bytes begin at this offset.
    End(&'a BlockHeader, u64),
}

/// Reader of one stream. It holds a header or control frame at most, never a block.
pub struct Reader {
    buffer: Vec<u8>,
    preface: Option<([u8; PREFACE_LEN], ReadLimits)>,
    body: Option<Body>,
    part: Part,
    /// Totals so far.
    raw: u64,
    wire: u64,
    digest: u64,
    blocks: u64,
    /// Hash and length of the pairs that an index must have, and of those it has.
    pairs: (Xxh3, u64),
    index: (Xxh3, u64),
    index_offset: u64,
    /// Binary logarithm of the stretch of the sums, and the sums.
    sums: (u8, Vec<u64>),
    sums_count: u64,
    keeps_sums: bool,
    /// Raw bytes were left out, so only they and the sums are known at the end.
    has_gaps: bool,
}

/// The body that is being read.
struct Body {
    header: BlockHeader,
    left: usize,
    /// A stored body is its raw bytes, so that its check can be compared.
    hash: Option<Xxh3>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Blocks,
    PrefaceCopy,
    Index,
    Sums,
    End,
}

impl Reader {
    /// `keeps_sums`: the sums are wanted at the end.
    pub fn new(keeps_sums: bool) -> Self {
        Self {
            buffer: Vec::new(),
            preface: None,
            body: None,
            part: Part::Blocks,
            raw: 0,
            wire: 0,
            digest: 0,
            blocks: 0,
            pairs: (Xxh3::new(), 0),
            index: (Xxh3::new(), 0),
            index_offset: 0,
            sums: (0, Vec::new()),
            sums_count: 0,
            keeps_sums,
            has_gaps: false,
        }
    }

    /// Raw bytes of the frames so far.
    pub fn raw_len(&self) -> u64 {
        self.raw
    }

    /// The sums, if they were to be kept.
    pub fn sums(&self) -> (u8, &[u64]) {
        (self.sums.0, &self.sums.1)
    }

    /// Whether a frame may begin here.
    pub fn is_between_frames(&self) -> bool {
        self.preface.is_some() && self.body.is_none() && self.buffer.is_empty() && self.part == Part::Blocks
    }

    /// Leaves out raw bytes that are known otherwise.
    pub fn leave_out(&mut self, len: u64) {
        self.raw = self.raw.saturating_add(len);
        self.has_gaps = true;
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// The stream is no such stream, it contradicts itself, or `on_event` fails.
    pub fn push(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            if let Some(body) = &mut self.body {
                let (part, rest) = bytes.split_at(body.left.min(bytes.len()));
                body.left -= part.len();
                body.hash.iter_mut().for_each(|hash| hash.update(part));
                on_event(Event::Body(part))?;
                bytes = rest;
                if body.left == 0 {
                    self.end_block(&mut on_event)?;
                }
                continue;
            }
            let taken = self.header(bytes, &mut on_event)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn end_block(&mut self, on_event: &mut impl FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        let Some(Body { header, hash, .. }) = self.body.take() else { return Ok(()) };
        let (check, raw_len) = (header.check.unwrap_or_default(), header.raw_len.unwrap_or_default());
        if hash.is_some_and(|hash| hash.digest() != check) {
            return Err(Error::corrupt("a block does not match its check"));
        }
        let at = self.raw;
        self.raw = at.checked_add(raw_len as u64).ok_or_else(|| Error::corrupt("the content is too long"))?;
        self.digest = chain_digest(self.digest, check);
        let frame_len = header.header_len() + header.wire_len;
        self.wire += frame_len as u64;
        let mut pair = Vec::with_capacity(8);
        put_varint(&mut pair, raw_len as u64);
        put_varint(&mut pair, frame_len as u64);
        self.pairs.0.update(&pair);
        self.pairs.1 += pair.len() as u64;
        self.blocks += 1;
        if self.blocks > BLOCKS_MAX {
            return Err(Error::limit(format!("the content has more than {BLOCKS_MAX} blocks")));
        }
        on_event(Event::End(&header, at))
    }

    /// Takes bytes of the preface, a header or a control frame; returns how many.
    fn header(&mut self, bytes: &[u8], on_event: &mut impl FnMut(Event<'_>) -> Result<()>) -> Result<usize> {
        if self.part == Part::End {
            return Err(Error::corrupt("something follows the end of the content"));
        }
        let before = self.buffer.len();
        let Some((first, limits)) = self.preface else {
            let n = (PREFACE_LEN - before).min(bytes.len());
            self.buffer.extend_from_slice(&bytes[..n]);
            if let Some(preface) = Preface::parse(&self.buffer)? {
                if !stands_alone(&preface) {
                    return Err(Error::corrupt("the content is in frames that do not stand alone"));
                }
                let first = self.buffer[..].try_into().map_err(|_| Error::corrupt("a preface has a wrong length"))?;
                self.preface = Some((first, limits(&preface)));
                self.wire = PREFACE_LEN as u64;
                self.buffer.clear();
            }
            return Ok(n);
        };
        // Most headers lie whole in the bytes; the rest is gathered byte by byte.
        let mut at = 0;
        let header = loop {
            let parsed = frame::parse_header(if before == 0 { bytes } else { &self.buffer }, &limits)?;
            match parsed {
                Some(header) => break header,
                None if before == 0 => {
                    self.buffer.extend_from_slice(bytes);
                    return Ok(bytes.len());
                }
                None if at == bytes.len() => return Ok(at),
                None => {
                    self.buffer.push(bytes[at]);
                    at += 1;
                }
            }
        };
        match header {
            Header::Block(header) => {
                let taken = if before == 0 { header.header_len() } else { at };
                self.buffer.clear();
                if self.part != Part::Blocks {
                    return Err(Error::corrupt("a block stands behind the index"));
                }
                let hash = (header.codec == CodecId::STORE).then(|| header.check_hasher(0, self.raw));
                self.body = Some(Body { header, left: header.wire_len, hash });
                on_event(Event::Frame)?;
                Ok(taken)
            }
            Header::Control(header) => {
                let whole = header.header_len + header.body_len;
                if before == 0 {
                    let n = whole.min(bytes.len());
                    self.buffer.extend_from_slice(&bytes[..n]);
                    at = n;
                } else {
                    let n = whole.saturating_sub(self.buffer.len()).min(bytes.len() - at);
                    self.buffer.extend_from_slice(&bytes[at..at + n]);
                    at += n;
                }
                if self.buffer.len() < whole {
                    return Ok(at);
                }
                let buffer = std::mem::take(&mut self.buffer);
                let body = &buffer[header.header_len..];
                header.verify(body, self.raw)?;
                self.control(header.kind, body, &first)?;
                self.wire += whole as u64;
                Ok(at)
            }
        }
    }

    fn control(&mut self, kind: ControlKind, body: &[u8], preface: &[u8; PREFACE_LEN]) -> Result<()> {
        let part = match kind {
            ControlKind::PrefaceCopy => Part::PrefaceCopy,
            ControlKind::Index => Part::Index,
            ControlKind::Sums => Part::Sums,
            ControlKind::End => Part::End,
            _ => return Err(Error::corrupt("the content has a frame that stored files do not have")),
        };
        let repeats = matches!(part, Part::Index | Part::Sums);
        if part < self.part || part == self.part && !repeats || part == Part::Sums && self.part < Part::Index {
            return Err(Error::corrupt("the frames of the index are out of order"));
        }
        if self.part == Part::Blocks && part != Part::End {
            self.index_offset = self.wire;
        }
        self.part = part;
        match part {
            Part::PrefaceCopy if body != preface => Err(Error::corrupt("the copy of the preface differs from it")),
            Part::Index => {
                self.index.0.update(body);
                self.index.1 += body.len() as u64;
                if self.index.1 > self.pairs.1 && !self.has_gaps {
                    return Err(disagrees());
                }
                Ok(())
            }
            Part::Sums => self.take_sums(body),
            Part::End => self.end(&EndTotals::parse(body)?),
            _ => Ok(()),
        }
    }

    fn take_sums(&mut self, body: &[u8]) -> Result<()> {
        let (log, sums) = parse_sums(body)?;
        if self.sums_count > 0 && log != self.sums.0 {
            return Err(Error::corrupt("the sums have different stretches"));
        }
        self.sums.0 = log;
        self.sums_count += sums.len() as u64;
        if self.sums_count > self.raw.div_ceil(1 << log) {
            return Err(Error::corrupt("there are more sums than content"));
        }
        if self.keeps_sums {
            self.sums.1.extend(sums);
        }
        Ok(())
    }

    fn end(&self, totals: &EndTotals) -> Result<()> {
        if totals.raw_total != self.raw {
            return Err(Error::corrupt("the content has another length than its end says"));
        }
        if self.sums_count > 0 && self.sums_count != self.raw.div_ceil(1 << self.sums.0) {
            return Err(Error::corrupt("the sums are not those of all content"));
        }
        if self.has_gaps {
            return Ok(());
        }
        let has_index = self.index.1 > 0;
        if has_index && (self.index.1 != self.pairs.1 || self.index.0.digest() != self.pairs.0.digest()) {
            return Err(disagrees());
        }
        let index_offset = if has_index { self.index_offset } else { 0 };
        if !has_index && (self.blocks > 1 || self.index_offset > 0)
            || totals.index_offset != index_offset
            || totals.wire_total != self.wire
            || totals.digest != self.digest
        {
            return Err(Error::corrupt("the end of the content disagrees with its frames"));
        }
        Ok(())
    }

    /// The stream is over.
    ///
    /// # Errors
    /// Its end did not come.
    pub fn finish(&self) -> Result<()> {
        if self.part == Part::End { Ok(()) } else { Err(Error::truncated("the content has no end")) }
    }
}

fn disagrees() -> Error {
    Error::corrupt("the index disagrees with the frames")
}

#[cfg(test)]
mod tests {
    use super::super::maker::Maker;
    use super::*;
    use narrows::frame::{control_frame, reset_frame};

    /// A stream of three stored blocks and one that a codec made, and where its frames begin.
    fn stream(blocks: usize) -> (Vec<u8>, Vec<usize>) {
        let mut maker = Maker::new(1 << 20);
        let mut out = maker.preface().to_vec();
        let mut begins = Vec::new();
        for i in 0..blocks {
            begins.push(out.len());
            let raw = vec![i as u8; 1000 + i];
            let (codec, body) = if i == 2 { (CodecId(1), vec![2]) } else { (CodecId::STORE, raw.clone()) };
            out.extend_from_slice(&maker.block(codec, &raw, &body));
            out.extend_from_slice(&body);
        }
        begins.push(out.len());
        out.extend_from_slice(&maker.finish(None));
        (out, begins)
    }

    fn read(stream: &[u8], piece: usize) -> Result<u64> {
        let mut reader = Reader::new(true);
        stream.chunks(piece).try_for_each(|piece| reader.push(piece, |_| Ok(())))?;
        reader.finish()?;
        Ok(reader.raw_len())
    }

    #[test]
    fn whole_streams_pass_however_they_are_cut_and_others_do_not() {
        for blocks in [0, 1, 2, 4] {
            let (stream, _) = stream(blocks);
            let raw: u64 = (0..blocks).map(|i| 1000 + i as u64).sum();
            for piece in [1, 2, 3, 33, 1000, stream.len()] {
                assert_eq!(read(&stream, piece).unwrap(), raw);
            }
            for len in 0..stream.len() {
                assert!(read(&stream[..len], 97).is_err(), "cut at {len}");
            }
            assert!(read(&[&stream[..], b"x"].concat(), 100).is_err());
        }
    }

    #[test]
    fn no_bit_of_a_stream_can_change_except_in_encoded_bodies_and_sums() {
        let (stream, begins) = stream(4);
        // The body of the third frame is encoded: only decoding shows its damage.
        let encoded = begins[3] - 1;
        for at in (0..stream.len()).filter(|at| *at != encoded) {
            let mut bytes = stream.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(read(&bytes, 501).is_err(), "byte {at}");
        }
    }

    #[test]
    fn frames_that_lie_about_the_others_are_found() {
        let (stream, begins) = stream(4);
        let tail = begins[4];
        // A frame is left out, repeated, and moved.
        let without = [&stream[..begins[1]], &stream[begins[2]..]].concat();
        let twice = [&stream[..begins[2]], &stream[begins[1]..]].concat();
        // The index of another file, whose checks are right for themselves.
        let (other, others) = self::stream(3);
        let mixed = [&stream[..tail], &other[others[3]..]].concat();
        let reset = [&stream[..tail], &reset_bytes(4006)[..], &stream[tail..]].concat();
        for bad in [without, twice, mixed, reset] {
            assert!(read(&bad, 100).is_err());
        }
    }

    fn reset_bytes(raw: u64) -> Vec<u8> {
        let frame = reset_frame(raw);
        [&frame.header[..], &frame.body[..]].concat()
    }

    #[test]
    fn an_endless_index_is_refused_early() {
        let (stream, begins) = stream(2);
        let mut reader = Reader::new(false);
        reader.push(&stream[..begins[2]], |_| Ok(())).unwrap();
        let index = control_frame(ControlKind::Index, &[7; 60_000], 2001);
        let index = [&index.header[..], &index.body[..]].concat();
        assert!(reader.push(&index, |_| Ok(())).unwrap_err().to_string().contains("disagrees"));
    }
}
