//! A small pack with some changed raw bytes, unpacked into a folder: it ends, and nothing is stored beside
//! the folder.
#![no_main]

use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use narrows::entry::{EndState, Entry, EntryKind, RecordWriter};
use narrows::stream::{Notes, ReceiveOptions};
use narrows_copy::frames::Form;
use narrows_copy::hello::{Fsync, StoreHabits, StoreOptions, Unmade};
use narrows_copy::store::{EntryStore, Observers, Permitted};
use narrows_copy::tree::Tree;
use narrows_file::{WriteOptions, Writer};
use narrows_pack::{Pack, unpack_all};

fn entries() -> Vec<u8> {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    let kinds = [
        ("a", EntryKind::Folder),
        ("a/one", EntryKind::File { len: 2005, linked: true }),
        ("a/two", EntryKind::File { len: 2005, linked: false }),
        ("link", EntryKind::Symlink { target: b"../beside".to_vec() }),
        ("other", EntryKind::HardLink { of: 1 }),
        ("small.x", EntryKind::File { len: 5, linked: false }),
        ("small.y", EntryKind::File { len: 6, linked: false }),
    ];
    for (path, kind) in kinds {
        let path = path.as_bytes().to_vec();
        let entry = Entry { path, kind, mode: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() };
        // Entries by columns after the first one, as a writer has them.
        if raw.is_empty() { records.entry(&entry, &mut raw) } else { records.gather(&entry, &mut raw) }.unwrap();
    }
    records.gathered(&mut raw);
    let content = b"content\n\0".repeat(230);
    let content = &content[..2000];
    for id in 1..3 {
        records.begin(id, &mut raw);
        if id == 1 {
            records.data(content, &mut raw);
        } else {
            records.repeat(1, 0, 2000, &mut raw);
        }
        records.hole(5, &mut raw);
        records.end(EndState::Whole, blake3::hash(content).as_bytes(), &mut raw);
    }
    records.group(&[(5, 5), (6, 6)], b"small and y", &mut raw);
    records.finish(&mut raw);
    raw
}

/// Holes of exabytes make files of exabytes, which take no room.
fn home() -> &'static PathBuf {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let home = std::env::temp_dir().join(format!("unpack_mutated.{}", std::process::id()));
        std::fs::create_dir_all(home.join("beside")).unwrap();
        home
    })
}

fuzz_target!(|data: &[u8]| {
    let mut raw = entries();
    // Each three bytes change one, or put one in.
    for change in data.chunks_exact(3).take(64) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % raw.len();
        // Most of the content is alike: look at its ends.
        if change[0] & 1 == 0 { raw[at] = change[2] } else { raw.insert(at, change[2]) }
    }
    let mut writer = Writer::new(Vec::new(), WriteOptions::default().threads(1)).unwrap();
    writer.write_all(&raw).unwrap();
    let bytes = writer.finish().unwrap().0;
    let to = home().join("to");
    std::fs::create_dir(&to).unwrap();
    let options = StoreOptions {
        fsync: Fsync::None,
        devices: false,
        unmade: Unmade::Failed,
        dry_run: false,
        owner: Some(false),
        delete: None,
        names: false,
        set_id: false,
        form: Form::Raw,
        images: false,
        codes: false,
        holes: false,
        habits: StoreHabits::default(),
    };
    let notes = Notes::default();
    let store = EntryStore::new(Tree::open(&to).unwrap(), None, Permitted::Anything, options, notes, Observers::none());
    let store = store.unwrap().of_pack(true);
    let receive = || ReceiveOptions::default().threads(1);
    let _ = unpack_all(Cursor::new(bytes), None::<&Pack<&[u8]>>, &store, receive);
    drop(store);
    let names = |folder: &PathBuf| std::fs::read_dir(folder).unwrap().count();
    assert_eq!((names(home()), names(&home().join("beside"))), (2, 0));
    // A mode of the pack may deny access to its own folders.
    let _ = std::process::Command::new("chmod").arg("-R").arg("u+rwx").arg(&to).status();
    std::fs::remove_dir_all(&to).unwrap();
});
