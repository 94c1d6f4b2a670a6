//! The receiver's answers about entries: the bodies of note frames (format.md section 8.3).

use super::{CHUNKS_MAX, FRAMES_MAX, Fields, KnownFrame, SUMS_MAX, cut_text, put_bytes};
use crate::error::{Error, Result};
use crate::frame::{CONTROL_BODY_MAX, put_varint};

/// Length up to which answers are collected before they are sent as one note frame, in bytes.
pub const ANSWERS_LEN_MAX: usize = CONTROL_BODY_MAX;

const FILES: u8 = 1;
const FAILED: u8 = 2;
const CHUNKS: u8 = 4;
const NOT_STORED: u8 = 5;
const LOST: u8 = 6;
const REMOVED: u8 = 7;
const WHOLE: u8 = 8;
const AGAIN: u8 = 9;
const REPEATED: u8 = 10;
const MADE: u8 = 11;
const FRAMES: u8 = 12;
const SUMS: u8 = 13;
const REFUSED: u8 = 14;

/// An answer. Files are answered in the order of their announcement, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Answers the next files that were announced and not answered.
    Files {
        /// Number of files.
        count: u64,
        /// Whether they are wanted.
        wanted: Wanted,
    },
    /// The entry is not wanted, since it cannot be stored; the copy goes on.
    Failed {
        /// Number of the entry.
        id: u64,
        /// The reason, for a person.
        text: String,
    },
    /// The content of the entry arrived and could not be stored; the copy goes on.
    NotStored {
        /// Number of the entry.
        id: u64,
        /// The reason, for a person.
        text: String,
    },
    /// The content of an entry with repeats of other files arrived completely.
    Whole {
        /// Number of the entry.
        id: u64,
    },
    /// The receiver lacks bytes that an entry repeats. It wants the entry once more, without
    /// repeats of other files.
    Again {
        /// Number of the entry.
        id: u64,
        /// Number of the entry whose bytes are missing; `id` itself if that is unknown.
        of: u64,
    },
    /// The receiver handled more repeated bytes.
    Repeated {
        /// Number of bytes since the last such answer.
        len: u64,
    },
    /// Properties of entries that could not be kept; sent once, at the end.
    Lost {
        /// Description, for a person.
        text: String,
    },
    /// More entries were removed that the sender does not have. Only if the sender asked for it,
    /// and after its end.
    Removed {
        /// Number of entries since the last such answer; 0: nothing is removed.
        count: u64,
        /// Path of the last of them, empty if the sender did not ask for names. With a count of 0:
        /// why nothing is removed.
        text: String,
    },
    /// A folder, link, fifo or device was made or changed. Only if the sender asked for it.
    Made {
        /// Its path.
        text: String,
    },
    /// The chunks of the next `Chunks` or `Pieces` record of an entry that the receiver has.
    Chunks {
        /// Number of the entry.
        id: u64,
        /// Lengths of runs of chunks, alternately present and needed, beginning with present.
        runs: Vec<u32>,
    },
    /// Frames of an entry that the receiver has stored, from the number that the sender asked for on.
    /// None: there are no more.
    Frames {
        /// Number of the entry.
        id: u64,
        /// The frames, in ascending order.
        frames: Vec<KnownFrame>,
    },
    /// Sums of the raw bytes of an entry that the receiver has, from the number that the sender asked
    /// for on, each XXH3 of one MiB; only the last may be of fewer bytes. None: there are no more.
    Sums {
        /// Number of the entry.
        id: u64,
        /// The sums, in order.
        sums: Vec<u64>,
    },
    /// The receiver does not store anything. Only if the sender asked for numbers of reasons.
    Refused {
        /// Number of the reason (format.md section 8.1).
        code: u64,
        /// The reason, for a person.
        text: String,
    },
}

/// Whether the receiver wants a file, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The receiver has the same file.
    No,
    /// The file cannot be stored; an [`Answer::Failed`] gives the reason.
    Refused,
    /// The whole file is wanted.
    Whole,
    /// The receiver may have an earlier state of the file: the sender may send its chunks first.
    Chunks,
    /// The same, and holes may be among the chunks. Only if the sender asked for it.
    ChunksAndHoles,
    /// The whole file is wanted, and may repeat earlier content of this and other files.
    Repeats,
}

impl Answer {
    /// Appends the encoded answer.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Files { count, wanted } => {
                out.push(FILES);
                put_varint(out, *count);
                out.push(match wanted {
                    Wanted::No => 0,
                    Wanted::Whole => 1,
                    Wanted::Chunks => 2,
                    Wanted::Refused => 3,
                    Wanted::Repeats => 4,
                    Wanted::ChunksAndHoles => 5,
                });
            }
            Self::Whole { id: number } | Self::Repeated { len: number } => {
                out.push(if matches!(self, Self::Whole { .. }) { WHOLE } else { REPEATED });
                put_varint(out, *number);
            }
            Self::Again { id, of } => {
                out.push(AGAIN);
                put_varint(out, *id);
                put_varint(out, *of);
            }
            Self::Lost { text } | Self::Made { text } => {
                out.push(if matches!(self, Self::Lost { .. }) { LOST } else { MADE });
                put_bytes(out, cut_text(text));
            }
            Self::Removed { count, text } => {
                out.push(REMOVED);
                put_varint(out, *count);
                put_bytes(out, cut_text(text));
            }
            Self::Failed { id, text } | Self::NotStored { id, text } => {
                out.push(if matches!(self, Self::Failed { .. }) { FAILED } else { NOT_STORED });
                put_varint(out, *id);
                put_bytes(out, cut_text(text));
            }
            Self::Refused { code, text } => {
                out.push(REFUSED);
                put_varint(out, *code);
                put_bytes(out, cut_text(text));
            }
            Self::Chunks { id, runs } => {
                out.push(CHUNKS);
                put_varint(out, *id);
                put_varint(out, runs.len() as u64);
                runs.iter().for_each(|run| put_varint(out, (*run).into()));
            }
            Self::Frames { id, frames } => {
                out.push(FRAMES);
                put_varint(out, *id);
                put_varint(out, frames.len() as u64);
                for frame in frames {
                    out.push(frame.codec);
                    for number in [frame.raw_offset, frame.raw_len.into(), frame.wire_len.into()] {
                        put_varint(out, number);
                    }
                    out.extend_from_slice(&frame.check.to_le_bytes());
                    out.extend_from_slice(&frame.body_hash.to_le_bytes());
                }
            }
            Self::Sums { id, sums } => {
                out.push(SUMS);
                put_varint(out, *id);
                put_varint(out, sums.len() as u64);
                sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
            }
        }
    }

    /// Decodes all answers of one note.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` if the note is malformed, and the errors of `on_answer`.
    pub fn parse_all(note: &[u8], mut on_answer: impl FnMut(Self) -> Result<()>) -> Result<()> {
        let mut f = Fields(note);
        while !f.0.is_empty() {
            let answer = match f.byte()? {
                FILES => {
                    let count = f.number()?;
                    let wanted = match f.byte()? {
                        0 => Wanted::No,
                        1 => Wanted::Whole,
                        2 => Wanted::Chunks,
                        3 => Wanted::Refused,
                        4 => Wanted::Repeats,
                        5 => Wanted::ChunksAndHoles,
                        _ => return Err(Error::unsupported("an answer needs a newer program")),
                    };
                    Self::Files { count, wanted }
                }
                FAILED => Self::Failed { id: f.number()?, text: f.text()? },
                NOT_STORED => Self::NotStored { id: f.number()?, text: f.text()? },
                WHOLE => Self::Whole { id: f.number()? },
                AGAIN => Self::Again { id: f.number()?, of: f.number()? },
                REPEATED => Self::Repeated { len: f.number()? },
                REFUSED => Self::Refused { code: f.number()?, text: f.text()? },
                LOST => Self::Lost { text: f.text()? },
                MADE => Self::Made { text: f.text()? },
                REMOVED => Self::Removed { count: f.number()?, text: f.text()? },
                CHUNKS => {
                    let id = f.number()?;
                    let count = f.number()?;
                    if count > CHUNKS_MAX as u64 + 1 {
                        return Err(Error::limit("an answer has too many runs"));
                    }
                    Self::Chunks { id, runs: (0..count).map(|_| f.number32()).collect::<Result<_>>()? }
                }
                FRAMES => {
                    let id = f.number()?;
                    let count = f.number()?;
                    if count > FRAMES_MAX as u64 {
                        return Err(Error::limit("an answer has too many frames"));
                    }
                    Self::Frames { id, frames: (0..count).map(|_| known_frame(&mut f)).collect::<Result<_>>()? }
                }
                SUMS => {
                    let id = f.number()?;
                    let count = f.number()?;
                    if count > SUMS_MAX as u64 {
                        return Err(Error::limit("an answer has too many sums"));
                    }
                    Self::Sums { id, sums: (0..count).map(|_| f.word()).collect::<Result<_>>()? }
                }
                _ => return Err(Error::unsupported("an answer needs a newer program")),
            };
            on_answer(answer)?;
        }
        Ok(())
    }
}

fn known_frame(f: &mut Fields<'_>) -> Result<KnownFrame> {
    let codec = f.byte()?;
    let (raw_offset, raw_len, wire_len) = (f.number()?, f.number32()?, f.number32()?);
    Ok(KnownFrame { codec, raw_offset, raw_len, wire_len, check: f.word()?, body_hash: f.word()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(note: &[u8]) -> Result<Vec<Answer>> {
        let mut all = Vec::new();
        Answer::parse_all(note, |a| {
            all.push(a);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn answers_come_back_and_cut_ones_are_errors() {
        let all = [
            Answer::Files { count: 1 << 40, wanted: Wanted::Whole },
            Answer::Files { count: 1, wanted: Wanted::No },
            Answer::Failed { id: 7, text: "no room".into() },
            Answer::Refused { code: 1, text: "not so".into() },
            Answer::NotStored { id: 8, text: "no room either".into() },
            Answer::Whole { id: 1 << 50 },
            Answer::Again { id: 0, of: 1 << 40 },
            Answer::Repeated { len: 1 << 30 },
            Answer::Lost { text: "owner of 3".into() },
            Answer::Removed { count: 1, text: "gone/".into() },
            Answer::Removed { count: u64::MAX, text: String::new() },
            Answer::Removed { count: 0, text: "too many".into() },
            Answer::Made { text: "a/link -> b".into() },
            Answer::Files { count: 1, wanted: Wanted::Refused },
            Answer::Files { count: 2, wanted: Wanted::Chunks },
            Answer::Files { count: 3, wanted: Wanted::ChunksAndHoles },
            Answer::Files { count: 3, wanted: Wanted::Repeats },
            Answer::Chunks { id: 300, runs: vec![0, 4096, 1] },
            Answer::Frames {
                id: 301,
                frames: vec![
                    KnownFrame {
                        codec: 3,
                        raw_offset: 0,
                        raw_len: 7,
                        wire_len: 1 << 20,
                        check: u64::MAX,
                        body_hash: 1,
                    },
                    KnownFrame { codec: 0, raw_offset: 1 << 50, raw_len: 1, wire_len: 1, check: 0, body_hash: 0 },
                ],
            },
            Answer::Sums { id: 302, sums: vec![u64::MAX, 5] },
            Answer::Sums { id: 302, sums: Vec::new() },
        ];
        let mut note = Vec::new();
        let mut borders = vec![0];
        for answer in &all {
            answer.put(&mut note);
            borders.push(note.len());
        }
        assert_eq!(parse(&note).unwrap(), all);
        for len in (0..note.len()).filter(|len| !borders.contains(len)) {
            assert!(parse(&note[..len]).is_err(), "cut at {len}");
        }
        for kind in [FRAMES, SUMS] {
            assert!(parse(&[kind, 1, 0xff, 0xff, 0x03]).unwrap_err().to_string().contains("too many"));
        }
        assert!(parse(&[0]).is_err() && parse(&[FILES, 1, 9]).is_err());
    }
}
