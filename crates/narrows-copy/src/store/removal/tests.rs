//! Tests of removing what the sources do not have, against simulated senders.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use narrows::entry::{DIGEST_LEN, EndState, Entry, EntryKind, RecordWriter};
use narrows::stream::Notes;

use super::super::{EntryStore, Observers, Permitted, Stored};
use super::*;
use crate::hello::{Fsync, StoreHabits, Unmade};
use crate::tree::Tree;

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: path.into(), kind, mode: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
}

/// A simulated sender.
#[derive(Default)]
struct Peer {
    writer: RecordWriter,
    out: Vec<u8>,
}

impl Peer {
    fn sends(mut self, path: &str, kind: EntryKind) -> Self {
        self.writer.entry(&entry(path, kind), &mut self.out).unwrap();
        self
    }

    fn folder(self, path: &str) -> Self {
        self.sends(path, EntryKind::Folder)
    }

    fn file(self, path: &str) -> Self {
        self.sends(path, EntryKind::File { len: 0, linked: false })
    }

    fn content(mut self, id: u64, state: EndState) -> Self {
        self.writer.begin(id, &mut self.out);
        self.writer.end(state, blake3::hash(&[]).as_bytes(), &mut self.out);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        self.writer.finish(&mut self.out);
        self.out
    }
}

/// A root with this name in it is one that takes different spellings for one name.
const FOLDS: &str = "folds";

/// Takes what a peer sends into `root`; before the end something happens to that.
fn store(root: &Path, sources: &[&str], bytes: &[u8], happens: impl FnOnce()) -> (Stored, Vec<String>) {
    store_as(root, sources, bytes, options(), happens, |_| ())
}

fn options() -> StoreOptions {
    let delete = Delete { exclude: vec!["/kept".into(), "/folds".into()], max: None, names: true, confirmed: None };
    StoreOptions {
        fsync: Fsync::None,
        devices: false,
        unmade: Unmade::Failed,
        dry_run: false,
        owner: None,
        delete: Some(delete),
        names: false,
        set_id: false,
        form: Form::Raw,
        images: false,
        codes: false,
        holes: false,
        habits: StoreHabits::default(),
    }
}

fn store_as(
    root: &Path,
    sources: &[&str],
    bytes: &[u8],
    options: StoreOptions,
    happens: impl FnOnce(),
    on_removed: impl Fn(&str) + Send + 'static,
) -> (Stored, Vec<String>) {
    let sources: Vec<_> = sources.iter().map(Into::into).collect();
    let permitted = Permitted::tops(&sources, true);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let on_failure = Box::new(move |text: &str| heard.lock().unwrap().push(text.to_owned()));
    let observers =
        Observers { on_failure, on_skipped: None, on_file: Box::new(|_| ()), on_removed: Some(Box::new(on_removed)) };
    let tree = Tree::open(root).unwrap();
    let mut store = EntryStore::new(tree, None, permitted, options, Notes::default(), observers).unwrap();
    if root.join(FOLDS).exists() {
        store.lock().target.names.spellings.folds(b"", |_| true);
    }
    store.write_all(bytes).unwrap();
    happens();
    // After an interrupted copy this is an error.
    let _ = store.finish();
    let told = told.lock().unwrap().clone();
    (store.stored(), told)
}

fn folder_with(paths: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "precious").unwrap();
    }
    dir
}

#[test]
fn a_copy_that_is_not_whole_removes_nothing_whatever_the_peer_says() {
    let whole = || Peer::default().folder("").file("f");
    let cut = whole().content(1, EndState::Whole).out;
    let mut failed = whole().content(1, EndState::Whole);
    failed.writer.failed("gone", &mut failed.out);
    for (what, bytes, removes) in [
        ("whole", whole().content(1, EndState::Whole).finish(), true),
        ("changed while it was read", whole().content(1, EndState::Changed).finish(), true),
        ("cut off", cut, false),
        ("a file that was announced and did not come", whole().finish(), false),
        ("a file that stops without a word", whole().content(1, EndState::Partial).finish(), false),
        ("a failure", failed.finish(), false),
        ("no folder", Peer::default().finish(), false),
    ] {
        let dir = folder_with(&["old"]);
        let (stored, _) = store(dir.path(), &["x/"], &bytes, || ());
        assert_eq!(dir.path().join("old").exists(), !removes, "{what}");
        assert_eq!(stored.removed, u64::from(removes), "{what}");
        assert_eq!(stored.not_removed.is_some(), !removes && what != "cut off", "{what}");
    }
    let (wrong_digest, dir) = (&[7; DIGEST_LEN], folder_with(&["old"]));
    let mut peer = whole();
    peer.writer.begin(1, &mut peer.out);
    peer.writer.end(EndState::Whole, wrong_digest, &mut peer.out);
    let (stored, _) = store(dir.path(), &["x/"], &peer.finish(), || ());
    assert!(dir.path().join("old").exists() && stored.not_removed.is_some());
}

#[test]
fn a_peer_cannot_have_removed_what_it_was_not_asked_for() {
    let dir = folder_with(&["asked/old", "beside/precious", "top"]);
    let bytes = Peer::default().folder("asked").folder("beside").finish();
    let (stored, _) = store(dir.path(), &["x/asked"], &bytes, || ());
    assert!(stored.failed == 1 && dir.path().join("asked/old").exists());
    let bytes = Peer::default().folder("asked").finish();
    store(dir.path(), &["x/asked"], &bytes, || ());
    assert!(!dir.path().join("asked/old").exists());
    assert!(dir.path().join("beside/precious").exists() && dir.path().join("top").exists());
    // Excluded folders are not sent; one that does send them gets nothing in them removed.
    let dir = folder_with(&["kept/precious", "kept/in/precious", "old"]);
    let bytes = Peer::default().folder("").folder("kept").folder("kept/in").finish();
    let (stored, _) = store(dir.path(), &["x/"], &bytes, || ());
    assert!(stored.removed == 1 && !dir.path().join("old").exists());
    assert!(dir.path().join("kept/precious").exists() && dir.path().join("kept/in/precious").exists());
}

#[test]
fn a_folder_that_is_replaced_meanwhile_loses_nothing() {
    let dir = folder_with(&["t/a/old", "t/b/old", "t/old", "outside/precious", "other/precious"]);
    let at = |path: &str| dir.path().join(path);
    let bytes = Peer::default().folder("").folder("a").folder("b").finish();
    let (stored, told) = store(&at("t"), &["x/"], &bytes, || {
        fs::rename(at("t/a"), at("was a")).unwrap();
        std::os::unix::fs::symlink("../outside", at("t/a")).unwrap();
        fs::rename(at("t/b"), at("was b")).unwrap();
        fs::rename(at("other"), at("t/b")).unwrap();
    });
    for path in ["outside/precious", "t/b/precious", "was a/old", "was b/old"] {
        assert!(at(path).exists(), "{path}");
    }
    assert!(!at("t/old").exists(), "the rest goes on");
    assert!(stored.failed >= 2 && told.iter().any(|t| t.contains("anything in b: it was replaced")), "{told:?}");
    assert!(told.iter().any(|t| t.contains("anything in a:")), "{told:?}");
}

#[test]
fn what_was_agreed_to_goes_and_nothing_else_does() {
    let names = ["a", "b/x", "b/"];
    let agreed = |names: &[&str]| {
        let mut set = NameSet::default();
        names.iter().for_each(|name| assert!(set.add(name)));
        let mut options = options();
        options.delete.iter_mut().for_each(|delete| delete.confirmed = Some(set.confirmed()));
        options
    };
    fn run(options: StoreOptions, on_removed: impl Fn(&Path, &str) + Send + 'static) -> (String, Stored, Vec<String>) {
        let bytes = Peer::default().folder("").finish();
        let dir = folder_with(&["a", "b/x"]);
        let root = dir.path().to_path_buf();
        let (stored, told) = store_as(dir.path(), &["x/"], &bytes, options, || (), move |name| on_removed(&root, name));
        let left: Vec<_> = ["a", "b/x", "b/new"].into_iter().filter(|name| dir.path().join(name).exists()).collect();
        (left.join(" "), stored, told)
    }
    let (left, stored, _) = run(agreed(&names), |_, _| ());
    assert_eq!((&left[..], stored.removed, stored.not_removed), ("", 3, None));
    // As many, more or fewer than there are.
    for others in [&["a", "b/y", "b/"][..], &["a", "b/x", "b/", "c"], &["b/x", "b/"], &[]] {
        let (left, stored, _) = run(agreed(others), |_, _| ());
        assert_eq!((&left[..], stored.removed), ("a b/x", 0), "{others:?}");
        assert!(stored.not_removed.unwrap().contains("not what was shown"), "{others:?}");
    }
    // While it is removed something else comes.
    let comes = |root: &Path, name: &str| {
        if name == "a" {
            fs::write(root.join("b/new"), "precious").unwrap();
        }
    };
    let (left, stored, told) = run(agreed(&names), comes);
    assert_eq!((&left[..], stored.removed, stored.failed), ("b/new", 2, 1), "{told:?}");
    assert!(told[0].contains("cannot remove b/new: it came after"), "{told:?}");
}

#[test]
fn the_folder_of_partial_files_is_neither_written_to_by_a_peer_nor_removed() {
    let paths = [".p/a", "sub/.p/a", "gone/.p/a", "old"];
    let dir = folder_with(&paths);
    let bytes = || Peer::default().folder("").file(".p/x").folder("sub").folder("sub/.p").file("sub/.p/in/y").finish();
    let partial_dir = crate::hello::PartialDir::new(Path::new(".p")).unwrap();
    let with_it = || StoreOptions {
        habits: StoreHabits { partial_dir: partial_dir.clone(), ..StoreHabits::default() },
        ..options()
    };
    let (stored, told) = store_as(dir.path(), &["x/"], &bytes(), with_it(), || (), |_| ());
    assert_eq!(stored.failed, 3, "{told:?}");
    assert!(told.iter().all(|text| text.contains("its folder is that of --partial-dir")), "{told:?}");
    assert!(paths.iter().all(|path| dir.path().join(path).exists()), "nothing is removed after a failure");
    let bytes = Peer::default().folder("").folder("sub").finish();
    let (stored, _) = store_as(dir.path(), &["x/"], &bytes, with_it(), || (), |_| ());
    let left = paths.map(|path| dir.path().join(path).exists());
    assert_eq!((left, stored.removed, stored.failed), ([true, true, false, false], 4, 0));
}

/// As on a file system that gives what is stored another name.
#[test]
fn where_a_folder_does_not_list_what_was_stored_in_it_nothing_goes() {
    for is_renamed in [false, true] {
        let dir = folder_with(&["old", "in/old"]);
        let bytes = Peer::default().folder("").folder("in").folder("new").finish();
        let happens = || {
            if is_renamed {
                fs::rename(dir.path().join("new"), dir.path().join("other")).unwrap();
            }
        };
        let (_, told) = store(dir.path(), &["x/"], &bytes, happens);
        assert_eq!(dir.path().join("old").exists(), is_renamed, "{told:?}");
        assert_eq!(dir.path().join("other").exists(), is_renamed, "{told:?}");
        assert_eq!(told.iter().any(|text| text.contains("does not list all")), is_renamed, "{told:?}");
        assert!(!dir.path().join("in/old").exists(), "other folders list what they have");
    }
}

#[test]
fn a_name_that_stays_beside_a_stored_one_does_not_stand_for_another_that_is_not_listed() {
    // Some file system tells `x.` from `x`, so it stays; `y` is listed as something that nobody knows.
    for there in [&["x.", FOLDS][..], &[FOLDS], &["other", FOLDS]] {
        let root = folder_with(there);
        let at = |name: &str| root.path().join(name);
        let sent = Peer::default().folder("").file("x").file("y").content(1, EndState::Whole);
        let sent = sent.content(2, EndState::Whole).finish();
        let (stored, told) = store(root.path(), &["d/"], &sent, || fs::rename(at("y"), at("unknown")).unwrap());
        assert!(at("unknown").exists(), "{there:?}: {told:?}");
        assert!(told.iter().any(|text| text.contains("does not list all")), "{there:?}: {told:?}");
        assert_eq!(stored.removed, 0, "{there:?}");
    }
    let root = folder_with(&["x.", "other", FOLDS]);
    let sent = Peer::default().folder("").file("x").content(1, EndState::Whole).finish();
    let (stored, told) = store(root.path(), &["d/"], &sent, || ());
    assert!(root.path().join("x.").exists() && !root.path().join("other").exists(), "{told:?}");
    assert_eq!(stored.removed, 1);
}
