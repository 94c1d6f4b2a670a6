//! Damaged and lying files: an error or the right bytes, never others, and never a panic.

mod common;

use common::{Random, alone, linked, read_all, sample, stored};
use narrows::ErrorKind;
use narrows::frame::{self, EndTotals, PREFACE_LEN, Preface, Role, feature, put_varint};
use narrows::sender::index_frames;
use narrows_file::check::{check, read_whole};
use narrows_file::repair::repair;
use narrows_file::{File, OpenOptions, ReadAt};

/// Whether all of it reads as `raw`; what is read must be a part of it.
fn reads(bytes: &[u8], raw: &[u8], random: &mut Random) -> bool {
    let Ok(file) = File::open(bytes) else { return false };
    let mut all_good = file.raw_len() == raw.len() as u64;
    for at in [0, random.below(raw.len() as u64), raw.len() as u64 - 1] {
        let mut buf = vec![0; 12_000];
        match file.read_at(&mut buf, at) {
            Ok(n) => assert_eq!(buf[..n], raw[at as usize..][..n], "wrong bytes at {at}"),
            Err(_) => all_good = false,
        }
    }
    all_good
}

#[test]
fn every_truncation_is_an_error() {
    let raw = sample(60_000, 1);
    for options in [linked(), alone()] {
        let bytes = stored(&raw, options);
        for len in (0..bytes.len()).rev().step_by(7).chain(bytes.len() - 500..bytes.len()) {
            let error = File::open(&bytes[..len]).map(drop).expect_err("a file that is cut off");
            let cut = matches!(error.kind, ErrorKind::Truncated | ErrorKind::Corrupt);
            assert!(cut, "{len} bytes: {error}");
            // What is whole of it can be read.
            let Ok(file) = OpenOptions::default().broken(true).open(&bytes[..len]) else { continue };
            assert!(file.broken().is_some());
            assert!(raw.starts_with(&read_all(&file).unwrap()));
        }
    }
}

#[test]
fn ten_thousand_mutants_give_an_error_or_the_right_bytes() {
    let raw = sample(60_000, 2);
    let mut random = Random(77);
    for options in [linked(), alone()] {
        let bytes = stored(&raw, options);
        let index = bytes.len() - 500;
        for i in 0..5_000 {
            let mut mutant = bytes.clone();
            // A half in index and footer, and some in the preface.
            let at = match i % 4 {
                0 | 1 => index + random.below(500) as usize,
                2 if i % 8 == 2 => random.below(PREFACE_LEN as u64) as usize,
                _ => random.below(bytes.len() as u64) as usize,
            };
            match random.below(3) {
                0 => mutant[at] ^= 1 << random.below(8),
                1 => mutant[at] = random.next() as u8,
                _ => {
                    let len = random.below(40) as usize;
                    drop(
                        mutant
                            .splice(at..(at + len).min(bytes.len()), sample(random.below(40) as usize, random.next())),
                    );
                }
            }
            reads(&mutant, &raw, &mut random);
        }
    }
}

#[test]
fn a_flipped_bit_of_a_body_is_found_and_of_the_index_it_is_rebuilt() {
    let raw = sample(60_000, 3);
    let bytes = stored(&raw, alone());
    let end = EndTotals::parse(&bytes[bytes.len() - 32..]).unwrap();
    let mut random = Random(3);
    for at in PREFACE_LEN..end.index_offset as usize {
        if at % 13 != 0 {
            continue;
        }
        let mut mutant = bytes.clone();
        mutant[at] ^= 1 << (at % 8);
        let file = File::open(&mutant[..]);
        assert!(file.is_err() || read_all(&file.unwrap()).is_err(), "the bit at {at} was not noticed");
    }
    for at in end.index_offset as usize..end.wire_total as usize {
        let mut mutant = bytes.clone();
        mutant[at] ^= 1 << (at % 8);
        // The headers lead on, or, where they are damaged too, nothing does.
        reads(&mutant, &raw, &mut random);
    }
}

/// A stream of frames with another index.
fn with_index(
    preface: &Preface,
    frames: &[(usize, Vec<u8>)],
    pairs: &[(u64, u64)],
    totals: Option<EndTotals>,
) -> Vec<u8> {
    let mut out = preface.encode().to_vec();
    frames.iter().for_each(|(_, frame)| out.extend_from_slice(frame));
    let mut bytes = Vec::new();
    for (raw_len, wire_len) in pairs {
        put_varint(&mut bytes, *raw_len);
        put_varint(&mut bytes, *wire_len);
    }
    let raw_total = totals.map_or(frames.iter().map(|f| f.0 as u64).sum(), |t| t.raw_total);
    let index_offset = out.len() as u64;
    for frame in index_frames(&preface.encode(), &bytes, &[], raw_total) {
        out.extend_from_slice(&frame.header);
        out.extend_from_slice(&frame.body);
    }
    let own = EndTotals { raw_total, wire_total: out.len() as u64, index_offset, digest: 0 };
    let end = totals.map_or(own, |t| EndTotals { wire_total: out.len() as u64, index_offset, ..t }).frame();
    out.extend_from_slice(&end.header);
    out.extend_from_slice(&end.body);
    out
}

fn preface() -> Preface {
    Preface {
        role: Role::Sender,
        critical: 0,
        optional: feature::INDEX,
        check: true,
        block_max: 1000,
        history: 0,
        reach: 0,
        codecs: 1,
    }
}

fn store_frame(raw: &[u8], raw_offset: u64) -> (usize, Vec<u8>) {
    let header = frame::BlockHeader::data(narrows::codec::CodecId::STORE, false, raw.len(), raw.len());
    let check = header.check_of(raw, raw, raw_offset);
    (raw.len(), [&header.encode(Some(check))[..], raw].concat())
}

#[test]
fn an_index_that_lies_gives_an_error_or_the_right_bytes() {
    let raw = sample(3000, 4);
    let frames: Vec<_> = (0..3).map(|i| store_frame(&raw[i * 1000..][..1000], i as u64 * 1000)).collect();
    let len = frames[0].1.len() as u64;
    let good = with_index(&preface(), &frames, &[(1000, len); 3], None);
    let mut random = Random(5);
    assert!(reads(&good, &raw, &mut random));
    let huge = u64::MAX / 2;
    let lies: &[&[(u64, u64)]] = &[
        &[],
        &[(1000, len); 2],
        &[(1000, len); 4],
        &[(999, len), (1001, len), (1000, len)],
        &[(999, len), (1000, len), (1001, len)],
        &[(1000, len - 1), (1000, len + 1), (1000, len)],
        &[(1000, 3 * len), (1000, 1), (1000, 1)],
        &[(1000, len), (0, len), (1000, len), (1000, 1)],
        &[(1000, len), (1000, 10), (1000, 2 * len - 10)],
        &[(1000, 0), (1000, 2 * len), (1000, len)],
        &[(0, 10), (1000, len), (1000, len), (1000, len - 10)],
        &[(huge, len), (1000, len), (1000, len)],
        &[(1000, huge), (1000, huge), (1000, huge)],
        &[(u64::MAX, u64::MAX); 3],
        &[(0, 1); 3000],
    ];
    for pairs in lies {
        assert!(
            !reads(&with_index(&preface(), &frames, pairs, None), &raw, &mut random) || pairs.is_empty(),
            "{pairs:?}"
        );
    }
    for totals in [
        EndTotals { raw_total: 2999, ..EndTotals::default() },
        EndTotals { raw_total: u64::MAX, ..EndTotals::default() },
        EndTotals { raw_total: 1 << 62, ..EndTotals::default() },
    ] {
        assert!(!reads(&with_index(&preface(), &frames, &[(1000, len); 3], Some(totals)), &raw, &mut random));
    }
}

#[test]
fn an_index_that_claims_much_without_content_before_a_block_is_refused() {
    let raw = sample(1000, 12);
    let frames = [store_frame(&raw, 0)];
    let mut pairs = vec![(0, 60_000); 300];
    pairs.push((1000, frames[0].1.len() as u64));
    let error = File::open(&with_index(&preface(), &frames, &pairs, None)[..]).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit, "{error}");
}

#[test]
fn a_scrub_finds_a_digest_that_is_not_that_of_the_blocks() {
    let bytes = stored(&sample(50_000, 13), linked());
    let end = EndTotals::parse(&bytes[bytes.len() - 32..]).unwrap();
    let mut mutant = bytes[..bytes.len() - frame::END_FRAME_LEN].to_vec();
    let footer = EndTotals { digest: end.digest ^ 1, ..end }.frame();
    mutant.extend_from_slice(&footer.header);
    mutant.extend_from_slice(&footer.body);
    let report = check(&File::open(&mutant[..]).unwrap(), 2, false).unwrap();
    assert_eq!((report.good_bytes, report.damaged.len(), report.faults.len()), (50_000, 0, 1), "{report:?}");
}

#[test]
fn a_footer_that_lies_about_its_place_is_refused() {
    let raw = sample(1000, 6);
    let bytes = stored(&raw, alone());
    let end = EndTotals::parse(&bytes[bytes.len() - 32..]).unwrap();
    let mut random = Random(6);
    for lie in [
        EndTotals { wire_total: end.wire_total + 1, ..end },
        EndTotals { wire_total: end.wire_total - 1, ..end },
        EndTotals { wire_total: 0, ..end },
        EndTotals { wire_total: u64::MAX, ..end },
        EndTotals { index_offset: end.index_offset - 1, ..end },
        EndTotals { index_offset: end.index_offset + 1, ..end },
        EndTotals { index_offset: u64::MAX, ..end },
        EndTotals { index_offset: end.wire_total, ..end },
        EndTotals { index_offset: 1, ..end },
    ] {
        let mut mutant = bytes[..bytes.len() - frame::END_FRAME_LEN].to_vec();
        let frame = lie.frame();
        mutant.extend_from_slice(&frame.header);
        mutant.extend_from_slice(&frame.body);
        // Where only the index is lost, its bytes are made from the headers.
        let good = reads(&mutant, &raw, &mut random);
        assert!(!good || lie.wire_total == end.wire_total, "{lie:?}");
    }
}

/// A file of which almost all bytes are zeros that take no memory.
struct Sparse {
    begin: Vec<u8>,
    at: u64,
    piece: Vec<u8>,
    end: Vec<u8>,
    len: u64,
}

impl ReadAt for Sparse {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let n = buf.len().min((self.len - offset.min(self.len)) as usize);
        for (i, byte) in buf[..n].iter_mut().enumerate() {
            let at = offset + i as u64;
            let known = [(0, &self.begin), (self.at, &self.piece), (self.len - self.end.len() as u64, &self.end)];
            *byte = known.iter().find_map(|(from, b)| b.get(at.checked_sub(*from)? as usize)).copied().unwrap_or(0);
        }
        Ok(n)
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(self.len)
    }
}

#[test]
fn offsets_above_4_gib_lead_to_their_frames() {
    // 3,000 blocks of 2 MiB, of which one is there.
    let (block, blocks, there) = (2 << 20, 3000u64, 2900u64);
    let preface = Preface { block_max: block, ..preface() };
    let raw = sample(block, 8);
    let (_, piece) = store_frame(&raw, there * block as u64);
    let len = piece.len() as u64;
    let whole = with_index(&preface, &[], &vec![(block as u64, len); blocks as usize], None);
    // The same index after so many frames.
    let (raw_total, index_offset) = (blocks * block as u64, PREFACE_LEN as u64 + blocks * len);
    let mut pairs = Vec::new();
    (0..blocks).for_each(|_| {
        put_varint(&mut pairs, block as u64);
        put_varint(&mut pairs, len);
    });
    let mut end = Vec::new();
    for frame in index_frames(&preface.encode(), &pairs, &[], raw_total) {
        end.extend_from_slice(&frame.header);
        end.extend_from_slice(&frame.body);
    }
    let wire_total = index_offset + end.len() as u64;
    let footer = EndTotals { raw_total, wire_total, index_offset, digest: 0 }.frame();
    end.extend_from_slice(&footer.header);
    end.extend_from_slice(&footer.body);
    let at = PREFACE_LEN as u64 + there * len;
    assert!(at > 4 << 30 && !whole.is_empty());
    let file_len = index_offset + end.len() as u64;
    let file = File::open(Sparse { begin: preface.encode().to_vec(), at, piece, end, len: file_len }).unwrap();
    assert_eq!(file.raw_len(), raw_total);
    let mut buf = vec![0; 1000];
    file.read_at(&mut buf, there * block as u64 + 777_777).unwrap();
    assert_eq!(buf, raw[777_777..][..1000]);
    let error = file.read_at(&mut buf, (there - 1) * block as u64).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_scrub_lists_what_is_damaged_and_the_rest_is_read() {
    let raw = sample(400_000, 9);
    let bytes = stored(&raw, linked());
    let file = File::open(&bytes[..]).unwrap();
    assert!(check(&file, 2, true).unwrap().is_good());
    let member = &file.members()[0];
    // One within a run, and one at the beginning of another.
    let entries: Vec<_> = (0..member.blocks()).map(|i| member.entry(i).unwrap()).collect();
    let starts: Vec<_> = (0..entries.len()).filter(|i| entries[*i].begins_run).collect();
    let (first, second) = (entries[3], entries[starts[3]]);
    let lost = [first.raw_begin..entries[starts[1]].raw_begin, second.raw_begin..entries[starts[4]].raw_begin];
    let mut damaged = bytes.clone();
    for entry in [first, second] {
        damaged[(entry.wire_begin + entry.wire_end) as usize / 2] ^= 4;
    }
    let file = File::open(&damaged[..]).unwrap();
    let report = check(&file, 2, false).unwrap();
    // A run is lost from its damaged block on.
    let ranges: Vec<_> = report.damaged.iter().map(|(range, _)| range.clone()).collect();
    assert_eq!(ranges, lost);
    assert_eq!(report.good_bytes, 400_000 - lost.iter().map(|range| range.end - range.start).sum::<u64>());
    let mut whole = Vec::new();
    let missing = read_whole(&file, 0..file.raw_len(), |b| {
        whole.extend_from_slice(b);
        Ok(())
    })
    .unwrap();
    assert_eq!(missing.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>(), ranges);
    let [a, b] = lost.map(|range| range.start as usize..range.end as usize);
    assert_eq!(whole, [&raw[..a.start], &raw[a.end..b.start], &raw[b.end..]].concat());
}

#[test]
fn a_repair_writes_the_index_of_what_is_whole() {
    let raw = sample(300_000, 10);
    let bytes = stored(&raw, linked());
    let cut = &bytes[..bytes.len() / 2];
    let broken = OpenOptions::default().broken(true).open(cut).unwrap();
    let mut repaired = Vec::new();
    let done = repair(&broken, &mut repaired).unwrap();
    assert!(done.dropped_bytes > 0);
    let file = File::open(&repaired[..]).unwrap();
    let part = read_all(&file).unwrap();
    assert!(part.len() > 100_000 && raw.starts_with(&part));
    assert!(check(&file, 1, true).unwrap().is_good());
    // A file that lacks nothing but its index becomes what it was.
    let index = EndTotals::parse(&bytes[bytes.len() - 32..]).unwrap().index_offset as usize;
    let broken = OpenOptions::default().broken(true).open(&bytes[..index]).unwrap();
    let mut repaired = Vec::new();
    repair(&broken, &mut repaired).unwrap();
    assert!(repaired == bytes);
}

#[test]
fn bytes_of_anything_are_refused_in_little_time_and_memory() {
    let mut random = Random(11);
    for len in [1, 31, 32, 41, 42, 74, 1000, 100_000] {
        for _ in 0..50 {
            let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            assert!(File::open(&bytes[..]).is_err());
        }
    }
    let zeros = Sparse { begin: Vec::new(), at: 0, piece: Vec::new(), end: Vec::new(), len: 1 << 50 };
    assert!(File::open(zeros).is_err());
}
