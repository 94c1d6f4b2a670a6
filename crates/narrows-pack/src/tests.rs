//! Packs that were made by hand: damaged, forged, large.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use narrows::Result;
use narrows::entry::{EndState, Entry, EntryKind, RecordWriter};
use narrows::hint::{Hint, Mode};
use narrows::stream::{Notes, ReceiveOptions};
use narrows_copy::filter::Filter;
use narrows_copy::frames::Form;
use narrows_copy::hello::{Fsync, StoreHabits, StoreOptions, Unmade};
use narrows_copy::scan::Root;
use narrows_copy::store::{EntryStore, Observers, Permitted};
use narrows_copy::tree::Tree;
use narrows_file::{WriteOptions, Writer};

use crate::builder::Builder;
use crate::directory::{Child, LEAF, RowsWriter, put_child};

use crate::item::{Content, Extent, Item, List, put_extents};
use crate::trailer::Trailer;
use crate::{Input, Pack, PackOptions, Selector, check_members, members_in, unpack_all, unpack_some};

mod groups;

pub(crate) fn file_of(raw: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), WriteOptions::default().threads(1)).unwrap();
    writer.write_all(raw).unwrap();
    writer.finish().unwrap().0
}

pub(crate) fn packed(folder: &Path) -> Vec<u8> {
    let roots = vec![Root::open(folder, true).unwrap()];
    let input = Input { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
    let told = |text: &str| panic!("{text}");
    crate::pack(input, Vec::new(), &PackOptions::default(), &Arc::default(), &told, &|_| ()).unwrap().0
}

fn store(folder: &Path) -> EntryStore {
    store_with(folder, false)
}

fn store_with(folder: &Path, dry_run: bool) -> EntryStore {
    let options = StoreOptions {
        fsync: Fsync::None,
        devices: false,
        unmade: Unmade::Failed,
        dry_run,
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
    let tree = Tree::open(folder).unwrap();
    let store = EntryStore::new(tree, None, Permitted::Anything, options, Notes::default(), Observers::none());
    store.unwrap().of_pack(true)
}

/// A small tree with a repeat, a hole, links; the content of each file by its path.
pub(crate) fn tree(home: &Path) -> Vec<(String, Vec<u8>)> {
    let top = home.join("top");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    let noise: Vec<u8> = (0..9000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let files = [
        ("a/b/short.txt", b"short".to_vec()),
        ("a/empty", Vec::new()),
        ("a/noise", noise.clone()),
        ("a/same.x", [&noise[..], b"and more"].concat()),
    ];
    for (path, content) in &files {
        std::fs::write(top.join(path), content).unwrap();
    }
    std::os::unix::fs::symlink("noise", top.join("a/link")).unwrap();
    std::fs::hard_link(top.join("a/noise"), top.join("a/other")).unwrap();
    let mut all: Vec<_> = files.iter().map(|(path, content)| (format!("top/{path}"), content.clone())).collect();
    all.push(("top/a/other".into(), noise));
    all
}

/// The content of all files, as far as it can be read: each is right or an error.
fn compare(pack: &Pack<&[u8]>, files: &[(String, Vec<u8>)]) -> Result<usize> {
    let mut found = 0;
    for item in pack.walk(b"") {
        let item = item?;
        if !matches!(item.entry.kind, EntryKind::File { .. } | EntryKind::HardLink { .. }) {
            continue;
        }
        let mut content = Vec::new();
        std::io::copy(&mut pack.member(&item)?.reader(), &mut content)?;
        let path = String::from_utf8_lossy(&item.entry.path);
        let expected = files.iter().find(|(name, _)| *name == path).unwrap_or_else(|| panic!("{path} was not packed"));
        assert!(expected.1 == content, "{path} has other content");
        found += 1;
    }
    Ok(found)
}

#[test]
fn members_are_found_read_and_listed() {
    let home = tempfile::tempdir().unwrap();
    let files = tree(home.path());
    let bytes = packed(&home.path().join("top"));
    assert_eq!(bytes, packed(&home.path().join("top")), "the same tree gives the same pack");
    let pack = Pack::open(&bytes[..]).unwrap();
    assert_eq!(compare(&pack, &files).unwrap(), files.len());
    let noise = files[2].1.len() as u64;
    assert!(pack.trailer().content_end < 3 * noise / 2, "it is stored once");
    let mut names = Vec::new();
    let folder = |names: &mut Vec<String>, path: &[u8], after: Option<&[u8]>| {
        names.clear();
        pack.children(path, after, |item| {
            names.push(String::from_utf8(item.entry.path).unwrap());
            true
        })
        .unwrap();
    };
    folder(&mut names, b"", None);
    assert_eq!(names, ["top"]);
    folder(&mut names, b"top/a", None);
    assert_eq!(names, ["top/a/b", "top/a/empty", "top/a/link", "top/a/noise", "top/a/other", "top/a/same.x"]);
    folder(&mut names, b"top/a", Some(b"link"));
    assert_eq!(names, ["top/a/noise", "top/a/other", "top/a/same.x"]);
    let found = |patterns: &[&str]| {
        let patterns: Vec<_> = patterns.iter().map(|p| p.as_bytes().to_vec()).collect();
        let mut found = 0;
        let count = |_| {
            found += 1;
            true
        };
        let missing = Selector::new(&patterns).unwrap().each(&pack, count).unwrap();
        (found, missing)
    };
    assert_eq!(found(&[]), (9, vec![]));
    assert_eq!(found(&["./top/a/b/", "top/a/b/short.txt", "nothing"]), (2, vec!["nothing".into()]));
    assert_eq!(found(&["*short*", "top/a/*k", "x*"]), (2, vec!["x*".into()]));
    assert_eq!(found(&["to?"]).0, 9);
    // Braces are no alternatives, as with tar.
    assert_eq!(found(&["top/a/{link,noise}*"]), (0, vec!["top/a/{link,noise}*".into()]));
    let same = pack.find(b"top/a/same.x").unwrap().unwrap();
    let member = pack.member(&same).unwrap();
    let mut buf = [0; 10];
    assert_eq!(member.read_at(&mut buf, noise - 2).unwrap(), 10);
    assert_eq!(&buf[2..], b"and more");
    assert_eq!(member.read_at(&mut buf, noise + 8).unwrap(), 0);
}

/// A sink that is slow for a while, so that the link is judged now this way and now that.
struct Sink {
    bytes: Vec<u8>,
    pause: Duration,
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        std::thread::sleep(self.pause);
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_pack_of_a_tree_does_not_depend_on_time() {
    let home = tempfile::tempdir().unwrap();
    let mut x = 1u32;
    for i in 0..12u32 {
        // Numbers after text, of lengths that fit no block.
        let wave = |k: u32| 280.0 + ((i * 9000 + k) as f32 / 50.0).sin() * 20.0;
        let noise = (0..20_000 + 1000 * i).map(|k| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            wave(k) + (x >> 24) as f32 / 100.0
        });
        let numbers: Vec<u8> = noise.flat_map(f32::to_le_bytes).collect();
        let words: Vec<u8> = (0..6_000u32).flat_map(|k| format!("{} of {i}\n", k * k % 9973).into_bytes()).collect();
        std::fs::write(home.path().join(format!("{i}")), [words, numbers].concat()).unwrap();
    }
    let packed = |options: &PackOptions, threads: usize, pause: [u64; 2]| {
        let roots = vec![Root::open(home.path(), true).unwrap()];
        let input = Input { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
        let sink = Sink { bytes: Vec::new(), pause: Duration::from_micros(pause[0]) };
        // Once the bytes come so late that a stream would not wait for them.
        let late = std::cell::Cell::new(Duration::from_millis(pause[1]));
        let on_file = |_: &str| std::thread::sleep(late.take());
        let options = options.clone().threads(Some(threads));
        let told = |text: &str| panic!("{text}");
        crate::pack(input, sink, &options, &Arc::default(), &told, &on_file).unwrap().0.bytes
    };
    // Shorter blocks are more choices.
    let of = |policy: &str| PackOptions::default().policy(Some(policy.parse().unwrap()));
    let fast = PackOptions::default().hint(Hint { mode: Some(Mode::Fast), ..Hint::default() });
    for options in [fast, of("storage:block=262144"), of("storage:mode=archive,block=262144")] {
        let first = packed(&options, 1, [0, 0]);
        for (threads, pause) in [(1, [0, 0]), (2, [0, 0]), (1, [3000, 0]), (2, [3000, 1200]), (2, [0, 1200])] {
            assert!(packed(&options, threads, pause) == first, "{options:?}: {threads} threads, pauses {pause:?}");
        }
    }
}

#[test]
fn files_that_change_while_they_are_packed_are_told_of() {
    let home = tempfile::tempdir().unwrap();
    let top = home.path().join("top");
    std::fs::create_dir(&top).unwrap();
    for name in ["1", "2", "3", "4", "5"] {
        std::fs::write(top.join(name), format!("content of {name}")).unwrap();
    }
    let roots = vec![Root::open(&top, true).unwrap()];
    let input = Input { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
    let told = std::cell::RefCell::new(Vec::new());
    let change = |name: &str| {
        if name.ends_with('1') {
            std::fs::write(top.join("2"), "other content").unwrap();
            std::fs::write(top.join("3"), "short").unwrap();
            std::fs::remove_file(top.join("4")).unwrap();
            std::fs::write(top.join("5"), "content of 5 and more").unwrap();
        }
    };
    let on_failure = |text: &str| told.borrow_mut().push(text.to_owned());
    let options = PackOptions::default();
    let (bytes, packed) = crate::pack(input, Vec::new(), &options, &Arc::default(), &on_failure, &change).unwrap();
    assert_eq!((packed.files, packed.changed, packed.failed), (3, 2, 2), "{told:?}");
    assert_eq!(
        told.into_inner(),
        [
            "top/2 changed while it was read",
            "top/3 shrank while it was read; it is not in the pack",
            "cannot read top/4: it has vanished",
            "top/5 changed while it was read",
        ]
    );
    // As long as announced.
    let files = [("1", "content of 1"), ("2", "other conten"), ("5", "content of 5")];
    let files = files.map(|(name, content)| (format!("top/{name}"), content.as_bytes().to_vec()));
    assert_eq!(compare(&Pack::open(&bytes[..]).unwrap(), &files).unwrap(), 3);
}

/// Another name still has the content; nothing is left out in silence.
#[test]
fn the_names_of_a_file_that_loses_one_are_packed_or_told_of() {
    let lost = |change: &dyn Fn(&Path)| {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        std::fs::create_dir(&top).unwrap();
        std::fs::write(top.join("0"), "first").unwrap();
        std::fs::write(top.join("a"), "content").unwrap();
        ["b", "c"].iter().for_each(|name| std::fs::hard_link(top.join("a"), top.join(name)).unwrap());
        let roots = vec![Root::open(&top, true).unwrap()];
        let input = Input { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
        let told = std::cell::RefCell::new(Vec::new());
        let on_failure = |text: &str| told.borrow_mut().push(text.to_owned());
        let on_file = |name: &str| {
            if name.ends_with('0') {
                change(&top)
            }
        };
        let options = PackOptions::default();
        let (bytes, packed) = crate::pack(input, Vec::new(), &options, &Arc::default(), &on_failure, &on_file).unwrap();
        let pack = Pack::open(&bytes[..]).unwrap();
        let names: Vec<_> = pack.walk(b"top/").map(|item| item.unwrap().entry.path).collect();
        let all = ["a", "b", "c"].map(|name| (format!("top/{name}"), b"content".to_vec()));
        let there: Vec<_> = all.into_iter().filter(|(path, _)| names.contains(&path.as_bytes().to_vec())).collect();
        let packed_files = [&there[..], &[("top/0".to_owned(), b"first".to_vec())]].concat();
        assert_eq!(compare(&pack, &packed_files).unwrap(), packed_files.len());
        assert_eq!(packed.failed as usize, told.borrow().len());
        (there.len(), told.into_inner())
    };
    let remove = |top: &Path, names: &[&str]| names.iter().for_each(|n| std::fs::remove_file(top.join(n)).unwrap());
    assert_eq!(lost(&|top| remove(top, &["a"])), (3, vec![]));
    assert_eq!(lost(&|top| remove(top, &["a", "b"])), (3, vec![]));
    let (there, told) = lost(&|top| remove(top, &["a", "b", "c"]));
    assert_eq!((there, told.len()), (0, 3), "{told:?}");
    let (there, told) = lost(&|top| std::fs::write(top.join("a"), "x").unwrap());
    assert_eq!((there, told.len()), (0, 3), "{told:?}");
    assert!(told[0].contains("shrank") && told[2].contains("top/c is a hard link to top/a"), "{told:?}");
}

#[test]
fn some_paths_are_unpacked_with_the_folders_above_them() {
    let home = tempfile::tempdir().unwrap();
    tree(home.path());
    let bytes = packed(&home.path().join("top"));
    let pack = Pack::open(&bytes[..]).unwrap();
    let to = tempfile::tempdir().unwrap();
    // A hard link without the file that it is a link to is that file.
    let selector = Selector::new(&[b"top/a/other".to_vec(), b"top/a/b".to_vec()]).unwrap();
    assert_eq!(unpack_some(&pack, &selector, &store(to.path()), 1).unwrap().missing, Vec::<String>::new());
    let read = |path: &str| std::fs::read(to.path().join(path)).ok();
    assert_eq!(read("top/a/other"), std::fs::read(home.path().join("top/a/noise")).ok());
    assert_eq!(read("top/a/b/short.txt").unwrap(), b"short");
    assert!(read("top/a/noise").is_none());
}

#[test]
fn of_a_pack_that_breaks_off_the_whole_files_are_unpacked() {
    let home = tempfile::tempdir().unwrap();
    let files = tree(home.path());
    let bytes = packed(&home.path().join("top"));
    let mut most = 0;
    for len in (0..bytes.len()).step_by(61).chain([bytes.len() - 1]) {
        let cut = &bytes[..len];
        assert!(Pack::open(cut).is_err(), "cut at {len}");
        let to = tempfile::tempdir().unwrap();
        let left = unpack_all(std::io::Cursor::new(cut.to_vec()), None::<&Pack<&[u8]>>, &store(to.path()), || {
            ReceiveOptions::default().threads(1)
        });
        // Where the pack is cut between its two streams depends on the times in it; all entries are whole there.
        if let Ok(left) = &left {
            assert!(left.broken.is_some() || left.followed.is_some(), "cut at {len}");
        }
        let there = files.iter().filter(|(path, content)| {
            let there = std::fs::read(to.path().join(path)).ok();
            assert!(there.as_ref().is_none_or(|there| there == content), "{path}, cut at {len}");
            there.is_some()
        });
        most = most.max(there.count());
    }
    assert_eq!(most, files.len(), "without its end everything is there");
}

#[test]
fn what_a_changed_bit_leaves_readable_is_right() {
    let home = tempfile::tempdir().unwrap();
    let files = tree(home.path());
    let bytes = packed(&home.path().join("top"));
    // Content that is stored is long and alike: a few bytes of it stand for all.
    for at in (0..bytes.len()).filter(|at| *at < 200 || *at > bytes.len() - 900 || at % 997 == 0) {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        if let Ok(pack) = Pack::open(&bad[..]) {
            let _ = compare(&pack, &files);
        }
    }
}

pub(crate) fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: path.into(), kind, mode: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
}

/// An entry stream of two files, and where the content and the end record of each are.
pub(crate) fn two_files() -> (Vec<u8>, [(u64, u64); 2]) {
    let (mut records, mut out) = (RecordWriter::default(), Vec::new());
    let mut places = [(0, 0); 2];
    for (i, content) in [b"first!", b"second"].into_iter().enumerate() {
        records.entry(&entry(["1", "2"][i], EntryKind::File { len: 6, linked: false }), &mut out).unwrap();
        records.begin(i as u64, &mut out);
        records.data(content, &mut out);
        let end = out.len() as u64;
        places[i] = (end - 6, end);
        records.end(EndState::Whole, blake3::hash(content).as_bytes(), &mut out);
    }
    records.finish(&mut out);
    (out, places)
}

pub(crate) fn item(path: &str, id: u64, raw: u64, end_at: u64) -> Item {
    let mut list = Vec::new();
    put_extents(&[Extent { raw: Some(raw), len: 6 }], end_at, &mut list);
    let content = Content::File { end_at, list: List::Here(list) };
    Item { entry: entry(path, EntryKind::File { len: 6, linked: false }), id, content }
}

pub(crate) fn leaf(items: &[Item], directory: u64) -> Vec<u8> {
    let mut writer = RowsWriter::default();
    items.iter().for_each(|item| writer.put(item, directory).unwrap());
    writer.bytes
}

/// The directory of a pack with one entry, whose entry stream is zero bytes.
fn directory_alone() -> Builder<Writer<Vec<u8>>> {
    let mut sink = Writer::new(Vec::new(), WriteOptions::default()).unwrap();
    sink.write_all(&[0; 11]).unwrap();
    Builder::new(sink, 11)
}

/// The pack with these pages, the last of which is the root.
pub(crate) fn forged(raw: &[u8], pages: &[Vec<u8>], depth: u8, change: impl Fn(&mut Trailer)) -> Vec<u8> {
    let content_end = raw.len() as u64;
    let mut raw = raw.to_vec();
    let mut root = 0;
    for page in pages {
        root = raw.len() as u64;
        raw.extend_from_slice(page);
    }
    let root_len = raw.len() as u64 - root;
    let mut trailer = Trailer { depth, content_end, root, root_len, entries: 2, bytes: 12 };
    change(&mut trailer);
    trailer.put(&mut raw);
    file_of(&raw)
}

fn read_all(bytes: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let pack = Pack::open(bytes)?;
    let mut all = Vec::new();
    for item in pack.walk(b"") {
        let item = item?;
        let mut content = Vec::new();
        std::io::copy(&mut pack.member(&item)?.reader(), &mut content)?;
        all.push((item.entry.path, content));
    }
    Ok(all)
}

#[test]
fn extents_that_lie_are_found_by_the_digest() {
    let (raw, [one, two]) = two_files();
    let directory = raw.len() as u64;
    let good = [item("1", 0, one.0, one.1), item("2", 1, two.0, two.1)];
    let read = read_all(&forged(&raw, &[leaf(&good, directory)], 0, |_| ())).unwrap();
    assert_eq!(read, [(b"1".to_vec(), b"first!".to_vec()), (b"2".to_vec(), b"second".to_vec())]);
    for (what, bad) in [
        ("the other's content", item("1", 0, two.0, one.1)),
        ("bytes beside it", item("1", 0, one.0 - 1, one.1)),
        ("an end that is none", item("1", 0, one.0, one.1 - 1)),
    ] {
        let error = read_all(&forged(&raw, &[leaf(&[bad], directory)], 0, |_| ())).unwrap_err();
        assert!(
            error.to_string().contains("content of a file") || error.to_string().contains("no file ends"),
            "{what}"
        );
    }
    for (what, bad) in [
        ("content behind the entry stream", item("1", 0, directory - 5, one.1)),
        ("an end behind it", item("1", 0, one.0, directory - 30)),
        ("a number that is too large", item("1", 2, one.0, one.1)),
    ] {
        let pack = forged(&raw, &[leaf(&[bad], directory)], 0, |_| ());
        assert!(read_all(&pack).is_err(), "{what}");
    }
}

#[test]
fn a_scrub_names_the_members_that_are_not_what_was_packed() {
    let (raw, [one, two]) = two_files();
    let directory = raw.len() as u64;
    let whole = [item("1", 0, one.0, one.1), item("2", 1, two.0, two.1)];
    let lies = [item("1", 0, one.0, one.1), item("2", 1, one.0, two.1)];
    for (items, expected) in [(whole.clone(), vec![]), (lies, vec![b"2".to_vec()])] {
        let bytes = forged(&raw, &[leaf(&items, directory)], 0, |_| ());
        let pack = Pack::open(&bytes[..]).unwrap();
        let mut names = Vec::new();
        let checked = check_members(&pack, 2, |item, _| names.push(item.entry.path.clone())).unwrap();
        assert_eq!((checked.entries, checked.compared, checked.damaged), (2, 2, expected.len() as u64));
        assert_eq!(names, expected);
    }
    let bytes = forged(&raw, &[leaf(&whole, directory)], 0, |_| ());
    let pack = Pack::open(&bytes[..]).unwrap();
    let mut names = Vec::new();
    let range = two.0 + 1..two.0 + 2;
    assert_eq!(members_in(&pack, &[range], |item| names.push(item.entry.path.clone())).unwrap().damaged, 1);
    assert_eq!(names, [b"2"]);
}

#[test]
fn directories_that_lead_astray_are_refused() {
    let (raw, [one, two]) = two_files();
    let directory = raw.len() as u64;
    let items = [item("1", 0, one.0, one.1), item("2", 1, two.0, two.1)];
    let [a, b] = [0, 1].map(|i| leaf(&items[i..=i], directory));
    let inner = |children: &[(&str, u64, u64)]| {
        let (mut page, mut before) = (Vec::new(), Vec::new());
        for (first, at, len) in children {
            let child = Child { first: first.as_bytes().to_vec(), at: directory + at, len: *len };
            put_child(&child, &before, directory, &mut page);
            before = child.first;
        }
        page
    };
    let (a_len, b_len) = (a.len() as u64, b.len() as u64);
    let pages = |root: Vec<u8>| [a.clone(), b.clone(), root];
    let good = inner(&[("1", 0, a_len), ("2", a_len, b_len)]);
    assert_eq!(read_all(&forged(&raw, &pages(good.clone()), 1, |_| ())).unwrap().len(), 2);
    let root_at = a_len + b_len;
    for (what, root, depth) in [
        ("a leaf twice", inner(&[("1", 0, a_len), ("2", 0, a_len)]), 1),
        ("another first path", inner(&[("0", 0, a_len), ("2", a_len, b_len)]), 1),
        ("out of order", inner(&[("2", a_len, b_len), ("1", 0, a_len)]), 1),
        ("itself", inner(&[("1", root_at, 4)]), 1),
        ("itself, deeper", inner(&[("1", root_at, 4)]), 9),
        ("half a leaf", inner(&[("1", 0, a_len - 1)]), 1),
        ("an empty page", inner(&[("1", 0, 0)]), 1),
        ("outside", inner(&[("1", u64::MAX / 2, 9)]), 1),
        ("a page that is too long", inner(&[("1", 0, 1 << 30)]), 1),
        ("the wrong depth", good.clone(), 2),
        ("no depth", good.clone(), 0),
        ("two of one path", leaf(&[items[0].clone(), items[0].clone()], directory), 0),
        ("a link to nothing", link_to("3", directory), 0),
        ("a link to itself", link_to("1", directory), 0),
    ] {
        assert!(read_all(&forged(&raw, &pages(root), depth, |_| ())).is_err(), "{what}");
    }
    let no_pack = |change: fn(&mut Trailer)| read_all(&forged(&raw, &pages(good.clone()), 1, change)).is_err();
    assert!(no_pack(|t| t.root += 1) && no_pack(|t| t.root_len = 1 << 40) && no_pack(|t| t.content_end = u64::MAX));
    assert!(no_pack(|t| t.content_end += 1) && no_pack(|t| t.entries = 1) && no_pack(|t| t.depth = 33));
    assert!(Pack::open(&file_of(&raw)[..]).is_err_and(|e| e.to_string().contains("no pack")));
    assert!(Pack::open(&file_of(b"short")[..]).is_err() && Pack::open(&b""[..]).is_err());
    // A root without entries is an empty pack.
    assert!(read_all(&forged(&raw, &[vec![LEAF]], 0, |_| ())).unwrap().is_empty());
}

fn link_to(path: &str, directory: u64) -> Vec<u8> {
    let link = Item { entry: entry("1", EntryKind::HardLink { of: 0 }), id: 1, content: Content::Of(path.into()) };
    leaf(&[link], directory)
}

/// A file of exabytes is a few bytes of a pack.
#[test]
fn a_file_of_exabytes_takes_no_memory() {
    let (raw, [one, _]) = two_files();
    let directory = raw.len() as u64;
    let len = (1 << 60) + 6;
    let mut list = Vec::new();
    put_extents(&[Extent { raw: None, len: 1 << 60 }, Extent { raw: Some(one.0), len: 6 }], one.1, &mut list);
    let content = Content::File { end_at: one.1, list: List::Here(list) };
    let huge = Item { entry: entry("1", EntryKind::File { len, linked: false }), id: 0, content };
    let bytes = forged(&raw, &[leaf(&[huge], directory)], 0, |_| ());
    let pack = Pack::open(&bytes[..]).unwrap();
    let member = pack.member(&pack.find(b"1").unwrap().unwrap()).unwrap();
    let mut buf = [1; 8];
    assert_eq!(member.read_at(&mut buf, len - 8).unwrap(), 8);
    assert_eq!(&buf, b"\0\0first!");
    // Its digest is that of the data, without the hole; nobody reads the hole.
    let to = tempfile::tempdir().unwrap();
    unpack_some(&pack, &Selector::new(&[]).unwrap(), &store(to.path()), 2).unwrap();
    let there = std::fs::metadata(to.path().join("1"));
    assert!(there.is_err(), "no file system has such files");
}

/// Paths of 4 KB that share all but their ends are few bytes of a page, and much memory.
#[test]
fn pages_are_limited_by_what_they_take_in_memory() {
    let (raw, [one, _]) = two_files();
    let directory = raw.len() as u64;
    let long = |i: u32| format!("{}{i:06}", "0123456789abcde/".repeat(255));
    let items: Vec<Item> = (0..2500).map(|i| item(&long(i), 0, one.0, one.1)).collect();
    let heavy = leaf(&items, directory);
    assert!(heavy.len() < 64 << 10);
    let error = read_all(&forged(&raw, &[heavy], 0, |_| ())).unwrap_err();
    assert!(error.to_string().contains("too much"), "{error}");
    let (mut inner, mut before) = (Vec::new(), Vec::new());
    for i in 0..600 {
        let child = Child { first: long(i).into_bytes(), at: directory, len: 1 };
        put_child(&child, &before, directory, &mut inner);
        before = child.first;
    }
    let error = read_all(&forged(&raw, &[vec![LEAF], inner], 1, |_| ())).unwrap_err();
    assert!(error.to_string().contains("too much"), "{error}");

    // A writer ends its pages in time, and the cache goes by what they take.
    let mut builder = directory_alone();
    let folder = |i: u32| Item { entry: entry(&long(i), EntryKind::Folder), id: 0, content: Content::None };
    (0..100_000).for_each(|i| builder.push(folder(i)).unwrap());
    let (bytes, _) = builder.finish(1, 0).unwrap().finish().unwrap();
    let pack = Pack::open(&bytes[..]).unwrap();
    assert_eq!(pack.walk(b"").map(Result::unwrap).count(), 100_000);
    let (pages, weight) = pack.pages_held();
    assert!(pages > 32 && weight <= 96 << 20, "{pages} pages, {weight}");
}

/// One list of extents for many files is much work for few bytes.
#[test]
fn files_that_share_a_list_of_extents_are_refused() {
    let (raw, [one, _]) = two_files();
    let directory = raw.len() as u64;
    let extents: Vec<Extent> = (0..100_000).map(|_| Extent { raw: Some(one.0), len: 1 }).collect();
    let mut list = Vec::new();
    put_extents(&extents, one.1, &mut list);
    let there = List::There { at: directory, len: list.len() };
    let file = |i: u32| {
        let content = Content::File { end_at: one.1, list: there.clone() };
        Item { entry: entry(&format!("{i:05}"), EntryKind::File { len: 100_000, linked: false }), id: 0, content }
    };
    let items: Vec<Item> = (0..5000).map(file).collect();
    let bytes = forged(&raw, &[list, leaf(&items, directory)], 0, |_| ());
    let pack = Pack::open(&bytes[..]).unwrap();
    let to = tempfile::tempdir().unwrap();
    let all = Selector::new(&[]).unwrap();
    let broken = |left: crate::Left| left.broken.map_or(Ok(()), Err);
    for result in [
        unpack_some(&pack, &all, &store(to.path()), 1).and_then(broken),
        check_members(&pack, 1, |_, _| ()).map(drop),
        members_in(&pack, &[], |_| ()).map(drop),
    ] {
        assert!(result.unwrap_err().to_string().contains("share"));
    }
}

/// Entry streams that no writer makes are damage; what came before is unpacked.
#[test]
fn entry_streams_that_are_none_are_damage() {
    let (raw, _) = two_files();
    let files = &raw[..raw.len() - 3];
    assert_eq!(raw[files.len()..], [7, 1, 2]);
    let mut unknown = Vec::new();
    let mut records = RecordWriter::default();
    records.entry(&entry("3", EntryKind::Stream), &mut unknown).unwrap();
    for (what, end) in [
        ("a wrong count", vec![7, 1, 3]),
        ("an end of 256 MiB", [&[7, 0xff, 0xff, 0xff, 0x7f][..], &[0; 1 << 20]].concat()),
        ("an end that is too long", [&[7, 11][..], &[0; 11]].concat()),
        ("an empty end", vec![7, 0]),
        ("a length that is none", vec![7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("a file of unknown length", unknown),
    ] {
        let bytes = file_of(&[files, &end].concat());
        let to = tempfile::tempdir().unwrap();
        let options = || ReceiveOptions::default().threads(1);
        let left = unpack_all(std::io::Cursor::new(bytes), None::<&Pack<&[u8]>>, &store(to.path()), options).unwrap();
        let broken = left.broken.unwrap_or_else(|| panic!("{what}"));
        assert_eq!(broken.kind, narrows::ErrorKind::Corrupt, "{what}: {broken}");
        assert_eq!(std::fs::read(to.path().join("2")).unwrap(), b"second", "{what}");
        assert!(!to.path().join("3").exists(), "{what}");
    }
}

/// Folders above what is asked for are looked up once, however deep: 2,000 entries have 4,000,000 of them.
#[test]
fn deep_folders_are_unpacked_each_once() {
    let deep = "/d".repeat(2000);
    let folder = |path: &str| Item { entry: entry(path, EntryKind::Folder), id: 0, content: Content::None };
    let mut builder = directory_alone();
    for i in 0..2000 {
        // Two of the folders on the way are entries; the third is beside it.
        for path in ["", &deep[..2 * i + 2], &format!("{}/c", &deep[..2 * i + 2])] {
            builder.push(folder(&format!("{i:04}{path}"))).unwrap();
        }
        let last = entry(&format!("{i:04}{deep}/last"), EntryKind::Symlink { target: b"x".to_vec() });
        builder.push(Item { entry: last, id: 0, content: Content::None }).unwrap();
    }
    let (bytes, _) = builder.finish(1, 0).unwrap().finish().unwrap();
    let pack = Pack::open(&bytes[..]).unwrap();
    let to = tempfile::tempdir().unwrap();
    let store = store_with(to.path(), true);
    let selector = Selector::new(&[b"*/last".to_vec(), b"x".to_vec()]).unwrap();
    assert_eq!(unpack_some(&pack, &selector, &store, 1).unwrap().missing, ["x"]);
    assert_eq!(store.stored().announced, 2000);
}

#[test]
fn folders_on_the_way_come_with_what_the_pack_says_of_them() {
    let item = |path: &str, mode: u32, kind: EntryKind| Item {
        entry: Entry { mode, ..entry(path, kind) },
        id: 0,
        content: Content::None,
    };
    let link = || EntryKind::Symlink { target: b"x".to_vec() };
    let mut builder = directory_alone();
    let kinds = |path: &str| if path.ends_with(['1', '2']) { link() } else { EntryKind::Folder };
    for (path, mode) in [
        ("a", 0o711),
        ("a/b", 0o755),
        ("a/b/A", 0o755),
        ("a/b/c", 0o700),
        ("a/b/c/d", 0o750),
        ("a/b/c/d/1", 0o777),
        ("a/b/c/e", 0o701),
        ("a/b/c/e/1", 0o777),
        ("a/b/c/e/2", 0o777),
        ("a/b/c/e.g", 0o755),
        ("a/b/c/e.g/1", 0o777),
        ("b", 0o710),
        ("b/1", 0o777),
    ] {
        builder.push(item(path, mode, kinds(path))).unwrap();
    }
    let (bytes, _) = builder.finish(1, 0).unwrap().finish().unwrap();
    let pack = Pack::open(&bytes[..]).unwrap();
    let to = tempfile::tempdir().unwrap();
    let selector = Selector::new(&[b"*/1".to_vec(), b"a/b/c/e/2".to_vec()]).unwrap();
    assert!(unpack_some(&pack, &selector, &store(to.path()), 1).unwrap().missing.is_empty());
    for (path, mode) in [("a", 0o711), ("a/b/c", 0o700), ("a/b/c/d", 0o750), ("a/b/c/e", 0o701), ("b", 0o710)] {
        let meta = std::fs::metadata(to.path().join(path)).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, mode, "{path}");
    }
    for path in ["a/b/c/d/1", "a/b/c/e/1", "a/b/c/e/2", "a/b/c/e.g/1", "b/1"] {
        assert!(to.path().join(path).is_symlink(), "{path}");
    }
    assert!(!to.path().join("a/b/A").exists());
}

/// Writes and lists so many members of one byte.
fn many(count: u64) {
    let writer = Writer::new(Vec::new(), WriteOptions::default()).unwrap();
    let content_end = 11 * count;
    let mut sink = writer;
    sink.write_all(&vec![0; content_end as usize]).unwrap();
    let mut builder = Builder::new(sink, content_end);
    let file = |i: u64| {
        let mut list = Vec::new();
        put_extents(&[Extent { raw: Some(i % 900), len: 1 }], 900, &mut list);
        let content = Content::File { end_at: 900, list: List::Here(list) };
        let path = format!("{:03}/{:06}", i / 5000, i);
        Item { entry: entry(&path, EntryKind::File { len: 1, linked: false }), id: i, content }
    };
    (0..count).for_each(|i| builder.push(file(i)).unwrap());
    let (bytes, _) = builder.finish(count, count).unwrap().finish().unwrap();
    let pack = Pack::open(&bytes[..]).unwrap();
    let mut listed = 0;
    for item in pack.walk(b"") {
        assert_eq!(item.unwrap(), file(listed));
        listed += 1;
    }
    assert_eq!(listed, count);
    assert!(pack.pages_held().0 <= 64);
    let found = pack.find(&file(count / 2).entry.path).unwrap();
    assert_eq!(found, Some(file(count / 2)));
    // Folders that are no entries are passed over by searches.
    let mut here = 0;
    pack.children(b"001", None, |_| {
        here += 1;
        true
    })
    .unwrap();
    assert_eq!(here, 5000);
    pack.children(b"", None, |_| panic!("there are only files below")).unwrap();
}

#[test]
fn many_members_are_listed_page_by_page() {
    many(50_000);
}

#[test]
#[ignore = "a million entries take half a minute; `make test-full` runs this"]
fn a_million_members_are_listed_page_by_page() {
    many(1_000_000);
}
