//! Base64: runs of lines of it, stored as the bytes that they encode, then zstd.
//!
//! ```text
//! | runs | gap, length, width, line end of each |  text, then what the runs encode, as a zstd frame |
//! ```
//!
//! The encoder finds the runs, and writes each again to compare it with what stands in the block. A block
//! without any costs the time to look at the beginning of each line, and a byte.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, zstd};
use crate::base64::{self, DECODED_MIN, Run};
use crate::varint::{put_varint, varint};

/// Levels of zstd.
const LEVELS: &[Level] = &[1, 3, 6, 9, 15, 19];

/// Bytes of a number in the plan, at most.
const VARINT_MAX: usize = 4;

/// Time to find, decode and write again, in ns per byte of a block of which half is base64: (encode, decode).
const STEP_NS: (f32, f32) = (1.5, 0.6);

#[derive(Debug)]
pub(super) struct Base64;

impl Codec for Base64 {
    fn id(&self) -> CodecId {
        CodecId::BASE64
    }

    fn name(&self) -> &'static str {
        "base64"
    }

    fn levels(&self) -> &'static [Level] {
        LEVELS
    }

    fn default_level(&self) -> Level {
        3
    }

    fn can_link(&self) -> bool {
        true
    }

    /// Text, decoded bytes, one run rewritten, and zstd.
    fn encoder_memory(&self, level: Level, raw_len: usize, history_len: usize) -> usize {
        3 * raw_len + zstd::ENTRY.encoder_memory(level, raw_len, history_len)
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        let (encode, decode) = zstd::ENTRY.nominal_ns_per_byte(level);
        (encode + STEP_NS.0, decode + STEP_NS.1)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Base64Encoder { zstd: zstd::ENTRY.encoder(), inner: Vec::new(), decoded: Vec::new() })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Base64Decoder { zstd: zstd::ENTRY.decoder(), inner: Vec::new() })
    }
}

struct Base64Encoder {
    zstd: Box<dyn Encoder>,
    inner: Vec<u8>,
    decoded: Vec<u8>,
}

impl Encoder for Base64Encoder {
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let level = level.clamp(LEVELS[0], LEVELS[LEVELS.len() - 1]);
        self.inner.clear();
        self.decoded.clear();
        let runs = base64::split(raw, &mut self.inner, &mut self.decoded);
        let plan = plan_of(&runs);
        let (head, body) = out.split_at_mut_checked(plan.len())?;
        head.copy_from_slice(&plan);
        let inner = if runs.is_empty() {
            raw
        } else {
            self.inner.extend_from_slice(&self.decoded);
            &self.inner
        };
        Some(plan.len() + self.zstd.encode(level, history, inner, body)?)
    }
}

fn plan_of(runs: &[(usize, Run)]) -> Vec<u8> {
    let mut plan = Vec::new();
    put_varint(&mut plan, runs.len() as u64);
    for (gap, run) in runs {
        put_varint(&mut plan, *gap as u64);
        put_varint(&mut plan, run.decoded_len as u64);
        plan.extend([run.width, run.crlf.into()]);
    }
    plan
}

/// The plan of a body.
struct Plan {
    runs: Vec<(usize, Run)>,
    /// Bytes of text before the last run.
    text_len: usize,
    /// What all runs encode.
    decoded_len: usize,
    /// Characters of all runs.
    encoded_len: usize,
}

impl Plan {
    /// The plan of a block of at most `raw_len` bytes, and the rest of the body.
    fn parse(wire: &[u8], raw_len: usize) -> Option<(Self, &[u8])> {
        let (count, mut rest) = number(wire)?;
        // So a plan takes no more memory than half of the block.
        if count > raw_len / DECODED_MIN {
            return None;
        }
        let mut plan = Self { runs: Vec::with_capacity(count), text_len: 0, decoded_len: 0, encoded_len: 0 };
        for _ in 0..count {
            let (gap, behind) = number(rest)?;
            let (decoded_len, behind) = number(behind)?;
            let (&[width, line_end], behind) = behind.split_first_chunk()?;
            if decoded_len < DECODED_MIN || width == 0 || line_end > 1 {
                return None;
            }
            let run = Run { decoded_len, width, crlf: line_end == 1 };
            plan.text_len += gap;
            plan.decoded_len += decoded_len;
            plan.encoded_len += run.encoded_len();
            if plan.text_len + plan.encoded_len > raw_len {
                return None;
            }
            plan.runs.push((gap, run));
            rest = behind;
        }
        Some((plan, rest))
    }

    /// Writes the block from text and decoded bytes, and returns its length.
    fn write(&self, inner: &[u8], out: &mut [u8]) -> Option<usize> {
        let (mut text, mut decoded) = inner.split_at_checked(inner.len().checked_sub(self.decoded_len)?)?;
        let len = text.len() + self.encoded_len;
        let mut out = out.get_mut(..len)?;
        for &(gap, run) in &self.runs {
            let (before, behind) = text.split_at_checked(gap)?;
            let (of_run, next) = decoded.split_at_checked(run.decoded_len)?;
            let (text_out, rest) = out.split_at_mut_checked(gap)?;
            let (run_out, rest) = rest.split_at_mut_checked(run.encoded_len())?;
            text_out.copy_from_slice(before);
            run.write(of_run, run_out);
            (text, decoded, out) = (behind, next, rest);
        }
        out.copy_from_slice(text);
        Some(len)
    }
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (value, len) = varint(bytes, VARINT_MAX).ok()??;
    Some((usize::try_from(value).ok()?, &bytes[len..]))
}

struct Base64Decoder {
    zstd: Box<dyn Decoder>,
    inner: Vec<u8>,
}

impl Decoder for Base64Decoder {
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let (plan, body) = Plan::parse(wire, out.len()).ok_or(DecodeError)?;
        if plan.runs.is_empty() {
            return self.zstd.decode(history, body, out);
        }
        // Runs are longer than what they encode, and all of them fit.
        self.inner.resize(out.len() - (plan.encoded_len - plan.decoded_len), 0);
        let len = self.zstd.decode(history, body, &mut self.inner)?;
        plan.write(self.inner.get(..len).ok_or(DecodeError)?, out).ok_or(DecodeError)
    }
}

pub(super) const ENTRY: &dyn Codec = &Base64;

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &[u8] = b"text before. text behind. what a run encodes, in lines";

    /// A body with any plan before `INNER`.
    fn body(runs: &[(usize, Run)]) -> Vec<u8> {
        let mut body = plan_of(runs);
        let (at, inner) = (body.len(), INNER.repeat(20));
        body.resize(at + inner.len(), 0);
        let len = zstd::ENTRY.encoder().encode(3, &[], &inner, &mut body[at..]).unwrap();
        body.truncate(at + len);
        body
    }

    fn run(decoded_len: usize, width: u8) -> Run {
        Run { decoded_len, width, crlf: true }
    }

    #[test]
    fn plans_that_do_not_fit_the_block_are_refused() {
        let len = 20 * INNER.len();
        let mut decoder = Base64.decoder();
        let mut decoded = |runs: &[(usize, Run)], room: usize| {
            let mut out = vec![0; room];
            decoder.decode(&[], &body(runs), &mut out)
        };
        let good = [(10, run(600, 19)), (0, run(48, 1)), (5, run(90, 255))];
        let longer: usize = good.iter().map(|(_, run)| run.encoded_len() - run.decoded_len).sum();
        assert_eq!(decoded(&good, len + longer), Ok(len + longer));
        assert_eq!(decoded(&good, len + longer - 1), Err(DecodeError), "more than the block has");
        assert_eq!(decoded(&good, len + longer + 9), Ok(len + longer));
        for bad in [
            &[(0, run(len + 1, 19))][..],
            &[(len, run(48, 19))],
            &[(500, run(600, 19))],
            &[(0, run(600, 19)), (0, run(600, 19))],
            &[(0, run(47, 19))],
            &[(0, run(600, 0))],
            &[((1 << 28) - 1, run((1 << 28) - 1, 1))],
        ] {
            assert_eq!(decoded(bad, 4 * len), Err(DecodeError), "{bad:?}");
        }
    }

    #[test]
    fn hostile_counts_take_no_memory_and_truncations_are_refused() {
        let mut decoder = Base64.decoder();
        let mut out = vec![0; 2000];
        for count in [&[0xff, 0xff, 0xff, 0x7f][..], &[0xff, 0xff, 0xff, 0xff, 1], &[100], &[0x80, 0]] {
            assert_eq!(decoder.decode(&[], &[count, &[1, 1, 1, 1, 0]].concat(), &mut out), Err(DecodeError));
        }
        let whole = body(&[(10, run(600, 19))]);
        for end in 0..whole.len() {
            assert_eq!(decoder.decode(&[], &whole[..end], &mut out), Err(DecodeError), "{end}");
        }
        let mut other = whole.clone();
        other[5] = 2;
        assert_eq!(decoder.decode(&[], &other, &mut out), Err(DecodeError), "a line end");
        assert!(decoder.decode(&[], &whole, &mut out).is_ok());
    }

    #[test]
    fn runs_shrink_to_what_they_encode_and_text_costs_a_byte() {
        let noise: Vec<u8> = (0..40_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        let words = b"what is encoded shrinks too, and it is found again. ".repeat(800);
        let text = b"From: somebody\nSubject: nothing\n\n".repeat(30);
        for (decoded, share) in [(&noise, 1.0), (&words, 0.2)] {
            let raw = [&text[..], &narrows_test::base64_lines(decoded, 76, true), b"\r\n--\r\n"].concat();
            let mut wire = vec![0; raw.len()];
            let len = Base64.encoder().encode(3, &[], &raw, &mut wire).unwrap();
            assert!(len < (decoded.len() as f32 * share) as usize + 300, "{len}");
            let mut back = vec![0; raw.len()];
            assert_eq!(Base64.decoder().decode(&[], &wire[..len], &mut back), Ok(raw.len()));
            assert!(back == raw);
        }
        let (mut wire, mut plain) = (vec![0; text.len()], vec![0; text.len()]);
        let len = Base64.encoder().encode(3, &[], &text, &mut wire).unwrap();
        assert_eq!(Some(len - 1), zstd::ENTRY.encoder().encode(3, &[], &text, &mut plain));
    }
}
