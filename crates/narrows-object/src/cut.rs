//! Ends of the frames in a stream, so that parts of an object have whole frames.

use narrows::frame::{
    self, BLOCK_MAX_HARD, ControlKind, HISTORY_MAX_HARD, Header, MAGIC, PREFACE_LEN, Preface, ReadLimits, feature,
};

/// Longest header of a frame with its check; a preface is longer.
const HEADER_MAX: usize = 64;

/// Follows a stream, or several one after another, that is written piece by piece.
pub(crate) struct Frames(Place);

enum Place {
    /// In a preface or a header.
    Header { begin: Vec<u8>, limits: Option<ReadLimits> },
    /// In a body, with so many bytes to come.
    Body { left: usize, limits: Option<ReadLimits> },
    /// These are no frames.
    Other,
}

impl Default for Frames {
    fn default() -> Self {
        Self(Place::Header { begin: Vec::new(), limits: None })
    }
}

impl Frames {
    /// Takes bytes up to the end of the next frame and returns their number; `None` if all were taken
    /// and the frame goes on, or there are no frames.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.0 {
                Place::Other => return None,
                Place::Body { left, limits } => {
                    let n = (*left).min(bytes.len() - at);
                    *left -= n;
                    at += n;
                    if *left == 0 {
                        self.0 = Place::Header { begin: Vec::new(), limits: limits.take() };
                        return Some(at);
                    }
                }
                Place::Header { begin, limits } => {
                    begin.push(bytes[at]);
                    at += 1;
                    match after_header(begin, limits.as_ref()) {
                        Step::More if begin.len() < HEADER_MAX => {}
                        Step::More | Step::Bad => self.0 = Place::Other,
                        Step::Body { left: 0, limits } => {
                            self.0 = Place::Header { begin: Vec::new(), limits };
                            return Some(at);
                        }
                        Step::Body { left, limits } => self.0 = Place::Body { left, limits },
                    }
                }
            }
        }
        None
    }
}

enum Step {
    More,
    Bad,
    /// A header is whole, and so many bytes follow.
    Body {
        left: usize,
        limits: Option<ReadLimits>,
    },
}

fn after_header(begin: &[u8], limits: Option<&ReadLimits>) -> Step {
    let Some(limits) = limits else {
        return match Preface::parse(begin) {
            _ if begin.len() < PREFACE_LEN && MAGIC.starts_with(&begin[..begin.len().min(MAGIC.len())]) => Step::More,
            Ok(Some(preface)) => Step::Body { left: 0, limits: Some(limits_of(&preface)) },
            _ if begin.len() < PREFACE_LEN && begin.starts_with(&MAGIC) => Step::More,
            _ => Step::Bad,
        };
    };
    match frame::parse_header(begin, limits) {
        Ok(None) => Step::More,
        Ok(Some(Header::Block(h))) => Step::Body { left: h.wire_len, limits: Some(*limits) },
        // Another stream may follow.
        Ok(Some(Header::Control(h))) if h.kind == ControlKind::End => Step::Body { left: h.body_len, limits: None },
        Ok(Some(Header::Control(h))) => Step::Body { left: h.body_len, limits: Some(*limits) },
        Err(_) => Step::Bad,
    }
}

fn limits_of(preface: &Preface) -> ReadLimits {
    ReadLimits {
        block_max: preface.block_max.min(BLOCK_MAX_HARD),
        history: preface.history.min(HISTORY_MAX_HARD),
        reach: if preface.critical & feature::COPIES != 0 { preface.reach } else { 0 },
        codecs: preface.codecs,
        check: preface.check,
        messages: false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use narrows_file::{File, WriteOptions, Writer};

    use super::*;

    fn stream(len: usize) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), WriteOptions::default().block_max(10_000)).unwrap();
        let raw: Vec<u8> = (0..len).map(|i| ((i * i) >> 7) as u8).collect();
        writer.write_all(&raw).unwrap();
        writer.finish().unwrap().0
    }

    fn ends(bytes: &[u8], step: usize) -> Vec<usize> {
        let (mut frames, mut ends) = (Frames::default(), Vec::new());
        let mut at = 0;
        for piece in bytes.chunks(step) {
            let mut rest = piece;
            while let Some(n) = frames.next(rest) {
                at += n;
                rest = &rest[n..];
                ends.push(at);
            }
            at += rest.len();
        }
        ends
    }

    #[test]
    fn ends_are_those_of_the_index_however_the_bytes_come() {
        let bytes = [stream(100_000), stream(0), stream(50_000)].concat();
        let found = ends(&bytes, bytes.len());
        let file = File::open(bytes.clone()).unwrap();
        for member in file.members() {
            for i in 0..member.blocks() {
                let entry = member.entry(i).unwrap();
                assert!(found.contains(&((member.wire_begin + entry.wire_end) as usize)), "{entry:?}");
            }
        }
        assert_eq!(found.last(), Some(&bytes.len()));
        for step in [1, 7, 4096] {
            assert_eq!(ends(&bytes, step), found);
        }
    }

    #[test]
    fn other_bytes_have_no_ends() {
        assert!(ends(&[7; 10_000], 100).is_empty());
        let mut bytes = stream(100_000);
        bytes[PREFACE_LEN] = 0;
        assert_eq!(ends(&bytes, 1000), [PREFACE_LEN]);
        assert!(ends(&[], 1).is_empty());
    }
}
