//! Base64 in lines, as mail and keys have it: where runs of it are in plain bytes, and a run from the bytes
//! that it encodes.

use data_encoding::{BASE64, BASE64_NOPAD};

/// Characters that encode three bytes.
const GROUP: usize = 4;
/// Whole lines of a run, at least: fewer may be words of equal length.
const LINES_MIN: usize = 4;
/// Groups of a line, at least. Shorter lines are columns of something else.
const WIDTH_MIN: usize = 4;
/// Bytes that a run encodes, at least.
pub(crate) const DECODED_MIN: usize = 3 * WIDTH_MIN * LINES_MIN;
/// Groups of a line, at most: a byte says how many. Mail has 19, keys 16.
const WIDTH_MAX: usize = u8::MAX as usize;
const LINE_MAX: usize = GROUP * WIDTH_MAX;
/// Different characters among the first lines of a run, at least, in both cases: bases and proteins have up
/// to 25 letters, numbers to the base of 16 have 16 digits. Two lines of mail have 50.
const VARIED_MIN: u32 = 26;

/// Places at which the probe looks: a run that it misses is shorter than an eighth of the block.
const PLACES: usize = 8;
/// Places with lines of a smaller alphabet after which it does not look any more.
const OTHERS_MAX: usize = 2;

/// How some bytes are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of these bytes.
    pub(crate) decoded_len: usize,
    /// Groups of a line. The last line may be shorter, and has no end.
    pub(crate) width: u8,
    /// Lines end with CR and LF, not with LF alone.
    pub(crate) crlf: bool,
}

impl Run {
    /// Characters of the run, line ends included.
    pub(crate) fn encoded_len(self) -> usize {
        let groups = self.decoded_len.div_ceil(3);
        let lines = groups.div_ceil(usize::from(self.width).max(1));
        GROUP * groups + lines.saturating_sub(1) * self.line_end().len()
    }

    /// Writes the run. `out` has the length of the run.
    pub(crate) fn write(self, decoded: &[u8], out: &mut [u8]) {
        let (mut rest, end) = (out, self.line_end());
        for line in decoded.chunks(3 * usize::from(self.width).max(1)) {
            let (characters, behind) = rest.split_at_mut(BASE64.encode_len(line.len()));
            BASE64.encode_mut(line, characters);
            let (line_end, next) = behind.split_at_mut(end.len().min(behind.len()));
            line_end.copy_from_slice(&end[..line_end.len()]);
            rest = next;
        }
    }

    fn line_end(self) -> &'static [u8] {
        if self.crlf { b"\r\n" } else { b"\n" }
    }
}

/// Whether there is a long run, by a look at a few places. Other bytes end it within some characters.
pub fn probe(bytes: &[u8]) -> bool {
    let mut others = 0;
    for place in 0..PLACES {
        match lines(&bytes[bytes.len() * place / PLACES..]) {
            Some(lines) if is_varied(lines) => return true,
            // Lines of a smaller alphabet are looked at to their end, and seldom have base64 beside them.
            Some(_) => others += 1,
            None => {}
        }
        if others == OTHERS_MAX {
            break;
        }
    }
    false
}

/// Two lines of one length that follow the rest of a line.
fn lines(bytes: &[u8]) -> Option<&[u8]> {
    let (_, lines) = line(bytes)?;
    let (first, behind) = line(lines)?;
    let (second, _) = line(behind)?;
    (is_width(first.len()) && first.len() == second.len()).then(|| &lines[..2 * first.len()])
}

/// A line of the alphabet, and what is after its end.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes.iter().take(LINE_MAX + 1).take_while(|byte| is_symbol(**byte)).count();
    let (line, behind) = bytes.split_at(len);
    let behind = behind.strip_prefix(b"\r").unwrap_or(behind).strip_prefix(b"\n")?;
    Some((line, behind))
}

/// Splits bytes into `text` and the bytes that runs in them encode. Returns each run after the length of
/// the text before it. Without any, `text` stays empty.
pub(crate) fn split(raw: &[u8], text: &mut Vec<u8>, decoded: &mut Vec<u8>) -> Vec<(usize, Run)> {
    let (mut runs, mut written) = (Vec::new(), Vec::new());
    let (mut at, mut text_from) = (0, 0);
    while at < raw.len() {
        let begin = decoded.len();
        if let Some(run) = run_at(&raw[at..], decoded) {
            // The proof: what the run becomes again is what stands there.
            let len = run.encoded_len();
            written.resize(len, 0);
            run.write(&decoded[begin..], &mut written);
            if raw[at..].starts_with(&written) {
                text.extend_from_slice(&raw[text_from..at]);
                runs.push((at - text_from, run));
                at += len;
                text_from = at;
            } else {
                decoded.truncate(begin);
            }
        }
        at += raw[at..].iter().position(|byte| *byte == b'\n').map_or(raw.len() - at, |end| end + 1);
    }
    if !runs.is_empty() {
        text.extend_from_slice(&raw[text_from..]);
    }
    runs
}

/// The run that begins with the first byte. What it encodes is appended to `decoded`.
fn run_at(bytes: &[u8], decoded: &mut Vec<u8>) -> Option<Run> {
    // Most lines of text end here.
    if !bytes.iter().take(GROUP * WIDTH_MIN).all(|byte| is_symbol(*byte)) {
        return None;
    }
    let (first, _) = line(bytes)?;
    let (len, begin) = (first.len(), decoded.len());
    let crlf = bytes[len] == b'\r';
    if !is_width(len) {
        return None;
    }
    let mut run = Run { decoded_len: 0, width: (len / GROUP) as u8, crlf };
    let end = run.line_end();
    let (mut at, mut lines) = (0, 0);
    while let Some(line) = bytes.get(at..at + len) {
        if !decode(line, decoded) {
            break;
        }
        (at, lines) = (at + len, lines + 1);
        let is_other = lines == LINES_MIN && !is_varied(&bytes[..at]);
        if is_other || !bytes[at..].starts_with(end) {
            break;
        }
        at += end.len();
    }
    if lines < LINES_MIN || !is_varied(&bytes[..LINES_MIN * len]) {
        decoded.truncate(begin);
        return None;
    }
    if bytes[..at].ends_with(end) {
        decode_last(&bytes[at..bytes.len().min(at + len)], decoded);
    }
    run.decoded_len = decoded.len() - begin;
    Some(run)
}

/// Decodes a last line, as far as it goes.
fn decode_last(line: &[u8], decoded: &mut Vec<u8>) {
    let len = line.iter().take_while(|byte| is_symbol(**byte)).count();
    let whole = len / GROUP * GROUP;
    let is_padded = match len - whole {
        2 => line[len..].starts_with(b"=="),
        3 => line[len..].starts_with(b"="),
        _ => false,
    };
    // The bits that padding leaves over must be zero: then the whole groups are all.
    if !is_padded || !decode(&line[..len], decoded) {
        decode(&line[..whole], decoded);
    }
}

/// Appends what characters without padding encode, if they are of the alphabet.
fn decode(characters: &[u8], decoded: &mut Vec<u8>) -> bool {
    let begin = decoded.len();
    let Ok(len) = BASE64_NOPAD.decode_len(characters.len()) else { return false };
    decoded.resize(begin + len, 0);
    let is_ours = BASE64_NOPAD.decode_mut(characters, &mut decoded[begin..]).is_ok();
    if !is_ours {
        decoded.truncate(begin);
    }
    is_ours
}

fn is_width(line_len: usize) -> bool {
    line_len.is_multiple_of(GROUP) && (WIDTH_MIN..=WIDTH_MAX).contains(&(line_len / GROUP))
}

fn is_symbol(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}

/// Whether characters are those of Base64, and not of a smaller alphabet.
fn is_varied(characters: &[u8]) -> bool {
    let seen = characters.iter().fold(0u128, |seen, byte| seen | 1 << (byte & 127));
    let upper = ((1u128 << 26) - 1) << b'A';
    seen.count_ones() >= VARIED_MIN && seen & upper != 0 && seen & upper << 32 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize, seed: u32) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    /// Runs of `raw`, which come back.
    fn runs(raw: &[u8]) -> Vec<(usize, Run)> {
        let (mut text, mut decoded) = (Vec::new(), Vec::new());
        let runs = split(raw, &mut text, &mut decoded);
        let (mut text, mut decoded, mut back) = (&text[..], &decoded[..], Vec::new());
        for &(gap, run) in &runs {
            let (before, behind) = text.split_at(gap);
            let (of_run, rest) = decoded.split_at(run.decoded_len);
            let mut written = vec![0; run.encoded_len()];
            run.write(of_run, &mut written);
            back.extend([before, &written].concat());
            (text, decoded) = (behind, rest);
        }
        assert!(decoded.is_empty());
        back.extend_from_slice(text);
        assert!(runs.is_empty() || back == raw);
        runs
    }

    #[test]
    fn runs_of_all_widths_line_ends_and_last_lines_are_found() {
        for (columns, crlf) in [(16, false), (64, true), (72, false), (76, false), (76, true), (1020, true)] {
            for len in [columns * 3, columns * 3 + 1, columns * 3 + 2, 5000, 5001, 5002] {
                let run = narrows_test::base64_lines(&bytes(len, 7), columns, crlf);
                for (before, behind) in [(&b""[..], &b""[..]), (b"Subject: none\n\n", b"\n\n--end\n")] {
                    let found = runs(&[before, &run, behind].concat());
                    let expected = Run { decoded_len: len, width: (columns / 4) as u8, crlf };
                    let is_long = run.len() >= LINES_MIN * columns;
                    assert_eq!(found, if is_long { vec![(before.len(), expected)] } else { vec![] }, "{columns} {len}");
                }
            }
        }
    }

    #[test]
    fn a_run_may_begin_and_end_anywhere() {
        let run = narrows_test::base64_lines(&bytes(3000, 1), 76, true);
        for cut in 0..160 {
            let begins = runs(&run[cut..]);
            assert_eq!(begins.len(), 1, "{cut}");
            assert!(begins[0].0 < 78 && begins[0].1.encoded_len() > run.len() - cut - 80, "{cut}");
            let ends = runs(&run[..run.len() - cut]);
            assert!(ends.len() == 1 && ends[0].1.encoded_len() + cut + 6 > run.len(), "{cut}");
        }
        // Padding that a strict decoder refuses, a line in between, and one of another length.
        let lines: Vec<&[u8]> = run.split_inclusive(|byte| *byte == b'\n').collect();
        let loose = [&run[..780], b"QUJDREVGR1==\r\n"].concat();
        assert_eq!(runs(&loose)[0].1.decoded_len, 570 + 6);
        let parted = [&lines[..10].concat(), &b"no base64 at all\r\n"[..], &lines[10..].concat()].concat();
        assert_eq!(runs(&parted).len(), 2);
        let mixed = [&lines[..10].concat(), &b"AAAA=BBB\r\n"[..], &lines[10..].concat()].concat();
        assert_eq!(runs(&mixed).len(), 2);
    }

    #[test]
    fn smaller_alphabets_and_text_are_no_runs() {
        let of = |alphabet: &[u8]| -> Vec<u8> {
            let line =
                |i: usize| bytes(76, i as u32).iter().map(|b| alphabet[usize::from(*b) % alphabet.len()]).collect();
            (0..200)
                .flat_map(|i| {
                    let mut line: Vec<u8> = line(i);
                    line.push(b'\n');
                    line
                })
                .collect()
        };
        let base64 = of(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
        assert!(probe(&base64) && runs(&base64).len() == 1);
        for alphabet in [&b"ACGT"[..], b"ACGTacgtN", b"0123456789abcdef", b"0123456789ABCDEF", b"ACDEFGHIKLMNPQRSTVWY"]
        {
            let other = of(alphabet);
            assert!(!probe(&other) && runs(&other).is_empty(), "{alphabet:?}");
        }
        let text = b"The narrow place of a link decides, and seldom how.\n".repeat(500);
        for other in [&text[..], &vec![b'A'; 9000], &vec![b'\n'; 9000], &bytes(9000, 3), b""] {
            assert!(!probe(other) && runs(other).is_empty());
        }
    }

    #[test]
    fn the_probe_sees_a_run_of_an_eighth_of_the_bytes() {
        let text = b"words of any kind stand here,\n".repeat(4000);
        let run = narrows_test::base64_lines(&bytes(30_000, 9), 76, false);
        for at in (0..text.len()).step_by(3001) {
            assert!(probe(&[&text[..at], &run, &text[at..]].concat()), "{at}");
        }
    }

    #[test]
    fn a_hostile_plan_writes_no_more_than_it_says() {
        for (decoded_len, width) in [(1, 1), (3, 1), (4, 1), (1000, 1), (1000, 255), (57, 19), (58, 19), (0, 19)] {
            for crlf in [false, true] {
                let run = Run { decoded_len, width, crlf };
                let mut out = vec![0xa5; run.encoded_len()];
                run.write(&bytes(decoded_len, 1), &mut out);
                assert!(out.iter().all(|byte| *byte != 0xa5), "{run:?}");
            }
        }
    }
}
