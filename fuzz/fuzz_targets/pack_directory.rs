//! An arbitrary directory after an entry stream that is good, of version 1 or 2, with a trailer that leads
//! to it: what is read of a member is its content or an error, and a directory that compares equal leads to all
//! content.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use narrows::entry::{EndState, Entry, EntryKind, RecordWriter};
use narrows_file::{WriteOptions, Writer};
use narrows_pack::{Pack, compare_directory};
use xxhash_rust::xxh3::xxh3_64;

const CONTENT: [&[u8]; 2] = [b"first content", b"second"];

/// As packs of version 2 have them: entries by columns, contents in a group.
fn entries_in_a_group() -> Vec<u8> {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    for (i, content) in CONTENT.into_iter().enumerate() {
        records.gather(&entry(i, content), &mut raw).unwrap();
    }
    records.gathered(&mut raw);
    let files = [(0, CONTENT[0].len()), (1, CONTENT[1].len())];
    records.group(&files, &CONTENT.concat(), &mut raw);
    records.finish(&mut raw);
    raw
}

fn entry(i: usize, content: &[u8]) -> Entry {
    let kind = EntryKind::File { len: content.len() as u64, linked: false };
    let path = vec![b'1' + i as u8];
    Entry { path, kind, mode: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
}

fn entries() -> Vec<u8> {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    for (i, content) in CONTENT.into_iter().enumerate() {
        records.entry(&entry(i, content), &mut raw).unwrap();
        records.begin(i as u64, &mut raw);
        records.data(content, &mut raw);
        records.end(EndState::Whole, blake3::hash(content).as_bytes(), &mut raw);
    }
    records.finish(&mut raw);
    raw
}

fn file(raw: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), WriteOptions::default().threads(1)).unwrap();
    writer.write_all(raw).unwrap();
    writer.finish().unwrap().0
}

fuzz_target!(|data: &[u8]| {
    let [depth, root, rest @ ..] = data else { return };
    let version = 1 + (depth >> 7);
    let mut raw = if version == 1 { entries() } else { entries_in_a_group() };
    let content_end = raw.len() as u64;
    raw.extend_from_slice(rest);
    // The root is the last part of the bytes: what is before it are other pages.
    let begin = content_end + (u64::from(*root) * rest.len() as u64 >> 8);
    let root_len = raw.len() as u64 - begin;
    let mut trailer = b"NRWPACK\x1a".to_vec();
    trailer.extend_from_slice(&[version, depth % 4, 0, 0, 0, 0, 0, 0]);
    for word in [content_end, begin, root_len, 2, 19] {
        trailer.extend_from_slice(&word.to_le_bytes());
    }
    let check = xxh3_64(&trailer);
    raw.extend_from_slice(&trailer);
    raw.extend_from_slice(&check.to_le_bytes());
    let bytes = file(&raw);
    let Ok(pack) = Pack::open(&bytes[..]) else { return };
    let mut names = 0;
    let _ = pack.children(b"", None, |_| {
        names += 1;
        names < 1000
    });
    for item in pack.walk(b"").take(1000) {
        let Ok(item) = item else { break };
        let Ok(member) = pack.member(&item) else { continue };
        let mut buf = [0; 64];
        let _ = member.read_at(&mut buf, 1);
        if member.extents().len() > 1 << 16 {
            continue;
        }
        let mut content = Vec::new();
        if std::io::copy(&mut member.reader(), &mut content).is_ok() {
            let data: Vec<u8> = content.iter().copied().filter(|b| *b != 0).collect();
            let known = data.is_empty() || CONTENT.iter().any(|known| *known == data);
            assert!(known, "content that was never packed");
        }
    }
    let mut others = 0;
    if compare_directory(&pack, 1, |_, _| others += 1).is_ok_and(|compared| compared) && others == 0 {
        for (path, known) in [b"1", b"2"].into_iter().zip(CONTENT) {
            let item = pack.find(path).unwrap().unwrap();
            let mut content = Vec::new();
            std::io::copy(&mut pack.member(&item).unwrap().reader(), &mut content).unwrap();
            assert!(content == known, "a directory that compares equal leads elsewhere");
        }
    }
});
