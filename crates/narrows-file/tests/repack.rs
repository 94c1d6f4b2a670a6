//! Files recompressed: the same raw bytes and sums, recorded, refused where anything is damaged.

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Random, alone, linked, read_all, sample, stored};
use narrows::ErrorKind;
use narrows::frame::{ATTEMPT_FRAME_LEN, END_FRAME_LEN};
use narrows_file::effort::{Effort, end_of};
use narrows_file::repack::{Candidate, RepackOptions, copy_with_effort, open, repack, verify, verify_copy};
use narrows_file::{File, Mode, ReadAt, Result, WriteOptions};

/// Counts what is read.
struct Counted(Vec<u8>, Arc<AtomicU64>);

impl ReadAt for Counted {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.0.read_at(buf, offset)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&self.0)
    }
}

fn options() -> RepackOptions {
    RepackOptions::new(Mode::Archive).threads(2)
}

/// Recompresses and verifies.
fn anew(bytes: &[u8]) -> Result<Vec<u8>> {
    let Candidate::File(file) = open(bytes.to_vec(), &options())? else { panic!("it is left as it is") };
    let (new, repacked) = repack(*file, Vec::new(), &options())?;
    assert_eq!(repacked.new_bytes, new.len() as u64);
    verify(&new[..], &repacked, &options())?;
    Ok(new)
}

#[test]
fn a_file_gets_smaller_and_keeps_its_bytes_and_sums() {
    let raw = sample(2 << 20, 3);
    for options in [WriteOptions::default(), WriteOptions::default().mode(Mode::Fast), alone(), linked()] {
        let old = stored(&raw, options);
        let new = anew(&old).unwrap();
        let at_once = stored(&raw, WriteOptions::default().mode(Mode::Archive));
        assert!(new.len() < old.len() && new.len() * 100 <= at_once.len() * 101, "{} {}", new.len(), at_once.len());
        let (old, file) = (File::open(&old[..]).unwrap(), File::open(&new[..]).unwrap());
        assert!(read_all(&file).unwrap() == raw);
        assert_eq!(file.members()[0].sums, old.members()[0].sums);
    }
}

#[test]
fn an_archive_says_so_and_is_known_by_its_last_bytes() {
    let raw = sample(3 << 20, 4);
    let old = stored(&raw, WriteOptions::default());
    assert_eq!(end_of(&old).unwrap().unwrap().effort, Some(Effort::of(Mode::Balanced)));
    assert_eq!(end_of(&stored(&raw, alone())).unwrap().unwrap().effort, None);
    for new in [anew(&old).unwrap(), stored(&raw, WriteOptions::default().mode(Mode::Archive))] {
        let read = Arc::new(AtomicU64::new(0));
        let end = end_of(&Counted(new, Arc::clone(&read))).unwrap().unwrap();
        assert!(end.effort.unwrap().covers(options().effort()));
        assert_eq!(read.load(Ordering::Relaxed), (ATTEMPT_FRAME_LEN + END_FRAME_LEN) as u64);
    }
}

#[test]
fn streams_behind_one_another_become_one() {
    let parts: Vec<_> = (0..4).map(|i| sample(700_000, i)).collect();
    let archive = || WriteOptions::default().mode(Mode::Archive);
    let old: Vec<u8> = parts.iter().flat_map(|part| stored(part, archive())).collect();
    // The effort of the last one is not that of the file.
    assert_eq!(end_of(&old).unwrap().unwrap().effort, None);
    let new = anew(&old).unwrap();
    let file = File::open(&new[..]).unwrap();
    assert_eq!(file.members().len(), 1);
    assert!(read_all(&file).unwrap() == parts.concat());
}

#[test]
fn copies_of_what_came_before_stay_copies() {
    let mut raw = sample(5 << 20, 5);
    raw.extend_from_within(..);
    let mut old = Vec::new();
    let send = WriteOptions::default().raw_len(raw.len() as u64).send_options().reach(16 << 20).search_always(true);
    let sink = Arc::new(std::sync::Mutex::new(Vec::new()));
    let link = narrows::transport::Link::writer(Into(Arc::clone(&sink)));
    narrows::stream::send(io::Cursor::new(raw.clone()), link, send).unwrap();
    old.append(&mut sink.lock().unwrap());
    assert!(File::open(&old[..]).unwrap().members()[0].preface.reach > 0);
    let new = anew(&old).unwrap();
    assert!(new.len() < old.len());
    assert!(read_all(&File::open(&new[..]).unwrap()).unwrap() == raw);
}

struct Into(Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for Into {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn empty_and_short_files_are_files_too() {
    for len in [0, 1, 100] {
        let raw = sample(len, 6);
        let new = anew(&stored(&raw, WriteOptions::default())).unwrap();
        assert!(read_all(&File::open(&new[..]).unwrap()).unwrap() == raw);
    }
}

#[test]
fn damage_is_an_error_and_never_sealed() {
    let raw = sample(60_000, 7);
    let mut random = Random(5);
    for write in [linked(), alone()] {
        let old = stored(&raw, write);
        for _ in 0..300 {
            let mut bad = old.clone();
            bad[random.below(old.len() as u64) as usize] ^= 1 << random.below(8);
            // What the new file says must be what the old one said before it was damaged.
            match anew(&bad) {
                Ok(new) => assert!(read_all(&File::open(&new[..]).unwrap()).unwrap() == raw),
                Err(e) => assert!(
                    matches!(
                        e.kind,
                        ErrorKind::Corrupt | ErrorKind::Truncated | ErrorKind::Unsupported | ErrorKind::Limit
                    ),
                    "{e}"
                ),
            }
        }
        for len in (0..old.len()).step_by(old.len() / 50) {
            assert!(anew(&old[..len]).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn sums_that_are_not_those_of_the_bytes_are_found() {
    let raw = sample(60_000, 8);
    let old = stored(&raw, alone());
    let other = File::open(&old[..]).unwrap().members()[0].clone();
    // The same frames with an index that has the sums of other bytes.
    let mut pairs = Vec::new();
    for i in 0..other.blocks() {
        let entry = other.entry(i).unwrap();
        narrows::frame::put_varint(&mut pairs, entry.raw_end - entry.raw_begin);
        narrows::frame::put_varint(&mut pairs, entry.wire_end - entry.wire_begin);
    }
    let mut lying = old[..other.totals.index_offset as usize].to_vec();
    for frame in narrows::sender::index_frames(&other.preface.encode(), &pairs, &[7], raw.len() as u64) {
        lying.extend_from_slice(&frame.header);
        lying.extend_from_slice(&frame.body);
    }
    let totals = narrows::frame::EndTotals { wire_total: lying.len() as u64, ..other.totals };
    let end = totals.frame();
    lying.extend_from_slice(&end.header);
    lying.extend_from_slice(&end.body);
    let error = anew(&lying).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.to_string().contains("sums"), "{error}");
}

#[test]
fn a_digest_that_is_not_that_of_the_blocks_is_found() {
    let old = stored(&sample(60_000, 8), alone());
    let member = File::open(&old[..]).unwrap().members()[0].clone();
    let end = narrows::frame::EndTotals { digest: member.totals.digest ^ 1, ..member.totals }.frame();
    let mut lying = old[..old.len() - END_FRAME_LEN].to_vec();
    lying.extend_from_slice(&end.header);
    lying.extend_from_slice(&end.body);
    assert_eq!(anew(&lying).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_new_file_that_differs_is_not_accepted() {
    let raw = sample(300_000, 9);
    let Candidate::File(file) = open(stored(&raw, WriteOptions::default()), &options()).unwrap() else { panic!() };
    let (new, repacked) = repack(*file, Vec::new(), &options()).unwrap();
    verify(&new[..], &repacked, &options()).unwrap();
    for at in (0..new.len()).step_by(new.len() / 200) {
        let mut bad = new.clone();
        bad[at] ^= 0x10;
        assert!(verify(&bad[..], &repacked, &options()).is_err(), "byte {at}");
    }
    let mut other = raw;
    other[0] ^= 1;
    let other = anew(&stored(&other, WriteOptions::default())).unwrap();
    assert!(verify(&other[..], &repacked, &options()).is_err(), "a good file of other bytes");
}

#[test]
fn files_that_cannot_be_trusted_or_understood_are_left() {
    let raw = sample(60_000, 10);
    for unchecked in [stored(&raw, alone().check(false)), without_checks_and_index(&raw)] {
        assert!(matches!(open(unchecked, &options()), Ok(Candidate::Unchecked)));
    }
    let mut newer = stored(&raw, alone());
    let end = newer.split_off(newer.len() - END_FRAME_LEN);
    let mut totals = File::open([newer.clone(), end].concat()).unwrap().members()[0].totals;
    let frame = narrows::frame::control_frame(narrows::frame::ControlKind::Unknown(0x5f), b"x", totals.raw_total);
    newer.extend_from_slice(&frame.header);
    newer.extend_from_slice(&frame.body);
    totals.wire_total = newer.len() as u64;
    let end = totals.frame();
    newer.extend_from_slice(&end.header);
    newer.extend_from_slice(&end.body);
    assert!(matches!(open(newer, &options()), Ok(Candidate::Newer)));
}

/// A stream without checks, index and sums.
fn without_checks_and_index(raw: &[u8]) -> Vec<u8> {
    let sink = Arc::new(std::sync::Mutex::new(Vec::new()));
    let link = narrows::transport::Link::writer(Into(Arc::clone(&sink)));
    let send = narrows::stream::SendOptions::new("fixed:lz4".parse().unwrap()).check(false);
    narrows::stream::send(io::Cursor::new(raw.to_vec()), link, send).unwrap();
    std::mem::take(&mut *sink.lock().unwrap())
}

#[test]
fn an_effort_in_vain_is_recorded_in_a_copy() {
    let raw: Vec<u8> = (0..60_000).scan(Random(3), |random, _| Some(random.next() as u8)).collect();
    let effort = Effort::of(Mode::Archive);
    for write in [alone(), WriteOptions::default()] {
        let old = stored(&raw, write);
        let mut new = Vec::new();
        assert!(copy_with_effort(&File::open(&old[..]).unwrap(), &mut new, effort).unwrap());
        let end = end_of(&new).unwrap().unwrap();
        assert_eq!(end.effort, Some(effort));
        assert!(new.len() <= old.len() + ATTEMPT_FRAME_LEN);
        assert!(read_all(&File::open(&new[..]).unwrap()).unwrap() == raw);
        assert!(narrows_file::check::check(&File::open(&new[..]).unwrap(), 1, true).unwrap().is_good());
        // What came otherwise when it was read again is found, and so is another file.
        let old = File::open(&old[..]).unwrap();
        verify_copy(&old, &new[..], &options()).unwrap();
        for at in [20, new.len() / 3, new.len() - 10] {
            let mut bad = new.clone();
            bad[at] ^= 1;
            assert!(verify_copy(&old, bad, &options()).is_err(), "byte {at}");
        }
        assert!(verify_copy(&old, stored(&raw[1..], alone()), &options()).is_err());
    }
    let old = stored(&raw, alone());
    let two = [old.clone(), old].concat();
    // The record of the last stream speaks for all of them, and for no others.
    let mut new = Vec::new();
    assert!(copy_with_effort(&File::open(&two[..]).unwrap(), &mut new, effort).unwrap());
    assert_eq!(end_of(&new).unwrap().unwrap().effort, Some(effort));
    assert_eq!(end_of(&[new.clone(), new].concat()).unwrap().unwrap().effort, None);
}

#[test]
fn a_pace_that_fails_ends_it() {
    let stops = options().pace(Arc::new(|at| if at < 1 << 20 { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }));
    let old = stored(&sample(5 << 20, 11), WriteOptions::default());
    let Candidate::File(file) = open(old, &stops).unwrap() else { panic!() };
    let error = repack(*file, Vec::new(), &stops).map(drop).unwrap_err();
    assert_eq!(error.source.map(|e| e.kind()), Some(io::ErrorKind::TimedOut));
}
