//! Files of other formats are read as the programs that made them read them.

mod common;

use std::io::{Cursor, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{Random, sample};
use narrows_file::Mode;
use narrows_file::decode::decode;
use narrows_file::foreign::{self, Format};
use narrows_file::zstd_seekable::{SeekableFile, write};

/// The programs of the formats, which read stdin and write stdout with `-c`.
const PROGRAMS: [(&str, Format); 5] = [
    ("zstd", Format::Zstd),
    ("gzip", Format::Gzip),
    ("xz", Format::Xz),
    ("bzip2", Format::Bzip2),
    ("lz4", Format::Lz4),
];

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn decoded(bytes: &[u8]) -> narrows_file::Result<Vec<u8>> {
    let sink = Sink::default();
    decode(Cursor::new(bytes.to_vec()), sink.clone(), Default::default)?;
    let raw = sink.0.lock().unwrap().clone();
    Ok(raw)
}

/// What `program` makes of `input`; `None` if it is not there.
fn filter(program: &str, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    if !narrows_test::has(program) {
        return None;
    }
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feed = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = feed.join();
    assert!(output.status.success(), "{program} {args:?}");
    Some(output.stdout)
}

/// Blocks that are stored, whole or in part, end in the middle of a short read.
#[test]
fn members_follow_one_another_however_short_the_reads_are() {
    let mut random = Random(7);
    let words = sample(5000, 3);
    for (program, args, format) in [
        ("zstd", &["-c"][..], Format::Zstd),
        ("gzip", &["-c"], Format::Gzip),
        ("xz", &["-c"], Format::Xz),
        ("bzip2", &["-c"], Format::Bzip2),
        ("lz4", &["-c"], Format::Lz4),
        ("lz4", &["-c", "-B4", "-BD"], Format::Lz4),
        ("lz4", &["-c", "-BX", "--no-frame-crc"], Format::Lz4),
        ("lz4", &["-c", "--content-size"], Format::Lz4),
    ] {
        for len in [100, 5000, 65_536, 65_537, 150_000] {
            let mut first = vec![0; len];
            first.fill_with(|| random.below(256) as u8);
            let Some(one) = filter(program, args, &first) else { continue };
            let wire = [&one[..], &filter(program, args, &words).unwrap()].concat();
            let raw = [&first[..], &words].concat();
            for step in [1, 1000, 8192, 20_000, 65_530, 100_000] {
                let (begin, rest) = wire.split_at(foreign::MAGIC_LEN);
                let mut decoder = foreign::decoder(format, begin.to_vec(), Cursor::new(rest.to_vec())).unwrap();
                let (mut read, mut piece) = (Vec::new(), vec![0; step]);
                loop {
                    match decoder.read(&mut piece).unwrap() {
                        0 => break,
                        n => read.extend_from_slice(&piece[..n]),
                    }
                }
                assert!(read == raw, "{program} {args:?}: {len} bytes, then more, by {step}: {} bytes", read.len());
            }
        }
    }
}

#[test]
fn what_the_usual_programs_write_is_read_also_twice_in_a_row() {
    let raw = sample(300_000, 1);
    for (program, format) in PROGRAMS {
        let Some(bytes) = filter(program, &["-c"], &raw) else { continue };
        assert_eq!(Format::of(&bytes), Some(format));
        assert!(decoded(&bytes).unwrap() == raw, "{program}");
        assert!(
            decoded(&[&bytes[..], &bytes[..]].concat()).unwrap() == [&raw[..], &raw[..]].concat(),
            "{program} twice"
        );
        for len in [0, 3, bytes.len() / 2, bytes.len() - 1] {
            assert!(decoded(&bytes[..len]).is_err(), "{program} cut to {len} bytes");
        }
        let mut random = Random(2);
        for _ in 0..100 {
            let mut mutant = bytes.clone();
            mutant[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
            // gzip's header has bits that mean nothing; what is read is right or refused.
            if let Ok(read) = decoded(&mutant) {
                assert!(read == raw, "{program}: wrong bytes");
            }
        }
    }
}

#[test]
fn a_part_is_right_or_refused_by_the_check_behind_it_and_nothing_later_counts() {
    const PART: usize = 10;
    let raw = sample(300_000, 1);
    let part = |format, bytes: Vec<u8>| {
        let mut decoder = foreign::decoder(format, Vec::new(), Cursor::new(bytes))?;
        let mut read = vec![0; PART];
        decoder.read_exact(&mut read)?;
        decoder.end().map(|()| read)
    };
    for (program, format) in PROGRAMS {
        let Some(bytes) = filter(program, &["-c"], &raw) else { continue };
        let behind = part(format, [&bytes[..], b"damage"].concat());
        assert_eq!(behind.is_ok(), format != Format::Xz, "{program}: {behind:?}");
        assert!(part(format, bytes[..bytes.len() - 1].to_vec()).is_err(), "{program} cut");
        let mut random = Random(2);
        for _ in 0..50 {
            let mut mutant = bytes.clone();
            mutant[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
            if let Ok(read) = part(format, mutant) {
                assert!(read == raw[..PART], "{program}: wrong bytes");
            }
        }
    }
}

#[test]
fn zeros_behind_files_of_every_format_are_padding() {
    let raw = sample(60_000, 1);
    for (program, args) in [
        ("narrows", &[][..]),
        ("zstd", &["-c"]),
        ("gzip", &["-c"]),
        ("xz", &["-c"]),
        ("bzip2", &["-c"]),
        ("lz4", &["-c"]),
    ] {
        let bytes = if program == "narrows" { Some(narrows(&raw)) } else { filter(program, args, &raw) };
        let Some(bytes) = bytes else { continue };
        // xz takes whole words only. As many zeros as are read at once, more and fewer.
        for zeros in [4, 512, 10_240, 300_000] {
            let padded = [&bytes[..], &vec![0; zeros]].concat();
            assert!(decoded(&padded).unwrap() == raw, "{program}, {zeros} zeros");
            assert!(decoded(&padded.repeat(2)).unwrap() == raw.repeat(2), "{program} twice, {zeros} zeros between");
            assert!(decoded(&[&padded[..], b"x"].concat()).is_err(), "{program}, another byte behind {zeros} zeros");
            // The end of a file is not padding.
            let cut = [&bytes[..bytes.len() - 1], &vec![0; zeros]].concat();
            assert!(decoded(&cut).is_err() || bytes.last() == Some(&0), "{program}, cut, {zeros} zeros");
        }
        assert!(decoded(&[&bytes[..], b"x"].concat()).is_err(), "{program}, another byte");
    }
}

fn narrows(raw: &[u8]) -> Vec<u8> {
    let mut writer = narrows_file::Writer::new(Sink::default(), Default::default()).unwrap();
    writer.write_all(raw).unwrap();
    let (sink, _) = writer.finish().unwrap();
    sink.0.lock().unwrap().clone()
}

#[test]
fn our_zstd_files_are_read_by_zstd_and_at_any_byte() {
    for len in [0, 1, 1000, 256 << 10, (256 << 10) + 1, 1_500_000] {
        let raw = sample(len, 3);
        for mode in Mode::ALL {
            let mut bytes = Vec::new();
            let totals = write(&raw[..], &mut bytes, mode, 3).unwrap();
            assert_eq!((totals.raw_bytes, totals.wire_bytes), (raw.len() as u64, bytes.len() as u64));
            assert!(decoded(&bytes).unwrap() == raw);
            if let Some(read) = filter("zstd", &["-dc"], &bytes) {
                assert!(read == raw, "zstd -d, {len} bytes, {mode:?}");
            }
            let file = SeekableFile::open(&bytes[..]).unwrap().expect("a seek table");
            assert_eq!(file.raw_len(), raw.len() as u64);
            let mut random = Random(4);
            for _ in 0..20 {
                let at = random.below(raw.len() as u64 + 1) as usize;
                let mut buf = [0; 500];
                let n = file.read_at(&mut buf, at as u64).unwrap();
                assert_eq!(buf[..n], raw[at..(at + 500).min(raw.len())]);
            }
        }
    }
}

#[test]
fn a_seek_table_that_lies_gives_no_wrong_bytes() {
    let raw = sample(600_000, 5);
    let mut bytes = Vec::new();
    write(&raw[..], &mut bytes, Mode::Balanced, 2).unwrap();
    let mut random = Random(6);
    for i in 0..2000 {
        let mut mutant = bytes.clone();
        let table = mutant.len() - 60;
        let at = if i % 2 == 0 { table + random.below(60) as usize } else { random.below(bytes.len() as u64) as usize };
        mutant[at] ^= 1 << random.below(8);
        let Ok(Some(file)) = SeekableFile::open(&mutant[..]) else { continue };
        let offset = random.below(raw.len() as u64);
        let mut buf = [0; 100];
        if let Ok(n) = file.read_at(&mut buf, offset) {
            let expected = &raw[offset as usize..];
            assert_eq!(buf[..n], expected[..n.min(expected.len())]);
        }
    }
}

#[test]
fn a_seek_table_that_hides_a_frame_behind_an_empty_one_is_not_used() {
    let frame = |raw: &[u8]| zstd::bulk::compress(raw, 1).unwrap();
    let frames = [frame(b"begin"), frame(b""), frame(b"hidden"), frame(b"end")];
    let table = |entries: &[(usize, u32)]| {
        let mut out = frames.concat();
        out.extend_from_slice(&0x184d_2a5e_u32.to_le_bytes());
        out.extend_from_slice(&(entries.len() as u32 * 8 + 9).to_le_bytes());
        for (wire_len, raw_len) in entries {
            out.extend_from_slice(&(*wire_len as u32).to_le_bytes());
            out.extend_from_slice(&raw_len.to_le_bytes());
        }
        out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        out.push(0);
        out.extend_from_slice(&0x8f92_eab1_u32.to_le_bytes());
        out
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(|i: usize| frames[i].len());
    let true_one = table(&[(a, 5), (b, 0), (c, 6), (d, 3)]);
    let file = SeekableFile::open(&true_one[..]).unwrap().expect("a seek table");
    let mut buf = [0; 20];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 14);
    assert_eq!(&buf[..14], b"beginhiddenend");
    assert!(SeekableFile::open(&table(&[(a, 5), (b + c, 0), (d, 3)])[..]).unwrap().is_none());
    assert_eq!(decoded(&true_one[..frames.concat().len()]).unwrap(), b"beginhiddenend");
    // Two frames as one: found when it is read.
    let joined = table(&[(a + b, 5), (c, 6), (d, 3)]);
    let file = SeekableFile::open(&joined[..]).unwrap().expect("a seek table");
    assert!(file.read_at(&mut buf, 0).is_err());
}

/// A frame that decoders pass over.
fn skippable(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[0x50 | kind, 0x2a, 0x4d, 0x18], &(content.len() as u32).to_le_bytes()[..], content].concat()
}

/// As 7-Zip-zstd and pzstd have one before each frame, of zstd and of LZ4.
#[test]
fn frames_of_lz4_and_zstd_follow_skippable_ones() {
    let raw = sample(100_000, 1);
    let mut encoder = lz4::EncoderBuilder::new().build(Vec::new()).unwrap();
    encoder.write_all(&raw).unwrap();
    let (lz4, ended) = encoder.finish();
    ended.unwrap();
    let zstd = zstd::bulk::compress(&raw, 1).unwrap();
    let long = [skippable(1, &vec![9; 300_000]), skippable(2, b"x")].concat();
    for (format, frame) in [(Format::Lz4, &lz4), (Format::Zstd, &zstd)] {
        for skipped in [skippable(0, b"1234"), skippable(15, b""), long.clone()] {
            let one = [&skipped[..], frame].concat();
            assert_eq!(foreign::format_at(&one).unwrap(), Some(format));
            assert!(decoded(&one).unwrap() == raw, "{format:?} behind {} bytes", skipped.len());
            assert!(decoded(&one.repeat(2)).unwrap() == raw.repeat(2), "{format:?} behind {} bytes", skipped.len());
            assert!(decoded(&[&one[..], &skipped, &[0; 8]].concat()).unwrap() == raw);
            assert!(decoded(&[&one[..], b"x"].concat()).is_err());
            for len in [1, 7, skipped.len() - 1, one.len() - 1] {
                assert!(decoded(&one[..len]).is_err(), "{format:?} cut to {len} bytes");
            }
            let (begin, rest) = one.split_at(foreign::MAGIC_LEN);
            let mut decoder = foreign::decoder(Format::Zstd, begin.to_vec(), Cursor::new(rest.to_vec())).unwrap();
            let mut read = [0; 10];
            decoder.read_exact(&mut read).unwrap();
            decoder.end().unwrap();
            assert_eq!((&read[..], decoder.format()), (&raw[..10], format));
        }
    }
    assert_eq!(decoded(&long).unwrap(), b"", "nothing but what is passed over");
    assert!(decoded(&[&long[..], b"\x1f\x8b\x08\0\0\0"].concat()).is_err(), "another format");
}
