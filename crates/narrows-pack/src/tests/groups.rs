//! Small files, which share hashes, and entries by columns.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use narrows::entry::{EntryKind, RecordParser, RecordWriter};
use narrows::stream::ReceiveOptions;

use super::{compare, entry, file_of, forged, item, packed, read_all, store};
use crate::columns::LeafWriter;
use crate::item::Item;
use crate::{Pack, check_members, compare_directory, unpack_all};

/// So many small files that resemble each other, as a tree of notes has them; their paths and contents.
fn alike(top: &Path, count: usize) -> Vec<(String, Vec<u8>)> {
    (0..count)
        .map(|i| {
            let path = format!("{:02}/{:03}.txt", i / 100, i % 100);
            let content = format!("file {} {i} ", i / 100).repeat(1 + i * 7 % 50).into_bytes();
            let file = top.join(&path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &content).unwrap();
            // One after the other, some ten microseconds apart.
            let ns = 1_700_000_000_000_000_000 + 40_000 * i as u64 + (i * i % 30_011) as u64;
            let file = std::fs::File::open(file).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_nanos(ns)).unwrap();
            (format!("top/{path}"), content)
        })
        .collect()
}

/// A hash of each, and its name and time twice as they are, would be 70 bytes.
#[test]
fn small_files_that_are_alike_take_few_bytes_each() {
    let home = tempfile::tempdir().unwrap();
    let top = home.path().join("top");
    let files = alike(&top, 3000);
    let bytes = packed(&top);
    assert!(bytes.len() < 16 * files.len(), "{} bytes for {} files", bytes.len(), files.len());
    let pack = Pack::open(&bytes[..]).unwrap();
    assert_eq!(compare(&pack, &files).unwrap(), files.len());
    assert_eq!(check_members(&pack, 2, |item, e| panic!("{item:?}: {e}")).unwrap().compared, 3000);
    let to = tempfile::tempdir().unwrap();
    let options = || ReceiveOptions::default().threads(1);
    let left = unpack_all(std::io::Cursor::new(bytes.clone()), None::<&Pack<&[u8]>>, &store(to.path()), options);
    assert!(left.unwrap().broken.is_none());
    files.iter().for_each(|(path, content)| assert!(std::fs::read(to.path().join(path)).unwrap() == *content));
}

/// Files that hold a group together with others are repeated by later ones, and are read one by one.
#[test]
fn later_files_repeat_what_is_in_a_group() {
    let home = tempfile::tempdir().unwrap();
    let top = home.path().join("top");
    std::fs::create_dir(&top).unwrap();
    let noise = |seed: u32| -> Vec<u8> {
        (seed..seed + 5000).flat_map(|i| i.wrapping_mul(2_654_435_761).rotate_left(i % 31).to_le_bytes()).collect()
    };
    let mut files = Vec::new();
    for i in 0..12 {
        files.push((format!("top/a{i:02}"), noise(i * 100_000)));
        files.push((format!("top/b{i:02}"), noise(i * 100_000)));
    }
    files.iter().for_each(|(path, content)| std::fs::write(home.path().join(path), content).unwrap());
    let bytes = packed(&top);
    assert!(bytes.len() < 14 * 20_000, "{} bytes", bytes.len());
    let pack = Pack::open(&bytes[..]).unwrap();
    assert_eq!(compare(&pack, &files).unwrap(), files.len());
    let to = tempfile::tempdir().unwrap();
    let options = || ReceiveOptions::default().threads(1);
    let left = unpack_all(std::io::Cursor::new(bytes.clone()), Some(&pack), &store(to.path()), options).unwrap();
    assert!(left.broken.is_none() && left.unrepeated.is_empty());
    files.iter().for_each(|(path, content)| assert!(std::fs::read(to.path().join(path)).unwrap() == *content));
}

/// The raw bytes of a pack, and where its directory begins.
fn raw_of(bytes: &[u8]) -> (Vec<u8>, usize) {
    let pack = Pack::open(bytes).unwrap();
    let raw = pack.read(0, pack.file.raw_len() as usize).unwrap();
    (raw, pack.trailer().content_end as usize)
}

/// Raw bytes that differ are content that was packed, or an error; frames are whole, so only what a pack says
/// of itself can tell.
#[test]
fn no_raw_byte_of_a_pack_can_be_changed_into_other_content() {
    let home = tempfile::tempdir().unwrap();
    let top = home.path().join("top");
    let files = alike(&top, 12);
    let (raw, _) = raw_of(&packed(&top));
    for at in 0..raw.len() - 64 {
        let mut bad = raw.clone();
        bad[at] ^= 1 << (at % 8);
        let bytes = file_of(&bad);
        let Ok(pack) = Pack::open(&bytes[..]) else { continue };
        for item in pack.walk(b"").map_while(Result::ok) {
            let mut content = Vec::new();
            let Ok(member) = pack.member(&item) else { continue };
            // A length that was changed is one of exabytes perhaps, which is told before anything is read.
            if std::io::copy(&mut member.reader(), &mut content).is_ok() {
                assert!(files.iter().any(|(_, known)| *known == content), "byte {at}");
            }
        }
        if at % 16 == 0 {
            let to = tempfile::tempdir().unwrap();
            let options = || ReceiveOptions::default().threads(1);
            let source = std::io::Cursor::new(bytes);
            let _ = unpack_all(source, None::<&Pack<&[u8]>>, &store(to.path()), options);
            for (path, _) in &files {
                let there = std::fs::read(to.path().join(path));
                // Nothing tells that a name is another.
                assert!(
                    there.map_or(true, |there| files.iter().any(|(_, known)| *known == there)),
                    "byte {at}: {path}"
                );
            }
        }
    }
}

/// Programs that only know packs of version 1 say that they need a newer one.
#[test]
fn readers_of_version_1_refuse_in_words() {
    let home = tempfile::tempdir().unwrap();
    alike(&home.path().join("top"), 3);
    let (raw, directory) = raw_of(&packed(&home.path().join("top")));
    // What it says of itself is in the trailer, and in a pipe in the first record that only packs have.
    assert_eq!(raw[raw.len() - 56], 2);
    let mut entries = 0;
    let parsed = RecordParser::default().push(&raw[..directory], |_| {
        entries += 1;
        Ok(())
    });
    let error = parsed.unwrap_err();
    assert!(entries == 1 && error.kind == narrows::ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("needs a newer program"), "{error}");
}

/// A group that the directory leads to must have the file, at its place and with its number.
#[test]
fn a_directory_that_leads_elsewhere_in_a_group_is_found() {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    for path in ["1", "2"] {
        records.gather(&entry(path, EntryKind::File { len: 6, linked: false }), &mut raw).unwrap();
    }
    records.gathered(&mut raw);
    let end_at = raw.len() as u64;
    let begin = records.group(&[(0, 6), (1, 6)], b"first!second", &mut raw) as u64;
    records.finish(&mut raw);
    let directory = raw.len() as u64;
    let forge = |items: &[Item]| {
        let mut writer = LeafWriter::default();
        items.iter().for_each(|item| writer.put(item, directory).unwrap());
        forged(&raw, &[writer.finish()], 0, |_| ())
    };
    let good = forge(&[item("1", 0, begin, end_at), item("2", 1, begin + 6, end_at)]);
    let read = read_all(&good).unwrap();
    assert_eq!(read, [(b"1".to_vec(), b"first!".to_vec()), (b"2".to_vec(), b"second".to_vec())]);
    let pack = Pack::open(&good[..]).unwrap();
    assert!(compare_directory(&pack, 1, |item, e| panic!("{item:?}: {e}")).unwrap());
    for (what, bad) in [
        ("another's content", item("1", 0, begin + 6, end_at)),
        ("another's number", item("1", 1, begin, end_at)),
        ("a place beside it", item("1", 0, begin + 1, end_at)),
        ("beside the group", item("1", 0, begin, end_at + 1)),
    ] {
        let bytes = forge(std::slice::from_ref(&bad));
        assert!(read_all(&bytes).is_err(), "{what}");
        let (pack, mut names) = (Pack::open(&bytes[..]).unwrap(), Vec::new());
        let checked = check_members(&pack, 1, |item, _| names.push(item.entry.path.clone())).unwrap();
        assert_eq!((checked.damaged, names), (1, vec![b"1".to_vec()]), "{what}");
        // One of the two files is left out besides.
        assert!(compare_directory(&pack, 1, |_, _| ()).is_err(), "{what}");
    }
}
